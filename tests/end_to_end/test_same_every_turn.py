"""A gradient that reads nothing of a microbatch, since the loss is linear in its parameter: each turn adds it, as it does the others."""

import functools

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.api import plan_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.turns import ACCUMULATE  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402

pytestmark = pytest.mark.torch
PLANS = {"microbatches=2": "cpu:1", "microbatches=4": "cpu:1", **dict.fromkeys(("dp=2,microbatches=2,zero=0", "dp=2,microbatches=2,zero=1", "dp=2,microbatches=4,zero=3", "pp=2,microbatches=2"), "cpu:2")}


class Critic(torch.nn.Module):
    """Of a WGAN: its score is as large as it gets; what its last bias and its level add is there for every sample."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.SiLU(), torch.nn.Linear(16, 16), torch.nn.SiLU(), torch.nn.Linear(16, 1))
        self.level = torch.nn.Parameter(torch.zeros(1))

    def forward(self, real, made):
        return self.net(real) + self.level, self.net(made)


def critic():
    adam = functools.partial(torch.optim.Adam, lr=1e-2)
    return autopar.Workload(Critic(), (torch.randn(8, 12), torch.randn(8, 12)), (), lambda scores: scores[0].mean() - 3 * scores[1].mean(), adam)


def options(fix):
    return autopar.Options(constraints=parse_fix(fix), price=False, time_limit_s=20.0)


@pytest.mark.parametrize("fix", PLANS)
def test_a_critics_bias(fix):
    report = verify_workload(critic(), PLANS[fix], options(fix))
    assert not report.failures, describe_failure(report)


def test_sums_over_turns_are_made_in_the_turns():
    graph = plan_workload(critic(), "cpu:1", options("microbatches=2")).program.graph
    sums = [node for node in graph.nodes if node.op == ACCUMULATE]
    assert sums and {node.phase for node in sums} <= {Phase.FORWARD, Phase.BACKWARD}
    made = {out: node.phase for node in graph.nodes for out in node.outputs}
    assert any(made.get(name) is Phase.PREPARE for node in sums for name in node.inputs)  # one is of what was made before
