"""Pipeline stages at run time: which stage a rank is, what it holds, and its end of the messages between stages.

In: the constants of an emitted `program.py` with `STAGES`, and the schedule beside it. Out: the program as one rank sees it (`here`), and the `StageComm` that
a stage's `step` gets: a `Comm` that also sends to and receives from other stages, and says which section comes next. What the next section waits for is
asked for before the one at hand begins, so that it arrives meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..errors import ProgramError, RankError
from ..graph.mesh import Mesh, coordinates, num_ranks
from ..graph.repeats import block_of
from ..graph.schedules.schedule import Action, ActionKind, Schedule, parse_csv
from ..graph.sharding import REPLICATE, Sharding, parse_sharding
from .comm import Comm
from .messages import Arrival
from .spec import Batch, ProgramSpec, State, torch_dtype

STAGES = "pp"  # the outermost mesh axis
UPDATE = "update"
_NAMES = {ActionKind.F: "forward", ActionKind.B: "backward", ActionKind.I: "backward_input", ActionKind.W: "backward_weight"}
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
        lead, colon, own = name.rpartition(":")
        place = block_of(own)
        if place is None or place[0] not in self.shift:
            return name
        prefix = f"{place[0]}." if place[0] else ""
        return f"{lead}{colon}{prefix}{place[1] + self.shift[place[0]]}{own[len(prefix) + len(str(place[1])) :]}"

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
    """

    stages: tuple[Stage, ...]
    schedule: Schedule
    states: tuple[Mapping[str, State], ...]
    batches: tuple[Mapping[str, Batch], ...]
    homes: Mapping[str, int]
    arrivals: tuple[Mapping[int, tuple[Arrival, ...]], ...]

    def section_of(self, action: Action) -> str:
        """The name of the section that an action runs."""
        chunks = self.schedule.num_stages // self.schedule.num_ranks
        name = _NAMES[action.kind]
        return f"{name}_{action.stage // self.schedule.num_ranks}" if chunks > 1 else name


def read_pipeline(namespace: Mapping[str, Any], schedule_text: str | None) -> Pipeline:
    """The stages that the constants of a `program.py` name.

    Raises:
        ProgramError: a file lacks a constant, or there is no schedule of these stages.
        ScheduleError: the schedule is none.
    """
    name, stages = namespace["SCHEDULE"], tuple(namespace["STAGES"])
    if schedule_text is None:
        raise ProgramError(f"program.py: its schedule {name} is not beside it; emit it again")
    for number, stage in enumerate(stages):
        missing = [c for c in ("STATES", "BATCH", "COPIES", "SENDS", "WAITS", "RECEIVES", "SECTIONS", "step") if not hasattr(stage.module, c)]
        if missing:
            raise ProgramError(f"the file of stage {number} lacks {', '.join(missing)}; emit it again")
    schedule = parse_csv(schedule_text, name)
    if schedule.num_ranks != len(stages) or schedule.num_stages % len(stages):
        raise ProgramError(f"{name}: expected a row for each of {len(stages)} stages, found {schedule.num_ranks}, with {schedule.num_stages} chunks in all")
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
    return replace(pipeline, arrivals=tuple(_list_arrivals(pipeline, k) for k in range(len(stages))))


def _renamed(stage: Stage, state: State) -> State:
    return replace(state, init=("copy", stage.own_name(state.init[1]))) if state.init[:1] == ("copy",) else state


def _over_all(entry: Any) -> Any:
    """A state or batch entry with its sharding over the mesh of all ranks: alike on all stages that have it."""
    inside = parse_sharding(entry.sharding)
    return replace(entry, sharding=str(Sharding((REPLICATE, *inside.placements))))


