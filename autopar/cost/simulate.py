"""Simulate: a plan's step replayed, as its program runs it: two streams per device, microbatches, stages, the update.

In: a `Plan` (nothing else: a saved plan is enough). Out: a `Simulation`: when each action of each stage runs, what each pass is made of, and where the
seconds of the step go. Invariant: the rows of `parts` add up to `step_s`.

    a pass         forward or backward of one microbatch, or what is done before or after all of them: `streams.run_pass`
    the schedule   `graph.schedules`, with the seconds of the passes; of several microbatches each backward waits for what it reduces, for it is added up there
    the update     of a stage begins when its last backward is over and its trailing reductions are

The solver adds the same prices by phase (docs/design/cost.md); the replay knows the order. How far the two differ is `step_s / planned_s`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ..graph.chunk_times import chunk_durations
from ..graph.flying import weigh_flying
from ..graph.node import Phase
from ..graph.plan import CommPlan, NodePlan, Plan
from ..graph.repeats import block_of, block_path
from ..graph.reshard import StepKind
from ..graph.schedules.held import list_flying
from ..graph.schedules.known import build_order, splits_backward
from ..graph.schedules.order import Order
from ..graph.schedules.timeline import Durations, action_times
from ..graph.tensor import STATE_KINDS, Kind
from ..graph.turns import RECEIVE
from .action_pieces import Place, place_nodes
from .op_kinds import kind_of_op
from .streams import TRAIL, Pass, Piece, Ran, Role, run_pass

PHASES = (Phase.PREPARE, Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)
WAITS, UPDATE, BUBBLE = "communication", "update", "bubble"


@dataclass(frozen=True, slots=True)
class StagePasses:
    """What one stage runs: a pass per phase, in the order of `PHASES`; forward and backward of one microbatch, all chunks, once running.

    Args:
        places: which actions run each piece of forward and backward.
    """

    passes: tuple[Pass, ...]
    places: Mapping[str, Place]

    def seconds(self, phase: Phase) -> float:
        return self.passes[PHASES.index(phase)].seconds


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a stage's devices: `F3`, `B3`, `W3` (with the chunk where there are several: `2F3`), `prepare`, `update`.

    Args:
        place: of a forward or backward, which pieces it runs.
    """

    stage: int
    name: str
    phase: Phase
    start_s: float
    end_s: float
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Where seconds of the step go, on the average device.

    Args:
        group: `compute`, `communication`, `update` or `bubble`.
        what: `matmul`, `all_reduce along tp of activations`, ...
    """

    group: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that one device of a stage holds from a time on."""

    stage: int
    time_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """A step, replayed.

    Args:
        planned_s: what the plan says.
        parts: add up to `step_s`, the largest first within a group.
        stages: what each runs.
        actions: by stage, then time.
        memory: by stage, then time.
    """

    step_s: float
    planned_s: float
    parts: tuple[Part, ...]
    stages: tuple[StagePasses, ...]
    actions: tuple[Action, ...]
    memory: tuple[Held, ...]


def simulate_plan(plan: Plan) -> Simulation:
    """Replay one step of a plan."""
    stages, labels = [], []
    order = _order_of(plan)
    for stage in range(plan.num_stages):
        found, kinds = _stage_passes(plan, stage, [chunk for chunk, rank in enumerate(order.rank_of) if rank == stage])
        stages.append(found)
        labels.append(kinds)
    actions = _actions(plan, stages, order)
    step_s = max(a.end_s for a in actions)
    return Simulation(step_s, plan.cost.step_s, _parts(plan, stages, labels, actions, step_s), tuple(stages), actions, _memory(plan, stages, actions))


# --- passes ---------------------------------------------------------------------------------------------------------------------------


