"""`autopar profile`: measures this machine's CPU as ranks will use it, and the loopback link between them.

In: the numbers of ranks to measure at. Out: `ProfileRows` (`cost.rows` saves and loads them). Ranks contend: 4 on 2 cores reach half of
what 2 reach, so for each number that many processes are started and all measure at the same time, between barriers; the slowest
counts, as a step waits for its slowest rank. Each process of several runs one thread, as torchrun sets it (OMP_NUM_THREADS=1).

Links. all_gather of a few bytes and of many; with the ring formula of `cost.model` (time = launch + (n-1) latency + (n-1)/n bytes /
bandwidth) the two give latency and bandwidth. Processes talk over loopback only; each is stopped by its own handle.
"""

from __future__ import annotations

import datetime
import os
import platform
import socket
import tempfile
import time
from collections.abc import Callable
from typing import Any

from ..errors import RankError
from .rows import ComputeRow, LinkRow, ProfileRows

_MATMULS = {"float32": (256, 512, 768), "bfloat16": (256, 512), "float64": (256, 512)}
_COPY_BYTES = 32 * 2**20  # well beyond a core's share of cache
_SMALL, _LARGE = 64, 4 * 2**20  # bytes that each rank brings to the gather
_BUDGET_S = 0.25  # of repeating one thing
_TIMEOUT_S = 90.0


def measure_cpu(ranks: tuple[int, ...] = (1, 2, 4), report: Callable[[str], None] = lambda line: None) -> ProfileRows:
    """Measure this machine; takes about 10 s a number of ranks.

    Args:
        ranks: how many processes run at once, each number in turn.
        report: is told what happens.
    Raises:
        RankError: the processes did not finish; says which and why.
    """
    import torch

    compute, links = [], []
    for count in ranks:
        report(f"measuring {count} {'process' if count == 1 else 'processes at once'}")
        found = _measure_ranks(count)
        flops = tuple((dtype, min(f["flops_per_s"][dtype] for f in found)) for dtype in _MATMULS)
        row = ComputeRow(count, flops, min(f["memory_bytes_per_s"] for f in found), max(f["launch_s"] for f in found))
        compute.append(row)
        if count > 1:
            links.append(_fit_link(count, max(f["small_s"] for f in found), max(f["large_s"] for f in found), row.launch_s))
    date = datetime.date.today().isoformat()
    machine = f"{platform.machine()} with {os.cpu_count()} cores"
    return ProfileRows(date, machine, torch.__version__, os.cpu_count() or 1, tuple(compute), tuple(links))


def _fit_link(ranks: int, small_s: float, large_s: float, launch_s: float) -> LinkRow:
    """Latency and bandwidth from the times of a small and a large gather (ring formula)."""
    latency_s = max(1e-6, (small_s - launch_s) / (ranks - 1))
    sent = (ranks - 1) * _LARGE
    return LinkRow(ranks, latency_s, sent / max(1e-9, large_s - small_s))


def _measure_ranks(count: int) -> list[dict[str, Any]]:
    """Run `count` processes at once; what each found, in rank order."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory(prefix="autopar-profile-") as folder:
        args = (count, os.path.join(folder, "store"), results)
        processes = [context.Process(target=_measure_here, args=(rank, *args), daemon=True) for rank in range(count)]
        try:
            for process in processes:
                process.start()
            return _collect(count, processes, results)
        finally:
            for process in processes:
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(count: int, processes: list[Any], results: Any) -> list[dict[str, Any]]:
    import queue

    found: dict[int, dict[str, Any]] = {}
    stop = time.monotonic() + _TIMEOUT_S
    while len(found) < count:
        try:
            rank, row = results.get(timeout=0.5)
        except queue.Empty:
            gone = [r for r, p in enumerate(processes) if r not in found and p.exitcode is not None and p.exitcode != 0]
            if gone:
                raise RankError(f"profile: process {gone[0]} of {count} ended with code {processes[gone[0]].exitcode}") from None
            if time.monotonic() > stop:
                raise RankError(f"profile: {count - len(found)} of {count} processes did not answer within {_TIMEOUT_S:.0f} s") from None
            continue
        if "error" in row:
            raise RankError(f"profile: process {rank} of {count}: {row['error']}")
        found[rank] = row
    return [found[r] for r in range(count)]


def _measure_here(rank: int, count: int, store: str, results: Any) -> None:
    """One process: measures, and puts what it found into the queue."""
    try:
        results.put((rank, _measure_process(rank, count, store)))
    except Exception as error:  # told to the parent, which raises
        results.put((rank, {"error": f"{type(error).__name__}: {error}"}))


def _measure_process(rank: int, count: int, store: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    if count == 1:
        return _measure_compute(lambda: None)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = _loopback_name()  # of this process only, before gloo looks
    timeout = datetime.timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count, timeout=timeout)
    try:
        found = _measure_compute(dist.barrier)
        found["small_s"] = _time_gather(_SMALL, count, 200)
        found["large_s"] = _time_gather(_LARGE, count, 8)
        dist.barrier()
        return found
    finally:
        dist.destroy_process_group()


def _loopback_name() -> str:
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "lo")


def _measure_compute(barrier: Callable[[], object]) -> dict[str, Any]:
    """Matmul rate of each dtype, memory bandwidth, launch: all processes start each of them together."""
    import torch

    flops = {}
    for dtype, sizes in _MATMULS.items():
        best = 0.0
        for n in sizes:
            x = torch.ones(n, n, dtype=getattr(torch, dtype))
            out = torch.empty_like(x)
            barrier()
            best = max(best, 2 * n**3 / _time(lambda: torch.mm(x, x, out=out)))
        flops[dtype] = best
    big, other = torch.ones(_COPY_BYTES // 4), torch.ones(_COPY_BYTES // 4)
    barrier()
    copy_s = _time(lambda: other.copy_(big))
    barrier()
    add_s = _time(lambda: torch.add(big, other, out=other))
    small = torch.ones(8)
    barrier()
    launch_s = _time(lambda: torch.add(small, small), inner=500)
    # the mean rate of a copy (2 transfers) and an add (3)
    return {"flops_per_s": flops, "memory_bytes_per_s": 5 * _COPY_BYTES / (copy_s + add_s), "launch_s": launch_s}


def _time(run: Callable[[], object], inner: int = 1) -> float:
    """Mean seconds of one run: one to warm up, then for `_BUDGET_S`.

    The mean, not the median: where ranks outnumber cores, most short runs are not interrupted and a few wait for the others.
    """
    run()
    count, begin = 0, time.perf_counter()
    while count < 3 or time.perf_counter() < begin + _BUDGET_S:
        for _ in range(inner):
            run()
        count += 1
    return (time.perf_counter() - begin) / (count * inner)


def _time_gather(size: int, count: int, repeats: int) -> float:
    """Mean seconds of an all_gather to which each rank brings `size` bytes; every rank repeats equally often."""
    import torch
    import torch.distributed as dist

    piece, whole = torch.zeros(size // 4), torch.empty(size // 4 * count)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    gather(whole, piece)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        gather(whole, piece)
    return (time.perf_counter() - begin) / repeats
