"""Runs of units that repeat: equal ones before kinds that take turns, and as few of them as tell the rest."""

from __future__ import annotations

import pytest

from autopar.solver.runs import FEW, Run, find_run


@pytest.mark.parametrize(
    "kinds, run",
    [
        ("eaaaaaaaah", Run(1, 8)),
        ("eababababababh", Run(1, 12, 2)),
        ("eaabaabaabaabah", Run(1, 13, 3)),
        ("eabababab" + "cccccccccccch", Run(9, 12)),
        ("edaaaaaaaabbbbbbbbbh", Run(10, 9)),
        ("abcdefgh", Run(0, 1)),
        ("abab", Run(0, 1)),  # too short to leave any out
        ("h", Run(0, 1)),
        ("", Run(0, 0)),
    ],
)
def test_the_run_of_which_most_may_be_left_out(kinds, run):
    assert find_run(kinds) == run


def test_asked_for_a_period_it_is_found_where_nothing_may_be_left_out():
    assert find_run("eababah", (2,)) == Run(1, 5, 2)
    assert find_run("eaabaabah", (3,)) == Run(1, 7, 3)


@pytest.mark.parametrize("period", [1, 2, 3, 6])
@pytest.mark.parametrize("length", range(12, 25))
def test_few_leave_out_whole_periods(period, length):
    run = Run(3, length, period)
    few = run.few(length)
    assert FEW + period - 1 <= few < FEW + 2 * period - 1 and (length - few) % period == 0
    assert [run.shift(unit) for unit in range(3, 3 + period)] == list(range(period)) and run.shift(3 + length) == length % period
