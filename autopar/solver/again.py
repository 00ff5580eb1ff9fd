"""Again: what the solver may recompute on a graph: classes of nodes of which every member may be.

In: a graph, its fold, the nodes in question. Out: the names, and the graph in which all of them have copies: where copies stand in time. A plan that
recomputes fewer has its copies at most that early, right before their first reader, and the built program is measured in any case.

In a cluster some may be recomputed and others not: what a block hands on is made once, the mask of the dropout that made it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..graph.attention_core import list_selective
from ..graph.graph import Graph, producer_table
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


def scope_of(recompute: str) -> str:
    """`none`, `selective` or `all`: of which nodes a word of the constraints speaks. What must be of them is not told here."""
    return recompute if recompute in ("none", "selective") else "all"


def list_again(graph: Graph, signatures: tuple[Signature, ...], scope: str) -> tuple[str, ...]:
    """Names of the nodes that a scope speaks of."""
    return () if scope == "none" else list_selective(graph, signatures) if scope == "selective" else list_recomputable(graph, signatures)


def find_again(graph: Graph, fold: Fold, names: Collection[str]) -> Again:
    """The classes of which all members may be recomputed.

    Args:
        names: of the nodes that may be (`list_again`).
    """
    members: dict[int, list[str]] = defaultdict(list)
    for node, root in zip(graph.nodes, fold.node_class):
        members[root].append(node.name)
    found, dropped = recompute_graph(graph, names), set[int]()
    while True:
        copied = set(found.original.values())
        dropped |= _bases_of_parted_views(graph, fold, members, copied)
        whole = {root for root, own in members.items() if root not in dropped and all(name in copied for name in own)}
        found = recompute_graph(graph, [n for root in whole if not is_view(graph.nodes[root].op) for n in members[root]])
        if set(found.original.values()) == copied:
            return Again(frozenset(whole), found)


def _bases_of_parted_views(graph: Graph, fold: Fold, members: Mapping[int, Sequence[str]], copied: Collection[str]) -> set[int]:
    """Classes of what is made again and looked at by views of which others, of the same class, look at what is not: a class decides alike, and a view follows what it looks at."""
    makers = producer_table(graph)
    names = {node.name: i for i, node in enumerate(graph.nodes)}
    found = set()
    for root, own in members.items():
        there = [name for name in own if name in copied] if is_view(graph.nodes[root].op) else []
        for name in there if len(there) < len(own) else ():
            at = names[name]
            while is_view(graph.nodes[at].op) and graph.nodes[at].inputs[0] in makers:
                at = makers[graph.nodes[at].inputs[0]][0]
            if not is_view(graph.nodes[at].op):
                found.add(fold.node_class[at])
    return found
