"""What a run of equal units costs at least, as one piece: more than its units one by one, whose ends are free.

In: the shortened graph of a layout, a mesh. Out: for a number of units the least seconds of a step, between two cuts (what crosses is split as stages
exchange it, and paid for) and with free ends. All units between the first and the last decide alike, so the program of four of them tells those of more:
what belongs to the second counts as often as there are units between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..constraints import Constraints
from ..cost.model import CostModel
from ..cost.prices import build_prices
from ..graph.case import Case, build_case
from ..graph.graph import entering_values, producer_table
from ..graph.mesh import Mesh
from ..graph.node import Phase
from ..graph.roles import Roles
from ..graph.stages import Cutter, list_units, stage_table, state_stages
from ..graph.turns import RECEIVE, SEND
from .build import Shared, build_problem
from .formulate import count_columns
from .problem import STORAGE, Chooser, Problem
from .relaxation import Relaxation
from .skeleton import Skeleton
from .stage_solve import crossing_choices
from .steer import Steer
from .unit_costs import RunCosts, part_roles

FEW = 4  # units whose program tells all larger ones: it has an edge from one that is neither first nor last to another, as all of those have


@dataclass(frozen=True, slots=True)
class RunPart:
    """The first units of a run as a graph.

    Args:
        second: nodes and values, by name, that one more unit adds (`unit_names`).
    """

    case: Case
    roles: Roles
    second: frozenset[str]
    skeletons: list[Skeleton]


@dataclass(slots=True)
class RunParts:
    """The first 1, 2, .. units of a run as graphs, made as they are asked for.

    Args:
        case, roles: of the graph that has it.
        first, length: units of the run there.
    """

    case: Case
    roles: Roles
    first: int
    length: int
    _parts: dict[int, RunPart] = field(default_factory=dict)

    def part(self, count: int) -> RunPart:
        """The first `count` units."""
        if count not in self._parts:
            graph = self.case.graph
            rows = list_units(graph)
            ends = [k for k in (self.first, self.first + count) if 0 < k < len(rows)]
            table = stage_table(graph, [graph.nodes[rows[k][0]].name for k in ends])
            cut = build_case(Cutter(graph, table, len(ends) + 1).build(1 if self.first else 0).graph, self.case.rules)
            self._parts[count] = RunPart(cut, part_roles(self.roles, self.case, cut), unit_names(cut, 1) if count == FEW else frozenset(), [])
        return self._parts[count]


def unit_names(case: Case, unit: int) -> frozenset[str]:
    """Names of nodes and values that one more unit in the midst of a run adds: those of a unit, but of the backward pass those of the unit after it.

    So what goes on to the next unit stands for what goes from one unit in the midst to another, forward and backward.
    """
    graph = case.graph
    table = stage_table(graph, [graph.nodes[row[0]].name for row in list_units(graph)[1:]])
    home, makers = state_stages(graph, table), producer_table(graph)
    inside = [stage == unit + (node.phase is Phase.BACKWARD) for node, stage in zip(graph.nodes, table)]
    found = {node.name for node, is_in in zip(graph.nodes, inside) if is_in}
    found |= {name for name, (i, _) in makers.items() if inside[i]}
    found |= {v.name for v in entering_values(graph) if home.get(v.storage.rpartition(":")[2], 0) == unit}
    return frozenset(found)


def bound_mesh(case: Case, unit: int, more: int, mesh: Mesh, model: CostModel, most_columns: int) -> tuple[float, int]:
    """(seconds that no plan of a whole model on a mesh beats, memory aside, columns of its program); 0 seconds where there are too many to be solved.

    Args:
        case: shortened: the model has `more` units like number `unit`, which is neither the first nor the last of its run.
    """
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    problem = build_problem(case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices)
    count = count_columns(problem)
    if count > most_columns:
        return 0.0, count
    relaxation = Relaxation(problem)
    return relaxation.solve(_seconds_with(relaxation, unit_names(case, unit), more))[0], count


@dataclass(frozen=True, slots=True)
class RunRelaxation:
    """The program of the first units of a run between two cuts, which tells runs of other lengths, too.

    Args:
        second: as of `RunPart`.
        ends_s: what free ends save at most.
    """

    relaxation: Relaxation
    second: frozenset[str]
    ends_s: float


def telling_units(parts: RunParts, count: int) -> int:
    """Of how many units the program tells a run of `count`: where there are units between the first and the last, as many as have all edges."""
    return count if count < FEW - 1 or parts.length < FEW else FEW


def relax_run(parts: RunParts, units: int, mesh: Mesh, model: CostModel, constraints: Constraints, turns: int, shared: Shared) -> RunRelaxation:
    """The program of the first `units` of a run.

    Args:
        model: with the link between stages.
        shared: with nothing but other runs between cuts.
    Raises:
        ConstraintError: the mesh cannot obey.
    """
    part = parts.part(units)
    case = part.case
    steer = Steer(constraints, part.roles, crossing_choices(case, mesh, part.roles, constraints))
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    problem = build_problem(
        case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, steer=steer, skeletons=part.skeletons, turn_weight=float(turns),
        shared=shared,
    )  # fmt: skip
    return RunRelaxation(Relaxation(problem), part.second, _ends_seconds(problem))


def price_run(run: RunRelaxation, units: int, count: int) -> tuple[float, float]:
    """Least seconds of a step of `count` units between two cuts; and what free ends save at most.

    Args:
        run: of `units` units, as `telling_units` says.
    """
    if count != units and not run.second:
        return 0.0, 0.0
    return run.relaxation.solve(_seconds_with(run.relaxation, run.second, count - units))[0], run.ends_s


def _seconds_with(relaxation: Relaxation, second: frozenset[str], more: int) -> np.ndarray:
    """What the columns of a relaxation cost with so many more units like the second."""
    return relaxation.form.seconds_of(_with_more(relaxation.problem, second, more)) if more else relaxation.program.cost


def _with_more(problem: Problem, second: frozenset[str], more: int) -> Problem:
    """The problem with so many more units like the second."""

    def grown(names: Sequence[str]) -> float:
        return 1.0 + more * sum(name in second for name in names) / len(names)

    def members(chooser: Chooser) -> list[str]:
        return [name for part in chooser.parts for name in part.members]

    return replace(
        problem,
        choosers=tuple(replace(c, seconds=c.seconds * grown(members(c))) for c in problem.choosers),
        groups=tuple(replace(g, times=g.times * grown(g.names)) for g in problem.groups),
    )


def _ends_seconds(problem: Problem) -> float:
    """What crosses, and to bring it to whatever its readers want, and there from however it is made: with that, a plan with free ends becomes one between cuts."""
    nodes, total, tables = problem.graph.nodes, 0.0, problem.tables
    for chooser in problem.choosers:
        if any(p.node >= 0 and nodes[p.node].op == RECEIVE for p in chooser.parts):
            total += float(chooser.seconds.max())
    for group in problem.groups:
        source = problem.choosers[group.source[0]]
        received = any(p.node >= 0 and nodes[p.node].op == RECEIVE for p in source.parts)
        for endpoint in group.endpoints:
            parts = problem.choosers[endpoint.chooser].parts if endpoint.chooser >= 0 else ()
            if received or any(p.node >= 0 and nodes[p.node].op == SEND for p in parts):
                reader = problem.choosers[endpoint.chooser] if endpoint.chooser >= 0 else None
                if reader is None:  # what leaves the step is whole anyway
                    continue
                wants = reader.makes[0] if endpoint.position == STORAGE else reader.wants[endpoint.position]
                total += group.count * float(tables.seconds_matrix(group.value, np.unique(source.makes[group.source[1]]), np.unique(wants)).max())
    return total


def fill_run(known: Mapping[int, tuple[float, float]], alone_s: float, length: int) -> RunCosts:
    """For every number of units up to `length` the seconds at least, of those that are known and of what they say of larger ones; the rest one by one.

    Args:
        known: number of units -> (seconds between two cuts, what free ends save).
        alone_s: of one unit with free ends.
    """
    counts = np.arange(length + 1)
    free, between = counts * alone_s, counts * alone_s
    for n, (seconds, ends_s) in sorted(known.items()):
        between[n] = max(between[n], seconds)
        for m in range(n, length + 1):  # a run is at least its parts with free ends
            free[m] = max(free[m], seconds - ends_s + free[m - n])
    between = np.maximum(free, between)
    near = [min(known, key=lambda k: (abs(k - n), k)) for n in range(length + 1)] if known else []
    likely = [max(between[n], between[k] + free[n] - free[k]) if n else 0.0 for n, k in enumerate(near)] or list(between)
    return RunCosts(tuple(map(float, free)), tuple(map(float, between)), tuple(map(float, likely)))
