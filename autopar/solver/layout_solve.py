"""The plan of one layout: its stages solved with memory, each kind of them once, and its schedule simulated.

In: a layout, the seconds of its units. Out: a `Staged` plan of a graph with as few blocks as that takes, and (`finish`) of the whole graph.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf

from ..cost.memory import Among
from ..cost.model import CostModel, staged_model
from ..errors import ConstraintError, MicrobatchError
from ..graph.case import Case, build_case
from ..graph.choice import Assignment
from ..graph.chunk_times import NO_CHUNKS, chunk_durations
from ..graph.flying import kept_by_chunk, least_flying, most_flying
from ..graph.graph import Graph
from ..graph.mesh import Mesh
from ..graph.roles import Roles
from ..graph.schedules.known import build_order, chunk_ranks, runs_backward, splits_backward
from ..graph.schedules.schedule import numbers_on_ranks
from ..graph.schedules.timeline import simulate
from ..graph.stage_programs import crossing_chunks
from ..graph.stages import Stage, cut_stages, list_units
from ..graph.turns import RECEIVE, SEND
from .chunk_cuts import hand_units_over
from .infeasible import why_whole
from .joint_bound import StagePlans, bound_jointly
from .layout_cases import LayoutCases, Turned
from .layout_guess import Cut, count_flying, cut_units, few_turns
from .layouts import Layout, Place, inner_constraints, layout_ranks, print_layout, turn_weight
from .mixed import TWO_KINDS
from .runs import Run
from .stage_solve import StageAnswer, align, crossing_choices, flying_of, holds_as_many, place_among, solve_stage, stage_problem
from .steer import Steer, names_some
from .unit_costs import UnitCosts, part_roles
from .unit_stages import count_cuts, obey_homes, why_no_cuts

ChunkKind = tuple[tuple[int, ...], int, int, bool]  # units outside of the run, how many of it, the place of their first in its period, whether the next chunk is on the same stage
StageKind = tuple[tuple[ChunkKind, ...], tuple[Mesh, ...]]  # of each of its chunks; the mesh of the stage, and those of the stages around it

_GAP = 1e-3
_STAGE_GAP = 0.01  # a plan of a stage that is as near to its bound is good enough for others like it
_MOST_CUTS, _CUT_SHARES = 8, 20  # cuts tried of one layout; more than one as long as each takes less than this part of the time that is left
_STAGE_SHARES = 6.0


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
class Unsolved:
    """Why a layout has no plan.

    Args:
        stage: that has none, by its number; None: all of it.
        proven: there is none, not only none that was found. Of what was tried: of given cuts, where it comes from these.
    """

    why: str
    stage: int | None = None
    proven: bool = False


@dataclass(slots=True)
class LayoutSolver:
    """Solves layouts of one model.

    Args:
        limit_bytes: for tensors, per device.
        cut: where a model is cut, from the costs of its units and the number of chunks; other than `cut_units`: nobody moves these cuts.
    """

    cases: LayoutCases
    model: CostModel
    limit_bytes: int
    cut: Cut = cut_units
    deadline: float = inf
    shares: float = _STAGE_SHARES  # one stage may take this part of the time that is left
    solved: dict[tuple, StageAnswer] = field(default_factory=dict)

    def staged_model(self, place: Place) -> CostModel:
        """The cost model with the link between the stages of a place."""
        return staged_model(self.model, place.num_stages, self.model.cluster.num_hosts * self.model.cluster.devices_per_host)

    def first_cuts(self, layout: Layout, costs: UnitCosts) -> tuple[int, ...] | None:
        """Cuts by the slowest chunk alone; None where none obey."""
        return self.cut(costs, layout_ranks(layout))

    def where_to_cut(self, layout: Layout, costs: UnitCosts) -> tuple[int, ...] | None:
        """The best cuts by the costs of units, in chunks by their schedule, too; None where none obey."""
        cuts = self.first_cuts(layout, costs)
        return hand_units_over(layout, costs, cuts, self.limit_bytes) if cuts and layout.chunks > 1 and self.cut is cut_units else cuts

    def solve(self, layout: Layout, costs: UnitCosts, time_limit_s: float, cuts: tuple[int, ...] | None = None, all_time: bool = False) -> Staged | Unsolved:
        """The plan of a layout, each kind of stage solved on a graph with as few blocks as that takes; why there is none.

        Args:
            costs: of its units (`layout_prices`), by which it is cut.
            cuts: where to cut; None: where that is best by the costs.
            all_time: its stages may take all of it.
        Raises:
            ConstraintError: it cannot obey.
            MicrobatchError: its graph takes no microbatches.
        """
        self.deadline, self.shares = time.monotonic() + time_limit_s, layout.place.num_stages if all_time else _STAGE_SHARES
        place, count = layout.place, layout.num_microbatches
        model = self.staged_model(place)
        turns = self.cases.turned(count)
        if isinstance(turns, str):
            return Unsolved(turns, proven=True)
        chunks = place.num_stages * layout.chunks
        if chunks > len(costs.step_s):
            return Unsolved(f"the model has {len(costs.step_s)} units between which it may be cut", proven=True)
        cuts = cuts if cuts is not None else self.where_to_cut(layout, costs)
        if cuts is None:
            return Unsolved(why_no_cuts(turns.case.graph, self.cases.constraints, layout_ranks(layout)), proven=True)
        if (short := self._shorten(layout, turns, cuts, len(costs.step_s))) is None:
            return self._move_cuts(self.cases.split(self.cases.case, count), layout, model, cuts, costs)
        found = self._solve_cuts(short.case, layout, model, short.cuts, short.place_of)
        return replace(found, proven=found.proven and not cuts) if isinstance(found, Unsolved) else replace(found, cuts=cuts)

    def bound(self, layout: Layout, cuts: tuple[int, ...], num_units: int, enough_s: float, deadline: float) -> float:
        """Seconds that no plan of a layout with these cuts beats, memory aside; 0 where the schedule is none whose paths are known.

        Args:
            num_units: of the model.
            enough_s: more need not be shown.
            deadline: of `time.monotonic`.
        Raises:
            ConstraintError: it cannot obey.
        """
        place, count, turns = layout.place, layout.num_microbatches, self.cases.turned(layout.num_microbatches)
        if isinstance(turns, str) or splits_backward(layout.schedule) or not runs_backward(layout.schedule):
            return 0.0
        short = self._shorten(layout, turns, cuts, num_units) or _Short(self.cases.split(self.cases.case, count), cuts, tuple(range(place.num_stages)))
        starts, num_here = _starts_of(short.case, short.cuts), max(short.place_of) + 1
        stages = cut_stages(short.case.graph, starts, chunk_ranks(layout.schedule, num_here, layout.chunks))
        roles, model = self.cases.roles(short.case), self.staged_model(place)
        chunks = crossing_chunks(short.case.graph, starts, chunk_ranks(layout.schedule, num_here, layout.chunks), [stage.graph for stage in stages])
        kinds, here = [], _place_here(place, short.place_of)
        for number, stage in enumerate(stages):
            case, steer = self._stage_case(number, stage.graph, short.case, roles, here)
            if (left := deadline - time.monotonic()) <= 0:
                return 0.0
            weight = turn_weight(layout)
            kinds.append(StagePlans(stage_problem(case, here.stage_mesh(number), steer, model, weight, here.stage_mesh), weight, max(1.0, left), layout.chunks, chunks[number]))
        order = build_order(layout.schedule, place.num_stages, count, layout.chunks)
        return bound_jointly(order, layout.chunks, [kinds[k] for k in short.place_of], enough_s, deadline)

    def _shorten(self, layout: Layout, turns: Turned, cuts: tuple[int, ...], num_units: int) -> _Short | None:
        """The graph in which each kind of stage stands once; None where that is the model's own."""
        run = turns.run
        kinds = _kinds_of_stages(cuts, num_units, run, layout) if turns.more else None
        inside = sum(n for rows, _ in kinds or () for _, n, _, _ in rows)
        if kinds is None or inside + 1 >= run.length or not _take_turns(_chunks_of(kinds, layout), run.period):
            return None
        units = sum(len(outside) + n for rows, _ in kinds for outside, n, _, _ in rows)
        case = self.cases.with_run(inside, layout.num_microbatches)
        if case is None or len(list_units(case.graph)) != units:
            return None
        return _Short(case, *_small_cuts(cuts, kinds, num_units, run, layout))

    def _move_cuts(self, whole: Case, layout: Layout, model: CostModel, cuts: tuple[int, ...], costs: UnitCosts) -> Staged | Unsolved:
        """Solve the stages of these cuts; then hand units of the stage that does not fit, or of the slowest, to its neighbours as long as that is faster,
        and as there is time.

        The cuts are best for units with ample memory; what stages really take is known only now.
        """
        began, best = time.monotonic(), self._solve_cuts(whole, layout, model, cuts, None)
        num_units, ranks = len(costs.step_s), layout_ranks(layout)
        tried, at, every = {cuts: best}, cuts, count_cuts(num_units, ranks, costs.homes)

        def is_fresh(found: tuple[int, ...]) -> bool:
            return found not in tried and (not costs.homes or obey_homes(found, ranks, costs.homes))

        while cuts and self.cut is cut_units and len(tried) < _MOST_CUTS and (time.monotonic() - began) / len(tried) * _CUT_SHARES < self.deadline - time.monotonic():
            stage = best.stage if isinstance(best, Unsolved) else max(range(len(best.stages)), key=lambda s: _busy_seconds(best, s))
            if stage is None or (layout.chunks > 1 and isinstance(best, Staged)):
                break
            fresh = [c for c in _handed_over(at, stage, ranks, num_units) if is_fresh(c)]
            if not fresh and isinstance(best, Unsolved) and every <= _MOST_CUTS:
                fresh = [c for c in combinations(range(1, num_units), len(cuts)) if is_fresh(c)][:1]
            if not fresh:
                break
            found = {c: self._solve_cuts(whole, layout, model, c, None) for c in fresh}
            tried.update(found)
            faster = [(f.step_s, c, f) for c, f in found.items() if isinstance(f, Staged) and (isinstance(best, Unsolved) or f.step_s < best.step_s)]
            if faster:
                _, at, best = min(faster, key=lambda row: row[:2])
            elif isinstance(best, Unsolved):  # on in the same direction
                at, best = next(iter(found.items()))
            else:
                break
        if isinstance(best, Unsolved):
            return replace(best, proven=len(tried) == every and all(isinstance(f, Unsolved) and f.proven for f in tried.values()))
        return best

    def finish(self, staged: Staged) -> Staged:
        """The plan on the whole graph: the decisions of each kind of stage for all stages that are like it."""
        layout = staged.layout
        whole = self.cases.split(self.cases.case, layout.num_microbatches)
        place, model = layout.place, self.staged_model(layout.place)
        if place.num_stages == 1:
            return staged
        starts = _starts_of(whole, staged.cuts)
        stages = cut_stages(whole.graph, starts, layout_ranks(layout))
        known = {k: Stage(a.case.graph, (), ()) for k, a in enumerate(staged.stages)}
        answers = [_transfer(known[k], stage, a, self.cases) for k, (stage, a) in enumerate(zip(stages, staged.stages))]
        if any(a is None for a in answers) or (place.others and not all(self._meets(k, a, whole, place) for k, a in enumerate(answers) if a is not None)):
            found = self._solve_cuts(whole, layout, model, staged.cuts, None)
            if isinstance(found, Unsolved):
                raise ConstraintError(f"{print_layout(layout)}: {found.why}")
            return replace(found, starts=starts)
        return replace(staged, stages=tuple(a for a in answers if a is not None), starts=starts)

    def _meets(self, number: int, answer: StageAnswer, whole: Case, place: Place) -> bool:
        """What crosses the ends of a stage does so as its neighbours have it, whose meshes may be others than where the answer was found."""
        case, steer = self._stage_case(number, answer.case.graph, whole, self.cases.roles(whole), place)
        chosen = dict(answer.assignment.strategies) if answer.assignment is not None else {}
        asked = crossing_choices(case, place.stage_mesh(number), steer.roles, steer.constraints, place.stage_mesh)
        return all(chosen.get(name) == choices for name, choices in asked)

    def _solve_cuts(self, whole: Case, layout: Layout, model: CostModel, cuts: tuple[int, ...], place_of: tuple[int, ...] | None) -> Staged | Unsolved:
        """Solve the stages of given cuts, alike stages once; simulate the schedule. `Unsolved.proven` is about these cuts.

        Args:
            place_of: for each stage of the model the stage of this (shorter) graph that stands for it; None: itself.
        """
        place, count = layout.place, layout.num_microbatches
        roles = self.cases.roles(whole)
        starts = _starts_of(whole, cuts)
        num_here = place.num_stages if place_of is None else max(place_of) + 1
        stages = cut_stages(whole.graph, starts, chunk_ranks(layout.schedule, num_here, layout.chunks)) if starts else (Stage(whole.graph, (), ()),)
        order = build_order(layout.schedule if place.num_stages > 1 else "gpipe", place.num_stages, count, layout.chunks)
        equal = count_flying(order, layout.chunks) if place.num_stages > 1 else (1.0,)  # of one chunk; of several, were they alike
        graphs = [stage.graph for stage in stages]
        turns = min(count, few_turns(layout.schedule, place.num_stages, count) + 2 * place.num_stages)  # interleaved: messages vary for longer than what is in flight
        few = build_order(layout.schedule, place.num_stages, turns, layout.chunks) if starts else order
        chunks = crossing_chunks(whole.graph, starts, chunk_ranks(layout.schedule, num_here, layout.chunks), graphs) if starts else (NO_CHUNKS,)
        kinds: list[tuple[int, float, Among, StageAnswer]] = []
        answers: list[StageAnswer] = []
        in_flight: list[float] = []
        inside = _place_here(place, place_of)
        around = [_meshes_around(stage.graph, inside, k) for k, stage in enumerate(stages)]
        for number, alike in enumerate(equal):
            here = number if place_of is None else place_of[number]
            among = place_among(graphs, here, few, number, chunks)
            held = most_flying(among.held, kept_by_chunk(graphs[here], chunks[here])) if among.chunk_of and among.held else alike  # whole values: about how its chunks compare
            like, known_s = None, inf
            for other, flying, beside, found in kinds:
                if flying >= (own := flying_of(found, among, alike)) and holds_as_many(beside, among) and around[other] == around[here]:  # it fits here, too; and its neighbours are divided alike, so the same crosses in the same way
                    mine = found if other == here else _transfer(stages[other], stages[here], found, self.cases)
                    if mine is not None and mine.found.objective_s < known_s:
                        like, known_s = mine, mine.found.objective_s
                        if (found.found.memory_rows == 0 and not found.found.heavy and found.found.how != TWO_KINDS) or flying == own:
                            known_s = -inf
            if like is not None and known_s > max(a.found.objective_s for a in answers) * (1 - _GAP) and known_s > like.found.bound_s * (1 + _STAGE_GAP):
                like = self._solve_stage(here, stages, whole, roles, layout, inside, model, held, among, like)
                kinds.append((here, flying_of(like, among, alike), among, like))
            if like is None:
                like = self._solve_stage(here, stages, whole, roles, layout, inside, model, held, among, None)
                if like.assignment is None and like.found.status == "infeasible" and among.chunk_of and among.held:  # whatever its chunks keep?
                    like = self._solve_stage(here, stages, whole, roles, layout, inside, model, least_flying(among.held), among, None)
                if like.assignment is None:
                    unfit = like.found.status == "infeasible"
                    why = f"stage {number}: {'nothing fits the memory' if unfit else 'no plan was found in its time'}"
                    whole_states = why_whole(stages[here].graph, inside.stage_mesh(here)) if unfit else ""
                    return Unsolved(f"{why}; {whole_states}" if whole_states else why, number, unfit)
                kinds.append((here, flying_of(like, among, alike), among, like))
            answers.append(like)
            in_flight.append(flying_of(like, among, alike))
        return simulate_stages(layout, cuts, starts, tuple(answers), tuple(in_flight))

    def _solve_stage(
        self, number: int, stages: Sequence[Stage], whole: Case, roles: Roles, layout: Layout, inside: Place, model: CostModel, held: float, among: Among,
        known: StageAnswer | None,
    ) -> StageAnswer:
        """One stage; `inside`: the place of these stages; `known`: a plan that fits."""
        key = (layout.place, inside, layout.num_microbatches, layout.chunks, number, stages[number].graph, held, among, turn_weight(layout), known is None, self.shares)
        if key in self.solved:
            return self.solved[key]
        self.solved[key] = found = self._solve_fresh(number, stages, whole, roles, layout, inside, model, held, among, known)
        return found

    def _solve_fresh(
        self, number: int, stages: Sequence[Stage], whole: Case, roles: Roles, layout: Layout, inside: Place, model: CostModel, held: float, among: Among,
        known: StageAnswer | None,
    ) -> StageAnswer:
        case, steer = self._stage_case(number, stages[number].graph, whole, roles, inside)
        left = max(3.0, (self.deadline - time.monotonic()) / self.shares)
        found = solve_stage(case, inside.stage_mesh(number), steer, model, self.limit_bytes, held, turn_weight(layout), left, mesh_of=inside.stage_mesh, among=among)
        better = found.assignment is not None and (known is None or found.found.objective_s < known.found.objective_s)
        return found if known is None or better else known

    def _stage_case(self, number: int, graph: Graph, whole: Case, roles: Roles, place: Place) -> tuple[Case, Steer]:
        """The case of a stage, and what constraints say inside of it."""
        case = whole if graph is whole.graph else self.cases.refine(build_case(graph, self.cases.case.rules))
        return case, Steer(inner_constraints(self.cases.constraints, place.stage_mesh(number)), part_roles(roles, whole, case))


