"""Dataflow: which storages are rewritten where, what must wait for what, and how wide the graph is.

In: a graph, and the work of its nodes. Out: tables of node indices; nothing about devices. A node waits for the nodes that make its inputs
and for nothing else: a rewritten storage has versions, so a write waits for no reader of the old one (in place it would have to).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Graph, producer_table
from ..node import Phase
from ..tensor import Kind, Value, size_bytes
from ..work import Work

MEASURES = ("flops", "bytes", "nodes")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A storage gets a new version.

    Args:
        value: the new version; `storage`, `version`, `kind` and `bytes` are its own.
        node: that makes it.
        last_read: the last node that reads the version before, -1 where nothing does: in place, the write would wait for it.
    """

    value: str
    storage: str
    version: int
    kind: Kind
    bytes: int
    node: int
    last_read: int


@dataclass(frozen=True, slots=True)
class Path:
    """The chain of nodes, each waiting for the one before, that is longest in one measure (`MEASURES`).

    Args:
        nodes: in order.
        length: the chain's sum in its measure.
        total: the sum over all nodes; `total / length` nodes' worth could run at once, at most and on average.
    """

    measure: str
    nodes: tuple[int, ...]
    length: float
    total: float

    @property
    def parallelism(self) -> float:
        return self.total / self.length if self.length else 1.0


@dataclass(frozen=True, slots=True)
class Dataflow:
    """What can be said of a graph before any plan.

    Args:
        rewrites: in the order of their nodes.
        paths: the longest chain in each measure.
        levels: for each node how many must run before it, one after the other (0: none).
    """

    rewrites: tuple[Rewrite, ...]
    paths: tuple[Path, ...]
    levels: tuple[int, ...]


def read_dataflow(graph: Graph, work: Sequence[Work]) -> Dataflow:
    """Versions, longest chains and levels.

    Args:
        work: of each node, in order (`work.count_work`).
    """
    waits = wait_table(graph)
    return Dataflow(list_rewrites(graph), tuple(longest_path(waits, work, measure) for measure in MEASURES), list_levels(waits))


def wait_table(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """For each node the nodes that make its inputs, ascending."""
    makers = producer_table(graph)
    return tuple(tuple(sorted({makers[name][0] for name in node.inputs if name in makers})) for node in graph.nodes)


def list_rewrites(graph: Graph) -> tuple[Rewrite, ...]:
    """Every new version of a storage, in the order of the nodes that make them."""
    values = {v.name: v for v in graph.values}
    versions: dict[tuple[str, int], str] = {(v.storage, v.version): v.name for v in graph.values}
    last_read: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            last_read[name] = i
    found = []
    for i, node in enumerate(graph.nodes):
        for name in node.outputs:
            if name and values[name].version > 0:
                found.append(_rewrite(values[name], i, last_read.get(versions.get((values[name].storage, values[name].version - 1), ""), -1)))
    return tuple(found)


def _rewrite(value: Value, node: int, last_read: int) -> Rewrite:
    return Rewrite(value.name, value.storage, value.version, value.kind, size_bytes(value), node, last_read)


def list_levels(waits: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """For each node the length in nodes of the longest chain before it."""
    levels: list[int] = []
    for before in waits:
        levels.append(1 + max((levels[j] for j in before), default=-1))
    return tuple(levels)


def longest_path(waits: Sequence[Sequence[int]], work: Sequence[Work], measure: str) -> Path:
    """The longest chain in one measure; among equals the one that is longer in the others.

    Args:
        waits: of `wait_table`.
        measure: one of `MEASURES`.
    """
    weights = [_weigh(w, measure) for w in work]
    best: list[tuple[float, float, float]] = []
    came: list[int] = []
    for i, before in enumerate(waits):
        last = max(before, key=best.__getitem__, default=-1)
        base = best[last] if last >= 0 else (0.0, 0.0, 0.0)
        a, b, c = weights[i]
        best.append((base[0] + a, base[1] + b, base[2] + c))
        came.append(last)
    at = max(range(len(best)), key=best.__getitem__, default=-1)
    nodes: list[int] = []
    while at >= 0:
        nodes.append(at)
        at = came[at]
    nodes.reverse()
    return Path(measure, tuple(nodes), sum(weights[i][0] for i in nodes), sum(w[0] for w in weights))


def _weigh(work: Work, measure: str) -> tuple[float, float, float]:
    if measure == "flops":
        return work.flops, work.bytes, 1
    return (work.bytes, work.flops, 1) if measure == "bytes" else (1, work.flops, work.bytes)


def count_widths(levels: Sequence[int]) -> tuple[int, ...]:
    """How many nodes each level has; their sum is the number of nodes."""
    widths = [0] * (max(levels, default=-1) + 1)
    for level in levels:
        widths[level] += 1
    return tuple(widths)


def phase_order(graph: Graph) -> tuple[Phase, ...]:
    """The phases that the graph has, in order."""
    present = {node.phase for node in graph.nodes}
    return tuple(phase for phase in Phase if phase in present)
