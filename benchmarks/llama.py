"""The blocks of a Llama in plain PyTorch, without embedding and head: a stack of them with a mean of squares as loss.

In: sizes. Out: modules and a workload. Source of the sizes of `LLAMA_1B`: the config of Llama 3.2 1B (arXiv 2407.21783 describes the architecture).
"""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from autopar.trace import Workload

LLAMA_1B = {"seq": 2048, "layers": 16, "hidden": 2048, "wide": 8192, "heads": 32, "kv_heads": 8}
THETA = 500000.0  # of the rotary positions, as in Llama 3


class RmsNorm(nn.Module):
    """Over the last dim, in float32."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`[batch, heads, seq, d]` turned by its positions; cos and sin are `[seq, d]`."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):
    """Attention, whose heads share keys and values in groups, and a gated feed-forward layer, each added to what comes in."""

    def __init__(self, hidden: int, wide: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.norm_1, self.norm_2 = RmsNorm(hidden), RmsNorm(hidden)
        self.q, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(hidden, kv_heads * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(hidden, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        y = self.norm_1(x)
        q, k, v = (part.view(batch, seq, -1, self.size).transpose(1, 2) for part in (self.q(y), self.k(y), self.v(y)))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, hidden))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Stack(nn.Module):
    """Blocks and a last norm."""

    def __init__(self, layers: int, hidden: int, wide: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size = hidden // heads
        self.blocks = nn.ModuleList(Block(hidden, wide, heads, kv_heads) for _ in range(layers))
        self.norm = RmsNorm(hidden)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        turns = THETA ** (-torch.arange(0, self.size, 2, device=x.device, dtype=torch.float32) / self.size)
        angle = torch.outer(places, turns).repeat(1, 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.norm(x)


def square_loss(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output.float(), wanted.float())


def build(batch: int, seq: int, layers: int, hidden: int, wide: int, heads: int, kv_heads: int) -> Workload:
    """Its batch is bfloat16."""
    x, wanted = (torch.randn(batch, seq, hidden, dtype=torch.bfloat16) for _ in range(2))
    return Workload(
        model=Stack(layers, hidden, wide, heads, kv_heads), example_inputs=(x,), example_targets=(wanted,), loss=square_loss,
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-4), name="llama-blocks",
    )  # fmt: skip
