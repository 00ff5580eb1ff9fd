"""Pipeline stages at run time: which stage a rank is, what it holds, and its end of the messages between stages.

In: the constants of an emitted `program.py` with `STAGES`, and the schedule beside it. Out: the program as one rank sees it (`here`), and the `StageComm` that
a stage's `step` gets: a `Comm` that also sends to and receives from other stages, and says which section comes next. What the next section waits for is
asked for before the one at hand begins, so that it arrives meanwhile.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..constraints import PIPELINE
from ..errors import ProgramError, ScheduleError
from ..graph.mesh import Mesh, coordinates, num_ranks
from ..graph.node import Phase
from ..graph.repeats import shift_name
from ..graph.schedules.check import AROUND, check_schedule, split_backwards, without_sends
from ..graph.schedules.delivery import Event, check_delivery
from ..graph.schedules.order import order_of
from ..graph.schedules.schedule import COMPUTE, Action, ActionKind, Schedule, parse_csv, print_schedule
from ..graph.schedules.under_way import Wire, count_under_way
from ..graph.sections import INPUT, WEIGHT, section_of
from ..graph.sharding import REPLICATE, Sharding, parse_sharding
from .comm import Comm
from .messages import Arrival
from .place import place_error
from .spec import Batch, ProgramSpec, State, torch_dtype

STAGES = PIPELINE  # the outermost mesh axis
UPDATE = "update"
_WORDS = {ActionKind.F: "forward", ActionKind.B: "backward", ActionKind.I: "backward for its inputs", ActionKind.W: "backward for its weights"}
_SPLIT = re.compile(rf"{Phase.BACKWARD.value}_({INPUT}|{WEIGHT})")  # sections of a backward that is split
_ONCE = -1  # the turn of what crosses once a step


@dataclass(frozen=True)
class Stage:
    """What one stage runs, as `program.py` says it.

    Args:
        module: an emitted `stage_N.py`.
        shift: family of blocks (`transformer.h`) -> what to add to its numbers in the file's names of states.
    """

    module: ModuleType
    shift: Mapping[str, int] = field(default_factory=dict)

    def own_name(self, name: str) -> str:
        """This stage's name of a state of the file."""
        return shift_name(name, self.shift)

    def step(self, comm: StageComm, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Any:
        """The stage's step on this rank."""
        return self.module.step(comm, {name: state[self.own_name(name)] for name in self.module.STATES}, batch)


@dataclass(frozen=True)
class Pipeline:
    """The stages of a program.

    Args:
        stages: in order.
        schedule: of their compute actions.
        states, batches: per stage, under the model's names, shardings over the mesh of all ranks.
        homes: state -> the stage that updates it.
        arrivals: per stage: stage that sends -> what it sends to this one in a step, in order.
        most: per stage: stages ahead -> how many messages to that stage may be under way before each action.
    """

    stages: tuple[Stage, ...]
    schedule: Schedule
    states: tuple[Mapping[str, State], ...]
    batches: tuple[Mapping[str, Batch], ...]
    homes: Mapping[str, int]
    arrivals: tuple[Mapping[int, tuple[Arrival, ...]], ...]
    most: tuple[Mapping[int, tuple[int, ...]], ...] = ()

    def section_of(self, action: Action) -> str:
        """The name of the section that an action runs."""
        return section_of(action, self.schedule).name


def read_pipeline(namespace: Mapping[str, Any], schedule_text: str | None) -> Pipeline:
    """The stages that the constants of a `program.py` name.

    Raises:
        ProgramError: a file lacks a constant; the schedule is not of these stages, or does not run what their files have; or a message
            would not arrive.
        ScheduleError: the schedule is none, or cannot run.
    """
    name, stages = namespace["SCHEDULE"], tuple(namespace["STAGES"])
    if schedule_text is None:
        raise ProgramError(f"program.py: its schedule {name} is not beside it; emit it again")
    if namespace["MESH"][:1] != ((STAGES, len(stages)),):
        found = namespace["MESH"][:1]
        raise ProgramError(f"program.py: MESH: expected {(STAGES, len(stages))} first, as STAGES has {len(stages)}, found {found}")
    for number, stage in enumerate(stages):
        missing = [c for c in ("STATES", "BATCH", "COPIES", "SENDS", "WAITS", "RECEIVES", "SECTIONS", "step") if not hasattr(stage.module, c)]
        if missing:
            raise ProgramError(f"the file of stage {number} lacks {', '.join(missing)}; emit it again")
    schedule = _read_schedule(schedule_text, name, len(stages), namespace["MICROBATCHES"], namespace.get("CHUNKS", range(len(stages))))
    if any(_SPLIT.match(section) for stage in stages for section in stage.module.SECTIONS):
        schedule = split_backwards(schedule)
    states = tuple({s.own_name(n): _over_all(_renamed(s, state)) for n, state in s.module.STATES.items()} for s in stages)
    batches = tuple({n: _over_all(entry) for n, entry in s.module.BATCH.items()} for s in stages)
    homes: dict[str, int] = {}
    for k, stage in enumerate(stages):
        for n in stage.module.STATES:
            if n not in stage.module.COPIES:
                homes.setdefault(stage.own_name(n), k)
    lost = next((n for held in states for n in held if n not in homes), None)
    if lost is not None:
        raise ProgramError(f"{lost}: every stage that has it says that another one updates it (COPIES)")
    pipeline = Pipeline(stages, schedule, states, batches, homes, ())
    _check_sections(pipeline)
    events = [_list_events(pipeline, k) for k in range(len(stages))]
    check_delivery(schedule, events)
    return replace(pipeline, arrivals=tuple(_list_arrivals(pipeline, k) for k in range(len(stages))), most=_list_most(schedule, events))


def _read_schedule(text: str, name: str, count: int, microbatches: int, placed: Sequence[int]) -> Schedule:
    """The schedule of so many stages; sends and receives, if it has any, are checked and left out: the stages' files say what crosses.

    Args:
        placed: the stage of each chunk of the model, in order.
    """
    schedule = parse_csv(text, name)
    last = schedule.num_microbatches - 1
    every = [(a, (row, place)) for row, actions in enumerate(schedule.actions) for place, a in enumerate(actions)]
    if schedule.num_ranks != count:
        told = f"expected {count} rows, one for each of STAGES in program.py, found {schedule.num_ranks}"
        raise _refuse(schedule, told, (schedule.num_ranks - 1, 0))
    for action, at in every:
        row = placed[action.stage % len(placed)]
        if at[0] != row:
            told = f"expected {action} in row {row + 1}, found it in row {at[0] + 1}"
            raise _refuse(schedule, f"{told}: rows are in the order of STAGES in program.py", at)
    if schedule.num_stages % count:
        action, at = next(found for found in every if found[0].stage == schedule.num_stages - 1)
        told = f"expected equally many chunks of the model in each row, found {schedule.num_stages} in {count} rows"
        raise _refuse(schedule, f"{told}: {action} is of the last", at)
    if last != microbatches - 1:
        action, at = next(found for found in every if found[0].microbatch == last)
        told = f"expected microbatches 0 to {microbatches - 1} (MICROBATCHES in program.py), found 0 to {last}"
        raise _refuse(schedule, f"{told}: {action} in row {at[0] + 1} is of the last", at)
    try:
        check_schedule(schedule)
    except ScheduleError as error:
        many = ", and a stage a chunk of the model" if schedule.num_stages > count else ""
        raise ScheduleError(f"{error}\nA rank of this grid is a stage of program.py, with all ranks of its mesh{many}.") from None
    return without_sends(schedule)


def _check_sections(pipeline: Pipeline) -> None:
    """Each section of each stage's file must be run on each microbatch, and the forward of each chunk must be there."""
    schedule = pipeline.schedule
    for k, stage in enumerate(pipeline.stages):
        sections = stage.module.SECTIONS
        has = f"the file of stage {k} has {', '.join(sections)}"
        runs = {(pipeline.section_of(a), a.microbatch): place for place, a in enumerate(schedule.actions[k])}
        for place, action in enumerate(schedule.actions[k]):
            if action.kind is ActionKind.F and pipeline.section_of(action) not in sections:
                told = f"row {k + 1}: {action} runs {pipeline.section_of(action)}, but {has}"
                raise _refuse(schedule, f"{told}; emit it again with as many chunks", (k, place))
        asked = [(name, turn) for name in sections for turn in range(schedule.num_microbatches)]
        lacks = next((found for found in asked if found not in runs), None)
        if lacks is not None:
            name, turn = lacks
            every = [Action(chunk, kind, turn) for chunk, rank in enumerate(schedule.rank_of) if rank == k for kind in COMPUTE]
            missing = next((f"{a} is missing" for a in every if pipeline.section_of(a) == name), f"nothing runs {name} on microbatch {turn}")
            near = [place for place, a in enumerate(schedule.actions[k]) if a.microbatch == turn and a.kind is not ActionKind.F]
            raise _refuse(schedule, f"row {k + 1}: {missing}: {has}; to have other sections run, emit it again", (k, near[0] if near else 0))


def _refuse(schedule: Schedule, text: str, mark: tuple[int, int]) -> ProgramError:
    return ProgramError(f"{schedule.name}: {text}\n{print_schedule(schedule, [mark], AROUND).rstrip()}")


def _renamed(stage: Stage, state: State) -> State:
    return replace(state, init=("copy", stage.own_name(state.init[1]))) if state.init[:1] == ("copy",) else state


def _over_all(entry: Any) -> Any:
    """A state or batch entry with its sharding over the mesh of all ranks: alike on all stages that have it."""
    inside = parse_sharding(entry.sharding)
    return replace(entry, sharding=str(Sharding((REPLICATE, *inside.placements))))


def _list_sections(pipeline: Pipeline, stage: int) -> list[tuple[str, int]]:
    """(section, turn) of all that a stage runs in a step and that may send or wait, in order."""
    return [*((pipeline.section_of(action), action.microbatch) for action in pipeline.schedule.actions[stage]), (UPDATE, _ONCE)]


def _list_events(pipeline: Pipeline, stage: int) -> list[Event]:
    """What a stage sends and receives, section by section. Which comes first inside of a section only its text says: here what it sends, so
    that nothing which could run is refused."""
    module = pipeline.stages[stage].module
    found = []
    for place, (section, turn) in enumerate(_list_sections(pipeline, stage)):
        found += [Event(True, (stage, stage + ahead, number, turn), place) for ahead, number in module.SENDS.get(section, ())]
        found += [Event(False, (stage + ahead, stage, number, turn), place) for ahead, number in module.WAITS.get(section, ())]
    return found


def _list_arrivals(pipeline: Pipeline, stage: int) -> dict[int, tuple[Arrival, ...]]:
    """Stage -> what it sends to this one, in the order of its own actions."""
    receives = pipeline.stages[stage].module.RECEIVES
    found: dict[int, tuple[Arrival, ...]] = {}
    for source in range(len(pipeline.stages)):
        sends = pipeline.stages[source].module.SENDS
        rows = []
        for section, turn in _list_sections(pipeline, source):
            for ahead, number in sends.get(section, ()):
                if source + ahead == stage:
                    if (source - stage, number) not in receives:
                        told = f"stage {source} sends message {number} in its {section} to stage {stage}"
                        raise ProgramError(f"{told}, whose file lacks it in RECEIVES")
                    shape, dtype = receives[source - stage, number]
                    rows.append(Arrival((number, turn), tuple(shape), dtype))
        if rows:
            found[source] = tuple(rows)
    return found


def _list_most(schedule: Schedule, events: Sequence[Sequence[Event]]) -> tuple[dict[int, tuple[int, ...]], ...]:
    """`Pipeline.most`: what the times of the schedule allow (`graph.schedules.under_way`)."""
    order = order_of(schedule)
    places: dict[tuple[int, int, int], list[list[int]]] = {}
    received = {event.message: event.place for row in events for event in row if not event.sends}
    for row in events:
        for event in row:
            source, target, number, turn = event.message
            if event.sends and turn != _ONCE:
                ends = places.setdefault((source, target, number), [[], []])
                ends[0].append(event.place)
                ends[1].append(received[event.message])
    found = []
    for stage in range(len(events)):
        wires = [Wire(source, target, tuple(a), tuple(b)) for (source, target, _), (a, b) in places.items() if source == stage]
        sums: dict[int, list[int]] = {}
        for wire, counts in zip(wires, count_under_way(order, stage, wires)):
            known = sums.setdefault(wire.target - stage, [0] * len(counts))
            sums[wire.target - stage] = [a + b for a, b in zip(known, counts)]
        found.append({ahead: tuple(counts) for ahead, counts in sums.items()})
    return tuple(found)


def union_of(pipeline: Pipeline) -> dict[str, State]:
    """All states of all stages as their homes have them."""
    return {name: pipeline.states[home][name] for name, home in pipeline.homes.items()}


def here(program: ProgramSpec, rank: int) -> ProgramSpec:
    """The program as this rank holds it: `held` says which states it has; of these and of the batch the shardings are those of its stage."""
    if program.pipeline is None:
        return program
    stage = coordinates(program.mesh, rank)[0]
    mine, batch = program.pipeline.states[stage], program.pipeline.batches[stage]
    return replace(program, states={**program.states, **mine}, batch={**program.batch, **batch}, held=frozenset(mine), read=frozenset(program.pipeline.batches[stage]))


def open_stages(comm: Comm, program: ProgramSpec) -> None:
    """Make the links between stages. All ranks call it once, before the first step."""
    if program.pipeline is None:
        return
    size = num_ranks(program.mesh) // len(program.pipeline.stages)
    pairs = [(source, target) for target, rows in enumerate(program.pipeline.arrivals) for source in rows]
    comm.open_links([(source * size + k, target * size + k) for source, target in sorted(pairs) for k in range(size)])


class StageComm:
    """A rank's `comm` in a step of stages: does what `comm` does, and what only stages need."""

    def __init__(self, comm: Comm, pipeline: Pipeline) -> None:
        self._comm, self._pipeline = comm, pipeline
        self.rank, self.mesh, self.device = comm.rank, comm.mesh, comm.device
        self.stage = comm.coordinate(STAGES)
        self._size = num_ranks(Mesh(comm.mesh.axes[1:]))
        self.doing = "at the start of the step"
        self.waiting = ""
        self._left: dict[int, int] = {}  # microbatch -> actions that are still to come
        self._sends = pipeline.stages[self.stage].module.SENDS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    @property
    def place(self) -> str:
        """`stage 1, in 1B3 (backward of microbatch 3), waiting for stage 2`."""
        return f"stage {self.stage}, {self.doing}{self.waiting}"

    def send(self, x: Tensor, *, stage: int, message: int, turn: int = _ONCE) -> None:
        """Send to the rank at the same place so many stages ahead."""
        self._comm.send(x, self.rank + stage * self._size, (message, turn))

    def receive(self, *, stage: int, message: int, turn: int = _ONCE) -> Tensor:
        """What the rank at the same place so many stages ahead (negative: back) sends."""
        self.waiting = f", waiting for stage {self.stage + stage}"
        x = self._comm.receive(self.rank + stage * self._size, (message, turn))
        self.waiting = ""
        return x

    def actions(self) -> Iterator[tuple[str, int]]:
        """(section, microbatch) of each action of this stage, in the order of the schedule. Before each it waits for who is behind, so that no more is under way
        than the plan counts: a stage that nothing comes back to would run ahead, and hold all that it sends."""
        todo = [a for a in self._pipeline.schedule.actions[self.stage] if self._runs(a)]
        self._left = dict(Counter(action.microbatch for action in todo))
        most = self._pipeline.most[self.stage]
        places = {action: place for place, action in enumerate(self._pipeline.schedule.actions[self.stage])}
        for first in todo[:1]:
            self._expect(self._pipeline.section_of(first), first.microbatch)
        for action, following in zip(todo, (*todo[1:], None)):
            self.doing = f"in {action} ({_WORDS[action.kind]} of microbatch {action.microbatch})"
            if following is not None:
                self._expect(self._pipeline.section_of(following), following.microbatch)
            for ahead, counts in most.items():
                self._let_arrive(ahead, counts[places[action]])
            self._left[action.microbatch] -= 1
            yield self._pipeline.section_of(action), action.microbatch
        self.doing = "in its update"

    def is_over(self, turn: int) -> bool:
        """Whether the action at hand is the last of its microbatch on this stage."""
        return not self._left[turn]

    def _runs(self, action: Action) -> bool:
        return self._pipeline.section_of(action) in self._pipeline.stages[self.stage].module.SECTIONS

    def _let_arrive(self, ahead: int, most: int) -> None:
        self.waiting = f", waiting for stage {self.stage + ahead}"
        self._comm.let_arrive(self.rank + ahead * self._size, most)
        self.waiting = ""

    def _expect(self, section: str, turn: int) -> None:
        """Let what the section waits for arrive."""
        for ahead, number in self._pipeline.stages[self.stage].module.WAITS.get(section, ()):
            self._comm.expect(self.rank + ahead * self._size, (number, turn))

    def share_loss(self, result: Any, *, stage: int, dtype: str) -> Any:
        """The loss, which one stage has made, on all ranks. Where a stage returns more than its loss, the rest stays on it."""
        loss, rest = result if isinstance(result, tuple) else (result, None)
        self.doing = "sharing the loss"
        if loss is None:
            loss = torch.empty((), dtype=torch_dtype(dtype), device=self.device)
        loss = self._comm.broadcast(loss, STAGES, stage)
        return loss if rest is None else (loss, rest)

    def share_outputs(self, result: Any, outputs: Sequence[tuple[int, tuple[int, ...], str]]) -> Any:
        """What leaves the step beside the loss, on all ranks; what this stage returns beyond that stays on it.

        Args:
            result: (loss or None, what this stage returns), or the loss alone.
            outputs: of each the stage that makes it, its shape and dtype.
        """
        loss, own = result if isinstance(result, tuple) else (result, ())
        self.doing = "sharing the outputs"
        for ahead in dict.fromkeys(ahead for sent in self._sends.values() for ahead, _ in sent):
            self._let_arrive(ahead, 0)  # outputs are made of it: so nothing is lost, and it is not held beside them
        mine, shared = list(own), []
        for stage, shape, dtype in outputs:
            like = torch.empty((), dtype=torch_dtype(dtype), device=self.device).expand(shape)  # says the shape, and takes no memory
            shared.append(self._comm.broadcast(mine.pop(0) if stage == self.stage else like, STAGES, stage))
        return tuple(shared) if loss is None else (loss, (*shared, *mine))


def run_step(program: ProgramSpec, step: Any, comm: Comm, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Any:
    """One step of an emitted program in stages on this rank.

    Raises:
        RankError: another rank is gone; it says in which action this rank has noticed, and which rank it waited for.
        ProgramError: the program does not keep to its messages; it says in which action.
        what an op of the program raises, with a note (from Python 3.11 on) that says in which action, and the line of the program.
    """
    assert program.pipeline is not None
    mine = StageComm(comm, program.pipeline)
    size = mine._size
    try:
        comm.begin_step({mine.rank + (source - mine.stage) * size: rows for source, rows in program.pipeline.arrivals[mine.stage].items()})
        result = step(mine, state, batch)
        mine.doing = "at the end of the step"
        comm.end_step()
    except Exception as error:
        told = place_error(error, mine.rank, mine.place)
        if told is error:
            raise
        raise told from error
    return result
