"""A replayed step: its parts add up, it agrees with what the solver added, and it becomes a trace that viewers open."""

import json
from dataclasses import replace

import pytest

from autopar.cost.simulate import PHASES, list_ran, simulate_plan
from autopar.cost.streams import Role
from autopar.graph.node import Phase
from autopar.view import chrome_trace
from autopar.view.chrome_trace import save_trace, trace_events
from autopar.view.lines import print_text
from autopar.view.simulation_terminal import print_simulation, simulation_to_json
from tests.view.staged_plans import make_staged_plan

ASKED = [
    {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "1f1b"},
    {"pp": 4, "microbatches": 8, "schedule": "gpipe"},
    {"pp": 2, "tp": 2, "vpp": 2, "microbatches": 4},
    {"pp": 4, "microbatches": 8, "schedule": "zero-bubble"},
    {"pp": 2, "microbatches": 4, "schedule": "zbv"},
    {"dp": 4, "microbatches": 2},
]


@pytest.mark.parametrize("words", ASKED, ids=lambda w: "-".join(f"{k}{v}" for k, v in w.items()))
def test_the_parts_add_up_and_the_step_is_the_solvers(words):
    plan = make_staged_plan("cpu:4", **words)
    found = simulate_plan(plan)
    assert sum(p.seconds for p in found.parts) == pytest.approx(found.step_s, rel=1e-9)
    assert found.step_s == pytest.approx(plan.cost.step_s, rel=1e-6)  # on cpu nothing hides: both are sums
    assert found.planned_s == plan.cost.step_s
    for stage in range(plan.num_stages):
        mine = [a for a in found.actions if a.stage == stage]
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in zip(mine, mine[1:]))
        assert sum(a.phase is Phase.FORWARD for a in mine) == plan.num_microbatches * (plan.pipeline.chunks if plan.pipeline else 1)


def test_what_hides_is_replayed():
    """The same plan where collectives may run beside compute is faster, and not below its compute."""
    plan = make_staged_plan("cpu:4", **ASKED[0])
    slow = simulate_plan(plan)
    fast = simulate_plan(replace(plan, cluster=replace(plan.cluster, exposed_share=0.0)))
    compute = sum(p.seconds for p in slow.parts if p.group in ("compute", "update"))
    assert compute <= fast.step_s <= slow.step_s


@pytest.mark.parametrize("words", [{"dp": 2, "tp": 2, "zero": 2, "microbatches": 4}, {"dp": 4, "zero": 3, "microbatches": 2}, {"dp": 2, "pp": 2, "zero": 3, "microbatches": 4}])
def test_a_link_carries_one_thing_at_a_time(words):
    """No step is shorter than what is sent along one axis, however many turns; and no row of the trace has two things at once."""
    plan = make_staged_plan("cpu:4", **words)
    found = simulate_plan(replace(plan, cluster=replace(plan.cluster, exposed_share=0.0)))
    stages, rows = {t.name: t.stage for t in plan.tensors}, {}
    for event in trace_events(found, "blocks")["traceEvents"]:
        if event["ph"] == "X" and event["tid"] > 1:
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"] * 1e-6, event["dur"] * 1e-6))
    for stage in range(plan.num_stages):
        sent = sum(c.seconds for c in plan.comms if c.axis == "dp" and c.kind not in ("slice", "keep") and stages[c.value] == stage)
        assert 0 < sent <= found.step_s
        drawn = max((sum(s for _, s in spans) for (pid, _), spans in rows.items() if pid == stage), default=0.0)
        assert drawn <= found.step_s * (1 + 1e-9)
    for spans in rows.values():
        spans.sort()
        assert all(a + s <= b + 1e-9 for (a, s), (b, _) in zip(spans, spans[1:]))


@pytest.mark.parametrize("words", [*ASKED, {"dp": 4, "zero": 3, "microbatches": 1}], ids=lambda w: "-".join(f"{k}{v}" for k, v in w.items()))
def test_memory_over_time_reaches_the_peak_that_is_printed(words):
    """In every schedule, and ends with what stays."""
    plan = make_staged_plan("cpu:4", **words)
    found = simulate_plan(plan)
    for stage in range(plan.num_stages):
        rows = [h for h in found.memory if h.stage == stage]
        assert max(h.bytes for h in rows) == pytest.approx(plan.cost.peak_bytes[stage], rel=1e-3)
        if plan.num_microbatches > 1:
            assert rows[-1].bytes == plan.cost.state_bytes[stage]
        assert [h.time_s for h in rows] == sorted(h.time_s for h in rows)


def test_memory_over_time_knows_the_update_behind_the_turns():
    """Of one stage: each turn holds what its passes do, the update node by node what its moments say."""
    plan = make_staged_plan("cpu:4", dp=4, zero=3, microbatches=2)
    found = simulate_plan(plan)
    begins = {action.name: action.start_s for action in found.actions}
    update = [moment.bytes for moment in plan.cost.moments if moment.phase is Phase.UPDATE]
    late = [held.bytes for held in found.memory if held.time_s >= begins["update"]]
    assert update and late == [*update, plan.cost.state_bytes[0]]
    for action in (action for action in found.actions if action.phase in (Phase.FORWARD, Phase.BACKWARD)):
        most = max(moment.bytes for moment in plan.cost.moments if moment.phase is action.phase)
        assert [held.bytes for held in found.memory if held.time_s == action.start_s][-1] == most


