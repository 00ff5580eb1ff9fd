"""Plans in stages and in microbatches, as people see them: the terminal, the page's data, compared, explained."""

from __future__ import annotations

import dataclasses
import json
from math import fsum

import pytest

from autopar.constraints import ModuleStage, StageDegrees
from autopar.errors import PlanError
from autopar.graph.check_plan import check_plan
from autopar.graph.plan_json import plan_from_json, plan_to_json
from autopar.graph.schedules.known import splits_backward
from autopar.view.diff_plans import diff_plans
from autopar.view.diff_terminal import diff_text
from autopar.view.explain_memory import explain_memory
from autopar.view.explain_name import explain_name
from autopar.view.memory_terminal import peak_text
from autopar.view.name_terminal import names_text
from autopar.view.page_data import page_data
from autopar.view.stages import list_stages, pipeline_durations, schedule_boxes, schedule_lines, state_sums, top_stage
from autopar.view.terminal import plan_text

from .staged_plans import make_staged_plan

TWO = {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "1f1b"}
CHUNKS = {"pp": 2, "dp": 2, "microbatches": 4, "vpp": 2}
ZERO = {"pp": 2, "tp": 2, "microbatches": 4, "schedule": "zero-bubble"}
BACK = {"pp": 2, "microbatches": 4, "schedule": "zbv"}
ALL = [TWO, CHUNKS, ZERO, BACK]


@pytest.fixture(params=ALL, ids=["1f1b", "chunks", "zero-bubble", "zbv"])
def plan(request):
    return make_staged_plan(**request.param)


def turns_plan():
    return make_staged_plan("cpu:2", 2, pp=1, tp=2, microbatches=4)


def test_a_staged_plan_keeps_the_law_and_is_the_same_after_saving(plan):
    check_plan(plan)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_no_line_is_too_long(plan, width):
    for text in (plan_text(plan, width), peak_text(explain_memory(plan), width), diff_text(diff_plans(plan, turns_plan()), width=width)):
        assert max(map(len, text.splitlines())) <= width


def test_boxes_stand_where_the_step_says(plan):
    """Every action once, in order and without overlap; with the updates the last box ends with the step."""
    p, boxes = plan.pipeline, schedule_boxes(plan)
    actions = 3 if splits_backward(p.kind) else 2
    assert all(len(row) == actions * p.chunks * plan.num_microbatches for row in boxes)
    for row in boxes:
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in zip(row, row[1:]))
    assert max(row[-1].end_s + s.update_s for row, s in zip(boxes, p.stages)) == pytest.approx(plan.cost.step_s, rel=1e-9)
    works = [fsum(b.end_s - b.start_s for b in row) for row in boxes]
    assert works == pytest.approx([plan.num_microbatches * (s.forward_s + s.backward_s) for s in p.stages])
    assert len(pipeline_durations(p).forward_s) == plan.num_stages * p.chunks


def test_the_busy_stages_are_compute_and_communication(plan):
    """What all stages work, on average, is the step without its bubble."""
    shares = [row.busy for row in list_stages(plan)]
    assert sum(shares) / len(shares) * plan.cost.step_s == pytest.approx(plan.cost.compute_s + plan.cost.exposed_comm_s, rel=1e-6)


def test_the_grid():
    assert schedule_lines(make_staged_plan(**TWO), 60) == ("stage 0  F0 F1 .  B0 F2 B1 F3 B2 .  B3", "stage 1  .  F0 B0 F1 B1 F2 B2 F3 B3 .")
    wide = schedule_lines(make_staged_plan(**CHUNKS), 60)
    assert wide[0].startswith("stage 0  0F0 0F1 2F0 2F1") and wide[2] == "" and all(len(line) <= 60 for line in wide)
    assert schedule_lines(make_staged_plan(**CHUNKS), 20) == () == schedule_lines(turns_plan(), 60)
    assert "too large for a grid here; the page draws it over time (--html)" in " ".join(plan_text(make_staged_plan(pp=2, tp=2, microbatches=8, vpp=2), 40).split())


def test_what_the_terminal_says_of_stages():
    plan = make_staged_plan(**TWO)
    text = " ".join(plan_text(plan, 160).split())
    assert "mesh dp=2 for each of 2 stages" in text and "steps 2 stages, 1f1b, 4 microbatches" in text
    for number, row in enumerate(plan.pipeline.stages):
        assert f"stage {number}: {'; '.join(row.modules)} " in text
    assert "stage 0: embed .. h." in text and " .. head " in text
    assert f"per device of stage {top_stage(plan)}, which holds most, at the peak" in text
    assert "of the average device; what it waits for other stages is the bubble" in text
    assert " x4 " in text and "x4: once in each microbatch; bytes and time are of the whole step" in text
    assert "values cross between stages" in text and "axis pipeline" not in text


