"""Alpa's GPT and its mixture of experts as plain PyTorch modules and their training steps, on meta: of the mixture every second layer has experts, each token goes to two, by einsums.

In: sizes. Out: a workload. Source: alpa-projects/alpa, alpa/model/bert_model.py, gpt_model.py and moe.py (GShard's form, arXiv:2006.16668 algorithm 1: groups of tokens, each
expert takes 2 S / E of a group of S); a token attends to all others, norms come after what they add, the experts' middle is eight times as wide with ReLU, no biases there.
The optimizer of mixtures is Adafactor (`optax_adafactor`, without momentum), of GPTs AdamW. Dropout is off (`deterministic`).

An embedding is a product with a one-hot matrix (`embed_call_one_hot`, alpa/monkey_patch.py, which replaces flax's lookup), and runs again like a layer (`trans_func`,
bert_model.py). XLA's own count of what it compiled says so, too: FLOP/s times seconds of the ablation between operators are 22.66e12 and 33.14e12 FLOPs on one and two devices;
with products of the embeddings forward, again and for their weights it should be 22.66e12 and 33.14e12, with lookups 20.03e12 and 29.86e12 (`alpa_runs.count_compiled_flops`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional as F

from autopar.demo.model import token_loss
from autopar.trace import Workload
from autopar.trace.build import build_lightly
from benchmarks.alpa_runs import WIDER

_FACTORED, _DECAY = 128, 0.8  # `min_dim_size_to_factor`, `decay_rate`


class Embedding(nn.Module):
    """The row of each number, by a product with a one-hot matrix."""

    def __init__(self, count: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, hidden))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        wanted = torch.arange(self.weight.shape[0], device=numbers.device)
        return (numbers.unsqueeze(-1) == wanted).to(self.weight.dtype) @ self.weight


class SelfAttention(nn.Module):
    """Scores multiplied out, softmax, values; the sum with what came in is normed."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out, self.norm = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden), nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, seq, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = F.softmax((q * (hidden // self.heads) ** -0.5) @ k.transpose(-1, -2), dim=-1)
        return self.norm(x + self.out((weights @ v).transpose(1, 2).reshape(batch, seq, hidden)))


