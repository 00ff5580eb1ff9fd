"""What the units of a model cost on a place with so many microbatches, as exactly as was asked for so far.

    FLOOR   the work of the ops divided among all devices, and the start of each: nothing is priced
    MAIN    the most common kind of unit is priced, the others have their floor
    ALL     every kind is priced

In: the graphs of a layout (`layout_cases`), a cost model. Out: costs per unit of the whole model, of which the seconds are never more than what any
plan takes. A cache: prices are made once. Costs for few microbatches bound those for more (`stretch`): more of them only add starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from ..cost.estimate import Roofline, estimate_roofline
from ..cost.model import CostModel
from ..graph.mesh import num_ranks
from .build import Shared
from .layout_cases import LayoutCases, Turned
from .layouts import Place, inner_constraints
from .unit_costs import COST_FIELDS, PhaseCosts, UnitCosts, price_kind, price_phases


class Tier(IntEnum):
    """How much is priced."""

    FLOOR, MAIN, ALL = range(3)


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
    _kinds: dict[tuple[Place, int], dict[int, tuple[float, ...]]] = field(default_factory=dict)
    _shared: dict[Place, Shared] = field(default_factory=dict)

    def costs(self, place: Place, count: int, tier: Tier) -> UnitCosts:
        """Costs of the units.

        Raises:
            ConstraintError: the place cannot obey.
        """
        turned = self._turned(count)
        known = self._kinds.setdefault((place, count), {})
        kinds = turned.units.kinds
        wanted = {Tier.FLOOR: (), Tier.MAIN: (max(set(kinds), key=kinds.count),), Tier.ALL: tuple(range(len(turned.units.cases)))}[tier]
        inner = inner_constraints(self.cases.constraints, place)
        for kind in wanted:
            if kind not in known:
                shared = self._shared.setdefault(place, Shared())
                known[kind] = price_kind(turned.units, kind, place.mesh, self.model, inner, count, shared)
        floors = self._floors(place, count)
        rows = [known.get(kind) or floors[kind] for kind in kinds]
        return UnitCosts(*(turned.expand([row[k] for row in rows]) for k in range(len(COST_FIELDS))))

    def phases(self, place: Place, count: int) -> PhaseCosts:
        """Costs of the units by phase, of a place that obeys."""
        turned, inner = self._turned(count), inner_constraints(self.cases.constraints, place)
        shared = self._shared.setdefault(place, Shared())
        per_kind = [price_phases(turned.units, kind, place.mesh, self.model, inner, count, shared) for kind in range(len(turned.units.cases))]
        return PhaseCosts(*(turned.expand([per_kind[kind][k] for kind in turned.units.kinds]) for k in range(3)))

    def floor_s(self, place: Place, count: int) -> tuple[float, float]:
        """Seconds of one turn on all stages together, and of what is done once, at least."""
        loop, once, starts, first = self._sums(count)
        ranks, base = num_ranks(place.mesh), self._base(count)
        return base * loop / ranks / count + starts, once / ranks + first

    def stretch(self, costs: UnitCosts, count: int, more: int) -> UnitCosts:
        """The costs for `more` microbatches, at least, from those for `count`; bytes as if they were proportional."""
        if more == count:
            return costs
        turned, share = self._turned(more), count / more
        starts = turned.expand([self._roofline(more)[kind].loop_start_s for kind in turned.units.kinds])
        if len(starts) != len(costs.step_s):  # units begin elsewhere in a graph without turns
            starts = (0.0,) * len(costs.step_s)
        return replace(
            costs,
            step_s=tuple(s + (more - count) * start for s, start in zip(costs.step_s, starts)),
            fill_s=tuple(share * s for s in costs.fill_s),
            waiting=tuple(share * b for b in costs.waiting),
            passing=tuple(share * b for b in costs.passing),
        )

    def _turned(self, count: int) -> Turned:
        found = self.cases.turned(count)
        assert not isinstance(found, str), found
        return found

    def _base(self, count: int) -> int:
        """The number of microbatches whose graph tells the floor: a step of more of them works as much, and starts the same ops in each turn."""
        return 1 if count == 1 else next(n for n in self.counts if n > 1)

    def _roofline(self, count: int) -> tuple[Roofline, ...]:
        base = self._base(count)
        if base not in self._rooflines:
            self._rooflines[base] = tuple(estimate_roofline(self.model, case) for case in self._turned(base).units.cases)
        return self._rooflines[base]

    def _sums(self, count: int) -> tuple[float, float, float, float]:
        """(loop, once, their starts) of all units together."""
        turned, rows = self._turned(self._base(count)), self._roofline(count)
        per_unit = turned.expand([rows[kind] for kind in turned.units.kinds])
        return sum(r.loop_s for r in per_unit), sum(r.once_s for r in per_unit), sum(r.loop_start_s for r in per_unit), sum(r.once_start_s for r in per_unit)

    def _floors(self, place: Place, count: int) -> list[tuple[float, ...]]:
        ranks, base, rows = num_ranks(place.mesh), self._base(count), self._roofline(count)
        if len(rows) != len(self._turned(count).units.cases):
            return [(0.0,) * len(COST_FIELDS)] * len(self._turned(count).units.cases)
        once = [r.once_s / ranks + r.once_start_s for r in rows]
        return [(base * r.loop_s / ranks + count * r.loop_start_s + o, 0.0, o, 0.0, 0.0, 0.0) for r, o in zip(rows, once)]
