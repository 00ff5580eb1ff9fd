"""Chains: collectives of one kind along different axes that nothing stands between, so that they may go as one of all ranks of these axes.

In: a graph with communication, a node of it. Out: the nodes of its chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .graph import Graph
from .node import get_arg


def find_chain(graph: Graph, uses: Mapping[str, Sequence[tuple[int, int]]], first: int, places: Sequence[tuple]) -> tuple[int, ...]:
    """A collective, and those of its kind along other axes that take up its result, where nobody else does."""
    chain = [first]
    while True:
        node = graph.nodes[chain[-1]]
        readers = uses[node.outputs[0]]
        if len(readers) != 1 or node.outputs[0] in (graph.loss, *graph.outputs):
            return tuple(chain)
        after = graph.nodes[readers[0][0]]
        axes = {get_arg(graph.nodes[i], "axis") for i in chain}
        if after.op != node.op or get_arg(after, "op") != get_arg(node, "op") or get_arg(after, "axis") in axes or places[readers[0][0]] != places[first]:
            return tuple(chain)
        chain.append(readers[0][0])
