"""Against a run: what was predicted for a plan's step beside what a recorded run measured, row by row.

In: a plan, its `Simulation`, a `Run`. Out: a `Comparison`: notes on what makes the two not alike, then rows of seconds and of bytes. Pure.

Of a plan in pipeline stages each stage has its rows, of its own ranks. What a stage waits for others is one of them, predicted as its
bubble and the messages that it receives, measured as what it spends in `receive` and on the loss; so an action is what it takes without.

A measured figure is the median over the timed steps of all ranks, each with its own sum, so medians of parts need not add up to that of the
whole; beside it stands where the middle half of them lies (of bytes: the lowest and the highest rank). A collective's seconds are all that it takes, what hides behind
compute included; the measured ones hold the waiting for ranks that come later. What the runtime cannot tell, or the prediction does not know, is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, quantiles

from ..errors import RunError
from ..graph.mesh import joint_name, num_ranks, print_mesh
from ..graph.node import Phase
from ..graph.plan import Plan
from ..graph.plan_json import plan_to_json
from ..graph.reshard import StepKind
from ..graph.run import RankRun, Run, plan_key
from ..graph.stage_programs import STAGES, plan_mesh
from ..graph.turns import RECEIVE
from .rows import machine_text
from .simulate import PHASES, Simulation, StagePasses
from .streams import Role

_LOCAL = (StepKind.SLICE.value, StepKind.KEEP.value)
_LOOP = (Phase.FORWARD, Phase.BACKWARD)
MAX_TURNS = 8  # of so many microbatches each has a row
_WAITING = "waiting for other stages"
_HOST_SHARE = 0.2  # by so much a prediction is below the step where the host may be why: twice what published steps are off


@dataclass(frozen=True, slots=True)
class Measured:
    """Of `count` figures the median, and between which two the others lie (seconds: the middle half; bytes: all)."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line.

    Args:
        group: `step`, `bubble`, `action`, `compute`, `communication` or `memory`.
        part: of the row before it that is not a part.
        unit: `s` or `bytes`.
        stage: whose ranks' it is; None: of all ranks.
    """

    group: str
    what: str
    unit: str
    predicted: float | None
    measured: Measured | None
    part: bool = False
    stage: int | None = None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None where one of them is missing or 0."""
        if self.predicted is None or self.measured is None or not self.measured.median:
            return None
        return self.predicted / self.measured.median - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Notes: why the run is not one of what was predicted, if so. `num_steps`: timed, of each rank."""

    notes: tuple[str, ...]
    rows: tuple[Row, ...]
    num_steps: int


@dataclass(frozen=True, slots=True)
class _Side:
    """One stage and the part of the run that its ranks measured; of a plan without stages all of it."""

    plan: Plan
    simulation: Simulation
    run: Run
    stage: int

    @property
    def passes(self) -> StagePasses:
        return self.simulation.stages[self.stage]

    @property
    def staged(self) -> bool:
        return self.plan.num_stages > 1

    @property
    def told(self) -> bool:
        """Whether the run tells actions apart."""
        return any(rank.actions for rank in self.run.ranks)

    def turns(self, phase: Phase) -> int:
        return self.plan.num_microbatches if phase in _LOOP else 1

    @property
    def receives(self) -> set[str]:
        """Nodes that wait for a message."""
        return {n.name for n in self.plan.nodes if n.op == RECEIVE}

    def received_s(self, phase: Phase) -> float:
        """What the messages of one pass are under way, predicted."""
        receives = self.receives
        return sum(ran.piece.seconds for ran in self.passes.passes[PHASES.index(phase)].ran if ran.piece.name in receives)

    def messages_s(self) -> float:
        """What all messages of a step are under way, predicted."""
        return sum(self.turns(phase) * self.received_s(phase) for phase in PHASES)

    def bubble_s(self) -> float:
        """In which none of its actions runs, predicted."""
        return self.simulation.step_s - sum(a.end_s - a.start_s for a in self.simulation.actions if a.stage == self.stage)


def compare_run(plan: Plan, simulation: Simulation, run: Run, where: str = "run") -> Comparison:
    """Set a plan's prediction beside a run.

    Args:
        where: the run's file, for errors.
    Raises:
        RunError: no step was timed; or the plan has stages and the run another number of ranks, so that nobody knows whose they were.
    """
    count, size = len(run.ranks[0].step_s), num_ranks(plan.assignment.mesh)
    if not count:
        warm = len(run.ranks[0].warmup_s)
        raise RunError(f"{where}: no step was timed: the first ones warm up, found {warm} of them and no other; run more: autopar run DIR --steps 10")
    if plan.num_stages > 1 and len(run.ranks) != plan.num_stages * size:
        told = f"expected {plan.num_stages * size} ranks, {size} for each of {plan.num_stages} stages, found {len(run.ranks)}"
        raise RunError(f"{where}: {told}: the run was of a program of another plan")
    sides = [_Side(plan, simulation, run, 0)]
    if plan.num_stages > 1:
        sides = [_Side(plan, simulation, replace(run, ranks=run.ranks[k * size : (k + 1) * size]), k) for k in range(plan.num_stages)]
    rows = [Row("step", "step", "s", simulation.step_s, _over(run, lambda r, k: r.step_s[k]))]
    if plan.num_stages > 1:
        bubble, messages = (fmean(figures) for figures in zip(*((side.bubble_s(), side.messages_s()) for side in sides)))
        rows.append(Row("bubble", _WAITING, "s", bubble + messages, _over(run, _waited_seconds)))
        rows += [Row("bubble", "bubble", "s", bubble, None, True), Row("bubble", "messages", "s", messages, None, True)]
    for side in sides:
        found = (*_actions(side), *_compute(side), *_communication(side), *_memory(side))
        rows += [replace(row, stage=side.stage) for row in found] if side.staged else found
    return Comparison((*_notes(plan, run), *_note_host(plan, rows[0])), tuple(rows), count)


@dataclass(frozen=True, slots=True)
class Hidden:
    """What the collectives of a step took, those between stages left out; medians over all timed steps of all ranks.

    Args:
        seconds: all of them, as in the row `communication`; 0 where there were none, or no step was timed.
        hidden_s: of that behind compute.
        most: whether less may have been hidden, for nobody can tell when some of the messages had come.
    """

    seconds: float
    hidden_s: float
    most: bool


def measure_hidden(run: Run) -> Hidden:
    """How much of a run's communication was hidden behind compute."""
    if not run.ranks[0].step_s:
        return Hidden(0.0, 0.0, False)
    most = not run.tells and any(c.flight_s for rank in run.ranks for c in rank.comms)
    return Hidden(_over(run, _whole_seconds).median, _over(run, _hidden_seconds).median, most)


