"""The search over layouts: pipeline stages, axes with roles inside of each, microbatches, schedules and cuts.

In: a case, the cost model of a cluster, constraints, a memory limit, the time of the best plan so far. Out: the best staged plan, and what bounds all
others. The way: every place (stages x dp x tp) and number of microbatches that its compute alone does not rule out is priced by units
(`unit_costs`, on a graph with few blocks); cuts are chosen exactly (`stage_cuts`); the most promising layouts are solved stage by stage with memory
(`stage_solve`), each kind of stage once, with as many microbatches in flight as the first of its kind holds; the schedule is simulated. Invariant: the
bound of a layout holds for every plan with its stages, mesh and microbatches, wherever it is cut.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, inf

from ..constraints import PIPELINE, Constraints
from ..cost.estimate import roofline_seconds
from ..cost.model import CostModel, staged_model
from ..errors import ConstraintError, MicrobatchError
from ..graph.case import Case, build_case, split_case
from ..graph.choice import Assignment
from ..graph.mesh import num_ranks
from ..graph.plan import Pruned
from ..graph.roles import Roles, find_roles
from ..graph.schedules.held import peak_held
from ..graph.schedules.known import build_order
from ..graph.schedules.timeline import Durations, simulate
from ..graph.shorten import drop_units, unit_members
from ..graph.stages import Stage, cut_stages, list_units
from .layouts import Layout, Place, inner_constraints, least_seconds, list_places, list_schedules, list_turns, print_layout, turn_weight
from .stage_cuts import bound_chunks, bound_cuts, choose_cuts
from .stage_solve import StageAnswer, StageTimes, align, solve_stage
from .steer import Steer, refine_fold
from .unit_costs import UnitCosts, Units, find_units, part_roles, price_units

_GAP = 1e-3
_STAGE_GAP = 0.01  # a plan of a stage that is as near to its bound is good enough for others like it
_KEPT_UNITS = 4  # of a run of equal ones, where only its price is asked for
_SHORTER = 3000  # nodes; a smaller graph is not shortened
_AGAIN_FACTOR, _KEPT_SHARE = 1.2, 0.2  # recomputing: what it costs in time, and what it leaves of activations, to rank layouts by
_TRUST = 0.92  # guesses were up to 7 % above what memory and the true cuts gave
_STAGE_SHARES = 6  # one stage may take this part of the time that is left
_GLANCE = 0.35  # of the time, for a first price of every place
_LATER = 0.35  # of the time, kept for solving with memory at the end
_FIRST, _MOST = 4, 12  # layouts are solved with memory, before all have a price and in all


@dataclass(frozen=True, slots=True)
class Staged:
    """A plan in stages.

    Args:
        cuts: the first unit of the second and every later chunk.
        starts: the first node of each of these, of the graph in turns.
        stages: of each rank of the pipeline, in order.
        in_flight: microbatches between forward and backward, at most, per stage.
        step_s: by the simulated schedule.
        bubble_s: what the slowest stage waits.
    """

    layout: Layout
    cuts: tuple[int, ...]
    starts: tuple[str, ...]
    stages: tuple[StageAnswer, ...]
    in_flight: tuple[float, ...]
    step_s: float
    bubble_s: float


@dataclass(frozen=True, slots=True)
class StagedResult:
    """What the search found: the best plan, if any is better than what was known, and the least that the other layouts may take."""

    best: Staged | None
    bound_s: float
    num_layouts: int
    num_solved: int
    wall_s: float
    pruned: tuple[Pruned, ...]
    least_over_bytes: int | None  # of layouts that do not fit


@dataclass(slots=True)
class _Open:
    """A layout, with what is known of it so far."""

    layout: Layout
    bound_s: float
    guess_s: float = inf
    simulated: bool = False
    solved: bool = False
    gone: bool = False  # there is no such plan


@dataclass(slots=True)
class _Turns:
    """A number of microbatches: the shortened graph that takes them, its roles and units."""

    case: Case
    roles: Roles
    units: Units
    repeated: int  # the unit of which the whole model has `more` than the shortened one
    more: int


@dataclass(slots=True)
class PipelineSearch:
    """One search; lives for one call of `run`."""

    case: Case
    model: CostModel
    constraints: Constraints
    limit_bytes: int
    deadline: float
    report: Callable[[str], None]
    most_stages: int | None = None
    plain_too: bool = False  # one stage with one microbatch, as well
    best: Staged | None = None
    best_s: float = inf
    turns: dict[int, _Turns | str] = field(default_factory=dict)
    pruned: dict[Pruned, None] = field(default_factory=dict)
    priced: dict[tuple[Place, int], UnitCosts | None] = field(default_factory=dict)
    splits: dict[tuple[int, int], tuple[Case, Case]] = field(default_factory=dict)
    shorts: dict[int, tuple[Case, int, int]] = field(default_factory=dict)
    num_solved: int = 0
    over: int | None = None

    def run(self, cutoff_s: float) -> StagedResult:
        """Search. Plans that take `cutoff_s` or longer are of no interest."""
        began, self.best_s = time.monotonic(), cutoff_s
        every = self._list_open()
        places: dict[Place, list[_Open]] = {}
        for each in sorted(every, key=lambda e: (e.bound_s, e.layout.num_microbatches)):
            places.setdefault(each.layout.place, []).append(each)
        self._glance(places, began)
        self._solve_best([e for e in every if e.guess_s < inf], _FIRST)
        for rows in places.values():  # in the order of their bounds; what is left without a price when time is up has the bound of its compute
            if time.monotonic() > self.deadline - self._keep_s(began):
                break
            self._price_place(sorted((e for e in rows if not self._is_beaten(e)), key=lambda e: e.layout.num_microbatches))
        self._solve_best([e for e in every if e.guess_s < inf], _MOST)
        bound = min([inf, *(e.bound_s for e in every if not e.gone)])
        left = sum(1 for e in every if not (e.solved or e.gone or self._is_beaten(e)))
        if left:
            self._prune(f"{left} layouts", "not solved with memory: --time-limit was up, or enough had been; their bounds count")
        if self.best is not None:
            self.best = self.finish(self.best)
        return StagedResult(self.best, max(bound, 0.0), len(every), self.num_solved, time.monotonic() - began, tuple(self.pruned), self.over)

    def _keep_s(self, began: float) -> float:
        """Of the time, what is kept for plans with memory."""
        return _LATER * (self.deadline - began)

    def _glance(self, places: dict[Place, list[_Open]], began: float) -> None:
        """One price for each place, at one sample a rank and microbatch where the pipeline is deep, so that the best come first."""
        for rows in places.values():
            if time.monotonic() > began + _GLANCE * (self.deadline - began) or all(self._is_beaten(e) for e in rows):
                continue
            stages = rows[0].layout.place.num_stages
            most = max(e.layout.num_microbatches for e in rows)
            wanted = most if stages > 1 else min(e.layout.num_microbatches for e in rows)
            self._price_place([e for e in rows if e.layout.num_microbatches == wanted])

    def _solve_best(self, some: list[_Open], most: int) -> None:
        """Solve with memory, the most promising first; a guess is simulated before it is believed."""
        waiting = sorted((e for e in some if not (e.solved or e.gone)), key=lambda e: e.guess_s)
        while waiting and self.num_solved < most and time.monotonic() < self.deadline:
            each = waiting.pop(0)
            if self._is_beaten(each) or _TRUST * each.guess_s >= self.best_s:
                continue
            if not each.simulated:
                each.simulated, each.guess_s = True, self._simulate_guess(each)
                bisect.insort(waiting, each, key=lambda e: e.guess_s)
                continue
            self._solve(each)

    # --- what there is

    def _list_open(self) -> list[_Open]:
        case = self.case
        rows = list_units(case.graph)
        found = self._turns_of(1)
        if isinstance(found, str) or not found.roles.batch:
            self._prune("microbatches and stages", "the model has no batch dim" if not isinstance(found, str) else found)
            return []
        batch = gcd(*(size for _, _, size in found.roles.batch))
        loop_s, once_s = roofline_seconds(self.model, case)
        cluster, tall = self.model.cluster, []
        asked = dict(self.constraints.degrees).get(PIPELINE)
        most = 1 if self.constraints.only is not None else self.most_stages or len(rows)
        if asked is not None and asked > most:
            raise ConstraintError(f"pp={asked}: {f'this command needs a plan in {most} stage' if self.most_stages else f'the model has {len(rows)} units between which it may be cut'}; leave it out")
        for place in list_places(cluster.num_hosts * cluster.devices_per_host, cluster.devices_per_host, min(most, len(rows)), self.constraints):
            for turns in list_turns(place, batch, self.constraints):
                if place.num_stages == 1 and turns == 1 and not self.plain_too:
                    continue  # any mesh is searched for it (`search`)
                ranks = num_ranks(place.mesh)
                for layout in list_schedules(place, turns, len(rows), self.constraints):
                    tall.append(_Open(layout, least_seconds(layout, loop_s / ranks / turns, once_s / ranks)))
        return tall

    def _turns_of(self, count: int) -> _Turns | str:
        """The shortened graph in so many turns; why there is none."""
        if count not in self.turns:
            short, repeated, more = self._shorten(_KEPT_UNITS)
            try:
                case = self._refine(split_case(short, count))
            except MicrobatchError as error:
                self.turns[count] = str(error)
                self._prune("more than one microbatch", str(error))
                return str(error)
            roles = find_roles(case.graph, case.sites, case.signatures, case.cuts)
            units = find_units(case, roles)
            if more:  # units of a graph in turns may begin elsewhere: the run is that of the most common kind
                kinds = units.kinds
                common = max(set(kinds), key=kinds.count)
                repeated = [i for i, k in enumerate(kinds) if k == common][1]
            self.turns[count] = _Turns(case, roles, units, repeated, more)
        return self.turns[count]

    def _shorten(self, keep: int) -> tuple[Case, int, int]:
        """The case with `keep` units of its longest run of equal ones: (case, the unit that is repeated, how many are left out)."""
        if keep not in self.shorts:
            self.shorts[keep] = self._make_short(max(keep, _KEPT_UNITS - 1))
        return self.shorts[keep]

    def _make_short(self, keep: int) -> tuple[Case, int, int]:
        graph, fold = self.case.graph, self.case.fold
        if len(graph.nodes) < _SHORTER or self._names_some():
            return self.case, -1, 0
        rows = list_units(graph)
        members = unit_members(graph, rows)
        kinds = [tuple(fold.node_class[i] for i in unit) for unit in members]
        first, length = 0, 0
        start = 0
        for k in range(1, len(kinds) + 1):
            if k == len(kinds) or kinds[k] != kinds[start]:
                if k - start > length:
                    first, length = start, k - start
                start = k
        if length <= keep:
            return self.case, -1, 0
        short = drop_units(graph, members, first + 1, first + length - keep)
        if short is None:
            return self.case, -1, 0
        return build_case(short, self.case.rules), first + 1, length - keep

    # --- prices

    def _price_place(self, rows: list[_Open]) -> None:
        """Raise the bounds of a place's layouts, fewest microbatches first: more of them only add work, so a bound carries over."""
        carried = None
        for each in rows:
            count = each.layout.num_microbatches
            if carried is not None:
                each.bound_s = max(each.bound_s, _bound(each.layout, carried[0], carried[1] / count))
            if self._is_beaten(each) or time.monotonic() > self.deadline:
                continue
            costs = self._price(each.layout.place, count)
            if costs is None:
                each.gone = True
                continue
            carried = costs, float(count)
            each.bound_s = max(each.bound_s, _bound(each.layout, costs, 1.0))
            each.guess_s = self._guess(each.layout, costs)

    def _price(self, place: Place, count: int) -> UnitCosts | None:
        if (place, count) not in self.priced:
            self.priced[place, count] = self._price_units(place, count)
        return self.priced[place, count]

    def _price_units(self, place: Place, count: int) -> UnitCosts | None:
        turns = self._turns_of(count)
        if isinstance(turns, str):
            return None
        inner = inner_constraints(self.constraints, place)
        try:
            costs = price_units(turns.units, place.mesh, self.model, inner, count)  # what is received costs nothing: units of one stage receive nothing
        except ConstraintError as error:
            self._prune(print_layout(Layout(place, count)), str(error))
            return None
        return UnitCosts(*(_expand(getattr(costs, f), turns) for f in ("step_s", "fill_s", "once_s", "always", "waiting", "passing")))

    def _guess(self, layout: Layout, costs: UnitCosts) -> float:
        chunks = layout.place.num_stages * layout.chunks
        if chunks > len(costs.step_s):
            return inf
        cuts = choose_cuts(costs.step_s, chunks)
        ends, stages, factor = list(zip((0, *cuts), (*cuts, len(costs.step_s)))), layout.place.num_stages, turn_weight(layout) / layout.num_microbatches
        sums = [sum(costs.once_s[a:b]) + factor * max(0.0, sum(costs.step_s[a:b]) - sum(costs.once_s[a:b])) for a, b in ends]
        return max(sum(sums[r::stages]) for r in range(stages)) * self._memory_factor(layout, costs, cuts)

    def _simulate_guess(self, each: _Open) -> float:
        """The guess with the schedule simulated: chunks as long as the prices of their units say, a third of it forward."""
        layout, stages = each.layout, each.layout.place.num_stages
        costs = self._price(layout.place, layout.num_microbatches)
        if costs is None or stages == 1:
            return each.guess_s
        cuts, row = choose_cuts(costs.step_s, stages * layout.chunks), [max(0.0, s - once) for s, once in zip(costs.step_s, costs.once_s)]
        sums = [sum(row[a:b]) / layout.num_microbatches for a, b in zip((0, *cuts), (*cuts, len(costs.step_s)))]
        order = build_order(layout.schedule, stages, layout.num_microbatches, layout.chunks)
        line = simulate(order, Durations(tuple(s / 3 for s in sums), tuple(s * 2 / 3 for s in sums), tuple(s / 3 for s in sums) if layout.schedule == "zero-bubble" else ()))
        once = [sum(costs.once_s[a:b]) for a, b in zip((0, *cuts), (*cuts, len(row)))]
        after = [sum(once[r::stages]) for r in range(stages)]
        return max(end + update for end, update in zip(line.end_s, after)) * self._memory_factor(layout, costs, cuts)

    def _memory_factor(self, layout: Layout, costs: UnitCosts, cuts: tuple[int, ...]) -> float:
        """How much slower a plan may become to fit: 1 where the fastest fits, what recomputing all takes where that would, much where not."""
        stages, chunks = layout.place.num_stages, layout.chunks
        order = build_order(layout.schedule if stages > 1 else "gpipe", stages, layout.num_microbatches, chunks)
        held = peak_held(order, [1.0 / chunks] * (stages * chunks)) if stages > 1 else (1.0,)
        factor = 1.0
        ends = list(zip((0, *cuts), (*cuts, len(costs.step_s))))
        for s in range(stages):
            mine = [k for a, b in ends[s::stages] for k in range(a, b)]
            always, waiting = sum(costs.always[k] for k in mine), sum(costs.waiting[k] for k in mine)
            passing = max(costs.passing[k] for k in mine)
            need, least = always + held[s] * waiting + passing, always + _KEPT_SHARE * held[s] * waiting + passing
            if need > self.limit_bytes:
                factor = max(factor, _AGAIN_FACTOR * (1.0 + max(0.0, least / self.limit_bytes - 1.0)))
        return factor

    # --- with memory

    def _solve(self, each: _Open) -> None:
        """Solve a layout stage by stage; take it if it is the best so far."""
        self.num_solved += 1
        each.solved = True
        try:
            staged = self.solve_layout(each.layout)
        except (ConstraintError, MicrobatchError) as error:
            each.gone = True
            self._prune(print_layout(each.layout), str(error))
            self.report(f"{print_layout(each.layout)}: {error}")
            return
        if isinstance(staged, str):
            self.report(f"{print_layout(each.layout)}: {staged}")
            self._prune(print_layout(each.layout), staged)
            return
        if each.layout.place.num_stages == 1:
            each.bound_s = max(each.bound_s, staged.stages[0].answer.bound_s)
        self.report(f"{print_layout(each.layout)}: {staged.step_s:.4g} s, guessed {each.guess_s:.4g} s, at least {each.bound_s:.4g} s")
        if staged.step_s < self.best_s:
            self.best, self.best_s = staged, staged.step_s

    def solve_layout(self, layout: Layout) -> Staged | str:
        """The plan of a layout, each kind of stage solved on a graph with as few blocks as that takes; why there is none."""
        place, count = layout.place, layout.num_microbatches
        model = self._staged_model(place)
        turns = self._turns_of(count)
        costs = self._price(place, count)
        if isinstance(turns, str) or costs is None:
            return turns if isinstance(turns, str) else "its constraints cannot be obeyed"
        chunks = place.num_stages * layout.chunks
        if chunks > len(costs.step_s):
            return f"the model has {len(costs.step_s)} units between which it may be cut"
        cuts = choose_cuts(costs.step_s, chunks)
        run = (turns.repeated - 1, turns.repeated - 1 + turns.units.kinds.count(turns.units.kinds[turns.repeated]) + turns.more) if turns.more else (0, 0)
        small = _kinds_of_stages(cuts, len(costs.step_s), run) if layout.chunks == 1 and turns.more else None
        if small is None or sum(n for _, n in small) + 1 >= run[1] - run[0]:
            return self._solve_cuts(self._split(self.case, count), layout, model, cuts, None)
        short, _, more = self._shorten(sum(n for _, n in small))
        if not more:
            return self._solve_cuts(self._split(self.case, count), layout, model, cuts, None)
        found = self._solve_cuts(self._split(short, count), layout, model, *_small_cuts(cuts, small, run))
        return found if isinstance(found, str) else replace(found, cuts=cuts)

    def finish(self, staged: Staged) -> Staged:
        """The plan on the whole graph: the decisions of each kind of stage for all stages that are like it."""
        layout = staged.layout
        whole = self._split(self.case, layout.num_microbatches)
        place, model = layout.place, self._staged_model(layout.place)
        if place.num_stages == 1:
            return staged
        starts = _starts_of(whole, staged.cuts)
        stages = cut_stages(whole.graph, starts, place.num_stages)
        known = {k: Stage(a.case.graph, (), ()) for k, a in enumerate(staged.stages)}
        answers = [_transfer(known[k], stage, a, self) for k, (stage, a) in enumerate(zip(stages, staged.stages))]
        if any(a is None for a in answers):
            found = self._solve_cuts(whole, layout, model, staged.cuts, None)
            if isinstance(found, str):
                raise ConstraintError(f"{print_layout(layout)}: {found}")
            return replace(found, starts=starts)
        return replace(staged, stages=tuple(a for a in answers if a is not None), starts=starts)

    def _names_some(self) -> bool:
        """Constraints speak of single modules or values: then equal blocks may have to differ."""
        c = self.constraints
        return bool(c.pins or c.whole or c.alike or c.modules)

    def _refine(self, case: Case) -> Case:
        return replace(case, fold=refine_fold(case.graph, case.fold, self.constraints))

    def _split(self, case: Case, count: int) -> Case:
        """The case in turns; the last one is kept, for layouts of one number of microbatches come together."""
        key = (id(case), count)
        if key not in self.splits:
            self.splits.clear()
            self.splits[key] = (case, self._refine(split_case(case, count)))
        return self.splits[key][1]

    def _staged_model(self, place: Place) -> CostModel:
        return staged_model(self.model, place.num_stages, self.model.cluster.num_hosts * self.model.cluster.devices_per_host)

    def _solve_cuts(self, whole: Case, layout: Layout, model: CostModel, cuts: tuple[int, ...], place_of: tuple[int, ...] | None) -> Staged | str:
        """Solve the stages of given cuts, alike stages once; simulate the schedule.

        Args:
            place_of: for each stage of the model the stage of this (shorter) graph that stands for it; None: itself.
        """
        place, count = layout.place, layout.num_microbatches
        roles = find_roles(whole.graph, whole.sites, whole.signatures, whole.cuts)
        starts = _starts_of(whole, cuts)
        num_here = place.num_stages if place_of is None else max(place_of) + 1
        stages = cut_stages(whole.graph, starts, num_here) if starts else (Stage(whole.graph, (), ()),)
        order = build_order(layout.schedule if place.num_stages > 1 else "gpipe", place.num_stages, count, layout.chunks)
        in_flight = peak_held(order, [1.0 / layout.chunks] * (place.num_stages * layout.chunks)) if place.num_stages > 1 else (1.0,)
        kinds: list[tuple[int, float, StageAnswer]] = []
        answers: list[StageAnswer] = []
        for number, held in enumerate(in_flight):
            here = number if place_of is None else place_of[number]
            like, known_s = None, inf
            for other, flying, found in kinds:
                if flying >= held:  # it fits here, too
                    mine = found if other == here else _transfer(stages[other], stages[here], found, self)
                    if mine is not None and mine.answer.objective_s < known_s:
                        like, known_s = mine, mine.answer.objective_s
                        if found.answer.memory_rows == 0 or flying == held:
                            known_s = -inf
            if like is not None and known_s > max(a.answer.objective_s for a in answers) * (1 - _GAP) and known_s > like.answer.bound_s * (1 + _STAGE_GAP):
                like = self._solve_stage(here, stages, whole, roles, layout, model, held, like)
                kinds.append((here, held, like))
            if like is None:
                like = self._solve_stage(here, stages, whole, roles, layout, model, held, None)
                if like.assignment is None:
                    return f"stage {number}: {'nothing fits the memory' if like.answer.status == 'infeasible' else 'no plan was found in its time'}"
                kinds.append((here, held, like))
            answers.append(like)
        times = [a.times for a in answers if a.times is not None]
        return _simulated(layout, cuts, starts, tuple(answers), tuple(in_flight), times)

    def _solve_stage(
        self, number: int, stages: Sequence[Stage], whole: Case, roles: Roles, layout: Layout, model: CostModel, held: float, known: StageAnswer | None
    ) -> StageAnswer:
        """One stage; `known`: a plan that fits."""
        case = self._refine(build_case(stages[number].graph, self.case.rules))
        steer = Steer(inner_constraints(self.constraints, layout.place), part_roles(roles, whole, case))
        left = max(3.0, (self.deadline - time.monotonic()) / _STAGE_SHARES)
        found = solve_stage(case, layout.place.mesh, steer, model, self.limit_bytes, held, turn_weight(layout), left)
        better = found.assignment is not None and (known is None or found.answer.objective_s < known.answer.objective_s)
        return found if known is None or better else known

    def _is_beaten(self, each: _Open) -> bool:
        return each.bound_s >= self.best_s * (1 - _GAP)

    def _prune(self, what: str, why: str) -> None:
        self.pruned[Pruned(what, why)] = None


