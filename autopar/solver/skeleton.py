"""The skeleton of a problem: what no mesh changes. Which chooser and which of its ports decide for a node, who reads what, who shares reshards.

In: a graph, its fold and clusters, what may be recomputed. Out: a `Skeleton`, built once for all meshes with the same clusters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.graph import Graph
from ..graph.repeats import Fold
from ..graph.rule import Signature
from .again import Again, find_again, list_again
from .problem import Group, Owner
from .reads import Item, Lanes, Ports, Reads, build_groups, build_owners, list_reads, list_sources


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Args:
    clusters: node class -> the class that leads its cluster.
    scope: which values may be made again (`again.scope_of`; `again` has them).
    inputs: names of each class of graph inputs, in the order of their choosers, which come first.
    together: node classes of each chooser that follows, in order.
    lanes, sources, reads, groups, places: as `reads` makes them.
    owners: None where something may be made again, where they depend on the shardings of views.
    """

    clusters: Mapping[int, int]
    scope: str
    inputs: Mapping[str, tuple[str, ...]]
    together: tuple[tuple[int, ...], ...]
    again: Again
    lanes: Lanes
    sources: Mapping[Item, tuple[int, int]]
    reads: Reads
    groups: tuple[Group, ...]
    places: Mapping[Item, list[tuple[int, int]]]
    owners: tuple[Owner, ...] | None

    def fits(self, clusters: Mapping[int, int], scope: str, turn_weight: float | None) -> bool:
        """True where it is what `build_skeleton` would make of its graph."""
        weight = self.lanes.num_turns if turn_weight is None else turn_weight
        return self.scope == scope and self.lanes.turn_weight == weight and self.clusters == clusters


def build_skeleton(graph: Graph, signatures: tuple[Signature, ...], fold: Fold, clusters: Mapping[int, int], scope: str, turn_weight: float | None = None) -> Skeleton:
    """Number the choosers and their ports, then read the graph.

    Args:
        turn_weight: what one turn counts in the objective; None: as many turns as there are.
    """
    again = find_again(graph, fold, list_again(graph, signatures, scope))
    inputs: dict[str, list[str]] = defaultdict(list)
    for name in graph.inputs:
        inputs[fold.value_class[name]].append(name)
    together: dict[int, list[int]] = defaultdict(list)
    for root in sorted(set(fold.node_class)):
        together[clusters[root]].append(root)
    lanes = Lanes(graph, fold, again, {root: k for k, root in enumerate(inputs)}, _number_ports(graph, len(inputs), tuple(together.values()), again), turn_weight)
    sources, reads = list_sources(lanes), list_reads(lanes)
    groups, places = build_groups(lanes, sources, reads)
    return Skeleton(
        dict(clusters), scope, {k: tuple(v) for k, v in inputs.items()}, tuple(map(tuple, together.values())), again, lanes, sources, reads, groups, places,
        None if scope != "none" else build_owners(lanes, (), sources, reads, groups, places),
    )  # fmt: skip


def _number_ports(graph: Graph, first: int, together: tuple[tuple[int, ...], ...], again: Again) -> dict[int, Ports]:
    """For each node class its chooser, and its ports there: one per input and output of each member of the cluster, three of each output
    and two of each input of what may be recomputed."""
    found: dict[int, Ports] = {}
    for chooser, roots in enumerate(together, first):
        num_out = num_in = 0
        for root in roots:
            node = graph.nodes[root]
            o, i = sum(1 for out in node.outputs if out), len(node.inputs)
            if root in again.classes:
                found[root] = Ports(chooser, num_out, num_in, num_out + o, num_out + 2 * o, num_in + i)
                num_out, num_in = num_out + 3 * o, num_in + 2 * i
            else:
                found[root] = Ports(chooser, num_out, num_in)
                num_out, num_in = num_out + o, num_in + i
    return found
