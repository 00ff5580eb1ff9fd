"""`autopar diff` and `autopar explain` on plans of the small model, as text, as JSON, and where the words are wrong."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def wide_file(model, tmp_path_factory):
    """The same step on four ranks of another cluster."""
    from autopar.cli.app import run_words

    path = tmp_path_factory.mktemp("wide") / "wide.json"
    assert run_words(["plan", f"{model}:build", "--cluster", "1x4xA100-80GB", "--precision", "fp32", "-o", str(path)]) == 0
    return path


def test_diff_of_two_clusters(call, call_json, plan_file, wide_file):
    code, out, err = call("diff", plan_file, wide_file)
    assert (code, err) == (0, "")
    assert (
        f"A  {plan_file}: build on cpu:2" in out.replace("\n", "")
        and "not the same cluster: 2 x cpu on 1 host | 4 x A100-80GB on 1 host" in out
    )
    code, data = call_json("diff", plan_file, wide_file)
    assert code == 0 and data["same_graph"] and not data["same"]
    for side, file, hidden, stages in zip("ab", (plan_file, wide_file), data["hidden_s"], data["num_stages"]):
        plan = json.loads(file.read_text())
        assert isclose(sum(row[f"seconds_{side}"] for row in data["comms"]) - hidden, plan["cost"]["exposed_comm_s"] * stages, abs_tol=1e-12)
        assert {h["what"]: h[side] for h in data["holders"] if h[side]} == {
            name: size for name, size in plan["cost"]["holders"].items() if size
        }


def test_diff_of_equal_plans_is_one_line(call, plan_file):
    code, out, _ = call("diff", plan_file, plan_file)
    assert code == 0 and out.startswith("the plans are the same: build on cpu:2, step ") and len(out.split("\n")) <= 3


def test_explain_memory(call, call_json, plan_file):
    code, out, err = call("explain", plan_file, "--memory")
    assert (code, err) == (0, "") and "build on cpu:2: memory of one device" in out and "Who holds it" in out
    code, data = call_json("explain", plan_file, "--memory")
    cost = json.loads(plan_file.read_text())["cost"]
    assert code == 0 and {h["name"]: h["bytes"] for h in data["holders"]} == cost["holders"]
    for holder in data["holders"]:
        if holder["name"] != "reserve":
            assert sum(row["bytes"] * len(row["tensors"]) for row in holder["rows"]) == holder["bytes"]


def test_explain_a_name(call, call_json, plan_file):
    code, out, err = call("explain", plan_file, "up.weight", "--quick")
    assert (code, err) == (0, "") and out.startswith("parameter up.weight") and "float32 32x8" in out and "read by linear " in out
    code, data = call_json("explain", plan_file, "*.bias", "--quick")
    assert code == 0 and {"up.bias", "down.bias"} <= {name for found in data["found"] for name in found["members"]}
    assert all(found["again"] is None and found["why_not"] == "" for found in data["found"])


def test_explain_solves_again_with_each_alternative(call, call_json, plan_file):
    code, out, err = call("explain", plan_file, "up.weight", "--time-limit", "5")
    assert code == 0 and "making build again from " in err and "solving again with " in err and "Traceback" not in err
    text = " ".join(out.split())
    assert "instead, all else chosen anew on mesh a=2 (the step now takes " in text
    code, data = call_json("explain", plan_file, "up.weight")
    again = data["found"][0]["again"]
    step = json.loads(plan_file.read_text())["cost"]["step_s"]
    assert code == 0 and again["step_s"] == pytest.approx(step, rel=1e-9) and again["mesh"] == "a=2" and again["priced"]
    for row in again["priced"]:
        assert f"{row['what']}: " in text and row["status"] == "fits"
        assert row["extra_s"] >= -(again["gap"] + 1e-9) * step
        assert row["difference"]["causes"] or row["extra_s"] == pytest.approx(0, abs=1e-9)
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    keys = {*again, *again["priced"][0], *again["priced"][0]["difference"]}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_explain_of_a_plan_whose_model_is_gone_shows_what_is_stored(call, plan_file, tmp_path):
    for source, text in (("", "the plan was made from Python objects"), ("/nowhere/net.py:build", "its model /nowhere/net.py:build is not there")):
        data = json.loads(plan_file.read_text())
        data["model"]["source"], data["checksum"] = source, ""
        path = tmp_path / "moved.json"
        path.write_text(json.dumps(data))
        code, out, _ = call("explain", path, "up.weight")
        told = "".join(out.split()).replace(f"{path}:", "")  # a long path may be broken anywhere
        assert code == 0 and f"alternatives were not solved with: {text}".replace(" ", "") in told and "float3232x8" in told


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["explain", "{plan}"], "OptionsError: explain: expected a NAME (a parameter, tensor or op; * for any part) or --memory, found neither"),
        (["explain", "{plan}", "up.weight", "--memory"], "or --memory, found both --memory and 'up.weight'"),
        (["explain", "{plan}", "up.wieght"], "OptionsError: 'up.wieght': the plan of build has no parameter, tensor or op of this name; near: up.weight"),
        (["explain", "{plan}", "up.weight", "--time-limit", "0"], "OptionsError: --time-limit: expected a positive number of seconds, found 0"),
        (["explain", "/nowhere/p.json", "--memory"], "PlanError: /nowhere/p.json: cannot be read: No such file or directory"),
        (["diff", "{plan}", "/nowhere/p.json"], "PlanError: /nowhere/p.json: cannot be read: No such file or directory"),
        (["diff", "{plan}"], "UsageError: Missing argument 'B'. `autopar diff --help` shows what it takes."),
    ],
)  # fmt: skip
def test_wrong_words(call, plan_file, words, text):
    code, out, err = call(*(word.format(plan=plan_file) for word in words))
    assert (code, out) == (2, "") and text in err and "Traceback" not in err
