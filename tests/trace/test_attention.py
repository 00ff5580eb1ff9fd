"""Attention that torch's kernel for a CPU does not take: equal to torch's own, in the model's dtype, with nothing as large as the scores held in float32."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from autopar.trace import Workload, trace_step
from autopar.trace.attention import attend

pytestmark = pytest.mark.torch
B, H, S, T, D = 2, 4, 5, 7, 8


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


CALLS = {
    "three dims": ((B, S, D), (B, T, D), (B, T, D), None, {}),
    "three dims, causal": ((B, S, D), (B, S, D), (B, S, D), None, {"is_causal": True}),
    "two dims": ((S, D), (T, D), (T, D), None, {"scale": 0.7}),
    "five dims, shared by some": ((3, B, H, S, D), (1, B, H, T, D), (3, 1, H, T, D), None, {}),
    "three dims, shared keys": ((H, S, D), (2, T, D), (2, T, D), (H, S, T), {"enable_gqa": True}),
    "five dims, shared keys": ((3, B, H, S, D), (3, B, 2, T, D), (3, B, 2, T, D), None, {"enable_gqa": True}),
    "one head of keys for all": ((B, H, S, D), (B, 1, T, D), (B, 1, T, D), (1, H, S, T), {}),
    "one batch of keys for all": ((B, H, S, D), (1, H, T, D), (1, H, T, D), (1, H, S, T), {}),
    "three dims, a mask of each": ((B, S, D), (B, T, D), (B, T, D), (B, S, T), {}),
    "narrower values": ((B, H, S, D), (B, H, T, D), (B, H, T, 5), None, {}),
    "wider values": ((B, H, S, D), (B, H, T, D), (B, H, T, 12), (B, 1, S, T), {}),
    "narrower values, causal": ((B, H, S, D), (B, H, S, D), (B, H, S, 3), None, {"is_causal": True}),
    "a bias of each head": ((B, H, S, D), (B, H, T, D), (B, H, T, D), (1, H, S, T), {}),
    "a bias of three dims": ((B, H, S, D), (B, H, T, D), (B, H, T, D), (H, S, T), {}),
    "a bias of two dims": ((B, H, S, D), (B, H, T, D), (B, H, T, D), (S, T), {"scale": 0.3}),
    "a bias of one dim": ((B, H, S, D), (B, H, T, D), (B, H, T, D), (T,), {}),
    "a bias for each row": ((B, H, S, D), (B, H, T, D), (B, H, T, D), (B, H, S, 1), {}),
    "a bias, narrower values": ((B, H, S, D), (B, H, T, D), (B, H, T, 5), (B, H, S, T), {}),
    "a bias, shared keys": ((B, H, S, D), (B, 2, T, D), (B, 2, T, D), (1, H, S, T), {"enable_gqa": True}),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_is_torch_s_own(call):
    *shapes, mask, options = CALLS[call]
    leaves = [draw(*shape, seed=k) for k, shape in enumerate(shapes)]
    bias = None if mask is None else draw(*mask, seed=9)
    everything = [x for x in (*leaves, bias) if x is not None]
    with sdpa_kernel(SDPBackend.MATH):
        wanted = F.scaled_dot_product_attention(*leaves, attn_mask=bias, **options)
    found = attend(*leaves, attn_mask=bias, **options)
    grad = torch.randn_like(wanted)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(found, everything, grad), torch.autograd.grad(wanted, everything, grad), rtol=0, atol=1e-12)


def plain_dropout(query, key, value, mask, stays, p, causal, scale):
    """By nothing but arithmetic; a row that sees nothing is zero."""
    times = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(times, 1).mT * (scale or 1 / math.sqrt(query.shape[-1]))
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril() if causal else mask
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    shares = torch.where((scores == -math.inf).all(-1, keepdim=True), 0.0, scores).softmax(-1) * ~(scores == -math.inf).all(-1, keepdim=True)
    return shares * stays / (1 - p) @ value.repeat_interleave(times, 1)


DROPPED = {
    "no mask": (2, None, False, None),
    "causal": (4, None, True, None),
    "a learnt bias": (4, (1, H, S, T), False, None),
    "a mask of truths": (1, "some", False, 0.2),
    "rows that see nothing": (4, "none", False, None),
}


@pytest.mark.parametrize("call", DROPPED)
def test_dropout_is_torch_s_own_with_the_same_draws(call, monkeypatch):
    groups, mask, causal, scale = DROPPED[call]
    leaves = [draw(B, H, S, D, seed=0), draw(B, groups, T, D, seed=1), draw(B, groups, T, 6, seed=2)]
    given = draw(*mask, seed=3) if isinstance(mask, tuple) else None
    if isinstance(mask, str):
        given = torch.rand(B, 1, S, T, generator=torch.Generator().manual_seed(4)) > 0.3
        given[0, 0, 2] = mask == "some"
    drawn = torch.rand(B, H, S, T, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    monkeypatch.setattr(torch, "rand_like", lambda x: drawn)
    everything = [x for x in (*leaves, given) if x is not None and x.requires_grad]
    wanted = plain_dropout(*leaves, given, drawn < 0.75, 0.25, causal, scale)
    found = attend(*leaves, attn_mask=given, dropout_p=0.25, is_causal=causal, scale=scale, enable_gqa=groups < H)
    grad = torch.randn_like(wanted)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(found, everything, grad), torch.autograd.grad(wanted, everything, grad), rtol=0, atol=1e-12)
    assert all(x.isfinite().all() for x in (found, *torch.autograd.grad(attend(*leaves, attn_mask=given, dropout_p=0.25, is_causal=causal, enable_gqa=groups < H), everything, grad)))


@pytest.mark.parametrize("call", ["causal", "a learnt bias", "a mask of truths"])
def test_gradients_of_gradients(call, monkeypatch):
    """Of a penalty on gradients."""
    groups, mask, causal, scale = DROPPED[call]
    leaves = [draw(B, H, S, D, seed=0), draw(B, groups, T, D, seed=1), draw(B, groups, T, 6, seed=2)]
    given = draw(*mask, seed=3) if isinstance(mask, tuple) else torch.rand(B, 1, S, T, generator=torch.Generator().manual_seed(4)) > 0.3 if mask else None
    drawn = torch.rand(B, H, S, T, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    monkeypatch.setattr(torch, "rand_like", lambda x: drawn)
    everything = [x for x in (*leaves, given) if x is not None and x.requires_grad]

    def second(out):
        first = torch.autograd.grad(out.square().sum(), everything, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), everything)]

    wanted = second(plain_dropout(*leaves, given, drawn < 0.75, 0.25, causal, scale))
    found = second(attend(*leaves, attn_mask=given, dropout_p=0.25, is_causal=causal, scale=scale, enable_gqa=groups < H))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_inside_of_a_function_transform_it_is_torch_s_own():
    query, bias = draw(3, H, S, D, seed=0).detach(), draw(H, S, S, seed=1).detach()

    def loss(q):
        return attend(q[None], q[None], q[None], attn_mask=bias).square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(query)
    torch.testing.assert_close(found[1], torch.func.grad(lambda q: F.scaled_dot_product_attention(q[None], q[None], q[None], attn_mask=bias).square().sum())(query[1]))


@pytest.mark.parametrize(
    ("query", "key", "options"),
    [((B, H, S, D), (B, 3, T, D), {}), ((B, H, S, D), (B, 2, T, D), {"dropout_p": 0.1}), ((B, H, S, D), (B, H, T, 6), {}), ((B, H, S, D), (B, H, T, D), {"attn_mask": torch.ones(3, 3, dtype=torch.bool)})],
    ids=["heads that do not divide", "heads that nobody shares", "another width", "a mask of another shape"],
)  # fmt: skip
def test_errors_are_torch_s_own(query, key, options):
    q, k = draw(*query, seed=0), draw(*key, seed=1)
    with pytest.raises(RuntimeError) as wanted:
        F.scaled_dot_product_attention(q, k, k, **options)
    with pytest.raises(RuntimeError) as found:
        attend(q, k, k, **options)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("kind", ["truths", "numbers"])
def test_a_mask_and_a_causal_one_are_both_heeded(kind):
    q, k = draw(B, H, S, D, seed=0), draw(B, H, T, D, seed=1)
    mask = torch.rand(S, T, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mask = mask > 0.3 if kind == "truths" else mask
    mask[:, 0] = 1
    sees = torch.ones(S, T, dtype=torch.bool).tril()
    wanted = F.scaled_dot_product_attention(q, k, k, attn_mask=mask & sees if kind == "truths" else mask.masked_fill(~sees, -math.inf))
    torch.testing.assert_close(attend(q, k, k, attn_mask=mask, is_causal=True), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, k, attn_mask=mask, is_causal=True), wanted, rtol=0, atol=1e-12)


class Net(nn.Module):
    """One attention."""

    def __init__(self, learns: bool, dropout: float, width: int = 16) -> None:
        super().__init__()
        self.qkv, self.dropout, self.width = nn.Linear(32, 32 * 2 + 2 * width), dropout, width
        self.bias = nn.Parameter(torch.randn(2, 24, 24)) if learns else None

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).split([32, 32, 2 * self.width], -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias, dropout_p=self.dropout, is_causal=self.bias is None)


def traced(net: nn.Module, precision: str):
    return trace_step(Workload(net, (torch.randn(3, 24, 32),), (), lambda y: y.float().square().mean(), functools.partial(torch.optim.AdamW, lr=1e-3)), precision).graph


@pytest.mark.parametrize(("learns", "dropout", "width"), [(True, 0.0, 16), (False, 0.1, 16), (True, 0.1, 16), (False, 0.0, 12), (True, 0.0, 20)])
def test_matmuls_are_in_the_model_s_dtype(learns, dropout, width):
    graph = traced(Net(learns, dropout, width), "bf16")
    values = {v.name: v for v in graph.values}
    products = [n for n in graph.nodes if n.op.startswith(("aten.bmm", "aten.matmul", "aten.mm", "autopar.attention"))]
    assert products and {values[n.inputs[0]].dtype for n in products} == {"bfloat16"}
    assert any(n.op == "autopar.attention" for n in graph.nodes) is (dropout == 0)


@pytest.mark.parametrize(("learns", "dropout"), [(True, 0.0), (False, 0.1), (True, 0.1)])
def test_nothing_as_large_as_the_scores_is_held_in_float32(learns, dropout):
    graph = traced(Net(learns, dropout), "bf16")
    scores = 3 * 2 * 24 * 24
    backward = {name for n in graph.nodes if n.phase.name == "BACKWARD" for name in n.inputs}
    forward = {name for n in graph.nodes if n.phase.name == "FORWARD" for name in n.outputs}
    held = {v.dtype: v.name for v in graph.values if v.name in backward & forward and math.prod(v.shape) == scores}
    assert set(held) <= ({"bfloat16", "bool"} if dropout else set()), held
