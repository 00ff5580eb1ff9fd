"""Alternatives: what a plan would cost if one thing were decided otherwise and all else could follow.

In: a plan, the workload that it was made for, a name. Out: the reports of `view.explain_name` with their alternatives solved again: on the
plan's own mesh, under its own constraints and memory limit, the alternative as one more thing that must be. Equal blocks decide alike, as in
the plan, so the alternative holds for all of them. Of a plan in stages the one that the name is on is solved again (`solver.stage_again`).
Invariants: every plan with an alternative is one of the plan's own search space, so none is
cheaper than the chosen plan by more than that plan's gap; a bound is a bound of the solver, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isclose
from pathlib import Path

from .api import PROFILE_PATH, check_belongs
from .cluster import Cluster, parse_cluster
from .constraints import Pin, parse_lines
from .cost.buckets import bucketed_model
from .cost.estimate import estimate_program, hidden_seconds, node_seconds
from .cost.machine import machine_here
from .cost.measured_file import find_measured
from .cost.model import CostModel, build_cost_model
from .cost.prices import build_prices
from .errors import AutoparError, ConstraintError
from .graph.case import Case, build_case, copy_case, split_case
from .graph.choice import Assignment
from .graph.graph import check_graph, producer_table, use_table, value_table
from .graph.mesh import print_mesh
from .graph.partition import assigned_strategies, partition
from .graph.plan import Plan
from .graph.recompute import recompute_graph
from .graph.registry import rules_in_force
from .graph.sharding import Sharding
from .graph.strategy import Strategy
from .solver.build import build_problem
from .solver.infeasible import MemoryShortage
from .solver.prices import Prices
from .solver.problem import Part, Problem
from .solver.search import Question, SearchResult, search
from .solver.stage_again import StageAgain, StageShortage, set_up_stages
from .solver.steer import Steer, prepare_steer, refine_fold
from .trace import Workload, trace_step
from .trace.discovery.discover import CACHE_PATH, find_rows
from .view.explain_name import FITS, NOT_FOUND, OP, PARAM, REFUSED, TOO_LARGE, NameReport, Priced, SolvedAgain, explain_name
from .view.name_terminal import names_text, names_to_json
from .view.split_text import print_choices, print_split
from .view.why_dearer import CostRow, Difference, compare_costs, largest_kind, list_costs

TIME_LIMIT_S = 10.0
NUM_PRICED, NUM_REPORTS = 4, 3
_SAME = 1e-6  # of a step: steps that differ by less are the same
FROM_OBJECTS = (
    "the plan was made from Python objects, so its model cannot be made again here; autopar.explain(plan, name, workload) solves again"
)
Way = Sharding | tuple[str, ...]  # an alternative: how a value lies, or what a node chooses
Report = Callable[[str], None]


@dataclass(frozen=True)
class Explained:
    """What is known of a name; printed as the command prints it."""

    reports: tuple[NameReport, ...]

    def __str__(self) -> str:
        return names_text(self.reports)

    __repr__ = __str__

    def to_json(self) -> dict:
        """Everything as plain data (docs/cli.md, section explain)."""
        return names_to_json(self.reports)


def explain(
    plan: Plan,
    name: str,
    workload: Workload | None = None,
    *,
    cluster: str | Cluster | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    report: Report | None = None,
) -> Explained:
    """Say what a plan chose for a parameter, tensor or op, and what its alternatives would cost.

    Args:
        name: whole, the end of one after a dot, or with `*`.
        workload: the plan's, as `autopar.plan` got it: alternatives are then solved again; None: the prices that the plan has.
        cluster: where the plan's own text does not name it any more.
        time_limit_s: for each alternative.
        report: told what is going on, one line each.
    Raises:
        OptionsError: nothing has this name.
        PlanError: the plan is of another model or cluster.
    """
    reports = explain_name(plan, name)
    if workload is None:
        return Explained(reports)
    bench = set_up(plan, workload, parse_cluster(plan.cluster.spec) if cluster is None else cluster, report=report)
    return Explained(price_alternatives(bench, reports, time_limit_s, report))


@dataclass(frozen=True)
class Found:
    """A step that was solved again.

    Args:
        lower_bound_s: no step with the same demands is faster.
        seconds: by what they are for.
        is_tight: memory may have made it dearer.
    """

    step_s: float
    lower_bound_s: float
    seconds: Mapping[CostRow, float]
    is_tight: bool


@dataclass(frozen=True)
class Bench:
    """A plan, or a stage of one, with all that solving it again needs.

    Args:
        plan: of a stage: with the assignment of that stage alone.
        case: in the plan's turns, with equal blocks that decide alike under the plan's constraints; without what is run again.
        limit_bytes: the plan's.
        step_s, seconds: of the plan's own program, by today's figures; `seconds` by what they are for, of a stage those of the stage.
        solve: under other demands, a memory limit (None: without) and a time limit. It raises what `solve_again` raises.
        where: on what it is solved: the mesh as text, with the stage.
    """

    plan: Plan
    case: Case
    model: CostModel
    steer: Steer
    limit_bytes: int
    step_s: float
    seconds: Mapping[CostRow, float]
    solve: Callable[[Steer, int | None, float], Found]
    where: str


def set_up(
    plan: Plan,
    workload: Workload,
    cluster_spec: str | Cluster,
    *,
    report: Report | None = None,
    rows_path: Path = PROFILE_PATH,
    cache_path: Path | None = CACHE_PATH,
) -> tuple[Bench, ...]:
    """Trace and fold the step of a plan again, once for all alternatives: one bench, or one for each pipeline stage.

    Args:
        rows_path, cache_path: as in `api.compile_workload`.
    Raises:
        PlanError: the plan is of another model or cluster.
    """
    say = report or (lambda line: None)
    cluster = cluster_spec if isinstance(cluster_spec, Cluster) else parse_cluster(cluster_spec)
    say(f"tracing {plan.model.name} in {plan.model.precision}")
    graph = trace_step(workload, plan.model.precision).graph
    check_graph(graph)
    check_belongs(plan, graph, cluster, plan.model.precision)
    traced = build_case(graph, rules_in_force(find_rows(graph, plan.rules, cache_path)))
    constraints = parse_lines(plan.constraints)
    rows = find_measured(cluster, plan.cluster.measured or None, rows_path, machine_here(), lambda line: None)
    model = bucketed_model(build_cost_model(cluster, rows), graph, constraints.zero)
    if plan.pipeline is not None:
        return tuple(_stage_bench(plan, stage) for stage in set_up_stages(plan, traced, constraints, model))
    case = split_case(traced, plan.assignment.microbatches)
    steer = prepare_steer(case.graph, case.sites, case.signatures, case.cuts, constraints, case.whole_roles)
    case = replace(case, fold=refine_fold(case.graph, case.fold, constraints))
    limit = plan.cluster.memory_bytes

    def solve(demands: Steer, limit_bytes: int | None, time_limit_s: float) -> Found:
        found = solve_again(plan, case, model, demands, limit_bytes, time_limit_s)
        answer, step = found.meshes[0][1], _cost_step(case, model, found.assignment)
        return Found(step[0], found.certificate.lower_bound_s, step[1], answer.status != "solved" or bool(answer.memory_rows or found.assignment.again))

    return (Bench(plan, case, model, steer, limit, *_cost_step(case, model, plan.assignment), solve, print_mesh(plan.assignment.mesh)),)


def _stage_bench(plan: Plan, stage: StageAgain) -> Bench:
    mine, number = replace(plan, assignment=stage.assignment), stage.number
    where = f"{print_mesh(plan.assignment.mesh)} of stage {number}, the other stages and what crosses as they are"

    def solve(demands: Steer, limit_bytes: int | None, time_limit_s: float) -> Found:
        answer, step_s, bound_s = stage.solve(demands, limit_bytes, time_limit_s)
        assert answer.assignment is not None
        _, seconds = _cost_step(stage.case, stage.model, answer.assignment)
        return Found(step_s, bound_s, seconds, bool(answer.found.memory_rows or answer.assignment.again))

    _, seconds = _cost_step(stage.case, stage.model, stage.assignment)
    return Bench(mine, stage.case, stage.model, stage.steer, plan.cluster.memory_bytes, stage.step_s, seconds, solve, where)


def _cost_step(case: Case, model: CostModel, assignment: Assignment) -> tuple[float, dict[CostRow, float]]:
    """The step of an assignment's program, and its seconds by what they are for: of communication what is exposed."""
    full = copy_case(case, assignment.again)
    strategies = assigned_strategies(full.graph, full.sites, full.signatures, full.cuts, assignment)
    program = partition(full.graph, full.sites, full.signatures, full.cuts, assignment)
    seconds = node_seconds(model, program, full.sites, full.signatures, strategies)
    hidden = hidden_seconds(model, program, seconds)
    exposed = {name: s - hidden.get(name, 0.0) for name, s in seconds.items()}
    return estimate_program(model, program, full.sites, full.signatures, strategies).step_s, list_costs(full.graph, program, exposed)


