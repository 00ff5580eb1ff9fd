"""Random legal plans of real models: the emitted program on all ranks in one process equals the traced step, node for node exact.

That the traced step equals eager PyTorch is tests/trace's subject; together they are the proof that the compiler is right whatever the
solver says.
"""

import random

import pytest

torch = pytest.importorskip("torch")

from autopar.graph.repeats import fold_graph  # noqa: E402
from autopar.graph.tensor import STATE_KINDS  # noqa: E402
from autopar.runtime.execute import run_graph
from autopar.trace import trace_step  # noqa: E402
from tests.codegen.random_plans import Assigner, run_source, source_of  # noqa: E402
from tests.trace import zoo  # noqa: E402
from tests.trace.compare import batch, first_states  # noqa: E402

pytestmark = pytest.mark.torch

MODELS = ["mlp", "gpt2", "llama", "bert", "vit", "resnet", "tied"]


def relative_difference(found, wanted):
    if not wanted.numel():
        return 0.0
    scale = max(1.0, float(wanted.abs().max()))
    return float((found.double() - wanted.double()).abs().max()) / scale


@pytest.mark.parametrize("name", MODELS)
def test_random_plans(name):
    torch.manual_seed(0)
    workload = getattr(zoo, name)()
    traced = trace_step(workload, "fp64")
    graph = traced.graph
    env = first_states(workload, traced, torch.float64)
    _, _, named = batch(workload, traced, True, 1)
    expected = run_graph(graph, {k: v.clone() for k, v in {**env, **named}.items()})
    storage = {v.name: v.storage for v in graph.values if v.kind in STATE_KINDS}
    states = {storage[n]: env[n] for n in graph.inputs if n in storage}
    fold = fold_graph(graph)
    rng = random.Random(name)
    for sizes, draws in (((2,), 4), ((4,), 2), ((2, 2), 3)):
        assigner = Assigner(graph, sizes)
        for k in range(draws):
            program = assigner.program(assigner.draw(rng, fold if k % 2 else None))
            text = source_of(graph, program)
            results, after = run_source(text, program, graph, {k: v.clone() for k, v in states.items()}, named)
            for loss, grads in results:
                assert relative_difference(loss, expected[graph.loss]) < 1e-10
                for grad, (param, wanted) in zip(grads, graph.grads):
                    assert relative_difference(grad, expected[wanted]) < 1e-10, (sizes, k, param)
            for old, new in graph.updates:
                assert relative_difference(after[storage[old]], expected[new]) < 1e-9, (sizes, k, old)