def test_states_are_those_of_one_rank_of_one_stage(plan):
    """Sums over stages are nobody's memory."""
    sums = state_sums(plan)
    held = [{h.name: h.bytes for h in plan.cost.holders}[name] for name in ("parameters", "optimizer")]
    top = sums[top_stage(plan)]
    assert [top.param_bytes, top.optim_bytes] == held
    assert sum(s.optim_bytes for s in sums) == sum(p.optim_bytes for p in plan.params)


def test_a_plan_in_turns_says_how_often():
    plan = turns_plan()
    text = " ".join(plan_text(plan, 120).split())
    assert "steps one stage, 4 microbatches one after the other" in text and "never all held at once; of one microbatch" in text
    assert "Stages" not in text and " x4 " in text
    text = peak_text(explain_memory(plan), 120)
    assert "holds one of 4 microbatches at a time, and the sums over them" in text
    op = next(n.name for n in plan.nodes if n.phase.value == "forward" and n.op == "aten.mm.default")
    (report,) = explain_name(plan, op)
    assert report.times == 4 and "in a step, 4 microbatches; of one: " in " ".join(names_text([report], 120).split())


def test_the_pages_numbers_are_the_plans(plan):
    data = page_data(plan)
    assert [row["number"] for row in data["stages"]["rows"]] == [0, 1] and len(data["stages"]["boxes"]) == 2
    assert fsum(data["nodes"]["seconds"]) / plan.num_stages == pytest.approx(plan.cost.compute_s)
    exposed = fsum(data["comms"]["seconds"]) - fsum(data["comms"]["hidden_s"])
    assert exposed / plan.num_stages == pytest.approx(plan.cost.exposed_comm_s)
    for c, times, size in zip(plan.comms, data["comms"]["times"], data["comms"]["bytes"]):
        assert times == (4 if c.phase.value in ("forward", "backward") else 1) and size == times * c.bytes
    assert page_data(turns_plan())["stages"] == {"rows": [], "chunks": 1, "boxes": []}


def test_memory_names_the_stage_and_what_is_in_flight():
    plan = make_staged_plan(**TWO)
    report = explain_memory(plan)
    row = plan.pipeline.stages[report.stage]
    assert report.bytes == plan.cost.peak_bytes[report.stage] == max(plan.cost.peak_bytes) and report.known
    assert dict(report.phase_s) == {"prepare": row.prepare_s, "forward": 4 * row.forward_s, "backward": 4 * row.backward_s, "update": row.update_s}
    assert report.phase == plan.cost.moments[report.position].phase.value
    text = " ".join(peak_text(report, 120).split())
    assert f"memory of one device of stage {report.stage}, which holds most of 2" in text
    assert f"holds {row.in_flight:.3g} of 4 microbatches between their forward and their backward" in text
    assert "make it again" not in text


def test_every_stage_says_who_holds_its_peak_and_when():
    plan = make_staged_plan(**TWO)
    report = explain_memory(plan)
    assert [p.stage for p in report.others] == [s for s in range(2) if s != report.stage]
    text = " ".join(peak_text(report, 120).split())
    for number, stage in enumerate(plan.pipeline.stages):
        told = report if number == report.stage else report.others[0]
        assert told.node == stage.peak.node and told.bytes == plan.cost.peak_bytes[number]
        assert sum(h.bytes for h in told.holders) == told.bytes
        for holder in told.holders:
            assert holder.name == "reserve" or sum(row.bytes * len(row.tensors) for row in holder.rows) == holder.bytes
        own = {t.name for t in plan.tensors if t.stage == number}
        assert {row.tensor for row in stage.peak.tensors if row.tensor} <= own
        assert f"when {told.op} ({told.node}), {told.phase}" in text
    first = plan.pipeline.stages[0]
    waits = [row for row in first.peak.tensors if row.waiting_bytes]
    assert first.in_flight == 2 and waits and all(row.bytes in (row.waiting_bytes, 2 * row.waiting_bytes) for row in waits)
    assert "of microbatches that wait for their backward pass" in text


@pytest.mark.parametrize("change", ["holders", "tensors"])
def test_a_stage_whose_holders_do_not_add_up_is_refused(change):
    plan = make_staged_plan(**TWO)
    first, *rest = plan.pipeline.stages
    if change == "holders":
        first = dataclasses.replace(first, holders=first.holders[1:])
    else:
        first = dataclasses.replace(first, peak=dataclasses.replace(first.peak, tensors=first.peak.tensors[1:]))
    text = {"holders": r"pipeline.stages\[0\].holders: expected a sum of", "tensors": r"pipeline.stages\[0\].peak.tensors: expected .* bytes of"}[change]
    with pytest.raises(PlanError, match=text):
        check_plan(dataclasses.replace(plan, pipeline=dataclasses.replace(plan.pipeline, stages=(first, *rest))))