def _stage_passes(plan: Plan, stage: int, chunks: Sequence[int]) -> tuple[StagePasses, dict[str, str]]:
    """The passes of a stage; and piece -> what it is, for people."""
    stage_of = {t.name: t.stage for t in plan.tensors}
    kinds, made = {t.name: (t.kind, t.version) for t in plan.tensors}, {name: node.phase for node in plan.nodes for name in node.outputs}
    share = plan.cluster.exposed_share
    nodes = [n for n in plan.nodes if plan.num_stages == 1 or _stage_of(n, stage_of) == stage]
    mine = {n.name for n in nodes}
    before, after = _around(plan, nodes, [c for c in plan.comms if c.reader in mine or c.reader == "end"])
    together = _together(plan.comms)
    of_node, places = place_nodes(plan, nodes, chunks), dict[str, Place]()
    labels: dict[str, str] = {}
    passes: dict[Phase, Pass] = {}
    backlog: tuple[tuple[str, float], ...] = ()
    for phase in PHASES:
        turns = plan.num_microbatches if phase in (Phase.FORWARD, Phase.BACKWARD) else 1
        pieces: list[Piece] = []
        for node in nodes:
            place = block_of(node.path, plan.model.sequences)
            block = block_path(*place) if place is not None else ""
            rows: list[NodePlan | CommPlan] = [*before.get(node.name, ()), node, *after.get(node.name, ())]
            for row in rows:
                if row.phase is not phase:
                    continue
                if node.name in of_node:
                    places[row.name] = of_node[node.name]
                if isinstance(row, NodePlan):
                    labels[row.name] = kind_of_op(row.op, row.flops > 0) if row.op != RECEIVE else "receive from another stage"
                    role = Role.COMPUTE if row.op != RECEIVE else Role.BLOCKING
                else:
                    role = _role(row, phase, kinds, made)
                    labels[row.name] = _print_comm(row, kinds) if role is not Role.COMPUTE else "cutting local pieces"
                axes, starts_at = (together.get(row.name, (row.axis,)), row.starts_at if not block else "") if isinstance(row, CommPlan) else (("",), "")
                pieces.append(Piece(row.name, role, row.seconds / turns, block, axes, starts_at))
        if phase is Phase.UPDATE and backlog:  # the update reads what the reductions bring: they end first
            pieces.insert(0, Piece(TRAIL, Role.BLOCKING, max(seconds for _, seconds in backlog)))
        passes[phase] = run_pass(pieces, share, waits_for_all=turns > 1)
        if phase is Phase.BACKWARD:
            backlog = passes[phase].left
    return StagePasses(tuple(passes[p] for p in PHASES), places), labels


def _stage_of(node: NodePlan, stage_of: Mapping[str, int]) -> int:
    """By what it makes, or else (a send) by what it reads."""
    return next((stage_of[name] for name in (*node.outputs, *node.inputs) if name in stage_of), 0)


def _around(plan: Plan, nodes: Sequence[NodePlan], comms: Sequence[CommPlan]) -> tuple[dict[str, list[CommPlan]], dict[str, list[CommPlan]]]:
    """Node -> the communications right before it, and those right after it (of what it makes: gradients to where the update wants them)."""
    makes = {n.name: set(n.outputs) for n in nodes}
    last = nodes[-1].name if nodes else ""
    before: dict[str, list[CommPlan]] = {}
    after: dict[str, list[CommPlan]] = {}
    for row in comms:
        where = row.reader if row.reader in makes else last
        side = after if row.value in makes.get(where, ()) or row.reader not in makes else before
        side.setdefault(where, []).append(row)
    return before, after


def _together(comms: Sequence[CommPlan]) -> dict[str, tuple[str, ...]]:
    """Of what a reader gets of one value by collectives of one kind along several axes: collective -> its own axis, and the others. Programs start them as one
    (`graph.overlap`), so they wait for each other and for all that runs along any of these axes."""
    chains: dict[tuple[str, str, str, Phase], list[CommPlan]] = {}
    for row in comms:
        if row.kind not in (StepKind.SLICE.value, StepKind.KEEP.value):
            chains.setdefault((row.value, row.reader, row.kind, row.phase), []).append(row)
    return {row.name: (row.axis, *(r.axis for r in rows if r.axis != row.axis)) for rows in chains.values() for row in rows}


def _role(row: CommPlan, phase: Phase, kinds: Mapping[str, tuple[Kind, int]], made: Mapping[str, Phase]) -> Role:
    """As `graph.transfer.may_hide`, from the plan's tables. Local cuts are compute."""
    if row.kind in (StepKind.SLICE.value, StepKind.KEEP.value):
        return Role.COMPUTE
    kind, version = kinds.get(row.value, (Kind.ACTIVATION, 0))
    if phase not in (Phase.FORWARD, Phase.BACKWARD):
        return Role.BLOCKING
    if kind is Kind.GRAD:
        return Role.TRAILING
    if kind in STATE_KINDS and version == 0:
        return Role.PREFETCH
    early = kind not in STATE_KINDS and phase is Phase.BACKWARD and made.get(row.value) is not Phase.BACKWARD and row.kind == StepKind.ALL_GATHER.value
    return Role.EARLY if early else Role.BLOCKING