def price_alternatives(
    benches: Sequence[Bench], reports: Sequence[NameReport], time_limit_s: float = TIME_LIMIT_S, report: Report | None = None
) -> tuple[NameReport, ...]:
    """The reports with their most promising alternatives solved again; of many names the first few.

    Args:
        benches: of the plan (`set_up`).
    """
    if not benches[0].plan.assignment.mesh.axes:
        return tuple(replace(r, why_not=f"{'one rank' if len(benches) == 1 else 'one rank a stage'}: there is nothing else to choose") for r in reports)
    built: dict[int, tuple[Prices, Problem]] = {}
    known: dict[tuple, SolvedAgain] = {}  # several names may be one decision
    found = []
    for number, row in enumerate(reports):
        if number >= NUM_REPORTS:
            found.append(replace(row, why_not=f"only the first {NUM_REPORTS} of {len(reports)} kinds are; a narrower name says more"))
            continue
        number_of = _find_bench(benches, row)
        if number_of is None:
            found.append(replace(row, why_not="it has no decision of its own: it is made of others where a stage reads it"))
            continue
        bench = benches[number_of]
        if number_of not in built:
            case = bench.case
            prices = build_prices(bench.model, bench.plan.assignment.mesh, case.graph, case.sites, case.signatures)
            built[number_of] = prices, _build(bench, prices)
        prices, problem = built[number_of]
        subject = _find_subject(bench, problem, row)
        if isinstance(subject, str):
            found.append(replace(row, why_not=subject))
            continue
        key = (number_of, subject.members, subject.is_node)
        if key not in known:
            known[key] = _price(bench, _price_alone(bench, prices, subject), subject, time_limit_s, report or (lambda line: None))
        found.append(replace(row, again=known[key]))
    return tuple(found)


