"""What each unit of the forward pass costs at least, with its backward and update, on the mesh of a stage: the sizes that cuts are chosen by.

In: the graph of a step in turns, shortened, and a mesh. Out: per unit the least seconds of a step (turns times the loop, and what is done once) and of
one forward. A unit's ends are free: what comes in costs nothing and arrives in whatever sharding it likes, and what several units share costs nothing in
those that only have a copy; so sums over units bound every stage, and every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from ..constraints import Constraints
from ..cost.model import CostModel
from ..cost.ops import receive_seconds
from ..cost.prices import build_prices
from ..graph.case import Case, build_case
from ..graph.fusion import Traffic, least_traffic, with_traffic_of
from ..graph.graph import Graph, producer_table, value_table
from ..graph.mesh import Mesh
from ..graph.node import Phase
from ..graph.roles import Roles
from ..graph.stages import COPY, Cutter, list_units, stage_table, sum_at_home
from ..graph.tensor import size_bytes
from ..graph.turns import LOOP, SEND
from .build import Shared, build_problem
from .judge import made_id, share_bytes, wanted_id
from .layouts import stage_roles
from .problem import Chooser, Group, Problem
from .relaxation import Relaxation
from .skeleton import Skeleton
from .stage_cuts import NOTHING, Crossings, Piece, Segments, least_crossings, raise_segments, raise_table, receive_table, sum_segments
from .steer import Steer
from .tables import NONE


@dataclass(frozen=True, slots=True)
class RunCosts:
    """Units that repeat: for 0, 1, 2, ... of them seconds of a step, with free ends and between two cuts, at least; `likely_s`: between two cuts, about,
    as the nearest number that was priced says. They begin at unit `first`, or whole periods after it."""

    free_s: tuple[float, ...]
    between_s: tuple[float, ...]
    likely_s: tuple[float, ...]
    first: int = 0
    period: int = 1


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Per unit, in order.

    Args:
        step_s, fill_s: seconds of a step, and of one forward, at least.
        once_s: of the fastest plan's step, what is done once: before and after the turns. own_once_s: of that, what ops take; the rest is what is brought (sums of gradients).
        always, waiting, passing: bytes of the fastest plan, memory aside: held all the time, per microbatch in flight, beside them at the peak.
        homes: the stage that each must be on (`unit_stages`); (): any.
        crossings, near: what is received where one cuts; of neighbours alone. Of several chunks of a rank one may have what another reads, but for that.
        pieces: what was priced as one stage; not of chunks, for the same reason.
    """

    step_s: tuple[float, ...]
    fill_s: tuple[float, ...]
    once_s: tuple[float, ...]
    own_once_s: tuple[float, ...]
    always: tuple[float, ...]
    waiting: tuple[float, ...]
    passing: tuple[float, ...]
    crossings: Crossings = NOTHING
    near: Crossings = NOTHING
    run: RunCosts | None = None
    homes: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()

    def in_chunks(self, chunks: int) -> UnitCosts:
        """The costs where each rank has so many chunks."""
        return replace(self, crossings=self.near, pieces=()) if chunks > 1 else self

    def segments(self, likely: bool = False) -> np.ndarray:
        """Seconds of a step of the units from `a` to before `b` as one stage or chunk, at [a, b], at least.

        Args:
            likely: not at least, but about.
        """
        alone, count = sum_segments(self.step_s), len(self.step_s)
        table = alone + self.crossings.step_s
        if self.run is not None:
            first, last = self.run.first, self.run.first + len(self.run.free_s) - 1
            ends, own = np.arange(count + 1), np.concatenate([[0.0], np.cumsum(self.step_s[first:last])])
            begins = np.maximum(ends[:, None], first)
            inside, left = np.clip(np.minimum(ends[None, :], last) - begins, 0, None), (first - begins) % self.run.period  # of the period in which it begins
            free, between = np.array(self.run.free_s) - own, np.array(self.run.likely_s if likely else self.run.between_s) - own  # beyond the units one by one
            table += np.maximum(0.0, free[inside if likely else np.maximum(0, inside - left)])
            whole = (ends[:, None] >= max(first, 1)) & (ends[None, :] <= min(last, count - 1)) & (inside > 0)
            if likely:  # what two cuts cost: with one of them half of it
                one = (inside > 0) & ((ends[:, None] > 0) | (ends[None, :] < count)) & ~whole
                table += np.where(one, (between - free)[inside] / 2, 0.0)
            table = np.where(whole & ((left == 0) | likely), np.maximum(table, alone + between[inside]), table)
        return raise_table(table, self.pieces, "step_s")

    def segments_by_phase(self, phases: PhaseCosts | None = None) -> Segments:
        """`segments`, by phase; nothing of the phases where they are not known, but for the forward."""
        forward, nothing = sum_segments(self.fill_s) + self.crossings.forward_s, np.zeros((len(self.step_s) + 1,) * 2)
        if phases is None:
            return raise_segments(Segments(self.segments(), forward, *(nothing,) * 4), self.pieces)
        loop, backward = sum_segments(phases.loop_s) + self.crossings.step_s, sum_segments(phases.drain_s) + self.crossings.backward_s
        prepare, update = sum_segments(phases.prepare_s), sum_segments(phases.update_s)
        return raise_segments(Segments(self.segments(), forward, prepare, loop, backward, update), self.pieces)