def _notes(plan: Plan, run: Run) -> tuple[str, ...]:
    notes = []
    mine, mesh = plan_key(plan_to_json(plan)), plan_mesh(plan)
    if run.plan != mine:
        other = f"of another plan ({run.plan}, of {run.model} on mesh {run.mesh or 'of one rank'})" if run.plan else "of a program without a plan beside it"
        notes.append(f"the run was {other}, this is {mine}, of {plan.model.name} on mesh {print_mesh(mesh) or 'of one rank'}")
    if len(run.ranks) != num_ranks(mesh):
        notes.append(f"the run had {len(run.ranks)} ranks, the plan has {num_ranks(mesh)}")
    source, device = plan.cluster.source, plan.cluster.device
    here = machine_text(run.machine)
    if (device == "cpu") != (run.machine.device == "cpu") or (device != "cpu" and device.split("-")[0].lower() not in here.lower()):
        notes.append(f"the run was on another device: {here}; the plan is for {device}")
    elif "measured" not in source:
        notes.append(f"no profile of the machine that ran ({here}) is in the prediction: measure it with `autopar profile`, then plan again")
    elif here not in source:
        notes.append(f"the run was on another machine ({here}) than the profile: {source}")
    return tuple(notes)


def _note_host(plan: Plan, step: Row) -> tuple[str, ...]:
    """Of a step on GPUs that took much longer than predicted."""
    if plan.cluster.device == "cpu" or step.error is None or step.error > -_HOST_SHARE:
        return ()
    return (
        f"the step took {1 / (1 + step.error):.1f} times what was predicted: a prediction knows GPUs and not their hosts, which ask for every kernel by itself. Where that takes longer than the "
        "kernels do, `autopar emit --cuda-graph` helps; `autopar run --profile F` shows whether the GPU waits",
    )


