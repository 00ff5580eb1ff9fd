"""The solver equals brute force on hundreds of random graphs of up to 7 nodes: on one and two axes, with and without a memory limit, with
and without recompute, whole and in turns; and brute force equals the programs that are built."""

from __future__ import annotations

import random
from math import inf

import numpy as np
import pytest

from autopar.cost.memory import estimate_memory
from autopar.graph.case import build_case
from autopar.graph.node import Phase
from autopar.graph.recompute import list_recomputable, recompute_graph
from autopar.graph.sharding import replicated
from autopar.graph.tensor import Kind
from autopar.graph.turns import ACCUMULATE, TAKE
from autopar.solver.brute_force import best_of, try_all, try_everything
from autopar.solver.build import build_problem
from autopar.solver.judge import evaluate_seconds, held_bytes
from autopar.solver.one_mesh import build_assignment, find_smallest, solve_mesh

from .random_steps import ALL_RULES, StepPrices, held_step, program_of, program_seconds, random_step, small_problem
from .tiny import Sketch, make_mesh, random_graph

MESHES = [(2,), (4,), (2, 2)]
_MOST = 20_000  # plans of a graph
_SHARES = (0.0, 0.3, 0.7)  # of the way from the least memory to that of the fastest plan
_DIMS = (2, 3, 4, 5, 6, 8)  # odd ones cannot be cut, so that seven nodes have few enough plans


