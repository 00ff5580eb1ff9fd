"""Against a run: what was predicted for a plan's step beside what a recorded run measured, row by row.

In: a plan, its `Simulation`, a `Run`. Out: a `Comparison`: notes on what makes the two not alike, then rows of seconds and of bytes. Pure.

A measured figure is the median over the timed steps of all ranks, each with its own sum, so medians of parts need not add up to that of the
whole; beside it stands where the middle half of them lies (of bytes: the lowest and the highest rank). A collective's measured seconds hold the waiting for
ranks that come later. What the runtime cannot tell, or the prediction does not know, is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from ..errors import PlanError, RunError
from ..graph.mesh import num_ranks, print_mesh
from ..graph.node import Phase
from ..graph.plan import Plan
from ..graph.plan_json import plan_to_json
from ..graph.reshard import StepKind
from ..graph.run import RankRun, Run, plan_key
from .rows import machine_text
from .simulate import PHASES, Simulation
from .streams import Role

_LOCAL = (StepKind.SLICE.value, StepKind.KEEP.value)
_LOOP = (Phase.FORWARD, Phase.BACKWARD)
MAX_TURNS = 8  # of so many microbatches each has a row


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
        group: `step`, `action`, `compute`, `communication` or `memory`.
        part: of the row before it that is not a part.
        unit: `s` or `bytes`.
    """

    group: str
    what: str
    unit: str
    predicted: float | None
    measured: Measured | None
    part: bool = False

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


def compare_run(plan: Plan, simulation: Simulation, run: Run, where: str = "run") -> Comparison:
    """Set a plan's prediction beside a run.

    Args:
        where: the run's file, for errors.
    Raises:
        PlanError: the plan has stages, and no program of such a plan runs yet.
        RunError: no step was timed.
    """
    if plan.num_stages > 1:
        many = f"the plan has {plan.num_stages} stages; programs in stages are not emitted yet, so no run can be of it"
        raise PlanError(f"--against: {many}; give a plan of one stage")
    count = len(run.ranks[0].step_s)
    if not count:
        warm = len(run.ranks[0].warmup_s)
        raise RunError(f"{where}: no step was timed: the first ones warm up, found {warm} of them and no other; run more: autopar run DIR --steps 10")
    rows = (*_actions(plan, simulation, run), *_compute(plan, simulation, run), *_communication(plan, simulation, run), *_memory(plan, run))
    return Comparison(_notes(plan, run), (Row("step", "step", "s", simulation.step_s, _over(run, lambda r, k: r.step_s[k])), *rows), count)


def _notes(plan: Plan, run: Run) -> tuple[str, ...]:
    notes = []
    mine, mesh = plan_key(plan_to_json(plan)), plan.assignment.mesh
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


def _actions(plan: Plan, simulation: Simulation, run: Run) -> list[Row]:
    """Prepare, forward, backward, update; each turn of it where there are several; and what is in none of them."""
    if not any(rank.actions for rank in run.ranks):
        return []
    # what the replay lets trail into the update is called in the backward, and the emitted program waits for it there
    left = simulation.stages[0].passes[PHASES.index(Phase.BACKWARD)].left_s
    trails = {Phase.BACKWARD: left, Phase.UPDATE: -left}
    rows = []
    for phase in PHASES:
        one, turns = simulation.stages[0].seconds(phase), _turns(plan, phase)
        measured = _over(run, lambda r, k: _action_seconds(r, k, phase.value))
        if not one and not measured.median:
            continue
        rows.append(Row("action", phase.value, "s", turns * one + trails.get(phase, 0.0), measured))
        if 1 < turns <= MAX_TURNS:
            for turn in range(turns):
                rows.append(Row("action", f"microbatch {turn}", "s", one, _over(run, lambda r, k: _action_seconds(r, k, phase.value, turn)), True))
        elif turns > 1:
            each = _over(run, lambda r, k: _action_seconds(r, k, phase.value) / turns)
            rows.append(Row("action", f"each of {turns} microbatches", "s", one, each, True))
    predicted = sum(row.predicted or 0.0 for row in rows if not row.part)
    outside = _over(run, lambda r, k: max(0.0, r.step_s[k] - _action_seconds(r, k)))
    rest = simulation.step_s - predicted
    return [*rows, Row("action", "outside of them", "s", rest if rest > 1e-9 else None, outside)]


