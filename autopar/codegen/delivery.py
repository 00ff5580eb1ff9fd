"""Delivery of what was printed: the sends and receives of all stages, in the order of the texts and of the schedule, as
`graph.schedules.delivery` checks them.

In: for each stage the sends and receives of its sections, in order; the schedule. Out: nothing, or a `ProgramError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph.node import Node, Phase, get_arg
from ..graph.schedules.delivery import Event, check_delivery
from ..graph.schedules.schedule import Schedule
from ..graph.sections import Section, section_of
from ..graph.turns import SEND

Messages = Mapping[Section, Sequence[Node]]


def check_messages(messages: Sequence[Messages], schedule: Schedule) -> None:
    """Raise `ProgramError` where a stage would wait for ever, or a message is sent or awaited alone."""
    check_delivery(schedule, [_events(messages[s], s, schedule) for s in range(schedule.num_ranks)])


def _events(messages: Messages, stage: int, schedule: Schedule) -> list[Event]:
    actions = schedule.actions[stage]
    sections = [*((section_of(action, schedule), action.microbatch) for action in actions), (Section(Phase.UPDATE), -1)]
    found = []
    for place, (section, turn) in enumerate(sections):
        for node in messages.get(section, ()):
            other, sends = stage + int(get_arg(node, "stage")), node.op == SEND
            source, target = (stage, other) if sends else (other, stage)
            found.append(Event(sends, (source, target, int(get_arg(node, "message")), turn), place))
    return found
