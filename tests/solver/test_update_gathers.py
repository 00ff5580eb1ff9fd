"""Gathers in the update: an optimizer's states that are stored in pieces are worked on in pieces also where each update needs one number of its whole parameter; to gather them is priced as sent, one by one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import autopar  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.graph.tensor import Kind, Value  # noqa: E402
from autopar.graph.transfer import Transfer, transfer_of  # noqa: E402
from autopar.trace import Workload  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH = 2048


class Trusting(torch.optim.Optimizer):
    """Momentum, scaled by the parameter's own mean of what moves it."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["m"] = torch.zeros_like(p)
            state["m"].mul_(0.9).add_(p.grad)
            p.add_(state["m"] * (state["m"].abs().sum() + 1e-6).rsqrt(), alpha=-1e-3)


def test_states_of_vectors_are_not_gathered_for_a_number():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    work = Workload(model, (torch.randn(64, WIDTH),), (torch.randn(64, WIDTH),), F.mse_loss, Trusting, name="trusting")
    plan = autopar.compile_workload(work, "1x4xH100-80GB", autopar.Options(constraints=parse_fix("dp=4,zero=1"), precision="bf16", time_limit_s=20.0, price=False)).plan
    whole = [c.value for c in plan.comms if c.kind == "all_gather" and c.value.startswith(("m:", "master:"))]
    assert not whole and any(c.kind == "all_reduce" and c.phase.value == "update" for c in plan.comms)


@pytest.mark.parametrize(("kind", "version", "transfer"), [(Kind.OPTIM, 0, Transfer.BLOCKING), (Kind.OPTIM, 1, Transfer.STATE), (Kind.PARAM, 0, Transfer.STATE), (Kind.PARAM, 1, Transfer.STATE)])
def test_what_an_update_reads_of_its_states_waits(kind, version, transfer):
    assert transfer_of(Value(f"m@{version}", "m", version, (8,), "float32", kind)) is transfer
