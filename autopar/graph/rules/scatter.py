"""Writing by index with a reduction, and by flat position. The written dim is whole; all other dims are free.

Where the results of parts reduce to the whole (sums, maxima, minima that start from the tensor itself) the entries are free too: each
rank writes its own, and what is summed into is owed, so that it counts once.
"""

from __future__ import annotations

from collections.abc import Callable

from ..node import Arg
from ..rule import LinearSets, Rule, Site
from .dims import hold, letters, normal_dim, operand, whole_operand
from .indexing import along_entries
from .pointwise import linear_if_zero

_ANYWHERE = "an index may point anywhere in it"
_LAST = "the last write to a place wins, so all entries are needed in order"
_REDUCTIONS = {"sum": "sum", "amax": "max", "amin": "min"}  # torch's name -> how parts join


def _joins(site: Site) -> str:
    """How the results of parts of the entries join; "" where they do not."""
    reduce: Arg = site.arg("reduce")
    assert isinstance(reduce, str)
    return _REDUCTIONS.get(reduce, "") if site.arg("include_self", True) else ""


def _reduction(site: Site) -> str:
    return _joins(site) or "sum"


def _owed(site: Site) -> tuple[str, ...]:
    return ("self",) if _joins(site) == "sum" else ()


def _linear(source: str) -> Callable[[Site], LinearSets]:
    """Sums and means are linear in the tensor and the entries together."""

    def sets(site: Site) -> LinearSets:
        return (("self", source),) if site.arg("reduce") in ("sum", "mean") else ()

    return sets


def _linear_fill(site: Site) -> LinearSets:
    return linear_if_zero(site) if len(site.inputs) == 2 else (("self", "value"),)


def _scatter_reduce(site: Site) -> str:
    table, entries = along_entries(site, site.inputs[1:], is_entry_whole=not _joins(site))
    return f"{', '.join([table, *entries])} -> {table}"


def _slices(site: Site, entry: str) -> tuple[str, str, str]:
    """Texts of the tensor, of the index and of the slices at the indexed places."""
    rank = len(site.inputs[0])
    dim = normal_dim(site.arg("dim"), rank)
    table = hold(letters(rank), (dim,))
    written = [entry if k == dim else name for k, name in enumerate(table)]
    return operand(table), entry if site.inputs[1] else "", operand(written)


def _index_copy(site: Site) -> str:
    table, index, source = _slices(site, "[j]")
    return f"{table}, {index}, {source} -> {table}"


def _index_reduce(site: Site) -> str:
    table, index, source = _slices(site, "j" if _joins(site) else "[j]")
    return f"{table}, {index}, {source} -> {table}"


def _index_fill(site: Site) -> str:
    table, index, _ = _slices(site, "[j]")
    return f"self: {table}, index: {index}, value: -> {table}"


def _take(site: Site) -> str:
    return f"{whole_operand(len(site.inputs[0]), 'x')}, ... -> ..."


def _put(site: Site) -> str:
    table = whole_operand(len(site.inputs[0]), "x")
    if site.arg("accumulate", False):
        return f"{table}, ..., ... -> {table}"
    entries = whole_operand(len(site.inputs[1]), "j")
    return f"{table}, {entries}, {entries} -> {table}"


def _all_whole(site: Site) -> str:
    left = [whole_operand(len(shape), f"i{k}x") for k, shape in enumerate(site.inputs)]
    return f"{', '.join(left)} -> {whole_operand(len(site.outputs[0]), 'o')}"


_ORDER = "the n-th masked place takes the n-th element"

ROWS = (
    Rule("aten.scatter_reduce", _scatter_reduce, _linear("src"), owed=_owed, reduce=_reduction, flops=0, why_whole=_ANYWHERE),
    Rule("aten.index_reduce", _index_reduce, _linear("source"), owed=_owed, reduce=_reduction, flops=0, why_whole=_ANYWHERE),
    Rule("aten.index_copy", _index_copy, (("self", "source"),), flops=0, why_whole=_LAST),
    Rule("aten.index_fill", _index_fill, _linear_fill, flops=0, why_whole=_LAST),
    Rule("aten.take", _take, (("self",),), flops=0, why_whole=_ANYWHERE),
    Rule("aten.put", _put, (("self", "source"),), owed=("self",), flops=0, why_whole=_ANYWHERE),
    Rule("aten.masked_scatter", _all_whole, (("self", "source"),), flops=0, why_whole=_ORDER),
    Rule("aten.masked_scatter_backward", _all_whole, (("grad_output",),), flops=0, why_whole=_ORDER),
)
