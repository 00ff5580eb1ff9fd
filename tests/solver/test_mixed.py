"""Blocks of two kinds: as many decide as the faster plan as fit, and the program takes and holds what was said."""

from __future__ import annotations

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.memory import estimate_memory
from autopar.cost.model import build_cost_model
from autopar.cost.prices import build_prices
from autopar.graph.case import copy_case
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.partition import partition
from autopar.solver.build import build_problem
from autopar.solver.judge import evaluate_seconds, held_bytes
from autopar.solver.mixed import mix_answer, mix_blocks
from autopar.solver.one_mesh import MeshAnswer, build_assignment
from autopar.solver.relaxation import Relaxation
from autopar.solver.stage_solve import time_stage

from .blocks import build_block_case

MODEL = build_cost_model(parse_cluster("8xH100-80GB"))
MESH = Mesh((MeshAxis("a", 4),))
BLOCKS = 8


@pytest.fixture(scope="module")
def made():
    """(case, how its problem is built, the problem, decisions that recompute all they may, the fastest ones)."""
    case = build_block_case(blocks=BLOCKS, width=512, hidden=2048, batch=16384, vocab=512, momentum=True)
    prices = build_prices(MODEL, MESH, case.graph, case.sites, case.signatures)

    def build(fold, recompute="free"):
        return build_problem(case.graph, case.sites, case.signatures, case.cuts, fold, MESH, prices, recompute=recompute)

    problem, full = build(case.fold), build(case.fold, "full")
    fast = tuple(Relaxation(build(case.fold, "none")).find()[1])
    again = tuple(Relaxation(full).find()[1])
    light = tuple(k + c.num_kept if len(c.seconds) > len(f.seconds) else k for k, c, f in zip(again, problem.choosers, full.choosers))
    return case, build, problem, light, fast


def peak_of(problem, decisions):
    return int(held_bytes(problem, decisions).max())


def program_of(case, problem, decisions):
    assignment = build_assignment(problem, decisions)
    mine = copy_case(case, assignment.again)
    return assignment, partition(mine.graph, mine.sites, mine.signatures, mine.cuts, assignment)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_as_many_blocks_are_fast_as_fit(made, share):
    case, build, problem, light, fast = made
    low, high = peak_of(problem, light), peak_of(problem, fast)
    slow_s, fast_s = evaluate_seconds(problem, light), evaluate_seconds(problem, fast)
    assert low < high and fast_s < slow_s
    limit = low + share * (high - low)
    found = mix_blocks(problem, light, [fast], case.repeats, build, limit, lambda p, d: True, lambda: True)
    assert found.peak_bytes <= limit and found.peak_bytes == peak_of(found.problem, found.decisions)
    assert fast_s < found.seconds < slow_s
    assert found.seconds <= slow_s - (share - 2 / BLOCKS) * (slow_s - fast_s)  # about as many as there is room for
    assignment, program = program_of(case, found.problem, found.decisions)
    assert estimate_memory(program, 0).peak_bytes <= found.peak_bytes and 0 < len(assignment.again) < 2 * BLOCKS
    times = time_stage(case, assignment, MODEL)
    assert sum((times.prepare_s, times.forward_s, times.backward_s, times.update_s)) == pytest.approx(found.seconds, rel=1e-9)


def test_nothing_is_mixed_where_it_does_not_pay(made):
    case, build, problem, light, fast = made
    low, high = peak_of(problem, light), peak_of(problem, fast)

    def mixed(first, others, limit, fits=lambda p, d: True, has_time=lambda: True, repeats=case.repeats):
        return mix_blocks(problem, first, others, repeats, build, limit, fits, has_time)

    middle = (low + high) / 2
    assert mixed(light, [fast], high) is None  # the fast ones fit
    assert mixed(light, [light], middle) is None and mixed(light, [], middle) is None  # nothing is faster
    assert mixed(light, [fast], low + (high - low) / 1000) is None  # no block has room
    assert mixed(light, [fast], middle, fits=lambda p, d: False) is None
    assert mixed(light, [fast], middle, has_time=lambda: False) is None
    assert mixed(light, [fast], middle, repeats=()) is None


def test_an_answer_says_that_it_is_mixed_and_bounds_blocks_that_decide_apart(made):
    case, build, problem, light, fast = made
    low, high = peak_of(problem, light), peak_of(problem, fast)
    slow_s, fast_s = evaluate_seconds(problem, light), evaluate_seconds(problem, fast)
    answer = MeshAnswer("solved", light, slow_s, slow_s, low, 0, 1, 0, "a MIP", (fast,), fast_s)

    def measure(assignment):
        mine = copy_case(case, assignment.again)
        return estimate_memory(partition(mine.graph, mine.sites, mine.signatures, mine.cuts, assignment), 0).peak_bytes

    mixed, found = mix_answer(problem, answer, case.repeats, build, (low + high) / 2, measure, float("inf"))
    assert mixed is not problem and found.objective_s < slow_s and found.how == "blocks of two kinds"
    assert found.bound_s == fast_s <= found.objective_s  # that of blocks which decide alike does not hold
    assert mix_answer(problem, MeshAnswer("solved", light, slow_s, slow_s, low, 0, 1, 0, "a MIP"), case.repeats, build, low, measure, float("inf"))[0] is problem
