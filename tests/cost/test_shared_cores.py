"""A schedule on fewer cores than ranks: by hand, and at the ends that are known."""

import pytest

from autopar.graph.schedules.known import build_schedule
from benchmarks.shared_cores import share_of_waits


def waits(ranks, microbatches, cores, forward=1.0, backward=2.0, update=0.0):
    seconds = {"F": forward, "B": backward}
    schedule = build_schedule("1f1b", ranks, microbatches)
    return share_of_waits(schedule, lambda action: seconds[action.kind.value], [update] * ranks, cores).messages


def bubble(ranks, microbatches, update_s):
    seconds = {"F": 1.0, "B": 2.0}
    schedule = build_schedule("1f1b", ranks, microbatches)
    return share_of_waits(schedule, lambda action: seconds[action.kind.value], update_s, ranks).all


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 1), (2, 4), (4, 8)])
def test_a_core_for_each_rank_gives_the_closed_form(ranks, microbatches):
    """The bubble is p - 1 of m + p - 1; what of it comes after a rank's last action is no wait for a message: by rank k, k forwards and backwards of others."""
    late = sum(2.0 * k for k in range(ranks)) / ranks  # rank k ends k backwards before the first rank does
    whole = 3.0 * (microbatches + ranks - 1)
    assert waits(ranks, microbatches, ranks) == pytest.approx((3.0 * (ranks - 1) - late) / whole)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 1), (2, 4), (4, 8), (6, 3)])
def test_all_waits_are_the_bubble(ranks, microbatches):
    assert bubble(ranks, microbatches, [0.0] * ranks) == pytest.approx((ranks - 1) / (microbatches + ranks - 1))


def test_ranks_wait_for_the_longest_update():
    """Two ranks, one microbatch: rank 1 is over after 4 of 6 and updates for 5, rank 0 for 1: of 9 seconds they work 4 and 8."""
    assert bubble(2, 1, [1.0, 5.0]) == pytest.approx(1 - (4 + 8) / 2 / 9)


def test_two_ranks_on_one_core():
    """One microbatch: F0, F1, B1, B0 one after the other, whatever the cores: rank 0 waits 3 of 6, rank 1 waits 1."""
    assert waits(2, 1, 1) == waits(2, 1, 2) == pytest.approx((3 + 1) / 2 / 6)


def test_what_one_waits_another_has():
    """One core is never idle, so the step is all work, and waits only take from ranks that would run at once."""
    assert 0 < waits(4, 8, 2) < waits(4, 8, 4)


def test_an_update_makes_waits_a_smaller_share():
    assert waits(2, 4, 2, update=5.0) < waits(2, 4, 2)
