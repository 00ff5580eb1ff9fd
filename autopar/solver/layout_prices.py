"""What the units of a model cost on a place with so many microbatches, as exactly as was asked for so far.

    NONE    nothing was asked for
    FLOOR   the work of the ops divided among all devices, and the start of each: nothing is priced
    MAIN    the most common kind of unit is priced, the others have their floor
    ALL     every kind is priced
    RUN     and units that repeat as one piece, and what crosses between stages

In: the graphs of a layout (`layout_cases`), a cost model. Out: costs per unit of the whole model, of which the seconds are never more than what any
plan takes. A cache: prices are made once, and a spare axis changes none. A graph in few microbatches tells what more of them take at least (`more_turns`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf

import numpy as np

from ..cost.estimate import Roofline, estimate_roofline
from ..cost.model import CostModel, staged_model
from ..errors import MicrobatchError
from ..graph.case import Case
from ..graph.mesh import Mesh, num_ranks
from .build import Shared
from .layout_cases import LayoutCases, Turned
from .layouts import Place, inner_constraints, working_mesh, working_ranks
from .more_turns import EachTurn, find_each_turn, with_turns
from .problem import Problem
from .relaxation import Latest, Relaxation
from .path_bound import path_seconds, relax_path
from .run_costs import RunRelaxation, Span, fill_run, price_piece, price_run, relax_run, telling_span
from .stage_cuts import PIECE_FIELDS, Crossings, Piece, some_units
from .steer import names_some
from .unit_costs import COST_FIELDS, PHASE_FIELDS, PhaseCosts, UnitCosts, least_costs, price_crossings, price_kind, price_phases, relax_kind

_MOST_KEPT = 24  # programs of kinds and of runs, each
_PATH_S = 20.0  # of the linear program of a path


class Tier(IntEnum):
    """How much is priced."""

    NONE, FLOOR, MAIN, ALL, RUN = range(5)


@dataclass(slots=True)
class LayoutPrices:
    """Prices of one model on a cluster.

    Args:
        counts: every number of microbatches that may be asked for, ascending.
    """

    cases: LayoutCases
    model: CostModel
    counts: Sequence[int]
    _rooflines: dict[int, tuple[Roofline, ...]] = field(default_factory=dict)
    _kinds: dict[tuple[Mesh, int, int], dict[int, tuple[float, ...]]] = field(default_factory=dict)
    _runs: dict[tuple[Mesh, int, int, bool], dict[int, tuple[float, float]]] = field(default_factory=dict)
    _phases: dict[tuple[Mesh, int, int], list[tuple[float, ...]]] = field(default_factory=dict)
    _pieces: dict[tuple[Mesh, int], dict[tuple[int, int], Piece]] = field(default_factory=dict)
    _each: dict[int, EachTurn] = field(default_factory=dict)
    _between: dict[Mesh, Shared] = field(default_factory=dict)
    _shared: dict[Mesh, Shared] = field(default_factory=dict)
    _received: dict[tuple[int, Mesh, int, bool], Crossings] = field(default_factory=dict)
    _kind_programs: Latest[Relaxation] = field(default_factory=lambda: Latest(_MOST_KEPT))
    _run_programs: Latest[RunRelaxation] = field(default_factory=lambda: Latest(_MOST_KEPT))

    def costs(self, place: Place, count: int, tier: Tier, chunks: Sequence[int] = (1,), turns: int = 0) -> UnitCosts:
        """Costs of the units.

        Args:
            chunks: how many each stage may run: runs are priced of as many units as such a chunk has.
            turns: so many microbatches, by the graph of `count`: at least, and bytes as if they were proportional (`may_stretch`). 0: as many as `count`.
        Raises:
            ConstraintError: the place cannot obey.
            MicrobatchError: the model takes fewer microbatches, but not so many.
        """
        turns = turns or count
        if place.others:
            return least_costs([self.costs(Place(place.num_stages, mesh), count, tier, chunks, turns) for mesh in place.meshes])
        turned = self._turned(count)
        mesh = working_mesh(place)
        known = self._kinds.setdefault((mesh, count, turns), {})
        kinds = turned.units.kinds
        wanted = {Tier.FLOOR: (), Tier.MAIN: (max(set(kinds), key=kinds.count),)}.get(tier, tuple(range(len(turned.units.cases))))
        for kind in wanted:
            if kind not in known:
                unit = self._relax_kind(place, count, kind)
                known[kind] = price_kind(unit, self._in_turns(unit.problem, turned.units.cases[kind], count, turns), turns)
        floors = self._floors(place, count, turns)
        rows = [known.get(kind) or floors[kind] for kind in kinds]
        costs = UnitCosts(*(turned.expand([row[k] for row in rows]) for k in range(len(COST_FIELDS))), homes=turned.homes)
        if place.num_stages > 1:
            costs = replace(costs, crossings=self._crossings(place, count, False), near=self._crossings(place, count, True))
        costs = costs if turns == count else _of_shorter_turns(costs, count / turns)
        if tier is not Tier.RUN:
            return costs
        if turns == count:
            costs = replace(costs, pieces=tuple(self._pieces.get((mesh, count), {}).values()))
        return self._with_run(costs, place, count, chunks, turns) if working_ranks(place) > 1 else costs  # of one rank the units tell all

    def _in_turns(self, problem: Problem, case: Case, count: int, turns: int) -> Problem:
        """A problem of `count` microbatches in `turns` of them."""
        return problem if turns == count else with_turns(problem, case, self._each_turn(self.base(turns)), self.model, count, turns)

    def _each_turn(self, base: int) -> EachTurn:
        """What is the same in every turn, as the graph in the fewest tells."""
        if base not in self._each:
            self._each[base] = find_each_turn(self._turned(1).case.graph, self._turned(base).case.graph)
        return self._each[base]

    def _relax_kind(self, place: Place, count: int, kind: int) -> Relaxation:
        """The program of a kind of unit."""
        mesh, inner = working_mesh(place), inner_constraints(self.cases.constraints, place.mesh)
        shared = self._shared.setdefault(mesh, Shared())
        return self._kind_programs.get((mesh, count, kind, inner), lambda: relax_kind(self._turned(count).units, kind, mesh, self.model, inner, count, shared))

    def _crossings(self, place: Place, count: int, near: bool) -> Crossings:
        """What crosses between stages; of a shortened graph only what the first and the last unit of a stage read, as each does that is like it."""
        key = (place.num_stages, place.mesh, count, near)
        if key not in self._received:
            turned = self._turned(count)
            found = price_crossings(turned.units, self._staged_model(place), working_ranks(place), count, near)
            if turned.more:
                found = _of_ends(found, turned)
            self._received[key] = found
        return self._received[key]

    def _staged_model(self, place: Place) -> CostModel:
        return staged_model(self.model, place.num_stages, num_ranks(place.mesh) * place.num_stages)

    def _with_run(self, costs: UnitCosts, place: Place, count: int, chunks: Sequence[int], turns: int) -> UnitCosts:
        """The costs with those of the longest run as one piece, as long as a chunk has of it."""
        turned, stages = self._turned(count), place.num_stages
        run, period = turned.run, turned.run.period
        if turned.parts.run.length < 2:
            return costs
        mesh = working_mesh(place)
        known = self._runs.setdefault((mesh, count, turns, stages > 1), {})
        lengths = {-(-run.length // (stages * each)) for each in chunks} | {run.length // (stages * each) for each in chunks if each > 1}
        lengths = lengths if period == 1 else {min(max(1, round(n / period)), run.length // period) * period for n in lengths if n}
        for each in sorted(lengths - {0} - known.keys()):
            span = telling_span(turned.parts, Span(0, each, 0))
            if span is None:
                known[each] = 0.0, 0.0
                continue
            found = self._relax_run(place, count, span, True)
            known[each] = price_run(found, self._in_turns(found.own, turned.parts.part(span).inner, count, turns), each)
        return replace(costs, run=fill_run(known, costs.step_s[run.first : run.last], run))

    def add_pieces(self, place: Place, count: int, ends: Sequence[tuple[int, int]], deadline: float = inf, enough_s: float = inf) -> bool:
        """Price the stages with these units (first, and first after them), each as one piece, as long as there is time; True where one was not priced before.

        Args:
            deadline: by `time.monotonic`.
            enough_s: a stage that takes as long is too slow, whatever its phases take.
        """
        if place.others or names_some(self.cases.constraints):
            return False
        turned, mesh, added = self._turned(count), working_mesh(place), False
        known = self._pieces.setdefault((mesh, count), {})
        first, last = turned.run.first, turned.run.last
        for a, b in ends:
            if (a, b) in known or time.monotonic() > deadline:
                continue
            inside = max(0, min(b, last) - max(a, first))
            alone = turned.run.shift(a) if a >= first and b <= last else 0
            span = Span(max(0, first - a), inside, max(0, b - last), alone) if inside else Span(b - a, 0, 0, a if a < first else a - turned.more)
            telling = telling_span(turned.parts, span)
            found = price_piece(self._relax_run(place, count, telling), inside, count, enough_s) if telling is not None else None
            known[a, b] = Piece(a, b, *(found or (0.0,) * len(PIECE_FIELDS)))
            added = added or found is not None
        return added

    def path_s(self, place: Place, count: int, deadline: float, enough_s: float) -> float:
        """Seconds of one microbatch through all stages, forward and back, at least; 0 where nothing is told. Args: as of `add_pieces`."""
        turned, mesh = self._turned(count), working_mesh(place)
        if place.others or names_some(self.cases.constraints):
            return 0.0
        first, last = turned.run.first, turned.run.last
        units = len(self.costs(place, count, Tier.FLOOR).step_s)
        span = Span(first, last - first, units - last) if last > first else Span(units, 0, 0)
        telling = telling_span(turned.parts, span)
        if telling is None:
            return 0.0
        part = turned.parts.part(telling)
        found = relax_path(part, mesh, self._staged_model(place), inner_constraints(self.cases.constraints, place.mesh), count)
        found.limit_time(min(_PATH_S, max(0.0, deadline - time.monotonic())))
        return path_seconds(found, part, (span.inside - telling.inside) // turned.run.period, count, enough_s)

    def _relax_run(self, place: Place, count: int, span: Span, inner: bool = False) -> RunRelaxation:
        """The program of units around a run. Args: inner: as of `relax_run`."""
        mesh, constraints, parts = working_mesh(place), inner_constraints(self.cases.constraints, place.mesh), self._turned(count).parts
        shared, model = self._between.setdefault(mesh, Shared()), self._staged_model(place)
        apart = inner and parts.part(span).inner is not parts.part(span).case
        key = (mesh, count, place.num_stages > 1, span, constraints, apart)
        return self._run_programs.get(key, lambda: relax_run(parts, span, mesh, model, constraints, count, shared, inner))

    def phases(self, place: Place, count: int, turns: int = 0) -> PhaseCosts:
        """Costs of the units by phase, of a place that obeys. Args: as of `costs`."""
        turns = turns or count
        if place.others:
            rows = [self.phases(Place(place.num_stages, mesh), count, turns) for mesh in place.meshes]
            return PhaseCosts(*(tuple(map(min, *(getattr(row, name) for row in rows))) for name in PHASE_FIELDS))
        turned, key = self._turned(count), (working_mesh(place), count, turns)
        if key not in self._phases:
            units = [(self._relax_kind(place, count, kind), case) for kind, case in enumerate(turned.units.cases)]
            self._phases[key] = [price_phases(unit, self._in_turns(unit.problem, case, count, turns), turns) for unit, case in units]
        rows = self._phases[key]
        return PhaseCosts(*(turned.expand([rows[kind][k] for kind in turned.units.kinds]) for k in range(len(PHASE_FIELDS))))

    def floor_s(self, place: Place, count: int) -> tuple[float, float]:
        """Seconds of one turn on all stages together, and of what is done once, at least."""
        loop, once, starts, first = self._sums(count)
        ranks, base = working_ranks(place), self.base(count)
        return base * loop / ranks / count + starts, once / ranks + first

    def may_stretch(self, count: int, more: int) -> bool:
        """True where both graphs have the same units, and smaller pieces are no faster than their share (measured ones fit a cache)."""
        return self.model.measured is None and len(self._turned(self.base(count)).units.kinds) == len(self._turned(self.base(more)).units.kinds)

    def is_launch_bound(self, devices: int) -> bool:
        """True where the starts of ops take longer than their work, divided among so many devices."""
        loop, once, starts, first = self._sums(1)
        return (loop + once) / devices < starts + first

    def _turned(self, count: int) -> Turned:
        found = self.cases.turned(count)
        if isinstance(found, str):
            raise MicrobatchError(found)
        return found

    def base(self, count: int) -> int:
        """The number of microbatches whose graph tells the floor: a step of more of them works as much, and starts the same ops in each turn."""
        return 1 if count == 1 else next(n for n in self.counts if n > 1)

    def _roofline(self, count: int) -> tuple[Roofline, ...]:
        base = self.base(count)
        if base not in self._rooflines:
            units = self._turned(base).units
            self._rooflines[base] = tuple(estimate_roofline(self.model, case, units.shared) for case in units.cases)
        return self._rooflines[base]

    def _sums(self, count: int) -> tuple[float, float, float, float]:
        """(loop, once, their starts) of all units together."""
        turned, rows = self._turned(self.base(count)), self._roofline(count)
        per_unit = turned.expand([rows[kind] for kind in turned.units.kinds])
        return sum(r.loop_s for r in per_unit), sum(r.once_s for r in per_unit), sum(r.loop_start_s for r in per_unit), sum(r.once_start_s for r in per_unit)

    def _floors(self, place: Place, count: int, turns: int) -> list[tuple[float, ...]]:
        """Of each kind of unit of the graph of `count`, in `turns` microbatches."""
        ranks, base, rows, kinds = working_ranks(place), self.base(turns), self._roofline(turns), len(self._turned(count).units.cases)
        if len(rows) != kinds:
            return [(0.0,) * len(COST_FIELDS)] * kinds
        once = [r.once_s / ranks + r.once_start_s for r in rows]
        fill = [base * r.forward_s / ranks / turns + r.forward_start_s for r in rows]
        return [(base * r.loop_s / ranks + turns * r.loop_start_s + o, f, o, o, 0.0, 0.0, 0.0) for r, o, f in zip(rows, once, fill)]


def _of_ends(found: Crossings, turned: Turned) -> Crossings:
    """What crosses, of the whole model: what its first unit alone receives of those before, and its last of those after."""
    ends = [turned.expand(tuple(np.diagonal(table, 1))) for table in (found.before_s, found.after_s, found.forward_s, found.backward_s)]
    some = some_units(len(ends[0]))
    first, last = ([np.append(row, 0.0)[:, None] * some for row in ends], [np.append(0.0, row)[None, :] * some for row in ends])
    return Crossings(first[0], last[1], first[2], last[3])


def _of_shorter_turns(costs: UnitCosts, share: float) -> UnitCosts:
    """Costs where a turn has a share of the samples: bytes as if they were proportional, and what crosses as much in all turns together, at least."""
    crossings, near = (replace(c, forward_s=share * c.forward_s, backward_s=share * c.backward_s) for c in (costs.crossings, costs.near))
    waiting, passing = (tuple(share * b for b in row) for row in (costs.waiting, costs.passing))
    return replace(costs, waiting=waiting, passing=passing, crossings=crossings, near=near)
