"""`autopar zoo`: the table, the JSON object, exit codes, and words that it cannot read."""

import pytest

pytestmark = pytest.mark.torch

QUICK = ("--no-plan", "--no-verify")
TWO = """
import torch
import autopar

def fine(): return autopar.Workload(torch.nn.Linear(8, 8), (torch.randn(8, 8),), (torch.randn(8, 8),), torch.nn.functional.mse_loss)
def absent(): import some_library
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("zoo") / "two.py"
    path.write_text(TWO)
    return path


def test_table(call, two):
    code, out, _ = call("zoo", two, *QUICK)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("2 models")
    assert lines[1].split()[:3] == ["model", "nodes", "trace"]
    assert f"{two}:fine" in lines[2] and lines[2].startswith("1/2")
    assert "skipped: some_library is not installed" in lines[3]
    assert lines[-1].startswith(f"2 models: 1 traced, 1 skipped (some_library is not installed: {two}:absent), 0 failed; ")


def test_each_plan_has_its_gap(call, call_json, two):
    words = ("zoo", f"{two}:fine", "--no-verify", "--plan-for", "cpu:2")
    code, out, _ = call(*words)
    assert code == 0 and out.splitlines()[1].split()[7:9] == ["cpu:2", "gap"]
    assert "1 planned for cpu:2, 1 of 1 plans within 1.00 % of the bound" in out.splitlines()[-1]
    (row,) = call_json(*words)[1]["rows"]
    (plan,) = row["plans"]
    assert plan["cluster"] == "cpu:2" and plan["step_s"] > 0 and 0 <= plan["gap"] <= 0.01 and plan["wall_s"] > 0


def test_json(call_json, two):
    code, data = call_json("zoo", f"{two}:fine", *QUICK)
    (row,) = data["rows"]
    assert code == 0 and row["num_nodes"] > 0 and row["flops_share"] > 0.99 and row["plans"] == []
    assert data["totals"] == {"models": 1, "traced": 1, "planned": 1, "closed": 0, "verified": 0, "skipped": 0, "failed": 0}


def test_a_failure_is_told_and_ends_with_1(call, model):
    code, out, _ = call("zoo", f"{model}:branches", *QUICK)
    assert code == 1
    assert "Failed\n" in out and "net.py:" in out and "1 failed" in out


@pytest.mark.parametrize(
    "words, text",
    [
        (("nowhere.py",), "nowhere.py: no such file"),
        (("--plan-for", "cpu:0"), "cpu:0"),
        (("--jobs", "0"), "--jobs: expected a positive number"),
        (("--model-limit", "0"), "--model-limit: expected a positive number"),
    ],
)
def test_bad_words(call, words, text):
    code, _, err = call("zoo", *words)
    assert code == 2 and text in err


def test_without_a_checkout(call, monkeypatch, tmp_path):
    import autopar.zoo

    monkeypatch.setattr(autopar.zoo, "FOLDER", tmp_path / "nowhere")
    code, _, err = call("zoo")
    assert code == 2 and "not of its package" in err


def test_a_file_without_models(call, tmp_path):
    path = tmp_path / "none.py"
    path.write_text("def needs(width): pass\n")
    code, _, err = call("zoo", path)
    assert code == 2 and "holds no model" in err
