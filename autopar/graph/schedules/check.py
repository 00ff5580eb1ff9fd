"""The law of schedules: every stage runs every microbatch once, forward before backward before weights, and nobody waits for ever.

In: a schedule, with sends or without. Out: nothing, or a `ScheduleError` that says what is wrong and where, and shows the grid around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...errors import ScheduleError
from .schedule import COMPUTE, RECEIVES, SENDS, Action, ActionKind, Place, Schedule, inputs_of, print_schedule, settle_slots

AROUND = 6


def check_schedule(schedule: Schedule) -> None:
    """Whether it can run: all of it there once and on its rank, in a legal order, without deadlock; sends, if any, met by their receives.

    Raises:
        ScheduleError: the first thing that is wrong.
    """
    _check_form(schedule)
    places = _places(schedule)
    _check_whole(schedule, places)
    _check_before(schedule, places)
    if any(action.kind in SENDS or action.kind in RECEIVES for action in places):
        _check_sends(schedule, places)
    _check_runs(schedule, places)


def _fail(schedule: Schedule, text: str, marks: Sequence[Place] = ()) -> ScheduleError:
    return ScheduleError(f"{schedule.name}: {text}\n{print_schedule(schedule, marks, AROUND).rstrip()}")


def _check_form(schedule: Schedule) -> None:
    for stage, rank in enumerate(schedule.rank_of):
        if not 0 <= rank < schedule.num_ranks:
            last = schedule.num_ranks - 1
            raise ScheduleError(f"{schedule.name}: stage {stage} is on rank {rank}; the schedule has lists for ranks 0 to {last}")
    for rank, actions in enumerate(schedule.actions):
        if rank not in schedule.rank_of:
            raise ScheduleError(f"{schedule.name}: rank {rank} has no stage; give it one, or take it out")
        for place, action in enumerate(actions):
            where = f"rank {rank}, place {place}: {action}"
            if not 0 <= action.stage < schedule.num_stages:
                raise ScheduleError(f"{schedule.name}: {where}: expected a stage below {schedule.num_stages}")
            if not 0 <= action.microbatch < schedule.num_microbatches:
                raise ScheduleError(f"{schedule.name}: {where}: expected a microbatch below {schedule.num_microbatches}")
            home = schedule.rank_of[action.stage]
            if home != rank:
                raise _fail(schedule, f"{where}: stage {action.stage} lives on rank {home}; move it there", [(rank, place)])


def _places(schedule: Schedule) -> dict[Action, Place]:
    places: dict[Action, Place] = {}
    for rank, actions in enumerate(schedule.actions):
        for place, action in enumerate(actions):
            if action in places:
                first = places[action]
                text = f"rank {rank}: {action} is there twice, at places {first[1]} and {place}; take one out"
                raise _fail(schedule, text, [first, (rank, place)])
            places[action] = (rank, place)
    return places


def _check_whole(schedule: Schedule, places: dict[Action, Place]) -> None:
    trains = any(action.kind in COMPUTE and action.kind is not ActionKind.F for action in places)
    for stage, rank in enumerate(schedule.rank_of):
        for microbatch in range(schedule.num_microbatches):
            forward, full, inputs, weights = (Action(stage, kind, microbatch) for kind in COMPUTE)
            near = [places[a] for a in (forward, full, inputs, weights) if a in places]
            if forward not in places:
                raise _fail(schedule, f"rank {rank}: {forward} is missing; every stage runs every microbatch once", near or [(rank, 0)])
            if full in places and (inputs in places or weights in places):
                other = inputs if inputs in places else weights
                raise _fail(schedule, f"rank {rank}: {full} and {other} are both there; a backward is full (B) or split (I and W)", near)
            if trains and full not in places and (inputs not in places or weights not in places):
                if inputs not in places and weights not in places:
                    lacks = f"{full} is missing (or {inputs} and {weights}); every forward has its backward"
                else:
                    there, other = (inputs, weights) if inputs in places else (weights, inputs)
                    lacks = f"{there} is there without {other}; a split backward has both"
                raise _fail(schedule, f"rank {rank}: {lacks}", near)


def _check_before(schedule: Schedule, places: dict[Action, Place]) -> None:
    """What a rank's own list must hold before each compute action and each send."""
    for action, place in places.items():
        if action.kind is ActionKind.W:
            before: Iterable[Action] = (Action(action.stage, ActionKind.I, action.microbatch),)
        elif action.kind in (ActionKind.B, ActionKind.I):
            before = (Action(action.stage, ActionKind.F, action.microbatch),)
        elif action.kind in SENDS:
            before = inputs_of(action, schedule.num_stages)
        else:
            continue
        for other in before:
            if other in places and places[other] > place:
                text = f"rank {place[0]}: {action} at place {place[1]} comes before {other} at place {places[other][1]}; swap them"
                raise _fail(schedule, text, [place, places[other]])


