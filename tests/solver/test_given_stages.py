"""Plans in stages that are given: they cost what the search said of them; edited, they cost what the edited program takes; what is of other stages is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.model import build_cost_model, staged_model
from autopar.errors import PlanError
from autopar.graph.sharding import parse_sharding
from autopar.solver.answer_stages import join_assignments
from autopar.solver.given_stages import price_stages
from tests.view.staged_plans import find_staged

from .blocks import build_block_case

WORDS = [
    {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "1f1b", "zero": 1},
    {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "zbv"},
    {"pp": 2, "dp": 2, "microbatches": 2, "vpp": 2, "recompute": "full"},
    {"pp": 4, "microbatches": 8, "schedule": "zero-bubble"},
]


def price(found, assignment):
    case = build_block_case(blocks=4, tied=True, momentum=True)
    model = staged_model(build_cost_model(parse_cluster("cpu:4"), None), found.layout.place.num_stages, 4)
    return price_stages(case, assignment, found.layout, found.starts, model)


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.get("schedule", "interleaved"))
def test_a_given_plan_costs_what_the_search_said(words):
    found = find_staged("cpu:4", 4, **words)
    again = price(found, join_assignments(found))
    assert again.step_s == pytest.approx(found.step_s, rel=1e-9) and again.bubble_s == pytest.approx(found.bubble_s, rel=1e-6, abs=1e-12)
    assert again.in_flight == found.in_flight
    for mine, theirs in zip(again.stages, found.stages):
        assert mine.times == pytest.approx(theirs.times) and mine.memory.peak_bytes == theirs.memory.peak_bytes


def test_an_edited_plan_costs_what_it_takes_now():
    found = find_staged("cpu:4", 4, **WORDS[0])
    given = join_assignments(found)
    moved = tuple((n, parse_sharding("R") if n.startswith("m:") else s) for n, s in given.storages)
    assert moved != given.storages
    again = price(found, replace(given, storages=moved))
    assert again.step_s != found.step_s
    for mine, theirs in zip(again.stages, found.stages):
        assert mine.memory.state_bytes > theirs.memory.state_bytes


def test_decisions_of_other_stages_are_refused():
    found = find_staged("cpu:4", 4, **WORDS[0])
    given = join_assignments(found)
    with pytest.raises(PlanError, match="blocks: the plan has no choice for .*, which is on stage 0"):
        price(found, replace(given, strategies=given.strategies[1:]))
