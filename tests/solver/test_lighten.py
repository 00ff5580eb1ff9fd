"""Memory priced by a multiplier: decisions that fit, soon, and seldom much slower than the best that fit."""

from __future__ import annotations

from math import inf

import pytest

from autopar.cost.memory import estimate_memory
from autopar.graph.recompute import list_recomputable
from autopar.solver.brute_force import best_of, try_everything
from autopar.solver.judge import evaluate_seconds, held_bytes
from autopar.solver.lighten import lighten
from autopar.solver.one_mesh import _Work, build_assignment
from autopar.solver.relaxation import Relaxation

from .random_steps import held_step, program_of, random_step, small_problem
from .tiny import random_graph

_MOST = 130_000  # plans of a graph


def make(draw, seed, turns=1):
    """(case, problem, its relaxation, the decisions of the fastest plan, what all plans take)."""
    case, problem, prices = small_problem(draw, seed, (2, 2), _MOST, turns, "free")
    truths = try_everything(problem, prices, (2, 2), list_recomputable(case.graph, case.signatures))
    relaxation = Relaxation(problem)
    return case, problem, relaxation, tuple(relaxation.find()[1]), truths


def always():
    return True


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("draw", [lambda s: random_step(s, 6), held_step], ids=["step", "held"])
def test_what_is_found_fits_and_is_near_the_best(draw, share):
    """In graphs so small copies on their way weigh as much as what is held, and a few plans leave little to choose: it is found in half of them."""
    tried, worse = 0, []
    for seed in range(12):
        _, problem, relaxation, heavy, truths = make(draw, seed)
        peak, smallest = held_bytes(problem, heavy).max(), best_of(truths, None)[1]
        if smallest == peak:
            continue
        limit = int(smallest + share * (peak - smallest))
        found = lighten(problem, relaxation, heavy, limit, lambda d: True, always).decisions
        tried += 1
        if found is not None:
            assert held_bytes(problem, found).max() <= limit
            seconds = evaluate_seconds(problem, found)
            assert best_of(truths, limit)[0] * (1 - 1e-9) <= seconds < inf
            worse.append(seconds / best_of(truths, limit)[0])
    assert tried >= 6 and 2 * len(worse) >= tried
    assert sorted(worse)[len(worse) // 2] <= 1.1


def check_bounds(draw, seeds, turns):
    """How many bounds say more than the fastest plan does."""
    raised = 0
    for seed in seeds:
        _, problem, relaxation, heavy, truths = make(draw, seed, turns)
        peak, smallest = held_bytes(problem, heavy).max(), best_of(truths, None)[1]
        for share in (0.0, 0.4, 0.8) if smallest < peak else ():
            limit = int(smallest + share * (peak - smallest))
            bound = lighten(problem, relaxation, heavy, limit, lambda d: True, always).bound_s
            assert bound <= best_of(truths, limit)[0] * (1 + 1e-9)
            raised += bound > relaxation.solve() * (1 + 1e-9)
    return raised


def test_no_plan_that_fits_beats_the_bound():
    assert check_bounds(lambda s: random_graph(s, 2 + s % 6, (2, 3, 4, 5, 6, 8)), range(25), 1) >= 5


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("draw", [lambda s: random_step(s, 6), held_step], ids=["step", "held"])
def test_no_plan_of_a_step_that_fits_beats_the_bound(draw, turns):
    check_bounds(draw, range(12), turns)


def test_none_where_nothing_fits_or_the_program_holds_more_than_the_judge_sees():
    case, problem, relaxation, heavy, truths = make(held_step, 3)
    smallest = best_of(truths, None)[1]
    assert lighten(problem, relaxation, heavy, smallest - 1, lambda d: True, always).decisions is None
    asked = []
    assert lighten(problem, relaxation, heavy, held_bytes(problem, heavy).max(), lambda d: asked.append(d) is not None, always).decisions is None
    assert asked and len(set(asked)) == len(asked)  # none is built twice
    found = lighten(problem, relaxation, heavy, held_bytes(problem, heavy).max(), lambda d: True, always).decisions
    assert estimate_memory(program_of(case, build_assignment(problem, found)), 0).peak_bytes <= held_bytes(problem, heavy).max()


def test_it_ends_when_time_is_up():
    _, problem, relaxation, heavy, truths = make(held_step, 3)
    left = iter([True, False])
    assert lighten(problem, relaxation, heavy, 0, lambda d: True, lambda: next(left)).decisions is None


def test_a_mesh_whose_time_is_up_still_has_a_plan_that_fits():
    """No row of memory was solved: what fits is what the multiplier found, with the bound of the fastest plan."""
    for seed in range(12):
        _, problem, relaxation, heavy, truths = make(lambda s: random_step(s, 6), seed)
        limit = (held_bytes(problem, heavy).max() + best_of(truths, None)[1]) // 2
        if held_bytes(problem, heavy).max() > limit and lighten(problem, relaxation, heavy, limit, lambda d: True, always).decisions is not None:
            break
    work = _Work(problem, float(limit), 0.0, 1e-3, None)  # its deadline is long past
    answer = work.answer(work.run(inf, False))
    assert answer.status == "solved" and answer.peak_bytes <= limit
    assert answer.bound_s <= answer.objective_s < inf