def test_the_trace_has_every_action_in_its_place(tmp_path):
    plan = make_staged_plan("cpu:4", **ASKED[0])
    found = simulate_plan(plan)
    assert save_trace(found, "blocks", tmp_path / "trace.json") == ""
    document = json.loads((tmp_path / "trace.json").read_text())
    assert document == json.loads(json.dumps(trace_events(found, "blocks")))
    spans = [e for e in document["traceEvents"] if e["ph"] == "X"]
    actions = [e for e in spans if e["tid"] == 0]
    assert len(actions) == len(found.actions)
    assert max(e["ts"] + e["dur"] for e in actions) == pytest.approx(found.step_s * 1e6)
    for piece in (e for e in spans if e["tid"] == 1):
        assert any(a["pid"] == piece["pid"] and a["ts"] - 1e-3 <= piece["ts"] and piece["ts"] + piece["dur"] <= a["ts"] + a["dur"] + 1e-3 for a in actions)
    counters = [e for e in document["traceEvents"] if e["ph"] == "C"]
    assert {e["pid"] for e in counters} == {0, 1}
    assert max(e["args"]["bytes"] for e in counters) <= max(plan.cost.peak_bytes)
    assert not list(tmp_path.glob("*.part"))


def test_a_long_trace_says_what_it_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome_trace, "MOST_EVENTS", 10)
    found = simulate_plan(make_staged_plan("cpu:4", **ASKED[0]))
    said = save_trace(found, "blocks", tmp_path / "trace.json")
    other = json.loads((tmp_path / "trace.json").read_text())["otherData"]
    assert said.startswith(f"{other['actions_drawn_in_pieces']} of {len(found.actions)} actions are drawn with what runs in them")
    assert 0 < other["actions_drawn_in_pieces"] < len(found.actions)


@pytest.mark.parametrize("words", ASKED, ids=lambda w: "-".join(f"{k}{v}" for k, v in w.items()))
def test_an_action_draws_its_own_chunk_and_its_own_half_of_the_backward(words):
    """All that a stage runs is drawn once a microbatch: each piece in one of its chunks, of blocks that no other chunk has, the weights' gradients in `W` where that is an action."""
    plan = make_staged_plan("cpu:4", **words)
    found = simulate_plan(plan)
    blocks = {node.name: node.path.split(".")[:2] for node in plan.nodes}
    weights = {node.name for node in plan.nodes if "linear_weight_grad" in node.op}
    drawn: dict = {}
    for action in found.actions:
        if action.place is not None and action.name.endswith("0"):
            drawn.setdefault((action.stage, action.phase), {})[action.name] = {ran.piece.name for ran in list_ran(found, action)}
    for (stage, phase), rows in drawn.items():
        everything = {ran.piece.name for ran in found.stages[stage].passes[PHASES.index(phase)].ran}
        assert sum(map(len, rows.values())) == len(everything) and set().union(*rows.values()) == everything
        chunks: dict = {}
        for name, pieces in rows.items():
            chunks.setdefault(name.rstrip("0123456789").rstrip("FBW"), set()).update(tuple(blocks[p]) for p in pieces if p in blocks and blocks[p][0] == "blocks")
        assert sum(map(len, chunks.values())) == len(set().union(*chunks.values())), "a block is in one chunk"
        if phase is Phase.BACKWARD and any("W" in name for name in rows):
            assert all("W" in name for name, pieces in rows.items() if pieces & weights)
    events = [e for e in trace_events(found, "blocks")["traceEvents"] if e["ph"] == "X"]
    assert {e["name"] for e in events} >= {ran.piece.name for s in found.stages for one in s.passes for ran in one.ran if ran.end_s > ran.start_s and ran.piece.role is Role.COMPUTE}
    for stage in range(plan.num_stages):
        for row in (0, 1):
            spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if (e["pid"], e["tid"]) == (stage, row))
            assert all(a[1] <= b[0] + 1e-3 for a, b in zip(spans, spans[1:]))


def test_the_text_says_where_the_step_goes():
    plan = make_staged_plan("cpu:4", **ASKED[0])
    found = simulate_plan(plan)
    for width in (60, 80, 120):
        text = print_text(lambda console: print_simulation(plan, found, console), width)
        assert all(len(line) <= width for line in text.splitlines())
        for word in ("one step, replayed", "matmul", "bubble", "waiting for other stages", "optimizer"):
            assert word in text
    data = simulation_to_json(plan, found)
    assert json.loads(json.dumps(data)) == data
    assert data["mfu"] == pytest.approx(plan.cost.mfu * found.planned_s / found.step_s)
    assert sum(p["seconds"] for p in data["parts"]) == pytest.approx(data["step_s"])


@pytest.mark.parametrize("words, late", [({"dp": 4, "zero": 0, "microbatches": 1}, "all_reduce along dp of gradients, late"), ({"dp": 4, "zero": 2, "microbatches": 2}, "reduce_scatter along dp of gradients, late")])
def test_what_trails_is_told_by_its_collective_and_axis(words, late):
    plan = make_staged_plan("cpu:4", **words)
    found = simulate_plan(replace(plan, cluster=replace(plan.cluster, exposed_share=0.0), comms=tuple(replace(c, seconds=100 * c.seconds) for c in plan.comms)))
    parts = {p.what: p.seconds for p in found.parts if p.group == "communication"}
    assert parts[late] > 0.5 * sum(parts.values()) and not any("trail" in what for what in parts)
    assert sum(p.seconds for p in found.parts) == pytest.approx(found.step_s, rel=1e-9)
