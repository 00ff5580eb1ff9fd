"""A prediction beside a run: every row with its own figure, and notes where the two are not alike."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autopar.cost.against import Hidden, compare_run, measure_hidden
from autopar.cost.simulate import PHASES, simulate_plan
from autopar.cost.streams import Role
from autopar.errors import RunError
from autopar.graph.machine import Machine
from autopar.graph.mesh import num_ranks
from autopar.graph.plan import Holder
from autopar.graph.plan_json import plan_to_json
from autopar.graph.run import ActionTimes, CommTimes, RankRun, Run, plan_key
from autopar.graph.schedules.known import splits_backward
from autopar.view.against_terminal import comparison_to_json, print_comparison
from autopar.view.lines import print_text
from tests.view.staged_plans import make_staged_plan

SLOWER = (1.0, 2.0, 2.0, 2.0, 9.0)  # of each timed step against the prediction; the median is 2
HERE = Machine("cpu", "AMD EPYC", 2, "2.13.0", "3.11.2")


def measured_plan(**words):
    plan = make_staged_plan("cpu:4", **words)
    return replace(plan, cluster=replace(plan.cluster, device="cpu", source="measured 2026-01-01 on AMD EPYC with 2 cores, torch 2.13.0, 4 at once"))


def made_up_run(plan, num_ranks=4, slower=SLOWER):
    """A run that takes, step by step, so many times what is predicted."""
    simulation = simulate_plan(plan)
    turns = {phase: plan.num_microbatches if phase.value in ("forward", "backward") else 1 for phase in PHASES}
    seconds = {phase.value: one.seconds for phase, one in zip(PHASES, simulation.stages[0].passes)}
    trailing = simulation.stages[0].passes[2].left_s
    seconds["backward"] += trailing
    seconds["update"] -= trailing
    actions = tuple(
        ActionTimes(phase.value, turn, tuple(s * seconds[phase.value] for s in slower))
        for phase in PHASES
        if seconds[phase.value]
        for turn in range(turns[phase])
    )
    comms = tuple(
        CommTimes(c.phase.value, c.kind, c.axis, 1, c.bytes, tuple(s * c.seconds for s in slower)) for c in plan.comms if c.kind not in ("slice", "keep")
    )
    rank = RankRun(0, (1.0, 1.0), tuple(s * simulation.step_s for s in slower), actions, comms, plan.cost.state_bytes[0], 64, plan.cost.peak_bytes[0] + plan.cost.under_way_bytes[0])
    ranks = tuple(replace(rank, rank=k, peak_bytes=rank.peak_bytes + 10 * k) for k in range(num_ranks))
    return Run("2026-01-02T03:04:05+00:00", "0.1", HERE, plan.model.name, plan_key(plan_to_json(plan)), "dp=4", ranks)


@pytest.mark.parametrize("words", [{"dp": 4}, {"dp": 4, "microbatches": 2}, {"tp": 4}], ids=str)
def test_a_run_that_takes_twice_as_long_is_half_predicted(words):
    plan = measured_plan(**words)
    found = compare_run(plan, simulate_plan(plan), made_up_run(plan))
    assert found.notes == () and found.num_steps == 5
    times = [row for row in found.rows if row.unit == "s"]
    assert {row.group for row in times} == {"step", "action", "compute", "communication"}
    for row in times:
        if row.what == "outside of them":
            assert row.predicted is None and row.measured.median == pytest.approx(0.0, abs=1e-12)
            continue
        assert row.error == pytest.approx(-0.5), row
        assert row.measured.median == pytest.approx(2 * row.predicted) and row.measured.count == 20
        assert row.measured.low <= row.measured.median <= row.measured.high < 9 * row.predicted
    by_what = {(row.group, row.what): row for row in found.rows}
    whole = [row for row in times if not row.part]
    assert by_what["step", "step"].predicted == pytest.approx(sum(row.predicted for row in whole if row.group in ("compute", "communication")))
    assert by_what["step", "step"].predicted == pytest.approx(sum(row.predicted or 0.0 for row in whole if row.group == "action"))
    turns = [row.what for row in times if row.group == "action" and row.part]
    assert turns == (["microbatch 0", "microbatch 1"] * 2 if "microbatches" in words else [])
    states, peak = (row for row in found.rows if row.unit == "bytes")
    assert states.error == 0.0 and states.measured.low == states.measured.high
    assert (peak.measured.low, peak.measured.high) == (peak.predicted, peak.predicted + 30)
    assert peak.measured.median == peak.predicted + 15 and -0.01 < peak.error < 0


def test_many_microbatches_share_a_row(monkeypatch):
    from autopar.cost import against

    monkeypatch.setattr(against, "MAX_TURNS", 1)
    plan = measured_plan(dp=4, microbatches=2)
    rows = compare_run(plan, simulate_plan(plan), made_up_run(plan)).rows
    parts = [row for row in rows if row.group == "action" and row.part]
    assert [row.what for row in parts] == ["each of 2 microbatches"] * 2 and all(row.error == pytest.approx(-0.5) for row in parts)


def test_compute_is_what_is_no_collective():
    plan = measured_plan(dp=4)
    found = {(row.group, row.what): row for row in compare_run(plan, simulate_plan(plan), made_up_run(plan)).rows}
    passes = simulate_plan(plan).stages[0].passes
    for phase, one in zip(PHASES, passes):
        if one.seconds:
            assert found["compute", phase.value].predicted == pytest.approx(sum(r.piece.seconds for r in one.ran if r.piece.role is Role.COMPUTE))
    kinds = {(c.kind, c.axis) for c in plan.comms} - {(c.kind, c.axis) for c in plan.comms if c.kind in ("slice", "keep")}
    for kind, axis in kinds:
        row = found["communication", f"{kind} along {axis}"]
        assert row.predicted == pytest.approx(sum(c.seconds for c in plan.comms if (c.kind, c.axis) == (kind, axis)))


def test_what_the_runtime_cannot_tell_is_left_out():
    """A program in one piece has no actions; a collective that nobody predicted has a row all the same; a short run has no peak."""
    plan = measured_plan(dp=4)
    run = made_up_run(plan)
    odd = CommTimes("", "all_to_all", "dp", 1, 8, (0.25,) * 5)
    run = replace(run, ranks=tuple(replace(r, actions=(), comms=(*r.comms, odd), peak_bytes=None) for r in run.ranks))
    found = {(row.group, row.what): row for row in compare_run(plan, simulate_plan(plan), run).rows}
    assert not any(group == "action" for group, _ in found)
    assert found["compute", "forward"].measured is None and found["compute", "forward"].error is None
    assert found["communication", "all_to_all along dp"].predicted == 0.0 and found["communication", "all_to_all along dp"].error == -1.0
    assert found["memory", "peak memory"].measured is None
    text = print_text(lambda console: print_comparison(plan, run, compare_run(plan, simulate_plan(plan), run), console), 100)
    assert "all_to_all along dp" in text and "microbatch" not in text


def test_what_hides_stands_apart():
    plan = measured_plan(dp=4)
    plan = replace(plan, cluster=replace(plan.cluster, exposed_share=0.0))
    simulation = simulate_plan(plan)
    found = {row.what: row for row in compare_run(plan, simulation, made_up_run(plan)).rows}
    hidden = found["of it hidden behind compute"]
    assert hidden.predicted > 0 and hidden.measured is None and hidden.error is None
    assert found["compute"].predicted + found["communication"].predicted - hidden.predicted == pytest.approx(simulation.step_s)


def started_run(plan, waited=0.25, beside=1.75):
    """Of each collective the rank stands still for so many times what is predicted, where it is waited for and a little where it is started; so much more it is under way."""
    run = made_up_run(plan)
    comms = []
    for c in run.ranks[0].comms:
        none = (0.0,) * len(c.seconds)
        comms.append(replace(c, seconds=tuple(0.01 * s for s in c.seconds), flight_s=tuple((waited + beside) * s for s in c.seconds)))
        comms.append(replace(c, phase="wait", calls=0, bytes=0, seconds=tuple((waited - 0.01) * s for s in c.seconds), flight_s=none))
    return replace(run, ranks=tuple(replace(rank, comms=tuple(comms)) for rank in run.ranks))


@pytest.mark.parametrize("exposed", [0.0, 1.0], ids=["hides", "hides nothing"])
def test_what_was_hidden_is_measured(exposed):
    """Predicted and measured rows of a kind are all that it takes: 2 of `SLOWER` times 0.25 standing still and 1.75 under way beside compute."""
    plan = measured_plan(dp=4)
    plan = replace(plan, cluster=replace(plan.cluster, exposed_share=exposed))
    run = started_run(plan)
    found = {row.what: row for row in compare_run(plan, simulate_plan(plan), run).rows if row.group == "communication"}
    hidden, whole = found.pop("of it hidden behind compute"), found["communication"]
    assert len(found) > 1 and all(row.measured.median == pytest.approx(4 * row.predicted) for row in found.values())
    assert hidden.part and hidden.measured.count == 20 and hidden.measured.median == pytest.approx(1.75 / 2.0 * whole.measured.median)
    assert hidden.predicted == 0.0 if exposed else hidden.predicted > 0
    said = measure_hidden(run)
    assert (said.seconds, said.hidden_s) == (whole.measured.median, hidden.measured.median)


def test_what_was_hidden_is_never_less_than_nothing():
    """A record that was made by hand, or by an earlier version, may say that a rank stood still for longer than messages were under way."""
    plan = measured_plan(dp=4)
    run = started_run(plan, waited=0.25, beside=-0.2)
    found = {row.what: row for row in compare_run(plan, simulate_plan(plan), run).rows}
    assert found["of it hidden behind compute"].measured.high == 0.0 and measure_hidden(run).hidden_s == 0.0


def test_what_nobody_can_tell_is_the_most():
    plan = measured_plan(dp=4)
    run = made_up_run(plan)
    assert measure_hidden(run).hidden_s == 0.0 and not measure_hidden(run).most and measure_hidden(run).seconds > 0
    (row,) = {c.kind: c for c in run.ranks[0].comms if c.kind == "all_reduce"}.values()
    row = replace(row, flight_s=tuple(2 * s for s in row.seconds))

    def said(row, device="cpu"):
        return measure_hidden(replace(run, machine=replace(HERE, device=device), ranks=tuple(replace(rank, comms=(row,)) for rank in run.ranks)))

    assert not said(row).most and said(row).hidden_s == pytest.approx(said(row).seconds / 2)
    assert not said(replace(row, kind="reduce_scatter")).most and said(row, "NVIDIA L4").most
    alone = replace(run, ranks=tuple(replace(rank, comms=()) for rank in run.ranks))
    assert measure_hidden(alone) == Hidden(0.0, 0.0, False) == measure_hidden(made_up_run(plan, slower=()))


def test_the_reserve_is_no_tensors():
    plan = measured_plan(dp=4)
    plan = replace(plan, cost=replace(plan.cost, holders=(*plan.cost.holders, Holder("reserve", 1000))))
    found = {row.what: row for row in compare_run(plan, simulate_plan(plan), made_up_run(plan)).rows}
    assert found["peak memory, without the reserve"].predicted == plan.cost.peak_bytes[0] + plan.cost.under_way_bytes[0] - 1000


def notes_of(plan, run):
    return compare_run(plan, simulate_plan(plan), run).notes


def of_steps(run, seconds):
    """The run with steps of so many seconds."""
    return replace(run, ranks=tuple(replace(rank, step_s=tuple(seconds for _ in rank.step_s)) for rank in run.ranks))


def test_a_run_of_something_else_is_said_to_be():
    plan = measured_plan(dp=4)
    run, key = made_up_run(plan), plan_key(plan_to_json(plan))
    mesh = " ".join(f"{a.name}={a.size}" for a in plan.assignment.mesh.axes)
    assert notes_of(plan, replace(run, plan="f" * 16, model="gpt", mesh="tp=4")) == (
        f"the run was of another plan ({'f' * 16}, of gpt on mesh tp=4), this is {key}, of blocks on mesh {mesh}",
    )
    assert notes_of(plan, replace(run, plan="")) == (f"the run was of a program without a plan beside it, this is {key}, of blocks on mesh {mesh}",)
    assert notes_of(plan, replace(run, ranks=run.ranks[:2])) == ("the run had 2 ranks, the plan has 4",)
    assert notes_of(plan, replace(run, machine=replace(HERE, cores=8))) == (
        f"the run was on another machine (AMD EPYC with 8 cores) than the profile: {plan.cluster.source}",
    )
    assert notes_of(plan, replace(run, machine=replace(HERE, device="NVIDIA L4"))) == ("the run was on another device: NVIDIA L4; the plan is for cpu",)
    plain = replace(plan, cluster=replace(plan.cluster, source="default"))
    assert notes_of(plain, made_up_run(plain)) == (
        "no profile of the machine that ran (AMD EPYC with 2 cores) is in the prediction: measure it with `autopar profile`, then plan again",
    )


@pytest.mark.parametrize("found, alike", [("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-40GB", False), ("cpu", False)])
def test_a_gpu_is_known_by_its_name(found, alike):
    plan = measured_plan(dp=4)
    plan = replace(plan, cluster=replace(plan.cluster, device="H100-80GB", source=f"measured 2026-01-01 on {found}, torch 2.13.0"))
    run = of_steps(made_up_run(plan), simulate_plan(plan).step_s)
    said = notes_of(plan, replace(run, machine=replace(HERE, device=found)))
    assert (said == ()) == alike and all("the run was on another device" in note and note.endswith("the plan is for H100-80GB") for note in said)


def test_nothing_to_compare_with():
    plan = measured_plan(dp=4)
    run = made_up_run(plan, slower=())
    with pytest.raises(RunError, match=r"run.json: no step was timed: the first ones warm up, found 2 of them and no other; run more: autopar run DIR --steps 10"):
        compare_run(plan, simulate_plan(plan), run, "run.json")
    staged = measured_plan(pp=2, dp=2, microbatches=4)
    alone = replace(made_up_run(plan), ranks=made_up_run(plan).ranks[:3])
    with pytest.raises(RunError, match="run.json: expected 4 ranks, 2 for each of 2 stages, found 3: the run was of a program of another plan"):
        compare_run(staged, simulate_plan(staged), alone, "run.json")


STAGED = (
    {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "1f1b"},
    {"pp": 4, "microbatches": 4, "schedule": "zero-bubble"},
    {"pp": 2, "tp": 2, "microbatches": 4, "vpp": 2},
    {"pp": 2, "tp": 2, "microbatches": 4, "schedule": "zbv"},
)


def made_up_staged_run(plan, slower=SLOWER):
    """A run of stages that takes, step by step, so many times what is predicted; what a stage waits is in its receives, a quarter at the loss."""
    simulation, chunks = simulate_plan(plan), plan.pipeline.chunks
    parts = ("_input", "_weight") if splits_backward(plan.pipeline.kind) else ("",)
    size = num_ranks(plan.assignment.mesh)
    ranks = []
    for stage, found in enumerate(simulation.stages):
        busy = {a.name: a.end_s - a.start_s for a in simulation.actions if a.stage == stage}
        idle = simulation.step_s - sum(busy.values())
        actions, comms = [], []
        for phase, one in zip(PHASES, found.passes):
            looped = phase.value in ("forward", "backward")
            count = plan.num_microbatches if looped else 1
            split = parts if phase.value == "backward" else ("",)
            names = [f"{phase.value}{part}{f'_{c}' if chunks > 1 and looped else ''}" for part in split for c in range(chunks if looped else 1)]
            trailing = {"backward": found.passes[2].left_s, "update": -found.passes[2].left_s}.get(phase.value, 0.0)
            waits = 0.75 * idle / count if phase.value == "forward" else 0.0
            whole = one.seconds + trailing / count + waits
            received = count * (waits + sum(r.piece.seconds for r in one.ran if r.piece.name.startswith("receive")))
            if not whole:
                continue
            actions += [ActionTimes(name, turn, tuple(s * whole / len(names) for s in slower)) for name in names for turn in range(count)]
            comms.append(CommTimes(names[0], "receive", "pp", count, 8, tuple(s * received for s in slower)))
            rows = {c.name: c for c in plan.comms if c.kind not in ("slice", "keep")}
            ran = [(rows[r.piece.name], count * r.piece.seconds) for r in one.ran if r.piece.name in rows]
            comms += [CommTimes(names[-1], c.kind, c.axis, count, c.bytes, tuple(s * seconds for s in slower)) for c, seconds in ran]
        comms.append(CommTimes("", "broadcast", "pp", 1, 4, tuple(s * 0.25 * idle for s in slower)))
        step = tuple(s * simulation.step_s for s in slower)
        mine = RankRun(0, (1.0, 1.0), step, tuple(actions), tuple(comms), plan.cost.state_bytes[stage], 64, plan.cost.peak_bytes[stage] + plan.cost.under_way_bytes[stage])
        ranks += [replace(mine, rank=stage * size + k) for k in range(size)]
    return Run("2026-01-02T03:04:05+00:00", "0.1", HERE, plan.model.name, plan_key(plan_to_json(plan)), "pp=2 dp=2", tuple(ranks))


@pytest.mark.parametrize("words", STAGED, ids=lambda words: words.get("schedule", "interleaved"))
def test_each_stage_has_its_rows(words):
    plan = measured_plan(**words)
    simulation = simulate_plan(plan)
    found = compare_run(plan, simulation, made_up_staged_run(plan))
    assert found.notes == ()
    step, waiting, bubble, messages = (row for row in found.rows if row.stage is None)
    assert (step.what, waiting.what, bubble.what, messages.what) == ("step", "waiting for other stages", "bubble", "messages")
    assert step.error == pytest.approx(-0.5) and waiting.measured.count == 20
    assert waiting.predicted == pytest.approx(bubble.predicted + messages.predicted)
    assert bubble.predicted == pytest.approx(sum(p.seconds for p in simulation.parts if p.group == "bubble")) and bubble.measured is None
    for stage in range(plan.num_stages):
        mine = [row for row in found.rows if row.stage == stage]
        assert {row.group for row in mine} >= {"action", "compute", "memory"}
        for row in mine:
            if row.what == "outside of them":
                assert row.predicted is None and row.measured.median == pytest.approx(0.0, abs=1e-12)
            else:
                assert row.error == pytest.approx(0.0 if row.unit == "bytes" else -0.5), row
        actions = {row.what: row for row in mine if row.group == "action"}
        assert sum(row.predicted for row in actions.values() if not row.part and row.predicted) == pytest.approx(simulation.step_s)
        assert {"forward", "backward", "each of 4 microbatches", "waiting for other stages"} <= set(actions)
        assert not any("pp" in row.what for row in mine if row.group == "communication")
        assert [row.predicted for row in mine if row.unit == "bytes"] == [plan.cost.state_bytes[stage], plan.cost.peak_bytes[stage] + plan.cost.under_way_bytes[stage]]


def test_the_text_of_stages_fits():
    plan = measured_plan(**STAGED[0])
    run = made_up_staged_run(plan)
    found = compare_run(plan, simulate_plan(plan), run)
    for width in (40, 60, 80, 120):
        text = print_text(lambda console: print_comparison(plan, run, found, console), width)
        assert all(len(line) <= width for line in text.splitlines())
        flat = " ".join(text.split())
        for word in ("Stage 0 ranks 0 to 1: ", "Stage 1 ranks 2 to 3: ", "waiting for other stages", "each of 4 microbatches", "stage 1: peak memory"):
            assert word in flat, (width, word)
    data = comparison_to_json(found)
    assert json.loads(json.dumps(data, allow_nan=False)) == data and [row["stage"] for row in data["rows"]] == [row.stage for row in found.rows]
    other = compare_run(plan, simulate_plan(plan), replace(run, plan="f" * 16))
    assert "on mesh pp=2 dp=2" in other.notes[0]


def test_the_text_fits_and_the_json_is_the_rows():
    plan = measured_plan(dp=4, microbatches=2)
    run = replace(made_up_run(plan), plan="f" * 16)
    found = compare_run(plan, simulate_plan(plan), run)
    for width in (40, 60, 80, 120):
        text = print_text(lambda console: print_comparison(plan, run, found, console), width)
        assert all(len(line) <= width for line in text.splitlines())
        flat = " ".join(text.split())
        for word in ("predicted and measured", "NOTE the run was of another plan", "microbatch 1", "-50.0%", "peak memory", "2026-01-02", "AMD EPYC"):
            assert word in flat, (width, word)
    data = comparison_to_json(found)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert [row["what"] for row in data["rows"]] == [row.what for row in found.rows] and data["num_steps"] == 5
    assert data["rows"][0]["measured"] == {"median": found.rows[0].measured.median, "low": found.rows[0].measured.low, "high": found.rows[0].measured.high, "count": 20}


@pytest.mark.parametrize(("device", "times", "told"), [("H100-80GB", 3.0, True), ("H100-80GB", 1.1, False), ("cpu", 3.0, False)])
def test_a_gpu_that_may_wait_for_its_host_is_told(device, times, told):
    plan = measured_plan(dp=4)
    plan = replace(plan, cluster=replace(plan.cluster, device=device))
    run = of_steps(made_up_run(plan), simulate_plan(plan).step_s * times)
    notes = [note for note in compare_run(plan, simulate_plan(plan), run).notes if "--cuda-graph" in note]
    assert bool(notes) is told and all(note.startswith(f"the step took {times:.1f} times") for note in notes)
