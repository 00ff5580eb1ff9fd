"""Any legal plan gives the numbers of the plain step: random plans, run as emitted, on all ranks in one process."""

import random

import pytest

torch = pytest.importorskip("torch")

from autopar.graph.repeats import fold_graph  # noqa: E402

from .chain import chain_graph  # noqa: E402
from .random_plans import Assigner, files_of, run_source  # noqa: E402

pytestmark = pytest.mark.torch


def reference(states, x, num_blocks):
    weights = [states[f"h.{i}.w"].clone().requires_grad_() for i in range(num_blocks)]
    y = x
    for w in weights:
        y = torch.relu(y @ w)
    y.sum().backward()
    return y.sum().detach(), [w.grad for w in weights], {f"h.{i}.w": (w - 0.1 * w.grad).detach() for i, w in enumerate(weights)}


@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2), (3,), (2, 3), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("folded", [True, False], ids=["folded", "free"])
@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
def test_random_plans_of_a_chain(sizes, folded, again):
    graph = chain_graph(4, batch=24, width=24)
    assigner = Assigner(graph, sizes, recompute=random.Random(5) if again else None)
    assert bool(assigner.again) == again
    rng = random.Random(hash((sizes, folded)) & 0xFFFF)
    generator = torch.Generator().manual_seed(0)
    states = {f"h.{i}.w": torch.randn(24, 24, generator=generator, dtype=torch.float64) for i in range(4)}
    batch = {"input:0": torch.randn(24, 24, generator=generator, dtype=torch.float64)}
    loss, grads, updated = reference(states, batch["input:0"], 4)
    fold = fold_graph(assigner.graph) if folded else None
    for number in range(4):
        assignment = assigner.draw(rng, fold)
        program = assigner.program(assignment, keep_grads=number % 2 == 0)  # a gradient that leaves the step is not reduced behind its back
        results, after = run_source(files_of(graph, program), program, graph, {k: v.clone() for k, v in states.items()}, batch)
        for found_loss, found_grads in results:
            torch.testing.assert_close(found_loss, loss, rtol=1e-10, atol=1e-10)
            for found, wanted in zip(found_grads, grads, strict=number % 2 == 0):
                torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
        for name, wanted in updated.items():
            torch.testing.assert_close(after[name], wanted, rtol=1e-10, atol=1e-10)


def test_length_does_not_depend_on_depth():
    lengths = {}
    for depth in (12, 48):
        graph = chain_graph(depth, batch=8, width=8)
        assigner = Assigner(graph, (2,))
        fold = fold_graph(graph)
        files = files_of(graph, assigner.program(assigner.draw(random.Random(3), fold), keep_grads=False))
        lengths[depth] = sum(text.count("\n") for text in files.values())
    assert lengths[48] <= 1.1 * lengths[12]


class Awkward(torch.nn.Module):
    """Parameters whose names are parts of the words that a program is written in."""

    def __init__(self):
        super().__init__()
        for name in ("a", "e", "state", "grads", "name", "i"):
            self.register_parameter(name, torch.nn.Parameter(torch.randn(4, 4)))

    def forward(self, x):
        for p in self.parameters():
            x = torch.tanh(x @ p)
        return x


def test_parameter_names_that_are_words_of_the_program():
    from autopar.runtime.execute import run_graph
    from autopar.trace import Workload, trace_step

    torch.manual_seed(0)
    model = Awkward()
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    graph = trace_step(Workload(model, (x,), (y,), torch.nn.functional.mse_loss, torch.optim.AdamW), "fp64").graph
    values = {v.name: v for v in graph.values}
    env = {n: torch.randn(values[n].shape, dtype=torch.float64).abs() for n in graph.inputs}
    expected = run_graph(graph, {n: t.clone() for n, t in env.items()})
    states = {values[n].storage: t for n, t in env.items() if "@" in n}
    assigner = Assigner(graph, (2,))
    for seed in range(3):
        program = assigner.program(assigner.draw(random.Random(seed)))
        _, after = run_source(files_of(graph, program), program, graph, {k: v.clone() for k, v in states.items()}, {n: t for n, t in env.items() if "@" not in n})
        for old, new in graph.updates:
            torch.testing.assert_close(after[values[old].storage], expected[new], rtol=1e-10, atol=1e-10)
