"""`autopar profile`: which device, which ranks, which file; then a table of what was found. The measuring is in `cost.profile`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import OptionsError
from .asked import check_file_place
from .outcome import Outcome, Talk

if TYPE_CHECKING:
    from rich.console import Console

    from ..cost.profile import Launched
    from ..cost.rows import CommRow, OpRow, ProfileRows
    from ..runtime.launch import TorchrunEnv

DEVICES = ("auto", "cpu", "cuda")


def measure_machine(ranks: str | None, device: str, quick: bool, limit_s: float | None, output: str | None, say: Talk) -> Outcome:
    """`autopar profile`: with the processes of torchrun where it started this one, else with processes of its own (cpu) or none (cuda)."""
    counts = read_ranks(ranks if ranks is not None else "1,2,4")
    if device not in DEVICES:
        raise OptionsError(f"--device: expected one of {', '.join(DEVICES)}, found {device!r}")
    if limit_s is not None and not (limit_s > 0 and math.isfinite(limit_s)):
        raise OptionsError(f"--time-limit: expected a positive number of seconds, found {limit_s:g}")
    check_file_place(output, "-o")
    import torch

    from ..api import PROFILE_PATH
    from ..cost import profile
    from ..runtime.launch import read_torchrun_env

    launched = _launched(read_torchrun_env())
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise OptionsError(
            "--device cuda: torch finds no GPU here (torch.cuda.is_available() is False); measure the cpu, or install torch for CUDA"
        )
    use_cuda = there and device != "cpu"
    if ranks is not None and (launched or use_cuda):
        raise OptionsError(
            f"--ranks {ranks}: only for processes that profile starts itself, on cpu; {'torchrun' if launched else 'a GPU'} has its own"
        )
    path = output or str(
        PROFILE_PATH.with_name(f"profile-{profile.file_word(torch.cuda.get_device_name())}.json") if use_cuda else PROFILE_PATH
    )
    if launched is not None:
        found = profile.measure_launched(launched, say, path, quick, limit_s, use_cuda)
        if found is None:  # another rank than the first, which tells it all
            return Outcome(lambda: {"path": path, "rank": launched.rank}, lambda console: None)
        rows = found
    elif use_cuda:
        rows = profile.measure_cuda(say, path, quick, limit_s)
    else:
        rows = profile.measure_cpu(counts, say, path, quick, limit_s)
    return Outcome(lambda: _profile_to_json(rows, path), lambda console: print_profile(rows, path, console))


def _launched(env: TorchrunEnv | None) -> Launched | None:
    """What torchrun told, as `cost.profile` takes it; None where torchrun did not start this process."""
    import os

    from ..cost.profile import Launched

    if env is None:
        return None
    return Launched(env.rank, env.local_rank, env.world_size, int(os.environ.get("LOCAL_WORLD_SIZE", env.world_size)))


def read_ranks(text: str) -> tuple[int, ...]:
    """`1,2,4`.

    Raises:
        OptionsError: it is not a list of positive numbers.
    """
    try:
        found = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise OptionsError(f"--ranks: expected positive whole numbers joined by commas, as in 1,2,4, found {text!r}")
    return found


def _profile_to_json(rows: ProfileRows, path: str) -> dict[str, Any]:
    from dataclasses import asdict

    failed = sum(row.seconds is None for row in (*rows.ops, *rows.comms))
    return {"path": path, "failed": failed, **asdict(rows)}


# --- for people -------------------------------------------------------------------------------------------------------------------


def print_profile(rows: ProfileRows, path: str, console: Console) -> None:
    """What each of so many processes reached, by family, and what could not be measured."""
    from ..cost.rows import disturbed_text, machine_text

    machine = rows.machine
    console.print(
        f"{machine_text(machine)}, torch {machine.torch}, Python {machine.python}; figures of the slowest process, all at once",
        markup=False,
    )
    console.print()
    _print_device(rows, console)
    console.print()
    _print_families(rows, console)
    if any(row.seconds is not None for row in rows.comms):
        console.print()
        _print_comms(rows, console)
    failed = [row for row in (*rows.ops, *rows.comms) if row.seconds is None]
    if failed:
        console.print()
        console.print(f"{len(failed)} could not be measured:", style="bold")
    for row in failed:
        console.print(f"  {_row_text(row)}: {row.error}", soft_wrap=True, markup=False)
    if disturbed := disturbed_text(rows):
        console.print()
        console.print(f"{disturbed}; delete {path} and measure again while nothing else does", soft_wrap=True, markup=False)
    console.print()
    state = "" if rows.finished else "; not finished: run it again to go on"
    console.print(f"wrote {path} ({len(rows.ops) + len(rows.comms):,} rows{state})", soft_wrap=True, markup=False)


def _row_text(row: OpRow | CommRow) -> str:
    from ..cost.rows import OpRow

    if isinstance(row, OpRow):
        return f"{row.family} {row.dtype} {' x '.join(map(str, row.shape))}, {row.ranks} at once"
    return f"{row.kind} of {row.num_bytes:,} bytes, groups of {row.group[0]} ranks {row.group[1]} apart" + (
        ", beside compute" if row.beside else ""
    )


def _table(*titles: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for k, title in enumerate(titles):
        table.add_column(title, justify="right" if k else "left")
    return table


def _print_device(rows: ProfileRows, console: Console) -> None:
    """What the roofline reads: best matmul rates, memory, launch; latency and bandwidth of the link."""
    from ..cluster import parse_cluster
    from ..cost.rows import measured_counts, measured_device, measured_link

    cluster = parse_cluster("cpu:1")  # its own figures are shown nowhere: only those that were measured
    dtypes = list(dict.fromkeys(r.dtype for r in rows.ops if r.family == "matmul" and r.seconds is not None))
    table = _table("processes", *(f"{d} GFLOP/s" for d in dtypes), "memory GB/s", "launch us", "hop us", "link GB/s")
    linked = {r.ranks for r in rows.comms if r.kind == "all_gather" and r.seconds is not None}
    for count in sorted({*measured_counts(rows), *linked}):
        cells = [""] * (len(dtypes) + 2)
        if count in measured_counts(rows):
            device = measured_device(rows, cluster.device, count)
            rates = dict(device.flops_per_s)
            there = {r.family for r in rows.ops if r.ranks == count and r.seconds is not None}
            cells = [f"{rates[d] / 1e9:.1f}" if d in rates and "matmul" in there else "" for d in dtypes]
            cells.append(f"{device.memory_bytes_per_s / 1e9:.1f}" if there & {"copy", "add_into"} else "")
            cells.append(f"{device.launch_s * 1e6:.1f}" if "launch" in there else "")
        link = measured_link(rows, cluster.inside, count) if count in linked else None
        ends = (f"{link.latency_s * 1e6:.0f}", f"{link.bandwidth_bytes_per_s / 1e9:.2f}") if link else ("", "")
        table.add_row(str(count), *cells, *ends)
    console.print(table)


def _print_families(rows: ProfileRows, console: Console) -> None:
    """Each family and dtype: the best rate at each number of processes."""
    from statistics import median

    from ..cost.rows import measured_counts, op_work

    counts = measured_counts(rows)
    table = _table("best rate, by processes", *(str(c) for c in counts), "", "shapes", "spread")
    for family, dtype in dict.fromkeys((r.family, r.dtype) for r in rows.ops if r.family != "launch"):
        good = [r for r in rows.ops if (r.family, r.dtype) == (family, dtype) and r.seconds is not None]
        if not good:
            continue
        unit = "GFLOP/s" if op_work(family, dtype, good[0].shape)[0] else "GB/s"
        best = []
        for count in counts:
            rates = [
                max(op_work(family, dtype, r.shape)) if unit == "GB/s" else op_work(family, dtype, r.shape)[0]
                for r in good
                if r.ranks == count
            ]
            times = [r.seconds for r in good if r.ranks == count]
            best.append(f"{max(w / s for w, s in zip(rates, times) if s) / 1e9:.1f}" if rates else "")
        table.add_row(f"{family} {dtype}", *best, unit, str(len({r.shape for r in good})), f"{median(r.spread for r in good):.0%}")
    console.print(table)


def _print_group(group: tuple[int, int], ranks: int) -> str:
    """`all 4`, `2 of 4, strided`."""
    return f"all {ranks}" if group[0] == ranks else f"{group[0]} of {ranks}{'' if group[1] == 1 else ', strided'}"


def _print_comms(rows: ProfileRows, console: Console) -> None:
    """Each collective by group: smallest and largest, and how much of it still costs beside compute."""
    from statistics import median

    from ..cost.lookup import exposed_share
    from ..cost.measured import measured_rows, meeting_seconds
    from ..cost.rows import MEETING

    table = _table("collective, group", "small us", "large ms", "GB/s", "costs beside", "spread")
    for kind, ranks, group in dict.fromkeys((r.kind, r.ranks, r.group) for r in rows.comms):
        at = sorted(
            (r for r in rows.comms if (r.kind, r.ranks, r.group) == (kind, ranks, group) and not r.beside and r.seconds is not None),
            key=lambda r: r.num_bytes,
        )
        if not at or at[-1].seconds is None or at[0].seconds is None:
            continue
        here = any(r.beside and (r.kind, r.ranks, r.group) == (kind, ranks, group) for r in rows.comms)
        share = exposed_share(rows, kind, group, ranks, at[-1].num_bytes) if here else None
        beside = f"{share.seconds:.0%}" if share else ""
        who = _print_group(group, ranks)
        ends = (f"{at[0].seconds * 1e6:.0f}", f"{at[-1].seconds * 1e3:.2f}", f"{at[-1].num_bytes / at[-1].seconds / 1e9:.2f}")
        table.add_row(f"{kind}, {who}", *ends, beside, f"{median(r.spread for r in at):.0%}")
    console.print(table)
    console.print(
        "small and large: the sizes measured; costs beside: the share of a large one that lengthens compute beside it", style="dim"
    )
    meetings = dict.fromkeys((r.ranks, r.group) for r in rows.comms if r.kind == MEETING and r.seconds is not None)
    told = []
    for ranks, group in meetings:
        measured = measured_rows(rows, ranks, 1e-9, 1e9)
        if measured is not None:
            told.append(f"{_print_group(group, ranks)} {meeting_seconds(measured, group) * 1e3:.2f} ms")
    if told:
        console.print(f"Longer after compute, where ranks wait for each other: {'; '.join(told)}")
