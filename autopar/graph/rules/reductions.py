"""Reductions over dims, scans and sorts.

Only sums and maxima of parts make the whole, so only they may split what they reduce; all others hold it whole (`mean` too: a mean of
parts needs a weight, which is why trace writes it as a sum times a constant).
"""

from __future__ import annotations

from collections.abc import Callable

from ..node import Arg
from ..rule import Rule, Site
from .dims import hold, letters, normal_dims, operand
from .pointwise import linear_unless_integer

SELF = (("self",),)


def _reduce(site: Site, dims: Arg, is_whole: bool) -> str:
    rank = len(site.inputs[0])
    names, gone = letters(rank), normal_dims(dims, rank)
    kept = ["1" if k in gone else name for k, name in enumerate(names)]
    if len(site.outputs[0]) < rank:
        kept = [name for name in kept if name != "1"]
    left = operand(hold(names, gone if is_whole else ()))
    return f"{left} -> " + ", ".join([operand(kept)] * len(site.node.outputs))


def _split(site: Site) -> str:
    return _reduce(site, site.arg("dim"), is_whole=False)


def _whole(site: Site) -> str:
    return _reduce(site, site.arg("dim"), is_whole=True)


def _along(default: Arg) -> Callable[[Site], str]:
    """Every input and output has the same dims (up to the size of `dim`, which stays whole)."""

    def text(site: Site) -> str:
        rank = len(site.inputs[0])
        dims = normal_dims(site.arg("dim", default), rank)
        left = operand(hold(letters(rank), dims))
        right = operand(f"[out{k}]" if k in dims else name for k, name in enumerate(letters(rank)))
        return ", ".join([left] * len(site.inputs)) + " -> " + ", ".join([right] * len(site.node.outputs))

    return text


_KEEP = "the result needs every element of the dim"
_SCAN = "each element needs all those before it"
_SORT = "the order needs every element of the dim"

ROWS = (
    Rule("aten.sum", _split, linear=linear_unless_integer),
    Rule("aten.count_nonzero", _split),
    Rule("aten.nansum", _split),
    Rule("aten.amax", _split, reduce="max"),
    Rule("aten.max", _split, reduce="max"),
    Rule("aten.mean", _whole, linear=SELF, why_whole="a mean of parts is not the mean: write it as a sum times 1/n"),
    *(
        Rule(f"aten.{name}", _whole, why_whole=_KEEP)
        for name in (
            "amin", "min", "max.dim", "min.dim", "argmax", "argmin", "prod", "var", "var_mean", "std", "std_mean", "any", "all",
            "logsumexp", "linalg_vector_norm", "norm", "median", "aminmax",
            "kthvalue", "mode",
        )
    ),
    Rule("aten.cumsum", _along(-1), linear=linear_unless_integer, why_whole=_SCAN),
    *(Rule(f"aten.{name}", _along(-1), why_whole=_SCAN) for name in ("cumprod", "logcumsumexp", "cummax", "cummin")),
    *(Rule(f"aten.{name}", _along(-1), why_whole=_SORT) for name in ("topk", "sort", "argsort")),
)
