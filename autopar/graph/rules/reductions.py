"""Reductions over dims, scans and sorts.

Only sums, maxima and minima of parts make the whole, so only they may split what they reduce; all others hold it whole (`mean` too: a
mean of parts needs a weight, which is why trace writes it as a sum times a constant).
"""

from __future__ import annotations

from collections.abc import Callable

from ..node import Arg
from ..rule import Rule, Site
from .dims import hold, letters, normal_dims, operand
from .distances import norm_reduction
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


def _whole_last(site: Site) -> str:
    return _reduce(site, site.arg("dim", -1), is_whole=True)


def _norm_order(site: Site) -> str:
    """How norms of parts join, from the argument `ord` or `p`; "" where they do not."""
    order = site.arg("ord", site.arg("p", 2))
    return norm_reduction(2 if order is None else order)


def _norm(site: Site) -> str:
    return _reduce(site, site.arg("dim"), is_whole=not _norm_order(site))


def _norm_reduction(site: Site) -> str:
    return _norm_order(site) or "sum"


def _along(default: Arg) -> Callable[[Site], str]:
    """Every input and output has the same dims (up to the size of `dim`, which stays whole)."""

    def text(site: Site) -> str:
        rank = len(site.inputs[0])
        dims = normal_dims(site.arg("dim", default), rank)
        left = operand(hold(letters(rank), dims))
        right = operand(f"[out{k}]" if k in dims else name for k, name in enumerate(letters(rank)))
        return ", ".join([left] * len(site.inputs)) + " -> " + ", ".join([right] * len(site.node.outputs))

    return text


def _cross(site: Site) -> str:
    rank = len(site.outputs[0])
    names = hold(letters(rank), normal_dims(site.arg("dim", -1), rank))
    return ", ".join(operand(names[rank - len(shape) :]) for shape in site.inputs) + f" -> {operand(names)}"


_KEEP = "the result needs every element of the dim"
_SCAN = "each element needs all those before it"
_SORT = "the order needs every element of the dim"

ROWS = (
    Rule("aten.sum", _split, linear=linear_unless_integer),
    Rule("aten.count_nonzero", _split),
    Rule("aten.nansum", _split),
    Rule("aten.amax", _split, reduce="max"),
    Rule("aten.max", _split, reduce="max"),
    Rule("aten.any", _split, reduce="max"),
    Rule("aten.amin", _split, reduce="min"),
    Rule("aten.min", _split, reduce="min"),
    Rule("aten.all", _split, reduce="min"),
    *(Rule(f"aten.{name}", _norm, reduce=_norm_reduction, flops=2, why_whole=_KEEP) for name in ("linalg_vector_norm", "norm")),
    Rule("aten.mean", _whole, linear=SELF, why_whole="a mean of parts is not the mean: write it as a sum times 1/n"),
    *(
        Rule(f"aten.{name}", _whole, why_whole=_KEEP)
        for name in (
            "max.dim", "min.dim", "argmax", "argmin", "prod", "var", "var_mean", "std", "std_mean", "logsumexp", "median", "nanmedian",
        )
    ),
    *(Rule(f"aten.{name}", _whole_last, why_whole=_KEEP) for name in ("kthvalue", "mode")),
    Rule("aten.aminmax", _split, reduce="min max"),
    Rule("aten.linalg_cross", _cross, flops=3, why_whole="the three coordinates stay together"),
    Rule("aten.cumsum", _along(-1), linear=linear_unless_integer, why_whole=_SCAN),
    *(Rule(f"aten.{name}", _along(-1), why_whole=_SCAN) for name in ("cumprod", "logcumsumexp", "cummax", "cummin")),
    *(Rule(f"aten.{name}", _along(-1), why_whole=_SORT) for name in ("topk", "sort", "argsort")),
)
