"""What a run of equal units costs at least, as one piece, or a stage with it: more than the units one by one, whose ends are free.

In: the shortened graph of a layout, a mesh. Out: for a number of units the least seconds of a step, between two cuts (what crosses is split as stages
exchange it, and paid for) and with free ends; of a stage also by phase. All units between the first and the last decide as those do that are like them, so the program of four of them
tells those of more: what belongs to the second counts as often as there are units between. Where kinds take turns, what belongs to one of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..constraints import Constraints
from ..cost.model import CostModel
from ..cost.prices import build_prices
from ..graph.case import Case, build_case
from ..graph.fusion import Traffic
from ..graph.graph import entering_values, producer_table
from ..graph.mesh import Mesh
from ..graph.node import Phase
from ..graph.repeats import MANY, block_of
from ..graph.roles import Roles
from ..graph.stages import COPY, Cutter, list_units, stage_table, state_stages, sum_at_home
from ..graph.turns import LOOP, RECEIVE, SEND
from .build import Shared, build_problem
from .problem import STORAGE, Chooser, Problem
from .relaxation import Relaxation
from .runs import Run
from .skeleton import Skeleton
from .stage_cuts import PIECE_FIELDS
from .stage_solve import crossing_choices
from .steer import Steer
from .unit_costs import RunCosts, least_of_phases, part_roles, with_least_traffic


@dataclass(frozen=True, slots=True)
class RunPart:
    """Units in a row, those of a run and some beside it, as a graph.

    Args:
        inner: the same where it is no stage: what runs in one kernel with nodes beside it costs no more than there. As a rule nothing does.
        second: nodes and values, by name, that one more period of the run adds (`unit_names`); () where there are too few to tell.
    """

    case: Case
    inner: Case
    roles: Roles
    second: frozenset[str]
    skeletons: list[Skeleton]


@dataclass(frozen=True, slots=True)
class Span:
    """Units in a row: so many before the run, of it, and after it. Where it has none of the run, `first` is its first unit in the shortened graph; where it has nothing
    beside it, the place of its first unit in its period."""

    before: int
    inside: int
    after: int
    first: int = 0


@dataclass(slots=True)
class RunParts:
    """Units around a run as graphs, made as they are asked for.

    Args:
        case, roles: of the graph that has it.
        run: there.
        shared: nodes that several units run (`unit_costs.Units`).
        traffic: of each node, at least (as there).
    """

    case: Case
    roles: Roles
    run: Run
    shared: frozenset[str] = frozenset()
    traffic: Mapping[str, Traffic | None] = field(default_factory=dict)
    _parts: dict[Span, RunPart] = field(default_factory=dict)

    def part(self, span: Span) -> RunPart:
        """These units: of the run its first where there are none before it, else its last."""
        if span not in self._parts:
            first, last = self._ends(span)
            graph = self.case.graph
            rows = list_units(graph)
            ends = [k for k in (first, last) if 0 < k < len(rows)]
            starts = [graph.nodes[rows[k][0]].name for k in ends]
            whole, table = sum_at_home(graph, starts, range(len(starts) + 1))
            cut = build_case(Cutter(whole, table, len(ends) + 1).build(1 if first else 0).graph, self.case.rules)
            second = unit_names(cut, span.before + 1, self.run.period) if span.inside >= self.run.few(span.inside) else frozenset()
            inner = with_least_traffic(cut, self.traffic)
            self._parts[span] = RunPart(cut, cut if inner.sites == cut.sites else inner, part_roles(self.roles, self.case, cut), second, [])
        return self._parts[span]

    @property
    def alike_from(self) -> int:
        """So many units of the run decide alike in a stage; of fewer some decide for themselves."""
        graph = self.case.graph
        path = graph.nodes[list_units(graph)[self.run.first][0]].path
        return self.run.period * (MANY if block_of(path, graph.sequences) is None and block_of(path) is not None else 2)

    def _ends(self, span: Span) -> tuple[int, int]:
        """First unit, and first after them."""
        if not span.inside:
            return span.first, span.first + span.before + span.after
        if span.before or not span.after:
            first = self.run.first + span.first - span.before
            return first, first + span.before + span.inside + span.after
        last = self.run.last + span.after
        return last - span.after - span.inside, last


def unit_names(case: Case, unit: int, period: int = 1) -> frozenset[str]:
    """Names of nodes and values that one more period in the midst of a run adds: those of its units from `unit` on, but of the backward pass those of the units after each.

    So what goes on to the next unit stands for what goes from one unit in the midst to another, forward and backward.
    """
    graph = case.graph
    table = stage_table(graph, [graph.nodes[row[0]].name for row in list_units(graph)[1:]])
    home, makers = state_stages(graph, table), producer_table(graph)
    inside = [0 <= stage - unit - (node.phase is Phase.BACKWARD) < period for node, stage in zip(graph.nodes, table)]
    found = {node.name for node, is_in in zip(graph.nodes, inside) if is_in}
    found |= {name for name, (i, _) in makers.items() if inside[i]}
    found |= {v.name for v in entering_values(graph) if unit <= home.get(v.storage.rpartition(":")[2], 0) < unit + period}
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class RunRelaxation:
    """The program of units around a run between two cuts, which tells those with other numbers of units of the run, too.

    Args:
        own: the problem in which what other units run, too, costs nothing: a stage or a rank with several such runs has it once.
        inside: so many of the run it has.
        period: of the run.
        second: as of `RunPart`.
        ends_s: what free ends save at most.
    """

    relaxation: Relaxation
    own: Problem
    inside: int
    period: int
    second: frozenset[str]
    ends_s: float


def telling_span(parts: RunParts, span: Span) -> Span | None:
    """The units whose program tells a span: of a run, where there are some between the first and the last, as many as have all edges. None: there are not enough."""
    run, few = parts.run, span.inside
    least = run.few(span.inside)
    if span.inside >= max(least - run.period, parts.alike_from) and run.length >= least:
        few = run.length if span.before and span.after else least
    return replace(span, inside=few) if few + (span.first if few else 0) <= run.length else None


def relax_run(
    parts: RunParts, span: Span, mesh: Mesh, model: CostModel, constraints: Constraints, turns: int, shared: Shared, inner: bool = False
) -> RunRelaxation:
    """The program of units around a run.

    Args:
        inner: they are a part of a stage, with others beside them.
        model: with the link between stages.
        shared: with nothing but others between cuts.
    Raises:
        ConstraintError: the mesh cannot obey.
    """
    part = parts.part(span)
    case = part.inner if inner else part.case
    steer = Steer(constraints, part.roles, crossing_choices(case, mesh, part.roles, constraints))
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    problem = build_problem(
        case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, steer=steer, skeletons=part.skeletons, turn_weight=float(turns),
        shared=shared,
    )  # fmt: skip
    return RunRelaxation(Relaxation(problem), _without(problem, parts.shared), span.inside, parts.run.period, part.second, _ends_seconds(problem))


def _without(problem: Problem, shared: frozenset[str]) -> Problem:
    """The problem in which these nodes, what they make, and these inputs cost nothing, nor copies of them; what crosses does."""
    none = [all(p.node >= 0 and name.partition(COPY)[0] in shared for p in c.parts for name in p.members) for c in problem.choosers]
    choosers = tuple(replace(c, seconds=np.zeros_like(c.seconds)) if nothing else c for c, nothing in zip(problem.choosers, none))
    groups = (replace(g, times=0.0) if none[g.source[0]] or g.value.name.partition(COPY)[0] in shared else g for g in problem.groups)
    return replace(problem, choosers=choosers, groups=tuple(groups))


def price_run(run: RunRelaxation, own: Problem, count: int) -> tuple[float, float]:
    """Least seconds of a step of what only `count` units of the run have, between two cuts; and what free ends save at most.

    Args:
        own: `RunRelaxation.own`, or that of more turns (`more_turns`): what crosses is as much in all of them together.
    """
    if count != run.inside and not run.second:
        return 0.0, 0.0
    problem = with_more(own, run.second, (count - run.inside) // run.period)
    return run.relaxation.solve(problem), run.ends_s


def price_piece(run: RunRelaxation, count: int, turns: int, enough_s: float) -> tuple[float, ...] | None:
    """Of a stage with `count` units of the run, in the order of `PIECE_FIELDS`; None where the program does not tell.

    Args:
        enough_s: of a step that takes as long nothing else is told.
    """
    if count != run.inside and not run.second:
        return None
    problem = with_more(run.relaxation.problem, run.second, (count - run.inside) // run.period)

    def least(*phases: Phase) -> float:
        return least_of_phases(run.relaxation, phases, problem)

    step = run.relaxation.solve(problem, enough_s)
    if step >= enough_s:
        return (step, *[0.0] * (len(PIECE_FIELDS) - 1))
    return step, least(Phase.FORWARD) / turns, least(Phase.PREPARE), least(*LOOP), least(Phase.BACKWARD) / turns, least(Phase.UPDATE)


def with_more(problem: Problem, second: frozenset[str], more: int) -> Problem:
    """The problem with so many more periods like the second."""

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


def fill_run(known: Mapping[int, tuple[float, float]], alone_s: Sequence[float], run: Run) -> RunCosts:
    """For every number of units from the first on the seconds at least, of those that are known and of what they say of larger ones; the rest one by one.

    Args:
        known: number of units, whole periods -> (seconds between two cuts, what free ends save).
        alone_s: of each unit with free ends.
    """
    free = np.concatenate([[0.0], np.cumsum(alone_s)])
    between, length = free.copy(), len(alone_s)
    for n, (seconds, ends_s) in sorted(known.items()):
        between[n] = max(between[n], seconds)
        for m in range(n, length + 1):  # a run is at least its parts with free ends
            free[m] = max(free[m], seconds - ends_s + free[m - n])
    between = np.maximum(free, between)
    near = [min(known, key=lambda k: (abs(k - n), k)) for n in range(length + 1)] if known else []
    likely = [max(between[n], between[k] + free[n] - free[k]) if n else 0.0 for n, k in enumerate(near)] or list(between)
    return RunCosts(tuple(map(float, free)), tuple(map(float, between)), tuple(map(float, likely)), run.first, run.period)
