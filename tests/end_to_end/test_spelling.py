"""The spelling of a model does not change its plan: pairs of equal models get the same predicted time and the same labels."""

from __future__ import annotations

from functools import lru_cache, partial

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
        if way == "addmm":
            h = self.act(torch.addmm(self.up.bias, x.reshape(-1, WIDTH), self.up.weight.t()))
            return torch.addmm(self.down.bias, h, self.down.weight.t()).view(x.shape)
        if way == "batch of one":
            h = self.act(torch.bmm(x.reshape(1, -1, WIDTH), self.up.weight.t()[None]) + self.up.bias)
            return (torch.bmm(h, self.down.weight.t()[None]) + self.down.bias).view(x.shape)
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
    """Two blocks between embeddings and a head."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.blocks = nn.Sequential(Block(way), Block(way))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        if way == "tied":
            self.head.weight = self.tokens.weight
        elif way == "tied, functional":
            self.head = None

    def forward(self, tokens):
        if self.way == "functional":
            x = F.embedding(tokens, self.tokens.weight) + F.embedding(torch.arange(SEQ), self.places.weight)
        elif self.way == "shape unpacked":
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        else:
            x = self.tokens(tokens) + self.places(torch.arange(SEQ))
        x = self.norm(self.blocks(x))
        return self.head(x) if self.head is not None else F.linear(x, self.tokens.weight)


class Embed(nn.Module):
    """Tokens and places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)

    def forward(self, tokens):
        return self.tokens(tokens) + self.places(torch.arange(SEQ))


def make_model(way: str) -> nn.Module:
    """The model in one spelling."""
    if way == "one sequence":
        return nn.Sequential(Embed(), Block(way), Block(way), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False))
    if way == "sequence in a sequence":
        return nn.Sequential(Embed(), nn.Sequential(Block(way), Block(way)), nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)))
    return Gpt(way)


class Stack(nn.Module):
    """Unlike layers, by names; `functional`: by functions of the same weights."""

    def __init__(self, functional: bool = False) -> None:
        super().__init__()
        self.up, self.norm, self.down, self.head = nn.Linear(WIDTH, 8 * WIDTH), nn.LayerNorm(8 * WIDTH), nn.Linear(8 * WIDTH, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.act, self.drop, self.functional = nn.GELU(), nn.Dropout(0.1), functional

    def forward(self, x):
        if self.functional:
            h = F.layer_norm(F.linear(x, self.up.weight, self.up.bias), (8 * WIDTH,), self.norm.weight, self.norm.bias)
            h = F.dropout(F.gelu(h), 0.1, self.training)
            return F.linear(F.dropout(F.gelu(F.linear(h, self.down.weight, self.down.bias)), 0.1), self.head.weight, self.head.bias)
        return self.head(self.drop(self.act(self.down(self.drop(self.act(self.norm(self.up(x))))))))


def stack_sequence() -> nn.Module:
    """The same as one `nn.Sequential`."""
    return nn.Sequential(
        nn.Linear(WIDTH, 8 * WIDTH), nn.LayerNorm(8 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(8 * WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(WIDTH, VOCAB)
    )


STACKS = {"names": Stack, "functions": lambda: Stack(functional=True), "sequence": stack_sequence}


def flat_loss(logits, targets):
    """The usual spelling."""
    return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def transposed_loss(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2), targets)


def summed_loss(logits, targets):
    return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), reduction="sum") / (BATCH * SEQ)


def opened_loss(logits, targets):
    return F.nll_loss(logits.view(-1, VOCAB).log_softmax(-1), targets.view(-1))


OPTIMIZERS = {"for each": {"foreach": True}, "capturable": {"capturable": True}}
PAIRS = {"tied, functional": "tied"}  # what else than "plain" it is compared with
CLUSTER = "1x8xH100-80GB"
COUNTS = ("sum over count",)  # nothing is counted there, so that one small all-reduce less stands between forward and backward
LOSSES = {"class dim in the middle": transposed_loss, "sum over count": summed_loss, "log softmax and nll": opened_loss}
WAYS = (
    "chunk", "slices", "unflatten and unbind", "shape unpacked", "permute", "contiguous view", "functional", "matmul and add", "flattened",
    "einsum", "addmm", "batch of one", "one sequence", "sequence in a sequence", "tied, functional", "for each", "capturable", "in place", "class dim in the middle", "sum over count", "log softmax and nll",
)  # fmt: skip


def told(model, inputs, targets, loss, **optimizer):
    """Predicted seconds of a step, and what the plan is called."""
    plan = autopar.plan(
        model, CLUSTER, example_inputs=(inputs,), example_targets=(targets,), loss=loss, optimizer=partial(torch.optim.AdamW, **optimizer),
        options=autopar.Options(constraints=autopar.constrain(pp=1), price=False),
    )  # fmt: skip
    return plan.solve.objective_s, [words for _, words in plan.labels]


@lru_cache(maxsize=None)
def told_of(way: str):
    """Of the GPT."""
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    loss = LOSSES.get(way, flat_loss)
    with torch.device("meta"):
        model = make_model(way)
    return told(model, tokens, tokens, loss, **OPTIMIZERS.get(way, {}))


@lru_cache(maxsize=None)
def told_of_stack(way: str):
    """Of the unlike layers."""
    with torch.device("meta"):
        model = STACKS[way]()
    return told(model, torch.zeros(4096, WIDTH), torch.zeros(4096, dtype=torch.int64), F.cross_entropy)


@pytest.mark.parametrize("way", WAYS)
def test_spelling_does_not_change_the_plan(way):
    (seconds, labels), (wanted_s, wanted) = told_of(way), told_of(PAIRS.get(way, "plain"))
    assert seconds == pytest.approx(wanted_s, rel=0.01 if way in COUNTS else 0.001) and labels == wanted


@pytest.mark.parametrize("way", ["functions", "sequence"])
def test_numbers_and_functions_are_planned_as_names(way):
    (seconds, labels), (wanted_s, wanted) = told_of_stack(way), told_of_stack("names")
    assert seconds == pytest.approx(wanted_s, rel=0.001) and labels == wanted