def _expand(row: tuple[float, ...], turns: _Turns) -> tuple[float, ...]:
    k = turns.repeated
    return row if not turns.more else (*row[:k], *(row[k],) * turns.more, *row[k:])


def _bound(layout: Layout, costs: UnitCosts, share: float) -> float:
    """`share`: of the turns that the prices are for."""
    stages = layout.place.num_stages
    if layout.chunks > 1:
        return bound_chunks(costs.step_s, [share * s for s in costs.fill_s], stages)
    return bound_cuts(costs.step_s, [share * s for s in costs.fill_s], stages) if stages <= len(costs.step_s) else inf


def _starts_of(case: Case, cuts: tuple[int, ...]) -> tuple[str, ...]:
    rows = list_units(case.graph)
    if cuts and cuts[-1] >= len(rows):
        raise MicrobatchError(f"{case.graph.name}: cut before unit {cuts[-1]}, but there are {len(rows)}")
    return tuple(case.graph.nodes[rows[k][0]].name for k in cuts)


def _kinds_of_stages(cuts: tuple[int, ...], num_units: int, run: tuple[int, int]) -> list[tuple[tuple[int, ...], int]] | None:
    """The kinds of stages in order of their first: (units outside of the run, how many of the run); None where one kind does not come in one row."""
    found: list[tuple[tuple[int, ...], int]] = []
    for first, last in zip((0, *cuts), (*cuts, num_units)):
        inside = max(0, min(last, run[1]) - max(first, run[0]))
        kind = (tuple(k for k in range(first, last) if not run[0] <= k < run[1]), inside)
        if kind in found and found[-1] != kind and (kind[0] or not inside):
            return None
        if kind not in found:
            found.append(kind)
    return found