class FeedForward(nn.Module):
    """Two linears with GELU between them."""

    def __init__(self, hidden: int, wider: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, wider * hidden), nn.Linear(wider * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Experts(nn.Module):
    """Each token to the two experts with the largest gates, as long as these have room; what finds none passes by."""

    def __init__(self, hidden: int, experts: int, group: int) -> None:
        super().__init__()
        self.group = group
        self.gate = nn.Parameter(torch.empty(hidden, experts))
        self.up, self.down = nn.Parameter(torch.empty(experts, hidden, WIDER * hidden)), nn.Parameter(torch.empty(experts, WIDER * hidden, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, self.group, x.shape[-1])
        combine = route(F.softmax(torch.einsum("gsm,me->gse", tokens, self.gate), dim=-1))
        dispatch = (combine > 0).to(x.dtype)
        rows = torch.einsum("gsec,gsm->egcm", dispatch, tokens)
        rows = torch.einsum("egch,ehm->egcm", F.relu(torch.einsum("egcm,emh->egch", rows, self.up)), self.down)
        return torch.einsum("gsec,egcm->gsm", combine, rows).reshape(x.shape)


def route(gates: torch.Tensor) -> torch.Tensor:
    """What of each token goes to each place of each expert: [groups, tokens, experts] to [groups, tokens, experts, places]."""
    experts = gates.shape[-1]
    places = 2 * gates.shape[-2] // experts
    first = F.one_hot(gates.argmax(-1), experts)
    rest = gates * (1 - first)
    second = F.one_hot(rest.argmax(-1), experts)
    before_first = first.cumsum(-2) - first
    before_second = second.cumsum(-2) - second + first.sum(-2, keepdim=True)
    first, second = first * (before_first < places), second * (before_second < places)
    weight_first, weight_second = (gates * first).sum(-1), (rest * second).sum(-1)
    both = weight_first + weight_second
    both = torch.where(both > 0, both, torch.ones_like(both))
    found = []
    for weight, taken, before in ((weight_first, first, before_first), (weight_second, second, before_second)):
        share = (weight / both).unsqueeze(-1) * taken
        place = F.one_hot(((before * taken).sum(-1)).clamp(max=places - 1), places).to(gates.dtype)
        found.append(torch.einsum("gse,gsc->gsec", share, place))
    return found[0] + found[1]


class Block(nn.Module):
    """Attention, then experts or one feed-forward layer; the sum is normed."""

    def __init__(self, hidden: int, heads: int, inner: nn.Module) -> None:
        super().__init__()
        self.attention, self.inner, self.norm = SelfAttention(hidden, heads), inner, nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention(x)
        return self.norm(x + self.inner(x))


class Lm(nn.Module):
    """Embeddings of words and places, a norm, layers, a head."""

    def __init__(self, vocab: int, length: int, hidden: int, blocks: Iterable[nn.Module], tied: bool) -> None:
        super().__init__()
        self.embeddings, self.norm = nn.ModuleList((Embedding(vocab, hidden), Embedding(length, hidden))), nn.LayerNorm(hidden)
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(hidden, vocab)
        if tied:
            self.head.weight = self.embeddings[0].weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words, places = self.embeddings
        x = self.norm(words(tokens) + places(torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Adafactor(torch.optim.Optimizer):
    """Adafactor without momentum (arXiv:1804.04235; `optax_adafactor`, alpa/model/model_util.py): of a gradient's squares the means of rows and columns are kept where both
    sides have 128 or more, else all; the update is clipped by its own size and scaled by the parameter's.

    torch's own reads numbers from tensors, which no step that is compiled once can do. The decay is a constant here.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group["lr"])

    def _update(self, param: torch.Tensor, grad: torch.Tensor, lr: float) -> None:
        state, squares = self.state[param], grad * grad + 1e-30
        if param.dim() > 1 and min(param.shape[-2:]) >= _FACTORED:
            if not state:
                state["row"], state["column"] = torch.zeros_like(param[..., 0]), torch.zeros_like(param[..., 0, :])
            state["row"].lerp_(squares.mean(-1), 1 - _DECAY)
            state["column"].lerp_(squares.mean(-2), 1 - _DECAY)
            rows = state["row"] / state["row"].mean(-1, keepdim=True)
            update = grad * rows.rsqrt().unsqueeze(-1) * state["column"].rsqrt().unsqueeze(-2)
        else:
            if not state:
                state["square"] = torch.zeros_like(param)
            state["square"].lerp_(squares, 1 - _DECAY)
            update = grad * state["square"].rsqrt()
        size = update.square().mean().sqrt().clamp(min=1.0)
        param.sub_(update / size * (lr * param.square().mean().sqrt().clamp(min=1e-3)))


def build_gpt(vocab: int, length: int, layers: int, hidden: int, heads: int, batch: int, tied: bool) -> Workload:
    """The training step of a GPT.

    Args:
        tied: the head is the word embedding.
    """
    return _build(vocab, length, hidden, lambda: (Block(hidden, heads, FeedForward(hidden, 4)) for _ in range(layers)), batch, tied, torch.optim.AdamW)


def build_moe(vocab: int, length: int, layers: int, hidden: int, heads: int, experts: int, group: int, batch: int, tied: bool) -> Workload:
    """The training step of a mixture: layers with experts and without in turn.

    Args:
        group: tokens whose places at the experts are given out together.
        tied: the head is the word embedding.
    """

    def blocks() -> Iterable[nn.Module]:
        return (Block(hidden, heads, FeedForward(hidden, WIDER) if place % 2 else Experts(hidden, experts, group)) for place in range(layers))

    return _build(vocab, length, hidden, blocks, batch, tied, Adafactor)


def _build(
    vocab: int, length: int, hidden: int, blocks: Callable[[], Iterable[nn.Module]], batch: int, tied: bool, optimizer: type[torch.optim.Optimizer]
) -> Workload:
    model, init = build_lightly(lambda: Lm(vocab, length, hidden, blocks(), tied))
    tokens = torch.zeros(batch, length, dtype=torch.int64, device="meta")
    return Workload(model=model, example_inputs=(tokens,), example_targets=(tokens,), loss=token_loss, optimizer=optimizer, init=init)
