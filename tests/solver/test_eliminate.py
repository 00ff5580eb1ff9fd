"""Choosers decided away: the same seconds and decisions as trying all, whatever is left to a linear program, for every objective."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest

from autopar.graph.case import build_case
from autopar.graph.recompute import list_recomputable
from autopar.graph.tensor import Kind
from autopar.solver import relaxation
from autopar.solver.brute_force import best_of, try_all, try_everything
from autopar.solver.build import build_problem
from autopar.solver.eliminate import Elimination
from autopar.solver.formulate import Formulation
from autopar.solver.ilp import solve_program
from autopar.solver.judge import evaluate_seconds
from autopar.solver.relaxation import Relaxation

from .random_steps import ALL_RULES, StepPrices, random_step, small_problem
from .tiny import Sketch, make_mesh, random_graph

_MOST = 20_000  # plans of a graph
_DIMS = (2, 3, 4, 5, 6, 8)


def hand_over(monkeypatch, most):
    """Tables up to so many entries; the rest goes to the linear program."""
    monkeypatch.setattr(relaxation, "Elimination", lambda problem: Elimination(problem, most_entries=most))


def program_bound(problem):
    """Of the linear program of all choosers."""
    found = solve_program(Formulation(problem).build(None, 1e6), relaxed=True, time_limit_s=30.0)
    return found.objective / 1e6


@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_fastest_of_random_graphs(seed, sizes):
    _, problem, prices = small_problem(lambda s: random_graph(s, 2 + seed % 6, _DIMS), seed, sizes, _MOST)
    best, _ = best_of((try_all(problem, prices, sizes),), None)
    seconds, decisions = Relaxation(problem).find()
    assert not Elimination(problem).left
    assert seconds == pytest.approx(best, rel=1e-9)
    assert evaluate_seconds(problem, decisions) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("most", [1, 12, 40])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_bounds_no_worse_than_the_whole_program(seed, most, monkeypatch):
    _, problem, prices = small_problem(lambda s: random_graph(s, 2 + seed % 6, _DIMS), seed, (2, 2), _MOST)
    best, _ = best_of((try_all(problem, prices, (2, 2)),), None)
    hand_over(monkeypatch, most)
    left = len(Elimination(problem, most_entries=most).left)
    assert left or most > 1
    found = Relaxation(problem).solve()
    assert program_bound(problem) * (1 - 1e-9) <= found <= best * (1 + 1e-9)


@pytest.mark.parametrize("most", [1, 40, 1 << 12])
@pytest.mark.parametrize("seed", range(8))
def test_other_objectives_are_those_of_their_own_problem(seed, most, monkeypatch):
    """One elimination serves every problem that differs in seconds and times alone; where choosers and groups cost nothing, too."""
    _, problem, _ = small_problem(lambda s: random_graph(s, 2 + seed % 6, _DIMS), seed, (2, 2), _MOST)
    hand_over(monkeypatch, most)
    shared, draw = Relaxation(problem), random.Random(seed)
    for _ in range(3):
        choosers = tuple(replace(c, seconds=c.seconds * draw.choice((0.0, 1.0, 3.0))) for c in problem.choosers)
        groups = tuple(replace(g, times=g.times * draw.choice((0.0, 1.0, 5.0))) for g in problem.groups)
        other = replace(problem, choosers=choosers, groups=groups)
        assert shared.solve(other) == pytest.approx(Relaxation(other).solve(), rel=1e-7, abs=1e-12)


def test_a_copy_that_is_there_already_is_paid_once():
    """Two readers of one value want it in the same sharding, and in different ones."""
    _, problem, prices = next(found for seed in range(50) if _shares(found := small_problem(lambda s: random_graph(s, 5, _DIMS), seed, (2,), _MOST)))
    best, _ = best_of((try_all(problem, prices, (2,)),), None)
    assert Relaxation(problem).solve() == pytest.approx(best, rel=1e-9)


def _shares(found):
    return any(len(group.endpoints) > 1 for group in found[1].groups)


@pytest.mark.parametrize("hides", [0.0, 0.5])
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_steps_with_states_and_recompute(seed, turns, hides):
    """States are read and written back, what is made again is tied to where it is made; what hides is free of charge, so that it bounds."""
    case, problem, prices = small_problem(lambda s: random_step(s, 5 + seed % 3), seed, (2, 2), _MOST, turns, "free", hides=hides)
    best, _ = best_of(try_everything(problem, prices, (2, 2), list_recomputable(case.graph, case.signatures)), None)
    seconds, decisions = Relaxation(problem).find()
    assert seconds <= evaluate_seconds(problem, decisions) * (1 + 1e-9) < inf
    assert seconds == pytest.approx(best, rel=1e-9) if not hides else seconds <= best * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_value_with_more_readers_than_a_table_has_axes(ranks):
    """On one rank nobody has a choice; on two the group is left to the linear program."""
    s = Sketch("many")
    x = s.enter("x", (4, 6), Kind.BATCH)
    case = build_case(s.finish((), "", tuple(s.call("aten.relu", x) for _ in range(70))), ALL_RULES)
    mesh = make_mesh(ranks)
    problem = build_problem(case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, StepPrices(case, mesh, 3.0, 0.0), cluster=False)
    seconds, decisions = Relaxation(problem).find()
    assert seconds == pytest.approx(program_bound(problem), rel=1e-6) == pytest.approx(evaluate_seconds(problem, decisions), rel=1e-6)
