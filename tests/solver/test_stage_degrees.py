"""Stages that divide their devices in different ways: one grid of ranks under other names, what crosses agreed on by both ends, obeyed or refused."""

from __future__ import annotations

import time
from functools import cache
from math import inf

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import StageDegrees, constrain, load_constraints, parse_lines, print_constraints
from autopar.cost.model import build_cost_model, staged_model
from autopar.errors import ConstraintError
from autopar.graph.check_plan import check_plan
from autopar.graph.graph import count_params
from autopar.graph.mesh import print_mesh
from autopar.graph.plan import Certificate, ClusterInfo, ModelInfo
from autopar.graph.stage_programs import build_stage_programs
from autopar.solver.answer_stages import build_staged_answer, join_assignments
from autopar.solver.decide import Ask, decide
from autopar.solver.given_stages import given_layout, price_stages
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layouts import layout_ranks, list_places
from autopar.solver.obeyed import check_obeyed_stages
from autopar.solver.pipeline import PipelineSearch

from .blocks import build_block_case

LIMIT = 2**30
MODEL = build_cost_model(parse_cluster("cpu:8"), None)


@cache
def case_of(tied):
    return build_block_case(blocks=4, tied=tied, momentum=True)


def find(words, tied=False):
    search = PipelineSearch(LayoutCases(case_of(tied), words), MODEL, LIMIT, time.monotonic() + 60, lambda line: None, plain_too=True)
    search.run(inf)
    found = search.result()
    assert found.best is not None, found.pruned
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        {"pp": 2, "dp": 4, "microbatches": 2, "stage": [StageDegrees(1, 2, 2)]},
        {"pp": 2, "dp": 2, "tp": 2, "microbatches": 2, "zero": 1, "schedule": "zero-bubble", "stage": [StageDegrees(0, 4, 1)]},
        {"pp": 2, "tp": 4, "microbatches": 2, "vpp": 2, "stage": [StageDegrees(0, 2, 2)]},
        {"pp": 4, "tp": 2, "microbatches": 4, "recompute": "full", "stage": [StageDegrees(0, 2, 1), StageDegrees(3, 2, 1)]},
    ],
)
def test_stages_have_the_degrees_that_were_asked_for(words, tied):
    constraints = constrain(**words)
    result = find(constraints, tied)
    staged, case = result.best, case_of(tied)
    assert check_obeyed_stages(case, staged, constraints) == () and result.bound_s <= staged.step_s * (1 + 1e-9)
    build_stage_programs(case, join_assignments(staged), staged.starts, layout_ranks(staged.layout), words.get("schedule") == "zero-bubble")  # both ends agree
    wrong = constrain(stage=[StageDegrees(row.number, row.tp, row.dp) for row in words["stage"] if row.dp != row.tp] or [StageDegrees(0, 1, 4)])
    assert any(line.startswith(f"stage {wrong.stage_degrees[0].number} dp=") for line in check_obeyed_stages(case, staged, wrong))


def test_the_plan_says_it_and_a_given_one_means_the_same():
    staged = find(constrain(pp=2, dp=4, microbatches=2, stage=[StageDegrees(1, 2, 2)])).best
    certificate = Certificate(staged.step_s, staged.step_s, 0.0, 0.1, (), 10, "what was asked", ())
    place = ClusterInfo("cpu:8", 8, 1, "cpu", LIMIT, 1e10, 1e10, 1e-5, 1e10, 1e-5, 1e10, "made up")
    model = staged_model(MODEL, 2, 8)
    plan = build_staged_answer(case_of(False), staged, certificate, model, ModelInfo("blocks", count_params(case_of(False).graph), "0" * 16, "fp32"), place)
    check_plan(plan)
    assert print_mesh(plan.assignment.mesh) == "dp=2 mixed=2" and [s.axes for s in plan.pipeline.stages] == [("dp", "dp"), ("dp", "tp")]
    assert "Stage 1 is divided as dp=2 tp=2, the others as dp=4." in plan.summary
    layout = given_layout(plan.assignment, plan.pipeline)
    assert [print_mesh(layout.place.stage_mesh(s)) for s in range(2)] == ["dp=2 dp_2=2", "dp=2 tp=2"]
    again = price_stages(case_of(False), plan.assignment, layout, plan.pipeline.starts, model)
    assert again.step_s == pytest.approx(staged.step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ({"pp": 2, "tp": 1, "stage": [StageDegrees(1, 2, 2)]}, ["dp=2 dp_2=2 | dp=2 tp=2"]),
        ({"pp": 2, "tp": 2, "stage": [StageDegrees(0, 1, 4)]}, ["dp=2 tp=2 | tp=2 tp_2=2"]),
        ({"pp": 2, "stage": [StageDegrees(0, 4, 1), StageDegrees(1, 1, 4)]}, ["dp=4 | tp=4"]),
        ({"pp": 2, "stage": [StageDegrees(0, 2, 1)]}, []),  # fewer devices than a stage has
    ],
)
def test_one_grid_of_ranks(words, places):
    found = list_places(8, 8, 6, constrain(**words))
    assert [" | ".join(dict.fromkeys(print_mesh(m) for m in (p.meshes))) for p in found] == places


def test_degrees_of_which_none_divides_the_other_have_no_grid():
    assert list_places(12, 12, 6, constrain(pp=2, tp=2, stage=[StageDegrees(1, 2, 3)])) == ()


def test_words_and_lines_and_file(tmp_path):
    (tmp_path / "c.toml").write_text("pp = 2\ndp = 4\n[[stage]]\nnumber = 1\ndp = 2\ntp = 2\n")
    found = load_constraints(tmp_path / "c.toml")
    assert found == constrain(pp=2, dp=4, stage=[StageDegrees(1, 2, 2)]) == parse_lines(print_constraints(found))
    assert print_constraints(found) == ("dp=4", "pp=2", "stage 1 dp=2 tp=2")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"stage": [{"number": -1}]}, "constraints: stage[0].number: expected the number of a stage, 0 for the first, found -1"),
        ({"stage": [{"number": 0, "pp": 2}]}, "constraints: stage[0].pp: unknown key; expected one of number, dp, tp"),
        ({"stage": [{"number": 0, "dp": 0}]}, "constraints: stage[0].dp: expected a positive whole number, found 0"),
        ({"stage": [StageDegrees(0, 1, 2), StageDegrees(0, 2, 1)]}, "constraints: stage 0 is given twice; leave one out"),
        ({"pp": 2, "stage": [StageDegrees(2, 1, 2)]}, "constraints: stage 2: pp=2 has the stages 0 to 1; take one of these, or another pp"),
    ],
)
def test_bad_stages(words, text):
    with pytest.raises(ConstraintError) as error:
        constrain(**words)
    assert str(error.value).startswith(text)


def test_what_cannot_be_is_said_with_what_can():
    ask = Ask(case_of(False), MODEL, constrain(pp=2, stage=[StageDegrees(1, 3, 1)]), LIMIT, 10.0, None, lambda line: None)
    with pytest.raises(ConstraintError) as error:
        decide(ask)
    text = "stage 1 dp=3 tp=1: needs 2 stages or more, each of dp x tp devices of which tp divides that of the others; what there is: pp=2 dp=4; pp=2 "
    assert text in str(error.value)
