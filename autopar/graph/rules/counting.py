"""Counting and searching: both add up.

A histogram sums over its entries; a place in a sorted sequence is the count of the elements before it.
"""

from __future__ import annotations

from ..rule import Rule, Site
from .dims import letters, operand, whole_operand

_SORTED = "the order in which the sequence is read refers to all of it"
_RANGE = "the bins are laid between the smallest and the largest element"


def _histc(site: Site) -> str:
    rank = len(site.inputs[0])
    if site.arg("min", 0) == site.arg("max", 0):
        return f"{whole_operand(rank, 'x')} -> [bins]"
    return f"{operand(letters(rank))} -> [bins]"


def _bucketize(site: Site) -> str:
    return "self: ..., boundaries: n -> ..."


def _searchsorted(site: Site) -> str:
    n = "n" if site.arg("sorter") is None else "[n]"
    if len(site.inputs[0]) == 1:
        return f"sorted_sequence: {n}, sorter: {n}, self: ... -> ..."
    lead = operand(letters(len(site.inputs[0]) - 1))
    return f"sorted_sequence: {lead} {n}, sorter: {lead} {n}, self: {lead} m -> {lead} m"


def _isin(site: Site) -> str:
    if site.node.op == "aten.isin.Scalar_Tensor":
        return f"test_elements: {operand(letters(len(site.inputs[0]), 't'))} ->"
    tests = operand(letters(len(site.inputs[1]), "t")) if len(site.inputs) > 1 else ""
    return f"elements: ..., test_elements: {tests} -> ..."


def _isin_reduction(site: Site) -> str:
    """Found in any part; or, inverted, missing from all."""
    return "min" if site.arg("invert", False) else "max"


def _all_whole(site: Site) -> str:
    left = [whole_operand(len(shape), f"i{k}x") for k, shape in enumerate(site.inputs)]
    right = [whole_operand(len(shape), f"o{k}x") for k, shape in enumerate(site.outputs)]
    return ", ".join(left) + " -> " + ", ".join(right)


ROWS = (
    Rule("aten.histc", _histc, why_whole=_RANGE),
    Rule("aten.bucketize", _bucketize, flops=0, why_whole=_SORTED),
    Rule("aten.searchsorted", _searchsorted, flops=0, why_whole=_SORTED),
    Rule("aten.isin", _isin, reduce=_isin_reduction, flops=0),
    Rule("aten.histogram", _all_whole, why_whole=_RANGE),
    Rule("aten.nonzero_static", _all_whole, flops=0, why_whole="the places of those found count all before them"),
    Rule("aten.repeat_interleave", _all_whole, flops=0, why_whole="the place of each copy counts all copies before it"),
)
