"""`autopar diff` and `autopar explain` on plans of the small model, as text, as JSON, and where the words are wrong."""

from __future__ import annotations

import json
from math import isclose

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
    for side, file, hidden in zip("ab", (plan_file, wide_file), data["hidden_s"]):
        plan = json.loads(file.read_text())
        assert isclose(sum(row[f"seconds_{side}"] for row in data["comms"]) - hidden, plan["cost"]["exposed_comm_s"], abs_tol=1e-12)
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
    code, out, err = call("explain", plan_file, "up.weight")
    assert (code, err) == (0, "") and out.startswith("parameter up.weight") and "float32 32x8" in out and "read by linear " in out
    code, data = call_json("explain", plan_file, "*.bias")
    assert code == 0 and {"up.bias", "down.bias"} <= {name for found in data["found"] for name in found["members"]}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["explain", "{plan}"], "OptionsError: explain: expected a NAME (a parameter, tensor or op; * for any part) or --memory, found neither"),
        (["explain", "{plan}", "up.weight", "--memory"], "or --memory, found both --memory and 'up.weight'"),
        (["explain", "{plan}", "up.wieght"], "OptionsError: 'up.wieght': the plan of build has no parameter, tensor or op of this name; near: up.weight"),
        (["explain", "/nowhere/p.json", "--memory"], "PlanError: /nowhere/p.json: cannot be read: No such file or directory"),
        (["diff", "{plan}", "/nowhere/p.json"], "PlanError: /nowhere/p.json: cannot be read: No such file or directory"),
        (["diff", "{plan}"], "UsageError: Missing argument 'B'. `autopar diff --help` shows what it takes."),
    ],
)  # fmt: skip
def test_wrong_words(call, plan_file, words, text):
    code, out, err = call(*(word.format(plan=plan_file) for word in words))
    assert (code, out) == (2, "") and text in err and "Traceback" not in err
