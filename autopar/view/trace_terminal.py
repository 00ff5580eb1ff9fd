"""A step's opportunities as text: what `autopar trace` prints.

In: `Opportunities`. Out: lines that never exceed the width. Every number is a total of the report or a row of it; what is left out of a
table is counted in its last line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph.graph import count_params
from ..graph.opportunities.dataflow import Path, count_widths, phase_order
from ..graph.opportunities.find import SMALL_SHARE, Opportunities
from ..graph.opportunities.reach import Reach
from ..graph.work import Work, total_work
from .lines import Column, fits, print_heading, print_line, print_rows, print_text
from .trace_rows import ModuleRow, path_rows, place_text, size_text, start_text, sync_rows, version_rows
from .units import print_bytes, print_count, print_flops, print_number, print_percent

if TYPE_CHECKING:
    from rich.console import Console

PATH_ROWS = 6
SYNC_FACTORS = 6
SYNC_ROWS = 4
NARROW = 1.5  # a step whose FLOPs run at most so many at once is one chain: the room is inside its tensors


def print_opportunities(found: Opportunities, console: Console) -> None:
    """Print what a step offers.

    Args:
        console: a rich console; its width decides between tables and records.
    """
    _print_head(found, console)
    _print_factors(found, console)
    _print_syncs(found, console)
    _print_splittable(found, console)
    _print_waiting(found, console)
    _print_versions(found, console)


def opportunities_text(found: Opportunities, width: int = 100) -> str:
    """The same as plain text.

    Args:
        width: in columns.
    """
    return print_text(lambda console: print_opportunities(found, console), width)


def _print_head(found: Opportunities, console: Console) -> None:
    from rich.text import Text

    graph, total = found.graph, total_work(found.work)
    console.print(Text(f"{graph.name}: what the step offers, before any plan", style="bold"))
    facts = [f"{print_count(count_params(graph))} parameters", *([found.precision] if found.precision else []), f"{len(graph.nodes):,} nodes"]
    print_line(console, f"model  {', '.join(facts)}")
    print_line(console, f"work   {print_flops(total.flops)}, {print_bytes(total.bytes)} read and written, on one device")
    phases = phase_order(graph)
    if len(phases) > 1:
        parts = [total_work([w for n, w in zip(graph.nodes, found.work) if n.phase is phase]) for phase in phases]
        print_line(console, "       " + ", ".join(f"{p.value} {print_flops(w.flops)} {print_bytes(w.bytes)}" for p, w in zip(phases, parts)))
    if found.unknown:
        print_line(console, f"no rule for {', '.join(found.unknown)}: kept whole, FLOPs counted as 0", "yellow")


def _share(reach: Reach, total: Work) -> tuple[float, float]:
    return reach.work.flops / (total.flops or 1.0), reach.work.bytes / (total.bytes or 1)


def _large(found: Opportunities) -> tuple[Sequence[Reach], Sequence[Reach]]:
    """The factors that cover at least 1 % of either, and the others."""
    total = total_work(found.work)
    large = [r for r in found.reaches if max(_share(r, total)) >= SMALL_SHARE]
    return large, [r for r in found.reaches if max(_share(r, total)) < SMALL_SHARE]


def _print_factors(found: Opportunities, console: Console) -> None:
    total = total_work(found.work)
    large, small = _large(found)
    print_heading(console, "How far each factor runs", "if it alone is split: the share that it divides, and where ranks must synchronise")
    columns = [Column("factor"), *(Column(title, True, True) for title in ("size", "of FLOPs", "of bytes", "syncs: bytes"))]
    rows = [(r.name, size_text(r), *(print_percent(share) for share in _share(r, total)), _sync_text(r)) for r in large]
    with_starts = [(*row, start_text(reach, 1)) for row, reach in zip(rows, large)]
    if fits(console, [*columns, Column("starts at")], with_starts):
        columns, rows = [*columns, Column("starts at")], with_starts
    print_rows(console, columns, rows)
    if small:
        names = sorted({r.name for r in small})
        told = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        print_line(console, f"and {len(small)} that cover less than 1 % of both: {told}", "dim")
    print_line(console, "shares overlap: a matmul counts for each factor that may split it; bytes are those of the whole tensors", "dim")


def _sync_text(reach: Reach) -> str:
    return f"{len(reach.syncs):,}: {print_bytes(sum(s.bytes for s in reach.syncs))}" if reach.syncs else "never"


def _print_syncs(found: Opportunities, console: Console) -> None:
    print_heading(console, "Where each must synchronise")
    large, small = _large(found)
    for reach in large[:SYNC_FACTORS]:
        print_line(console, f"{reach.name} {size_text(reach)}, {start_text(reach, 1)}" + ("" if reach.syncs else ": nowhere"))
        rows = sync_rows(found, reach)
        for row in rows[:SYNC_ROWS]:
            when = f" ({row.phase})" if row.phase else " (end of the step)"
            print_line(console, f"{row.kind} x{row.count}  {print_bytes(row.bytes)}  {row.subject}{when} at {place_text(row.places)}", indent=4)
            print_line(console, row.reason + (f"; in {place_text(row.modules, 2)}" if row.modules else ""), "dim", indent=6)
        if len(rows) > SYNC_ROWS:
            rest = rows[SYNC_ROWS:]
            kinds = f"{len(rest)} kinds" if len(rest) > 1 else "one kind"
            print_line(console, f"and {sum(r.count for r in rest)} more of {kinds}, {print_bytes(sum(r.bytes for r in rest))}", "dim", indent=4)
    if len(large) > SYNC_FACTORS or small:
        rest = len(large) + len(small) - min(len(large), SYNC_FACTORS)
        print_line(console, f"and for {rest} more factor{'s' if rest > 1 else ''}: --html and --json have all", "dim")


def _print_splittable(found: Opportunities, console: Console) -> None:
    split = found.splittable
    print_heading(console, f"On {split.num_ranks} ranks", f"{print_percent(split.flops_share)} of FLOPs and {print_percent(split.bytes_share)} of bytes can be divided")
    for kept in split.kept:
        times = f" x{kept.count}" if kept.count > 1 else ""
        print_line(console, f"kept whole: {kept.op}{times}, {print_percent(kept.flops_share)} of FLOPs, {print_percent(kept.bytes_share)} of bytes, {kept.source}")
        print_line(console, kept.reason, "dim", indent=4)
    if not split.kept:
        print_line(console, "no op with more than 1 % of either is kept whole", "dim")


def _print_waiting(found: Opportunities, console: Console) -> None:
    flow = found.dataflow
    print_heading(console, "What must wait for what", "the longest chain against all work")
    columns = (Column("measured in"), Column("all", True, True), Column("longest chain", True, True), Column("at once", True, True))
    print_rows(console, columns, [_path_row(path) for path in flow.paths])
    widths = count_widths(flow.levels)
    mean = len(flow.levels) / max(1, len(widths))
    print_line(console, f"{len(widths):,} nodes deep; {max(widths, default=0):,} side by side at most, {print_number(mean)} on average", "dim")
    path = flow.paths[0]
    if path.parallelism < NARROW:
        print_line(console, "the FLOPs are nearly one chain: what can be divided is the tensors, not the order of the ops")
    print_line(console, "the longest chain in FLOPs, by module:")
    rows = path_rows(found, path)
    shown = [(r.module, r.phase, f"{r.count:,}", print_flops(r.flops), print_percent(r.flops / (path.length or 1.0))) for r in rows[:PATH_ROWS]]
    if len(rows) > PATH_ROWS:
        rest = _sum_rows(rows[PATH_ROWS:])
        shown.append((f"{len(rows) - PATH_ROWS} others", "", f"{rest.count:,}", print_flops(rest.flops), print_percent(rest.flops / (path.length or 1.0))))
    print_rows(console, (Column("module"), Column("phase"), Column("nodes", True, True), Column("FLOPs", True), Column("of it", True)), shown)


def _sum_rows(rows: Sequence[ModuleRow]) -> ModuleRow:
    return ModuleRow("", "", sum(r.count for r in rows), sum(r.flops for r in rows), sum(r.bytes for r in rows))


def _path_row(path: Path) -> tuple[str, str, str, str]:
    if path.measure == "bytes":
        return "bytes", print_bytes(path.total), print_bytes(path.length), print_number(path.parallelism)
    if path.measure == "nodes":
        return "nodes", f"{path.total:,.0f}", f"{path.length:,.0f}", print_number(path.parallelism)
    return "FLOPs", print_count(path.total), print_count(path.length), print_number(path.parallelism)


def _print_versions(found: Opportunities, console: Console) -> None:
    rows = version_rows(found)
    if not rows:
        return
    print_heading(console, "What is rewritten", "each write makes a new version of its storage")
    columns = (Column("storages"), Column("count", True), Column("bytes", True), Column("versions"), Column("phase"), Column("where"))
    shown = []
    merged: dict[tuple[str, int, str], list[tuple[str, int, int]]] = {}
    for row in rows:
        merged.setdefault((row.what, row.version, row.phase), []).append((row.source, row.count, row.bytes))
    for (what, version, phase), those in merged.items():
        places = sorted(((source or "no line known", count) for source, count, _ in those), key=lambda place: -place[1])
        before = f"@{version - 1} -> " if what != "gradients" or version > 1 else ""
        shown.append((what, f"{sum(c for _, c, _ in those):,}", print_bytes(sum(b for *_, b in those)), f"{before}@{version}", phase, place_text(places if len(places) > 1 else [(places[0][0], 1)], 2)))
    print_rows(console, columns, shown)
