"""Exact: values that are compared with an extreme of themselves, bit by bit, so that they must not be summed up twice.

The gradient of `x.amax(1)` goes to where `x == x.amax(1)`, divided by how many those are; `x >= x.topk(5).values[..., -1:]` keeps five. If `x` were left partial, each of the two
readers would have its own sum of the parts, in its own order: they may differ in the last bit, and then nothing is equal to the extreme, and zero is divided by zero. In: a graph and its
signatures. Out: the signatures, those of nodes that make such values marked (`Signature.exact`): no split of theirs leaves a sum of parts. Views and ops of one tensor on the way
are marked, too, as they may be made once for each reader. What is made again for the backward pass is made as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .graph import Graph, producer_table
from .liveness import is_view
from .node import Node, Phase, packet_of
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
    found: set[int] = set()
    makers: Mapping[str, tuple[int, int]] | None = None
    for node in graph.nodes:
        if node.phase is Phase.UPDATE or packet_of(node.op) not in _COMPARISONS or len(node.inputs) != 2:
            continue
        makers = producer_table(graph) if makers is None else makers
        ways = [_way_up(graph.nodes, makers, name) for name in node.inputs]
        extremes = [way[-1] for way in ways if way and packet_of(graph.nodes[way[-1]].op) in _EXTREMES]
        if len(extremes) != 1:
            continue
        for way in (*(way for way in ways if way[-1:] != extremes), _way_up(graph.nodes, makers, graph.nodes[extremes[0]].inputs[0])):
            found.update(way)
    return found


def _way_up(nodes: Sequence[Node], makers: Mapping[str, tuple[int, int]], name: str) -> list[int]:
    """The views and ops of one tensor that lead to a value, and the node that they begin with."""
    way = []
    while name in makers:
        node = nodes[makers[name][0]]
        way.append(makers[name][0])
        if packet_of(node.op) in _EXTREMES or not (is_view(node.op) or len(node.inputs) == 1):
            break
        name = node.inputs[0]
    return way