def _print_comm(row: CommPlan, kinds: Mapping[str, tuple[Kind, int]]) -> str:
    kind = kinds.get(row.value, (Kind.ACTIVATION, 0))[0]
    what = {Kind.PARAM: "parameters", Kind.GRAD: "gradients", Kind.OPTIM: "optimizer states", Kind.BUFFER: "buffers"}.get(kind, "activations")
    return f"{row.kind} along {row.axis} of {what}"


# --- the schedule ---------------------------------------------------------------------------------------------------------------------


def _order_of(plan: Plan) -> Order:
    pipeline = plan.pipeline
    if pipeline is None:
        trained = any(node.phase is Phase.BACKWARD for node in plan.nodes)
        return build_order("1f1b" if trained else "forward-only", 1, plan.num_microbatches)
    return build_order(pipeline.kind, plan.num_stages, plan.num_microbatches, pipeline.chunks)


def _actions(plan: Plan, stages: Sequence[StagePasses], order: Order) -> tuple[Action, ...]:
    chunks = 1 if plan.pipeline is None else plan.pipeline.chunks
    times = action_times(order, _durations(plan, stages, order))
    began = max(s.seconds(Phase.PREPARE) for s in stages)
    found = []
    for stage, (row, spans) in enumerate(zip(order.rows, times)):
        if stages[stage].seconds(Phase.PREPARE) > 0:
            found.append(Action(stage, "prepare", Phase.PREPARE, 0.0, stages[stage].seconds(Phase.PREPARE)))
        for code, (start, end) in zip(row, spans):
            name, phase, place = _print_action(order, code, chunks)
            found.append(Action(stage, name, phase, began + start, began + end, place))
        end = began + spans[-1][1] if spans else began
        if stages[stage].seconds(Phase.UPDATE) > 0:
            found.append(Action(stage, "update", Phase.UPDATE, end, end + stages[stage].seconds(Phase.UPDATE)))
    return tuple(found)


def _durations(plan: Plan, stages: Sequence[StagePasses], order: Order) -> Durations:
    """Seconds of each chunk: those of the stage's passes, shared among its chunks, and within a backward, as the plan says."""
    if plan.pipeline is None:
        return Durations((stages[0].seconds(Phase.FORWARD),), (stages[0].seconds(Phase.BACKWARD),))
    told = chunk_durations(plan.pipeline.stages, order.rank_of, splits_backward(plan.pipeline.kind))

    def scale(row: Sequence[float], phase: Phase, of_plan: Sequence[float]) -> tuple[float, ...]:
        return tuple(s * stages[rank].seconds(phase) / of_plan[rank] if of_plan[rank] else stages[rank].seconds(phase) / plan.pipeline.chunks for s, rank in zip(row, order.rank_of))

    forwards, backwards = ([getattr(s, name) for s in plan.pipeline.stages] for name in ("forward_s", "backward_s"))
    weights = tuple(s * stages[rank].seconds(Phase.BACKWARD) / backwards[rank] if backwards[rank] else 0.0 for s, rank in zip(told.weight_s, order.rank_of))
    return Durations(scale(told.forward_s, Phase.FORWARD, forwards), scale(told.backward_s, Phase.BACKWARD, backwards), weights)


def _print_action(order: Order, code: int, chunks: int) -> tuple[str, Phase, Place]:
    size = order.num_stages * order.num_microbatches
    kind, rest = divmod(code, size)
    chunk, turn = divmod(rest, order.num_microbatches)
    return f"{chunk if chunks > 1 else ''}{'FBW'[kind]}{turn}", Phase.FORWARD if kind == 0 else Phase.BACKWARD, Place(chunk, kind == 2)


# --- where the seconds go -------------------------------------------------------------------------------------------------------------


def _parts(plan: Plan, stages: Sequence[StagePasses], labels: Sequence[Mapping[str, str]], actions: Sequence[Action], step_s: float) -> tuple[Part, ...]:
    """Of the average device."""
    found: dict[tuple[str, str], float] = {}
    for stage, mine in zip(stages, labels):
        for phase, one in zip(PHASES, stage.passes):
            times = (plan.num_microbatches if phase in (Phase.FORWARD, Phase.BACKWARD) else 1) / len(stages)
            for ran in one.ran:
                if ran.piece.role is Role.COMPUTE and ran.piece.seconds:
                    key = (UPDATE, "optimizer") if phase is Phase.UPDATE else ("compute", mine[ran.piece.name])
                    found[key] = found.get(key, 0.0) + times * ran.piece.seconds
            for name, seconds in one.waits:
                for what, share in _waited_for(stage, phase, mine, name, seconds):
                    found[WAITS, what] = found.get((WAITS, what), 0.0) + times * share
    rest = step_s - fsum(found.values())
    if rest > 1e-12 * step_s:
        found[BUBBLE, "waiting for other stages"] = rest
    groups = ("compute", WAITS, UPDATE, BUBBLE)
    return tuple(Part(g, what, s) for (g, what), s in sorted(found.items(), key=lambda row: (groups.index(row[0][0]), -row[1])))


