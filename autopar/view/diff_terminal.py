"""Two plans compared, as text: what `autopar diff A B` prints.

In: a `PlanDiff`. Out: lines that never exceed the width. What makes the plans hard to compare comes first, then time and memory, then what
was decided otherwise; what is left out of a table is counted in its last line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import fsum
from typing import TYPE_CHECKING

from .diff_plans import CommChange, Figure, Lonely, PlanDiff, StrategyChange
from .lines import Column, fits, print_heading, print_line, print_rows, print_text
from .units import print_bytes, print_count, print_flops, print_ms, print_number, print_percent

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.plan_json import Json

PARAM_ROWS, STRATEGY_ROWS, NAME_ROWS = 40, 20, 8


def print_diff(diff: PlanDiff, files: tuple[str, str], console: Console) -> None:
    """Print what differs.

    Args:
        files: what the user calls the plans.
        console: a rich console; its width decides between tables and records.
    """
    if diff.same:
        step, peak = _find(diff, "step"), _find(diff, "peak memory")
        print_line(
            console, f"the plans are the same: {diff.name_a}, step {print_ms(step.a or 0)}, peak {print_bytes(peak.a or 0)}", indent=0
        )
        return
    for letter, file, name in zip("AB", files, (diff.name_a, diff.name_b)):
        print_line(console, f"{letter}  {file}: {name}", "bold", indent=0)
    _print_grounds(diff, console)
    for line in _verdict(diff):
        print_line(console, line, indent=0)
    _print_figures(diff, console)
    _print_layout(diff, console)
    _print_params(diff, console)
    _print_strategies(diff, console)
    _print_comms(diff, console)
    for letter, lonely in (("A", diff.only_a), ("B", diff.only_b)):
        _print_lonely(letter, lonely, console)


def diff_text(diff: PlanDiff, files: tuple[str, str] = ("A", "B"), width: int = 100) -> str:
    """The same as plain text.

    Args:
        width: in columns.
    """
    return print_text(lambda console: print_diff(diff, files, console), width)


def diff_to_json(diff: PlanDiff) -> dict[str, Json]:
    """Everything as plain data (docs/cli.md, section diff)."""
    return {"format": "autopar-diff-1", **asdict(diff)}


def _find(diff: PlanDiff, what: str) -> Figure:
    return next(figure for figure in diff.figures if figure.what == what)


def _verdict(diff: PlanDiff) -> tuple[str, str]:
    step, peak = _find(diff, "step"), _find(diff, "peak memory")
    a, b = step.a or 0.0, step.b or 0.0
    if a == b or not a or not b:
        pace = "B is as fast as A"
    else:
        pace = f"B is {max(a, b) / min(a, b):.3g} times as {'fast' if b < a else 'slow'} as A"
    times = f"step {print_ms(a)} -> {print_ms(b)} ({_change(a, b)})"
    return f"{pace}: {times}", f"peak {print_bytes(peak.a or 0)} -> {print_bytes(peak.b or 0)} ({_change(peak.a, peak.b)})"


def _change(a: float | None, b: float | None) -> str:
    """`-12.3 %`."""
    if a is None or b is None:
        return ""
    if a == b:
        return "same"
    return f"{'+' if b > a else '-'}{print_percent(abs(b - a) / abs(a))}" if a else "new"


def _print(figure: Figure, value: float | None) -> str:
    if value is None:
        return "unknown"
    if figure.unit == "per_s":
        return f"{print_count(value) if value >= 1e3 else print_number(value)}/s"
    return {"s": print_ms, "bytes": print_bytes, "flop": print_flops, "share": print_percent}[figure.unit](value)


def _difference(figure: Figure) -> str:
    if figure.a is None or figure.b is None or figure.a == figure.b:
        return ""
    size = abs(figure.b - figure.a)
    return f"{'+' if figure.b > figure.a else '-'}" + (
        f"{print_number(size * 100)} points" if figure.unit == "share" else _print(figure, size)
    )


def _print_grounds(diff: PlanDiff, console: Console) -> None:
    for fact in diff.grounds:
        print_line(console, f"not the same {fact.what}: {fact.a} | {fact.b}", "yellow")
    if not diff.same_graph:
        print_line(
            console, "the graphs differ, so nodes are compared by module, phase, op and place among their like, tensors by name", "dim"
        )


def _print_figures(diff: PlanDiff, console: Console) -> None:
    averaged = "; of stages the average device and the fullest stage" if max(diff.num_stages) > 1 else ""
    print_heading(console, "Time and memory of a step", "predicted; memory per device at the peak, by holder" + averaged)
    columns = (Column("", told=True), *(Column(title, True, True) for title in ("A", "B", "B - A")), Column("", True))
    named = [(figure.what, figure) for figure in diff.figures if figure.a or figure.b] + [
        (f"peak, {holder.what}", holder) for holder in diff.holders
    ]
    print_rows(console, columns, [(name, _print(f, f.a), _print(f, f.b), _difference(f), _change(f.a, f.b)) for name, f in named])


def _print_layout(diff: PlanDiff, console: Console) -> None:
    print_heading(console, "How it is split")
    print_rows(console, (Column(""), Column("A", told=True), Column("B", told=True)), [(f.what, f.a, f.b) for f in diff.layout])
    if diff.summaries[0] != diff.summaries[1]:
        for letter, summary in zip("AB", diff.summaries):
            print_line(console, f"{letter}: {summary}", "italic")


def _print_params(diff: PlanDiff, console: Console) -> None:
    if not diff.num_params:
        return
    changed = len({name for row in diff.params for name in row.members})
    if not changed:
        print_heading(console, "Parameters", f"all {diff.num_params} lie alike, with gradients and optimizer states")
        _print_resized(diff, console)
        return
    print_heading(console, "Parameters that lie otherwise", f"{changed} of {diff.num_params}; bytes on one rank, of all xN")
    rows = [
        (
            r.name,
            f"x{len(r.members)}" if len(r.members) > 1 else "",
            ", ".join(r.roles),
            f"{r.a} -> {r.b}",
            f"{print_bytes(r.bytes_a)} -> {print_bytes(r.bytes_b)}",
        )
        for r in diff.params
    ]
    columns = (Column("name"), Column("", True), Column("of it"), Column("A -> B"), Column("bytes", True))
    print_rows(console, columns, rows[:PARAM_ROWS])
    if len(rows) > PARAM_ROWS:
        print_line(console, f"and {len(rows) - PARAM_ROWS} more rows: --json has all", "dim")
    _print_resized(diff, console)
    print_line(console, "S<dim> on an axis: equal chunks; S<dim>/<stride>: another digit; R replicated, P partial sum", "dim")


def _print_resized(diff: PlanDiff, console: Console) -> None:
    r = diff.resized
    if r.count:
        print_line(
            console,
            f"{r.count} lie along the same axes, which are of another size: {print_bytes(r.bytes_a)} -> {print_bytes(r.bytes_b)}"
            + (" on the ranks that hold them" if max(diff.num_stages) > 1 else " on a rank"),
        )


def _print_strategies(diff: PlanDiff, console: Console) -> None:
    changed = sum(row.count for row in diff.strategies)
    total = changed + diff.kept.count_a
    if not total:
        return
    if not changed:
        print_heading(console, "Strategies", f"all {total:,} nodes that both have decide alike")
    else:
        moved = fsum(row.seconds_b - row.seconds_a for row in diff.strategies)
        print_heading(
            console,
            "Nodes that work otherwise",
            f"{changed:,} of {total:,} that both have, {_signed_ms(moved)} of compute; the largest difference first",
        )
        rows = [_strategy_row(row) for row in diff.strategies[:STRATEGY_ROWS]]
        columns = (Column("module"), Column("op"), Column("phase"), Column("", True), Column("A -> B"), Column("compute", True))
        print_rows(console, columns, rows)
        rest = diff.strategies[STRATEGY_ROWS:]
        if rest:
            seconds = fsum(row.seconds_b - row.seconds_a for row in rest)
            print_line(
                console,
                f"and {sum(row.count for row in rest):,} nodes in {len(rest)} more rows, {_signed_ms(seconds)}: --json has all",
                "dim",
            )
    moved = diff.kept.seconds_b - diff.kept.seconds_a
    if diff.kept.count_a and abs(moved) > 1e-9:
        print_line(console, f"{diff.kept.count_a:,} nodes decide alike, {_signed_ms(moved)} of compute", "dim")
    for letter, count, seconds in (("A", diff.alone.count_a, diff.alone.seconds_a), ("B", diff.alone.count_b, diff.alone.seconds_b)):
        if count:
            print_line(console, f"{count:,} nodes only in {letter}, {print_ms(seconds)}", "dim")


def _strategy_row(row: StrategyChange) -> tuple[str, ...]:
    return (
        row.path or "the model itself",
        row.op,
        row.phase,
        f"x{row.count}",
        f"{row.a} -> {row.b}",
        _signed_ms(row.seconds_b - row.seconds_a),
    )


def _signed_ms(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{print_ms(abs(seconds))}" if seconds else "same"


def _print_comms(diff: PlanDiff, console: Console) -> None:
    if not diff.comms:
        return
    sums = [(fsum(getattr(row, f"seconds_{side}") for row in diff.comms), hidden) for side, hidden in zip("ab", diff.hidden_s)]
    stages = "of all stages together; " if max(diff.num_stages) > 1 else ""
    print_heading(console, "Communication", f"{stages}bytes: the larger of what a rank puts in and gets out")
    named = [(f"{row.kind} on {row.axis}, {row.phase}" if row.axis else f"{row.kind}, {row.phase}", row) for row in diff.comms]
    ends = [("all", [s for s, _ in sums]), ("hidden behind compute", [-h for _, h in sums]), ("exposed", [s - h for s, h in sums])]
    if not any(diff.hidden_s):
        ends = [("all, exposed", ends[0][1])]
    wide = [(name, *_cells(row, "a"), *_cells(row, "b"), _signed_ms(row.seconds_b - row.seconds_a)) for name, row in named]
    wide += [(name, "", "", print_ms(a), "", "", print_ms(b), _signed_ms(b - a)) for name, (a, b) in ends]
    titles = ("A count", "bytes", "time", "B count", "bytes", "time", "B - A")
    columns = (Column("kind, axis, phase"), *(Column(title, True, True) for title in titles))
    if not fits(console, columns, wide):
        columns = (Column("kind, axis, phase"), *(Column(title, True, True) for title in ("A", "B", "B - A")))
        wide = [(row[0], " ".join(t for t in row[1:4] if t), " ".join(t for t in row[4:7] if t), row[7]) for row in wide]
    print_rows(console, columns, wide)


def _cells(row: CommChange, side: str) -> tuple[str, str, str]:
    count = getattr(row, f"count_{side}")
    return (f"{count:,}", print_bytes(getattr(row, f"bytes_{side}")), print_ms(getattr(row, f"seconds_{side}"))) if count else ("-", "", "")


def _print_lonely(letter: str, lonely: Sequence[Lonely], console: Console) -> None:
    if not lonely:
        return
    print_heading(console, f"Only in {letter}", "tensors by name")
    for row in lonely:
        named = ", ".join(row.names[:NAME_ROWS])
        more = f", and {len(row.names) - NAME_ROWS} more" if len(row.names) > NAME_ROWS else ""
        print_line(console, f"{row.kind} x{row.count}{': ' if named else ''}{named}{more}")
