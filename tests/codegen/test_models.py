"""Random legal plans of real models: the emitted program on all ranks in one process equals the traced step, node for node exact.

That the traced step equals eager PyTorch is tests/trace's subject; together they are the proof that the compiler is right whatever the
solver says.
"""

import random

import pytest

torch = pytest.importorskip("torch")

from autopar.graph.repeats import fold_graph  # noqa: E402
from tests.codegen.random_plans import Assigner, zoo_control  # noqa: E402

pytestmark = pytest.mark.torch

MODELS = ["mlp", "gpt2", "gpt2_dropout", "tagger", "llama", "bert", "vit", "resnet", "tied"]


@pytest.mark.parametrize("name", MODELS)
def test_random_plans(name):
    control = zoo_control(name)
    rng = random.Random(name)
    for sizes, draws in (((2,), 4), ((4,), 2), ((2, 2), 3)):
        assigner = Assigner(control.graph, sizes, recompute=random.Random(5) if len(sizes) > 1 else None)
        fold = fold_graph(assigner.graph)
        for k in range(draws):
            difference, whose = control.worst(assigner.program(assigner.draw(rng, fold if k % 2 else None), keep_grads=k % 4 < 2))
            assert difference < 1e-10, (sizes, k, whose)