def _find_bench(benches: Sequence[Bench], row: NameReport) -> int | None:
    """Which of them has what a report tells of: its first member."""
    first = row.members[0]
    for number, bench in enumerate(benches):
        names = {v.name for v in bench.case.graph.values} | {n.name for n in bench.case.graph.nodes} | set(bench.plan.assignment.again)
        names |= {f"{name}_again" for name in bench.plan.assignment.again}
        if first in names or f"{first}@0" in names or len(benches) == 1:
            return number
    return None


@dataclass(frozen=True)
class _Subject:
    """What is decided: `options[k]` of a chooser does `ways[k]`, for all `members` (nodes or values) alike.

    `node`: that stands for them or makes them; -1 for what enters the step.
    """

    members: tuple[str, ...]
    is_node: bool
    chosen: Way
    ways: tuple[Way, ...]
    options: tuple[Strategy, ...] | tuple[Sharding, ...]
    node: int
    shape: tuple[int, ...]

    def print(self, way: Way, plan: Plan) -> str:
        """How it would lie or work."""
        mesh = plan.assignment.mesh
        return print_split(self.shape, way, mesh) if isinstance(way, Sharding) else print_choices(way, mesh)


def _find_subject(bench: Bench, problem: Problem, row: NameReport) -> _Subject | str:
    """The decision about a name, or why there is none."""
    plan, graph = bench.plan, bench.case.graph
    first = row.members[0]
    if row.sort == OP:
        original = recompute_graph(graph, plan.assignment.again).original
        if first in original:
            return f"run again for the backward pass as {original[first]} runs; ask for that"
        part = _find_part(problem, first)
        ways = tuple(option.choices for option in part.options if isinstance(option, Strategy))
        chosen = dict(plan.assignment.strategies)[first]
        return _Subject(part.members, True, chosen, ways, part.options, part.node, ())
    tensors = {t.name: t for t in plan.tensors}
    value = (f"{first}@0" if f"{first}@0" in tensors else first) if row.sort == PARAM else first
    chosen, shape = tensors[value].sharding, tensors[value].shape
    if value in graph.inputs:
        part = _find_part(problem, value)
        ways = tuple(option for option in part.options if isinstance(option, Sharding))
        return _Subject(part.members, False, chosen, ways, part.options, -1, shape)
    makers = producer_table(graph)
    if value not in makers:
        return "made again for the backward pass as it was made first; ask for that"
    node = graph.nodes[makers[value][0]]
    place = [o for o in node.outputs if o].index(value)
    part = _find_part(problem, node.name)
    own = {n.name: n for n in graph.nodes}
    members = tuple([o for o in own[name].outputs if o][place] for name in part.members)
    ways = tuple(option.outputs[place] for option in part.options if isinstance(option, Strategy))
    return _Subject(members, False, chosen, ways, part.options, part.node, shape)


