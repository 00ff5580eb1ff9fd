"""What is compared with an extreme of itself is summed up once: no plan divides zero by zero."""

import random

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.graph import cuts  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.node import packet_of  # noqa: E402
from autopar.graph.partition import node_cuts  # noqa: E402
from autopar.graph.sharding import Shard  # noqa: E402
from autopar.graph.strategy import list_strategies  # noqa: E402
from autopar.trace import Workload  # noqa: E402

from .random_plans import Assigner, Control  # noqa: E402

pytestmark = pytest.mark.torch

MESH = (2, 2)


class Pooled(nn.Module):
    """The largest over the points of a cloud; by torch's gradient every one that is as large has its share."""

    def __init__(self, pool):
        super().__init__()
        self.lift, self.pool, self.head = nn.Linear(16, 8, bias=False), pool, nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.pool(self.lift(x)))


def keep_best(x):
    """The three best of each row, the others zero."""
    return (x * (x >= x.topk(3).values[..., -1:])).mean(1)


POOLS = {
    "amax": lambda x: x.amax(1),
    "amin of a view": lambda x: x.transpose(1, 2).amin(-1),
    "infinity norm": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1),
    "topk": keep_best,
}


def build(pool):
    return Workload(Pooled(POOLS[pool]), (torch.randn(4, 4, 16),), (torch.randn(4, 4),), F.mse_loss, torch.optim.SGD)


def worst(control, count=24):
    """The largest difference, NaN where one is."""
    found = 0.0
    for number in range(count):
        assigner = Assigner(control.graph, MESH, recompute=random.Random(number) if number % 2 else None)
        try:
            difference = control.worst(assigner.program(assigner.draw(random.Random(number))))[0]
        except AssertionError:  # ranks whose pieces are NaN do not hold the same
            return float("nan")
        found = difference if not difference <= found else found
    return found


@pytest.mark.parametrize("pool", POOLS)
def test_random_plans_find_what_is_as_large_as_the_largest(pool):
    torch.manual_seed(0)
    control = Control(build(pool))
    assert worst(control) < 1e-10


def test_without_the_marks_some_plan_finds_nothing(monkeypatch):
    """The test above can fail."""
    monkeypatch.setattr(cuts, "mark_exact", lambda graph, signatures: signatures)
    torch.manual_seed(0)
    assert not worst(Control(build("amax")), 60) < 1e-10


def marked(workload):
    case = build_case(Control(workload).graph)
    return [packet_of(node.op) for node, signature in zip(case.graph.nodes, case.signatures) if signature.exact]


def test_what_makes_the_value_is_marked_and_nothing_else():
    assert marked(build("amax")) == ["autopar.linear"]
    assert marked(Workload(nn.Linear(8, 4), (torch.randn(4, 8),), (torch.randn(4, 4),), F.mse_loss, torch.optim.SGD)) == []


def test_the_samples_of_a_marked_value_may_still_be_split():
    """Statistics of the whole batch stand before it, which are sums of parts."""
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Unflatten(1, (2, 4)))
    case = build_case(Control(Workload(model, (torch.randn(8, 16),), (torch.randn(8, 2),), lambda y, t: F.mse_loss(y.amax(2), t), torch.optim.SGD)).graph)
    rows = [row for row in zip(case.graph.nodes, case.sites, case.signatures) if row[2].exact]
    assert rows
    for node, site, signature in rows:
        offered, _ = list_strategies(signature, site, (2,), node_cuts(site, signature, case.cuts))
        assert Shard(0, 4) in {strategy.outputs[0].placements[0] for strategy in offered}, node