def _actions(side: _Side) -> list[Row]:
    """Prepare, forward, backward, update; each turn of it where there are several; what a stage waits for others; and the rest."""
    if not side.told:
        return []
    # what the replay lets trail into the update is called in the backward, and the emitted program waits for it there
    left = side.passes.passes[PHASES.index(Phase.BACKWARD)].left_s
    trails = {Phase.BACKWARD: left, Phase.UPDATE: -left}
    rows = []
    for phase in PHASES:
        one, turns = side.passes.seconds(phase) - side.received_s(phase), side.turns(phase)
        measured = _over(side.run, lambda r, k: _own_seconds(r, k, phase.value))
        if not one and not measured.median:
            continue
        rows.append(Row("action", phase.value, "s", turns * one + trails.get(phase, 0.0), measured))
        if 1 < turns <= MAX_TURNS and not side.staged:
            for turn in range(turns):
                found = _over(side.run, lambda r, k: _action_seconds(r, k, phase.value, turn))
                rows.append(Row("action", f"microbatch {turn}", "s", one, found, True))
        elif turns > 1:
            each = _over(side.run, lambda r, k: _own_seconds(r, k, phase.value) / turns)
            rows.append(Row("action", f"each of {turns} microbatches", "s", one, each, True))
    if side.staged:
        rows.append(Row("action", _WAITING, "s", side.bubble_s() + side.messages_s(), _over(side.run, _waited_seconds)))
    predicted = sum(row.predicted or 0.0 for row in rows if not row.part)
    outside = _over(side.run, lambda r, k: max(0.0, r.step_s[k] - _own_seconds(r, k) - _waited_seconds(r, k)))
    rest = side.simulation.step_s - predicted
    return [*rows, Row("action", "outside of them", "s", rest if rest > 1e-9 else None, outside)]


def _compute(side: _Side) -> list[Row]:
    """What is no collective, by phase."""
    rows = []
    for phase, one in zip(PHASES, side.passes.passes):
        seconds = side.turns(phase) * sum(ran.piece.seconds for ran in one.ran if ran.piece.role is Role.COMPUTE)
        own = _over(side.run, lambda r, k: _action_seconds(r, k, phase.value) - _comm_seconds(r, k, phase.value))
        measured = own if side.told else None
        if seconds or (measured is not None and measured.median):
            rows.append(Row("compute", phase.value, "s", seconds, measured, True))
    if side.told:
        whole = _over(side.run, lambda r, k: _action_seconds(r, k) + _comm_seconds(r, k, "") - _comm_seconds(r, k))
    else:
        whole = _over(side.run, lambda r, k: r.step_s[k] - _comm_seconds(r, k))
    return [Row("compute", "compute", "s", sum(row.predicted or 0.0 for row in rows), whole), *rows]


def _communication(side: _Side) -> list[Row]:
    """Collectives inside of the stage by kind and axis, whole seconds each; what of them is hidden behind compute is apart."""
    told, receives = {c.name: (c.kind, c.axis) for c in side.plan.comms if c.kind not in _LOCAL}, side.receives
    found = {(c.kind, c.axis): None for rank in side.run.ranks for c in rank.comms if c.axis != STAGES or not side.staged}
    predicted: dict[tuple[str, str], float] = {}
    waited = 0.0
    for phase, one in zip(PHASES, side.passes.passes):
        for ran in one.ran:
            if ran.piece.name in told:
                key = told[ran.piece.name]
                together = key[0], joint_name(side.plan.assignment.mesh, ran.piece.axes)
                if together in found and (phase is Phase.UPDATE or ran.piece.role is not Role.BLOCKING):  # the program did it as one
                    key = together
                predicted[key] = predicted.get(key, 0.0) + side.turns(phase) * ran.piece.seconds
        waited += side.turns(phase) * sum(s for name, s in one.waits if name not in receives)
    if not predicted and not found:
        return []
    total = sum(predicted.values())
    parts = []
    for kind, axis in sorted({**predicted, **found}, key=lambda key: -predicted.get(key, 0.0)):
        measured = _over(side.run, lambda r, k: _comm_seconds(r, k, None, kind, axis) + _hidden_seconds(r, k, kind, axis))
        parts.append(Row("communication", f"{kind} along {axis}", "s", predicted.get((kind, axis), 0.0), measured, True))
    hides, started = total - waited > 1e-9 + 1e-6 * total, any(c.flight_s for rank in side.run.ranks for c in rank.comms)
    beside = _over(side.run, _hidden_seconds) if started else None
    hidden = [Row("communication", "of it hidden behind compute", "s", total - waited if hides else 0.0, beside, True)] if hides or started else []
    return [Row("communication", "communication", "s", total, _over(side.run, _whole_seconds)), *parts, *hidden]