def _find_part(problem: Problem, name: str) -> Part:
    """Who decides for a node or an input."""
    return next(part for chooser in problem.choosers for part in chooser.parts if name in part.members)


def _build(bench: Bench, prices: Prices) -> Problem:
    """What can be chosen under the plan's own demands."""
    case, said = bench.case, bench.steer.constraints.recompute
    return build_problem(
        case.graph, case.sites, case.signatures, case.cuts, case.fold, bench.plan.assignment.mesh, prices,
        steer=bench.steer if bench.steer.constraints else None, recompute="none" if said in (None, "free") else said,
    )  # fmt: skip


def _price_alone(bench: Bench, prices: Prices, subject: _Subject) -> dict[Way, float]:
    """Each way but the chosen one, and its seconds with its reshards, neighbours as they are: which are worth solving with."""
    graph, assignment = bench.case.graph, bench.plan.assignment
    full = copy_case(bench.case, assignment.again)
    strategies = assigned_strategies(full.graph, full.sites, full.signatures, full.cuts, assignment)
    values, uses, new_of = value_table(graph), use_table(graph), dict(graph.updates)
    made = dict(assignment.storages)
    for node in graph.nodes:
        made.update(zip((o for o in node.outputs if o), strategies[node.name].outputs))

    def bring(name: str, source: Sharding, target: Sharding) -> float:
        return 0.0 if source == target else prices.reshard_seconds(values[name], source, target)

    def read(name: str, sharding: Sharding) -> float:
        wanted = {(graph.nodes[i].phase, strategies[graph.nodes[i].name].inputs[k]) for i, k in uses[name]}
        return fsum(bring(name, sharding, target) for _, target in wanted)

    found: dict[Way, float] = {}
    for way, option in zip(subject.ways, subject.options):
        if way == subject.chosen:
            continue
        if isinstance(option, Sharding):
            name = subject.members[0]
            new = new_of.get(name, name)
            seconds = read(name, option) + (bring(new, made[new], option) if new != name else 0.0)
        else:
            node = graph.nodes[subject.node]
            seconds = float(prices.node_seconds(subject.node, [option])[0])
            seconds += fsum(bring(name, made[name], wanted) for name, wanted in zip(node.inputs, option.inputs))
            seconds += fsum(read(name, sharding) for name, sharding in zip((o for o in node.outputs if o), option.outputs))
        found[way] = min(found.get(way, float("inf")), seconds)
    return {way: seconds for way, seconds in found.items() if seconds < float("inf")}


