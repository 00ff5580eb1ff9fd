"""Tables for people: what `verify`, `profile` and `demo` found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..view.units import print_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from ..cost.rows import ProfileRows
    from ..verify import VerifyReport


def print_report(report: VerifyReport, console: Console) -> None:
    """The errors of each kind, the largest first named."""
    from rich.table import Table

    split = "; ".join(f"{axis}: {' + '.join(names) or 'replicated'}" for axis, names in report.labels)
    console.print(f"{report.model} on {report.cluster}, mesh {report.mesh}" + (f" ({split})" if split else ""), markup=False)
    console.print(f"{report.num_ranks} ranks in one process against plain PyTorch, float64, {report.steps} steps", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title, side in (("compared", "left"), ("tensors", "right"), ("largest error", "right"), ("of its scale", "right"), ("worst", "left"), ("", "left")):
        table.add_column(title, justify=side, overflow="fold")  # type: ignore[arg-type]
    for kind in report.kinds:
        worst = kind.relative
        passed = worst.relative <= report.tolerance
        name = f"{worst.name}, step {worst.step}" if worst.relative else "all equal"
        table.add_row(
            kind.kind, f"{kind.num_tensors:,}", f"{kind.absolute.absolute:.1e}", f"{worst.relative:.1e}", name,
            "[green]ok[/]" if passed else "[bold red]WRONG[/]",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"within {report.tolerance:g} of the scale of each tensor (the larger of its own largest magnitude and 1/1000 of the largest in its kind)",
        style="dim",
    )


def print_profile(rows: ProfileRows, path: str, console: Console) -> None:
    """What each of so many processes reached."""
    from rich.table import Table

    console.print(f"{rows.machine}, torch {rows.torch}, {rows.date}; figures of each process, all at once", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    dtypes = [dtype for dtype, _ in rows.compute[0].flops_per_s]
    for title in ("processes", *(f"{d} GFLOP/s" for d in dtypes), "memory GB/s", "launch us", "hop us", "link GB/s"):
        table.add_column(title, justify="right")
    links = {link.ranks: link for link in rows.links}
    for row in rows.compute:
        rates = dict(row.flops_per_s)
        link = links.get(row.ranks)
        ends = (f"{link.latency_s * 1e6:.0f}", f"{link.bandwidth_bytes_per_s / 1e9:.2f}") if link else ("", "")
        table.add_row(
            str(row.ranks), *(f"{rates[d] / 1e9:.1f}" for d in dtypes), f"{row.memory_bytes_per_s / 1e9:.1f}", f"{row.launch_s * 1e6:.1f}", *ends
        )  # fmt: skip
    console.print(table)
    console.print(f"wrote {path}", soft_wrap=True, markup=False)


def size_text(measured: int, predicted: int) -> str:
    """`12.4 MiB (predicted 12.4 MiB)`."""
    return f"{print_bytes(measured)} (predicted {print_bytes(predicted)})"
