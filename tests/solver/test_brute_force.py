"""The solver equals brute force on tiny graphs, with and without a memory limit."""

from __future__ import annotations

from math import inf, prod

import pytest

from autopar.graph.liveness import bytes_over_time
from autopar.graph.mesh import axis_sizes
from autopar.graph.partition import partition
from autopar.graph.repeats import identity_fold
from autopar.solver.brute_force import search_all
from autopar.solver.build import build_problem
from autopar.solver.judge import evaluate_seconds, held_bytes
from autopar.solver.one_mesh import build_assignment, find_smallest, solve_mesh

from .tiny import TinyPrices, make_mesh, prepare, random_graph, training_step

_MOST = 3_000


def _cases():
    for seed in range(40):
        yield seed, 2 + seed % 4, (2,)
    for seed in range(100, 106):
        yield seed, 2, (2, 2)


def _small_problem(seed, num_nodes, sizes):
    """The first of the graphs of this seed that has few enough assignments to try them all."""
    mesh = make_mesh(*sizes)
    for again in range(200):
        graph = random_graph(seed + 1000 * again, num_nodes)
        prices = TinyPrices(graph, mesh)
        problem = build_problem(graph, *prepare(graph), identity_fold(graph), mesh, prices, cluster=False)
        if prod(len(c.seconds) for c in problem.choosers) <= _MOST:
            return problem, prices
    raise AssertionError("no graph of this seed is small enough")


@pytest.mark.parametrize("seed, num_nodes, sizes", list(_cases()))
def test_random_graph_equals_brute_force(seed, num_nodes, sizes):
    problem, prices = _small_problem(seed, num_nodes, sizes)
    best, smallest = search_all(problem, prices, sizes, None)
    free = solve_mesh(problem, None, time_limit_s=20, gap=1e-6)
    assert free.objective_s == pytest.approx(best, rel=1e-6)
    assert free.bound_s <= free.objective_s * (1 + 1e-9)
    least, decisions = find_smallest(problem, 20)
    assert least == smallest
    for share in (0.0, 0.3, 0.7):
        limit = int(smallest + share * max(0, free.peak_bytes - smallest))
        best, _ = search_all(problem, prices, sizes, limit)
        tight = solve_mesh(problem, limit, time_limit_s=20, gap=1e-6)
        assert tight.status == "solved"
        assert tight.objective_s == pytest.approx(best, rel=1e-6)
        assert tight.bound_s <= best * (1 + 1e-9)
        assert tight.peak_bytes <= limit
    assert solve_mesh(problem, smallest - 1, time_limit_s=20).status == "infeasible"


def test_a_training_step_with_gradients_equals_brute_force():
    graph, mesh = training_step(4, 2, 2), make_mesh(2)
    prices = TinyPrices(graph, mesh)
    problem = build_problem(graph, *prepare(graph), identity_fold(graph), mesh, prices)
    best, smallest = search_all(problem, prices, (2,), None)
    assert solve_mesh(problem, None, time_limit_s=20).objective_s == pytest.approx(best, rel=1e-6)
    assert find_smallest(problem, 20)[0] == smallest
    assert solve_mesh(problem, smallest, time_limit_s=20).peak_bytes == smallest
    assert solve_mesh(problem, smallest - 1, time_limit_s=20).status == "infeasible"


@pytest.mark.parametrize("seed", range(20))
def test_the_judge_sees_at_least_the_bytes_of_the_program(seed):
    graph, mesh = random_graph(seed, 5), make_mesh(2)
    prices = TinyPrices(graph, mesh)
    sites, signatures, cuts = prepare(graph)
    problem = build_problem(graph, sites, signatures, cuts, identity_fold(graph), mesh, prices, cluster=False)
    for k in range(3):
        decisions = tuple((k * 7 + 3 * i) % len(c.seconds) for i, c in enumerate(problem.choosers))
        if evaluate_seconds(problem, decisions) == inf:
            continue
        program = partition(graph, sites, signatures, cuts, build_assignment(problem, decisions))
        assert held_bytes(problem, decisions).max() >= max(bytes_over_time(program.graph))


def test_tightening_moves_a_training_step_from_replicated_through_sharded_states():
    graph, mesh = training_step(16, 8, 8), make_mesh(4)
    prices = TinyPrices(graph, mesh, wire=40.0)
    problem = build_problem(graph, *prepare(graph), identity_fold(graph), mesh, prices, cluster=False)
    free = solve_mesh(problem, None, time_limit_s=20)
    least, _ = find_smallest(problem, 20)
    seconds = []
    for share in (1.0, 0.75, 0.5, 0.25, 0.0):
        answer = solve_mesh(problem, int(least + share * (free.peak_bytes - least)), time_limit_s=20, gap=1e-6)
        assert answer.status == "solved"
        seconds.append(answer.objective_s)
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0]
    assert axis_sizes(mesh) == (4,)
