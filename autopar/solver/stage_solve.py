"""The best plan of one stage: its graph on the mesh of the stage, with what crosses its ends brought there in one given way.

In: a stage (`graph.stages`), its mesh, prices, a memory limit, how many microbatches are in flight. Out: decisions, an assignment of the stage's own
nodes, and its times: before the turns, forward and backward of one turn, after them. What crosses is split as finely as the mesh allows: the batch
along the axes of dp, then any dim along all others; so every rank sends its own part, and who needs more gathers it there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from ..constraints import DATA, SEQUENCE, Constraints, axis_role
from ..cost.estimate import hidden_seconds, node_seconds
from ..cost.habits import ends_hidden_seconds, flat_states_seconds, rest_of_blocks
from ..cost.memory import ALONE, Among, Memory, estimate_memory, kept_of_chunks
from ..cost.model import CostModel
from ..cost.prices import build_prices
from ..graph.case import Case, copy_case
from ..graph.choice import Assignment
from ..graph.chunk_times import NO_CHUNKS, ChunkTimes
from ..graph.flying import kept_by_chunk, most_flying
from ..graph.graph import Graph, value_table
from ..graph.mesh import Mesh, axis_sizes
from ..graph.node import Node, Phase, Ref
from ..graph.partition import assigned_strategies, node_cuts, partition
from ..graph.program import Program
from ..graph.repeats import Fold
from ..graph.roles import Roles
from ..graph.rule import Signature, Site, find_rule, resolve
from ..graph.schedules.order import Order
from ..graph.sections import weight_nodes
from ..graph.sharding import REPLICATE, Placement, Shard, Sharding, why_illegal
from ..graph.stage_programs import program_chunks
from ..graph.stage_wires import list_turns_held
from ..graph.stages import Stage
from ..graph.strategy import Strategy, list_strategies
from ..graph.tensor import Value, size_bytes
from ..graph.turns import LOOP, RECEIVE, SEND, count_microbatches, times_of
from .build import Shared, build_problem
from .formulate import count_columns
from .mixed import mix_answer, widen_answer
from .one_mesh import MeshAnswer, build_assignment, solve_mesh
from .problem import Problem
from .role_meshes import SPARE, data_axes
from .skeleton import Skeleton
from .steer import Steer, names_some

_MOST_COLUMNS = 400_000
_SLACK, _MOST_BESIDE = 1e-3, 0.5  # shares of the limit: left free beside what is known to be too much; of what is held beside a program


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of one stage: once before the turns, per turn forward, backward, and of the backward what only the weights need; once after. `chunks`: of a turn what each
    chunk takes, where there are several."""

    prepare_s: float
    forward_s: float
    backward_s: float
    weight_s: float
    update_s: float
    chunks: tuple[ChunkTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class StageAnswer:
    """A stage with its decisions. `assignment`: None where it has no plan (`answer` says why); `answer`: None where nobody searched for it."""

    case: Case
    answer: MeshAnswer | None
    assignment: Assignment | None
    memory: Memory | None
    times: StageTimes | None

    @property
    def found(self) -> MeshAnswer:
        """What the search found, of a stage that was searched for."""
        assert self.answer is not None, "a given stage has no answer"
        return self.answer


def crossing_sharding(value: Value, mesh: Mesh, roles: Roles, dp_takes_any: bool, tp_takes_sequence: bool = True) -> Sharding:
    """How a value crosses: the batch along dp, the sequence along sp, then each other axis takes the largest dim that divides.

    Args:
        dp_takes_any: dp does so, too, where the value has no batch (a gradient), with any dim but the sequence.
        tp_takes_sequence: the other axes may take the sequence.
    """
    batch = [(dim, upper) for dim, _, upper, role in roles.pieces.get(value.name, ()) if role == DATA]
    sequence = {dim for dim, _, _, role in roles.pieces.get(value.name, ()) if role == SEQUENCE}
    placements: list[Placement] = [REPLICATE] * len(mesh.axes)
    sizes, left = axis_sizes(mesh), list(value.shape)
    for k, axis in enumerate(mesh.axes):
        if axis.name == SPARE or not dp_takes_any and axis_role(axis.name) == DATA and not batch:
            continue
        own = {DATA: {dim for dim, _ in batch}, SEQUENCE: sequence}.get(axis_role(axis.name), set())
        taken = {dim for dim, _ in batch} | (sequence if axis_role(axis.name) == DATA or not tp_takes_sequence else set())
        dims = list(own) if own else [d for d in range(len(left)) if d not in taken]
        for dim in sorted(dims, key=lambda d: -left[d]):
            stride = left[dim] // axis.size
            placements[k] = Shard(dim, stride) if stride and left[dim] % axis.size == 0 else REPLICATE
            if placements[k] != REPLICATE and not why_illegal(value.shape, Sharding(tuple(placements)), sizes):
                left[dim] = stride
                break
            placements[k] = REPLICATE
    return Sharding(tuple(placements))


def crossing_choices(
    case: Case, mesh: Mesh, roles: Roles, constraints: Constraints = Constraints(), mesh_of: Callable[[int], Mesh] | None = None
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The strategy of every send and receive: that of its value's crossing sharding, or the nearest that the rule has.

    Args:
        mesh_of: of a stage by its number, where not all have this one. Both ends must agree: an axis that is dp on either is dp for what crosses.
    """
    values = {v.name: v for v in case.graph.values}
    found = []
    for node, site, signature in zip(case.graph.nodes, case.sites, case.signatures):
        if node.op in (SEND, RECEIVE):
            dp_takes_any = constraints.zero != 0 and node.phase not in (Phase.PREPARE, Phase.FORWARD)
            other = mesh_of(int(dict(node.args)["stage"])) if mesh_of is not None else mesh  # type: ignore[call-overload]
            between = Mesh(tuple(b if axis_role(b.name) == DATA else a for a, b in zip(mesh.axes, other.axes)))
            wanted = crossing_sharding(values[node.outputs[0]], between, roles, dp_takes_any, constraints.sequence_parallel is not False)
            found.append((node.name, _nearest(case, site, signature, mesh, wanted).choices))
    return tuple(found)


def nearest_crossing(case: Case, mesh: Mesh, roles: Roles, value: Value, dp_takes_any: bool, tp_takes_sequence: bool = True) -> Sharding:
    """How a value of a graph that is not cut would cross. Args: as of `crossing_sharding`."""
    node = Node(f"send_{value.name}", SEND, (value.name,), (("x", Ref(0)),), (value.name,), Phase.FORWARD)
    site = Site(node, (value.shape,), (value.shape,), (value.dtype,))
    wanted = crossing_sharding(value, mesh, roles, dp_takes_any, tp_takes_sequence)
    return _nearest(case, site, resolve(find_rule(case.rules, node), site), mesh, wanted).outputs[0]


def _nearest(case: Case, site: Site, signature: Signature, mesh: Mesh, wanted: Sharding) -> Strategy:
    """Of what the rule of a send or receive has, that of the sharding which is most like this one."""
    menu = list_strategies(signature, site, axis_sizes(mesh), node_cuts(site, signature, case.cuts))[0]
    return max(menu, key=lambda s: sum(a == b for a, b in zip(s.outputs[0].placements, wanted.placements)))


def _with_crossings(case: Case, mesh: Mesh, steer: Steer, mesh_of: Callable[[int], Mesh] | None) -> Steer:
    return replace(steer, choices=(*steer.choices, *crossing_choices(case, mesh, steer.roles, steer.constraints, mesh_of)))


def stage_problem(case: Case, mesh: Mesh, steer: Steer, model: CostModel, weight: float, mesh_of: Callable[[int], Mesh] | None = None) -> Problem:
    """The problem that `solve_stage` begins with: nothing is made again, but where that is demanded."""
    said, prices = steer.constraints.recompute or "free", build_prices(model, mesh, case.graph, case.sites, case.signatures)
    return build_problem(
        case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, steer=_with_crossings(case, mesh, steer, mesh_of),
        recompute="none" if said == "free" else said, turn_weight=weight,
    )  # fmt: skip


def solve_stage(
    case: Case,
    mesh: Mesh,
    steer: Steer,
    model: CostModel,
    limit_bytes: float | None,
    in_flight: float,
    weight: float,
    time_limit_s: float,
    cutoff_s: float = inf,
    mesh_of: Callable[[int], Mesh] | None = None,
    among: Among = ALONE,
    room_bytes: float | None = None,
) -> StageAnswer:
    """Solve one stage.

    Args:
        case: of the stage's graph.
        steer: the constraints inside of the stage, with its roles; what crosses is added here.
        limit_bytes: for tensors.
        in_flight: microbatches in flight, at most; where it runs several chunks, about: what they keep is known afterwards.
        weight: what one turn counts (`layouts.turn_weight`).
        mesh_of: as of `crossing_choices`.
        among: where it is among other stages.
        room_bytes: of the limit, for what the program itself holds; None: all of it.
    Raises:
        ConstraintError: the mesh cannot obey.
    """
    deadline = time.monotonic() + time_limit_s
    asked, steer = steer, _with_crossings(case, mesh, steer, mesh_of)
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    said = steer.constraints.recompute or "free"

    shared, skeletons = Shared(), list[Skeleton]()

    def build(recompute: str, fold: Fold = case.fold) -> Problem:
        return build_problem(
            case.graph, case.sites, case.signatures, case.cuts, fold, mesh, prices, steer=steer, recompute=recompute, in_flight=in_flight, turn_weight=weight,
            skeletons=skeletons if fold is case.fold else [], shared=shared,
        )

    room = limit_bytes if room_bytes is None else room_bytes
    measured: dict[Assignment, tuple[Case, Program, Memory]] = {}  # the last one: it is the answer's, as a rule

    def build_program(assignment: Assignment) -> tuple[Case, Program, Memory]:
        if assignment not in measured:
            mine, program = stage_program(case, assignment)
            held = most_flying(among.held, kept_of_chunks(program, among)) if among.chunk_of and among.held else in_flight
            measured.clear()
            measured[assignment] = mine, program, estimate_memory(program, 0, held, among)
        return measured[assignment]

    def measure(assignment: Assignment) -> int:
        return build_program(assignment)[2].peak_bytes

    def solve(problem: Problem, give_up: bool) -> MeshAnswer:
        left = max(0.5, deadline - time.monotonic())
        return solve_mesh(problem, room, time_limit_s=left, cutoff_s=cutoff_s, measure=measure, give_up_tight=give_up)

    form = "none" if said == "free" else said
    problem = build(form)
    answer = solve(problem, said == "free")
    if answer.status == "tight":
        fastest, wide = answer.heavy, build("free")
        if wide.can_recompute and count_columns(wide) <= _MOST_COLUMNS:
            form, problem, answer = "free", wide, solve(wide, False)
            if answer.status == "unknown":  # then all that may be made again is, which is soon found and often fits
                full = build("full")
                made = solve(full, False)
                if made.status == "solved":
                    answer = widen_answer(full, wide, replace(made, bound_s=min(answer.bound_s, made.objective_s)), fastest)
        elif wide.can_recompute:  # only without recompute; the bound is that of the fastest plan, which recompute does not make faster
            answer = _narrowed(solve(problem, False), answer.bound_s)
        else:
            answer = replace(solve(problem, False), bound_s=answer.bound_s)
    if answer.status != "solved":
        return StageAnswer(case, answer, None, None, None)
    if room is not None and not names_some(steer.constraints):
        problem, answer = mix_answer(problem, answer, case.repeats, lambda fold: build(form, fold), room, measure, deadline)
    assignment = build_assignment(problem, answer.decisions)
    mine, program, memory = build_program(assignment)
    if limit_bytes is not None and room is not None and memory.peak_bytes > limit_bytes:  # what is held beside the program the judge does not see: leave room for it
        left, room = max(0.5, deadline - time.monotonic()), room - (memory.peak_bytes - limit_bytes) - _SLACK * limit_bytes
        if room < (1 - _MOST_BESIDE) * limit_bytes:
            return StageAnswer(case, _narrowed(replace(answer, status="infeasible"), answer.bound_s), None, None, None)
        return solve_stage(case, mesh, asked, model, limit_bytes, in_flight, weight, left, cutoff_s, mesh_of, among, room)
    times = time_program(mine, program, assignment, model, dict(among.chunk_of), said == "full" and model.whole_blocks)
    return StageAnswer(case, answer, assignment, memory, times)


def _narrowed(answer: MeshAnswer, bound_s: float) -> MeshAnswer:
    """The answer of a program that leaves plans out: that it has none does not say that there is none."""
    return replace(answer, bound_s=bound_s, status="unknown" if answer.status == "infeasible" else answer.status)


def flying_of(answer: StageAnswer, among: Among, in_flight: float) -> float:
    """Microbatches in flight of a stage that has a plan, at most.

    Args:
        in_flight: where it runs one chunk.
    """
    chunks = answer.times.chunks if answer.times is not None else ()
    return most_flying(among.held, [chunk.kept_bytes for chunk in chunks]) if chunks and among.held else in_flight


def place_among(stages: Sequence[Graph], here: int, order: Order, number: int, chunks: Sequence[Mapping[str, int]] = ()) -> Among:
    """Where a stage is among others. Args: as of `list_turns_held`."""
    others = [(graph, value_table(graph)) for k, graph in enumerate(stages) if k != here]
    given = sum(size_bytes(values[name]) for graph, values in others for name in graph.outputs)
    return Among(given, list_turns_held(stages, here, order, number, chunks) if len(stages) > 1 else (), tuple(chunks[here].items()) if chunks else ())


def holds_as_many(mine: Among, other: Among) -> bool:
    """True where a stage holds at least as many messages in each kind of action, at most, as one that is like it: the sends and receives of both come in one order."""
    return all(a >= b for a, b in zip(_most_messages(mine), _most_messages(other)))


def _most_messages(among: Among) -> tuple[int, int]:
    """Of forwards and backwards."""
    most = {phase: max((sum(count for _, count in row.messages) for row in among.held if row.phase is phase), default=0) for phase in (Phase.FORWARD, Phase.BACKWARD)}
    return most[Phase.FORWARD], most[Phase.BACKWARD]


def stage_program(case: Case, assignment: Assignment) -> tuple[Case, Program]:
    """The program of one stage, and the case with its copies."""
    case = copy_case(case, assignment.again)
    return case, partition(case.graph, case.sites, case.signatures, case.cuts, assignment)


def time_stage(case: Case, assignment: Assignment, model: CostModel, chunk_of: Mapping[str, int] = NO_CHUNKS) -> StageTimes:
    """The times of a stage by its program."""
    return time_program(*stage_program(case, assignment), assignment, model, chunk_of)


def time_program(case: Case, program: Program, assignment: Assignment, model: CostModel, chunk_of: Mapping[str, int] = NO_CHUNKS, whole_blocks: bool = False) -> StageTimes:
    """The times of a stage.

    Args:
        case: with its copies (`stage_program`).
        chunk_of: node of its graph -> its chunk, where the stage runs several.
        whole_blocks: the backward pass runs the forward pass of each block again, all of it.
    """
    strategies = assigned_strategies(case.graph, case.sites, case.signatures, case.cuts, assignment)
    seconds = node_seconds(model, program, case.sites, case.signatures, strategies)
    hidden = hidden_seconds(model, program, seconds)
    turns = count_microbatches(program.graph)
    weights = weight_nodes(program.graph.nodes)
    total = {phase: 0.0 for phase in Phase}
    numbers = program_chunks(program, chunk_of) if chunk_of else {}
    parts = [{Phase.FORWARD: 0.0, Phase.BACKWARD: 0.0} for _ in range(1 + max(chunk_of.values(), default=0))]  # of each chunk
    weight_of = [0.0 for _ in parts]
    for node in program.graph.nodes:
        once, number = (seconds[node.name] - hidden.get(node.name, 0.0)) / times_of(node.phase, turns), numbers.get(node.name, 0)
        total[node.phase] += once
        if node.phase in LOOP:
            parts[number][node.phase] += once
            weight_of[number] += once if node.name in weights else 0.0
    if whole_blocks:
        for name in rest_of_blocks(program):
            total[Phase.BACKWARD] += seconds[name] / turns
            parts[numbers.get(name, 0)][Phase.BACKWARD] += seconds[name] / turns
    if model.hides_ends:
        total[Phase.UPDATE] -= ends_hidden_seconds(model, program, seconds)
    if model.flat_states:
        total[Phase.UPDATE] -= flat_states_seconds(program, data_axes(program.mesh), seconds)
    kept = kept_by_chunk(program.graph, numbers) if chunk_of else ()
    chunks = tuple(ChunkTimes(part[Phase.FORWARD], part[Phase.BACKWARD], weight_s, size) for part, weight_s, size in zip(parts, weight_of, kept)) if chunk_of else ()
    return StageTimes(total[Phase.PREPARE], total[Phase.FORWARD], total[Phase.BACKWARD], sum(weight_of), total[Phase.UPDATE], chunks)


def align(stage: Stage, other: Stage) -> dict[str, str] | None:
    """Node and input names of a stage -> those of another that is like it, by position; None where they are not alike."""
    mine, theirs = stage.graph, other.graph
    if len(mine.nodes) != len(theirs.nodes) or len(mine.inputs) != len(theirs.inputs) or any(map(_differ, mine.nodes, theirs.nodes)):
        return None
    return {**{a.name: b.name for a, b in zip(mine.nodes, theirs.nodes)}, **dict(zip(mine.inputs, theirs.inputs))}


def _differ(a: Node, b: Node) -> bool:
    return a.op != b.op or len(a.inputs) != len(b.inputs) or a.phase is not b.phase
