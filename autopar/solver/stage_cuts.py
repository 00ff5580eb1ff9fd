"""Where to cut: an exact dynamic program over units and stages.

In: per unit the seconds of a step and of one forward. Out: the cuts whose slowest stage is fastest, and a bound that holds wherever one cuts.

    end of stage s >= sum of the step seconds of its units + sum of the forward seconds of all units before it

(its microbatches and its update, after the fill; the drain of the stages before it may run beside its update). `bound_drain` adds

    end of stage i >= sum of the loop seconds of the units of any later stage s + sum of the forward seconds of all units before s
                      + sum of the backward seconds of all units from stage i to before s + the update of stage i
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def choose_cuts(unit_s: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """The first unit of the second and every later stage, such that the largest sum of a stage is least; of equal ones the most even.

    Args:
        unit_s: per unit, at least as many as stages.
    """
    total = np.concatenate([[0.0], np.cumsum(unit_s)])
    count = len(unit_s)
    best = np.concatenate([[np.inf], total[1:]])  # best[k]: of the first k units on the stages so far, each with one at least
    squares = total**2
    chosen: list[np.ndarray] = []
    for _ in range(1, num_stages):
        worst = np.maximum(best[:, None], total[None, :] - total[:, None])
        spread = squares[:, None] + (total[None, :] - total[:, None]) ** 2
        fits = np.arange(count + 1)[:, None] < np.arange(count + 1)[None, :]
        worst = np.where(fits, worst, np.inf)
        low = worst.min(axis=0)
        ties = np.where(worst <= low * (1 + 1e-9), spread, np.inf)
        pick = ties.argmin(axis=0)
        chosen.append(pick)
        best, squares = low, ties.min(axis=0)
    cuts: list[int] = []
    end = count
    for pick in reversed(chosen):
        end = int(pick[end])
        cuts.append(end)
    return tuple(reversed(cuts))


def bound_chunks(step_s: Sequence[float], fill_s: Sequence[float], num_stages: int) -> float:
    """No cuts into chunks, of which each stage runs several in turn, give a step that is faster.

    A stage runs all its units, after as many chunks as there are stages before it have run their first forward; a chunk has at least one unit. The
    slowest stage takes at least the average of all, and at least the largest unit.
    """
    fill = np.concatenate([[0.0], np.cumsum(fill_s)])[:num_stages]
    return max((float(np.sum(step_s)) + float(np.sum(fill))) / num_stages, float(np.max(step_s, initial=0.0)))


def bound_cuts(step_s: Sequence[float], fill_s: Sequence[float], num_stages: int) -> float:
    """No cuts give a step that is faster.

    Args:
        step_s, fill_s: per unit, of a step and of one forward, at least.
    """
    total, before = (np.concatenate([[0.0], np.cumsum(row)]) for row in (step_s, fill_s))
    count = len(step_s)
    best = np.concatenate([[np.inf], total[1:]])
    fits = np.arange(count + 1)[:, None] < np.arange(count + 1)[None, :]
    cost = np.where(fits, total[None, :] - total[:, None] + before[:, None], np.inf)
    for _ in range(1, num_stages):
        best = np.maximum(best[:, None], cost).min(axis=0)
    return float(best[count])


def bound_drain(
    step_s: Sequence[float], fill_s: Sequence[float], loop_s: Sequence[float], once_s: Sequence[float], drain_s: Sequence[float], num_stages: int
) -> float:
    """`bound_cuts`, with the drain: what a stage does once begins when its own last backward is over, which waits for those of all later stages.

    Not for schedules that split the backward.

    Args:
        step_s, fill_s: per unit, of a step and of one forward, at least.
        loop_s, once_s, drain_s: of all turns, of what is done once, and of one backward, at least, each as if only it counted.
    """
    count, steps = len(step_s), 12
    step, fill, loop, once, drain = (np.concatenate([[0.0], np.cumsum(row)]) for row in (step_s, fill_s, loop_s, once_s, drain_s))
    fits = np.arange(count + 1)[:, None] < np.arange(count + 1)[None, :]
    own = np.where(fits, step[None, :] - step[:, None] + fill[:, None], np.inf)
    turns = loop[None, :] - loop[:, None] + fill[:, None]
    tail, back = once[None, :] - once[:, None], drain[None, :] - drain[:, None]

    def reaches(most: float) -> bool:
        """Some cuts may give a step of so many seconds: `owed` is the least that is still to run when the turns of the last stage so far are over."""
        owed = np.where(own[0] <= most, tail[0] + back[0], np.inf)
        for _ in range(1, num_stages):
            waits = np.maximum(tail, owed[:, None])
            owed = np.where((own <= most) & (turns + waits <= most), waits + back, np.inf).min(axis=0)
        return bool(np.isfinite(owed[count]))

    low = bound_cuts(step_s, fill_s, num_stages)
    high = low + float(loop[-1] + once[-1])
    if reaches(low) or not reaches(high):
        return low
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return low
