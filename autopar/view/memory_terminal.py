"""The peak of a plan as text: what `autopar explain PLAN --memory` prints.

In: a `PeakReport`. Out: lines that never exceed the width; what a holder's list leaves out is counted in its last line.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from .explain_memory import ORDER, HeldRow, HolderReport, PeakReport, StagePeak
from .lines import Column, print_heading, print_line, print_rows, print_text, print_under_way
from .memory_chart import draw_chart, holder_letters
from .units import print_bytes, print_percent

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.plan_json import Json

TENSOR_ROWS, OTHER_ROWS = 5, 2
CHART_WIDTH = 100


def print_peak(report: PeakReport, console: Console) -> None:
    """Print who holds the peak.

    Args:
        console: a rich console.
    """
    from rich.text import Text

    used, limit = report.bytes, report.limit_bytes
    room = f"{print_bytes(limit - used)} left" if used <= limit else f"{print_bytes(used - limit)} too much"
    whose = "" if report.stage is None else f" of stage {report.stage}, which holds most of {len(report.stages)}"
    console.print(Text(f"{report.model} on {report.cluster}: memory of one device{whose}", style="bold"))
    print_line(console, f"peak  {print_bytes(used)} of {print_bytes(limit)}, {print_percent(used / limit)}: {room}")
    if report.node:
        print_line(console, f"when  {_print_when(report)}; moment {report.position + 1:,} of {len(report.moments):,}")
    names = [name for name in ORDER if any(h.name == name and h.bytes for m in report.moments for h in m.holders)]
    names += sorted({h.name for m in report.moments for h in m.holders if h.bytes} - set(names))
    letters = holder_letters(names)
    _print_flight(report, console)
    _print_chart(report, letters, console)
    print_heading(console, "Who holds it", f"at the peak; of {print_bytes(used)}")
    for holder in report.holders:
        if holder.bytes:
            _print_holder(holder, used, console)
    if not report.known:
        print_line(console, "the plan does not say which tensors these are: make it again with `autopar plan`", "yellow")
    for other in report.others:
        _print_other(other, report, console)
    _print_stages(report, console)
    print_under_way(console, report.under_way_bytes)
    print_line(console, "not counted: scratch space inside kernels, fragmentation, other programs", "dim")


def _print_when(peak: PeakReport | StagePeak) -> str:
    place = ", ".join(part for part in (f"in {peak.path}" if peak.path else "", peak.source) if part)
    return f"{peak.op} ({peak.node}), {peak.phase}{', ' + place if place else ''}"


def _print_other(peak: StagePeak, report: PeakReport, console: Console) -> None:
    """The peak of a stage that holds less: when, and the largest of each holder."""
    row = report.stages[peak.stage]
    print_heading(console, f"Stage {peak.stage}", f"peak of {print_bytes(peak.bytes)}, {print_percent(peak.bytes / report.limit_bytes)} of the limit")
    print_line(console, f"runs  {row.modules}; holds {row.in_flight:.3g} of {report.num_microbatches} microbatches")
    print_line(console, f"when  {_print_when(peak)}")
    for holder in peak.holders:
        if holder.bytes:
            _print_holder(holder, peak.bytes, console, OTHER_ROWS)


def _print_flight(report: PeakReport, console: Console) -> None:
    """How many microbatches' activations are held."""
    if report.stage is not None:
        row = report.stages[report.stage]
        print_line(console, f"runs  {row.modules}")
        print_line(console, f"holds {row.in_flight:.3g} of {report.num_microbatches} microbatches between their forward and their backward")
    elif report.num_microbatches > 1:
        print_line(console, f"holds one of {report.num_microbatches} microbatches at a time, and the sums over them")


def _print_stages(report: PeakReport, console: Console) -> None:
    if not report.stages:
        return
    print_heading(console, "Stages", "per device; activations of all that is in flight, at most")
    columns = (Column("modules"), *(Column(title, True, True) for title in ("in flight", "states", "activations", "peak")))
    shown = [
        (f"stage {r.number}: {r.modules}", f"{r.in_flight:.3g}", print_bytes(r.state_bytes), print_bytes(r.activation_bytes), print_bytes(r.peak_bytes))
        for r in report.stages
    ]
    print_rows(console, columns, shown)


def peak_text(report: PeakReport, width: int = 100) -> str:
    """The same as plain text.

    Args:
        width: in columns.
    """
    return print_text(lambda console: print_peak(report, console), width)


def peak_to_json(report: PeakReport) -> dict[str, Json]:
    """Everything as plain data (docs/cli.md, section explain)."""
    data = {**asdict(report), "phase_s": dict(report.phase_s)}
    moments = [
        {"node": m.node, "phase": m.phase.value, "bytes": m.bytes, "holders": {h.name: h.bytes for h in m.holders}} for m in report.moments
    ]
    return {"format": "autopar-memory-1", **data, "room_bytes": report.limit_bytes - report.bytes, "moments": moments}


def _print_chart(report: PeakReport, letters: dict[str, str], console: Console) -> None:
    shown = {name: letter for name, letter in letters.items() if name != "reserve"}
    lines = draw_chart(report.moments, shown, dict(report.phase_s), min(CHART_WIDTH, console.width - 2))
    if not lines:
        return
    print_heading(
        console,
        "Over the step",
        "phases as wide as their time, at least visible; ^ the peak" + ("; without the reserve" if shown != letters else ""),
    )
    for line in lines:
        print_line(console, line)
    print_line(console, "  ".join(f"{letter}={name}" for name, letter in reversed(shown.items())), "dim")


def _print_holder(holder: HolderReport, whole: int, console: Console, most: int = TENSOR_ROWS) -> None:
    print_line(console, f"{holder.name}  {print_bytes(holder.bytes)}, {print_percent(holder.bytes / whole)}", "bold")
    if holder.name == "reserve":
        print_line(console, "what the device and the allocator keep for themselves", "dim", indent=6)
    for row in holder.rows[:most]:
        _print_held(row, console)
    rest = holder.rows[most:]
    if rest:
        size = sum(row.bytes * len(row.tensors) for row in rest)
        print_line(console, f"and {sum(len(row.tensors) for row in rest):,} smaller, {print_bytes(size)}", "dim", indent=4)


def _print_held(row: HeldRow, console: Console) -> None:
    count = len(row.tensors)
    size = f"x{count}  {print_bytes(row.bytes * count)}, {print_bytes(row.bytes)} each" if count > 1 else print_bytes(row.bytes)
    print_line(console, f"{row.name}  {size}", indent=4)
    if row.split:
        shape, piece = ("x".join(map(str, dims)) or "scalar" for dims in (row.shape, row.local_shape))
        lies = f"{row.dtype} {shape}" + (f", {row.split}: {piece} here" if piece != shape else "" if row.split == "R" else f", {row.split}")
        print_line(console, f"{lies}; {row.why}", "dim", indent=6)
    else:
        print_line(console, row.why, "dim", indent=6)
