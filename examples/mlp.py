"""A classifier of three layers: `autopar plan examples/mlp.py:build --cluster cpu:4`."""

import functools

import torch
from torch import nn
from torch.nn import functional as F

import autopar


class Mlp(nn.Module):
    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.up = nn.Linear(inputs, hidden)
        self.middle = nn.Linear(hidden, hidden)
        self.down = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.middle(F.gelu(self.up(x)))))


def build(batch: int = 64, hidden: int = 512) -> autopar.Workload:
    return autopar.Workload(
        model=Mlp(128, hidden, 10),
        example_inputs=(torch.randn(batch, 128),),
        example_targets=(torch.randint(0, 10, (batch,)),),
        loss=F.cross_entropy,
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-3),
    )