@dataclass(frozen=True, slots=True)
class PhaseCosts:
    """Per unit, in order: the least seconds before the turns, of all turns, of one backward, and after the turns, each as if only it counted."""

    prepare_s: tuple[float, ...]
    loop_s: tuple[float, ...]
    drain_s: tuple[float, ...]
    update_s: tuple[float, ...]


PHASE_FIELDS = ("prepare_s", "loop_s", "drain_s", "update_s")
COST_FIELDS = ("step_s", "fill_s", "once_s", "own_once_s", "always", "waiting", "passing")


def least_costs(rows: Sequence[UnitCosts]) -> UnitCosts:
    """Of each figure the least: where stages have other meshes, whichever has a unit. Of what crosses only bytes are known there, not how it is split."""
    first = rows[0]
    if len(rows) == 1:
        return first

    def least(name: str) -> tuple[float, ...]:
        return tuple(map(min, *(getattr(row, name) for row in rows)))

    free = None if first.run is None else tuple(map(min, *(row.run.free_s for row in rows if row.run is not None)))
    run = None if free is None or first.run is None else RunCosts(free, free, free, first.run.first, first.run.period)
    crossings, near = least_crossings([row.crossings for row in rows]), least_crossings([row.near for row in rows])
    return replace(first, run=run, crossings=crossings, near=near, pieces=(), **{name: least(name) for name in COST_FIELDS})


