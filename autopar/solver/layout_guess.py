"""What a layout may take: a bound that holds for every plan of it, and a guess by which the next to be solved is chosen.

In: a layout, the costs of its units (`layout_prices`). Out: seconds. Invariant: the bound holds wherever one cuts, but for `bound_at_cuts`; a guess promises
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf

import numpy as np

from ..graph.schedules.held import list_flying, peak_held
from ..graph.schedules.known import build_order, is_grid, runs_backward, splits_backward
from ..graph.schedules.order import Order
from ..graph.schedules.timeline import Durations, simulate
from .layouts import Layout, layout_ranks
from .stage_cuts import Segments, bound_chunks, bound_cuts, bound_every_cut, bound_turns, choose_cuts
from .unit_costs import PhaseCosts, UnitCosts
from .unit_stages import segment_fits

_AGAIN_FACTOR, _KEPT_SHARE = 1.2, 0.2  # recomputing all: what it costs in time, and what it leaves of activations, to rank layouts by
_CHEAP_FIRST = 4  # what costs least per byte goes first: time grows with this power of the share of bytes that has to go


def bound_layout(layout: Layout, costs: UnitCosts) -> float:
    """No plan of a layout is faster; infinity where the model has too few units for it."""
    stages, ranks, costs = layout.place.num_stages, layout_ranks(layout), costs.in_chunks(layout.chunks)
    if stages > len(costs.step_s):
        return inf
    segments = segments_of(costs)
    if layout.chunks > 1:
        ranks = tuple(rank for k, rank in enumerate(ranks) if ranks[k - 1] != rank or k == 0)  # where it turns back nothing is cut
        return bound_chunks(_tables(costs, segments.step_s, ranks), segments.forward_s, stages)
    return bound_cuts(_tables(costs, segments.step_s, ranks), segments.forward_s)


@lru_cache(maxsize=256)
def segments_of(costs: UnitCosts) -> Segments:
    """`UnitCosts.segments_by_phase`, the phases not known."""
    return costs.segments_by_phase()


@lru_cache(maxsize=256)
def likely_segments(costs: UnitCosts) -> np.ndarray:
    """`UnitCosts.segments`, about."""
    return costs.segments(likely=True)


def _tables(costs: UnitCosts, segments: np.ndarray, ranks: Sequence[int]) -> list[np.ndarray]:
    """The segments of each chunk: infinite where a unit must be on another stage than the one that runs the chunk."""
    if not costs.homes:
        return [segments] * len(ranks)
    known = {rank: np.where(segment_fits(costs.homes, rank), segments, inf) for rank in set(ranks)}
    return [known[rank] for rank in ranks]


def has_given_cuts(layout: Layout) -> bool:
    """Several chunks per stage: searched at one way to cut alone, the one that their costs give."""
    return layout.chunks > 1 and layout.schedule == "interleaved"


def bound_at_cuts(layout: Layout, costs: UnitCosts, phases: PhaseCosts, cuts: Sequence[int]) -> float:
    """No plan of a layout in several chunks that is cut there is faster."""
    return bound_turns(costs.in_chunks(layout.chunks).segments_by_phase(phases), cuts, layout.place.num_stages)


def sharpen_bound(
    layout: Layout, costs: UnitCosts, phases: PhaseCosts, known: Mapping[tuple[int, ...], float] | None = None
) -> tuple[float, tuple[int, ...] | None]:
    """`bound_layout`, with what drains at the end.

    Args:
        known: cuts -> seconds that no plan with these cuts beats; of use where there are few ways to cut.
    Returns:
        Seconds, and the cuts that hold the bound down, of one chunk per stage; None where it is not known of which.
    """
    stages, costs = layout.place.num_stages, costs.in_chunks(layout.chunks)
    if layout.chunks > 1 or splits_backward(layout.schedule) or not runs_backward(layout.schedule) or stages == 1 or stages > len(costs.step_s):
        return bound_layout(layout, costs), None
    segments = costs.segments_by_phase(phases)
    tables = _tables(costs, segments.step_s, layout_ranks(layout))
    return bound_every_cut(tables, segments, known or {})


Cut = Callable[[UnitCosts, tuple[int, ...]], "tuple[int, ...] | None"]  # costs, stage of each chunk -> the first unit of the second and every later chunk


@lru_cache(maxsize=1 << 10)
def cut_units(costs: UnitCosts, ranks: tuple[int, ...]) -> tuple[int, ...] | None:
    """The best cuts by the costs of units (`stage_cuts.choose_cuts`); None where no cuts obey.

    Args:
        ranks: the stage of each chunk.
    """
    return choose_cuts(_tables(costs, likely_segments(costs), ranks))


def cut_evenly(costs: UnitCosts, ranks: tuple[int, ...]) -> tuple[int, ...] | None:
    """Cuts as people make them: as many layers for each chunk, what is before and after the layers (a unit each) beside the first and the last of them; or,
    where only that divides, with one layer fewer there; else, and where units must be on certain stages, the best ones."""
    units, num_chunks = len(costs.step_s), len(ranks)
    if costs.homes:
        return cut_units(costs, ranks)
    if (units - 2) % num_chunks == 0:
        return tuple(1 + k * (units - 2) // num_chunks for k in range(1, num_chunks))
    if units % num_chunks == 0:
        return tuple(k * units // num_chunks for k in range(1, num_chunks))
    return cut_units(costs, ranks)


def guess_seconds(layout: Layout, costs: UnitCosts, cuts: tuple[int, ...]) -> float:
    """The step of these cuts, memory aside: what the slowest stage runs, after and before one turn of all others."""
    stages, ranks = layout.place.num_stages, layout_ranks(layout)
    chunks = list(zip(ranks, *chunk_seconds(layout, [costs] * stages, cuts, [1.0] * stages)))
    once, turns = ([sum(row[k] for row in chunks if row[0] == rank) for rank in range(stages)] for k in (1, 2))
    return max(o + layout.num_microbatches * t + (sum(turns) - t) / layout.chunks for o, t in zip(once, turns))


def simulate_guess(layout: Layout, costs: UnitCosts, cuts: tuple[int, ...]) -> float:
    """The guess with the schedule simulated: chunks as long as their units, a third of it forward (where there is a backward)."""
    return simulate_stages_guess(layout, [costs] * layout.place.num_stages, cuts, [1.0] * layout.place.num_stages)


def simulate_stages_guess(layout: Layout, costs: Sequence[UnitCosts], cuts: tuple[int, ...], slower: Sequence[float]) -> float:
    """`simulate_guess`, each stage with costs of its own.

    Args:
        slower: what multiplies the seconds of each stage.
    """
    return simulate_turns(layout, layout.num_microbatches, *chunk_seconds(layout, costs, cuts, slower))


def chunk_seconds(layout: Layout, costs: Sequence[UnitCosts], cuts: tuple[int, ...], slower: Sequence[float]) -> tuple[list[float], list[float]]:
    """Of each chunk the seconds beside the turns, and those of one turn; arguments as of `simulate_stages_guess`."""
    ends, rows = list(zip(layout_ranks(layout), (0, *cuts), (*cuts, len(costs[0].step_s)))), [once_seconds(layout, each) for each in costs]
    once = [slower[r] * float(rows[r][b] - rows[r][a]) for r, a, b in ends]
    return once, [max(0.0, slower[r] * float(likely_segments(costs[r])[a, b]) - s) / layout.num_microbatches for (r, a, b), s in zip(ends, once)]


def simulate_turns(layout: Layout, count: int, once: Sequence[float], each: Sequence[float]) -> float:
    """Seconds of so many turns, and of what is beside them, by chunks (`chunk_seconds`): a third of a turn is forward, where there is a backward."""
    stages, ranks = layout.place.num_stages, layout_ranks(layout)
    share = 1 / 3 if runs_backward(layout.schedule) else 1.0
    forward, backward = tuple(s * share for s in each), tuple(s * (1 - share) for s in each)
    order = build_order(layout.schedule, stages, count, layout.chunks)
    line = simulate(order, Durations(forward, backward, forward if splits_backward(layout.schedule) else ()))
    after = [sum(s for s, rank in zip(once, ranks) if rank == r) for r in range(stages)]
    return max(end + update for end, update in zip(line.end_s, after))


def once_seconds(layout: Layout, costs: UnitCosts) -> np.ndarray:
    """Seconds of the units before each one, and of all, beside the turns of other stages. A single turn sums its gradients over dp in its backward, for which the
    stages before wait."""
    return _once_sums(costs, layout.num_microbatches == 1 and layout.place.num_stages > 1)


@lru_cache(maxsize=256)
def _once_sums(costs: UnitCosts, own: bool) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(costs.own_once_s if own else costs.once_s)])


def memory_factor(layout: Layout, costs: UnitCosts, cuts: tuple[int, ...], limit_bytes: int) -> float:
    """How much slower a plan may become to fit: 1 where the fastest fits, little where little is to be recomputed, what recomputing all takes where that would
    do, much where not."""
    return max(stage_memory_factor(layout, costs, cuts, s, limit_bytes) for s in range(layout.place.num_stages))


def stage_memory_factor(layout: Layout, costs: UnitCosts, cuts: tuple[int, ...], stage: int, limit_bytes: int) -> float:
    """`memory_factor` of one stage."""
    always, waiting, passing = 0.0, list[float](), 0.0
    for a, b, rank in zip((0, *cuts), (*cuts, len(costs.step_s)), layout_ranks(layout)):
        if rank == stage:
            always, passing = always + sum(costs.always[a:b]), max(passing, *costs.passing[a:b])
            waiting.append(sum(costs.waiting[a:b]))
    flying = _most_flying(layout.schedule, layout.place.num_stages, layout.num_microbatches, layout.chunks)[stage]
    held = max(sum(n * size for n, size in zip(row, waiting)) for row in flying)
    need, least = always + held + passing, always + _KEPT_SHARE * held + passing
    if need <= limit_bytes:
        return 1.0
    share = min(1.0, (need - limit_bytes) / (need - least)) if need > least else 1.0
    return (1.0 + (_AGAIN_FACTOR - 1.0) * share**_CHEAP_FIRST) * (1.0 + max(0.0, least / limit_bytes - 1.0))


def count_flying(order: Order, chunks: int) -> tuple[float, ...]:
    """Microbatches in flight per stage, at most, all chunks of one counted as one; the one at hand is."""
    return tuple(max(1.0, held) for held in peak_held(order, [1.0 / chunks] * order.num_stages))


def _most_flying(schedule: str, stages: int, count: int, chunks: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Per stage: of each of its chunks the microbatches in flight, wherever there are no more of all of them."""
    return _maximal_flying(schedule, stages, few_turns(schedule, stages, count), chunks) if stages > 1 else (((1,) * chunks,),)


def few_turns(schedule: str, stages: int, count: int) -> int:
    """So many microbatches hold as much at once as all do: of the named schedules only GPipe holds more of them the more there are."""
    return count if schedule == "gpipe" or is_grid(schedule) or count < 3 * stages else 2 * stages + count % stages


@lru_cache(maxsize=1 << 12)
def _maximal_flying(schedule: str, stages: int, count: int, chunks: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    order, found = build_order(schedule, stages, count, chunks), []
    for rank in range(stages):
        kept: list[tuple[int, ...]] = []
        for row in sorted(set(list_flying(order, rank)), reverse=True):
            if not any(all(a >= b for a, b in zip(other, row)) for other in kept):
                kept.append(row)
        found.append(tuple(kept))
    return tuple(found)