def _price(bench: Bench, alone: Mapping[Way, float], subject: _Subject, time_limit_s: float, say: Report) -> SolvedAgain:
    plan, step_s = bench.plan, bench.step_s
    order = sorted(alone, key=lambda way: (alone[way], str(way)))
    priced = []
    for number, way in enumerate(order[:NUM_PRICED], 1):
        what = subject.print(way, plan)
        say(f"solving again with {what} ({number} of {min(len(order), NUM_PRICED)})")
        priced.append(_price_one(bench, what, _steer_to(bench.steer, subject, way), time_limit_s))
    others = tuple(subject.print(way, plan) for way in order[NUM_PRICED:])
    gap = plan.solve.gap if isclose(step_s, plan.cost.step_s, rel_tol=_SAME) else None
    return SolvedAgain(bench.where, subject.members, step_s, gap, time_limit_s, tuple(sorted(priced, key=_dearness)), others)


def _dearness(row: Priced) -> float:
    return float("inf") if row.extra_s is None else row.extra_s


def _steer_to(steer: Steer, subject: _Subject, way: Way) -> Steer:
    """The plan's own demands, and the alternative."""
    if isinstance(way, Sharding):
        pins = tuple(Pin(name, str(way)) for name in subject.members)
        return replace(steer, constraints=replace(steer.constraints, pins=(*steer.constraints.pins, *pins)))
    return replace(steer, choices=(*steer.choices, *((name, way) for name in subject.members)))


def _price_one(bench: Bench, what: str, steer: Steer, time_limit_s: float) -> Priced:
    step_s = bench.step_s
    try:
        found = bench.solve(steer, bench.limit_bytes, time_limit_s)
    except ConstraintError as error:
        return Priced(what, REFUSED, None, None, None, 0, None, "", None, str(error))
    except (MemoryShortage, StageShortage) as error:
        free = _free_step_s(bench, steer, time_limit_s)
        status = TOO_LARGE if error.proven else NOT_FOUND
        return Priced(what, status, None, None, None, error.missing_bytes, None if free is None else free - step_s, "memory", None)
    extra_s = found.step_s - step_s
    at_least_s = min(found.lower_bound_s - step_s, extra_s)
    mesh, hosts = bench.plan.assignment.mesh, bench.model.cluster.num_hosts
    difference = compare_costs(bench.seconds, found.seconds, extra_s, mesh, hosts)
    free_extra_s, because = None, ""
    if extra_s > _SAME * step_s:
        if found.is_tight:
            free = _free_step_s(bench, steer, time_limit_s)
            free_extra_s = None if free is None else free - step_s
        because = _because(difference, extra_s, free_extra_s)
    return Priced(what, FITS, step_s + extra_s, extra_s, at_least_s, 0, free_extra_s, because, difference)


def _because(difference: Difference, extra_s: float, free_extra_s: float | None) -> str:
    """`memory` where it would be less than half as much dearer without the limit; else the kind of cost that grows most."""
    if free_extra_s is not None and free_extra_s < extra_s / 2:
        return "memory"
    return largest_kind(difference.kinds)


def _free_step_s(bench: Bench, steer: Steer, time_limit_s: float) -> float | None:
    """The step without a memory limit."""
    try:
        return bench.solve(steer, None, time_limit_s).step_s
    except AutoparError:
        return None


def solve_again(plan: Plan, case: Case, model: CostModel, steer: Steer, limit_bytes: int | None, time_limit_s: float) -> SearchResult:
    """The best plan on the plan's own mesh under other demands.

    Raises:
        ConstraintError: the mesh cannot obey.
        MemoryShortage: nothing fits.
    """
    mesh = plan.assignment.mesh
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    question = Question(case.graph, case.sites, case.signatures, case.cuts, case.fold, limit_bytes, model.reserve_bytes, steer=steer)
    return search(question, (mesh,), lambda _: prices, time_limit_s=time_limit_s)
