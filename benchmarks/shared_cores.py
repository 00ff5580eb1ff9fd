"""What a pipeline waits where its ranks share cores: a schedule replayed with as many cores as there are.

In: a schedule, the seconds of each action on a core of its own, the seconds of each rank's update, the number of cores. Out: the shares of the step in which a rank waits
for others, on average. With a core for each rank that is the bubble. While more actions run than there are cores, each runs so much slower; what a rank waits is time that the others have more of. So a bubble
that was measured with more ranks than cores has something to be compared with. Messages take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autopar.graph.schedules.schedule import Action, Schedule, inputs_of

_REST = 1e-9  # of the shortest action: a rounding


@dataclass(frozen=True, slots=True)
class Waits:
    """Shares of a step, of the average rank.

    Args:
        messages: it waits for what its next action needs.
        all: these, and what it waits for the others after its update.
    """

    messages: float
    all: float


def share_of_waits(schedule: Schedule, seconds: Callable[[Action], float], update_s: Sequence[float], cores: int) -> Waits:
    """What ranks wait in a step that begins when all have ended the one before.

    Args:
        seconds: of an action, alone on a core; more than none.
        update_s: of each rank, after its last action.
    """
    todo = [list(row) for row in schedule.actions]
    left = [0.0] * len(todo)  # of what each rank runs now
    running: list[Action | None] = [None] * len(todo)
    ended: set[Action] = set()
    updating = [False] * len(todo)
    waits, works, now = [0.0] * len(todo), [0.0] * len(todo), 0.0
    while True:
        for rank, row in enumerate(todo):
            if left[rank] > 0:
                continue
            needed = inputs_of(row[0], schedule.num_stages) if row else ()
            if row and (not needed or ended.intersection(needed)):
                running[rank] = row.pop(0)
                left[rank] = seconds(running[rank])
            elif not row and not updating[rank]:
                updating[rank], left[rank] = True, update_s[rank]
        working = [rank for rank, rest in enumerate(left) if rest > 0]
        if not working:
            return Waits(sum(waits) / len(waits) / now, 1 - sum(works) / len(works) / now)
        speed = min(1.0, cores / len(working))
        step = min(left[rank] for rank in working)
        now += step / speed
        for rank, row in enumerate(todo):
            if rank not in working:
                waits[rank] += step / speed if row else 0.0
                continue
            works[rank] += step / speed
            left[rank] = left[rank] - step if left[rank] - step > _REST * step else 0.0
            if not left[rank] and running[rank] is not None:
                ended.add(running[rank])
                running[rank] = None
