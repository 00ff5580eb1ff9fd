"""Where a model is cut into several chunks a stage: by its schedule, not by its slowest chunk alone.

In: a layout with several chunks a stage, what its units take, cuts to begin with. Out: cuts. The way: a chunk hands a unit to another one as long as the simulated
schedule is faster; of many microbatches few are simulated, for it is the same again with every round of all stages. Invariant: the same layout and costs give the
same cuts (what is tried is counted in actions, not in seconds), and none that are slower than those to begin with.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..graph.schedules.known import splits_backward
from .layout_guess import chunk_seconds, likely_segments, memory_factor, once_seconds, simulate_turns
from .layouts import Layout, layout_ranks
from .unit_costs import UnitCosts
from .unit_stages import obey_homes

_ACTIONS = 40_000  # simulated for one layout, at most: some 0.03 s
_ROUNDS = 2  # of all stages, until one is as the one before
_BETTER = 2e-3  # as a share: what is expected to be faster by no more is as fast


@lru_cache(maxsize=1 << 10)
def hand_units_over(layout: Layout, costs: UnitCosts, cuts: tuple[int, ...], limit_bytes: int) -> tuple[int, ...]:
    """Cuts of a layout in chunks whose schedule takes no longer.

    Args:
        costs: of its units, in its chunks.
        cuts: to begin with.
        limit_bytes: for tensors, per device.
    """
    count, ranks, stages = layout.num_microbatches, layout_ranks(layout), layout.place.num_stages
    rounds = max(0, count // stages - _ROUNDS)
    turns = (count,) if rounds < 2 else (count - rounds * stages, count - (rounds - 1) * stages)  # with this many, and one round more

    def seconds(found: tuple[int, ...]) -> float:
        once, each = chunk_seconds(layout, [costs] * stages, found, [1.0] * stages)
        few, *more = (simulate_turns(layout, number, once, each) for number in turns)
        return (few + sum(rounds * (longer - few) for longer in more)) * memory_factor(layout, costs, found, limit_bytes)

    at, best, left = cuts, seconds(cuts), _ACTIONS // (2 * len(ranks) * sum(turns))
    while True:
        hopes = _list_hopes(at, layout, costs, best * (1 - _BETTER))
        for number, found in enumerate(hopes):
            if number >= left:
                return at
            if (taken := seconds(found)) < best * (1 - _BETTER):
                at, best, left = found, taken, left - number - 1
                break
        else:
            return at


def _list_hopes(cuts: tuple[int, ...], layout: Layout, costs: UnitCosts, enough_s: float) -> list[tuple[int, ...]]:
    """All cuts by which one chunk has a unit more and another one a unit less, and no stage is expected to end as late as `enough_s`: those first that may end first.

    A stage runs all its chunks, after the first forward of the stages before it, and before their last backward (where backwards are split, their parts for weights
    run beside it).
    """
    ranks, stages, num_units = np.array(layout_ranks(layout)), layout.place.num_stages, len(costs.step_s)
    found = np.array(cuts)[None, :] + _list_moves(len(ranks))
    edge = np.zeros((len(found), 1), dtype=int)
    ends = np.concatenate([edge, found, edge + num_units], axis=1)
    firsts, ends = ends[:, :-1], ends[:, 1:]
    sums = once_seconds(layout, costs)
    once = sums[ends] - sums[firsts]
    spent = np.maximum(likely_segments(costs)[np.minimum(firsts, ends), ends], once)
    before = np.cumsum((spent - once)[:, : stages - 1], axis=1) / layout.num_microbatches * (1 / 3 if splits_backward(layout.schedule) else 1.0)
    busy = spent @ (ranks[:, None] == np.arange(stages))
    busy[:, 1:] += before
    latest = busy.max(axis=1)
    good = np.flatnonzero((firsts < ends).all(axis=1) & (latest < enough_s))
    rows = (tuple(found[k].tolist()) for k in good[np.argsort(latest[good], kind="stable")])
    return [row for row in rows if not costs.homes or obey_homes(row, ranks.tolist(), costs.homes)]


@lru_cache(maxsize=64)
def _list_moves(num_chunks: int) -> np.ndarray:
    """What hands a unit from one chunk to another one, at [move, cut]; chunks that are near one another first."""
    where = np.arange(num_chunks - 1)
    rows = [(where >= first) & (where < first + far) for far in range(1, num_chunks) for first in range(num_chunks - far)]
    return np.concatenate([-np.array(rows, dtype=int), np.array(rows, dtype=int)])
