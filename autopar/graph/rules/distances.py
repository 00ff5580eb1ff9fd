"""Distances between rows: the rows of either side are free; the coordinates where their terms add up (1-norm) or have a maximum."""

from __future__ import annotations

from math import inf

from ..node import Arg
from ..rule import Rule, Site
from .dims import hold, letters, operand

_ROOT = "a root of the sum over all coordinates"
GRAD = (("grad",),)


def norm_reduction(order: Arg) -> str:
    """How the norms of parts make the norm of the whole: `sum`, `max`, `min`; "" where a root stands in the way."""
    return {0: "sum", 1: "sum", inf: "max", -inf: "min"}.get(order, "")  # type: ignore[call-overload]


def _coordinate(site: Site) -> str:
    return "m" if norm_reduction(site.arg("p", 2)) else "[m]"


def _cdist(site: Site) -> str:
    m = _coordinate(site)
    return f"... p {m}, ... r {m} -> ... p r"


def _dist(site: Site) -> str:
    if norm_reduction(site.arg("p", 2)):
        return "..., ... ->"
    rank = max(len(shape) for shape in site.inputs)
    names = hold(letters(rank), range(rank))
    return ", ".join(operand(names[rank - len(shape) :]) for shape in site.inputs) + " ->"


def _reduction(site: Site) -> str:
    return norm_reduction(site.arg("p", 2)) or "sum"


def _pdist(site: Site) -> str:
    return f"[n] {_coordinate(site)} -> [pairs]"


def _renorm(site: Site) -> str:
    rank = len(site.inputs[0])
    kept = site.arg("dim")
    assert isinstance(kept, int)
    text = operand(hold(letters(rank), (k for k in range(rank) if k != kept % rank)))
    return f"{text} -> {text}"


def _weight_norm(site: Site) -> str:
    """Inputs and outputs are weights, and norms over all dims of a weight but `dim`; which is the only free one."""
    rank, dim = len(site.outputs[0]), site.arg("dim", 0)
    assert isinstance(dim, int)
    text = operand(hold(letters(rank), (k for k in range(rank) if k != dim % rank)))
    norm = operand(name if k == dim % rank else "1" for k, name in enumerate(letters(rank)))
    if site.node.op.startswith("aten._weight_norm_interface_backward"):
        return f"{text}, {text}, {norm}, {norm} -> {text}, {norm}"
    return f"{text}, {norm} -> {text}, {norm}"


ROWS = (
    Rule("aten._cdist_forward", _cdist, reduce=_reduction, flops=3, why_whole=_ROOT),
    Rule("aten._cdist_backward", "... p r, ... p m, ... r m, ... p r -> ... p m", GRAD, flops=4),
    Rule("aten._euclidean_dist", "... p [m], ... r [m] -> ... p r", flops=3, why_whole=_ROOT),
    Rule("aten._pdist_forward", _pdist, reduce=_reduction, flops=3, why_whole="the pairs run over all rows"),
    Rule("aten._pdist_backward", "[pairs], [n] m, [pairs] -> [n] m", GRAD, flops=4, why_whole="the pairs run over all rows"),
    Rule("aten.dist", _dist, reduce=_reduction, flops=3, why_whole=_ROOT),
    Rule("aten.renorm", _renorm, flops=3, why_whole="the norm runs over it"),
    Rule("aten._weight_norm_interface", _weight_norm, flops=3, why_whole="the norm runs over it"),
    Rule("aten._weight_norm_interface_backward", _weight_norm, (("grad_w",),), flops=5, why_whole="the norm runs over it"),
)
