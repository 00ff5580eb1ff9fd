"""Again: what the solver may recompute on a graph: classes of nodes of which every member may be, and whose cluster may be as a whole.

In: a graph, its fold and clusters. Out: the names, and the graph in which all of them have copies: where copies stand in time. A plan that
recomputes fewer has its copies at most that early, right before their first reader, and the built program is measured in any case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.graph import Graph
from ..graph.liveness import is_view
from ..graph.recompute import Recomputed, list_recomputable, recompute_graph
from ..graph.repeats import Fold
from ..graph.rule import Signature


@dataclass(frozen=True, slots=True)
class Again:
    """Args:
    classes: node classes that may be recomputed, with the views that go with them.
    found: the graph with a copy of every member of them.
    """

    classes: frozenset[int]
    found: Recomputed


def no_recompute(graph: Graph) -> Again:
    """Everything is kept."""
    return Again(frozenset(), Recomputed(graph, {}, {}))


def find_again(graph: Graph, signatures: tuple[Signature, ...], fold: Fold, clusters: Mapping[int, int]) -> Again:
    """The classes that may be recomputed, each whole and with its cluster."""
    members: dict[int, list[str]] = defaultdict(list)
    for node, root in zip(graph.nodes, fold.node_class):
        members[root].append(node.name)
    together: dict[int, list[int]] = defaultdict(list)
    for root, leader in clusters.items():
        together[leader].append(root)
    found = recompute_graph(graph, list_recomputable(graph, signatures))
    while True:
        copied = set(found.original.values())
        whole = {r for roots in together.values() if all(n in copied for root in roots for n in members[root]) for r in roots}
        found = recompute_graph(graph, [n for root in whole if not is_view(graph.nodes[root].op) for n in members[root]])
        if set(found.original.values()) == copied:
            return Again(frozenset(whole), found)

