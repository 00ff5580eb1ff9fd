"""What each unit of the forward pass costs at least, with its backward and update, on the mesh of a stage: the sizes that cuts are chosen by.

In: the graph of a step in turns, shortened, and a mesh. Out: per unit the least seconds of a step (turns times the loop, and what is done once) and of
one forward. A unit's ends are free: what comes in costs nothing and arrives in whatever sharding it likes, and what several units share costs nothing in
those that only have a copy; so sums over units bound every stage, and every plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from ..constraints import Constraints
from ..cost.model import CostModel
from ..cost.ops import receive_seconds
from ..cost.prices import build_prices
from ..graph.case import Case, build_case
from ..graph.mesh import Mesh
from ..graph.node import Phase
from ..graph.roles import Roles
from ..graph.stages import COPY, Cutter, list_units, stage_table
from ..graph.tensor import size_bytes
from ..graph.turns import LOOP, RECEIVE, SEND
from .build import Shared, build_problem
from .formulate import Formulation
from .ilp import solve_program
from .judge import made_id, share_bytes, wanted_id
from .layouts import stage_roles
from .problem import Group, Problem
from .skeleton import Skeleton
from .stage_cuts import Crossings, sum_segments
from .steer import Steer
from .tables import NONE


@dataclass(frozen=True, slots=True)
class RunCosts:
    """Equal units in a row: for 0, 1, 2, ... of them seconds of a step, with free ends and between two cuts, at least; `likely_s`: between two cuts, about,
    as the nearest number that was priced says. They begin at unit `first`."""

    free_s: tuple[float, ...]
    between_s: tuple[float, ...]
    likely_s: tuple[float, ...]
    first: int = 0


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Per unit, in order.

    Args:
        step_s, fill_s: seconds of a step, and of one forward, at least.
        once_s: of the fastest plan's step, what is done once: before and after the turns.
        always, waiting, passing: bytes of the fastest plan, memory aside: held all the time, per microbatch in flight, beside them at the peak.
        homes: the stage that each must be on (`unit_stages`); (): any.
        enter_s, leave_s: of a step, what is received at least from the unit before, and from the one after, where a stage begins or ends there.
        enter_turn_s, leave_turn_s: of these, what one forward receives from the unit before, and one backward from the one after.
    """

    step_s: tuple[float, ...]
    fill_s: tuple[float, ...]
    once_s: tuple[float, ...]
    always: tuple[float, ...]
    waiting: tuple[float, ...]
    passing: tuple[float, ...]
    enter_s: tuple[float, ...] = ()
    leave_s: tuple[float, ...] = ()
    enter_turn_s: tuple[float, ...] = ()
    leave_turn_s: tuple[float, ...] = ()
    run: RunCosts | None = None
    homes: tuple[int, ...] = ()

    @property
    def crossings(self) -> Crossings:
        """What crosses where one cuts."""
        return Crossings(self.enter_s, self.leave_s, self.enter_turn_s, self.leave_turn_s)

    def segments(self, likely: bool = False) -> np.ndarray:
        """Seconds of a step of the units from `a` to before `b` as one stage or chunk, at [a, b], at least.

        Args:
            likely: not at least, but about.
        """
        table = sum_segments(self.step_s)
        count = len(self.step_s)
        if self.enter_s:
            table[:-1, :] += np.array(self.enter_s)[:, None]
            table[:, 1:] += np.array(self.leave_s)[None, :]
        if self.run is not None:
            first, last = self.run.first, self.run.first + len(self.run.free_s) - 1
            ends = np.arange(count + 1)
            inside = np.clip(np.minimum(ends[None, :], last) - np.maximum(ends[:, None], first), 0, None)
            free, between = np.array(self.run.free_s), np.array(self.run.likely_s if likely else self.run.between_s)
            table += np.maximum(0.0, free[inside] - inside * self.step_s[first])
            whole = (ends[:, None] >= max(first, 1)) & (ends[None, :] <= min(last, count - 1)) & (inside > 0)
            if likely:  # what two cuts cost: with one of them half of it
                one = (inside > 0) & ((ends[:, None] > 0) | (ends[None, :] < count)) & ~whole
                table += np.where(one, (between - free)[inside] / 2, 0.0)
            table = np.where(whole, np.maximum(table, between[inside]), table)
        return table


