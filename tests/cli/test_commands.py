"""What each command does when all is well."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def test_import_and_help_are_instant():
    code = (
        "import sys, autopar\n"
        "assert 'torch' not in sys.modules and 'typer' not in sys.modules\n"
        "from autopar.cli import main\n"
        "for words in (['--help'], ['plan', '--help'], ['demo', '--help']):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert end.code == 0, end.code\n"
        "assert 'torch' not in sys.modules and 'ortools' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("plan", "trace", "show", "diff", "explain", "emit", "run", "verify", "demo", "profile"):
        assert command in done.stdout


def test_version(call):
    import autopar

    assert call("--version") == (0, f"autopar {autopar.__version__}\n", "")


def test_every_exported_name_is_there():
    import autopar

    for name in autopar.__all__:
        assert getattr(autopar, name) is not None
    with pytest.raises(AttributeError, match="module 'autopar' has no attribute 'nonsense'"):
        autopar.nonsense


def test_plan_writes_what_was_asked_for(call, model, tmp_path):
    code, out, err = call("plan", f"{model}:build", "--cluster", "cpu:2", "-o", tmp_path / "p.json", "--html", tmp_path / "p.html", "--dump", tmp_path / "dump")
    assert code == 0, err
    assert "build on cpu:2" in out and "Certificate" in out and f"wrote {tmp_path / 'p.json'}" in out
    assert "noise from the model file" in err and "noise" not in out
    assert "tracing build in fp32" in err
    assert "<html" in (tmp_path / "p.html").read_text()
    assert [p.name[:2] for p in sorted((tmp_path / "dump").iterdir())] == ["01", "02", "03", "04"]
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["model"]["source"] == f"{model}:build" and data["model"]["args"] == {}
    code, shown, _ = call("show", tmp_path / "p.json")
    assert code == 0 and shown.rstrip() == out.partition("\nwrote ")[0].rstrip()


def test_plan_json_is_one_object_and_is_the_plan_file(call_json, model, plan_file):
    code, data = call_json("plan", f"{model}:build", "--cluster", "cpu:2")
    assert code == 0
    assert {"format", "model", "cluster", "mesh", "labels", "num_microbatches", "schedule", "cost", "solve", "tensors", "params"} <= set(data)
    saved = json.loads(plan_file.read_text())
    for key in ("model", "mesh", "assignment", "params"):
        assert data[key] == saved[key]
    assert call_json("show", plan_file) == (0, saved)


def test_arguments_of_the_factory(call_json, model):
    code, data = call_json("plan", f"{model}:build", "--cluster", "cpu:2", "--batch", "8", "--arg", "hidden=64")
    assert code == 0
    assert data["model"]["batch"] == 8 and data["model"]["args"] == {"hidden": "64"}
    assert data["model"]["num_params"] == 8 * 64 + 64 + 64 * 4 + 4


def test_memory_narrows_the_plan(call_json, model):
    words = ("plan", f"{model}:build", "--cluster", "cpu:2", "--arg", "hidden=512")
    ample = call_json(*words)[1]
    assert ample["cost"]["peak_bytes"][0] <= ample["cluster"]["memory_bytes"] == 2 * 2**30
    tight = int(ample["cost"]["peak_bytes"][0] * 0.9)
    code, plan = call_json(*words, "--memory", f"{tight}B")
    assert code == 0 and plan["cost"]["peak_bytes"][0] <= tight == plan["cluster"]["memory_bytes"]
    assert plan["cost"]["step_s"] >= ample["cost"]["step_s"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, when it is imported
def test_emit_a_plan_runs_what_is_asked_for_between_collectives(call, plan_file, tmp_path):
    """A plan says nothing of `--local` and `--cuda-graph`: they hold for its programs, too."""
    for name, words in (("kernels", ()), ("ops", ("--local", "ops")), ("inductor", ("--local", "inductor"))):
        code, _, err = call("emit", plan_file, "-o", tmp_path / name, *words)
        assert code == 0, err
    files = {name: {path.name: path.read_text() for path in (tmp_path / name).glob("*.py")} for name in ("kernels", "ops", "inductor")}
    compiled = {name: any("fused.compiled(" in text for text in texts.values()) for name, texts in files.items()}
    assert compiled == {"kernels": False, "ops": False, "inductor": True} and "kernels.py" in files["kernels"] and "kernels.py" not in files["ops"]
    code, _, err = call("emit", plan_file, "-o", tmp_path / "graph", "--cuda-graph")
    assert code != 0 and "a CUDA graph needs cuda" in err


def test_plans_of_gpus_are_priced_at_the_level_of_a_profile(call_json, model):
    seconds = {}
    for name, words in (("tables", ()), ("measured", ("--measured", "H100-80GB"))):
        code, data = call_json("plan", f"{model}:build", "--cluster", "1x2xH100-80GB", "--no-price", *words)
        assert code == 0
        seconds[name] = data["cost"]["step_s"]
        assert ("on NVIDIA H100 80GB HBM3" in data["cost"]["error_source"]) is (name == "measured")
    assert seconds["tables"] != seconds["measured"]


@pytest.mark.gloo
def test_emit_a_plan_and_run_it(call, call_json, plan_file, tmp_path):
    code, data = call_json("emit", plan_file, "-o", tmp_path / "program")
    assert code == 0 and data["num_ranks"] == 2 and set(data["files"]) == {"program.py", "kernels.py", "train.py", "plan.json"}
    again = json.loads((tmp_path / "program" / "plan.json").read_text())
    saved = json.loads(plan_file.read_text())
    assert again["assignment"] == saved["assignment"] and again["model"] == saved["model"]
    code, out, err = call("run", tmp_path / "program", "--steps", "2")
    assert code == 0, err
    losses = [float(line.split()[-1]) for line in out.splitlines()]
    assert [line.split()[:2] for line in out.splitlines()] == [["step", "0"], ["step", "1"]]
    assert all(1.0 < loss < 3.0 for loss in losses)
    code, data = call_json("run", tmp_path / "program", "--steps", "1")
    record = str(tmp_path / "program" / "run.json")
    assert (code, data) == (0, {"directory": str(tmp_path / "program"), "num_ranks": 2, "exit_code": 0, "record": record, "profile": None})
    recorded = (tmp_path / "program" / "run.json").read_text()
    assert call("run", tmp_path / "program", "--steps", "many")[0] != 0
    assert (tmp_path / "program" / "run.json").read_text() == recorded


@pytest.mark.gloo
def test_run_writes_a_trace_with_the_programs_names(call, plan_file, tmp_path):
    assert call("emit", plan_file, "-o", tmp_path / "program")[0] == 0
    code, out, err = call("run", tmp_path / "program", "--profile", tmp_path / "trace.json", "--no-record", "--steps", "2")
    assert code == 0 and f"traced one step: {tmp_path / 'trace.json'}" in err and len(out.splitlines()) == 2
    text = "".join((tmp_path / "program" / name).read_text() for name in ("program.py", "kernels.py"))
    for name in ("trace.json", "trace.1.json"):  # of both ranks
        spans = {e["name"] for e in json.loads((tmp_path / name).read_text())["traceEvents"] if e.get("cat") == "user_annotation"}
        assert {"forward", "backward", "update"} <= spans
        kernels = {span.removeprefix("kernels.") for span in spans if span.startswith("kernels.")}
        assert kernels and all(f"def {kernel}(" in text for kernel in kernels)
    code, out, err = call("run", tmp_path / "program", "--profile", tmp_path / "none.json", "--no-record", "--steps", "0")
    assert code != 0 and "none.json: no trace was written: it is of step 0, and 0 were run." in err and not (tmp_path / "none.json").exists()


@pytest.mark.gloo
def test_run_then_simulate_against_it(call, call_json, plan_file, tmp_path):
    from autopar.graph.run_file import load_run

    assert call("emit", plan_file, "-o", tmp_path / "program")[0] == 0
    record = tmp_path / "mine.json"
    code, out, err = call("run", tmp_path / "program", "--record", record, "--steps", "6")
    assert code == 0 and f"recorded {record}; compare with: autopar simulate {tmp_path / 'program' / 'plan.json'} --against {record}" in err
    assert len(out.splitlines()) == 6 and not (tmp_path / "program" / "run.json").exists() and "profiler" not in err
    assert "communication took" not in err  # each of the ranks does all of it
    run = load_run(record)
    for rank in run.ranks:
        assert len(rank.step_s) == 4 and {a.phase for a in rank.actions} == {"forward", "backward", "update"}
        for k, step in enumerate(rank.step_s):
            assert 0 < sum(a.seconds[k] for a in rank.actions) <= step
        assert rank.peak_bytes > rank.state_bytes > 0
    code, out, _ = call("simulate", plan_file, "--against", record)
    assert code == 0 and "predicted and measured" in out and "another plan" not in out
    for word in ("step", "forward", "backward", "update", "compute", "states", "peak memory"):
        assert word in out
    code, data = call_json("simulate", plan_file, "--against", record)
    found = {(row["group"], row["what"]): row for row in data["against"]["rows"]}
    assert code == 0 and found["step", "step"]["predicted"] == data["step_s"] and found["step", "step"]["measured"]["count"] == 8
    assert found["memory", "states"]["error"] == 0.0
    assert call("run", tmp_path / "program", "--no-record", "--steps", "1")[0] == 0 and not (tmp_path / "program" / "run.json").exists()


@pytest.mark.gloo
def test_run_says_how_much_was_hidden(call, call_json, model, tmp_path):
    assert call("emit", f"{model}:build", "--cluster", "cpu:2", "--fix", "dp=2,zero=0", "-o", tmp_path / "program")[0] == 0
    code, _, err = call("run", tmp_path / "program", "--steps", "5")
    assert code == 0 and re.search(r"^communication took [\d.]+ ms of a step, [<\d.]+ % of it hidden behind compute \(measured, medians\)$", err, re.MULTILINE), err
    code, data = call_json("simulate", tmp_path / "program" / "plan.json", "--against", tmp_path / "program" / "run.json")
    found = {row["what"]: row["measured"]["median"] for row in data["against"]["rows"] if row["group"] == "communication"}
    assert code == 0 and 0 <= found["of it hidden behind compute"] <= found["communication"] and "all_reduce along dp" in found


def test_the_line_of_what_was_hidden(tmp_path):
    """Of a run of one rank, and of one that warmed up only, there is none."""
    from autopar.cli.recorded import describe_hidden
    from autopar.graph.machine import Machine
    from autopar.graph.run import CommTimes, RankRun, Run
    from autopar.graph.run_file import save_run

    def line(steps, *comms, device="cpu"):
        rank = RankRun(0, (0.1, 0.1), (0.1,) * steps, (), comms, 8, 8, None)
        save_run(Run("now", "0.1", Machine(device, "AMD EPYC", 2, "2.13.0", "3.11.2"), "it", "", "dp=2", (rank,)), tmp_path / "run.json")
        return describe_hidden(str(tmp_path / "run.json"))

    ahead, blocking = CommTimes("backward", "all_reduce", "dp", 1, 8, (0.01,), (0.025,)), CommTimes("forward", "all_gather", "dp", 1, 8, (0.005,))
    assert line(1, ahead, blocking) == ["communication took 30.0 ms of a step, 50.0 % of it hidden behind compute (measured, medians)"]
    assert line(1, ahead, blocking, device="NVIDIA L4") == ["communication took 30.0 ms of a step, at most 50.0 % of it hidden behind compute (measured, medians)"]
    assert line(1, blocking) == ["communication took 5.00 ms of a step, 0 % of it hidden behind compute (measured, medians)"]
    assert line(1) == line(0) == [] and line(1, CommTimes("forward", "receive", "pp", 1, 8, (0.005,))) == []


def test_emit_a_model_twice_into_one_folder(call, model, tmp_path):
    for _ in range(2):
        code, out, err = call("emit", f"{model}:build", "--cluster", "cpu:2", "-o", tmp_path / "program")
        assert code == 0, err
        assert f"autopar run {tmp_path / 'program'}" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["program"]


def test_values_without_a_recipe_travel_with_the_program(call, model, tmp_path):
    import torch

    for _ in range(2):
        assert call("emit", f"{model}:given", "--cluster", "cpu:1", "-o", tmp_path / "program")[0] == 0
    weights = torch.load(tmp_path / "program" / "weights.pt", weights_only=True)
    assert list(weights) == ["up.weight"] and (weights["up.weight"][0] == 1.0).all()
    code, out, err = call("run", tmp_path / "program", "--steps", "1")
    assert code == 0 and out.startswith("step 0  loss "), err


def test_a_model_that_moved_with_its_plan_is_found(call, model, plan_file, tmp_path):
    data = json.loads(plan_file.read_text())
    data["model"]["source"] = "/nowhere/net.py:build"
    data["checksum"] = ""
    (tmp_path / "plan.json").write_text(json.dumps(data))
    (tmp_path / "net.py").write_text(model.read_text())
    assert call("emit", tmp_path / "plan.json", "-o", tmp_path / "program")[0] == 0


@pytest.mark.parametrize("cluster", ["cpu:2", "cpu:1"])
def test_verify(call, call_json, model, cluster):
    code, out, err = call("verify", f"{model}:build", "--cluster", cluster)
    assert code == 0, err
    assert "against plain PyTorch, float64, 2 steps" in out and "WRONG" not in out
    code, data = call_json("verify", f"{model}:build", "--cluster", cluster)
    assert code == 0 and data["passed"] and data["failures"] == []
    kinds = {k["kind"]: k for k in data["kinds"]}
    assert {name: k["num_tensors"] for name, k in kinds.items()} == {
        "loss": int(cluster[-1]), "gradient": 4, "parameter": 4, "optimizer state": 12,
    }  # fmt: skip
    assert all(k["relative"]["relative"] <= 1e-10 for k in kinds.values())


@pytest.fixture
def tiny_profile(monkeypatch):
    from autopar.cost import profile
    from autopar.cost.profile_grid import CommJob, OpJob

    shapes = (OpJob("launch", "float32", (8,)), OpJob("matmul", "float32", (64, 64, 64)), OpJob("softmax", "float32", (16, 16)))
    monkeypatch.setattr(profile, "op_jobs", lambda kind, quick: shapes[: 2 if quick else 3])
    monkeypatch.setattr(profile, "comm_jobs", lambda kind, ranks, quick: (CommJob("all_gather", (2, 1), 1024),) if ranks == 2 else ())


def test_profile(call, call_json, tiny_profile, tmp_path):
    path = tmp_path / "profile.json"
    code, data = call_json("profile", "--ranks", "1", "--device", "cpu", "--quick", "-o", path)
    assert code == 0 and data["path"] == str(path) and data["failed"] == 0 and data["finished"]
    assert [(row["family"], row["ranks"]) for row in data["ops"]] == [("launch", 1), ("matmul", 1)]
    assert [row["family"] for row in json.loads(path.read_text())["ops"]] == ["launch", "matmul"]
    code, out, err = call("profile", "--ranks", "1,2", "--device", "cpu", "--time-limit", "60", "-o", path)
    assert code == 0 and f"wrote {path} (7 rows)" in out and "measuring 2 processes at once: 4 rows" in err
    for word in ("float32 GFLOP/s", "matmul float32", "softmax float32", "all_gather, all 2"):
        assert word in out


def test_profile_shows_what_failed(call, monkeypatch, tiny_profile, tmp_path):
    from autopar.cost import profile

    def fail(count, jobs, until, deliver):
        deliver(jobs[0], ["RuntimeError: no memory"])

    monkeypatch.setattr(profile, "run_processes", fail)
    code, out, err = call("profile", "--ranks", "1", "--device", "cpu", "-o", tmp_path / "p.json")
    assert code == 0 and "2 could not be measured:\n  launch float32 8, 1 at once: RuntimeError: no memory" in out
    assert "(2 rows; not finished: run it again to go on" in out
    assert "  failed: launch float32 8: RuntimeError: no memory" in err
