"""Delivery: whether the messages between stages arrive, each sent once and received once, and nobody waits for ever.

In: what each stage sends and receives, in order; the schedule that it comes from, of which rank r is stage r. Out: nothing, or a
`ProgramError` that shows the grid around the place. Sends do not wait; a receive waits for its send. A stage runs its list of actions,
then its update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ProgramError
from .check import AROUND
from .schedule import Schedule, print_schedule

Message = tuple[int, int, int, int]
"""(source, target, number, turn): turn -1 where it goes once a step."""


@dataclass(frozen=True, slots=True)
class Event:
    """A stage sends or receives.

    Args:
        sends: False: receives.
        place: of the action in the stage's list; the list's length for what follows all of them (the update).
    """

    sends: bool
    message: Message
    place: int


def check_delivery(schedule: Schedule, rows: Sequence[Sequence[Event]]) -> None:
    """Whether all messages arrive.

    Args:
        rows: for each stage what it sends and receives, in order.
    Raises:
        ProgramError: a message is sent or received alone, or twice, or stages wait for each other.
    """
    sent, received = (_collect(schedule, rows, sends) for sends in (True, False))
    for message in sorted(sent.keys() ^ received.keys()):
        lone = "is sent and never received" if message in sent else "is awaited and never sent"
        at = {**sent, **received}[message]
        raise _fail(schedule, f"{_print_message(message)} {lone}: see {_print_place(schedule, at)}", [at])
    stuck = _run(rows)
    if stuck:
        waits = [f"{_print_place(schedule, (s, event.place))} waits for {_print_message(event.message)}" for s, event in stuck]
        raise _fail(schedule, f"the stages would wait for each other: {'; '.join(waits)}", [(s, event.place) for s, event in stuck])


def _collect(schedule: Schedule, rows: Sequence[Sequence[Event]], sends: bool) -> dict[Message, tuple[int, int]]:
    """Message -> (stage, place) of its sends, or of its receives."""
    found: dict[Message, tuple[int, int]] = {}
    for stage, row in enumerate(rows):
        for event in row:
            if event.sends is not sends:
                continue
            if event.message in found:
                both = [found[event.message], (stage, event.place)]
                told = f"is {'sent' if sends else 'received'} twice, in {' and in '.join(_print_place(schedule, at) for at in both)}"
                raise _fail(schedule, f"{_print_message(event.message)} {told}", both)
            found[event.message] = (stage, event.place)
    return found


def _run(rows: Sequence[Sequence[Event]]) -> list[tuple[int, Event]]:
    """Let all stages run as far as they can; (stage, what it waits for) of those that stop before their end."""
    places, gone, moved = [0] * len(rows), set(), True
    while moved:
        moved = False
        for stage, row in enumerate(rows):
            while places[stage] < len(row) and (row[places[stage]].sends or row[places[stage]].message in gone):
                if row[places[stage]].sends:
                    gone.add(row[places[stage]].message)
                places[stage] += 1
                moved = True
    return [(stage, row[place]) for stage, (row, place) in enumerate(zip(rows, places)) if place < len(row)]


def _fail(schedule: Schedule, text: str, places: Sequence[tuple[int, int]]) -> ProgramError:
    marks = [(stage, min(place, len(schedule.actions[stage]) - 1)) for stage, place in places]
    return ProgramError(f"{schedule.name}: {text}\n{print_schedule(schedule, marks, AROUND).rstrip()}")


def _print_place(schedule: Schedule, at: tuple[int, int]) -> str:
    stage, place = at
    actions = schedule.actions[stage]
    return f"{actions[place] if place < len(actions) else 'the update'} of stage {stage}"


def _print_message(message: Message) -> str:
    source, target, number, turn = message
    return f"message {number}{f' of microbatch {turn}' if turn >= 0 else ''} from stage {source} to stage {target}"