def test_a_tied_parameter_is_told_on_both_stages():
    plan = make_staged_plan(**TWO)
    (report,) = explain_name(plan, "embed.weight")
    assert ("stage", "stage 0") in report.about and report.peak_bytes > 0
    assert [c.what for c in report.chosen if c.what.startswith("copy")] == ["copy on stage 1"]
    assert {n.node.partition("#")[0] for n in report.neighbours} >= {n.name.partition("#")[0] for n in plan.nodes if "embed.weight@0#1" in n.inputs}
    assert "at the peak of its stage" in names_text([report])


def test_a_parameter_that_moves_to_another_stage_is_told():
    words = {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "1f1b", "zero": 0}
    here, there = (make_staged_plan(**words, module=(ModuleStage("h.1", stage), ModuleStage("h.0", 0), ModuleStage("h.2", 1))) for stage in (0, 1))
    moved = [row for row in diff_plans(here, there).params if row.roles == ("home",)]
    assert {name for row in moved for name in row.members} == {"h.1.up", "h.1.down"}
    assert {(row.a, row.b) for row in moved} == {("stage 0", "stage 1")}
    assert not [row for row in diff_plans(here, here).params] and all(row.bytes_a == row.bytes_b > 0 for row in moved)


def test_stages_that_are_divided_in_different_ways_say_so():
    plan = make_staged_plan(pp=2, dp=2, tp=1, microbatches=2, schedule="1f1b", stage=(StageDegrees(1, 1, 2),))
    check_plan(plan)
    assert [row.modules.rpartition(" as ")[2] for row in list_stages(plan)] == ["dp=2", "tp=2"]
    text = " ".join(plan_text(plan, 160).split())
    assert "mesh mixed=2 for each of 2 stages" in text and " as tp=2" in text and "Stage 1 is divided as tp=2, the others as dp=2." in text
    assert " as tp=2" in peak_text(explain_memory(plan), 160)


def test_plans_with_and_without_stages_compare():
    one, two, four = turns_plan(), make_staged_plan(**TWO), make_staged_plan("cpu:4", 4, pp=4, microbatches=4, schedule="1f1b")
    diff = diff_plans(two, four)
    assert diff.same_graph and not any(fact.what == "graph" for fact in diff.grounds) and diff.num_stages == (2, 4)
    layout = {fact.what: (fact.a, fact.b) for fact in diff.layout}
    assert layout["mesh"] == ("2 stages of dp=2", "4 stages of 1 rank") and layout["stage 3"][0] == "-" and "busy" in layout["stage 3"][1]
    diff = diff_plans(one, two)
    for side, plan in (("a", one), ("b", two)):
        total = fsum(getattr(row, f"seconds_{side}") for row in (*diff.strategies, diff.kept, diff.alone))
        assert total == pytest.approx(plan.cost.compute_s * plan.num_stages)
        exposed = fsum(getattr(row, f"seconds_{side}") for row in diff.comms) - diff.hidden_s["ab".index(side)]
        assert exposed == pytest.approx(plan.cost.exposed_comm_s * plan.num_stages)
        assert sum(getattr(row, f"count_{side}") for row in diff.comms) == sum(4 if c.phase.value in ("forward", "backward") else 1 for c in plan.comms)
    assert "the same" in diff_text(diff_plans(two, two))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "fast"}, "pipeline.kind: unknown schedule 'fast'"),
        ({"starts": ("nowhere",)}, "pipeline.starts[0]: expected the name of a forward node, found 'nowhere'"),
        ({"stages": 0}, "pipeline.stages[1].weight_s: expected at most its backward_s of"),
        ({"modules": 0}, "pipeline.stages[0].modules: expected 1, one for each chunk, found 2"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused(change, text):
    plan = make_staged_plan(**TWO)
    p = plan.pipeline
    first, second = p.stages
    if "stages" in change:
        change = {"stages": (first, dataclasses.replace(second, weight_s=2 * second.backward_s + 1.0))}
    elif "modules" in change:
        change = {"stages": (dataclasses.replace(first, modules=("a", "b")), second)}
    with pytest.raises(PlanError) as error:
        check_plan(dataclasses.replace(plan, pipeline=dataclasses.replace(p, **change)))
    assert text in str(error.value)
