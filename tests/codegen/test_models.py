"""Random legal plans of real models: the emitted program on all ranks in one process equals the traced step, node for node exact.

That the traced step equals eager PyTorch is tests/trace's subject; together they are the proof that the compiler is right whatever the
solver says.
"""

import functools
import random

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

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


class Scores(torch.nn.Module):
    """Tokens to logits."""

    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(24, 8), torch.nn.Linear(8, 24)

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)))


def smoothed(x, t):
    """Label smoothing, weights of classes, and logits that are held near zero."""
    log_p = F.log_softmax(x, -1)
    by_class = (log_p * torch.linspace(0.5, 2.0, 24, dtype=log_p.dtype)).sum(-1).mean()
    return F.cross_entropy(x.flatten(0, 1), t.flatten(), label_smoothing=0.1) - 0.1 * by_class + 0.1 * x.logsumexp(-1).square().mean()


def distilled(x, t):
    """A target's log-probability, gathered, and a divergence from probabilities."""
    log_p, wanted = F.log_softmax(x, -1), torch.softmax(torch.arange(x.numel(), dtype=x.dtype).sin().view(x.shape), -1)
    return F.kl_div(log_p, wanted, reduction="batchmean") - log_p.gather(-1, t.clamp(min=0)[..., None]).mean()


@pytest.mark.parametrize("spelling", [smoothed, distilled])
def test_classes_of_a_loss_may_be_split(spelling):
    torch.manual_seed(0)
    targets = torch.randint(0, 24, (4, 6))
    targets[0, :2] = -100
    control = Control(Workload(Scores(), (torch.randint(0, 24, (4, 6)),), (targets,), spelling, functools.partial(torch.optim.SGD, lr=0.1)))
    loss = next(node.name for node in control.graph.nodes if node.op == "autopar.cross_entropy_backward")
    assigner, num_split = Assigner(control.graph, (2, 2)), 0
    for seed in range(16):
        assignment = assigner.draw(random.Random(seed))
        num_split += "v" in dict(assignment.strategies)[loss]
        difference, whose = control.worst(assigner.program(assignment))
        assert difference < 1e-10, (seed, whose)
    assert num_split >= 4
