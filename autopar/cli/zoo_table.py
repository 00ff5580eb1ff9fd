"""The table of `autopar zoo`: a line as each model is done, then what failed, what is kept whole, and the totals.

In: `ZooRow`s. Out: lines for people, never narrower than their content (a pipe gets them whole), and one JSON object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..view.units import print_ms, print_percent

if TYPE_CHECKING:
    from rich.console import Console

    from ..zoo import ZooOptions, ZooRow

_RED, _GREEN, _DIM = "bold red", "green", "dim"
_LEAST = 9  # columns
CLOSE = 0.01  # a gap that is called closed


class ZooTable:
    """Knows the columns' widths. Lives for one run of the command."""

    def __init__(self, models: Sequence[str], options: ZooOptions) -> None:
        self._options = options
        self._total, self._done = len(models), 0
        verified = ["verified"] if options.verify else []
        plans = [word for cluster in options.plan_for for word in (cluster, "gap")]
        titles = ["model", "nodes", "trace s", "no row", "found", *plans, *verified, "FLOPs", "bytes", "s"]
        self._widths = [max(map(len, (*models, "model"))), *(max(_LEAST, len(t)) for t in titles[1:])]
        self._titles = titles

    def print_head(self, console: Console) -> None:
        """What the columns are."""
        ranks = "step of each plan, as predicted, and what a better one may save at most; share of the step's FLOPs and bytes that some strategy divides among 8 ranks"
        verified = f"; verified on {self._options.cluster} in float64" if self._options.verify else ""
        console.print(f"{self._total} models; {ranks}{verified}", soft_wrap=True, markup=False)
        self._print(console, [(title, _DIM) for title in self._titles], " " * len(self._count()))

    def print_row(self, row: ZooRow, console: Console) -> None:
        """One model."""
        self._done += 1
        if row.skipped:
            self._print(console, [(row.model, _DIM), (f"skipped: {row.skipped} is not installed", _DIM)], self._count())
            return
        failed = {p.stage for p in row.problems}
        cells = [(row.model, _RED if failed else ""), *self._trace_cells(row, failed)]
        plans = {plan.cluster: plan for plan in row.plans}
        for cluster in self._options.plan_for:
            plan = plans.get(cluster)
            cells.append((print_ms(plan.step_s), "") if plan else _missing(f"plan {cluster}" in failed))
            cells.append((print_percent(plan.gap), _RED if plan.gap > CLOSE else "") if plan else ("", ""))
        if self._options.verify:
            cells.append(("yes", _GREEN) if row.verified else _missing("verify" in failed, "NO"))
        for share in (row.flops_share, row.bytes_share):
            cells.append((print_percent(share), "") if share is not None else _missing("rules" in failed))
        self._print(console, [*cells, (f"{row.seconds:.0f}", _DIM)], self._count())

    def _trace_cells(self, row: ZooRow, failed: set[str]) -> list[tuple[str, str]]:
        if not row.num_nodes:
            return [_missing(bool(failed & {"load", "trace", "process"})), *[("", "")] * 3]
        lacking = [op for op in row.without_rows if op not in row.discovered]
        counts = (f"{len(row.without_rows)}", _RED if lacking else ""), (f"{len(row.discovered)}", "")
        return [(f"{row.num_nodes:,}", ""), (f"{row.trace_s:.1f}", ""), *counts]

    def _count(self) -> str:
        return f"{self._done:>{len(str(self._total))}}/{self._total}  "

    def _print(self, console: Console, cells: Sequence[tuple[str, str]], lead: str) -> None:
        from rich.text import Text

        line = Text(lead, style=_DIM)
        for k, ((text, style), width) in enumerate(zip(cells, self._widths)):
            line.append(text.ljust(width) if not k or len(cells) == 2 else text.rjust(width), style)
            line.append("  ")
        line.rstrip()
        console.print(line, soft_wrap=True)


