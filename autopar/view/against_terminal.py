"""A prediction beside a run as text: what `autopar simulate PLAN --against run.json` prints.

In: a plan, a run and their `Comparison`. Out: lines that never exceed the width. What makes the two not alike comes first.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ..cost.against import Comparison, Row
from ..cost.rows import machine_text
from ..graph.mesh import num_ranks
from .lines import Column, print_heading, print_line, print_rows
from .units import print_bytes, print_ms

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.plan import Plan
    from ..graph.plan_json import Json
    from ..graph.run import Run

_TIMES = (
    Column("what"), Column("predicted", True, True), Column("measured", True, True), Column("middle half", True, True), Column("error", True, True),
)  # fmt: skip
_BYTES = (*_TIMES[:3], Column("lowest .. highest rank", True, True), _TIMES[4])


def print_comparison(plan: Plan, run: Run, found: Comparison, console: Console) -> None:
    """Print predicted beside measured.

    Args:
        console: a rich console.
    """
    from rich.text import Text

    console.print(Text(f"{plan.model.name} on {plan.cluster.spec}: predicted and measured", style="bold"))
    print_line(console, f"run       {run.date}, {len(run.ranks)} ranks, {machine_text(run.machine)}, torch {run.machine.torch}")
    print_line(console, f"prices    {plan.cluster.source}")
    for note in found.notes:
        print_line(console, f"NOTE      {note}", "yellow")
    print_heading(console, "Seconds", f"of a step; measured: median over {found.num_steps} steps of each rank")
    print_rows(console, _TIMES, [_cells(row) for row in found.rows if row.unit == "s" and row.stage is None])
    for stage in range(plan.num_stages) if plan.pipeline is not None else ():
        print_heading(console, f"Stage {stage}", _print_stage(plan, stage))
        print_rows(console, _TIMES, [_cells(row) for row in found.rows if row.unit == "s" and row.stage == stage])
    print_heading(console, "Bytes", "of one device; measured: median over ranks")
    print_rows(console, _BYTES, [_cells(row, row.stage) for row in found.rows if row.unit == "bytes"])


def _print_stage(plan: Plan, stage: int) -> str:
    """Which ranks it is, and what they run."""
    assert plan.pipeline is not None
    size = num_ranks(plan.assignment.mesh)
    first, last = stage * size, (stage + 1) * size - 1
    return f"{f'ranks {first} to {last}' if size > 1 else f'rank {first}'}: {', '.join(plan.pipeline.stages[stage].modules)}"


def _cells(row: Row, stage: int | None = None) -> tuple[str, ...]:
    show = print_ms if row.unit == "s" else print_bytes
    measured = row.measured
    return (
        f"{'  ' if row.part else ''}{'' if stage is None else f'stage {stage}: '}{row.what}",
        "-" if row.predicted is None else show(row.predicted),
        "-" if measured is None else show(measured.median),
        "-" if measured is None else f"{show(measured.low)} .. {show(measured.high)}",
        "-" if row.error is None else f"{row.error:+.1%}",
    )


def comparison_to_json(found: Comparison) -> Json:
    """The same for machines; seconds and bytes, errors as shares."""
    rows = []
    for row in found.rows:
        measured = None if row.measured is None else asdict(row.measured)
        said = {"group": row.group, "stage": row.stage, "what": row.what, "part": row.part, "unit": row.unit}
        rows.append({**said, "predicted": row.predicted, "measured": measured, "error": row.error})
    return {"notes": list(found.notes), "num_steps": found.num_steps, "rows": rows}