@dataclass(frozen=True, slots=True)
class CrossingValue:
    """A value of the turns that other units read.

    Args:
        targets: (unit, phase in which it first reads it).
    """

    num_bytes: int
    source: int
    targets: tuple[tuple[int, Phase], ...]


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a graph: which of them are alike (a number per kind), and the graph of one of each kind.

    Args:
        crossings: what goes from one unit to others.
        shared: nodes that several units run, each a copy of its own as a stage, and those that add up what several units make: as stages they do without; and
            what enters the step and several units read.
        traffic: of each node of the graph, at least.
        cases, roles, skeletons: per kind.
    """

    kinds: tuple[int, ...]
    crossings: tuple[CrossingValue, ...]
    shared: frozenset[str]
    traffic: Mapping[str, Traffic | None]
    cases: tuple[Case, ...]
    roles: tuple[Roles, ...]
    skeletons: tuple[list[Skeleton], ...]


def part_roles(roles: Roles, whole: Case, part: Case) -> Roles:
    """The roles of a stage, from those of the graph that it was cut from."""
    names = {node.name: i for i, node in enumerate(whole.graph.nodes)}
    nodes = tuple((node.name, node.name.partition(COPY)[0], (*node.inputs, *(o for o in node.outputs if o))) for node in part.graph.nodes)
    renamed = {v.name: v.name.partition(COPY)[0] for v in part.graph.values if COPY in v.name}
    sent = {node.outputs[0]: renamed.get(node.inputs[0], node.inputs[0]) for node in part.graph.nodes if node.op == SEND}
    return stage_roles(roles, names, nodes, {**renamed, **sent})


def find_units(case: Case, roles: Roles) -> Units:
    """The units of a graph in turns."""
    graph = case.graph
    rows = list_units(graph)
    starts = tuple(graph.nodes[row[0]].name for row in rows)
    table = stage_table(graph, starts[1:])
    cutter = Cutter(graph, table, len(rows))
    kinds: dict[tuple, int] = {}
    found: list[int] = []
    cases: list[Case] = []
    own: list[list[int]] = [[] for _ in rows]  # without what every stage makes that reads it: the counters of dropouts are a chain through all blocks
    for i, unit in enumerate(table):
        if unit >= 0:
            own[unit].append(case.fold.node_class[i])
    traffic = least_traffic(graph, case.sites, case.signatures, case.fold.node_class)
    for unit in range(len(rows)):
        key = tuple(own[unit])
        if key not in kinds:
            kinds[key] = len(kinds)
            cases.append(with_least_traffic(build_case(cutter.build(unit).graph, case.rules), traffic))
        found.append(kinds[key])
    apart, homes = sum_at_home(graph, starts[1:], range(len(rows)))  # what units add up over the turns crosses once, after them
    alone = {(node.name, node.inputs) for node in apart.nodes}
    differ = [(unit, node) for unit, node in zip(table, graph.nodes) if (node.name, node.inputs) not in alone]
    shared = frozenset(node.name for unit, node in zip(table, graph.nodes) if unit < 0) | {node.name for _, node in differ}
    shared |= {f"receive_{name}_on_{unit}" for unit, node in differ if node.phase not in LOOP for name in node.inputs}  # a total of a stage's own receives fewer numbers
    readers: dict[str, set[int]] = {}
    for unit, node in zip(table, graph.nodes):
        for name in node.inputs:
            readers.setdefault(name, set()).add(unit)
    shared |= {name for name in graph.inputs if len(readers.get(name, set()) - {-1}) > 1}
    return Units(tuple(found), _list_crossings(apart, homes), shared, traffic, tuple(cases), tuple(part_roles(roles, case, part) for part in cases), tuple([] for _ in cases))


def with_least_traffic(part: Case, known: Mapping[str, Traffic | None]) -> Case:
    """A part of a graph in which what runs in one kernel with nodes beside it costs no more than there."""
    return replace(part, sites=with_traffic_of(part.graph, part.sites, part.fold.node_class, known))


def _list_crossings(graph: Graph, table: Sequence[int]) -> tuple[CrossingValue, ...]:
    """What goes from one unit to others in the turns.

    Args:
        table: the unit of each node (`stage_table`).
    """
    values, makers = value_table(graph), producer_table(graph)
    found: dict[str, dict[int, Phase]] = {}
    for unit, node in zip(table, graph.nodes):
        for name in node.inputs if unit >= 0 and node.phase in LOOP else ():
            made = makers[name][0] if name in makers else -1
            if made >= 0 and table[made] not in (-1, unit) and graph.nodes[made].phase in LOOP:
                found.setdefault(name, {}).setdefault(unit, node.phase)
    return tuple(CrossingValue(size_bytes(values[name]), table[makers[name][0]], tuple(targets.items())) for name, targets in found.items())


def relax_kind(units: Units, kind: int, mesh: Mesh, model: CostModel, constraints: Constraints, turns: int, shared: Shared) -> Relaxation:
    """The program of each unit of a kind, with free ends.

    Args:
        shared: of this mesh and these constraints.
    Raises:
        ConstraintError: the mesh cannot obey.
    """
    case = units.cases[kind]
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    problem = build_problem(
        case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, steer=Steer(constraints, units.roles[kind]),
        skeletons=units.skeletons[kind], turn_weight=float(turns), shared=shared,
    )  # fmt: skip
    return Relaxation(own_costs(problem, units.shared))


def price_kind(unit: Relaxation, problem: Problem, turns: int) -> tuple[float, ...]:
    """The costs of each unit of a kind, in the order of `COST_FIELDS`.

    Args:
        problem: the relaxation's, or that of more turns (`more_turns`); the bytes are those of its graph.
    """
    least = sum(float(c.seconds.min()) for c in problem.choosers)
    if least <= 0:
        return 0.0, 0.0, 0.0, 0.0, 0, 0, 0
    forward = _least_turn(problem, Phase.FORWARD, turns)
    bound, decisions = unit.find(problem)
    if decisions is None:
        return bound, forward, 0.0, 0.0, 0, 0, 0
    return bound, forward, *_once(problem, decisions), *share_bytes(problem, decisions)


def price_crossings(units: Units, model: CostModel, ranks: int, turns: int, near: bool) -> Crossings:
    """What stages of these units receive, each rank its own part.

    Args:
        near: only what goes from a unit to the next or the one before.
        model: with the link between stages.
        ranks: of a stage.
    """
    count = len(units.kinds)
    tables = [np.zeros((count + 1, count + 1)) for _ in range(4)]
    for value in units.crossings:
        seconds = receive_seconds(model, value.num_bytes / ranks)
        readers = [(target, phase) for target, phase in value.targets if not near or abs(target - value.source) == 1]
        before, after = ([target for target, _ in readers if (target > value.source) == later] for later in (True, False))
        forward = [target for target, phase in readers if phase is Phase.FORWARD]
        for table, targets, weight in zip(tables, (before, after, forward, after), (turns, turns, 1, 1)):
            table += receive_table(count, value.source, targets, weight * seconds)
    return Crossings(*tables)


def price_phases(unit: Relaxation, problem: Problem, turns: int) -> tuple[float, ...]:
    """`PhaseCosts` of each unit of a kind. Args: as of `price_kind`."""
    prepare, loop, update = (least_of_phases(unit, phases, problem) for phases in ((Phase.PREPARE,), LOOP, (Phase.UPDATE,)))
    return prepare, loop, _least_turn(problem, Phase.BACKWARD, turns), update


def least_of_phases(relaxation: Relaxation, phases: Sequence[Phase], problem: Problem | None = None) -> float:
    """Seconds of a step if only these phases cost anything, at least.

    Args:
        problem: the relaxation's, or one like it.
    """
    problem = problem or relaxation.problem
    if not any(node.phase in phases for node in problem.graph.nodes):
        return 0.0
    return relaxation.solve(weigh_phases(problem, dict.fromkeys(phases, 1.0)), soon=True)


def weigh_phases(problem: Problem, weights: Mapping[Phase, float]) -> Problem:
    """The problem in which each phase costs so many times as much; what is not named, nothing."""
    return weigh_problem(problem, lambda phase, names: weights.get(phase, 0.0), lambda phase, names: weights.get(phase, 0.0))


def weigh_problem(problem: Problem, weigh_nodes: Callable[[Phase, Sequence[str]], float], weigh_values: Callable[[Phase, Sequence[str]], float]) -> Problem:
    """The problem in which everything costs so many times as much. What decides for several classes of nodes at once costs by the least of theirs; what runs again in the
    backward does so there.

    Args:
        weigh_nodes: phase, names of nodes that are alike (inputs: in the update) -> times, on average.
        weigh_values: phase, names of values that are brought where they are read in it -> times, on average.
    """
    nodes = problem.graph.nodes

    def weigh(chooser: Chooser, seconds: np.ndarray) -> Chooser:  # not `replace`, which takes longer than the rest
        return Chooser(chooser.parts, seconds, chooser.makes, chooser.wants, chooser.num_kept)

    def weighed(chooser: Chooser) -> Chooser:
        phases = [nodes[p.node].phase if p.node >= 0 else Phase.UPDATE for p in chooser.parts]
        first = min(weigh_nodes(phase, p.members) for phase, p in zip(phases, chooser.parts))
        kept, rest = chooser.seconds[: chooser.num_kept], chooser.seconds[chooser.num_kept :]
        if not len(rest):
            return chooser if first == 1.0 else weigh(chooser, kept * first if first else np.zeros_like(kept))
        again = min(weigh_nodes(Phase.BACKWARD if phase is Phase.FORWARD else phase, p.members) for phase, p in zip(phases, chooser.parts))
        if first == again == 1.0:
            return chooser
        if len(kept) == len(rest):
            runs = kept
        elif all(p.again for p in chooser.parts):  # only there as made again, all of it: the first run is half
            runs = rest / 2
        else:  # whichever counts less
            runs = rest if first <= again else np.zeros_like(rest)
        known = np.isfinite(rest) & np.isfinite(runs)
        both = np.full(len(rest), inf)
        both[known] = runs[known] * first + (rest[known] - runs[known]) * again
        return weigh(chooser, np.concatenate((kept * first if first else np.zeros_like(kept), both)))

    groups = (Group(g.value, g.source, g.phase, g.endpoints, g.spans, g.times * weigh_values(g.phase, g.names or (g.value.name,)), g.names, g.made) for g in problem.groups)
    return replace(problem, choosers=tuple(map(weighed, problem.choosers)), groups=tuple(groups))


def _once(problem: Problem, decisions: list[int]) -> tuple[float, float]:
    """Seconds outside of the turns: of ops and of what they want brought; of ops alone."""
    outside = lambda phase: phase not in LOOP  # noqa: E731
    ops = brought = 0.0
    for chooser, k in zip(problem.choosers, decisions):
        if all(p.node < 0 or outside(problem.graph.nodes[p.node].phase) for p in chooser.parts):
            ops += float(chooser.seconds[k])
    for group in problem.groups:
        if outside(group.phase):
            made = made_id(problem, group.source, decisions)
            wanted = {wanted_id(problem, e, decisions) for e in group.endpoints} - {made, NONE}
            seconds = [problem.tables.reshard_seconds(group.value, made, w) for w in wanted] if made != NONE else []
            brought += group.count * sum(s for s in seconds if s < inf)
    return ops + brought, ops


def _least_turn(problem: Problem, phase: Phase, turns: int) -> float:
    """Of the nodes of a phase in one turn, each as fast as it can be."""
    total = 0.0
    for chooser in problem.choosers:
        if all(p.node >= 0 and problem.graph.nodes[p.node].phase is phase for p in chooser.parts):
            total += float(np.min(chooser.seconds)) / turns
    return total


def own_costs(problem: Problem, shared: frozenset[str] = frozenset()) -> Problem:
    """The problem in which only what no other unit has costs anything: not what several units run or read (`stages.COPY`), nor what comes in.

    Args:
        shared: nodes that several units have, too.
    """
    choosers = tuple(
        replace(c, seconds=np.zeros_like(c.seconds)) if all(is_shared(name, shared) for p in c.parts for name in p.members) else c
        for c in problem.choosers
    )
    groups = tuple(replace(g, times=0.0) if is_shared(g.value.name, shared) or _meets_others(problem, g) else g for g in problem.groups)
    return replace(problem, choosers=choosers, groups=groups)


def is_shared(name: str, shared: frozenset[str]) -> bool:
    """True of a value or a node that several units have: of a copy, and of what is copied."""
    return COPY in name or name in shared


def _meets_others(problem: Problem, group: Group) -> bool:
    """True where a value is only read to be sent, or together with what comes in (the gradient of a tied weight: it may be owed as a whole)."""
    for endpoint in group.endpoints:
        parts = problem.choosers[endpoint.chooser].parts if endpoint.chooser >= 0 else ()
        nodes = [problem.graph.nodes[p.node] for p in parts if p.node >= 0]
        if not nodes or not all(node.op == SEND or any(COPY in name for name in node.inputs) for node in nodes):
            return False
    return True