def _list_arrivals(pipeline: Pipeline, stage: int) -> dict[int, tuple[Arrival, ...]]:
    """Stage -> what it sends to this one, in the order of its own actions."""
    receives = pipeline.stages[stage].module.RECEIVES
    found: dict[int, tuple[Arrival, ...]] = {}
    for source in range(len(pipeline.stages)):
        sends = pipeline.stages[source].module.SENDS
        steps = [(pipeline.section_of(action), action.microbatch) for action in pipeline.schedule.actions[source]]
        rows = []
        for section, turn in [*steps, (UPDATE, _ONCE)]:
            for ahead, number in sends.get(section, ()):
                if source + ahead == stage:
                    if (source - stage, number) not in receives:
                        raise ProgramError(f"stage {source} sends message {number} in its {section} to stage {stage}, whose file does not receive it")
                    shape, dtype = receives[source - stage, number]
                    rows.append(Arrival((number, turn), tuple(shape), dtype))
        if rows:
            found[source] = tuple(rows)
    return found


def union_of(pipeline: Pipeline) -> dict[str, State]:
    """All states of all stages as their homes have them."""
    return {name: pipeline.states[home][name] for name, home in pipeline.homes.items()}


def here(program: ProgramSpec, rank: int) -> ProgramSpec:
    """The program as this rank holds it: `held` says which states it has; of these and of the batch the shardings are those of its stage."""
    if program.pipeline is None:
        return program
    stage = coordinates(program.mesh, rank)[0]
    mine, batch = program.pipeline.states[stage], program.pipeline.batches[stage]
    return replace(program, states={**program.states, **mine}, batch={**program.batch, **batch}, held=frozenset(mine))


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
        self.doing = "the start of the step"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def send(self, x: Tensor, *, stage: int, message: int, turn: int = _ONCE) -> None:
        """Send to the rank at the same place so many stages ahead."""
        self._comm.send(x, self.rank + stage * self._size, (message, turn))

    def receive(self, *, stage: int, message: int, turn: int = _ONCE) -> Tensor:
        """What the rank at the same place so many stages ahead (negative: back) sends."""
        return self._comm.receive(self.rank + stage * self._size, (message, turn))

    def actions(self) -> Iterator[tuple[str, int]]:
        """(section, microbatch) of each action of this stage, in the order of the schedule."""
        todo = [a for a in self._pipeline.schedule.actions[self.stage] if self._runs(a)]
        for action, following in zip(todo, (*todo[1:], None)):
            self.doing = str(action)
            if following is not None:
                self._expect(self._pipeline.section_of(following), following.microbatch)
            yield self._pipeline.section_of(action), action.microbatch
        self.doing = "its update"

    def _runs(self, action: Action) -> bool:
        return self._pipeline.section_of(action) in self._pipeline.stages[self.stage].module.SECTIONS

    def _expect(self, section: str, turn: int) -> None:
        """Let what the section waits for arrive."""
        for ahead, number in self._pipeline.stages[self.stage].module.WAITS.get(section, ()):
            self._comm.expect(self.rank + ahead * self._size, (number, turn))

    def share_loss(self, result: Any, *, stage: int, dtype: str) -> Any:
        """The loss, which one stage has made, on all ranks. Where a stage returns more than its loss, the rest stays on it."""
        loss, rest = result if isinstance(result, tuple) else (result, None)
        if loss is None:
            loss = torch.empty((), dtype=torch_dtype(dtype), device=self.device)
        loss = self._comm.broadcast(loss, STAGES, stage)
        return loss if rest is None else (loss, rest)


def run_step(program: ProgramSpec, step: Any, comm: Comm, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Any:
    """One step of an emitted program in stages on this rank.

    Raises:
        RankError: another rank is gone; it says in which action this rank has noticed.
    """
    assert program.pipeline is not None
    mine = StageComm(comm, program.pipeline)
    size = mine._size
    try:
        comm.begin_step({mine.rank + (source - mine.stage) * size: rows for source, rows in program.pipeline.arrivals[mine.stage].items()})
        result = step(mine, state, batch)
        comm.end_step()
    except RankError as error:
        raise type(error)(f"stage {mine.stage}, in {mine.doing}: {error}") from error
    return result
