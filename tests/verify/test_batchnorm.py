"""Batch norm with the statistics of each microbatch: the step is that of a plain loop over microbatches, under any plan."""

import pytest
import torch
from torch import nn

import autopar
from autopar.constraints import constrain
from autopar.errors import MicrobatchError, OptionsError
from autopar.verify import verify_workload
from autopar.verify.reference import norms_in_turns

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(3 if k == 0 else 6, 6, 3, padding=1), nn.BatchNorm2d(6, momentum=0.2), nn.ReLU()) for k in range(3))
        self.out = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean((2, 3)))


def make() -> autopar.Workload:
    torch.manual_seed(0)
    return autopar.Workload(
        model=Net(), example_inputs=(torch.randn(16, 3, 5, 5),), example_targets=(torch.randint(0, 5, (16,)),), loss=nn.functional.cross_entropy,
        optimizer=torch.optim.SGD,
    )  # fmt: skip


def options(**words) -> autopar.Options:
    return autopar.Options(constraints=constrain(**words), price=False, time_limit_s=10.0, batchnorm="microbatch")


@pytest.mark.parametrize("cluster, words", [("cpu:2", {"microbatches": 4, "dp": 2}), ("cpu:2", {"microbatches": 4, "pp": 2}), ("cpu:1", {"microbatches": 2})])
def test_statistics_of_each_microbatch(cluster, words):
    report = verify_workload(make(), cluster, options(**words), random_plans=2)
    assert not report.failures
    assert "buffer" in [kind.kind for kind in report.kinds]


def test_the_reference_is_a_loop_over_microbatches():
    """Gradient accumulation as users write it: forward and backward of each microbatch, running statistics on the way."""
    whole, loop = make().model.double(), make().model.double()
    x, y = torch.randn(16, 3, 5, 5, dtype=torch.float64), torch.randint(0, 5, (16,))
    with norms_in_turns(4):
        nn.functional.cross_entropy(whole(x), y).backward()
    for part, target in zip(x.chunk(4), y.chunk(4)):
        (nn.functional.cross_entropy(loop(part), target) / 4).backward()
    for (name, a), b in zip(whole.named_parameters(), loop.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12, msg=name)
    for (name, a), b in zip(whole.named_buffers(), loop.buffers()):
        if "num_batches" not in name:
            torch.testing.assert_close(a, b, rtol=1e-12, atol=0.0, msg=name)


def test_the_plan_says_so_and_is_made_again(tmp_path):
    plan = autopar.plan_workload(make(), "cpu:2", options(microbatches=4, dp=2)).plan
    assert "Batch norm takes its statistics from each of 4 microbatches" in plan.summary and plan.model.norm_turns == 4
    plan.save(tmp_path / "plan.json")
    again = autopar.compile_workload(make(), "cpu:2", autopar.Options(), given_plan=autopar.load_plan(tmp_path / "plan.json"))
    assert again.plan.model == plan.model and "range(4)" in again.files["program.py"]


def test_what_is_refused():
    with pytest.raises(OptionsError, match="microbatch needs the number of microbatches"):
        autopar.Options(batchnorm="microbatch")
    with pytest.raises(OptionsError, match="expected batch or microbatch, found 'sync'"):
        autopar.Options(batchnorm="sync")
    with pytest.raises(MicrobatchError, match="batch of 16 does not divide by 3 microbatches"):
        autopar.plan_workload(make(), "cpu:1", options(microbatches=3))
    flat = autopar.Workload(nn.BatchNorm1d(4), (torch.randn(8, 4),), (torch.randn(8, 4),), nn.functional.mse_loss, torch.optim.SGD)
    with pytest.raises(MicrobatchError, match="in 8 microbatches each would take its statistics from one value per channel, and needs more"):
        autopar.plan_workload(flat, "cpu:1", options(microbatches=8))
    none = autopar.Workload(nn.Linear(4, 4), (torch.randn(8, 4),), (torch.randn(8, 4),), nn.functional.mse_loss, torch.optim.SGD, name="plain")
    fixed = autopar.Workload(nn.BatchNorm1d(4).eval(), (torch.randn(8, 4),), (torch.randn(8, 4),), nn.functional.mse_loss, torch.optim.SGD, name="fixed")
    for work in (none, fixed):
        with pytest.raises(OptionsError, match=f"^batchnorm: microbatch is about batch norm that takes statistics of its batch, and {work.name} has none; leave it out$"):
            autopar.plan_workload(work, "cpu:1", options(microbatches=2))
