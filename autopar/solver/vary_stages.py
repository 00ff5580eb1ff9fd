"""Other degrees on some of the stages: which of them may make a layout faster, whose stages are all divided alike.

In: the layout, prices. Out: layouts whose stages differ, with cuts, the best guess first. Heavy ends, and models whose first part is like no other, want their own
degrees; and where memory makes all stages split tensors, those with fewer microbatches in flight need not. What is guessed is by the prices of stages divided alike, of which
each stage takes the ones that suit it; what it costs to bring what crosses into another form is known once such a layout is solved. It solves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ..constraints import PIPELINE, Constraints
from ..errors import ConstraintError, MicrobatchError
from ..graph.mesh import num_ranks
from .layout_guess import likely_segments, simulate_stages_guess, stage_memory_factor
from .layout_prices import LayoutPrices, Tier
from .layouts import Layout, Place, data_degree, divide_stage, layout_ranks, tensor_degree, vary_place
from .role_meshes import SPARE
from .stage_cuts import choose_cuts
from .unit_costs import UnitCosts

_BETTER = 0.02  # a stage changes its degrees for no less


@dataclass(frozen=True, slots=True)
class Varied:
    """A layout with other degrees on some stages, where to cut it, and about what it takes."""

    layout: Layout
    cuts: tuple[int, ...]
    guess_s: float


def may_vary(layout: Layout, constraints: Constraints) -> bool:
    """The user said nothing of degrees, nor of anything that has them; and there are stages that are divided."""
    free = replace(constraints, degrees=(), microbatches=None, schedule=None, vpp=None, recompute=None)
    place = layout.place
    said = {role for role, _ in constraints.degrees} - {PIPELINE}
    return not free and not said and place.num_stages > 1 and bool(place.mesh.axes) and all(a.name != SPARE for a in place.mesh.axes)


def list_varied(
    layout: Layout, cuts: tuple[int, ...], step_s: float, prices: LayoutPrices, limit_bytes: int, batch: int, devices_per_host: int
) -> list[Varied]:
    """What may be faster than a layout.

    Args:
        cuts, step_s: of the layout.
        limit_bytes: for tensors, per device.
        batch: samples.
    """
    rows = _price_degrees(layout, prices, batch, devices_per_host)
    own = [tensor_degree(layout.place.stage_mesh(s)) for s in range(layout.place.num_stages)]
    if len(rows) < 2 or not set(own) <= rows.keys():
        return []
    now = _guess(layout, rows, own, cuts, limit_bytes)
    found: dict[tuple[Layout, tuple[int, ...]], Varied] = {}
    for mine in dict.fromkeys((cuts, _cut_by_best(layout, rows))):
        tps = _best_degrees(layout, rows, own, mine, limit_bytes) if mine is not None else own
        place = vary_place(layout.place, tps, devices_per_host) if tps != own else None
        if mine is not None and place is not None:
            other = replace(layout, place=place)
            found[other, mine] = Varied(other, mine, step_s * _guess(layout, rows, tps, mine, limit_bytes) / now)
    return sorted(found.values(), key=lambda row: row.guess_s)


def _price_degrees(layout: Layout, prices: LayoutPrices, batch: int, devices_per_host: int) -> dict[int, UnitCosts]:
    """Degree of tp within a host -> costs of the units, of the degrees by which the batch can be divided."""
    found = {}
    for tp, mesh in divide_stage(num_ranks(layout.place.mesh), devices_per_host).items():
        if batch % (data_degree(mesh) * layout.num_microbatches) == 0:
            with suppress(ConstraintError, MicrobatchError):
                place = Place(layout.place.num_stages, mesh)
                found[tp] = prices.costs(place, layout.num_microbatches, Tier.RUN, (layout.chunks,)).in_chunks(layout.chunks)
    return found


def _cut_by_best(layout: Layout, rows: dict[int, UnitCosts]) -> tuple[int, ...] | None:
    """The best cuts where every chunk is divided as it likes."""
    least = np.minimum.reduce([likely_segments(costs) for costs in rows.values()])
    return choose_cuts([least] * len(layout_ranks(layout)))


def _best_degrees(layout: Layout, rows: dict[int, UnitCosts], own: Sequence[int], cuts: tuple[int, ...], limit_bytes: int) -> list[int]:
    """Of each stage the degree of tp that makes it fastest; its own where others are hardly better."""
    count, ranks = len(next(iter(rows.values())).step_s), layout_ranks(layout)
    found = []
    for stage, mine in enumerate(own):
        ends = [(a, b) for a, b, rank in zip((0, *cuts), (*cuts, count), ranks) if rank == stage]

        def seconds(tp: int) -> float:
            table = likely_segments(rows[tp])
            return sum(float(table[a, b]) for a, b in ends) * stage_memory_factor(layout, rows[tp], cuts, stage, limit_bytes)  # noqa: B023 - called in this turn of the loop alone

        best = min(rows, key=seconds)
        found.append(best if seconds(best) < (1 - _BETTER) * seconds(mine) else mine)
    return found


def _guess(layout: Layout, rows: dict[int, UnitCosts], tps: Sequence[int], cuts: tuple[int, ...], limit_bytes: int) -> float:
    costs = [rows[tp] for tp in tps]
    slower = [stage_memory_factor(layout, each, cuts, stage, limit_bytes) for stage, each in enumerate(costs)]
    return simulate_stages_guess(layout, costs, cuts, slower)
