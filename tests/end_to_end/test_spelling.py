"""The spelling of a model does not change its plan: pairs of equal models get the same predicted time."""

from __future__ import annotations

from functools import lru_cache

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import autopar  # noqa: E402

pytestmark = pytest.mark.torch

BATCH, SEQ, WIDTH, HEADS, VOCAB = 64, 512, 512, 8, 4096  # large enough that work, not the starts of a few scalar ops, makes the time


class Block(nn.Module):
    """An attention block and an MLP. `way` says how one part of it is spelled; the numbers are the same."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.act = nn.GELU()

    def attention(self, x):
        way = self.way
        h = self.qkv(x)
        if way == "chunk":
            q, k, v = h.chunk(3, dim=-1)
        elif way == "slices":
            q, k, v = h[..., :WIDTH], h[:, :, WIDTH : 2 * WIDTH], h[..., 2 * WIDTH :]
        elif way == "unflatten and unbind":
            q, k, v = (t.flatten(2) for t in h.unflatten(-1, (3, HEADS, WIDTH // HEADS)).unbind(2))
        else:
            q, k, v = h.split(WIDTH, dim=2)
        if way == "shape unpacked":
            b, s, d = x.shape
            q, k, v = (t.view(b, s, HEADS, d // HEADS).transpose(1, 2) for t in (q, k, v))
        elif way == "permute":
            q, k, v = (t.unflatten(-1, (HEADS, -1)).permute(0, 2, 1, 3) for t in (q, k, v))
        else:
            q, k, v = (t.view(BATCH, SEQ, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if way == "contiguous view":
            y = y.transpose(1, 2).contiguous().view(BATCH, SEQ, WIDTH)
        else:
            y = y.transpose(1, 2).reshape(BATCH, SEQ, WIDTH)
        return self.out(y)

    def mlp(self, x):
        way = self.way
        if way == "functional":
            return F.linear(F.gelu(F.linear(x, self.up.weight, self.up.bias)), self.down.weight, self.down.bias)
        if way == "matmul and add":
            return F.gelu(x @ self.up.weight.t() + self.up.bias) @ self.down.weight.t() + self.down.bias
        if way == "flattened":
            flat = x.reshape(-1, WIDTH)
            return self.down(self.act(self.up(flat))).view_as(x)
        if way == "einsum":
            return torch.einsum("bsf,df->bsd", self.act(self.up(x)), self.down.weight) + self.down.bias
        return self.down(self.act(self.up(x)))

    def forward(self, x):
        if self.way == "in place":
            h = self.attention(self.norm1(x))
            h += x
            y = self.mlp(self.norm2(h))
            y += h
            return y
        if self.way == "functional":
            x = torch.add(x, self.attention(F.layer_norm(x, (WIDTH,), self.norm1.weight, self.norm1.bias, 1e-5)))
        else:
            x = x + self.attention(self.norm1(x))
        return self.mlp(self.norm2(x)) + x


class Gpt(nn.Module):
    """Two blocks between embeddings and a head; without `bias` where asked."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.blocks = nn.Sequential(Block(way), Block(way))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens):
        if self.way == "functional":
            x = F.embedding(tokens, self.tokens.weight) + F.embedding(torch.arange(SEQ), self.places.weight)
        elif self.way == "shape unpacked":
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        else:
            x = self.tokens(tokens) + self.places(torch.arange(SEQ))
        return self.head(self.norm(self.blocks(x)))


def flat_loss(logits, targets):
    """The usual spelling."""
    return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def transposed_loss(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2), targets)


def summed_loss(logits, targets):
    return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), reduction="sum") / (BATCH * SEQ)


def opened_loss(logits, targets):
    return F.nll_loss(logits.view(-1, VOCAB).log_softmax(-1), targets.view(-1))


LOSSES = {"class dim in the middle": transposed_loss, "sum over count": summed_loss, "log softmax and nll": opened_loss}
WAYS = (
    "chunk", "slices", "unflatten and unbind", "shape unpacked", "permute", "contiguous view", "functional", "matmul and add", "flattened",
    "einsum", "in place", "class dim in the middle", "sum over count", "log softmax and nll",
)  # fmt: skip


@lru_cache(maxsize=None)
def step_s(way: str) -> float:
    """Predicted seconds of a step."""
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    loss = LOSSES.get(way, flat_loss)
    with torch.device("meta"):
        model = Gpt(way)
    plan = autopar.plan(
        model, "1x8xH100-80GB", example_inputs=(tokens,), example_targets=(tokens,), loss=loss, optimizer=torch.optim.AdamW,
        options=autopar.Options(constraints=autopar.constrain(pp=1), price=False),
    )  # fmt: skip
    return plan.cost.step_s


@pytest.mark.parametrize("way", WAYS)
def test_spelling_does_not_change_the_predicted_time(way):
    assert step_s(way) == pytest.approx(step_s("plain"), rel=0.01)
