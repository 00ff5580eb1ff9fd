"""Attention on one device: the device's own kernels, and causal attention of a run of rows that begins anywhere.

In: queries [b, h, s, d], keys [b, g, t, d] and values of this rank, and for a causal mask `rows`, the numbers that its queries have in the whole sequence: a
run of neighbours, on the host. Out: (out, logsumexp), and gradients, in the same meaning for every kernel. Row i sees the keys 0 to i.

Of rows that begin at f the keys 0 to f - 1 are seen by all, and the next s as a causal square: what lies behind is not read. Flash kernels of GPUs align a causal
mask at the bottom right, so they do both at once; elsewhere two calls are joined by their logsumexp. A flash backward pass takes out and logsumexp of all keys, so
it may go over any part of them (Dao et al. 2022, arXiv:2205.14135, algorithm 4): gradients of queries add up, those of keys lie side by side.

Where torch's own attention prefers cuDNN's kernels, they are taken here, too (`cost.attention` prices what `scaled_dot_product_attention` takes).
"""

from __future__ import annotations

import torch
from torch import Tensor

_aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
_CUDNN_VERSION, _CUDNN_CHIPS, _CUDNN_HEAD_DIM = 91500, ((9, 0), (10, 0)), 128  # where cuDNN is newer torch prefers it, there: `check_prefer_cudnn_attention` in torch's sdp_utils.cpp


