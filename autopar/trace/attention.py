"""Attention that torch's own kernel for a CPU does not take: spelled so that as little as can be is as large as the scores.

In: a model's calls of `scaled_dot_product_attention`, while it is traced on a CPU. There torch has one fused kernel; what that does not take becomes matmuls and a softmax in float32, whatever the dtype, for
queries and keys that are scaled before. A GPU's kernels take more. Out, by what the call asks for:

    a mask, and a causal one            one mask of both
    more or fewer than four dims        the same with four; a mask of one or three with two or four
    values of another width             the same with the narrower ones made wider by zeros, which change no score
    dropout                             matmuls in the model's own dtype, and between them what is one kernel: scale, mask, softmax in float32, dropout, cast
    a bias that learns                  of halves the fused op, and beside its gradients that of the bias, of scores that are made again in the backward pass: none is held from one pass to the other;
                                        else, where that would cost more than it saves, as with dropout

Invariant: equal to torch's to rounding; a row that sees nothing is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .private import in_function_transform

_HALVES = (torch.bfloat16, torch.float16)


class Attention(TorchFunctionMode):
    """Calls of `scaled_dot_product_attention` go by `attend`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: D105
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return attend(*args, **(kwargs or {}))


def attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False
) -> Tensor:
    """`scaled_dot_product_attention` with its own arguments, names and errors."""
    whole = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if in_function_transform() or not _is_sound(query, key, value, attn_mask, enable_gqa):
        return F.scaled_dot_product_attention(query, key, value, **whole)
    if is_causal and attn_mask is not None:  # torch's kernel for a CPU takes both
        sees = _sees(query.shape[-2], key.shape[-2], query.device)
        whole |= {"attn_mask": attn_mask & sees if attn_mask.dtype == torch.bool else attn_mask.masked_fill(~sees, float("-inf")), "is_causal": False}
        return attend(query, key, value, **whole)
    if query.dim() != 4:
        return _with_four(query, key, value, **whole)
    if attn_mask is not None and attn_mask.dim() in (1, 3):
        attn_mask = whole["attn_mask"] = attn_mask.unsqueeze(0)  # the kernel takes two dims, or four
    learns = attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled()
    if dropout_p > 0:
        return _BySoftmax.apply(query, key, value, attn_mask, dropout_p, is_causal, _scale(query, scale))
    if query.shape[-1] != value.shape[-1]:
        width = max(query.shape[-1], value.shape[-1])
        padded = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (query, key, value))
        return attend(*padded, **{**whole, "scale": _scale(query, scale)})[..., : value.shape[-1]]
    if learns and query.dtype not in _HALVES:
        return _BySoftmax.apply(query, key, value, attn_mask, 0.0, is_causal, _scale(query, scale))
    if learns:
        return _WithBias.apply(query, key, value, attn_mask, _scale(query, scale))
    return F.scaled_dot_product_attention(query, key, value, **whole)


def _is_sound(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, shares: bool) -> bool:
    """False for what torch has something to say about, for what is empty, and for four dims that broadcast."""
    tensors = (query, key, value)
    same = len({x.dim() for x in tensors}) == 1 and len({x.dtype for x in tensors}) == 1 and query.dim() > 1 and query.is_floating_point()
    if not same or any(x.is_nested for x in tensors) or not all(x.numel() for x in tensors):
        return False
    if query.dim() == 4 and (query.shape[0] != key.shape[0] or query.shape[1] != key.shape[1] and not (shares and query.shape[1] % key.shape[1] == 0)):
        return False
    alike = key.shape[-2] == value.shape[-2] and query.shape[-1] == key.shape[-1] and (query.dim() != 4 or key.shape[:2] == value.shape[:2])
    return alike and (mask is None or mask.dtype == torch.bool or mask.is_floating_point())


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _sees(queries: int, keys: int, device: torch.device) -> Tensor:
    """True where a causal mask lets a query see a key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def _with_four(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **others: Any) -> Tensor:
    """All leading dims as one, before one head, `[..., s, d]` -> `[n, 1, s, d]`; where heads of keys are shared, before the heads."""
    last = 3 if others["enable_gqa"] and query.dim() > 2 else 2
    heads = () if last == 3 else (1,)
    lead = torch.broadcast_shapes(query.shape[:-last], key.shape[:-last], value.shape[:-last])

    def flat(x: Tensor, dims: int) -> Tensor:
        return x.expand(*lead, *x.shape[-dims:]).reshape(-1, *heads, *x.shape[-dims:])

    if attn_mask is not None and attn_mask.dim() > 2:
        attn_mask = flat(attn_mask, last)
    found = attend(*(flat(x, last) for x in (query, key, value)), attn_mask=attn_mask, **others)
    return found.reshape(*lead, *query.shape[-last:-1], value.shape[-1])


def _for_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _wide(x: Tensor) -> Tensor:
    """In the dtype in which softmax and sums are made."""
    return x.float() if x.dtype in _HALVES else x


class _BySoftmax(torch.autograd.Function):
    """Attention by matmuls and a softmax, which dropped shares are held of from one pass to the other. Of halves with them the scores and a number for each row, and the scale is the kernel's, in float32;
    else the shares, as many bytes without a second softmax, and the scale is the queries'."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, causal: bool, scale: float) -> Tensor:
        halves, hides = query.dtype in _HALVES, mask is not None
        products = (query if halves else query * scale) @ _for_heads(key, query.shape[1]).mT
        if causal:
            mask = _sees(*products.shape[-2:], products.device)
        scores = _masked(products, mask, scale if halves else None)
        rows = scores.logsumexp(-1, keepdim=True) if halves else None
        shares = _softmax(scores, hides)
        stays = torch.rand_like(shares) < 1 - dropout_p if dropout_p else None
        ctx.save_for_backward(query, key, value, mask, *((products, rows) if halves else (shares, None)), stays)
        ctx.hides, ctx.kept, ctx.scale = hides, 1 - dropout_p, scale
        return _dropped(shares, stays, ctx.kept).to(query.dtype) @ _for_heads(value, query.shape[1])

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, mask, shares, rows, stays = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable(ctx.needs_input_grad, grad_out, (query, key, value, mask), ctx.scale, stays, ctx.kept)
        groups, dtype = key.shape[1], query.dtype
        key, value = _for_heads(key, query.shape[1]), _for_heads(value, query.shape[1])
        if rows is not None:
            shares = _shares(shares, mask, ctx.scale, rows, ctx.hides)
        grad = torch._softmax_backward_data(_dropped(_wide(grad_out @ value.mT), stays, ctx.kept), shares, -1, shares.dtype)
        grad_mask = grad.sum_to_size(mask.shape).to(mask.dtype) if mask is not None and ctx.needs_input_grad[3] else None
        if rows is None:
            grad_query, grad_key = grad @ key * ctx.scale, grad.mT @ (query * ctx.scale)
        else:
            scaled = (grad * ctx.scale).to(dtype)
            grad_query, grad_key = scaled @ key, scaled.mT @ query
        grad_value = _dropped(shares, stays, ctx.kept).to(dtype).mT @ grad_out
        return grad_query, _of_groups(grad_key, groups), _of_groups(grad_value, groups), grad_mask, None, None, None


