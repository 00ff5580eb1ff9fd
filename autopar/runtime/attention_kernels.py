"""The kernels of attention that a device has: which does it, and what it asks for of tensors.

In: queries [b, h, s, d], keys and values [b, g, t, d] where g divides h, a mask that broadcasts to [b, h, s, t] (what is True is seen; numbers are added) or a causal one. Out: (out, logsumexp [b, h, s]),
and gradients. All kernels mean the same but for one thing: a causal mask begins at the top left, and of a GPU's flash kernels it ends at the bottom right (`ends_below`); equal for squares.

A CPU has one. On a GPU the first that can is taken, as by torch's own `scaled_dot_product_attention` (`cost.attention` prices these): cuDNN's where torch prefers it, flash, the memory-efficient one, and for
float64 matmuls and a softmax, as torch has no kernel. cuDNN with a mask is tried on a small one first. What each asks for is torch's (`sdp_utils.cpp`, `attention.cu`, `kernel_forward.h` of its sources): rows of whole 16 bytes, heads that are made wider by zeros
where they are not; a mask in the dtype of the queries, whose rows begin at 16 bytes; as many heads of keys as of queries, but for flash.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

_aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
_CUDNN_VERSION, _CUDNN_CHIPS, _CUDNN_HEAD_DIM = 91500, ((9, 0), (10, 0)), 128  # where cuDNN is newer torch prefers it, there: `check_prefer_cudnn_attention` in torch's sdp_utils.cpp
_FLASH_HEAD_DIM = 256
_ALIGNED_BYTES = 16
_NEAR = 0.05  # of the largest: a rounding of halves moves sums by a hundredth
_LSE_ROWS = 32  # of which the memory-efficient kernel wants whole blocks


def forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """(out, logsumexp)."""
    query, key, value = _packed(query), _packed(key), _packed(value)
    if _on_cpu(query):
        return _aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
    if is_cudnn(query, key, mask, causal):
        return _cudnn_forward(query, key, value, mask, causal, scale)
    if _has_none(query):
        return plain_forward(query, key, value, mask, causal, scale)
    size, scale = query.shape[-1], _scale(query, scale)
    query, key, value = _widened(query), _widened(key), _widened(value)
    if ends_below(query, key, mask, causal):
        out, logsumexp = _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, False, scale=scale)[:2]
    else:
        key, value = _shared(key, query.shape[1]), _shared(value, query.shape[1])
        out, logsumexp = _aten._scaled_dot_product_efficient_attention(query, key, value, _aligned_mask(query, key, mask), True, 0.0, causal, scale=scale)[:2]
    return out[..., :size], logsumexp[..., : query.shape[-2]]


def backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    grad_out, query, key, value, out = _packed(grad_out), _packed(query), _packed(key), _packed(value), _packed(out)
    if _on_cpu(query):
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, key, value, out, logsumexp, 0.0, causal, attn_mask=mask, scale=scale)
    if is_cudnn(query, key, mask, causal):
        return _cudnn_backward(grad_out, query, key, value, out, logsumexp, mask, causal, scale)
    if _has_none(query):
        return plain_backward(grad_out, query, key, value, out, logsumexp, mask, causal, scale)
    empty = torch.empty((), dtype=torch.int64, device=query.device)  # of a dropout that there is not
    size, groups, scale = query.shape[-1], key.shape[1], _scale(query, scale)
    grad_out, query, key, value, out = (_widened(x) for x in (grad_out, query, key, value, out))
    if ends_below(query, key, mask, causal):
        grads = _aten._scaled_dot_product_flash_attention_backward(
            grad_out, query, key, value, out, logsumexp, None, None, query.shape[-2], key.shape[-2], 0.0, causal, empty, empty, scale=scale
        )
    else:
        key, value = _shared(key, query.shape[1]), _shared(value, query.shape[1])
        padded = F.pad(logsumexp, (0, -query.shape[-2] % _LSE_ROWS), value=float("inf"))
        grads = _aten._scaled_dot_product_efficient_attention_backward(
            grad_out, query, key, value, _aligned_mask(query, key, mask), out, padded, empty, empty, 0.0, [True, True, True, False], causal, scale=scale
        )[:3]
        grads = grads[0], _unshared(grads[1], groups), _unshared(grads[2], groups)
    return grads[0][..., :size], grads[1][..., :size], grads[2][..., :size]


def _cudnn_forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    out, logsumexp = _aten._scaled_dot_product_cudnn_attention(query, key, value, _dense_mask(query, key, mask), True, 0.0, causal, False, scale=scale)[:2]
    return out, logsumexp.reshape(query.shape[:-1])


def _cudnn_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    empty, sizes = torch.empty((), dtype=torch.int64, device=query.device), (query.shape[-2], key.shape[-2])
    bias = _dense_mask(query, key, mask)
    return _aten._scaled_dot_product_cudnn_attention_backward(grad_out, query, key, value, out, logsumexp[..., None], empty, empty, bias, None, None, *sizes, 0.0, causal, scale=scale)


# --- which


def ends_below(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> bool:
    """True where a GPU's flash kernel runs. Its causal mask ends at the bottom right, so of more queries than keys it would hide all keys from some."""
    fits = not causal or query.shape[-2] <= key.shape[-2]
    return not _on_cpu(query) and mask is None and query.dtype in _HALVES and fits and query.shape[-1] <= _FLASH_HEAD_DIM