@dataclass(frozen=True, slots=True)
class _Short:
    """A graph that has each kind of stage of a model once.

    Args:
        cuts: of it.
        place_of: for each stage of the model the stage here that stands for it.
    """

    case: Case
    cuts: tuple[int, ...]
    place_of: tuple[int, ...]


def _busy_seconds(staged: Staged, stage: int) -> float:
    times = staged.stages[stage].times
    return times.prepare_s + staged.layout.num_microbatches * (times.forward_s + times.backward_s) + times.update_s if times is not None else 0.0


def _handed_over(cuts: tuple[int, ...], stage: int, ranks: Sequence[int], num_units: int) -> list[tuple[int, ...]]:
    """The cuts with one unit less on a stage: the first of its chunks' units for the stage before, or the last for the one after."""
    found = []
    for k in range(len(cuts)):
        for step, side in ((1, ranks[k + 1]), (-1, ranks[k])):  # cut k ends chunk k
            moved = (*cuts[:k], cuts[k] + step, *cuts[k + 1 :])
            if side == stage and all(a < b for a, b in zip((0, *moved), (*moved, num_units))):
                found.append(moved)
    return found


def _starts_of(case: Case, cuts: tuple[int, ...]) -> tuple[str, ...]:
    rows = list_units(case.graph)
    if cuts and cuts[-1] >= len(rows):
        raise MicrobatchError(f"{case.graph.name}: cut before unit {cuts[-1]}, but there are {len(rows)}")
    return tuple(case.graph.nodes[rows[k][0]].name for k in cuts)