def _check_sends(schedule: Schedule, places: dict[Action, Place]) -> None:
    """Each value that changes rank has one send and one receive, in time; between two ranks both sides list the messages in one order.

    The order matters because a link has no names: what is sent first is received first, whatever the receiver takes it for.
    """
    expected = {action: message for action in places if action.kind in COMPUTE and (message := messages_of(schedule, action))}
    known = {a for pair in expected.values() for a in pair}
    for action, place in places.items():
        if action.kind not in COMPUTE and action not in known:
            raise _fail(schedule, f"rank {place[0]}: {action}: nothing crosses ranks there; take it out", [place])
        receive = receive_of(action)
        if receive in known and receive in places and places[receive] > place:
            text = f"rank {place[0]}: {action} at place {place[1]} comes before {receive} at place {places[receive][1]}"
            raise _fail(schedule, f"{text}, which brings its input; swap them", [place, places[receive]])
    for producer, pair in expected.items():
        for action, other in (pair, pair[::-1]):
            if action not in places:
                rank, there = schedule.rank_of[action.stage], schedule.rank_of[other.stage]
                near = [places[a] for a in (producer, other) if a in places]
                met = f"the other side is rank {there}, which needs {other}"
                tells = f"{other} of rank {there} stays unmet" if other in places else met
                raise _fail(schedule, f"rank {rank}: {action} is missing; what {producer} makes crosses ranks, and {tells}", near)
    for pair, (sends, receives) in channels_of(schedule).items():
        for sent, got in zip(sends, receives):
            if peer_of(sent) != got:
                text = f"rank {pair[0]} sends {sent} where rank {pair[1]} expects {got}; messages between two ranks arrive"
                raise _fail(schedule, f"{text} in the order of sending: put {peer_of(sent)} there", [places[sent], places[got]])


def peer_of(send: Action) -> Action:
    """The receive of a send."""
    if send.kind is ActionKind.SEND_F:
        return Action(send.stage + 1, ActionKind.RECV_F, send.microbatch)
    return Action(send.stage - 1, ActionKind.RECV_B, send.microbatch)


def receive_of(action: Action) -> Action | None:
    """The receive that would bring the input of a compute action; None where it reads nothing but its own rank's."""
    kinds = {ActionKind.F: ActionKind.RECV_F, ActionKind.B: ActionKind.RECV_B, ActionKind.I: ActionKind.RECV_B}
    return Action(action.stage, kinds[action.kind], action.microbatch) if action.kind in kinds else None


def messages_of(schedule: Schedule, action: Action) -> tuple[Action, Action] | None:
    """The send and the receive of what a compute action makes; None where nobody on another rank needs it."""
    if action.kind is ActionKind.F:
        reader, kind = action.stage + 1, ActionKind.SEND_F
    elif action.kind in (ActionKind.B, ActionKind.I):
        reader, kind = action.stage - 1, ActionKind.SEND_B
    else:
        return None
    if not 0 <= reader < schedule.num_stages or schedule.rank_of[reader] == schedule.rank_of[action.stage]:
        return None
    send = Action(action.stage, kind, action.microbatch)
    return send, peer_of(send)


def channels_of(schedule: Schedule) -> dict[tuple[int, int], tuple[list[Action], list[Action]]]:
    """(from rank, to rank) -> the sends of the one, the receives of the other, in the order of their lists."""
    channels: dict[tuple[int, int], tuple[list[Action], list[Action]]] = {}
    for rank, actions in enumerate(schedule.actions):
        for action in actions:
            if action.kind in SENDS:
                channels.setdefault((rank, schedule.rank_of[peer_of(action).stage]), ([], []))[0].append(action)
            elif action.kind in RECEIVES:
                (send,) = inputs_of(action, schedule.num_stages)
                channels.setdefault((schedule.rank_of[send.stage], rank), ([], []))[1].append(action)
    return channels


def _check_runs(schedule: Schedule, places: dict[Action, Place]) -> None:
    stuck = dict(settle_slots(schedule).stuck)
    if not stuck:
        return
    # every rank that stopped waits for one that stopped: following them ends in a circle, and the circle is the fault
    rank, chain = min(stuck), []
    while rank not in chain:
        chain.append(rank)
        rank = places[_awaited(schedule, places, rank, stuck[rank])][0]
    circle = chain[chain.index(rank) :]
    waits = []
    for rank in circle:
        awaited = _awaited(schedule, places, rank, stuck[rank])
        other, place = places[awaited]
        whose = "itself" if other == rank else f"rank {other}"
        waits.append(f"rank {rank} waits with {schedule.actions[rank][stuck[rank]]} for {awaited} of {whose} (place {place})")
    text = f"deadlock: {'; '.join(waits)}; move one of these actions behind what the others wait for"
    raise _fail(schedule, text, [(r, stuck[r]) for r in circle])


def _awaited(schedule: Schedule, places: dict[Action, Place], rank: int, place: int) -> Action:
    return next(a for a in inputs_of(schedule.actions[rank][place], schedule.num_stages) if a in places)


def split_backwards(schedule: Schedule) -> Schedule:
    """Each full backward as the I and the W that it is, one right after the other: where some are split, all are."""
    kinds = {ActionKind.B: (ActionKind.I, ActionKind.W)}
    rows = (tuple(replace(a, kind=kind) for a in actions for kind in kinds.get(a.kind, (a.kind,))) for actions in schedule.actions)
    return replace(schedule, actions=tuple(rows))


def without_sends(schedule: Schedule) -> Schedule:
    """The compute actions alone."""
    return replace(schedule, actions=tuple(tuple(a for a in actions if a.kind in COMPUTE) for actions in schedule.actions))
