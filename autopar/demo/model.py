"""A GPT in plain PyTorch, with nothing in it for autopar, and the workload that the demo trains."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from autopar.trace import Workload


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to what comes in."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm_2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.norm_1(x)).split(hidden, dim=-1)
        q, k, v = (t.view(batch, seq, self.heads, hidden // self.heads).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """GPT-2's shape: learned positions, norms before, the embedding's weight as the head's."""

    def __init__(self, vocab: int, seq: int, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(batch: int = 8, seq: int = 128, vocab: int = 256, layers: int = 4, hidden: int = 256, heads: int = 4) -> Workload:
    """The workload of the demo: bytes are the vocabulary."""
    tokens = torch.randint(0, vocab, (batch, seq + 1))
    return Workload(
        model=Gpt(vocab, seq, layers, hidden, heads),
        example_inputs=(tokens[:, :-1],),
        example_targets=(tokens[:, 1:],),
        loss=token_loss,
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1),
        name="byte-gpt",
    )
