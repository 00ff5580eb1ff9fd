"""A GPT as Megatron-LM's published runs had it: scores multiplied out, a causal mask, dropout in three places.

In: sizes. Out: plain PyTorch modules. Source: arXiv:2205.05198 section 4 (figure 2 shows the layer; its memory formulas count these tensors).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

DROPOUT = 0.1  # Megatron-LM's default for attention and hidden states


class Core(nn.Module):
    """Scores, scale, causal mask, softmax, dropout, values: what selective recompute runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return self.drop(F.softmax(scores.masked_fill(mask, -10000.0), dim=-1)) @ v


class Block(nn.Module):
    """One layer."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.qkv, self.core = nn.LayerNorm(hidden), nn.Linear(hidden, 3 * hidden), Core()
        self.out, self.drop_1 = nn.Linear(hidden, hidden), nn.Dropout(DROPOUT)
        self.norm_2, self.up = nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden)
        self.down, self.drop_2 = nn.Linear(4 * hidden, hidden), nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, seq, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.drop_1(self.out(self.core(q, k, v, mask).transpose(1, 2).reshape(batch, seq, hidden)))
        return x + self.drop_2(self.down(F.gelu(self.up(self.norm_2(x)))))


def causal_mask(length: int, device: torch.device) -> torch.Tensor:
    """True where a position may not look: one for all layers, as Megatron-LM hands it down."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


class MegatronGpt(nn.Module):
    """Embeddings of words and places, layers, a norm, and the word embedding again as head."""

    def __init__(self, vocab: int, length: int, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, hidden), nn.Embedding(length, hidden)
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = causal_mask(tokens.shape[1], tokens.device)
        x = self.drop(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))
