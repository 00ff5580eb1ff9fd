"""Chunks of a stage take what their own units take: as stages of their own would, in the search, in the plan and in the simulated schedule."""

from __future__ import annotations

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
from autopar.graph.schedules.known import chunk_ranks
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layout_prices import Tier
from autopar.solver.pipeline import PipelineSearch
from autopar.solver.stage_solve import StageTimes
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


def test_chunks_that_do_not_add_up_are_refused():
    plan = make_staged_plan("cpu:4", ODD, pp=2, dp=2, microbatches=4, vpp=2)
    first, *others = plan.pipeline.stages

    def with_chunks(*chunks):
        return replace(plan, pipeline=replace(plan.pipeline, stages=(replace(first, chunks=chunks), *others)))

    for chunks in (first.chunks[:1], (first.chunks[0], first.chunks[0]), (replace(first.chunks[0], forward_s=-1.0), first.chunks[1]), (replace(first.chunks[0], weight_s=float("nan")), first.chunks[1])):
        with pytest.raises(PlanError, match=r"pipeline\.stages\[0\]\.chunks: expected"):
            check_plan(with_chunks(*chunks))
