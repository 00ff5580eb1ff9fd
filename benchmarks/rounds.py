"""Timing several things beside each other: they take turns, so that what else the machine does falls on all alike. What Python collects is collected before, and left out
of it until they are done: a look at all that a compiler left behind would fall on whoever makes the next list."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles


@dataclass
class Times:
    """Of one contender: seconds of a step, one for each round; and CPU seconds of this process."""

    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


def time_rounds(
    runs: Mapping[str, Callable[[], object]], steps: int, meet: Callable[[], object], settle: Callable[[], object], may_go_on: Callable[[int, float], bool]
) -> dict[str, Times]:
    """Rounds in which each runs a few steps; who begins moves on by one from round to round.

    Args:
        steps: of each in each round.
        meet: before each turn; waits for the other ranks.
        settle: waits until what was asked for is done, here.
        may_go_on: told the rounds that are done and the seconds that they took; the same answer on every rank.
    """
    names, found = list(runs), {name: Times() for name in runs}
    gc.collect()
    gc.freeze()
    started, done = time.perf_counter(), 0
    while done == 0 or may_go_on(done, time.perf_counter() - started):
        turn = done % len(names)
        for name in names[turn:] + names[:turn]:
            meet()
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(steps):
                runs[name]()
            settle()
            found[name].seconds.append((time.perf_counter() - began) / steps)
            found[name].busy.append((time.process_time() - cpu) / steps)
        done += 1
    gc.unfreeze()
    return found


def spread(seconds: list[float]) -> float:
    """Interquartile range over the median; of less than two values 0."""
    if len(seconds) < 2:
        return 0.0
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median(seconds)
