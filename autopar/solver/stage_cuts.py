"""Where to cut: an exact dynamic program over units and stages.

In: a table of what each segment of units costs as one stage or chunk, per unit the seconds of one forward, and what crosses where one cuts. Out: the cuts
whose slowest stage is fastest, and bounds that hold wherever one cuts.

    end of stage s >= the seconds of its segment + sum of the forward seconds of all units before it, and of what they receive at the cuts between them

(its microbatches and its update, after the fill; the drain of the stages before it may run beside its update). `bound_drain` adds

    end of stage i >= the loop seconds of the segment of any later stage s + sum of the forward seconds of all units before s
                      + sum of the backward seconds of all units from stage i to before s, and of what these receive of the stage after + the update of stage i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """What a stage or chunk of the units from `a` to before `b` receives, in seconds at least, at [a, b].

    Args:
        before_s, after_s: of the units before and of those after, in all turns together.
        forward_s, backward_s: of that what one forward waits for, and one backward.
    """

    before_s: np.ndarray
    after_s: np.ndarray
    forward_s: np.ndarray
    backward_s: np.ndarray

    @property
    def step_s(self) -> np.ndarray:
        """In all turns together."""
        return self.before_s + self.after_s


NOTHING = Crossings(*(np.zeros((1, 1)),) * 4)


def least_crossings(rows: Sequence[Crossings]) -> Crossings:
    """Of each figure the least."""
    return Crossings(*(np.minimum.reduce([getattr(row, name) for row in rows]) for name in ("before_s", "after_s", "forward_s", "backward_s")))


def receive_table(num_units: int, source: int, targets: Sequence[int], seconds: float) -> np.ndarray:
    """At [a, b] `seconds` where units from `a` to before `b` receive a value: its source is not one of them, one of its targets is."""
    first, last = np.arange(num_units + 1)[:, None], np.arange(num_units + 1)[None, :]
    reads = np.zeros((num_units + 1, num_units + 1), dtype=bool)
    for target in targets:
        reads |= (first <= target) & (target < last)
    return np.where(reads & ~((first <= source) & (source < last)), seconds, 0.0)


def _least_fills(forward: np.ndarray, num_stages: int) -> list[np.ndarray]:
    """Of each stage: seconds until the first forward has come to unit `a`, at [a], at least, if the stage begins there; infinite where it cannot.

    Args:
        forward: of one microbatch through the units from `a` to before `b` as one stage, at [a, b].
    """
    forward = np.where(some_units(len(forward) - 1), forward, np.inf)
    found = [np.where(np.arange(len(forward)) == 0, 0.0, np.inf)]
    while len(found) < num_stages:
        found.append((found[-1][:, None] + forward).min(axis=0))
    return found


def sum_segments(row: Sequence[float]) -> np.ndarray:
    """Seconds of the units from `a` to before `b`, at [a, b]."""
    total = np.concatenate([[0.0], np.cumsum(row)])
    return total[None, :] - total[:, None]


def some_units(num_units: int) -> np.ndarray:
    """True at [a, b] where there are units from `a` to before `b`."""
    return np.arange(num_units + 1)[:, None] < np.arange(num_units + 1)[None, :]


def choose_cuts(tables: Sequence[np.ndarray]) -> tuple[int, ...] | None:
    """The first unit of the second and every later stage, such that the slowest segment is fastest; of equal ones the most even. None: there are none.

    Args:
        tables: of each stage the seconds of the units from `a` to before `b`, at [a, b]; infinite where these may not be its units.
    """
    count = len(tables[0]) - 1
    rows = [np.where(some_units(count), table, np.inf) for table in tables]
    best, squares = rows[0][0], rows[0][0] ** 2  # best[k]: of the first k units on the stages so far, each with one at least
    chosen: list[np.ndarray] = []
    for cost in rows[1:]:
        worst = np.maximum(best[:, None], cost)
        low = worst.min(axis=0)
        ties = np.where(worst <= low * (1 + 1e-9), squares[:, None] + cost**2, np.inf)
        pick = ties.argmin(axis=0)
        chosen.append(pick)
        best, squares = low, ties.min(axis=0)
    if not np.isfinite(best[count]):
        return None
    cuts: list[int] = []
    end = count
    for pick in reversed(chosen):
        end = int(pick[end])
        cuts.append(end)
    return tuple(reversed(cuts))


def bound_chunks(tables: Sequence[np.ndarray], fill_s: Sequence[float], num_stages: int, crossings: Crossings = NOTHING) -> float:
    """No cuts into chunks, of which each stage runs several in turn, give a step that is faster.

    A stage runs all its chunks, after as many chunks as there are stages before it have run their first forward; a chunk has at least one unit. The
    slowest stage takes at least the average of all, and at least the largest unit.

    Args:
        tables: of each chunk, as in `choose_cuts`, at least.
    """
    count = len(fill_s)
    if len(tables) > count:
        return float(np.inf)
    rows = [np.where(some_units(count), table, np.inf) for table in tables]
    least = rows[0][0]  # least[k]: the sum over all chunks so far, of the first k units
    for cost in rows[1:]:
        least = (least[:, None] + cost).min(axis=0)
    fill = [float(row.min()) for row in _least_fills(sum_segments(fill_s) + crossings.forward_s, num_stages)]
    alone = np.min([np.diagonal(table, 1) for table in tables], axis=0)
    return max((float(least[count]) + float(np.sum(fill))) / num_stages, float(np.max(alone, initial=0.0)))


def bound_turns(
    segments: np.ndarray, fill_s: Sequence[float], loop_s: Sequence[float], once_s: Sequence[float], drain_s: Sequence[float], cuts: Sequence[int], num_stages: int,
    crossings: Crossings = NOTHING,
) -> float:  # fmt: skip
    """No step of these cuts into chunks is faster: stage s runs the chunks s, s + num_stages, ... in turn.

    It begins when its first chunk's first input has come through the chunks before, and its last backward goes back through them; then they do what
    they do once.

    Args:
        segments: seconds of a step, at least.
        fill_s, loop_s, once_s, drain_s: per unit, of one forward, of all turns, of what is done once, of one backward, each as if only it counted.
    """
    ends = list(zip((0, *cuts), (*cuts, len(segments) - 1)))
    forward, backward = sum_segments(fill_s) + crossings.forward_s, sum_segments(drain_s) + crossings.backward_s
    turns = sum_segments(loop_s) + crossings.step_s
    fill, loop, drain = ([float(table[a, b]) for a, b in ends] for table in (forward, turns, backward))
    once = [sum(once_s[a:b]) for a, b in ends]
    after = [sum(once[s::num_stages]) for s in range(num_stages)]
    found = 0.0
    for s in range(num_stages):
        own = sum(float(segments[a, b]) for a, b in ends[s::num_stages])
        back = 0.0
        for before in reversed(range(s)):
            back += drain[before]
            own = max(own, sum(loop[s::num_stages]) + back + after[before])
        found = max(found, sum(fill[:s]) + own)
    return found


def bound_cuts(tables: Sequence[np.ndarray], fill_s: Sequence[float], crossings: Crossings = NOTHING) -> float:
    """No cuts give a step that is faster.

    Args:
        tables: of each stage, as in `choose_cuts`: seconds of a step, at least.
        fill_s: per unit, of one forward, at least.
    """
    count = len(fill_s)
    before = _least_fills(sum_segments(fill_s) + crossings.forward_s, len(tables))
    rows = [np.where(some_units(count), table + fill[:, None], np.inf) for table, fill in zip(tables, before)]
    best = rows[0][0]
    for cost in rows[1:]:
        best = np.maximum(best[:, None], cost).min(axis=0)
    return float(best[count])


def bound_drain(
    tables: Sequence[np.ndarray], fill_s: Sequence[float], loop_s: Sequence[float], once_s: Sequence[float], drain_s: Sequence[float],
    crossings: Crossings = NOTHING,
) -> float:  # fmt: skip
    """`bound_cuts`, with the drain: what a stage does once begins when its own last backward is over, which waits for those of all later stages.

    Not for schedules that split the backward.

    Args:
        tables: of each stage, as in `choose_cuts`: seconds of a step, at least.
        fill_s: per unit, of one forward, at least.
        loop_s, once_s, drain_s: of all turns, of what is done once, and of one backward, at least, each as if only it counted.
    """
    count, steps = len(fill_s), 12
    fills = _least_fills(sum_segments(fill_s) + crossings.forward_s, len(tables))
    own = [np.where(some_units(count), table + fill[:, None], np.inf) for table, fill in zip(tables, fills)]
    loop, tail, back = sum_segments(loop_s) + crossings.step_s, sum_segments(once_s), sum_segments(drain_s) + crossings.backward_s

    def reaches(most: float) -> bool:
        """Some cuts may give a step of so many seconds: `owed` is the least that is still to run when the turns of the last stage so far are over."""
        owed = np.where(own[0][0] <= most, tail[0] + back[0], np.inf)
        for seconds, fill in zip(own[1:], fills[1:]):
            waits = np.maximum(tail, owed[:, None])
            owed = np.where((seconds <= most) & (loop + fill[:, None] + waits <= most), waits + back, np.inf).min(axis=0)
        return bool(np.isfinite(owed[count]))

    low = bound_cuts(tables, fill_s, crossings)
    high = low + float(loop[0, -1] + tail[0, -1]) + float(np.max(crossings.step_s)) * len(tables)
    if reaches(low) or not reaches(high):
        return low
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return low