def is_cudnn(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> bool:
    """True where cuDNN's kernels run: where torch's own attention prefers them, and a causal mask, which begins at the top left, is of a square."""
    if query.device.type != "cuda" or query.dtype not in _HALVES or query.shape[-1] % 8 or query.shape[-1] > _CUDNN_HEAD_DIM:
        return False
    if query.shape[1] != key.shape[1] or causal and query.shape[-2] != key.shape[-2] or min(query.shape[-2], key.shape[-2]) < 2:
        return False
    prefers = torch.cuda.get_device_capability(query.device) in _CUDNN_CHIPS and (torch.backends.cudnn.version() or 0) > _CUDNN_VERSION
    if not prefers or not torch.backends.cuda.cudnn_sdp_enabled():
        return False
    return mask is None or not torch.compiler.is_compiling() and _is_right_with_masks(query.device, query.dtype, query.shape[-1])


@functools.cache
def _is_right_with_masks(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """True where cuDNN heeds a mask as the other kernels do, of a head of this size: tried once on a small one, forward and backward, as some versions do not (pytorch issue 177842)."""
    if torch.cuda.is_current_stream_capturing():
        return False
    draw = torch.Generator(device).manual_seed(0)
    query, key, value, grad = (torch.randn(2, 2, rows, size, generator=draw, device=device).to(dtype) for rows in (40, 24, 24, 40))
    mask = torch.rand(2, 1, 40, 24, generator=draw, device=device) > 0.3
    mask[0, 0, 3] = False
    try:
        out, logsumexp = _cudnn_forward(query, key, value, mask, False, None)
        found = out, *_cudnn_backward(grad, query, key, value, out, logsumexp, mask, False, None)
    except RuntimeError:
        return False
    query, key, value, grad = (x.float() for x in (query, key, value, grad))
    out, logsumexp = plain_forward(query, key, value, mask, False, None)
    wanted = out, *plain_backward(grad, query, key, value, out, logsumexp, mask, False, None)
    return all(bool(((x - y).abs() <= _NEAR * y.abs().max()).all()) for x, y in zip(found, wanted))  # what is not a number is not near


def _on_cpu(query: Tensor) -> bool:
    return query.device.type == "cpu"


def _has_none(query: Tensor) -> bool:
    """True of what a GPU has no kernel for."""
    return query.dtype not in (*_HALVES, torch.float32)


# --- what they ask for


def _packed(x: Tensor) -> Tensor:
    """The kernels read rows of the last dim and do not look at its stride: on a shard with another they read what is not there."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _of_a_row(x: Tensor) -> int:
    """Elements of which a row has to be whole ones."""
    return _ALIGNED_BYTES // x.element_size()


def _widened(x: Tensor) -> Tensor:
    """Heads of whole 16 bytes: behind them zeros, which change no score."""
    return F.pad(x, (0, -x.shape[-1] % _of_a_row(x))) if x.shape[-1] % _of_a_row(x) else x


def _shared(x: Tensor, heads: int) -> Tensor:
    """A copy of shared keys for each head of queries."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _unshared(grad: Tensor, groups: int) -> Tensor:
    return grad if grad.shape[1] == groups else grad.unflatten(1, (groups, -1)).sum(2)


def _numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores."""
    if mask.dtype == torch.bool:
        return torch.where(mask, mask.new_zeros((), dtype=dtype), mask.new_full((), float("-inf"), dtype=dtype))
    return mask.to(dtype)


def _aligned_mask(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    """`[b, h, s, t]` of numbers in the dtype of the queries; a view where the mask is of fewer."""
    if mask is None:
        return None
    mask, keys = _numbers(mask, query.dtype), key.shape[-2]
    mask = mask.expand(*mask.shape[:-1], keys)
    if mask.stride(-1) != 1 or keys % _of_a_row(mask) or any(step % _of_a_row(mask) for step in (*mask.stride()[:-1], mask.storage_offset())):
        mask = F.pad(mask, (0, -keys % _of_a_row(mask))).contiguous()[..., :keys]
    return mask.expand(*query.shape[:-1], keys)


def _dense_mask(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    """As cuDNN takes it: `[b, 1 or h, s, t]` of numbers, `[s, t]` without gaps."""
    if mask is None:
        return None
    mask = _numbers(mask, query.dtype)
    mask = mask[(None,) * (4 - mask.dim())]
    return mask.expand(-1, -1, query.shape[-2], key.shape[-2]).contiguous().expand(query.shape[0], -1, -1, -1)


# --- without a kernel


def plain_forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Matmuls and a softmax; a row that sees nothing is zero."""
    scores = _scores(query, _shared(key, query.shape[1]), mask, causal, _scale(query, scale))
    logsumexp = scores.logsumexp(-1)
    return _shares(scores, logsumexp) @ _shared(value, query.shape[1]), logsumexp


def plain_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    groups, scale = key.shape[1], _scale(query, scale)
    key, value = _shared(key, query.shape[1]), _shared(value, query.shape[1])
    shares = _shares(_scores(query, key, mask, causal, scale), logsumexp)
    grad = shares * (grad_out @ value.mT - (grad_out * out).sum(-1, keepdim=True)) * scale
    return grad @ key, _unshared(grad.mT @ query, groups), _unshared(shares.mT @ grad_out, groups)


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    scores = query @ key.mT * scale
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores
    return scores.masked_fill_(~mask, float("-inf")) if mask.dtype == torch.bool else scores.add_(mask)


def _shares(scores: Tensor, logsumexp: Tensor) -> Tensor:
    return (scores - logsumexp[..., None]).exp_().masked_fill_((logsumexp == float("-inf"))[..., None], 0.0)
