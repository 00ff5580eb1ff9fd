"""Embedding bags and segments: ragged runs of entries are reduced, one result per run. Only the feature dims are free.

`{d}` in a text: the bookkeeping outputs of a bag (which entry belongs to which bag, how many there are) do not depend on the features.
"""

from __future__ import annotations

from ..rule import Rule, Site
from .dims import letters, operand

_MODE_MAX = 2
_RUN = "the entries of a bag are a run that only the offsets know"



def _bag(site: Site) -> str:
    left = "weight: [v] d, indices: [n], offsets: [b], per_sample_weights: [n]"
    _, where, sizes, largest = site.outputs
    last = "[bags] d" if len(largest) == 2 else "[l] {d}"
    return f"{left} -> [bags] d, [w] {{d}}, [s] {{d}}, {last}"


def _bag_backward(site: Site) -> str:
    largest = "[bags] d" if site.arg("mode") == _MODE_MAX else "[l]"
    left = "grad: [bags] d, indices: [n], offsets: [b], offset2bag: [w], bag_size: [s], per_sample_weights: [n]"
    return f"{left}, maximum_indices: {largest} -> [v] d"


def _segment_text(site: Site, data: int) -> tuple[str, str]:
    rank, axis = len(site.inputs[data]), site.arg("axis", 0)
    assert isinstance(axis, int)
    free = operand(letters(rank)[axis + 1 :])
    return f"{operand(letters(axis, 'b'))} [n] {free}", f"{operand(letters(axis, 'b'))} [runs] {free}"


def _lead(site: Site) -> str:
    axis = site.arg("axis", 0)
    assert isinstance(axis, int)
    return operand(letters(axis, "b"))


def _segment(site: Site) -> str:
    data, runs = _segment_text(site, 0)
    lead = _lead(site)
    return f"data: {data}, lengths: {lead} [runs], indices: [i], offsets: {lead} [ends] -> {runs}"


def _segment_backward(site: Site) -> str:
    data, runs = _segment_text(site, 2)
    lead = _lead(site)
    return f"grad: {runs}, output: {runs}, data: {data}, lengths: {lead} [runs], offsets: {lead} [ends] -> {data}"


ROWS = (
    Rule("aten._embedding_bag", _bag, why_whole=_RUN),
    Rule("aten._embedding_bag_forward_only", _bag, why_whole=_RUN),
    Rule("aten._embedding_bag_backward", _bag_backward, (("grad",),), why_whole=_RUN),
    Rule("aten._embedding_bag_dense_backward", _bag_backward, (("grad",),), why_whole=_RUN),
    Rule("aten._embedding_bag_per_sample_weights_backward", "[bags] d, [v] d, [n], [b], [n] -> [n]", (("grad",),), why_whole=_RUN),
    Rule("aten.segment_reduce", _segment, why_whole=_RUN),
    Rule("aten._segment_reduce_backward", _segment_backward, (("grad",),), why_whole=_RUN),
)
