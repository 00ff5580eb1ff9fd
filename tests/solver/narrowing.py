"""A model whose first half has much batch and small weights, and whose second half has the opposite (after "One weird trick", Krizhevsky 2014)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from autopar.trace import Workload


class Narrowing(nn.Module):
    def __init__(self, width: int, wide: int, layers: int) -> None:
        super().__init__()
        self.early = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))
        self.late = nn.ModuleList(nn.Sequential(nn.Linear(width if k == 0 else wide, wide), nn.GELU()) for k in range(layers))
        self.head = nn.Linear(wide, 10)

    def forward(self, x):
        for layer in self.early:
            x = layer(x)
        x = x.mean(1)
        for layer in self.late:
            x = layer(x)
        return self.head(x)


def narrowing(batch: int, seq: int, width: int, wide: int, layers: int = 3, device: str = "meta") -> Workload:
    """Its training step with AdamW."""
    with torch.device(device):
        model = Narrowing(width, wide, layers)
        x, y = torch.randn(batch, seq, width), torch.zeros(batch, dtype=torch.int64)
    return Workload(model, (x,), example_targets=(y,), loss=F.cross_entropy, optimizer=torch.optim.AdamW, name="Narrowing")