def _memory(side: _Side) -> list[Row]:
    cost = side.plan.cost
    reserve = sum(h.bytes for h in cost.holders if h.name == "reserve")
    states = [float(rank.state_bytes) for rank in side.run.ranks]
    peaks = [float(rank.peak_bytes) for rank in side.run.ranks if rank.peak_bytes is not None]
    what = "peak memory" + (", without the reserve" if reserve else "")
    held = cost.peak_bytes[side.stage] - reserve + cost.under_way_bytes[side.stage]
    return [
        Row("memory", "states", "bytes", cost.state_bytes[side.stage], _spread(states, whole=True)),
        Row("memory", what, "bytes", held, _spread(peaks, whole=True) if peaks else None),
    ]


def _action_seconds(rank: RankRun, step: int, phase: str | None = None, turn: int | None = None) -> float:
    """Of all sections of a phase: a stage has `backward_input_1` for the backward of its second chunk for inputs."""
    return sum(a.seconds[step] for a in rank.actions if phase in (None, a.phase.partition("_")[0]) and turn in (None, a.turn))


def _own_seconds(rank: RankRun, step: int, phase: str | None = None) -> float:
    """Of actions, without what they wait for other stages."""
    waited = _waited_seconds(rank, step, phase) - (_waited_seconds(rank, step, "") if phase is None else 0.0)
    return _action_seconds(rank, step, phase) - waited


def _waited_seconds(rank: RankRun, step: int, phase: str | None = None) -> float:
    """Along the stages: receiving, and the loss that goes to all of them. None of it where there are no stages."""
    return _comm_seconds(rank, step, phase, None, STAGES)


def _comm_seconds(rank: RankRun, step: int, phase: str | None = None, kind: str | None = None, axis: str | None = None) -> float:
    """Args: phase: "" for what is outside of all actions."""
    rows = [c for c in rank.comms if kind in (None, c.kind) and axis in (None, c.axis)]
    return sum(c.seconds[step] for c in rows if phase in (None, c.phase.partition("_")[0]))


def _hidden_seconds(rank: RankRun, step: int, kind: str | None = None, axis: str | None = None) -> float:
    """What collectives were under way while the rank did not stand still for any. None of those that are waited for as soon as they are started."""
    rows = [c for c in rank.comms if c.flight_s and kind in (None, c.kind) and axis in (None, c.axis)]
    return max(0.0, sum(c.flight_s[step] - c.seconds[step] for c in rows))


def _whole_seconds(rank: RankRun, step: int) -> float:
    """Of all collectives but those along the stages, what is hidden included."""
    return _comm_seconds(rank, step) - _waited_seconds(rank, step) + _hidden_seconds(rank, step)


def _over(run: Run, figure: Callable[[RankRun, int], float]) -> Measured:
    """A figure of each timed step of each rank."""
    return _spread([figure(rank, k) for rank in run.ranks for k in range(len(rank.step_s))])


def _spread(figures: Sequence[float], whole: bool = False) -> Measured:
    if whole or len(figures) < 4:
        return Measured(median(figures), min(figures), max(figures), len(figures))
    low, _, high = quantiles(figures, n=4, method="inclusive")
    return Measured(median(figures), low, high, len(figures))