def _missing(failed: bool, word: str = "failed") -> tuple[str, str]:
    return (word, _RED) if failed else ("-", _DIM)


def print_zoo_end(rows: Sequence[ZooRow], options: ZooOptions, seconds: float, console: Console) -> None:
    """What is kept whole, what failed, and the totals."""
    kept = [(row, k) for row in rows for k in row.kept]
    if kept:
        console.print("\nKept whole with more than 1 % of the FLOPs or bytes", style="bold")
    for row, k in kept:
        shares = f"{print_percent(k.flops_share)} of FLOPs, {print_percent(k.bytes_share)} of bytes"
        console.print(f"  {row.model}  {k.op}  {k.source}  {shares}: {k.reason}", soft_wrap=True, markup=False)
    lacking = [(row, op) for row in rows for op in row.without_rows if op not in row.discovered]
    if lacking:
        console.print("\nOps without a rule", style="bold")
    for row, op in lacking:
        console.print(f"  {row.model}  {op}", soft_wrap=True, markup=False)
    wide = [(row, plan) for row in rows for plan in row.plans if plan.gap > CLOSE]
    if wide:
        console.print(f"\nGap above {print_percent(CLOSE)}", style="bold")
    for row, plan in wide:
        console.print(f"  {row.model}  {plan.cluster}  {print_percent(plan.gap)} after {plan.wall_s:.0f} s", soft_wrap=True, markup=False)
    if any(row.problems for row in rows):
        console.print("\nFailed", style="bold red")
    for row in rows:
        for problem in row.problems:
            console.print(f"  {row.model}  {problem.stage}", soft_wrap=True, markup=False, style="bold")
            console.print("\n".join(f"    {line}" for line in problem.message.splitlines()), soft_wrap=True, markup=False)
    console.print(f"\n{summary_line(rows, options, seconds)}", style="bold", soft_wrap=True, markup=False)


def _totals(rows: Sequence[ZooRow], options: ZooOptions) -> dict[str, int]:
    return {
        "models": len(rows),
        "traced": sum(row.num_nodes > 0 for row in rows),
        "planned": sum(row.num_nodes > 0 and len(row.plans) == len(options.plan_for) for row in rows),
        "closed": sum(plan.gap <= CLOSE for row in rows for plan in row.plans),
        "verified": sum(row.verified is True for row in rows),
        "skipped": sum(bool(row.skipped) for row in rows),
        "failed": sum(bool(row.problems) for row in rows),
    }


def summary_line(rows: Sequence[ZooRow], options: ZooOptions, seconds: float) -> str:
    """`85 models: 83 traced, 83 planned for all of cpu:4, ..., 82 verified; 2 skipped (timm: vision.py:resnet, ...); 1 failed; 812 s`."""
    totals = _totals(rows, options)
    parts = [f"{totals['models']} models: {totals['traced']} traced"]
    if options.plan_for:
        parts.append(f"{totals['planned']} planned for {' and '.join(options.plan_for)}")
        parts.append(f"{totals['closed']} of {sum(len(row.plans) for row in rows)} plans within {print_percent(CLOSE)} of the bound")
    if options.verify:
        parts.append(f"{totals['verified']} verified")
    missing: dict[str, list[str]] = {}
    for row in rows:
        if row.skipped:
            missing.setdefault(row.skipped, []).append(row.model)
    names = "; ".join(f"{library} is not installed: {', '.join(models)}" for library, models in missing.items())
    parts.append(f"{totals['skipped']} skipped" + (f" ({names})" if names else ""))
    parts.append(f"{totals['failed']} failed")
    return f"{', '.join(parts)}; {seconds:,.0f} s"


def zoo_to_json(rows: Sequence[ZooRow], options: ZooOptions, seconds: float) -> dict[str, Any]:
    """Everything as JSON data."""
    return {"rows": [asdict(row) for row in rows], "totals": _totals(rows, options), "options": asdict(options), "seconds": seconds}
