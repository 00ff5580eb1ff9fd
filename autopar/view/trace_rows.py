"""The rows that people read of a step's opportunities: equal things of equal layers are one row with a count.

In: `Opportunities`. Out: rows for the terminal and the page. Invariant: rows of one table partition what they sum, so their counts, FLOPs and
bytes add up to the totals of the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from ..graph.graph import value_table
from ..graph.node import Phase
from ..graph.opportunities.dataflow import Path, Rewrite
from ..graph.opportunities.find import Opportunities
from ..graph.opportunities.reach import Reach
from ..graph.opportunities.span_run import AFTER_LAST, Sync, sync_place
from ..graph.tensor import Kind
from .fold import fold_names

_REDUCES = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class SyncRow:
    """Synchronisations of one kind and cause.

    Args:
        subject: what is brought into place: `parameter gradients`, `activations`.
        phase: of the readers, "" for the end of the step.
        reason: why; for sums, which ops contract.
        places: (source line or module where no line is known, count), the most first.
        modules: (module, equal layers folded; count), the most first.
        bytes: of all of them, whole.
    """

    kind: str
    subject: str
    phase: str
    reason: str
    places: tuple[tuple[str, int], ...]
    modules: tuple[tuple[str, int], ...]
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """Nodes of one module (equal layers folded) in one phase."""

    module: str
    phase: str
    count: int
    flops: float
    bytes: int


@dataclass(frozen=True, slots=True)
class VersionRow:
    """Storages of one kind that are rewritten at one line."""

    what: str
    version: int
    count: int
    bytes: int
    source: str
    phase: str


def sync_rows(found: Opportunities, reach: Reach) -> tuple[SyncRow, ...]:
    """The synchronisations of one factor, the most bytes first."""
    values = value_table(found.graph)
    groups: dict[tuple[str, str, str, str], list[Sync]] = {}
    for sync in reach.syncs:
        phase = found.graph.nodes[sync.reader].phase.value if sync.reader != AFTER_LAST else ""
        reason = "" if sync.kind in _REDUCES else sync.reason
        groups.setdefault((sync.kind, _subject(values[sync.value].kind, phase), phase, reason), []).append(sync)
    rows = [_sync_row(found, key, syncs) for key, syncs in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.kind, row.subject, row.phase, row.reason)))


def _sync_row(found: Opportunities, key: tuple[str, str, str, str], syncs: list[Sync]) -> SyncRow:
    kind, subject, phase, reason = key
    nodes = [sync_place(found.graph, sync) for sync in syncs]
    places = Counter("" if n is None else n.source or n.path or n.op for n in nodes)
    modules = Counter(n.path for n in nodes if n is not None and n.path)
    folds = [(fold.name, sum(list(modules.values())[k] for k in fold.members)) for fold in fold_names(list(modules), list(modules.values()))]
    if kind in _REDUCES:
        ops = Counter(short_op(n.op) for n in nodes if n is not None)
        reason = f"summed over by {', '.join(op for op, _ in ops.most_common())}: each rank holds a part"
    folded = tuple(sorted(folds, key=lambda fold: -fold[1]))
    return SyncRow(kind, subject, phase, reason, tuple(places.most_common()), folded, len(syncs), sum(s.bytes for s in syncs))


def _subject(kind: Kind, phase: str) -> str:
    if kind is Kind.GRAD:
        return "parameter gradients"
    if kind is Kind.ACTIVATION:
        return "gradients of activations" if phase == Phase.BACKWARD.value else "activations" if phase == Phase.FORWARD.value else "values"
    return {Kind.LOSS: "the loss", Kind.PARAM: "parameters", Kind.OPTIM: "optimizer states", Kind.BUFFER: "buffers", Kind.BATCH: "inputs"}[kind]


def short_op(op: str) -> str:
    """`aten.mm.default` as `mm`."""
    return op.split(".")[1] if op.count(".") else op


def module_rows(found: Opportunities, nodes: Iterable[int]) -> tuple[ModuleRow, ...]:
    """Nodes by module and phase, in the order of their first node; layers that do the same are one row."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i in nodes:
        node = found.graph.nodes[i]
        groups.setdefault((node.path, node.phase.value), []).append(i)
    sums = [(len(g), fsum(found.work[i].flops for i in g), sum(found.work[i].bytes for i in g)) for g in groups.values()]
    keys = [(phase, *amount) for (_, phase), amount in zip(groups, sums)]
    rows = []
    for fold in fold_names([path for path, _ in groups], keys):
        phase, count, flops, size = keys[fold.members[0]]
        times = len(fold.members)
        rows.append(ModuleRow(fold.name or "the model itself", phase, count * times, flops * times, size * times))
    return tuple(rows)