def check_answers(problem, truths, seed, measure=None):
    """Fastest, smallest, and within one limit."""
    best, smallest = best_of(truths, None)
    free = solve_mesh(problem, None, time_limit_s=20, gap=1e-6)
    assert free.objective_s == pytest.approx(best, rel=1e-6)
    assert free.bound_s <= best * (1 + 1e-9)
    assert find_smallest(problem, 20)[0] == smallest
    limit = int(smallest + _SHARES[seed % 3] * max(0, free.peak_bytes - smallest))
    best, _ = best_of(truths, limit)
    tight = solve_mesh(problem, limit, time_limit_s=20, gap=1e-6, measure=measure)
    assert tight.status == "solved"
    assert tight.objective_s == pytest.approx(best, rel=1e-6)
    assert tight.bound_s <= best * (1 + 1e-9)
    assert tight.peak_bytes <= limit
    assert solve_mesh(problem, smallest - 1, time_limit_s=20).status == "infeasible"


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("seed", range(42))
def test_random_graphs(seed, sizes):
    _, problem, prices = small_problem(lambda s: random_graph(s, 2 + seed % 6, _DIMS), seed, sizes, _MOST)
    check_answers(problem, (try_all(problem, prices, sizes),), seed)


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("seed", range(14))
def test_random_steps_with_recompute_whole_and_in_turns(seed, sizes, turns):
    case, problem, prices = small_problem(lambda s: random_step(s, 5 + seed % 3), seed, sizes, _MOST, turns, "free", hides=0.5 * (seed % 2))
    truths = try_everything(problem, prices, sizes, list_recomputable(case.graph, case.signatures))
    assert len(truths) > 1
    check_answers(problem, truths, seed, lambda a: estimate_memory(program_of(case, a), 0).peak_bytes)


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("sizes", [(2,), (2, 2)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_what_fits_only_with_recompute_is_found(seed, sizes, turns):
    for again in range(20):  # where the update has the peak, recompute does not help
        case, problem, prices = small_problem(held_step, seed + 31 * again, sizes, 130_000, turns, "free")
        truths = try_everything(problem, prices, sizes, list_recomputable(case.graph, case.signatures))
        smallest, kept = best_of(truths, None)[1], best_of(truths[:1], None)[1]
        if smallest < kept:
            break
    assert smallest < kept
    for limit in (smallest, (smallest + kept) // 2, kept):
        answer = solve_mesh(problem, limit, time_limit_s=20, gap=1e-6, measure=lambda a: estimate_memory(program_of(case, a), 0).peak_bytes)
        assert answer.objective_s == pytest.approx(best_of(truths, limit)[0], rel=1e-6)
        assert build_assignment(problem, answer.decisions).again or limit == kept


@pytest.mark.parametrize("kind, turns", [("graph", 1), ("step", 1), ("step", 2)])
@pytest.mark.parametrize("seed", range(18))
def test_brute_force_and_judge_say_what_the_program_takes(seed, kind, turns):
    """Seconds exactly; bytes at least, and seldom more than the copies that one node brings together."""
    rng, sizes = random.Random(seed), MESHES[seed % 3]
    draw = (lambda s: random_graph(s, 2 + seed % 6, _DIMS)) if kind == "graph" else (lambda s: random_step(s, 5 + seed % 3))
    case, problem, prices = small_problem(draw, seed, sizes, _MOST, turns, "free", hides=0.5 * (seed % 2))
    truths = try_everything(problem, prices, sizes, list_recomputable(case.graph, case.signatures)[:2])
    seen = 0
    for _ in range(10):
        truth = rng.choice(truths)
        at = tuple(map(rng.randrange, truth.seconds.shape))
        decisions = as_made_again(problem, at, truth.again)
        assert (evaluate_seconds(problem, decisions) == inf) == (truth.seconds[at] == inf)
        if truth.seconds[at] < inf:
            assignment = build_assignment(problem, decisions)
            program = program_of(case, assignment)
            assert truth.seconds[at] == pytest.approx(program_seconds(case, program, assignment, prices), rel=1e-9)
            assert truth.seconds[at] == pytest.approx(evaluate_seconds(problem, decisions), rel=1e-9)
            bytes_ = estimate_memory(program, 0).peak_bytes
            assert bytes_ <= truth.peaks[at] <= held_bytes(problem, decisions).max()
            seen += 1
    assert seen


def as_made_again(problem, options, again):
    """The decisions that take these options and recompute these nodes, with the views of what they make."""
    copied = set(recompute_graph(problem.graph, again).original.values())
    return tuple(
        k + (c.num_kept if c.num_kept < len(c.seconds) and c.parts[0].members[0] in copied else 0) for k, c in zip(options, problem.choosers)
    )


def test_the_judge_sees_the_copy_whose_view_leaves():
    s = Sketch("leaving")
    x = s.enter("x", (4, 8), Kind.BATCH)
    case = build_case(s.finish((), "", (s.call("aten.permute", x),)), ALL_RULES)
    mesh = make_mesh(4)
    problem = build_problem(*(case.graph, case.sites, case.signatures, case.cuts, case.fold), mesh, StepPrices(case, mesh, 3.0, 0.0))
    truth = try_all(problem, StepPrices(case, mesh, 3.0, 0.0), (4,))
    for at in np.ndindex(truth.peaks.shape):
        bytes_ = estimate_memory(program_of(case, build_assignment(problem, at)), 0).peak_bytes
        assert bytes_ <= truth.peaks[at]
        assert bytes_ <= held_bytes(problem, at).max()


def test_the_graphs_are_what_they_should_be():
    """Up to seven nodes, every phase, both kinds of limit: the cases above are not all alike."""
    graphs = [small_problem(lambda s: random_graph(s, 2 + seed % 6, _DIMS), seed, MESHES[seed % 3], _MOST)[0].graph for seed in range(48)]
    assert {len(g.nodes) for g in graphs} == {2, 3, 4, 5, 6, 7}
    assert any(g.updates for g in graphs) and not all(g.updates for g in graphs)
    steps = [small_problem(lambda s: random_step(s, 7), seed, (2,), _MOST, 2, "free")[0].graph for seed in range(8)]
    for graph in steps:
        ops, phases = {n.op for n in graph.nodes}, {n.phase for n in graph.nodes}
        assert {TAKE, ACCUMULATE} <= ops and {Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE} <= phases


def test_brute_force_counts_by_hand():
    """One node, one axis: what each plan costs can be written down."""
    _, problem, prices = small_problem(lambda s: random_step(s, 5), 3, (2,), _MOST)
    truth = try_all(problem, prices, (2,))
    assert truth.seconds.shape == truth.peaks.shape == tuple(len(c.seconds) for c in problem.choosers)
    assert np.isfinite(truth.seconds).any() and (truth.peaks > 0).all()
    whole = tuple(0 for _ in problem.choosers)
    for part in (c.parts[0] for c in problem.choosers):
        assert part.options[0] == replicated(1) if part.node < 0 else part.options[0].choices == ("R",)
    assert truth.seconds[whole] == sum(float(c.seconds[0]) for c in problem.choosers)  # no communication where all is replicated
