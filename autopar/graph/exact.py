"""Exact: values that are compared with an extreme of themselves, bit by bit, so that they must not be summed up twice.

The gradient of `x.amax(1)` goes to where `x == x.amax(1)`, divided by how many those are; `x >= x.topk(5).values[..., -1:]` keeps five. If `x` were left partial, each of the two
readers would have its own sum of the parts, in its own order: they may differ in the last bit, and then nothing is equal to the extreme, and zero is divided by zero. In: a graph and its
signatures. Out: the signatures, those of nodes that make such values marked (`Signature.exact`): no split of theirs leaves a sum of parts. Views and ops of one tensor on the way
are marked, too, as they may be made once for each reader. What is made again for the backward pass is made as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .graph import Graph, producer_table
from .liveness import is_view
from .node import Phase, packet_of
from .repeats import fold_graph
from .rule import Signature

_EXTREMES = frozenset(f"aten.{word}" for word in ("amax", "amin", "max", "min", "topk", "sort", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin"))
_COMPARISONS = frozenset(f"aten.{word}" for word in ("eq", "ne", "ge", "gt", "le", "lt"))


def mark_exact(graph: Graph, signatures: Sequence[Signature]) -> tuple[Signature, ...]:
    """The signatures; of nodes that make such values with `exact`. Equal blocks are marked alike, and equal signatures stay one object."""
    found = _find_exact(graph)
    if not found:
        return tuple(signatures)
    classes = fold_graph(graph).node_class
    roots = {classes[i] for i in found}
    marked: dict[int, Signature] = {}
    return tuple(
        marked.setdefault(id(signature), replace(signature, exact=True)) if root in roots else signature for root, signature in zip(classes, signatures)
    )


def _find_exact(graph: Graph) -> set[int]:
    """Indices of the nodes. (The update is left alone: what it compares are gradients, each a sum over the batch.)"""
    compared = [node for node in graph.nodes if node.phase is not Phase.UPDATE and packet_of(node.op) in _COMPARISONS and len(node.inputs) == 2]
    if not compared:
        return set()
    way_up, found = _Ways(graph), set[int]()
    for node in compared:
        ways = [way_up(name) for name in node.inputs]
        extremes = [nodes[-1] for nodes, is_extreme in ways if is_extreme]
        if len(extremes) == 1:
            of = way_up(graph.nodes[extremes[0]].inputs[0])
            found.update(i for nodes, is_extreme in (*ways, of) if not is_extreme for i in nodes)
    return found


class _Ways:
    """What leads to a value: views, ops of one tensor, and the node that they begin with."""

    def __init__(self, graph: Graph) -> None:
        self._nodes, self._makers, self._shapes = graph.nodes, producer_table(graph), {value.name: value.shape for value in graph.values}

    def __call__(self, name: str) -> tuple[list[int], bool]:
        """The nodes, the last one first; and whether they begin with an extreme (not with the place of one)."""
        way: list[int] = []
        while name in self._makers:
            i, output = self._makers[name]
            node = self._nodes[i]
            way.append(i)
            if packet_of(node.op) in _EXTREMES:
                return way, output == 0
            if not is_view(node.op) and (len(node.inputs) != 1 or self._shapes[node.inputs[0]] != self._shapes[name]):
                break
            name = node.inputs[0]
        return way, False
