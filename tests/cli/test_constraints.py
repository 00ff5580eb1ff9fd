"""Steering from the command line: a small GPT under constraints, planned, shown, verified; and what is refused."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

GPT = '''
import functools
import torch
import autopar
from autopar.demo.model import Gpt, token_loss


def build(batch=8, seq=8, vocab=32, layers=2, hidden=16, heads=4):
    tokens = torch.randint(0, vocab, (batch, seq + 1))
    return autopar.Workload(
        model=Gpt(vocab, seq, layers, hidden, heads), example_inputs=(tokens[:, :-1],), example_targets=(tokens[:, 1:],),
        loss=token_loss, optimizer=functools.partial(torch.optim.AdamW, lr=3e-4), name="tiny-gpt",
    )
'''
FINE = """
dp = 2
tp = 2
whole = ["head"]
[[pin]]
value = "blocks.0.up.weight"
sharding = "S1"
on = "tp"
[[module]]
path = "blocks.1.qkv"
forbid = ["tp"]
"""


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt") / "gpt.py"
    path.write_text(GPT)
    return path


def test_megatron_with_zero_1(call, call_json, gpt, tmp_path):
    words = (f"{gpt}:build", "--cluster", "cpu:4", "--fix", "dp=2,tp=2,zero=1")
    code, out, err = call("plan", *words, "-o", tmp_path / "p.json")
    assert code == 0, err
    data = json.loads((tmp_path / "p.json").read_text())
    assert [(a["name"], a["size"]) for a in data["mesh"]["axes"]] == [("dp", 2), ("tp", 2)]
    assert data["labels"] == {"dp": ["data", "zero-2"], "tp": ["tensor"]}  # of one microbatch ZeRO-1 and ZeRO-2 are one program
    assert data["constraints"] == ["dp=2", "tp=2", "zero=1"]
    assert 0 < data["free_step_s"] <= data["solve"]["objective_s"]
    for row in data["params"]:
        assert row["param"].startswith("R,") and row["optim"].startswith("S")
    text = " ".join(out.split())
    assert "fixed dp=2, tp=2, zero=1" in text and "; only what obeys dp=2, tp=2, zero=1;" in text
    assert "constraints cost " in text and " with, " in text and " without)" in text
    code, shown, _ = call("show", tmp_path / "p.json")
    assert code == 0 and shown.rstrip() == out.partition("\nwrote ")[0].rstrip()
    code, report = call_json("verify", *words)
    assert code == 0 and report["passed"]


def test_all_spellings_give_one_plan(call_json, gpt, tmp_path):
    import autopar

    (tmp_path / "c.toml").write_text("dp = 4\nzero = 3\n")
    words = ("plan", f"{gpt}:build", "--cluster", "cpu:4", "--no-price")
    plans = [call_json(*words, *more)[1] for more in (("--fix", "zero=3,dp=4"), ("--constraints", tmp_path / "c.toml"), ("--fix", "dp=4", "--constraints", tmp_path / "c.toml"))]
    workload = autopar.load_workload(f"{gpt}:build")
    options = autopar.Options(constraints=autopar.constrain(dp=4, zero=3), price=False)
    plans.append(autopar.compile_workload(workload, "cpu:4", options).plan.to_json())
    assert plans[0]["free_step_s"] is None and plans[0]["constraints"] == ["dp=4", "zero=3"]
    for plan in plans[1:]:
        assert plan["assignment"] == plans[0]["assignment"] and plan["constraints"] == plans[0]["constraints"]


def test_finer_words_are_obeyed_and_right(call_json, gpt, tmp_path):
    (tmp_path / "c.toml").write_text(FINE)
    words = (f"{gpt}:build", "--cluster", "cpu:4", "--constraints", tmp_path / "c.toml")
    code, plan = call_json("plan", *words, "--no-price")
    assert code == 0
    tp = [a["name"] for a in plan["mesh"]["axes"]].index("tp")
    nodes = {(n["path"], n["phase"]): n["choices"] for n in plan["nodes"] if n["op"] == "autopar.linear"}
    assert nodes["blocks.0.qkv", "forward"][tp] != "R" and nodes["blocks.1.qkv", "forward"][tp] == nodes["head", "forward"][tp] == "R"
    assert next(p for p in plan["params"] if p["name"] == "blocks.0.up.weight")["param"].split(",")[tp].startswith("S1/")
    code, report = call_json("verify", *words)
    assert code == 0 and report["passed"]


@pytest.mark.parametrize("fix", ["tp=2,sp=2", "tp=4,sequence_parallel=1", "dp=2,zero=0"])
def test_what_was_steered_is_right(call_json, gpt, fix):
    code, report = call_json("verify", f"{gpt}:build", "--cluster", "cpu:4", "--fix", fix)
    assert code == 0 and report["passed"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--fix", "dp=2,tp=4"), "ConstraintError: dp=2 x tp=4 make 8 ranks, the cluster has 4"),
        (("--fix", "dp=2,dp=2"), "ConstraintError: --fix: dp is given twice"),
        (("--fix", "pp=2,dp=2,tp=2", "--no-price"), "ConstraintError: dp=2, tp=2, pp=2: no plan was found: dp=2 x tp=2 x pp=2 make 8 ranks, the cluster has 4"),
        (("--fix", "pp=64,dp=16,tp=8", "--no-price"), "dp=16 x tp=8 x pp=64 make 8192 ranks, the cluster has 4"),
        (("--fix", "pp=2,dp=2,microbatches=3", "--no-price"), "microbatches=3: the batch of 8 samples does not divide so; what there is: pp=2 dp=2 with 1, 2, 4 microb"),
        (("--fix", "dp=2,microbatches=4,microbatch=8", "--no-price"), "no plan was found: microbatches=4 x microbatch=8 x dp=2 are 64 samples, the batch has 8; what there is: "),
        (("--fix", "pp=2,sp=2,dp=2", "--no-price"), "dp=2 x sp=2 x pp=2 make 8 ranks, the cluster has 4"),
        (("--fix", "zero=7"), "ConstraintError: --fix: zero: expected 0, 1, 2 or 3, found 7"),
        (("--constraints", "/nowhere/c.toml"), "ConstraintError: /nowhere/c.toml: cannot be read: No such file or directory"),
        (("--constraints", "{toml}"), "ConstraintError: pin blocks.*.uq.weight R: names no value of tiny-gpt; near names: "),
        (("--constraints", "{toml}", "--fix", "tp=2"), "ConstraintError: --fix and --constraints: tp is both 2 and 1; leave one out"),
    ],
)
def test_refusals(call, gpt, tmp_path, words, text):
    (tmp_path / "c.toml").write_text('forbid = ["tp"]\n[[pin]]\nvalue = "blocks.*.uq.weight"\nsharding = "R"\n')
    code, out, err = call("plan", f"{gpt}:build", "--cluster", "cpu:4", *(w.format(toml=tmp_path / "c.toml") for w in words))
    assert (code, out) == (2, "") and text in err and "Traceback" not in err



def test_stages_are_planned_shown_and_emitted(call, call_json, gpt, tmp_path):
    words = (f"{gpt}:build", "--cluster", "cpu:4", "--no-price")
    fix = "pp=2,dp=2,microbatches=4,vpp=2,schedule=interleaved,zero=1,recompute=full"
    code, out, err = call("plan", *words, "--arg", "layers=4", "--fix", fix, "-o", tmp_path / "p.json", "--html", tmp_path / "p.html")
    assert code == 0, err
    plan = json.loads((tmp_path / "p.json").read_text())
    assert plan["mesh"]["num_stages"] == 2 and plan["num_microbatches"] == 4 and plan["assignment"]["again"]
    assert (plan["pipeline"]["kind"], plan["pipeline"]["chunks"], len(plan["pipeline"]["starts"])) == ("interleaved", 2, 3)
    assert "Stages " in out and "stage 1  .   1F0" in out
    code, shown, _ = call("show", tmp_path / "p.json")
    assert code == 0 and shown.rstrip() == out.partition("\nwrote ")[0].rstrip()
    code, text, _ = call("explain", tmp_path / "p.json", "blocks.0.up.weight")
    text = " ".join(text.split())
    [stage] = re.findall(r"float32 64x16, stage (\d) stored", text)
    assert code == 0 and f"nothing else can be chosen on mesh dp=2 of stage {stage}, the other stages and what crosses as they are" in text
    code, out, err = call("emit", tmp_path / "p.json", "-o", tmp_path / "program")
    assert code == 0, err
    files = {path.name for path in (tmp_path / "program").iterdir()}
    assert files >= {"program.py", "stage_0.py", "stage_1.py", "schedule.csv", "train.py", "plan.json"} and "schedule.csv (2 lines)" in out
    assert (tmp_path / "program" / "schedule.csv").read_text().splitlines()[1].startswith("1F0,1F1,3F0")


@pytest.mark.parametrize("fix", ["pp=2", "pp=2,vpp=2,microbatches=4", "pp=2,schedule=zero-bubble,microbatches=2"])
def test_stages_are_run(call_json, gpt, fix):
    code, report = call_json("verify", f"{gpt}:build", "--cluster", "cpu:2", "--fix", fix, "--arg", "layers=4")
    assert code == 0 and report["passed"]


def test_several_microbatches_are_run(call_json, gpt):
    code, report = call_json("verify", f"{gpt}:build", "--cluster", "cpu:2", "--fix", "dp=2,microbatches=4")
    assert code == 0 and report["passed"]


def test_a_plan_has_decided_already(call, plan_file, tmp_path):
    code, _, err = call("emit", plan_file, "-o", tmp_path / "program", "--fix", "tp=2")
    assert code == 2 and f"OptionsError: --fix: {plan_file} is a plan, which has decided this already" in err


def test_where_the_constraints_are_what_does_not_fit(call_json, model):
    words = ("plan", f"{model}:build", "--cluster", "cpu:2", "--arg", "hidden=256", "--time-limit", "5", "--fix", "dp=2,zero=0")
    code, plan = call_json(*words, "--no-price")
    assert code == 0
    code, data = call_json(*words, "--memory", f"{int(plan['cost']['peak_bytes'][0] * 0.7)}B")
    assert code == 1 and data["error"]["type"] == "InfeasibleError"
    assert "\n  nearest change that fits: without " in data["error"]["message"]
    fits = {row["what"]: row["step_s"] for row in data["error"]["changes"] if row["status"] == "fits"}
    words = next(row["what"] for row in data["error"]["changes"])
    assert words in ("without dp=2", "without zero=0", "without dp=2, zero=0") and fits[words] > 0 and any(what.startswith("--memory ") for what in fits)