def _kinds_of_stages(cuts: tuple[int, ...], num_units: int, run: Run, layout: Layout) -> list[StageKind] | None:
    """The kinds of stages in order of their first; None where one kind does not come in one row. Units outside of the run are each on one stage, which
    is the only one of its kind: so they stand in the shorter graph where they stand in the model."""
    found: list[StageKind] = []
    for stage in range(layout.place.num_stages):
        kind = _kind_of_stage(cuts, num_units, run, layout, stage)
        if kind in found and found[-1] != kind:
            return None
        if kind not in found:
            found.append(kind)
    return found


def _chunks_of(kinds: list[StageKind], layout: Layout) -> list[ChunkKind]:
    """The chunks of the shorter graph, in which each kind of stage stands once, in the order of its units."""
    ranks = chunk_ranks(layout.schedule, len(kinds), layout.chunks)
    return [kinds[rank][0][number] for rank, number in zip(ranks, numbers_on_ranks(ranks))]


def _take_turns(chunks: Sequence[ChunkKind], period: int) -> bool:
    """True where each begins at its place in the period, one after the other."""
    at = 0
    for _, inside, shift, _ in chunks:
        if inside and at % period != shift:
            return False
        at += inside
    return True


def _kind_of_stage(cuts: tuple[int, ...], num_units: int, run: Run, layout: Layout, stage: int) -> StageKind:
    """A `ChunkKind` of each of its chunks; and meshes."""
    ranks, place = layout_ranks(layout), layout.place
    ends = [(k, first, last) for k, (first, last) in enumerate(zip((0, *cuts), (*cuts, num_units))) if ranks[k] == stage]

    def kind_of(chunk: int, first: int, last: int) -> ChunkKind:
        begin, inside = max(first, run.first), max(0, min(last, run.last) - max(first, run.first))
        return tuple(u for u in range(first, last) if not run.first <= u < run.last), inside, run.shift(begin) if inside else 0, stage in ranks[chunk + 1 : chunk + 2]

    return tuple(kind_of(*end) for end in ends), tuple(place.stage_mesh((stage + step) % place.num_stages) for step in (0, -1, 1))