@dataclass(frozen=True, slots=True)
class PhaseCosts:
    """Per unit, in order: the least seconds of all its turns, of what is done once, and of one backward, each as if only it counted."""

    loop_s: tuple[float, ...]
    once_s: tuple[float, ...]
    drain_s: tuple[float, ...]


CROSSING_FIELDS = ("enter_s", "leave_s", "enter_turn_s", "leave_turn_s")
COST_FIELDS = ("step_s", "fill_s", "once_s", "always", "waiting", "passing")


def least_costs(rows: Sequence[UnitCosts]) -> UnitCosts:
    """Of each figure the least: where stages have other meshes, whichever has a unit. Of what crosses only bytes are known there, not how it is split."""
    first = rows[0]
    if len(rows) == 1:
        return first

    def least(name: str) -> tuple[float, ...]:
        return tuple(map(min, *(getattr(row, name) for row in rows)))

    free = None if first.run is None else tuple(map(min, *(row.run.free_s for row in rows if row.run is not None)))
    run = None if free is None or first.run is None else RunCosts(free, free, free, first.run.first)
    return replace(first, run=run, **{name: least(name) for name in (*COST_FIELDS, *CROSSING_FIELDS)})


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a graph: which of them are alike (a number per kind), and the graph of one of each kind.

    Args:
        cases, roles, skeletons: per kind.
    """

    kinds: tuple[int, ...]
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
    for unit in range(len(rows)):
        key = tuple(own[unit])
        if key not in kinds:
            kinds[key] = len(kinds)
            cases.append(build_case(cutter.build(unit).graph, case.rules))
        found.append(kinds[key])
    return Units(tuple(found), tuple(cases), tuple(part_roles(roles, case, part) for part in cases), tuple([] for _ in cases))


def price_kind(units: Units, kind: int, mesh: Mesh, model: CostModel, constraints: Constraints, turns: int, shared: Shared) -> tuple[float, ...]:
    """The costs of each unit of a kind, in the order of `COST_FIELDS`.

    Args:
        shared: of this mesh and these constraints.
    Raises:
        ConstraintError: the mesh cannot obey.
    """
    problem = _unit_problem(units, kind, mesh, model, constraints, turns, shared)
    least = sum(float(c.seconds.min()) for c in problem.choosers)
    if least <= 0:
        return 0.0, 0.0, 0.0, 0, 0, 0
    form, forward = Formulation(problem), _least_turn(problem, Phase.FORWARD, turns)
    bound, values = relax(form)
    if values is None:
        return bound, forward, 0.0, 0, 0, 0
    decisions = [int(np.argmax(values[o : o + len(c.seconds)])) for o, c in zip(form.offsets, problem.choosers)]
    return bound, forward, _once(problem, decisions), *share_bytes(problem, decisions)


def crossing_seconds(units: Units, kind: int, model: CostModel, ranks: int, turns: int) -> tuple[float, float, float, float]:
    """Seconds to receive what a unit of this kind reads of the unit before it, and of the one after it, each rank its own part: in the order of `CROSSING_FIELDS`.

    Args:
        model: with the link between stages.
        ranks: of a stage.
    """
    case, own = units.cases[kind], units.kinds.index(kind)
    values, of_step, of_turn = {v.name: v for v in case.graph.values}, [0.0, 0.0], [0.0, 0.0]
    for node in case.graph.nodes:
        source = dict(node.args).get("stage") if node.op == RECEIVE and node.phase in LOOP else None
        if isinstance(source, int) and abs(source - own) == 1:
            seconds, after = receive_seconds(model, size_bytes(values[node.outputs[0]]) / ranks), source > own
            of_step[after] += turns * seconds
            of_turn[after] += seconds if (node.phase is Phase.BACKWARD) == after else 0.0  # what was kept for the backward holds up no forward
    return (*of_step, *of_turn)


def price_phases(units: Units, kind: int, mesh: Mesh, model: CostModel, constraints: Constraints, turns: int, shared: Shared) -> tuple[float, float, float]:
    """`PhaseCosts` of each unit of a kind.

    Args:
        shared: of this mesh and these constraints.
    """
    problem = _unit_problem(units, kind, mesh, model, constraints, turns, shared)
    loop, once = (relax(Formulation(_of_phases(problem, of_loop)))[0] for of_loop in (True, False))
    return loop, once, _least_turn(problem, Phase.BACKWARD, turns)


def _unit_problem(units: Units, kind: int, mesh: Mesh, model: CostModel, constraints: Constraints, turns: int, shared: Shared) -> Problem:
    case = units.cases[kind]
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    problem = build_problem(
        case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, steer=Steer(constraints, units.roles[kind]),
        skeletons=units.skeletons[kind], turn_weight=float(turns), shared=shared,
    )  # fmt: skip
    return own_costs(problem)


def relax(form: Formulation, more: Formulation | None = None, times: int = 0) -> tuple[float, np.ndarray | None]:
    """Seconds that no plan beats, and the columns of the fastest mix of plans (None where that was not found).

    Args:
        more: a program of the same shape; what it costs beyond the first one counts `times` times.
    """
    program = form.build(None, 1.0)
    cost = program.cost if more is None else program.cost + times * (more.build(None, 1.0).cost - program.cost)
    least = sum(float(c.seconds.min()) for c in form.problem.choosers)
    scale = 1000.0 / least if least > 0 else 1.0
    found = solve_program(replace(program, cost=cost * scale), relaxed=True, time_limit_s=20.0)
    if found.status != "optimal" or found.values is None:
        return max(least, (found.bound or 0.0) / scale), None
    return max(found.objective / scale, 0.0), found.values


def _of_phases(problem: Problem, loop: bool) -> Problem:
    """The problem in which only the turns cost anything, or only what is done once."""
    choosers = tuple(
        c if all((p.node >= 0 and problem.graph.nodes[p.node].phase in LOOP) == loop for p in c.parts) else replace(c, seconds=np.zeros_like(c.seconds))
        for c in problem.choosers
    )
    return replace(problem, choosers=choosers, groups=tuple(g if (g.phase in LOOP) == loop else replace(g, times=0.0) for g in problem.groups))


def _once(problem: Problem, decisions: list[int]) -> float:
    """Seconds outside of the turns: ops, and what they want brought."""
    outside = lambda phase: phase not in LOOP  # noqa: E731
    total = 0.0
    for chooser, k in zip(problem.choosers, decisions):
        if all(p.node < 0 or outside(problem.graph.nodes[p.node].phase) for p in chooser.parts):
            total += float(chooser.seconds[k])
    for group in problem.groups:
        if outside(group.phase):
            made = made_id(problem, group.source, decisions)
            wanted = {wanted_id(problem, e, decisions) for e in group.endpoints} - {made, NONE}
            seconds = [problem.tables.reshard_seconds(group.value, made, w) for w in wanted] if made != NONE else []
            total += group.count * sum(s for s in seconds if s < inf)
    return total


def _least_turn(problem: Problem, phase: Phase, turns: int) -> float:
    """Of the nodes of a phase in one turn, each as fast as it can be."""
    total = 0.0
    for chooser in problem.choosers:
        if all(p.node >= 0 and problem.graph.nodes[p.node].phase is phase for p in chooser.parts):
            total += float(np.min(chooser.seconds)) / turns
    return total


def own_costs(problem: Problem) -> Problem:
    """The problem in which only what no other unit has costs anything: not what several units run or read (`stages.COPY`), nor what comes in."""
    choosers = tuple(
        replace(c, seconds=np.zeros_like(c.seconds)) if all(COPY in name for p in c.parts for name in p.members) else c for c in problem.choosers
    )
    groups = tuple(replace(g, times=0.0) if COPY in g.value.name or _meets_others(problem, g) else g for g in problem.groups)
    return replace(problem, choosers=choosers, groups=groups)


def _meets_others(problem: Problem, group: Group) -> bool:
    """True where a value is only read to be sent, or together with what comes in (the gradient of a tied weight: it may be owed as a whole)."""
    for endpoint in group.endpoints:
        parts = problem.choosers[endpoint.chooser].parts if endpoint.chooser >= 0 else ()
        nodes = [problem.graph.nodes[p.node] for p in parts if p.node >= 0]
        if not nodes or not all(node.op == SEND or any(COPY in name for name in node.inputs) for node in nodes):
            return False
    return True