def _waited_for(stage: StagePasses, phase: Phase, labels: Mapping[str, str], name: str, seconds: float) -> list[tuple[str, float]]:
    """(what a pass waited for, how long). What trails when the backward pass is over: each kind of collective that then runs on the stream that is busy the longest."""
    if name != TRAIL:
        return [(labels.get(name, name), seconds)]
    backward = stage.passes[PHASES.index(Phase.BACKWARD)]
    begin = backward.seconds if phase is Phase.UPDATE else backward.seconds - seconds
    late = [ran for ran in backward.ran if ran.piece.role is Role.TRAILING and ran.end_s > begin]
    last = max(late, key=lambda ran: ran.end_s)
    shares = [(f"{labels[ran.piece.name]}, late", ran.end_s - max(begin, ran.start_s)) for ran in late if set(ran.piece.axes) & set(last.piece.axes)]
    total = fsum(share for _, share in shares)
    return [(what, seconds * share / total) for what, share in shares]


def _memory(plan: Plan, stages: Sequence[StagePasses], actions: Sequence[Action]) -> tuple[Held, ...]:
    """Bytes over time: of one stage node by node, but of several microbatches the most of each forward and backward; of several stages what is always there, and in the turns what each microbatch in
    flight keeps and what its work takes at most."""
    if plan.num_stages == 1:
        return tuple(_moments(plan, stages[0], actions))
    found, order = [], _order_of(plan)
    for stage in range(plan.num_stages):
        chunks = [chunk.kept_bytes for chunk in plan.pipeline.stages[stage].chunks] if plan.pipeline is not None else []
        in_flight = plan.pipeline.stages[stage].in_flight if plan.pipeline is not None else 1.0
        always = plan.cost.state_bytes[stage]
        kept = plan.cost.activation_bytes[stage] / max(in_flight, 1.0)
        top = plan.cost.peak_bytes[stage] - always - plan.cost.activation_bytes[stage]
        turns = [a for a in actions if a.stage == stage and a.phase in (Phase.FORWARD, Phase.BACKWARD)]
        if turns and turns[0].start_s > 0:
            found.append(Held(stage, 0.0, always))
        for action, flying in zip(turns, list_flying(order, stage)):
            found.append(Held(stage, action.start_s, round(always + kept * weigh_flying(flying, chunks) + max(0, top))))
        found.append(Held(stage, max((a.end_s for a in actions if a.stage == stage), default=0.0), always))
    return tuple(found)


def _moments(plan: Plan, stage: StagePasses, actions: Sequence[Action]) -> Iterator[Held]:
    """Of one stage."""
    at, now = _node_times(stage, actions), 0.0
    for action in sorted(actions, key=lambda a: a.start_s):
        moments = [moment for moment in plan.cost.moments if moment.phase is action.phase]
        if moments and plan.num_microbatches > 1 and action.phase in (Phase.FORWARD, Phase.BACKWARD):
            yield Held(0, action.start_s, max(moment.bytes for moment in moments))
            continue
        for moment in moments:
            now = max(now, action.start_s, at.get(moment.node, now))  # what has no time of its own (a cut, a message that others take along) runs with what is before it
            yield Held(0, now, moment.bytes)
    if plan.num_microbatches > 1:
        yield Held(0, max((a.end_s for a in actions), default=0.0), plan.cost.state_bytes[0])


def _node_times(stage: StagePasses, actions: Sequence[Action]) -> dict[str, float]:
    """Node -> its start, of a step with one microbatch."""
    starts = {a.phase: a.start_s for a in actions}
    return {ran.piece.name: starts.get(phase, 0.0) + ran.start_s for phase, one in zip(PHASES, stage.passes) for ran in one.ran}


def list_ran(simulation: Simulation, action: Action) -> tuple[Ran, ...]:
    """What runs in an action, at the times of the whole stage's pass (`Pass.ran`)."""
    stage = simulation.stages[action.stage]
    ran = stage.passes[PHASES.index(action.phase)].ran
    return ran if action.place is None else tuple(r for r in ran if stage.places.get(r.piece.name, action.place) == action.place)