def _compute(plan: Plan, simulation: Simulation, run: Run) -> list[Row]:
    """What is no collective, by phase."""
    told = any(rank.actions for rank in run.ranks)
    rows = []
    for phase, one in zip(PHASES, simulation.stages[0].passes):
        seconds = _turns(plan, phase) * sum(ran.piece.seconds for ran in one.ran if ran.piece.role is Role.COMPUTE)
        measured = _over(run, lambda r, k: _action_seconds(r, k, phase.value) - _comm_seconds(r, k, phase.value)) if told else None
        if seconds or (measured is not None and measured.median):
            rows.append(Row("compute", phase.value, "s", seconds, measured, True))
    whole = _over(run, lambda r, k: (_action_seconds(r, k) if told else r.step_s[k]) - _comm_seconds(r, k))
    return [Row("compute", "compute", "s", sum(row.predicted or 0.0 for row in rows), whole), *rows]


def _communication(plan: Plan, simulation: Simulation, run: Run) -> list[Row]:
    """Collectives by kind and axis, whole seconds each; what of them the prediction hides behind compute stands apart."""
    predicted: dict[tuple[str, str], float] = {}
    for comm in plan.comms:
        if comm.kind not in _LOCAL:
            predicted[comm.kind, comm.axis] = predicted.get((comm.kind, comm.axis), 0.0) + comm.seconds
    found = {(c.kind, c.axis): None for rank in run.ranks for c in rank.comms}
    if not predicted and not found:
        return []
    total = sum(predicted.values())
    parts = [
        Row("communication", f"{kind} along {axis}", "s", predicted.get((kind, axis), 0.0), _over(run, lambda r, k: _comm_seconds(r, k, None, kind, axis)), True)
        for kind, axis in sorted({**predicted, **found}, key=lambda key: -predicted.get(key, 0.0))
    ]  # fmt: skip
    waited = sum(_turns(plan, phase) * sum(s for _, s in one.waits) for phase, one in zip(PHASES, simulation.stages[0].passes))
    hidden = [Row("communication", "of it hidden behind compute", "s", total - waited, None, True)] if total - waited > 1e-9 + 1e-6 * total else []
    return [Row("communication", "communication", "s", total, _over(run, _comm_seconds)), *parts, *hidden]


def _memory(plan: Plan, run: Run) -> list[Row]:
    reserve = sum(h.bytes for h in plan.cost.holders if h.name == "reserve")
    states = [float(rank.state_bytes) for rank in run.ranks]
    peaks = [float(rank.peak_bytes) for rank in run.ranks if rank.peak_bytes is not None]
    what = "peak memory" + (", without the reserve" if reserve else "")
    return [
        Row("memory", "states", "bytes", plan.cost.state_bytes[0], _spread(states, whole=True)),
        Row("memory", what, "bytes", plan.cost.peak_bytes[0] - reserve, _spread(peaks, whole=True) if peaks else None),
    ]


def _turns(plan: Plan, phase: Phase) -> int:
    return plan.num_microbatches if phase in _LOOP else 1


def _action_seconds(rank: RankRun, step: int, phase: str | None = None, turn: int | None = None) -> float:
    return sum(a.seconds[step] for a in rank.actions if phase in (None, a.phase) and turn in (None, a.turn))


def _comm_seconds(rank: RankRun, step: int, phase: str | None = None, kind: str | None = None, axis: str | None = None) -> float:
    return sum(c.seconds[step] for c in rank.comms if phase in (None, c.phase) and kind in (None, c.kind) and axis in (None, c.axis))


def _over(run: Run, figure: Callable[[RankRun, int], float]) -> Measured:
    """A figure of each timed step of each rank."""
    return _spread([figure(rank, k) for rank in run.ranks for k in range(len(rank.step_s))])


def _spread(figures: Sequence[float], whole: bool = False) -> Measured:
    if whole or len(figures) < 4:
        return Measured(median(figures), min(figures), max(figures), len(figures))
    low, _, high = quantiles(figures, n=4, method="inclusive")
    return Measured(median(figures), low, high, len(figures))
