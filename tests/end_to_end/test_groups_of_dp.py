"""HSDP: states that are cut among groups of neighbours of dp and held once more by each group give the numbers of plain PyTorch, and take the bytes that they should."""

import functools

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.api import compile_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace import Workload  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402

pytestmark = pytest.mark.torch
WIDTH, BLOCKS, BATCH = 16, 4, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Clipped(torch.optim.AdamW):
    """AdamW that clips its gradients by their norm first."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


def workload():
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    return Workload(model, (torch.randn(BATCH, WIDTH),), (torch.randn(BATCH, WIDTH),), F.mse_loss, functools.partial(Clipped, lr=1e-2), name="groups")


def options(fix):
    return Options(constraints=parse_fix(fix), price=False, time_limit_s=30)


@pytest.mark.parametrize(
    ("cluster", "fix"),
    [
        ("2x2xcpu", "dp=4,zero=3,dp_shard=2,pp=1"),
        ("2x2xcpu", "dp=4,zero=1,dp_shard=2,pp=1,microbatches=2"),
        ("2x2xcpu", "dp=4,zero=2,dp_shard=2,pp=1,microbatches=2"),
        ("2x2xcpu", "dp=4,zero=3,dp_shard=2,pp=1,microbatches=2,recompute=full"),
        ("2x4xcpu", "dp=4,tp=2,zero=3,dp_shard=2,pp=1"),
        ("2x4xcpu", "dp=4,pp=2,zero=3,dp_shard=2,microbatches=2"),
    ],
)
def test_the_numbers_are_plain_torchs(cluster, fix):
    report = verify_workload(workload(), cluster, options(fix))
    assert not report.failures, describe_failure(report)


@pytest.mark.parametrize(
    ("words", "mesh", "placement"),
    [("zero=3,dp_shard=2", "(('dp', 2), ('dp_2', 2))", "R,S0/32"), ("zero=3,dp_shard=4", "(('dp', 4),)", "S0/16"), ("zero=3", "(('dp', 4),)", "S0/16")],
)
def test_a_rank_holds_a_piece_of_its_group(words, mesh, placement):
    """In turns as in one: of a weight of 64 rows each of two neighbours has 32, which the other group has once more."""
    for turns in (1, 2):
        text = compile_workload(workload(), "2x2xcpu", options(f"dp=4,pp=1,microbatches={turns},{words}")).files["program.py"]
        assert f"MESH = {mesh}" in text
        rows = [line for line in text.splitlines() if 'up.weight": State(' in line and "step:" not in line]
        assert len(rows) == 1 + 2 * BLOCKS and all(f'(64, 16), "float32", "{placement}"' in row for row in rows), rows  # weights of all blocks, two moments of each
