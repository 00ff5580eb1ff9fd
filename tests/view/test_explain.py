"""What `explain` says of a plan: its peak adds up and is drawn, a name is found as people type it and told from the plan."""

import dataclasses
import json
from pathlib import Path

import pytest

from autopar.errors import OptionsError
from autopar.graph.mesh import Mesh
from autopar.graph.node import Phase
from autopar.graph.plan import Holder, Moment
from autopar.view.explain_memory import explain_memory
from autopar.view.explain_name import explain_name
from autopar.view.memory_chart import draw_chart, holder_letters
from autopar.view.memory_terminal import peak_text, peak_to_json
from autopar.view.name_terminal import names_text, names_to_json

from .synthetic_plans import make_plan

PLAN = make_plan(num_layers=12, hidden=768, seq=1024, memory_bytes=16 << 30)
FLAT = make_plan(mesh=Mesh(()))
PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


# -- the peak ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, FLAT, make_plan(folded=False)], ids=["mesh", "one-rank", "unfolded"])
def test_rows_sum_to_holders_and_holders_to_the_peak(plan):
    report = explain_memory(plan)
    assert {h.name: h.bytes for h in report.holders} == {h.name: h.bytes for h in plan.cost.holders}
    for holder in report.holders:
        assert sum(row.bytes * len(row.tensors) for row in holder.rows) == holder.bytes
        sizes = [row.bytes * len(row.tensors) for row in holder.rows]
        assert sizes == sorted(sizes, reverse=True)
    assert sum(h.bytes for h in report.holders) == report.bytes == max(plan.cost.peak_bytes)
    assert sum(len(row.tensors) for h in report.holders for row in h.rows) == len(plan.peak.tensors)


def test_equal_blocks_are_one_row_with_its_reason():
    rows = {row.name: row for holder in explain_memory(PLAN).holders for row in holder.rows}
    gelu = rows["gelu of transformer.h.[0..11].mlp"]
    assert len(gelu.tensors) == 12 and gelu.split == "S0 on a, S2 on b" and gelu.local_shape == (4, 1024, 1536)
    assert gelu.made_by == "gelu (forward, gpt.py:43)" and gelu.why == f"made by {gelu.made_by}; last read by {gelu.last_read}"
    weight = rows["transformer.h.[0..11].mlp.c_fc.weight"]
    assert len(weight.tensors) == 12 and weight.why == "stays from step to step" and not weight.made_by
    assert rows["tokens"].why == "of the batch, held the whole step"


@pytest.mark.parametrize("width", [60, 80, 140])
def test_no_line_is_too_long_and_no_name_is_cut(width):
    text = peak_text(explain_memory(PLAN), width)
    assert max(map(len, text.splitlines())) <= width
    assert "transformer.h.[0..11].mlp.c_fc.weight" in text and "…" not in text
    for word in ("peak  2.18 GiB of 16.0 GiB, 13.6 %: 13.8 GiB left", "a=activations", "|forward", "|update", "last read by"):
        assert word in text


@pytest.mark.parametrize("width", [60, 140])
def test_the_text_is_stable(width, golden):
    golden(f"memory_text_{width}", peak_text(explain_memory(PLAN), width))


def test_too_much_is_said_to_be_too_much():
    small = dataclasses.replace(PLAN, cluster=dataclasses.replace(PLAN.cluster, memory_bytes=1 << 30))
    assert "peak  2.18 GiB of 1.00 GiB, 218 %: 1.18 GiB too much" in peak_text(explain_memory(small))


def test_a_plan_that_does_not_say_which_tensors():
    text = peak_text(explain_memory(dataclasses.replace(PLAN, peak=None)))
    assert "the plan does not say which tensors these are: make it again with `autopar plan`" in text and "activations  1.92 GiB" in text


def test_the_chart_shows_each_phase_and_the_peak():
    def moment(phase, kept, made):
        return Moment("n", phase, kept + made, (Holder("parameters", kept), Holder("activations", made)))

    rising = [moment(Phase.FORWARD, 500, 50 * k) for k in range(11)]
    falling = [moment(Phase.BACKWARD, 500, 50 * k) for k in range(9, -1, -1)]
    lines = draw_chart(
        [*rising, *falling, moment(Phase.UPDATE, 500, 0)], {"parameters": "p", "activations": "a"}, {"forward": 1.0, "backward": 1.0}, 60
    )
    assert {len(line) for line in lines} <= set(range(61))
    assert (
        lines[0].startswith("1000 B |")
        and lines[-2].index("^") - 8 in (19, 20)
        and lines[-1].split() == ["|forward", "|backward", "|update"]
    )
    body = [line.partition("|")[2] for line in lines[:10]]
    assert all(set(line.rstrip()) == {"p"} for line in body[5:])  # half of the peak is parameters, at every moment
    assert [line.count("a") for line in body[:5]] == sorted(line.count("a") for line in body[:5]) and body[0].count("a") >= 1
    assert draw_chart([], {}, {}, 80) == [] and draw_chart(rising, {"parameters": "p"}, {}, 12) == []


def test_letters_differ():
    names = ("reserve", "batch", "buffers", "parameters", "optimizer", "gradients", "activations", "gathered", "temporaries")
    letters = holder_letters(names)
    assert list(letters) == list(names) and len(set(letters.values())) == len(names)
    assert [letters[name] for name in names[3:7]] == ["p", "o", "g", "a"] and letters["temporaries"] == "t"


