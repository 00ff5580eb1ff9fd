"""ZeRO-2 in turns of a table of positions: its sums over the turns stay whole where an axis of dp may not split them, and that is no fault."""

import functools

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import autopar  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.options import Options  # noqa: E402

pytestmark = pytest.mark.torch
ROWS, WIDTH = 16, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.scale, self.linear = nn.Parameter(torch.randn(ROWS, WIDTH)), nn.Parameter(torch.randn(ROWS, 1)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + nn.functional.gelu(self.linear(x + self.table * self.scale)) + torch.sin(self.table)


def test_a_table_with_a_scale_of_each_row():
    step = autopar.compile(
        nn.Sequential(Block(), Block()), "cpu:2", example_inputs=(torch.randn(8, ROWS, WIDTH),), example_targets=(torch.randn(8, ROWS, WIDTH),),
        loss=nn.functional.mse_loss, optimizer=functools.partial(torch.optim.AdamW, lr=1e-2),
        options=Options(constraints=parse_fix("dp=2,zero=2,pp=1,microbatches=2"), price=False),
    )  # fmt: skip
    assert step.plan.num_microbatches == 2
