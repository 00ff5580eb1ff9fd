"""Orders: a schedule as rows of integers, for those who count over many of them.

In: a `Schedule` of compute actions, or rows made by `schedules`. Out: an `Order`, from which the schedule can be made again. With M
microbatches and S stages the forward of stage s on microbatch m is s*M + m; its backward (full, or for the input alone) is S*M higher, its
backward for the weights 2*S*M higher. So a table over actions is a list, and making 65 536 actions takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ScheduleError
from .schedule import COMPUTE, Action, ActionKind, Schedule


@dataclass(frozen=True, slots=True)
class Order:
    """A schedule's lists as integers.

    Args:
        name, num_microbatches, rank_of: as of `Schedule`.
        rows: rank -> its list.
        split: the backwards that leave the weights to a later action.
    """

    name: str
    num_microbatches: int
    rank_of: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    split: frozenset[int] = frozenset()

    @property
    def num_stages(self) -> int:
        return len(self.rank_of)


def order_of(schedule: Schedule) -> Order:
    """The order of a schedule without sends.

    Raises:
        ScheduleError: it has sends and receives.
    """
    count = schedule.num_microbatches
    size = schedule.num_stages * count
    base = {ActionKind.F: 0, ActionKind.B: size, ActionKind.I: size, ActionKind.W: 2 * size}
    split = set()
    rows = []
    for rank, actions in enumerate(schedule.actions):
        row = []
        for action in actions:
            if action.kind not in COMPUTE:
                cure = "expected F, B, I and W alone: take the schedule before lower_sends"
                raise ScheduleError(f"{schedule.name}: rank {rank} has {action}; {cure}")
            code = base[action.kind] + action.stage * count + action.microbatch
            row.append(code)
            if action.kind is ActionKind.I:
                split.add(code)
        rows.append(tuple(row))
    return Order(schedule.name, count, schedule.rank_of, tuple(rows), frozenset(split))


def schedule_of(order: Order) -> Schedule:
    """The schedule of an order."""
    count = order.num_microbatches
    size = order.num_stages * count

    def action_of(code: int) -> Action:
        turn, place = divmod(code, size)
        stage, microbatch = divmod(place, count)
        if turn == 1:
            return Action(stage, ActionKind.I if code in order.split else ActionKind.B, microbatch)
        return Action(stage, ActionKind.W if turn else ActionKind.F, microbatch)

    return Schedule(order.name, count, order.rank_of, tuple(tuple(map(action_of, row)) for row in order.rows))
