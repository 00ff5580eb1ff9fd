"""The joint bound of stages: below every choice of their plans, above what phases take each at its least, and as high as a mix of plans allows."""

from __future__ import annotations

import random
import time
from itertools import product
from math import inf

import numpy as np
import pytest

from autopar.graph.schedules.known import build_order, why_impossible
from autopar.graph.schedules.schedule import numbers_on_ranks
from autopar.graph.schedules.timeline import Durations, critical_path, simulate
from autopar.solver.joint_bound import bound_jointly


class Given:
    """A stage with a list of plans, of which it tells what it is asked for."""

    def __init__(self, rows):
        self.rows, self.plans = rows, []

    def least(self, times):
        best = min(self.rows, key=lambda row: np.dot(row, times))
        if best not in self.plans:
            self.plans.append(best)
        return float(np.dot(best, times))


def step_seconds(order, chunks, stages):
    places = list(zip(order.rank_of, numbers_on_ranks(order.rank_of)))
    line = simulate(order, Durations(tuple(stages[r][1 + n] for r, n in places), tuple(stages[r][1 + chunks + n] for r, n in places)))
    return max(s[0] for s in stages) + max(end + s[-1] for end, s in zip(line.end_s, stages))


def draw_order(rng):
    while True:
        kind, stages, chunks, count = rng.choice((("gpipe", 1), ("1f1b", 1), ("interleaved", 2))), rng.randint(2, 4), 1, rng.choice((1, 2, 4, 8))
        kind, chunks = kind
        if why_impossible(kind, stages, count, chunks) is None:
            return build_order(kind, stages, count, chunks), chunks


def draw_plans(rng, most, chunks):
    """Each shorter in one phase of one chunk than another, longer in another one."""
    return [tuple(rng.choice((0.0, 1.0, rng.random(), 10 * rng.random())) for _ in range(2 + 2 * chunks)) for _ in range(rng.randint(1, most))]


def bound(order, chunks, kinds, enough_s=inf):
    return bound_jointly(order, chunks, kinds, enough_s, time.monotonic() + 60)


@pytest.mark.parametrize("seed", range(60))
def test_no_choice_of_plans_is_faster(seed):
    rng = random.Random(seed)
    order, chunks = draw_order(rng)
    few = [Given(draw_plans(rng, 3, chunks)) for _ in range(2)]
    kinds = [rng.choice(few) for _ in range(max(order.rank_of) + 1)]
    every = min(step_seconds(order, chunks, choice) for choice in product(*(kind.rows for kind in kinds)))
    apart = step_seconds(order, chunks, [tuple(map(min, zip(*kind.rows))) for kind in kinds])
    found = bound(order, chunks, kinds)
    assert apart * (1 - 2e-3) <= found <= every * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_mixes_of_plans_take(seed):
    rng = random.Random(100 + seed)
    order, chunks = build_order("1f1b", 2, 4), 1
    kinds = [Given([tuple(rng.random() for _ in range(4)) for _ in range(2)]) for _ in range(2)]
    shares = np.linspace(0, 1, 41)

    def mixed(kind, share):
        return tuple((share * np.array(kind.rows[0]) + (1 - share) * np.array(kind.rows[1])).tolist())

    least = min(step_seconds(order, chunks, (mixed(kinds[0], a), mixed(kinds[1], b))) for a, b in product(shares, shares))
    assert least * 0.99 <= bound(order, chunks, kinds) <= least * (1 + 1e-6)


def test_one_plan_each_is_told_to_the_end():
    rng = random.Random(5)
    for _ in range(30):
        order, chunks = draw_order(rng)
        kinds = [Given(draw_plans(rng, 1, chunks)) for _ in range(max(order.rank_of) + 1)]
        assert bound(order, chunks, kinds) == pytest.approx(step_seconds(order, chunks, [kind.rows[0] for kind in kinds]), rel=1e-6)


def test_a_short_update_has_its_price_in_the_turns():
    """States whole, or split: taken apart, the update of one and the turns of the other would be 2 s faster than either."""
    order, rows = build_order("1f1b", 2, 4), [(0.0, 1.0, 2.0, 3.0), (0.0, 1.5, 2.5, 1.0)]
    kinds = [Given(rows), Given(rows)]
    every = min(step_seconds(order, 1, choice) for choice in product(rows, rows))
    apart = step_seconds(order, 1, [(0.0, 1.0, 2.0, 1.0)] * 2)
    assert apart == 16.0 and every == 18.0
    assert bound(order, 1, kinds) == pytest.approx(18.0, rel=1e-6)


def test_it_stops_where_that_is_enough():
    kinds = [Given([(0.0, 1.0, 2.0, 3.0), (0.0, 1.5, 2.5, 0.0)]) for _ in range(3)]
    assert 1.0 <= bound(build_order("1f1b", 3, 4), 1, kinds, 1.0)


@pytest.mark.parametrize("seed", range(40))
def test_the_critical_path_adds_up_to_the_end_of_its_rank(seed):
    rng = random.Random(seed)
    order, _ = draw_order(rng)
    durations = Durations(*(tuple(rng.choice((1.0, rng.random())) for _ in order.rank_of) for _ in range(2)))
    ends = simulate(order, durations).end_s
    for rank, end in enumerate(ends):
        counts = critical_path(order, durations, rank)
        assert sum(f * a + b * c for (f, b), a, c in zip(counts, durations.forward_s, durations.backward_s)) == pytest.approx(end)
