"""Timing: median and spread of many runs.

In: what to run, a budget. Out: a `Sample`. Warm-up first. One repeat is as many runs as fill a seventh of the budget, so that it is long
beside the clock. The median counts; where ranks outnumber cores the mean, since most repeats are not interrupted and a few wait for the
others. On CUDA a repeat lies between two events of the current stream, so that only what the device does is timed, as in a step whose host
runs ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_REPEATS = 7
_MIN_REPEATS = 3
_STRETCH_S = 0.1  # that is timed at once of what runs for seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of one run, interquartile range over the median, repeats; `beside_s` of the compute beside, alone."""

    seconds: float
    spread: float
    repeats: int
    beside_s: float = 0.0


Clock = Callable[[Callable[[], object], int], float]  # seconds of so many runs


def clock_cpu(run: Callable[[], object], inner: int) -> float:
    """Seconds of `inner` runs."""
    begin = time.perf_counter()
    for _ in range(inner):
        run()
    return time.perf_counter() - begin


def clock_cuda(run: Callable[[], object], inner: int) -> float:
    """Seconds between two events of the current stream around `inner` runs."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(inner):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3  # milliseconds


def measure(
    runs: tuple[Callable[[], object], ...],
    clock: Clock,
    budget_s: float,
    crowded: bool = False,
    agree: Callable[[float], float] = lambda seconds: seconds,
) -> tuple[Sample, ...]:
    """Run each again and again, for about so many seconds in all; repeat by repeat in turns, so that what disturbs one disturbs all.

    Args:
        crowded: ranks outnumber cores.
        agree: makes one number of every rank's, where all must run equally often (a collective).
    """
    for run in runs:
        clock(run, 1)
    once = [max(1e-9, agree(clock(run, 1))) for run in runs]
    each_s = budget_s / len(runs)
    inner = [max(1, int(each_s / _REPEATS / s)) for s in once]
    repeats = max(_MIN_REPEATS, min(_REPEATS, int(budget_s / sum(o * n for o, n in zip(once, inner)))))
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for k, run in enumerate(runs):
            found[k].append(clock(run, inner[k]) / inner[k])
    return tuple(sample(times, crowded) for times in found)


def sustain(run: Callable[[], object], clock: Clock, seconds: float) -> Sample:
    """Run it without a pause for so many seconds; what the last third of them says. A GPU lowers its clock within tenths of a second where its board would draw more than it may."""
    inner, found = max(1, int(_STRETCH_S / max(1e-9, clock(run, 3) / 3))), []
    spent = 0.0
    while spent < seconds or len(found) < 3 * _MIN_REPEATS:
        found.append(clock(run, inner) / inner)
        spent += found[-1] * inner
    return sample(found[-(len(found) // 3) :])


def sample(times: list[float], crowded: bool = False) -> Sample:
    """What stands for the repeats, and their spread."""
    import numpy as np

    low, middle, high = (float(q) for q in np.percentile(times, (25, 50, 75)))
    middle = max(middle, 1e-9)  # a clock's tick
    return Sample(max(float(np.mean(times)), 1e-9) if crowded else middle, (high - low) / middle, len(times))


def clock_of(device: Any) -> Clock:
    """The clock of a `torch.device`."""
    return clock_cuda if device.type == "cuda" else clock_cpu