def _dropped(shares: Tensor, stays: Tensor | None, kept: float) -> Tensor:
    return shares if stays is None else shares * stays * (1 / kept)


def _differentiable(needs: Sequence[bool], grad_out: Tensor, inputs: Sequence[Tensor | None], scale: float, stays: Tensor | None = None, kept: float = 1.0) -> tuple[Tensor | None, ...]:
    """Gradients for somebody who differentiates them, too: by plain ops of what came in."""
    query, key, value, mask = inputs
    assert query is not None and key is not None and value is not None
    scores = _masked(query @ _for_heads(key, query.shape[1]).mT, mask, scale)
    shares = _softmax(scores, mask is not None)
    out = _dropped(shares, stays, kept).to(query.dtype) @ _for_heads(value, query.shape[1])
    wanted = [x for x, needed in zip(inputs, needs) if needed and x is not None]
    found = iter(torch.autograd.grad(out, wanted, grad_out, create_graph=True))
    return tuple(next(found) if needed and x is not None else None for x, needed in zip((*inputs, *[None] * (len(needs) - len(inputs))), needs))


def _masked(products: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    scores = products if scale is None else _wide(products) * scale
    if mask is None:
        return scores
    return torch.where(mask, scores, float("-inf")) if mask.dtype == torch.bool else scores + mask


def _softmax(scores: Tensor, hides: bool) -> Tensor:
    """`hides`: a row may see nothing, and is zero then. A causal mask hides no row."""
    return torch.ops.aten._safe_softmax(scores, -1) if hides else scores.softmax(-1)


def _shares(products: Tensor, mask: Tensor | None, scale: float, rows: Tensor, hides: bool) -> Tensor:
    """The softmax again, of which the logsumexp of each row is known."""
    shares = (_masked(products, mask, scale) - rows).exp()
    return torch.where(rows == float("-inf"), 0.0, shares) if hides else shares


def _of_groups(grad: Tensor, groups: int) -> Tensor:
    return grad if grad.shape[1] == groups else grad.unflatten(1, (groups, -1)).sum(2)


class _WithBias(torch.autograd.Function):
    """Attention with a bias, and all four gradients."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
        out, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, False, attn_mask=bias, scale=scale)
        ctx.save_for_backward(query, key, value, bias, out, logsumexp)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, bias, out, logsumexp = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable(ctx.needs_input_grad, grad_out, (query, key, value, bias), ctx.scale)
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, key, value, out, logsumexp, 0.0, False, attn_mask=bias, scale=ctx.scale)
        if not ctx.needs_input_grad[3]:
            return (*grads, None, None)
        key, value = _for_heads(key, query.shape[1]), _for_heads(value, query.shape[1])
        shares = _shares(query @ key.mT, bias, ctx.scale, logsumexp[..., None], hides=True)
        along = (_wide(grad_out) * _wide(out)).sum(-1, keepdim=True)
        grad_bias = shares * (_wide(grad_out @ value.mT) - along)
        return (*grads, grad_bias.sum_to_size(bias.shape).to(bias.dtype), None)
