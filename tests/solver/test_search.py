"""The search over meshes: certificate, order, memory sweep, folding, and the answer when nothing fits."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf

import pytest

from autopar.errors import InfeasibleError
from autopar.graph.graph import Graph
from autopar.graph.mesh import print_mesh
from autopar.graph.node import Phase
from autopar.graph.repeats import fold_graph, identity_fold
from autopar.graph.tensor import Kind
from autopar.solver import search as search_module
from autopar.solver.infeasible import MemoryShortage, print_bytes, round_up
from autopar.solver.search import Question, search

from .tiny import Sketch, TinyPrices, make_mesh, prepare, training_step


def ask(graph: Graph, limit: int | None = None, fold=None, reserve: int = 0) -> Question:
    return Question(graph, *prepare(graph), fold or identity_fold(graph), limit, reserve)


def solve(graph: Graph, limit: int | None = None, wire: float = 3.0, sizes=((4,), (2, 2)), fold=None, **more):
    return search(ask(graph, limit, fold), [make_mesh(*s) for s in sizes], lambda mesh: TinyPrices(graph, mesh, wire), **more)


def stack(layers: int) -> Graph:
    """Equal layers of a matmul and a relu, updated by what they made."""
    s = Sketch("stack")
    weights = [s.enter(f"h.{k}.w@0", (8, 8)) for k in range(layers)]
    x = s.enter("x", (16, 8), Kind.BATCH)
    for k, w in enumerate(weights):
        x = s.call("aten.relu", s.call("aten.mm", x, w, path=f"h.{k}"), path=f"h.{k}")
    loss = s.call("tiny.total", x, kind=Kind.LOSS)
    s.phase = Phase.UPDATE
    news = [(w, s.call("aten.add", w, w, path=f"h.{k}", name=f"h.{k}.w@1", kind=Kind.PARAM)) for k, w in enumerate(weights)]
    return s.finish(news, loss)


def test_the_certificate_covers_all_meshes():
    found = solve(training_step())
    c = found.certificate
    assert c.lower_bound_s <= c.objective_s
    assert c.gap <= 1e-3
    assert c.lower_bound_s <= min(answer.bound_s for _, answer in found.meshes) + 1e-9
    assert "a=4" in c.search_space and "a=2 b=2" in c.search_space
    assert c.num_variables > 0


def test_a_mesh_that_ran_out_of_time_keeps_the_bound_of_its_fastest_strategies(monkeypatch):
    graph = training_step(16, 8, 8)
    expected = {print_mesh(mesh): answer.bound_s for mesh, answer in solve(graph).meshes}

    def give_up_on_two_axes(problem, *rest, **more):
        found = right(problem, *rest, **more)
        if len(problem.mesh.axes) == 1:
            return found
        return replace(found, status="unknown", decisions=(), objective_s=inf, bound_s=0.0)

    right = search_module.solve_mesh
    monkeypatch.setattr(search_module, "solve_mesh", give_up_on_two_axes)
    found = solve(graph, sizes=((4,), (2, 2)))
    bound = {print_mesh(mesh): answer.bound_s for mesh, answer in found.meshes}["a=2 b=2"]
    assert 0 < bound <= expected["a=2 b=2"]
    assert found.certificate.lower_bound_s == min(found.certificate.objective_s, *(answer.bound_s for _, answer in found.meshes)) > 0


def test_as_long_as_there_is_no_plan_a_mesh_gets_a_third_of_the_time(monkeypatch):
    """Of 24 devices there are eight meshes; an eighth of the time would be too short for any of them."""

    def never_done(problem, *rest, time_limit_s, **more):
        given.append((time_limit_s, deadline - time.monotonic()))
        return replace(right(problem, *rest, time_limit_s=time_limit_s, **more), status="unknown", decisions=(), objective_s=inf)

    given, right, deadline = [], search_module.solve_mesh, time.monotonic() + 60.0
    monkeypatch.setattr(search_module, "solve_mesh", never_done)
    with pytest.raises(InfeasibleError):
        solve(training_step(), 1, sizes=((24,), (3, 8), (8, 3), (6, 4), (4, 6), (12, 2), (2, 12)))
    assert len(given) >= 7 and all(seconds > left / 4 for seconds, left in given[:7])


def test_of_meshes_with_equal_bounds_the_smallest_program_settles_the_others():
    """Work that nothing can split: no mesh is better, and the one with few variables says so."""
    s = Sketch("whole")
    x = s.enter("x", (7, 5), Kind.BATCH)
    graph = s.finish((), s.call("tiny.total", s.call("aten.relu", x), kind=Kind.LOSS))
    found = solve(graph, sizes=((2, 2, 2), (2, 4), (8,)))
    assert [len(mesh.axes) for mesh, _ in found.meshes] == [1, 2, 3]
    assert [answer.status for _, answer in found.meshes] == ["solved", "dominated", "dominated"]
    assert found.certificate.gap <= 1e-3


def test_equal_questions_get_equal_answers():
    assert solve(training_step()).assignment == solve(training_step()).assignment


def test_seconds_never_fall_as_memory_tightens_and_bytes_fit():
    graph = training_step(16, 8, 8)
    free = solve(graph, wire=40.0)
    with pytest.raises(MemoryShortage) as info:
        solve(graph, 8, wire=40.0)
    least = info.value.minimum_bytes
    seconds = []
    for share in (1.0, 0.8, 0.6, 0.4, 0.2, 0.0):
        limit = int(least + share * (free.memory.peak_bytes - least))
        found = solve(graph, limit, wire=40.0)
        assert found.memory.peak_bytes <= limit
        seconds.append(found.certificate.objective_s)
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0]


def test_what_does_not_fit_says_what_is_missing_and_what_would_fit():
    graph = training_step(16, 8, 8)
    with pytest.raises(InfeasibleError) as info:
        solve(graph, 300)
    error = info.value
    assert error.missing_bytes == error.minimum_bytes - 300
    assert sum(size for _, size in error.holders) == error.minimum_bytes
    assert error.proven
    lines = str(error).splitlines()
    assert lines[0] == f"no plan fits 300 bytes per device; the best found needs {print_bytes(error.minimum_bytes)} on mesh a=4 ({error.missing_bytes} bytes too much)."
    assert lines[1].startswith("  largest: ")
    assert lines[2] == f"  nearest change that fits: --memory {round_up(error.minimum_bytes)}."
    assert solve(graph, error.minimum_bytes).memory.peak_bytes <= error.minimum_bytes


def test_a_limit_below_the_reserve_is_infeasible():
    graph = training_step()
    with pytest.raises(InfeasibleError, match="no plan fits"):
        search(ask(graph, 1000, reserve=2000), [make_mesh(2)], lambda mesh: TinyPrices(graph, mesh))


def test_folded_layers_cost_what_they_cost_unfolded():
    graph = stack(4)
    fold = fold_graph(graph)
    assert len(set(fold.node_class)) < len(graph.nodes)
    folded, free = solve(graph, fold=fold), solve(graph)
    assert folded.certificate.objective_s >= free.certificate.lower_bound_s - 1e-9
    assert folded.certificate.num_variables < free.certificate.num_variables
    choices = dict(folded.assignment.strategies)
    assert len({choices[n.name] for n in graph.nodes if n.op == "aten.mm"}) == 1


def test_one_rank_needs_no_mesh():
    graph = training_step()
    found = search(ask(graph), [make_mesh()], lambda mesh: TinyPrices(graph, mesh))
    assert found.certificate.gap == 0
    assert all(choices == () for _, choices in found.assignment.strategies)


@pytest.mark.parametrize("size, text", [(0, "0 bytes"), (1023, "1023 bytes"), (2048, "2.0 KiB"), (3 * 2**29, "1.5 GiB")])
def test_print_bytes(size, text):
    assert print_bytes(size) == text