def _small_cuts(cuts: tuple[int, ...], kinds: list[tuple[tuple[int, ...], int]], run: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cuts of the graph in which each kind of stage stands once, and for each stage of the model which of them it is."""
    ends, at = [], 0
    for outside, inside in kinds:
        at += len(outside) + inside
        ends.append(at)
    left_out = run[1] - run[0] - sum(n for _, n in kinds)
    num_units = ends[-1] + left_out
    place_of = []
    for first, last in zip((0, *cuts), (*cuts, num_units)):
        inside = max(0, min(last, run[1]) - max(first, run[0]))
        place_of.append(kinds.index((tuple(k for k in range(first, last) if not run[0] <= k < run[1]), inside)))
    return tuple(ends[:-1]), tuple(place_of)


def _transfer(other: Stage, stage: Stage, found: StageAnswer, search: PipelineSearch) -> StageAnswer | None:
    """The answer of a stage for one that is like it."""
    if other is stage:
        return found
    if search._names_some():
        return None
    names = align(other, stage)
    if names is None or found.assignment is None:
        return None
    a = found.assignment
    known = {n: names[n] for n, _ in a.strategies if n in names}
    again = tuple(names[n] for n in a.again)
    copies = {n: f"{names[n.removesuffix('_again')]}_again" for n, _ in a.strategies if n not in known}
    assignment = Assignment(
        a.mesh, tuple((names[n], s) for n, s in a.storages), tuple((known.get(n) or copies[n], c) for n, c in a.strategies), again, a.microbatches
    )
    return replace(found, case=build_case(stage.graph, search.case.rules), assignment=assignment)


def _simulated(
    layout: Layout, cuts: tuple[int, ...], starts: tuple[str, ...], answers: tuple[StageAnswer, ...], in_flight: tuple[float, ...], times: Sequence[StageTimes]
) -> Staged:
    """The step by its schedule: all prepare, the pipeline runs, each stage updates when its last backward is over."""
    stages, chunks = layout.place.num_stages, layout.chunks
    each = [times[k % stages] for k in range(stages * chunks)]
    order = build_order(layout.schedule if stages > 1 else "gpipe", stages, layout.num_microbatches, chunks)
    weight = tuple(t.weight_s / chunks for t in each) if layout.schedule == "zero-bubble" and stages > 1 else ()
    line = simulate(order, Durations(tuple(t.forward_s / chunks for t in each), tuple(t.backward_s / chunks for t in each), weight))
    before = max(t.prepare_s for t in times)
    step = before + max(end + t.update_s for end, t in zip(line.end_s, times))
    own = [t.prepare_s + layout.num_microbatches * (t.forward_s + t.backward_s) + t.update_s for t in times]
    return Staged(layout, cuts, starts, answers, in_flight, step, step - max(own))
