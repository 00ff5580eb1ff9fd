"""One name of a plan as text: what `autopar explain PLAN NAME` prints.

In: `NameReport`s. Out: lines that never exceed the width; what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from .explain_name import NameReport, Neighbour
from .lines import print_line, print_text
from .units import print_bytes, print_ms

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.plan_json import Json

NUM_REPORTS, NUM_NEIGHBOURS, NUM_COMMS = 12, 12, 12


def print_names(reports: Sequence[NameReport], console: Console) -> None:
    """Print each, an empty line between them.

    Args:
        console: a rich console.
    """
    for i, report in enumerate(reports[:NUM_REPORTS]):
        if i:
            console.print()
        _print_report(report, console)
    if len(reports) > NUM_REPORTS:
        console.print()
        rest = sum(len(r.members) for r in reports[NUM_REPORTS:])
        print_line(
            console, f"and {rest:,} more of {len(reports) - NUM_REPORTS:,} kinds: --json has all, or a narrower name", "dim", indent=0
        )


def names_text(reports: Sequence[NameReport], width: int = 100) -> str:
    """The same as plain text.

    Args:
        width: in columns.
    """
    return print_text(lambda console: print_names(reports, console), width)


def names_to_json(reports: Sequence[NameReport]) -> dict[str, Json]:
    """Everything as plain data (docs/cli.md, section explain)."""
    return {"format": "autopar-explain-1", "found": [{**asdict(r), "about": dict(r.about)} for r in reports]}


def _print_report(report: NameReport, console: Console) -> None:
    count = f"  x{len(report.members)}, all alike; the first is told" if len(report.members) > 1 else ""
    print_line(console, f"{report.sort} {report.name}{count}", "bold", indent=0)
    print_line(console, ", ".join(text for _, text in report.about))
    for chosen in report.chosen:
        size = "" if chosen.bytes is None else f"  {print_bytes(chosen.bytes)} on a rank"
        print_line(console, f"{chosen.what}: {chosen.split}{size}")
    if report.seconds is not None:
        print_line(console, f"takes {print_ms(report.seconds)}" + (f"; {report.reason}" if report.reason else ""))
    _print_offers(report, console)
    _print_neighbours(report.neighbours, console)
    for c in report.comms[:NUM_COMMS]:
        ends = f"{c.source} -> {c.target}" + (f" for {c.reader}" if c.reader else "")
        print_line(console, f"{c.kind} on {c.axis} ({c.phase}) of {c.value}: {ends}, {print_bytes(c.bytes)}, {print_ms(c.seconds)}")
    if len(report.comms) > NUM_COMMS:
        print_line(console, f"and {len(report.comms) - NUM_COMMS} more communications", "dim")
    print_line(console, f"holds {print_bytes(report.peak_bytes)} at the peak" if report.peak_bytes else "holds nothing at the peak")


def _print_offers(report: NameReport, console: Console) -> None:
    if report.offers:
        print_line(console, "other strategies, priced with their reshards, neighbours as they are:")
        for offer in report.offers:
            print_line(console, f"{offer.strategy}  {print_ms(offer.seconds)}", indent=4)
    for text in report.refused:
        print_line(console, f"refused: {text}", "dim")


def _print_neighbours(neighbours: Sequence[Neighbour], console: Console) -> None:
    for n in neighbours[:NUM_NEIGHBOURS]:
        of_op = f"{n.op} {n.node} ({n.phase}): {n.strategy}" if n.node else "enters the step"
        tensor = f" {n.tensor}, {n.split};{' made by' if n.node else ''}" if n.role == "reads" else ""
        print_line(console, f"{n.role}{tensor} {of_op}")
    if len(neighbours) > NUM_NEIGHBOURS:
        print_line(console, f"and {len(neighbours) - NUM_NEIGHBOURS} more neighbours", "dim")
