"""Rows as their largest element and the sum of exp(element - largest), which log-probabilities and logsumexp are made of.

In: a value whose last dim is the row. Out: two numbers per row, each made in one walk along it, and by as many ranks as split the row. What
asks for the same row again (a loss and its penalty on logsumexp) gets the same numbers. Rows that were widened for this alone are read as they
were; it is computed in the wide dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from .decompose import keep_dims, list_dims
from .draft import Draft, Val, view_chain

HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Exponentials:
    """What is known of rows.

    Args:
        rows: `[..., v]`, with the leading dims that the model has.
        peak, total: of each row the largest element, and the sum of exp(element - largest), `[...]`.
    """

    rows: Val
    peak: Val
    total: Val


def open_rows(b: Draft, x: Val, dtype: torch.dtype) -> Exponentials:
    """The exponentials along the last dim of `x`, in `dtype`."""
    rows = _unflattened(x)
    cast = rows.node
    if cast is not None and cast.op == "aten._to_copy.default" and dict(cast.args)["self"].dtype in HALVES:
        rows = _unflattened(dict(cast.args)["self"])
    key = (rows, dtype, b.phase)
    if key not in b.exponentials:
        peak = b.cast(b.call("aten.amax.default", rows, [-1]), dtype)
        total = b.emit_one("autopar.sum_exp", {"logits": rows, "peak": peak, "num_classes": rows.shape[-1]}, peak.shape, dtype)
        b.exponentials[key] = Exponentials(rows, peak, total)
    return b.exponentials[key]


def _unflattened(x: Val) -> Val:
    """The oldest value of which `x` is a view that merges or splits all dims but the last."""
    return [base for base in view_chain(x) if base.shape[-1:] == x.shape[-1:]][-1]


def _logsumexp(b: Draft, a: dict) -> object:
    """log(sum(exp(x - peak))) + peak. Where the peak is infinite that would be no number, and the answer is the peak itself."""
    x, dims, dtype = a["self"], list_dims(a["self"], a["dim"]), b.specs[0][1]
    if not x.dtype.is_floating_point or not dims or not prod(x.shape):
        op = "aten.logsumexp.default"
        return b.keep(op, a)
    thin = tuple(size for k, size in enumerate(x.shape) if k not in dims)
    wide = torch.float32 if x.dtype in HALVES else x.dtype
    if dims == [len(x.shape) - 1]:
        e = open_rows(b, x, wide)
        peak, total = e.peak, e.total
    else:
        x = b.cast(x, wide)
        peak = b.call("aten.amax.default", x, dims)
        total = b.sum(b.call("aten.exp.default", b.sub(x, keep_dims(b, peak, x, dims, True))), dims)
    there = b.add(b.call("aten.log.default", total), peak)
    made = b.call("aten.where.self", b.call("aten.isinf.default", peak), peak, there)
    return b.cast(b.view(made, b.specs[0][0] if a["keepdim"] else thin), dtype)


EXPONENTIAL_RULES = {"aten.logsumexp.default": _logsumexp}
