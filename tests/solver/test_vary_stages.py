"""Degrees of single stages, found by the search: what they are tried for, what they are not, and that a plan with them is as good as it says."""

from __future__ import annotations

import time
from math import inf

import pytest

from autopar.api import plan_workload
from autopar.cluster import parse_cluster
from autopar.constraints import StageDegrees, constrain
from autopar.cost.model import build_cost_model
from autopar.graph.mesh import Mesh, MeshAxis, num_ranks, print_mesh
from autopar.options import Options
from autopar.solver import layout_cases, pipeline
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layout_prices import Tier
from autopar.solver.layout_solve import LayoutSolver, Staged
from autopar.solver.layouts import Layout, Place, divide_stage, vary_place
from autopar.solver.pipeline import PipelineSearch
from autopar.solver.vary_stages import list_varied, may_vary

from .blocks import build_block_case
from .narrowing import narrowing

GRID = Place(3, Mesh((MeshAxis("dp", 4, "inside"), MeshAxis("tp", 2, "inside"))))


@pytest.mark.parametrize(
    "tps, base, others",
    [
        ([2, 2, 4], "dp=4 tp=2", {2: "tp=4"}),
        ([1, 8, 8], "tp=8", {0: "dp=8"}),
        ([1, 2, 4], "dp=8", {1: "dp=4 tp=2", 2: "dp=2 tp=4"}),
    ],
)
def test_one_grid_of_ranks_has_the_degrees_of_every_stage(tps, base, others):
    def degrees(mesh):
        sizes = {"dp": 1, "tp": 1}
        for axis in mesh.axes:
            sizes[axis.name.partition("_")[0]] *= axis.size
        return sizes["dp"], sizes["tp"]

    found = vary_place(GRID, tps, 8)
    assert [degrees(found.stage_mesh(s)) for s in range(3)] == [(8 // tp, tp) for tp in tps]
    assert {tuple(a.size for a in mesh.axes) for mesh in found.meshes} == {tuple(a.size for a in found.mesh.axes)}
    assert {s for s, _ in found.others} == set(others) and degrees(found.mesh) == (8 // max(tps, key=tps.count), max(tps, key=tps.count))


def test_stages_that_are_all_alike_are_not_varied():
    assert vary_place(GRID, [4, 4, 4], 8) is None
    assert [print_mesh(mesh) for mesh in divide_stage(8, 8).values()] == ["dp=8", "dp=4 tp=2", "dp=2 tp=4", "tp=8"]
    assert all(num_ranks(mesh) == 16 for mesh in divide_stage(16, 8).values()) and set(divide_stage(16, 8)) == {1, 2, 4, 8}


@pytest.mark.parametrize(
    "words, free",
    [
        ({}, True), ({"pp": 3}, True), ({"microbatches": 4, "schedule": "1f1b", "recompute": "full"}, True),
        ({"tp": 2}, False), ({"dp": 4}, False), ({"zero": 1}, False), ({"sequence_parallel": True}, False), ({"whole": ["h.*"]}, False),
        ({"stage": [StageDegrees(1, 2, 4)]}, False),
    ],
)  # fmt: skip
def test_words_about_degrees_leave_stages_alike(words, free):
    assert may_vary(Layout(GRID, 4), constrain(**words)) is free
    assert not may_vary(Layout(Place(1, GRID.mesh), 4), constrain(**words))
    assert not may_vary(Layout(Place(3, Mesh(())), 4), constrain(**words))
    assert not may_vary(Layout(Place(3, Mesh((MeshAxis("spare", 2, "inside"),))), 4), constrain(**words))


def plan(words, monkeypatch=None):
    if monkeypatch is not None:
        monkeypatch.setattr(pipeline, "may_vary", lambda layout, constraints: False)
    return plan_workload(narrowing(batch=256, seq=2048, width=1024, wide=24576), "8xH100-80GB", Options(time_limit_s=60.0, price=False, constraints=words)).plan


def test_a_model_whose_ends_are_unlike_gets_degrees_per_stage(monkeypatch):
    """First much batch and small weights, then the opposite: data parallelism there and tensor parallelism here is far better than anything that is the same everywhere."""
    found = plan(constrain(pp=2, vpp=1, microbatches=4))
    assert [stage.axes for stage in found.pipeline.stages] == [("dp",), ("tp",)] and "Stage 1 is divided as tp=4, the others as dp=4." in found.summary
    assert "Inside of stage 0: Axis mixed: 4-way data parallel" in found.summary and "Inside of stage 1: Axis mixed: 4-way tensor parallel" in found.summary
    assert set(dict(found.labels)["mixed"]) >= {"data", "tensor"}
    assert found.solve.lower_bound_s <= found.solve.objective_s and found.solve.gap <= 0.05
    assert "and divided as those of this plan" in found.solve.search_space
    told = plan(constrain(pp=2, vpp=1, microbatches=4, dp=4, tp=1, stage=[StageDegrees(1, 1, 4)]))
    assert found.cost.step_s == pytest.approx(told.cost.step_s, rel=1e-3)
    alike = plan(constrain(pp=2, vpp=1, microbatches=4), monkeypatch)
    assert found.cost.step_s < 0.7 * alike.cost.step_s and "divided as those of this plan" not in alike.solve.search_space


def test_schedule_and_microbatches_free_finds_it_too(monkeypatch):
    """Around layouts that are not the best ones either: those with the best degrees per stage."""
    found = plan(constrain(pp=2))
    assert len({stage.axes for stage in found.pipeline.stages}) == 2
    assert found.cost.step_s < 0.7 * plan(constrain(pp=2), monkeypatch).cost.step_s


def searched(case, spec, **words):
    """A search that has ended."""
    model = build_cost_model(parse_cluster(spec))
    search = PipelineSearch(LayoutCases(case, constrain(**words)), model, 60 * 2**30, time.monotonic() + 60, lambda line: None)
    search.run(inf)
    return search


@pytest.mark.parametrize("place", [Place(6, Mesh((MeshAxis("dp", 2, "inside"),)), ((0, Mesh((MeshAxis("tp", 2, "inside"),))),)),
                                   Place(6, Mesh((MeshAxis("tp", 2, "inside"),)), ((5, Mesh((MeshAxis("dp", 2, "inside"),))),))])  # fmt: skip
def test_alike_stages_among_others_are_solved_once(place, monkeypatch):
    """On a graph with each kind of stage once, and on the whole graph: the same plan."""
    monkeypatch.setattr(layout_cases, "_SHORTER", 0)
    case, limit = build_block_case(blocks=18, batch=16, width=64, hidden=128), 2**30
    cases, model = LayoutCases(case, constrain()), build_cost_model(parse_cluster("1x12xA100-80GB"))
    search = PipelineSearch(cases, model, limit, time.monotonic() + 60, lambda line: None)
    search.list_open()
    layout = Layout(place, 4)
    costs = search.prices.costs(place, 4, Tier.RUN)
    cuts = (4, 7, 10, 13, 16)
    short, whole = LayoutSolver(cases, model, limit), LayoutSolver(cases, model, limit)
    few = short.solve(layout, costs, 60.0, cuts)
    assert isinstance(few, Staged) and few.cuts == cuts
    whole.deadline = time.monotonic() + 60.0
    every = whole._solve_cuts(cases.split(case, 4), layout, whole.staged_model(place), cuts, None)
    assert isinstance(every, Staged)
    assert len(every.stages) == 6 and max(len(stage.case.graph.nodes) for stage in few.stages) == max(len(stage.case.graph.nodes) for stage in every.stages)
    assert few.step_s == pytest.approx(every.step_s, rel=1e-6)
    finished = short.finish(few)
    assert [print_mesh(stage.assignment.mesh) for stage in finished.stages] == [print_mesh(place.stage_mesh(s)) for s in range(6)]
    assert finished.step_s == pytest.approx(few.step_s) and all(short._meets(k, a, cases.split(case, 4), place) for k, a in enumerate(finished.stages))


def test_nothing_is_listed_where_all_stages_like_the_same():
    """Equal blocks with small ends, much memory."""
    search = searched(build_block_case(blocks=8, batch=64, width=256, hidden=1024), "8xH100-80GB", pp=2, microbatches=4, vpp=1)
    best = search.best
    rows = list_varied(best.layout, best.cuts, best.step_s, search.prices, search.limit_bytes, 64, 8)
    assert all(row.guess_s >= best.step_s * 0.98 for row in rows) and not best.layout.place.others
