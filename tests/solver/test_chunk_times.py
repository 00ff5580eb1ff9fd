"""Chunks of a stage take what their own units take: as stages of their own would, in the search, in the plan and in the simulated schedule."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from math import inf

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import constrain
from autopar.cost.model import build_cost_model
from autopar.cost.simulate import simulate_plan
from autopar.errors import PlanError
from autopar.graph.check_plan import check_plan
from autopar.graph.chunk_times import ChunkTimes, chunk_durations
from autopar.graph.plan_json import plan_from_json, plan_to_json
from autopar.graph.schedules.known import build_order, chunk_ranks
from autopar.solver import layout_solve
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layout_prices import Tier
from autopar.solver.pipeline import PipelineSearch
from autopar.solver.stage_solve import StageTimes, place_among
from tests.view.staged_plans import find_staged, make_staged_plan

from .blocks import build_block_case

PARTS = ("forward_s", "backward_s", "weight_s")
ODD = 5  # blocks: with what is before and after them no four chunks are alike


def test_each_chunk_has_its_own_seconds_or_an_equal_part():
    told = StageTimes(0.0, 3.0, 6.0, 2.0, 1.0, (ChunkTimes(1.0, 2.0, 0.5), ChunkTimes(2.0, 4.0, 1.5)))
    plain = StageTimes(0.0, 8.0, 10.0, 4.0, 1.0)
    found = chunk_durations([told, plain], (0, 1, 0, 1), True)
    assert found.forward_s == (1.0, 4.0, 2.0, 4.0) and found.backward_s == (2.0, 5.0, 4.0, 5.0) and found.weight_s == (0.5, 2.0, 1.5, 2.0)
    there_and_back = chunk_durations([told, plain], chunk_ranks("zbv", 2, 2), False)
    assert there_and_back.forward_s == (1.0, 4.0, 4.0, 2.0) and there_and_back.weight_s == ()


def _solve(cluster, cuts=None, **words):
    """A plan whose stages are one device each, so there is nothing to decide."""
    case, model = build_block_case(blocks=ODD, momentum=True), build_cost_model(parse_cluster(cluster), None)
    search = PipelineSearch(LayoutCases(case, constrain(microbatches=4, **words)), model, 2**30, time.monotonic() + 60, lambda line: None, plain_too=True)
    if cuts is None:
        search.run(inf)
        return search.result().best
    layout = next(each.layout for each in search.list_open())
    return search.solver.solve(layout, search.prices.costs(layout.place, 4, Tier.RUN, (1,)), 60, cuts)


def test_a_chunk_takes_what_it_would_as_a_stage():
    chunked = _solve("cpu:2", pp=2, vpp=2)
    apart = _solve("cpu:4", chunked.cuts, pp=4, vpp=1, schedule="1f1b")
    durations = chunk_durations([s.times for s in chunked.stages], chunk_ranks("interleaved", 2, 2), True)
    for name in PARTS:
        assert getattr(durations, name) == pytest.approx([getattr(s.times, name) for s in apart.stages], rel=1e-6), name
    assert max(durations.forward_s) > 1.2 * min(durations.forward_s)


@pytest.mark.parametrize(
    ("words", "cuts", "skips"),
    [
        ({"vpp": 2}, (3, 5, 8), ((0, 6),)),
        ({"vpp": 2}, (2, 5, 8), ()),
        ({"vpp": 2, "recompute": "full"}, (3, 5, 8), ()),
        ({"vpp": 1, "schedule": "1f1b", "recompute": "full"}, (5,), ()),
    ],
    ids=["a skip between chunks", "chunks", "all again", "all again, one chunk"],
)
def test_what_a_stage_takes_at_least_is_no_more_than_its_plan(words, cuts, skips, monkeypatch):
    """However often each phase of each chunk counts: a path may have more forwards of one than of another, and more of these than backwards."""
    case, model = build_block_case(blocks=8, momentum=True, skips=skips), build_cost_model(parse_cluster("cpu:8"), None)
    search = PipelineSearch(LayoutCases(case, constrain(pp=2, tp=2, dp=2, microbatches=4, **words)), model, 2**30, time.monotonic() + 60, lambda line: None, plain_too=True)
    layout, kinds = next(each.layout for each in search.list_open()), []
    monkeypatch.setattr(layout_solve, "bound_jointly", lambda order, chunks, given, enough_s, deadline: kinds.extend(given) or 0.0)
    search.solver.bound(layout, cuts, 10, inf, time.monotonic() + 60)
    found = search.solver.solve(layout, search.prices.costs(layout.place, 4, Tier.RUN, (layout.chunks,)).in_chunks(layout.chunks), 60, cuts)
    rng = random.Random(0)
    for kind, stage in zip(kinds, found.stages, strict=True):
        chunks = stage.times.chunks or (stage.times,)
        row = (stage.times.prepare_s, *(c.forward_s for c in chunks), *(c.backward_s for c in chunks), stage.times.update_s)
        whole = (1.0, *[4.0] * (len(row) - 2), 1.0)
        assert kind.least(whole) == pytest.approx(sum(t * s for t, s in zip(whole, row)), rel=1e-5), "there is memory enough: the plan is the best"
        for times in (whole, *(tuple(rng.choice((0.0, 1.0, 4.0)) for _ in row) for _ in range(8))):
            assert kind.least(times) <= sum(t * s for t, s in zip(times, row)) * (1 + 1e-6), times


def test_chunks_that_adjoin_are_told_apart():
    """Where a schedule turns back two chunks of a stage are one run of units: cut elsewhere it has the same graph, and other chunks."""
    case, model = build_block_case(blocks=ODD, momentum=True), build_cost_model(parse_cluster("cpu:2"), None)
    search = PipelineSearch(LayoutCases(case, constrain(pp=2, microbatches=4, schedule="zbv")), model, 2**30, time.monotonic() + 60, lambda line: None, plain_too=True)
    layout = next(each.layout for each in search.list_open())
    costs = search.prices.costs(layout.place, 4, Tier.RUN, (2,)).in_chunks(2)
    first, second = (search.solver.solve(layout, costs, 60, cuts).stages[1].times for cuts in ((2, 3, 5), (2, 4, 5)))
    assert first.forward_s == pytest.approx(second.forward_s)
    assert first.chunks[0].forward_s < 0.95 * second.chunks[0].forward_s and first.chunks[1].forward_s > 1.4 * second.chunks[1].forward_s


@pytest.mark.parametrize("words", [{"pp": 2, "dp": 2, "microbatches": 4, "vpp": 2}, {"pp": 2, "tp": 2, "microbatches": 4, "schedule": "zbv"}])
def test_the_plan_tells_its_chunks_and_is_simulated_by_them(words):
    plan, found = make_staged_plan("cpu:4", ODD, **words), find_staged("cpu:4", ODD, **words)
    assert simulate_plan(plan).step_s == pytest.approx(found.step_s)
    for stage in plan.pipeline.stages:
        assert len(stage.chunks) == 2
        for name in PARTS:
            assert sum(getattr(chunk, name) for chunk in stage.chunks) == pytest.approx(getattr(stage, name))
    assert plan_from_json(plan_to_json(plan)) == plan
    even = replace(plan, pipeline=replace(plan.pipeline, stages=tuple(replace(s, chunks=()) for s in plan.pipeline.stages)))
    check_plan(even)
    if "vpp" in words:
        assert simulate_plan(even).step_s != pytest.approx(found.step_s, rel=1e-3), "where nobody told, chunks take equal parts"


def test_a_stage_that_stands_for_all_tells_its_chunks():
    """Where all stages are alike the shorter model has one: what it holds for others is not known there, which chunk runs what is."""
    graph = build_block_case(blocks=2).graph
    among = place_among([graph], 0, build_order("interleaved", 2, 4, 2), 1, [{graph.nodes[0].name: 1}])
    assert among.chunk_of == ((graph.nodes[0].name, 1),) and among.held == ()


def test_chunks_that_do_not_add_up_are_refused():
    plan = make_staged_plan("cpu:4", ODD, pp=2, dp=2, microbatches=4, vpp=2)
    first, *others = plan.pipeline.stages

    def with_chunks(*chunks):
        return replace(plan, pipeline=replace(plan.pipeline, stages=(replace(first, chunks=chunks), *others)))

    for chunks in (first.chunks[:1], (first.chunks[0], first.chunks[0]), (replace(first.chunks[0], forward_s=-1.0), first.chunks[1]), (replace(first.chunks[0], weight_s=float("nan")), first.chunks[1])):
        with pytest.raises(PlanError, match=r"pipeline\.stages\[0\]\.chunks: expected"):
            check_plan(with_chunks(*chunks))
    assert first.chunks[0].weight_s > 0
    less, more = (replace(chunk, backward_s=s) for chunk, s in zip(first.chunks, (0.0, first.backward_s)))
    with pytest.raises(PlanError, match=r"pipeline\.stages\[0\]\.chunks\[0\]\.weight_s: expected at most its backward_s"):
        check_plan(with_chunks(less, more))
