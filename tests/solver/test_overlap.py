"""Overlap in the solver: the plan equals brute force, the bound is a bound, and the objective is the time of the program."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

import numpy as np
import pytest

from autopar.cluster import parse_cluster
from autopar.cost.estimate import estimate_program
from autopar.cost.meshes import list_meshes
from autopar.cost.model import build_cost_model
from autopar.cost.prices import build_prices
from autopar.graph.graph import check_graph
from autopar.graph.node import Phase
from autopar.graph.partition import assigned_strategies, partition
from autopar.graph.repeats import fold_graph, identity_fold
from autopar.graph.tensor import Kind
from autopar.graph.transfer import HIDING_PHASES
from autopar.solver.brute_force import search_all
from autopar.solver.build import build_problem
from autopar.solver.formulate import Formulation
from autopar.solver.ilp import solve_program
from autopar.solver.judge import evaluate_seconds
from autopar.solver.one_mesh import build_assignment, solve_mesh
from autopar.solver.overlap import compute_seconds, hiding_groups
from autopar.solver.tables import NONE

from .random_steps import random_step
from .random_steps import small_problem as small_problem_of_step
from .tiny import Sketch, TinyPrices, make_mesh, prepare, random_graph, training_step

_MOST = 3_000


def with_gradient(graph):
    """The last value of the backward phase is the gradient of a parameter, so that it sets out as soon as it is made."""
    made = [node.outputs[0] for node in graph.nodes if node.phase is Phase.BACKWARD]
    new = {name for _, name in graph.updates}
    if not made or made[-1] in new:
        return graph
    values = tuple(replace(v, kind=Kind.GRAD, storage="grad:w") if v.name == made[-1] else v for v in graph.values)
    found = replace(graph, values=values, grads=(("w@0", made[-1]),))
    check_graph(found)
    return found


def small_problem(seed, num_nodes, sizes, wire, hides):
    mesh = make_mesh(*sizes)
    for again in range(200):
        graph = with_gradient(random_graph(seed + 1000 * again, num_nodes))
        prices = TinyPrices(graph, mesh, wire, hides)
        problem = build_problem(graph, *prepare(graph), identity_fold(graph), mesh, prices, cluster=False)
        if prod(len(c.seconds) for c in problem.choosers) <= _MOST:
            return problem, prices
    raise AssertionError("no graph of this seed is small enough")


@pytest.mark.parametrize("wire, hides", [(0.3, 0.5), (3.0, 0.5), (30.0, 1.0)])
@pytest.mark.parametrize("seed, num_nodes, sizes", [*((seed, 2 + seed % 4, (2,)) for seed in range(14)), (100, 2, (2, 2)), (101, 2, (2, 2))])
def test_random_graph_equals_brute_force(seed, num_nodes, sizes, wire, hides):
    problem, prices = small_problem(seed, num_nodes, sizes, wire, hides)
    best, smallest = search_all(problem, prices, sizes, None)
    free = solve_mesh(problem, None, time_limit_s=20, gap=1e-6)
    assert free.objective_s == pytest.approx(best, rel=1e-6)
    assert free.bound_s <= best * (1 + 1e-9)
    best, _ = search_all(problem, prices, sizes, smallest)
    tight = solve_mesh(problem, smallest, time_limit_s=20, gap=1e-6)
    assert tight.objective_s == pytest.approx(best, rel=1e-6)
    assert tight.bound_s <= best * (1 + 1e-9)


def chain(layers, width, batch):
    """A stack of equal layers `h.K` of one matmul, its gradients, and updates that read a state each."""
    s = Sketch("chain")
    names = range(layers)
    weights = [s.enter(f"h.{k}.w@0", (width, width)) for k in names]
    states = [s.enter(f"m:h.{k}.w@0", (width, width), Kind.OPTIM) for k in names]
    x = s.enter("x", (batch, width), Kind.BATCH)
    read = [x]
    for k in names:
        read.append(s.call("aten.relu", s.call("aten.mm", read[-1], weights[k], path=f"h.{k}"), path=f"h.{k}"))
    loss = s.call("tiny.total", read[-1], kind=Kind.LOSS)
    s.phase, grads, flow = Phase.BACKWARD, {}, read[-1]
    for k in reversed(names):
        flow = s.call("aten.mul", flow, read[k + 1], path=f"h.{k}")
        grads[k] = s.call("aten.mm", s.call("aten.permute", read[k], path=f"h.{k}"), flow, kind=Kind.GRAD, path=f"h.{k}")
        flow = s.call("aten.mm", flow, s.call("aten.permute", weights[k], path=f"h.{k}"), path=f"h.{k}")
    s.phase, updates = Phase.UPDATE, []
    for k in names:
        m = s.call("aten.add", states[k], grads[k], kind=Kind.OPTIM, name=f"m:h.{k}.w@1", path=f"h.{k}")
        w = s.call("aten.add", weights[k], m, kind=Kind.PARAM, name=f"h.{k}.w@1", path=f"h.{k}")
        updates += [(weights[k], w), (states[k], m)]
    return s.finish(updates, loss, (), [(weights[k], grads[k]) for k in names])


def linear_seconds(problem, decisions):
    """(what the linear program says of decisions, whether more would hide than there is compute)."""
    form = Formulation(problem)
    chosen = np.zeros(form.num_columns, bool)
    chosen[[offset + k for offset, k in zip(form.offsets, decisions)]] = True
    for _ in range(3):
        program = form.build(None, 1e6)
        upper = np.where(program.integer & ~chosen, 0.0, program.upper)
        found = solve_program(replace(program, upper=upper), relaxed=True, time_limit_s=20)
        if not form.ask_overlap(found.values):
            break
    return found.objective / 1e6, bool(form._asked)


def program_seconds(graph, problem, model, decisions):
    sites, signatures, cuts = prepare(graph)
    assignment = build_assignment(problem, decisions)
    strategies = assigned_strategies(graph, sites, signatures, cuts, assignment)
    program = partition(graph, sites, signatures, cuts, assignment)
    return estimate_program(model, program, sites, signatures, strategies).step_s


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "flat"])
@pytest.mark.parametrize("cluster", ["8xH100-80GB", "2x4xA100-80GB"])
@pytest.mark.parametrize("width, batch", [(64, 4096), (8192, 16)], ids=["compute", "communication"])
def test_the_objective_is_the_time_of_the_program(cluster, folded, width, batch):
    graph, cluster = chain(3, width, batch), parse_cluster(cluster)
    sites, signatures, cuts = prepare(graph)
    model = build_cost_model(cluster)
    fold = fold_graph(graph) if folded else identity_fold(graph)
    excess = 0
    for mesh in list_meshes(cluster, max_axes=2):
        prices = build_prices(model, mesh, graph, sites, signatures)
        problem = build_problem(graph, sites, signatures, cuts, fold, mesh, prices)
        answer = solve_mesh(problem, None, time_limit_s=30)
        assert answer.bound_s <= answer.objective_s
        tried = [answer.decisions, *(tuple((n * 7 + 3 * i) % len(c.seconds) for i, c in enumerate(problem.choosers)) for n in range(20))]
        for decisions in tried:
            objective = evaluate_seconds(problem, decisions)
            if objective < inf:
                assert objective == pytest.approx(program_seconds(graph, problem, model, decisions), rel=1e-9)
                seconds, broke = linear_seconds(problem, decisions)
                assert seconds == pytest.approx(objective, rel=1e-6)
                excess += broke
    assert excess or batch == 4096


def test_gradients_hide_in_the_backward_pass_and_states_where_they_are_read():
    graph, mesh = training_step(4, 2, 2), make_mesh(2)
    problem = build_problem(graph, *prepare(graph), identity_fold(graph), mesh, TinyPrices(graph, mesh, hides=0.5))
    hiding = {(problem.groups[n].value.name, phase) for n, phase in hiding_groups(problem).items()}
    assert hiding == {("w@0", Phase.FORWARD), ("mm_3", Phase.BACKWARD), ("x", Phase.BACKWARD), ("mm_0", Phase.BACKWARD)}  # and what the forward pass had, where the backward pass reads it


def test_what_is_made_again_is_gathered_at_once_and_what_is_kept_ahead():
    seen = set()
    for seed in range(8):
        _, problem, _ = small_problem_of_step(lambda s: random_step(s, 7), seed, (2,), 4000, 1, "free", hides=0.5)
        hiding = hiding_groups(problem)
        for number, group in enumerate(problem.groups):
            chooser = problem.choosers[group.source[0]]
            if group.phase is Phase.BACKWARD and chooser.num_kept < len(chooser.seconds):
                made = chooser.makes[group.source[1]]
                form = "kept" if (made[chooser.num_kept :] == NONE).all() else "again" if (made[: chooser.num_kept] == NONE).all() else "made"
                seen.add((form, number in hiding))
    assert {("kept", True), ("again", False)} <= seen and not {("kept", False), ("again", True)} & seen


def test_compute_of_the_phases_is_all_compute_and_what_is_made_again_counts_twice():
    graph, mesh = chain(2, 8, 16), make_mesh(2)
    for recompute in ("none", "free", "full"):
        problem = build_problem(graph, *prepare(graph), fold_graph(graph), mesh, TinyPrices(graph, mesh), recompute=recompute)
        for number, chooser in enumerate(problem.choosers):
            phases = {graph.nodes[p.node].phase for p in chooser.parts if p.node >= 0}
            forward, backward = (compute_seconds(problem, number, phase) for phase in HIDING_PHASES)
            if phases and Phase.UPDATE not in phases:
                assert forward + backward == pytest.approx(chooser.seconds, rel=1e-12)
            if phases == {Phase.FORWARD}:
                assert (backward[: chooser.num_kept] == 0).all() and backward[chooser.num_kept :] == pytest.approx(forward[chooser.num_kept :])
            if not phases or phases == {Phase.UPDATE}:
                assert not forward.any() and not backward.any()


def test_states_are_stored_in_pieces_where_their_gathers_hide():
    graph, mesh = chain(2, 8, 16), make_mesh(4)
    found = []
    for hides in (0.0, 0.5, 1.0):
        problem = build_problem(graph, *prepare(graph), identity_fold(graph), mesh, TinyPrices(graph, mesh, 3.0, hides))
        found.append(solve_mesh(problem, None, time_limit_s=20, gap=1e-6))
    seconds, peaks = [a.objective_s for a in found], [a.peak_bytes for a in found]
    assert seconds[0] > seconds[1] > seconds[2] and peaks[0] > max(peaks[1:])
