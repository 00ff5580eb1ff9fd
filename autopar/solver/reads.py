"""Who reads what, and when: the groups that share reshards, and the values that own bytes with the life of each.

In: a graph, its fold, which chooser makes and wants what. Out: `Group`s and `Owner`s of a `Problem`, by the laws of `graph.partition` (who
shares a reshard) and `graph.liveness` (how long bytes are held).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import GraphError
from ..graph.graph import Graph, producer_table, value_table
from ..graph.liveness import is_view, storage_bases
from ..graph.node import Phase
from ..graph.repeats import Fold
from .problem import AFTER, BRING, MOMENTS, RUN, STORAGE, WHOLE, Endpoint, Group, Life, Owner


def list_sources(graph: Graph, fold: Fold, of_input: Mapping[str, int], of_node: Mapping[int, tuple[int, int, int]]) -> dict[str, tuple[int, int]]:
    """For each value: (chooser, output) that makes it."""
    found = {name: (of_input[fold.value_class[name]], 0) for name in graph.inputs}
    for i, node in enumerate(graph.nodes):
        for k, out in enumerate(o for o in node.outputs if o):
            chooser, first, _ = of_node[fold.node_class[i]]
            found[out] = (chooser, first + k)
    return found


def _held_until(graph: Graph) -> list[int]:
    """For each node: until when a copy of its first input is held (longer than the node itself where it makes views of it)."""
    until = list(range(len(graph.nodes)))
    reach: dict[str, int] = {}
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        if is_view(node.op):
            until[i] = max([i, *(reach.get(o, i) for o in node.outputs if o)])
        for k, name in enumerate(node.inputs):
            reach[name] = max(reach.get(name, i), until[i] if k == 0 else i)
    return until


@dataclass(frozen=True, slots=True)
class _Reads:
    """Who reads what: per (value, phase) the endpoints, each with the span in which a copy for it is held."""

    made: dict[str, int]
    ends: dict[tuple[str, Phase], dict[Endpoint, tuple[int, int]]]

    def add(self, name: str, phase: Phase, endpoint: Endpoint, first: int, last: int) -> None:
        """One more read; reads by the same endpoint join."""
        here = self.ends.setdefault((name, phase), {})
        low, high = here.get(endpoint, (first, last))
        here[endpoint] = (min(low, first), max(high, last))


def list_reads(graph: Graph, fold: Fold, of_input: Mapping[str, int], of_node: Mapping[int, tuple[int, int, int]]) -> _Reads:
    """By the law of `partition`: a final gradient that the update reads, a new state and what leaves are brought where they are made."""
    end = MOMENTS * len(graph.nodes)
    until = _held_until(graph)
    made = {name: -1 for name in graph.inputs} | {name: MOMENTS * i + RUN for name, (i, _) in producer_table(graph).items()}
    reads = _Reads(made, {})
    grads = {g for _, g in graph.grads}
    last_read: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for k, name in enumerate(node.inputs):
            last = MOMENTS * (until[i] if k == 0 else i) + RUN
            last_read[name] = max(last_read.get(name, -1), last)
            first = _after(made[name]) if name in grads and node.phase is Phase.UPDATE else MOMENTS * i + BRING
            chooser, _, port = of_node[fold.node_class[i]]
            reads.add(name, node.phase, Endpoint(chooser, port + k), first, last)
    for old, new in graph.updates:
        at = _after(made[new])
        reads.add(new, Phase.UPDATE, Endpoint(of_input[fold.value_class[old]], STORAGE), at, max(at, _after(last_read.get(old, -1))))
    for name in dict.fromkeys((*([graph.loss] if graph.loss else []), *graph.outputs)):
        reads.add(name, Phase.UPDATE, Endpoint(WHOLE, 0), _after(made[name]), end)
    return reads


def _after(moment: int) -> int:
    """The moment right after a node ran (of what enters: the first moment)."""
    return moment - RUN + AFTER if moment >= 0 else 0


def build_groups(
    graph: Graph, fold: Fold, sources: Mapping[str, tuple[int, int]], reads: _Reads
) -> tuple[tuple[Group, ...], dict[str, list[tuple[int, int]]]]:
    """The groups, and for each value where its reads are: (group, instance) pairs."""
    values = value_table(graph)
    groups: dict[tuple, list[tuple[str, tuple[tuple[int, int], ...]]]] = {}
    for (name, phase), ends in reads.ends.items():
        order = tuple(sorted(ends, key=lambda e: (e.chooser, e.position)))
        key = (fold.value_class[name], phase, order)
        groups.setdefault(key, []).append((name, tuple(ends[e] for e in order)))
    found = []
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, ((root, phase, order), instances) in enumerate(groups.items()):
        source = {sources[name] for name, _ in instances}
        if len(source) != 1:
            raise GraphError(f"{graph.name}: values of class {root} are made by different choosers: the fold is not consistent")
        found.append(Group(values[root], source.pop(), phase, order, tuple(spans for _, spans in instances)))
        for k, (name, _) in enumerate(instances):
            places[name].append((number, k))
    return tuple(found), places


def build_owners(
    graph: Graph, fold: Fold, sources: Mapping[str, tuple[int, int]], reads: _Reads, groups: tuple[Group, ...], places: Mapping[str, list[tuple[int, int]]]
) -> tuple[Owner, ...]:
    values = value_table(graph)
    base = storage_bases(graph)
    lives: dict[tuple[str, tuple[int, int]], list[Life]] = defaultdict(list)
    end = MOMENTS * len(graph.nodes)
    for name in values:
        if base.get(name) != name:
            continue
        made = reads.made[name]
        if made < 0:
            life = Life(-1, end, ())
        else:
            spans = [(g, e, groups[g].spans[k][e]) for g, k in places.get(name, ()) for e in range(len(groups[g].endpoints))]
            certain = max([made, *(first for _, _, (first, _) in spans)])
            life = Life(made, certain, tuple((g, e, last) for g, e, (_, last) in spans if last > certain))
        lives[(fold.value_class[name], sources[name])].append(life)
    return tuple(Owner(values[root], source, tuple(found)) for (root, source), found in lives.items())