def _small_cuts(cuts: tuple[int, ...], kinds: list[StageKind], num_units: int, run: Run, layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cuts of the graph in which each kind of stage stands once, and for each stage of the model which of them it is."""
    ends, at = [], 0
    for outside, inside, _, _ in _chunks_of(kinds, layout):
        at += len(outside) + inside
        ends.append(at)
    return tuple(ends[:-1]), tuple(kinds.index(_kind_of_stage(cuts, num_units, run, layout, s)) for s in range(layout.place.num_stages))


def _place_here(place: Place, place_of: tuple[int, ...] | None) -> Place:
    """The place of a graph in which each kind of stage stands once (`place_of`: as of `_solve_cuts`)."""
    if place_of is None or not place.others:
        return place
    meshes = {here: place.stage_mesh(number) for number, here in enumerate(place_of)}
    return Place(len(meshes), place.mesh, tuple((here, mesh) for here, mesh in sorted(meshes.items()) if mesh != place.mesh))


def _meshes_around(graph: Graph, place: Place, stage: int) -> tuple[Mesh, ...]:
    """The mesh of a stage, and those at the other ends of what crosses its own, in order."""
    return (place.stage_mesh(stage), *(place.stage_mesh(int(dict(n.args)["stage"])) for n in graph.nodes if n.op in (SEND, RECEIVE)))  # type: ignore[call-overload]


def _transfer(other: Stage, stage: Stage, found: StageAnswer, cases: LayoutCases) -> StageAnswer | None:
    """The answer of a stage for one that is like it."""
    if other is stage:
        return found
    if names_some(cases.constraints):
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
    return replace(found, case=build_case(stage.graph, cases.case.rules), assignment=assignment)


def simulate_stages(
    layout: Layout, cuts: tuple[int, ...], starts: tuple[str, ...], answers: tuple[StageAnswer, ...], in_flight: tuple[float, ...]
) -> Staged:
    """The step by its schedule: all prepare, the pipeline runs, each stage updates when its last backward is over.

    Args:
        answers: of all stages, with their times.
    """
    stages = layout.place.num_stages
    times = [a.times for a in answers if a.times is not None]
    order = build_order(layout.schedule if stages > 1 else "gpipe", stages, layout.num_microbatches, layout.chunks)
    line = simulate(order, chunk_durations(times, layout_ranks(layout), splits_backward(layout.schedule) and stages > 1))
    before = max(t.prepare_s for t in times)
    step = before + max(end + t.update_s for end, t in zip(line.end_s, times))
    own = [t.prepare_s + layout.num_microbatches * (t.forward_s + t.backward_s) + t.update_s for t in times]
    return Staged(layout, cuts, starts, answers, in_flight, step, step - max(own))
