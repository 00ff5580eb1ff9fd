"""Models that read no parameter as it is: what is made of parameters runs before the microbatches, and is read in turns and stages as a parameter would be."""

from __future__ import annotations

import copy
import functools

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402
from torch.nn.utils.parametrizations import weight_norm  # noqa: E402

import autopar  # noqa: E402
from autopar import Workload  # noqa: E402
from autopar.api import plan_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402

pytestmark = pytest.mark.torch
SGD = functools.partial(torch.optim.SGD, lr=0.1)


def normed():
    return nn.Sequential(weight_norm(nn.Linear(8, 16, bias=False)), nn.ReLU(), weight_norm(nn.Linear(16, 4, bias=False)))


class Ternary(nn.Module):
    """Weights of three values, with the gradient of the weights themselves."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 4))])

    def forward(self, x):
        for w in self.weights:
            x = torch.tanh(x @ (w + (w.sign() - w).detach()))
        return x


@pytest.mark.parametrize("build", [normed, Ternary])
def test_microbatches_give_plain_numbers(build):
    torch.manual_seed(0)
    model, x, y = build(), torch.randn(8, 8), torch.randn(8, 4)
    plain = copy.deepcopy(model)
    options = autopar.Options(constraints=parse_fix("microbatches=4"))
    step = autopar.compile(model, "cpu:1", example_inputs=(x,), example_targets=(y,), loss=mse_loss, optimizer=SGD, options=options)
    optimizer = SGD(plain.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = mse_loss(plain(x), y)
        loss.backward()
        optimizer.step()
        assert step(x, y).item() == pytest.approx(loss.item(), rel=1e-5)


def test_stages_cut_between_what_reads_them(tmp_path):
    workload = Workload(normed(), (torch.randn(8, 8),), (torch.randn(8, 4),), mse_loss, SGD)
    options = autopar.Options(constraints=parse_fix("pp=2,microbatches=2"))
    plan = plan_workload(workload, "cpu:2", options, rows_path=tmp_path / "none.json", cache_path=None).plan
    paths = {node.name: node.path for node in plan.nodes}
    assert plan.num_stages == 2 and [paths[name] for name in plan.pipeline.starts] in (["1"], ["2"])