def row_numbers(n: int) -> Tensor:
    """0 to n - 1 on the host, where Python may read them without waiting for a device."""
    return torch.arange(n, dtype=torch.int64)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scaled dot product attention on `[batch, heads, seq, head_dim]`; returns (out, logsumexp [batch, heads, seq]).

    Args:
        rows: with `is_causal`, the numbers of the queries in the whole sequence; None: they begin with the first.
    """
    query, key, value = _packed(query), _packed(key), _packed(value)
    if not is_causal:
        return _forward(query, key, value, attn_mask, False, scale)
    past, seen = _seen_keys(query, key, rows)
    if past == 0 or _aligns_below(query, key, past, seen):
        return _forward(query, key[:, :, :seen], value[:, :, :seen], None, True, scale)
    out, logsumexp = _forward(query, key[:, :, :past], value[:, :, :past], None, False, scale)
    if past == seen:
        return out, logsumexp
    own_out, own = _forward(query, key[:, :, past:seen], value[:, :, past:seen], None, True, scale)
    share = torch.sigmoid(own - logsumexp)[..., None]
    return torch.lerp(out.to(share.dtype), own_out.to(share.dtype), share).to(out.dtype), torch.logaddexp(logsumexp, own)


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; those of keys that these rows do not see are zero.

    Args:
        rows: as of `attention`.
    """
    grad_out, query, key, value, out = _packed(grad_out), _packed(query), _packed(key), _packed(value), _packed(out)

    def run(first: int, last: int, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
        return _backward(grad_out, query, key[:, :, first:last], value[:, :, first:last], out, logsumexp, attn_mask, causal, scale)

    if not is_causal:
        return run(0, key.shape[-2], False)
    past, seen = _seen_keys(query, key, rows)
    parts = [run(0, seen, True)] if past == 0 or _aligns_below(query, key, past, seen) else [run(0, past, False)]
    if parts[0][1].shape[-2] < seen:
        parts.append(run(past, seen, True))
    grad = parts[0][0] if len(parts) == 1 else parts[0][0] + parts[1][0]
    return grad, _join(key, [part[1] for part in parts]), _join(value, [part[2] for part in parts])


def _seen_keys(query: Tensor, key: Tensor, rows: Tensor | None) -> tuple[int, int]:
    """(keys that all rows see, keys that any row sees). As many rows as keys are all rows (the rule sees to it), and nothing is read: torch.compile would stop there."""
    size, keys = query.shape[-2], key.shape[-2]
    first = 0 if rows is None or size == keys else int(rows[0])
    return min(first, keys), min(first + size, keys)


def _aligns_below(query: Tensor, key: Tensor, past: int, seen: int) -> bool:
    """True where the kernel's causal mask lets the last of these rows see the last of these keys, as it must."""
    return _is_flash(query, key[:, :, :seen], None, True) and seen - past == query.shape[-2]


def _join(whole: Tensor, parts: list[Tensor]) -> Tensor:
    """Parts side by side along the keys, and zeros behind them."""
    missing = whole.shape[-2] - sum(part.shape[-2] for part in parts)
    if missing:
        parts = [*parts, parts[0].new_zeros((*whole.shape[:-2], missing, whole.shape[-1]))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


# --- the device's kernels -----------------------------------------------------------------------------------------------------------


def _is_flash(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> bool:
    """True where a GPU's flash kernel runs. Its causal mask ends at the bottom right, so of more queries than keys it would hide all keys from some."""
    fits = not causal or query.shape[-2] <= key.shape[-2]
    return query.device.type != "cpu" and mask is None and query.dtype in _HALVES and fits


def _is_cudnn(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> bool:
    """True where cuDNN's kernels run: where torch's own attention prefers them, and the mask, which begins at the top left, is of a square."""
    if query.device.type != "cuda" or mask is not None or query.dtype not in _HALVES or query.shape[-1] % 8 or query.shape[-1] > _CUDNN_HEAD_DIM:
        return False
    if query.shape[1] != key.shape[1] or causal and query.shape[-2] != key.shape[-2] or min(query.shape[-2], key.shape[-2]) < 2:
        return False
    prefers = torch.cuda.get_device_capability(query.device) in _CUDNN_CHIPS and (torch.backends.cudnn.version() or 0) > _CUDNN_VERSION
    return prefers and torch.backends.cuda.cudnn_sdp_enabled()


def _forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """(out, logsumexp). A causal mask begins at the top left, but for the flash kernel of a GPU, where it ends at the bottom right: equal for squares."""
    if query.device.type == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
    if _is_cudnn(query, key, mask, causal):
        out, logsumexp = _aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, 0.0, causal, False, scale=scale)[:2]
        return out, logsumexp.reshape(query.shape[:-1])
    if _is_flash(query, key, mask, causal):
        return _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, False, scale=scale)[:2]
    out = _aten._scaled_dot_product_efficient_attention(query, key, value, _cuda_mask(query, key, mask), True, 0.0, causal, scale=scale)
    return out[0], out[1][..., : query.shape[-2]]


def _backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, mask: Tensor | None, causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value, masks as of `_forward`."""
    if query.device.type == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, query, key, value, out, logsumexp, 0.0, causal, attn_mask=mask, scale=scale
        )
    empty = torch.empty((), dtype=torch.int64, device=query.device)  # of a dropout that there is not
    if _is_cudnn(query, key, mask, causal):
        return _aten._scaled_dot_product_cudnn_attention_backward(
            grad_out, query, key, value, out, logsumexp[..., None], empty, empty, None, None, None, query.shape[-2], key.shape[-2], 0.0, causal, scale=scale
        )
    if _is_flash(query, key, mask, causal):
        return _aten._scaled_dot_product_flash_attention_backward(
            grad_out, query, key, value, out, logsumexp, None, None, query.shape[-2], key.shape[-2], 0.0, causal, empty, empty, scale=scale
        )
    padded = torch.nn.functional.pad(logsumexp, (0, -query.shape[-2] % 32), value=float("inf"))
    return _aten._scaled_dot_product_efficient_attention_backward(
        grad_out, query, key, value, _cuda_mask(query, key, mask), out, padded, empty, empty, 0.0, [True, True, True, False], causal, scale=scale
    )[:3]


def _packed(x: Tensor) -> Tensor:
    """The kernels read rows of the last dim and do not look at its stride: on a shard with another they read what is not there."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _cuda_mask(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    return mask.expand(*query.shape[:-1], key.shape[-2])
