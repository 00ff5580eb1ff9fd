"""Sends: the pass that gives a schedule its sends and receives.

In: a schedule of compute actions. Out: the same lists with `SEND_F`, `RECV_F`, `SEND_B`, `RECV_B` where a value changes rank. A send stands
right after what made its value. A receive stands right before its first reader; but between two ranks messages arrive in the order of
sending, so what was sent earlier is received before it, even if it is read later. This cannot make a deadlock: whoever waits for a message
waits no less for those sent before it. Sends do not wait for their receives.

It moves no compute action.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import ScheduleError
from .check import check_schedule, messages_of, receive_of
from .schedule import COMPUTE, Action, Schedule


def lower_sends(schedule: Schedule) -> Schedule:
    """The schedule with its sends and receives.

    Raises:
        ScheduleError: it has some already, or it cannot run.
    """
    for rank, actions in enumerate(schedule.actions):
        for action in actions:
            if action.kind not in COMPUTE:
                raise ScheduleError(f"{schedule.name}: rank {rank} has {action} already; give the compute actions alone (`without_sends`)")
    check_schedule(schedule)
    arriving: dict[tuple[int, int], list[Action]] = {}  # (from rank, to rank) -> receives in the order of sending
    for rank, actions in enumerate(schedule.actions):
        for action in actions:
            message = messages_of(schedule, action)
            if message is not None:
                arriving.setdefault((rank, schedule.rank_of[message[1].stage]), []).append(message[1])
    link_of = {receive: (link, turn) for link, receives in arriving.items() for turn, receive in enumerate(receives)}
    taken = dict.fromkeys(arriving, 0)
    lists = []
    for actions in schedule.actions:
        row: list[Action] = []
        for action in actions:
            found = link_of.get(receive_of(action))
            if found is not None:
                link, turn = found
                row.extend(arriving[link][taken[link] : turn + 1])
                taken[link] = max(taken[link], turn + 1)
            row.append(action)
            message = messages_of(schedule, action)
            if message is not None:
                row.append(message[0])
        lists.append(tuple(row))
    return replace(schedule, actions=tuple(lists))
