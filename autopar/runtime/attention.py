"""Attention on one device: the device's own kernels, and causal attention of a run of rows that begins anywhere.

In: queries [b, h, s, d], keys [b, g, t, d] and values of this rank, and for a causal mask `rows`, the numbers that its queries have in the whole sequence: a
run of neighbours, on the host. Out: (out, logsumexp), and gradients, in the same meaning for every kernel. Row i sees the keys 0 to i.

Of rows that begin at f the keys 0 to f - 1 are seen by all, and the next s as a causal square: what lies behind is not read. Flash kernels of GPUs align a causal
mask at the bottom right, so they do both at once; elsewhere two calls are joined by their logsumexp. A flash backward pass takes out and logsumexp of all keys, so
it may go over any part of them (Dao et al. 2022, arXiv:2205.14135, algorithm 4): gradients of queries add up, those of keys lie side by side.

Which kernel does it, and what each asks for, is `attention_kernels`' matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import attention_kernels as kernels


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
    if not is_causal:
        return kernels.forward(query, key, value, attn_mask, False, scale)
    past, seen = _seen_keys(query, key, rows)
    if past == 0 or _aligns_below(query, key, past, seen):
        return kernels.forward(query, key[:, :, :seen], value[:, :, :seen], None, True, scale)
    out, logsumexp = kernels.forward(query, key[:, :, :past], value[:, :, :past], None, False, scale)
    if past == seen:
        return out, logsumexp
    own_out, own = kernels.forward(query, key[:, :, past:seen], value[:, :, past:seen], None, True, scale)
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
    def run(first: int, last: int, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
        return kernels.backward(grad_out, query, key[:, :, first:last], value[:, :, first:last], out, logsumexp, attn_mask, causal, scale)

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
    return kernels.ends_below(query, key[:, :, :seen], None, True) and seen - past == query.shape[-2]


def _join(whole: Tensor, parts: list[Tensor]) -> Tensor:
    """Parts side by side along the keys, and zeros behind them."""
    missing = whole.shape[-2] - sum(part.shape[-2] for part in parts)
    if missing:
        parts = [*parts, parts[0].new_zeros((*whole.shape[:-2], missing, whole.shape[-1]))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)
