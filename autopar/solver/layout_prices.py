"""What the units of a model cost on a place with so many microbatches, as exactly as was asked for so far.

    NONE    nothing was asked for
    FLOOR   the work of the ops divided among all devices, and the start of each: nothing is priced
    MAIN    the most common kind of unit is priced, the others have their floor
    ALL     every kind is priced
    RUN     and equal units in a row as one piece, and what crosses between stages

In: the graphs of a layout (`layout_cases`), a cost model. Out: costs per unit of the whole model, of which the seconds are never more than what any
plan takes. A cache: prices are made once, and a spare axis changes none. Costs for few microbatches bound those for more (`stretch`): more of them only add starts.
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
from ..graph.mesh import Mesh, num_ranks
from .build import Shared
from .layout_cases import LayoutCases, Turned
from .layouts import Place, inner_constraints, working_mesh, working_ranks
from .relaxation import Latest, Relaxation
from .run_costs import RunRelaxation, Span, fill_run, price_piece, price_run, relax_run, telling_span
from .stage_cuts import PIECE_FIELDS, Crossings, Piece, some_units
from .steer import names_some
from .unit_costs import COST_FIELDS, PHASE_FIELDS, PhaseCosts, UnitCosts, least_costs, price_crossings, price_kind, price_phases, relax_kind

_MOST_KEPT = 24  # programs of kinds and of runs, each


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
    _kinds: dict[tuple[Mesh, int], dict[int, tuple[float, ...]]] = field(default_factory=dict)
    _runs: dict[tuple[Mesh, int, bool], dict[int, tuple[float, float]]] = field(default_factory=dict)
    _phases: dict[tuple[Mesh, int], list[tuple[float, ...]]] = field(default_factory=dict)
    _pieces: dict[tuple[Mesh, int], dict[tuple[int, int], Piece]] = field(default_factory=dict)
    _between: dict[Mesh, Shared] = field(default_factory=dict)
    _shared: dict[Mesh, Shared] = field(default_factory=dict)
    _received: dict[tuple[int, Mesh, int, bool], Crossings] = field(default_factory=dict)
    _kind_programs: Latest[Relaxation] = field(default_factory=lambda: Latest(_MOST_KEPT))
    _run_programs: Latest[RunRelaxation] = field(default_factory=lambda: Latest(_MOST_KEPT))

    def costs(self, place: Place, count: int, tier: Tier, chunks: Sequence[int] = (1,)) -> UnitCosts:
        """Costs of the units.

        Args:
            chunks: how many each stage may run: runs are priced of as many units as such a chunk has.
        Raises:
            ConstraintError: the place cannot obey.
            MicrobatchError: the model takes fewer microbatches, but not so many.
        """
        if place.others:
            return least_costs([self.costs(Place(place.num_stages, mesh), count, tier, chunks) for mesh in place.meshes])
        turned = self._turned(count)
        mesh = working_mesh(place)
        known = self._kinds.setdefault((mesh, count), {})
        kinds = turned.units.kinds
        wanted = {Tier.FLOOR: (), Tier.MAIN: (max(set(kinds), key=kinds.count),)}.get(tier, tuple(range(len(turned.units.cases))))
        for kind in wanted:
            if kind not in known:
                known[kind] = price_kind(self._relax_kind(place, count, kind), count)
        floors = self._floors(place, count)
        rows = [known.get(kind) or floors[kind] for kind in kinds]
        costs = UnitCosts(*(turned.expand([row[k] for row in rows]) for k in range(len(COST_FIELDS))), homes=turned.homes)
        if place.num_stages > 1:
            costs = replace(costs, crossings=self._crossings(place, count, False), near=self._crossings(place, count, True))
        if tier is not Tier.RUN:
            return costs
        costs = replace(costs, pieces=tuple(self._pieces.get((mesh, count), {}).values()))
        return self._with_run(costs, place, count, chunks) if working_ranks(place) > 1 else costs  # of one rank the units tell all

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

    def _with_run(self, costs: UnitCosts, place: Place, count: int, chunks: Sequence[int]) -> UnitCosts:
        """The costs with those of the longest run as one piece, as long as a chunk has of it."""
        turned, stages = self._turned(count), place.num_stages
        if turned.parts.length < 2:
            return costs
        first, last = turned.run_units
        mesh = working_mesh(place)
        known = self._runs.setdefault((mesh, count, stages > 1), {})
        lengths = {-(-(last - first) // (stages * each)) for each in chunks} | {(last - first) // (stages * each) for each in chunks if each > 1}
        for each in sorted(lengths - {0} - known.keys()):
            span = telling_span(turned.parts, Span(0, each, 0))
            known[each] = price_run(self._relax_run(place, count, span), each) if span is not None else (0.0, 0.0)
        return replace(costs, run=replace(fill_run(known, costs.step_s[first], last - first), first=first))

    def add_pieces(self, place: Place, count: int, ends: Sequence[tuple[int, int]], deadline: float = inf) -> bool:
        """Price the stages with these units (first, and first after them), each as one piece, as long as there is time; True where one was not priced before.

        Args:
            deadline: by `time.monotonic`.
        """
        if place.others or names_some(self.cases.constraints):
            return False
        turned, mesh, added = self._turned(count), working_mesh(place), False
        known = self._pieces.setdefault((mesh, count), {})
        first, last = turned.run_units
        for a, b in ends:
            if (a, b) in known or time.monotonic() > deadline:
                continue
            inside = max(0, min(b, last) - max(a, first))
            span = Span(max(0, first - a), inside, max(0, b - last)) if inside else Span(b - a, 0, 0, a if a < first else a - turned.more)
            telling = telling_span(turned.parts, span)
            found = price_piece(self._relax_run(place, count, telling), inside, count) if telling is not None else None
            known[a, b] = Piece(a, b, *(found or (0.0,) * len(PIECE_FIELDS)))
            added = added or found is not None
        return added

    def _relax_run(self, place: Place, count: int, span: Span) -> RunRelaxation:
        """The program of units around a run."""
        mesh, inner, parts = working_mesh(place), inner_constraints(self.cases.constraints, place.mesh), self._turned(count).parts
        shared, model = self._between.setdefault(mesh, Shared()), self._staged_model(place)
        return self._run_programs.get((mesh, count, place.num_stages > 1, span, inner), lambda: relax_run(parts, span, mesh, model, inner, count, shared))

    def phases(self, place: Place, count: int) -> PhaseCosts:
        """Costs of the units by phase, of a place that obeys."""
        if place.others:
            rows = [self.phases(Place(place.num_stages, mesh), count) for mesh in place.meshes]
            return PhaseCosts(*(tuple(map(min, *(getattr(row, name) for row in rows))) for name in PHASE_FIELDS))
        turned, key = self._turned(count), (working_mesh(place), count)
        if key not in self._phases:
            self._phases[key] = [price_phases(self._relax_kind(place, count, kind), count) for kind in range(len(turned.units.cases))]
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

    def stretch(self, costs: UnitCosts, count: int, more: int) -> UnitCosts:
        """The costs for `more` microbatches, at least, from those for `count`; bytes as if they were proportional."""
        if more == count:
            return costs
        turned, share = self._turned(self.base(more)), count / more
        starts = turned.expand([self._roofline(more)[kind].loop_start_s for kind in turned.units.kinds])
        run = costs.run
        if run is not None:
            extra = (more - count) * starts[run.first]
            free, between, likely = (tuple(s + n * extra for n, s in enumerate(row)) for row in (run.free_s, run.between_s, run.likely_s))
            run = replace(run, free_s=free, between_s=between, likely_s=likely)
        return replace(
            costs,
            pieces=(),
            run=run,
            step_s=tuple(s + (more - count) * start for s, start in zip(costs.step_s, starts)),
            fill_s=tuple(share * s for s in costs.fill_s),
            waiting=tuple(share * b for b in costs.waiting),
            passing=tuple(share * b for b in costs.passing),
            crossings=_of_shorter_turns(costs.crossings, share),
            near=_of_shorter_turns(costs.near, share),
        )

    def stretch_phases(self, phases: PhaseCosts, count: int, more: int) -> PhaseCosts:
        """The costs by phase for `more` microbatches, at least, from those for `count`."""
        if more == count:
            return phases
        turned = self._turned(self.base(more))
        starts = turned.expand([self._roofline(more)[kind].loop_start_s for kind in turned.units.kinds])
        loop = tuple(s + (more - count) * start for s, start in zip(phases.loop_s, starts))
        return replace(phases, loop_s=loop, drain_s=tuple(count / more * s for s in phases.drain_s))

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

    def _floors(self, place: Place, count: int) -> list[tuple[float, ...]]:
        ranks, base, rows = working_ranks(place), self.base(count), self._roofline(count)
        if len(rows) != len(self._turned(count).units.cases):
            return [(0.0,) * len(COST_FIELDS)] * len(self._turned(count).units.cases)
        once = [r.once_s / ranks + r.once_start_s for r in rows]
        fill = [base * r.forward_s / ranks / count + r.forward_start_s for r in rows]
        return [(base * r.loop_s / ranks + count * r.loop_start_s + o, f, o, 0.0, 0.0, 0.0) for r, o, f in zip(rows, once, fill)]


def _of_ends(found: Crossings, turned: Turned) -> Crossings:
    """What crosses, of the whole model: what its first unit alone receives of those before, and its last of those after."""
    ends = [turned.expand(tuple(np.diagonal(table, 1))) for table in (found.before_s, found.after_s, found.forward_s, found.backward_s)]
    some = some_units(len(ends[0]))
    first, last = ([np.append(row, 0.0)[:, None] * some for row in ends], [np.append(0.0, row)[None, :] * some for row in ends])
    return Crossings(first[0], last[1], first[2], last[3])


def _of_shorter_turns(found: Crossings, share: float) -> Crossings:
    """What crosses where a turn has a share of the samples; all turns together receive as much, at least."""
    return replace(found, forward_s=share * found.forward_s, backward_s=share * found.backward_s)
