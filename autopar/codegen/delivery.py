"""Delivery: whether the messages of all stages arrive, in the order in which the printed sections send and receive and the schedule runs them.

In: for each stage the sends and receives of its sections, in order; the schedule. Out: nothing, or a `ProgramError`. Sends do not wait; a receive waits for
its send. A stage runs its list of actions, then its update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import ProgramError
from ..graph.node import Node, Phase, get_arg
from ..graph.schedules.schedule import Action, ActionKind, Schedule, print_schedule
from ..graph.sections import INPUT, WEIGHT, Section
from ..graph.turns import SEND

Messages = Mapping[Section, Sequence[Node]]
_PARTS = {ActionKind.F: (Phase.FORWARD, ""), ActionKind.B: (Phase.BACKWARD, ""), ActionKind.I: (Phase.BACKWARD, INPUT), ActionKind.W: (Phase.BACKWARD, WEIGHT)}


def section_of(action: Action, num_ranks: int, chunks: int) -> Section:
    """The section that an action runs; the k-th chunk of the model is on rank k modulo their number."""
    phase, part = _PARTS[action.kind]
    return Section(phase, action.stage // num_ranks if chunks > 1 else None, part)


def check_delivery(messages: Sequence[Messages], schedule: Schedule) -> None:
    """Raise `ProgramError` where a stage would wait for ever, or a message is sent or awaited alone."""
    chunks = schedule.num_stages // schedule.num_ranks
    rows = [_events(messages[s], s, schedule, chunks) for s in range(schedule.num_ranks)]
    sent = {e[1:4] for row in rows for e in row if e[0]}
    awaited = {e[1:4] for row in rows for e in row if not e[0]}
    for message in sorted(sent ^ awaited):
        told = "is sent and never received" if message in sent else "is awaited and never sent"
        raise ProgramError(f"{schedule.name}: {_words(*message)} {told}\n{print_schedule(schedule)}")
    places, gone, moved = [0] * len(rows), set(), True
    while moved:
        moved = False
        for s, row in enumerate(rows):
            while places[s] < len(row) and (row[places[s]][0] or row[places[s]][1:4] in gone):
                if row[places[s]][0]:
                    gone.add(row[places[s]][1:4])
                places[s] += 1
                moved = True
    stuck = [(s, row[place]) for s, (row, place) in enumerate(zip(rows, places)) if place < len(row)]
    if stuck:
        told = "; ".join(f"stage {s} waits in {where} for {_words(*message)}" for s, (_, *message, where) in stuck)
        raise ProgramError(f"{schedule.name}: the stages would wait for each other: {told}\n{print_schedule(schedule)}")


def _words(source: int, target: int, key: tuple[int, int]) -> str:
    turn = f" of microbatch {key[1]}" if key[1] >= 0 else ""
    return f"message {key[0]}{turn} from stage {source} to stage {target}"


def _events(messages: Messages, stage: int, schedule: Schedule, chunks: int) -> list[tuple[bool, int, int, tuple[int, int], str]]:
    """(whether it is a send, source, target, (number, turn), where), in order."""
    found = []
    steps = [(section_of(action, schedule.num_ranks, chunks), action.microbatch, str(action)) for action in schedule.actions[stage]]
    for section, turn, where in [*steps, (Section(Phase.UPDATE), -1, "its update")]:
        for node in messages.get(section, ()):
            other, sends = stage + int(get_arg(node, "stage")), node.op == SEND
            ends = (stage, other) if sends else (other, stage)
            found.append((sends, *ends, (get_arg(node, "message"), turn), where))
    return found
