"""Tables for people: what `verify` and `demo` found."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..view.units import print_bytes, print_ms

if TYPE_CHECKING:
    from rich.console import Console

    from ..demo.run import DemoResult
    from ..graph.plan import Plan
    from ..verify import VerifyReport


def print_report(report: VerifyReport, console: Console) -> None:
    """The errors of each kind, the largest first named."""
    from rich.table import Table

    split = "; ".join(f"{axis}: {' + '.join(names) or 'replicated'}" for axis, names in report.labels)
    console.print(f"{report.model} on {report.cluster}, mesh {report.mesh}" + (f" ({split})" if split else ""), markup=False)
    plans = f"; the chosen plan and {report.random_plans} random ones" if report.random_plans else ""
    console.print(f"{report.num_ranks} ranks in one process against plain PyTorch, float64, {report.steps} steps{plans}", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title, side in (("compared", "left"), ("tensors", "right"), ("largest error", "right"), ("of its scale", "right"), ("", "left")):
        table.add_column(title, justify=side)  # type: ignore[arg-type]
    for kind in report.kinds:
        verdict = "[green]ok[/]" if kind.relative.relative <= report.tolerance else "[bold red]WRONG[/]"
        table.add_row(kind.kind, f"{kind.num_tensors:,}", f"{kind.absolute.absolute:.1e}", f"{kind.relative.relative:.1e}", verdict)
    console.print(table)
    for kind in report.kinds:
        worst = kind.relative
        told = f"{worst.name}, step {worst.step}{', ' + worst.plan if worst.plan else ''}" if worst.relative else "none: all are equal"
        console.print(f"worst {kind.kind}: {told}", style="dim", markup=False, soft_wrap=True)
    console.print(
        f"within {report.tolerance:g} of the scale of each tensor (the larger of its own largest magnitude and 1/1000 of the largest in its kind)",
        style="dim",
    )


def print_demo_plan(plan: Plan, data_parallel_bytes: int, console: Console) -> None:
    """The plan, and why it cannot be plain data parallelism."""
    from ..view.terminal import print_plan

    limit, peak = plan.cluster.memory_bytes, max(plan.cost.peak_bytes)
    verdict = "does not fit" if data_parallel_bytes > limit else "fits too"
    console.print()
    print_plan(plan, console)
    console.print()
    console.print(
        f"Limit per device {print_bytes(limit)}: plain data parallelism needs {print_bytes(data_parallel_bytes)} and {verdict}; this plan needs "
        f"{print_bytes(peak)}.",
        style="bold",
    )
    console.print()


def print_demo(result: DemoResult, console: Console) -> None:
    """Losses side by side, bytes beside what was predicted, and where the files are."""
    from statistics import median

    from rich.table import Table

    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", title="Loss at each step", title_justify="left", title_style="bold")
    for title in ("step", f"{len(result.measured)} processes", "plain PyTorch", "difference"):
        table.add_column(title, justify="right")
    for number, row in enumerate(result.losses):
        table.add_row(str(number), f"{row.distributed:.6f}", f"{row.plain:.6f}", f"{row.distributed - row.plain:+.1e}")
    console.print(table)
    later = result.losses[1:] or result.losses
    took = median(row.distributed_s for row in later)
    console.print(
        f"step: predicted {print_ms(result.plan.cost.step_s)}, measured {print_ms(took)} (median, {os.cpu_count()} cores); one process of one thread alone "
        f"{print_ms(median(row.plain_s for row in later))}",
        style="dim",
    )
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", title="Bytes on each rank", title_justify="left", title_style="bold")
    table.add_column("rank", justify="right")
    kinds = (("param", "parameters"), ("grad", "gradients"), ("optim", "optimizer state"))
    for _, name in kinds:
        table.add_column(name, justify="right")
        table.add_column("predicted", justify="right")
    for rank, (measured, predicted) in enumerate(zip(result.measured, result.predicted)):
        table.add_row(str(rank), *(f"{row[kind]:,}" for kind, _ in kinds for row in (measured, predicted)))
    console.print(table)
    console.print()
    for name, what in (("plan.json", "the plan"), ("plan.html", "the plan as a page: open it in a browser"), ("program/", "the program; autopar run starts it")):
        console.print(f"wrote {result.folder.rstrip('/')}/{name}  {what}", soft_wrap=True, markup=False)