def path_rows(found: Opportunities, path: Path) -> tuple[ModuleRow, ...]:
    """A chain by module, the longest part in its measure first."""

    def part(row: ModuleRow) -> float:
        return {"flops": row.flops, "bytes": row.bytes, "nodes": row.count}[path.measure]

    return tuple(sorted(module_rows(found, path.nodes), key=lambda row: -part(row)))


def version_rows(found: Opportunities) -> tuple[VersionRow, ...]:
    """Which storages are rewritten where, by kind and line, in the order of the first write; gradients last."""
    groups: dict[tuple[str, int, str, str], list[Rewrite]] = {}
    for rewrite in states_first(found.dataflow.rewrites):
        node = found.graph.nodes[rewrite.node]
        groups.setdefault((_what(rewrite), rewrite.version, node.source, node.phase.value), []).append(rewrite)
    return tuple(
        VersionRow(what, version, len(those), sum(r.bytes for r in those), source, phase)
        for (what, version, source, phase), those in groups.items()
    )  # fmt: skip


def states_first(rewrites: Iterable[Rewrite]) -> list[Rewrite]:
    """What stays from step to step, then gradients, which live in one."""
    return sorted(rewrites, key=lambda r: r.kind is Kind.GRAD)


def _what(rewrite: Rewrite) -> str:
    if rewrite.kind is Kind.GRAD:
        return "gradients"
    if rewrite.kind is Kind.PARAM:
        return "parameters"
    if rewrite.kind is Kind.OPTIM:
        return f"{rewrite.storage.partition(':')[0]} of the optimizer"
    return rewrite.storage.rpartition(".")[2] if rewrite.kind is Kind.BUFFER else rewrite.kind.value


def place_text(places: Sequence[tuple[str, int]], most: int = 6) -> str:
    """`model.py:29 x12, :31 x12, other.py:3`: a file is named once in a row."""
    told = []
    last = ""
    for place, count in places[:most]:
        file, colon, line = place.rpartition(":")
        known = bool(colon) and line.isdigit()
        told.append((f":{line}" if known and file == last else place or "the end of the step") + (f" x{count}" if count > 1 else ""))
        last = file if known else ""
    rest = sum(count for _, count in places[most:])
    return ", ".join(told) + (f", and {rest} more" if rest else "")


def start_text(reach: Reach, most: int = 2) -> str:
    """Where the copies of a factor start: `dim 0 of h.[0..11].up.weight`."""
    folds = fold_names(reach.starts, [""] * len(reach.starts))
    told = ", ".join(fold.name for fold in folds[:most])
    return told + (f", and {len(folds) - most} more" if len(folds) > most else "")


def size_text(reach: Reach) -> str:
    """`768`, `12 x12` for twelve copies of twelve, `3..64 x24` for copies of several sizes."""
    low, high = min(reach.sizes), max(reach.sizes)
    sizes = f"{low:,}" if low == high else f"{low:,}..{high:,}"
    return f"{sizes} x{len(reach.sizes)}" if len(reach.sizes) > 1 else sizes