def test_json_is_plain_and_documented():
    data = json.loads(json.dumps(peak_to_json(explain_memory(PLAN)), allow_nan=False))
    assert data["room_bytes"] == data["limit_bytes"] - data["bytes"] and data["moments"][data["position"]]["bytes"] == data["bytes"]
    keys = {*data, *data["holders"][0], *data["holders"][0]["rows"][0]} - {"format", "model", "cluster"}
    assert [key for key in sorted(keys) if f"`{key}`" not in PAGE] == []


# -- one name ------------------------------------------------------------------------------------------------------------------------


def test_a_parameter():
    (report,) = explain_name(PLAN, "transformer.h.3.mlp.c_fc.weight")
    assert report.sort == "parameter" and report.about == (("is", "float32 3072x768"),)
    assert [(c.what, c.split) for c in report.chosen] == [
        ("stored", "S0 on a,b"),
        ("gradient", "S0 on a,b"),
        ("optimizer state", "S0 on a,b"),
    ]
    assert {n.role for n in report.neighbours} == {"read by"} and "forward" in {n.phase for n in report.neighbours}
    assert {(c.kind, c.phase) for c in report.comms} == {
        ("all_gather", "forward"),
        ("all_gather", "backward"),
        ("reduce_scatter", "update"),
    }
    held = sum(
        row.bytes
        for row in PLAN.peak.tensors
        if row.tensor.partition(":")[2] in (f"{report.name}@0", report.name) or row.tensor == f"{report.name}@0"
    )
    assert report.peak_bytes == held > 0


def test_an_op_with_its_offers_neighbours_and_communication():
    node = next(n for n in PLAN.nodes if n.path == "transformer.h.3.mlp.c_proj" and n.op == "autopar.linear")
    (report,) = explain_name(PLAN, node.name)
    assert report.sort == "op" and report.chosen[0].split == "b on a, i on b" and report.seconds == node.seconds
    assert [(o.strategy, o.seconds) for o in report.offers] == [
        ("R", node.alternatives[0].seconds),
        ("i on b", node.alternatives[1].seconds),
    ]
    assert report.refused == node.refused and report.reason == node.reason
    assert [n.tensor for n in report.neighbours if n.role == "reads"] == list(node.inputs)
    assert ("all_reduce", "b") in {(c.kind, c.axis) for c in report.comms}
    text = names_text((report,), 100)
    for word in (f"op {node.name}", "refused: n of size 3 does not divide by 2", "all_reduce on b (forward)", "reads gelu_", "holds "):
        assert word in text


def test_a_tensor():
    (report,) = explain_name(PLAN, "tokens")
    assert report.sort == "tensor" and [(c.what, c.split) for c in report.chosen] == [("enters", "S0 on a")]
    assert [n.op for n in report.neighbours] == ["embedding", "embedding_backward"][: len(report.neighbours)]


def test_a_state_needs_no_version():
    name = next(t.name for t in PLAN.tensors if t.name.startswith("exp_avg:") and t.name.endswith("wte.weight@0"))
    for word in (name, name[:-2]):
        assert explain_name(PLAN, word)[0].name == name
    assert explain_name(PLAN, "exp_avg:*wte.weight")[0].name == name
    with pytest.raises(OptionsError, match="near: exp_avg:transformer.wte.weight"):
        explain_name(PLAN, name[:-2].replace("weight", "wieght"))


def test_a_pattern_folds_what_is_alike():
    (report,) = explain_name(PLAN, "transformer.h.*.mlp.c_fc.weight")
    assert report.name == "transformer.h.[0..11].mlp.c_fc.weight" and len(report.members) == 12
    (ops,) = explain_name(PLAN, "gelu_[0-9]*")
    assert len(ops.members) == 12 and "gelu_9 and its like in transformer.h.[0..11].mlp  x12" in names_text((ops,), 140)
    assert "more of" in names_text(explain_name(PLAN, "*"), 100)


def test_the_end_of_a_name_is_enough_where_one_has_it():
    assert explain_name(PLAN, "wte.weight")[0].name == "transformer.wte.weight"
    with pytest.raises(OptionsError) as error:
        explain_name(PLAN, "c_fc.weight")
    assert (
        str(error.value)
        == "'c_fc.weight': 12 names end so: transformer.h.[0..11].mlp.c_fc.weight; give one of them whole, or '*c_fc.weight' for all"
    )


@pytest.mark.parametrize(
    ("word", "near"), [("transformer.h.3.mlp.c_fc.wieght", "transformer.h.3.mlp.c_fc.weight"), ("lmhead.weight", "lm_head.weight")]
)
def test_near_names_are_suggested(word, near):
    with pytest.raises(OptionsError) as error:
        explain_name(PLAN, word)
    assert f"{word!r}: the plan of GPT has no parameter, tensor or op of this name; near: " in str(error.value) and near in str(error.value)


def test_nothing_near():
    with pytest.raises(OptionsError, match="has no parameter, tensor or op of this name; `autopar show` and the page"):
        explain_name(PLAN, "zzz*")


@pytest.mark.parametrize("width", [60, 80, 140])
def test_names_are_whole_at_every_width(width):
    text = names_text(explain_name(PLAN, "transformer.*"), width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text


def test_names_as_json():
    data = json.loads(json.dumps(names_to_json(explain_name(PLAN, "gelu_*")), allow_nan=False))
    assert [key for key in data["found"][0] if f"`{key}`" not in PAGE] == []
