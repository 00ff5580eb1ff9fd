"""Microbatches in flight, chunk by chunk: as many as the lists of actions say, and together what an independent count of bytes says."""

from __future__ import annotations

import random

import pytest

from autopar.graph.flying import least_flying, most_flying, weigh_flying
from autopar.graph.node import Phase
from autopar.graph.schedules.held import list_flying, peak_held
from autopar.graph.schedules.known import build_order
from autopar.graph.stage_wires import TurnHeld, list_turns_held

ORDERS = [("interleaved", 4, 8, 2), ("interleaved", 3, 9, 3), ("zbv", 4, 9, 2), ("1f1b", 4, 8, 1), ("zero-bubble", 3, 7, 1), ("gpipe", 2, 4, 1), ("forward-only", 3, 5, 2)]


def test_two_chunks_by_hand():
    """Of two microbatches of the first chunk, then two of the second; each goes with its backward."""
    order = build_order("interleaved", 2, 2, 2)
    assert list_flying(order, 1) == ((1, 0), (2, 0), (2, 1), (2, 1), (2, 1), (2, 1), (2, 0), (1, 0), (0, 0))


@pytest.mark.parametrize(("kind", "ranks", "count", "chunks"), ORDERS)
def test_what_is_kept_at_most_is_that_of_the_schedule(kind, ranks, count, chunks):
    order, rng = build_order(kind, ranks, count, chunks), random.Random(0)
    for rank in range(ranks):
        rows = [TurnHeld(Phase.FORWARD, flying, (), ()) for flying in list_flying(order, rank)]
        own = [k for k, r in enumerate(order.rank_of) if r == rank]
        for _ in range(5):
            kept = [rng.randrange(1, 9) for _ in own]
            whole = [0.0] * order.num_stages
            for k, size in zip(own, kept):
                whole[k] = size
            if kind == "forward-only":
                assert most_flying(rows, kept) == 1.0
            else:
                assert most_flying(rows, kept) == pytest.approx(max(1.0, peak_held(order, whole)[rank] / sum(kept)))
            assert least_flying(rows) <= most_flying(rows, kept)


def test_chunks_that_keep_nothing_count_alike():
    assert weigh_flying((3, 1), (0, 0)) == weigh_flying((3, 1), ()) == 2.0 and weigh_flying((3, 1), (1, 3)) == 1.5
    late = TurnHeld(Phase.UPDATE, (0, 0), (), ())
    assert most_flying([late], (1, 1)) == least_flying([late]) == 1.0, "after the turns none is"


def test_a_stage_tells_the_counts_of_its_chunks():
    order = build_order("interleaved", 2, 4, 2)
    rows = list_turns_held((), 0, order, 0)
    assert {row.in_flight for row in rows} == set(list_flying(order, 0)) and max(map(sum, (row.in_flight for row in rows))) == 5
