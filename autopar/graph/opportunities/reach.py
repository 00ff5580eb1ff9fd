"""Reach: for every factor of a model, how much of the step it can divide and where it must synchronise.

In: a graph with its rules. Out: one `Reach` per factor that people would name: equal factors of equal layers are one (`heads`, 12 copies).
Invariant: the work of a reach is the sum over its nodes, each counted once; its syncs are those of its spans, none left out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..cuts import CutTable
from ..graph import Graph
from ..repeats import name_pattern, only_by_hand
from ..rule import Signature, Site
from ..work import Work, total_work
from .span_names import SpanName, name_spans
from .span_run import Held, SpanRun, Sum, Sync, build_tables, run_span
from .spans import FactorCuts, find_spans

# of many sizes along a network: one factor for people all the same
_BY_NAME = frozenset(("channels", "kernel", "space", "space: width", "space: height", "space: depth"))


@dataclass(frozen=True, slots=True)
class Reach:
    """How far one factor goes when it alone is split.

    Args:
        name: `batch`, `heads`; not unique: `features` starts at several places.
        starts: where each copy starts: `dim 0 of h.0.attn.weight`.
        sizes: of each copy, in the same order.
        nodes: that it divides, ascending.
        work: of these nodes.
        held: (value, how it lies) where it is split or Partial.
        syncs: every place where ranks must synchronise.
    """

    name: str
    starts: tuple[str, ...]
    sizes: tuple[int, ...]
    nodes: tuple[int, ...]
    work: Work
    held: tuple[tuple[str, Held], ...]
    syncs: tuple[Sync, ...]


def find_reaches(
    graph: Graph,
    sites: tuple[Site, ...],
    signatures: tuple[Signature, ...],
    cuts: CutTable,
    work: tuple[Work, ...],
    factor_cuts: tuple[FactorCuts, ...] | None = None,
) -> tuple[Reach, ...]:
    """Every factor of a graph, the one that covers most first.

    Args:
        sites, signatures, cuts, factor_cuts: see `find_spans`.
        work: of each node (`count_work`).
    """
    spans = find_spans(graph, sites, signatures, cuts, factor_cuts)
    tables = build_tables(graph, signatures)
    families: dict[tuple, list[tuple[SpanName, SpanRun]]] = {}
    for span, name in zip(spans, name_spans(graph, spans)):
        families.setdefault(_family(name, only_by_hand(graph.sequences)), []).append((name, run_span(tables, span)))
    total = total_work(work)
    found = [_join(members, work) for members in families.values()]

    def share(reach: Reach) -> tuple[float, str]:
        return -(reach.work.flops / (total.flops or 1) + reach.work.bytes / (total.bytes or 1)), reach.starts[0]

    return tuple(sorted(found, key=share))


def _family(name: SpanName, by_hand: Collection[str]) -> tuple:
    """What copies of one factor share: a name, and where they start but for the number of the layer."""
    if name.name in _BY_NAME:
        return (name.name,)
    lead, of, own = name.start.rpartition(" of ")
    (family, rest), _ = name_pattern(own, by_hand)
    pattern = lead + of + family + ".".join("#" if part.isdigit() else part for part in rest.split("."))
    return name.name, name.digit.size, pattern, name.digit.lower


def _join(members: list[tuple[SpanName, SpanRun]], work: tuple[Work, ...]) -> Reach:
    nodes = tuple(sorted({i for _, run in members for i in run.nodes}))
    held: dict[str, Held] = {}
    for _, run in members:
        for value, state in run.held:
            if value not in held or isinstance(state, Sum):  # where copies meet at a value, the one that leaves a Partial is told
                held[value] = state
    syncs = tuple(sync for _, run in members for sync in run.syncs)
    names = [name for name, _ in members]
    return Reach(
        names[0].name, tuple(n.start for n in names), tuple(n.digit.size for n in names), nodes,
        total_work([work[i] for i in nodes]), tuple(held.items()), syncs,
    )  # fmt: skip
