"""Random legal plans of real models: the emitted program on all ranks in one process equals the traced step, node for node exact.

That the traced step equals eager PyTorch is tests/trace's subject; together they are the proof that the compiler is right whatever the
solver says.
"""

import functools
import random

import pytest

torch = pytest.importorskip("torch")

from autopar import Workload  # noqa: E402
from autopar.graph.repeats import fold_graph  # noqa: E402
from tests.codegen.random_plans import Assigner, Control, zoo_control  # noqa: E402

pytestmark = pytest.mark.torch


class Empty(torch.nn.Module):
    """Slices without elements, and a parameter without any."""

    def __init__(self):
        super().__init__()
        self.linear, self.none = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.zeros(0, 8))

    def forward(self, x):
        y = self.linear(x)
        z = torch.cat([y[..., :0].cos() * 2, y.sin()], -1)
        return z + y[..., :0].sum(-1, keepdim=True) + self.none.sum()


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


def test_tensors_without_elements():
    torch.manual_seed(0)
    control = Control(Workload(Empty(), (torch.randn(8, 8),), (), lambda y: (y * y).mean(), functools.partial(torch.optim.AdamW, lr=1e-2)))
    for sizes in ((2,), (2, 2)):
        assigner = Assigner(control.graph, sizes)
        for seed in range(3):
            difference, whose = control.worst(assigner.program(assigner.draw(random.Random(seed))))
            assert difference < 1e-10, (sizes, seed, whose)
