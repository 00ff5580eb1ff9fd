"""One name of a plan as text: what `autopar explain PLAN NAME` prints.

In: `NameReport`s. Out: lines that never exceed the width; what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from .explain_name import FITS, REFUSED, TOO_LARGE, NameReport, Neighbour, Priced, SolvedAgain
from .lines import print_line, print_text
from .units import print_bytes, print_ms, print_percent

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.plan_json import Json

NUM_REPORTS, NUM_NEIGHBOURS, NUM_COMMS, NUM_OTHERS = 12, 12, 12, 6


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
    print_line(console, ", ".join(text for what, text in report.about if what != "stage" or len(report.members) == 1))
    for chosen in report.chosen:
        size = "" if chosen.bytes is None else f"  {print_bytes(chosen.bytes)} on a rank"
        print_line(console, f"{chosen.what}: {chosen.split}{size}")
    if report.seconds is not None:
        turns = f" in a step, {report.times} microbatches" if report.times > 1 else ""
        reason = f"; {'of one: ' if turns else ''}{report.reason}" if report.reason else ""
        print_line(console, f"takes {print_ms(report.seconds)}{turns}{reason}")
    if report.again is not None:
        _print_again(report.again, console)
    else:
        _print_offers(report, console)
    for text in report.refused:
        print_line(console, f"refused: {text}", "dim")
    _print_neighbours(report.neighbours, console)
    for c in report.comms[:NUM_COMMS]:
        ends = f"{c.source} -> {c.target}" + (f" for {c.reader}" if c.reader else "")
        times = f" x{c.times}" if c.times > 1 else ""
        print_line(console, f"{c.kind} on {c.axis} ({c.phase}) of {c.value}: {ends}, {print_bytes(c.bytes)}{times}, {print_ms(c.seconds)}")
    if len(report.comms) > NUM_COMMS:
        print_line(console, f"and {len(report.comms) - NUM_COMMS} more communications", "dim")
    whose = " of its stage" if any(what == "stage" for what, _ in report.about) else ""
    print_line(console, f"holds {print_bytes(report.peak_bytes)} at the peak{whose}" if report.peak_bytes else f"holds nothing at the peak{whose}")


def _print_offers(report: NameReport, console: Console) -> None:
    if report.offers:
        each = " in one microbatch" if report.times > 1 else ""
        print_line(console, f"other strategies, priced with their reshards{each}, neighbours as they are:")
        for offer in report.offers:
            print_line(console, f"{offer.strategy}  {print_ms(offer.seconds)}", indent=4)
    if report.why_not:
        print_line(console, f"alternatives were not solved with: {report.why_not}", "dim")


def _print_again(again: SolvedAgain, console: Console) -> None:
    if not again.priced:
        print_line(console, f"nothing else can be chosen on mesh {again.mesh}")
        return
    alike = f", all {len(again.members)} alike" if len(again.members) > 1 else ""
    proven = "proven the best" if again.gap is not None and again.gap <= 1e-6 else f"proven to be within {print_percent(again.gap or 0.0)} of the best"
    gap = "by other figures than it was planned with, so nothing is proven" if again.gap is None else proven
    print_line(
        console, f"instead{alike}, all else chosen anew on mesh {again.mesh} (the step now takes {print_ms(again.step_s)}, {gap}):"
    )
    for row in again.priced:
        print_line(console, f"{row.what}: {_print_price(row, again)}", indent=4)
        if row.because and row.status == FITS:
            print_line(console, f"because of {'memory; ' if row.because == 'memory' else ''}{_print_kinds(row)}", indent=6)
        if row.free_extra_s is not None:
            print_line(console, f"without a memory limit: {_print_extra(row.free_extra_s, again.step_s)}", indent=6)
        if row.difference is not None and _matters(row.extra_s or 0.0, again.step_s):
            for cause in row.difference.causes:
                count = f"  x{cause.count}" if cause.count > 1 else ""
                print_line(console, f"{_print_signed(cause.seconds)} {cause.what}{count}", "dim", indent=8)
            if row.difference.causes and _matters(row.difference.rest_s, again.step_s):
                print_line(console, f"{_print_signed(row.difference.rest_s)} all else", "dim", indent=8)
    if again.others:
        more = f" and {len(again.others) - NUM_OTHERS} more" if len(again.others) > NUM_OTHERS else ""
        print_line(console, f"not solved with, as it looks less promising: {'; '.join(again.others[:NUM_OTHERS])}{more}", "dim", indent=4)


def _print_price(row: Priced, again: SolvedAgain) -> str:
    if row.status == REFUSED:
        return f"cannot be: {row.told}"
    if row.status != FITS:
        size = f"; the smallest plan found is {print_bytes(row.missing_bytes)} too large" if row.missing_bytes else ""
        return f"does not fit{size}" if row.status == TOO_LARGE else f"no plan that fits was found in {again.time_limit_s:g} s{size}"
    assert row.extra_s is not None and row.at_least_s is not None
    told = _print_extra(row.extra_s, again.step_s)
    if _matters(row.extra_s - row.at_least_s, again.step_s, 1e-3):
        told += f"; the best found in {again.time_limit_s:g} s, at least {_print_signed(row.at_least_s)}"
    if row.extra_s < 0 and _matters(row.extra_s, again.step_s):
        told += "; better than what was chosen: plan again" + (" with more --time-limit, or pin it" if again.gap is not None else "")
    return told


def _print_extra(extra_s: float, step_s: float) -> str:
    if not _matters(extra_s, step_s):
        return "no dearer"
    return f"{_print_signed(extra_s)} ({'+' if extra_s > 0 else '-'}{print_percent(abs(extra_s) / step_s)})"


def _matters(seconds: float, step_s: float, share: float = 1e-6) -> bool:
    return abs(seconds) > share * step_s


def _print_signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{print_ms(abs(seconds))}"


def _print_kinds(row: Priced) -> str:
    assert row.difference is not None
    return ", ".join(f"{cause.what} {_print_signed(cause.seconds)}" for cause in row.difference.kinds)


def _print_neighbours(neighbours: Sequence[Neighbour], console: Console) -> None:
    for n in neighbours[:NUM_NEIGHBOURS]:
        of_op = f"{n.op} {n.node} ({n.phase}): {n.strategy}" if n.node else "enters the step"
        tensor = f" {n.tensor}, {n.split};{' made by' if n.node else ''}" if n.role == "reads" else ""
        print_line(console, f"{n.role}{tensor} {of_op}")
    if len(neighbours) > NUM_NEIGHBOURS:
        print_line(console, f"and {len(neighbours) - NUM_NEIGHBOURS} more neighbours", "dim")
