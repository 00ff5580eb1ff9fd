"""Bad input: the text on stderr, the exit code, the JSON object on stdout, and nothing left half written."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

CPU = ("--cluster", "cpu:2")

PLAN_ERRORS = {
    "missing file": (["/nowhere/net.py:build", *CPU], "ModelError: /nowhere/net.py: no such file"),
    "missing function": (["{model}:absent", *CPU], "ModelError: {model}:absent: the file has no absent; functions in it: make, build,"),
    "no function": (["{model}", *CPU], "ModelError: {model}: which function builds the model? Expected {model}:FACTORY"),
    "no such form": (["gpt2", *CPU], "ModelError: 'gpt2': expected file.py:factory or a Hugging Face config.json"),
    "raising": (["{model}:raises", *CPU], "ModelError: {model}:40: raises() raises ValueError: the data set is gone"),
    "bare module": (["{model}:bare", *CPU], "ModelError: {model}:bare: returns a bare module (Linear), so the inputs of a training step are not known"),
    "wrong thing": (["{model}:number", *CPU], "ModelError: {model}:number: expected an autopar.Workload, found int"),
    "data-dependent": (["{model}:branches", *CPU], "TraceError: net.py:24: the program asks for the value of a tensor"),
    "loss": (["{model}:vector_loss", *CPU], "InputError: loss vector_loss.<locals>.<lambda>: expected a scalar tensor, found shape [4]"),
    "shapes": (["{model}:wrong_shape", *CPU], "InputError: net.py:18: the model's forward raises RuntimeError: a and b must have same reduction dim"),
    "optimizer": (["{model}:closure", *CPU], "TraceError: optimizer LBFGS: its step() needs closure"),
    "unknown argument": (["{model}:build", *CPU, "--arg", "depth=3"], "ModelError: {model}:build: got an unexpected keyword argument 'depth'"),
    "argument form": (["{model}:build", *CPU, "--arg", "hidden"], "OptionsError: --arg: expected name=value, as in --arg layers=4, found 'hidden'"),
    "argument twice": (["{model}:build", *CPU, "--arg", "hidden=8", "--arg", "hidden=9"], "OptionsError: --arg: hidden is given twice"),
    "batch zero": (["{model}:build", *CPU, "--batch", "0"], "OptionsError: --batch: expected a positive whole number, found 0"),
    "seq negative": (["{model}:build", *CPU, "--seq", "-4"], "OptionsError: --seq: expected a positive whole number, found -4"),
    "batch text": (["{model}:build", *CPU, "--batch", "many"], "UsageError: Invalid value for '--batch'"),
    "no seq": (["{model}:build", *CPU, "--seq", "4"], "ModelError: {model}:build: --seq 4 was given, but the function takes no parameter `seq`"),
    "no cluster": (["{model}:build"], "UsageError: Missing option '--cluster'. `autopar plan --help` shows what it takes."),
    "unknown flag": (["{model}:build", *CPU, "--gpus", "3"], "UsageError: No such option"),
    "cluster": (["{model}:build", "--cluster", "many"], "ClusterError: cluster 'many': expected cpu:4"),
    "device": (["{model}:build", "--cluster", "8xH10"], "ClusterError: cluster '8xH10': unknown device 'H10'"),
    "no ranks": (["{model}:build", "--cluster", "cpu:0"], "ClusterError: cluster 'cpu:0': the number of ranks: expected a positive whole number"),
    "no TOML": (["{model}:build", "--cluster", "absent.toml"], "ClusterError: absent.toml: no such file"),
    "memory text": (["{model}:build", *CPU, "--memory", "lots"], "OptionsError: --memory: expected a size such as 2GiB or 512MB, found 'lots'"),
    "memory negative": (["{model}:build", *CPU, "--memory", "-2GiB"], "OptionsError: --memory: expected a positive size, found '-2GiB'"),
    "memory zero": (["{model}:build", *CPU, "--memory", "0"], "OptionsError: --memory: expected a positive size, found '0'"),
    "memory tiny": (["{model}:build", *CPU, "--memory", "0.5B"], "OptionsError: --memory: expected at least one byte, found '0.5B'"),
    "time limit": (["{model}:build", *CPU, "--time-limit", "0"], "OptionsError: time limit: expected a positive number of seconds, found 0"),
    "precision": (["{model}:build", *CPU, "--precision", "fp8"], "OptionsError: precision: expected one of fp32, bf16, fp16, fp64, found 'fp8'"),
    "output folder": (["{model}:build", *CPU, "-o", "/nowhere/p.json"], "OptionsError: -o: the folder /nowhere does not exist"),
    "output is a folder": (["{model}:build", *CPU, "-o", "{tmp}"], "OptionsError: -o: expected a file to write, {tmp} is a folder"),
    "html folder": (["{model}:build", *CPU, "-o", "{tmp}/p.json", "--html", "/nowhere/p.html"], "OptionsError: --html: the folder /nowhere does not exist"),
    "dump": (["{model}:build", *CPU, "--dump", "{model}"], "OptionsError: --dump: expected a folder, {model} is a file"),
}


@pytest.mark.parametrize("name", PLAN_ERRORS)
def test_plan_refuses(call, model, tmp_path, name):
    words, text = PLAN_ERRORS[name]
    fill = {"model": model, "tmp": tmp_path}
    code, out, err = call("plan", *(w.format(**fill) for w in words))
    assert (code, out) == (2, "")
    assert text.format(**fill) in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_cluster_file_with_a_wrong_unit(call, model, tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('[[hosts]]\ncount = 1\ndevices = 2\ndevice = "cpu"\n[links]\ninside = { latency_s = 1e-6, bandwidth_bytes_per_s = "900GB/s" }\n')
    code, out, err = call("plan", f"{model}:build", "--cluster", path)
    assert (code, out) == (2, "")
    assert err.endswith(f'ClusterError: {path}: links.inside.bandwidth_bytes_per_s: expected a positive number, found "900GB/s"\n')


@pytest.mark.parametrize("name", ["missing file", "no cluster", "memory text", "data-dependent", "shapes"])
def test_errors_as_json(call_json, model, tmp_path, name):
    words, text = PLAN_ERRORS[name]
    code, data = call_json("plan", *(w.format(model=model, tmp=tmp_path) for w in words))
    assert code == 2 and list(data) == ["error"]
    assert f"{data['error']['type']}: {data['error']['message']}".startswith(text.format(model=model))
    assert data["error"]["exit_code"] == 2


def test_infeasible(call, call_json, model, tmp_path):
    words = ("plan", f"{model}:build", *CPU, "--memory", "2KiB", "-o", tmp_path / "p.json", "--html", tmp_path / "p.html")
    code, out, err = call(*words, "--no-price")
    assert (code, out) == (1, "") and not list(tmp_path.iterdir())
    assert "InfeasibleError: no plan fits 2.0 KiB per device; the best found needs" in err
    assert "largest: " in err and "nearest change that fits: " in err
    code, data = call_json(*words)
    error = data["error"]
    assert code == 1 and error["type"] == "InfeasibleError" and error["exit_code"] == 1
    assert error["missing_bytes"] == error["minimum_bytes"] - error["limit_bytes"] > 0
    assert sum(error["holders"].values()) == error["minimum_bytes"]
    memory = next(row for row in error["changes"] if row["what"].startswith("--memory "))
    assert memory["status"] == "fits" and memory["step_s"] > 0
    assert call("plan", f"{model}:build", *CPU, "--memory", memory["what"].split()[1])[0] == 0
    for row in error["changes"]:  # whatever was tried says how it went
        assert (row["status"] == "fits") == (row["step_s"] is not None)


# -- plans ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def edited(plan_file, tmp_path):
    """Write the plan with a change; `checksum=False` leaves the old one."""

    def edit(change, checksum=True):
        data = json.loads(plan_file.read_text())
        change(data)
        if checksum:
            data["checksum"] = ""
        path = tmp_path / "edited.json"
        path.write_text(json.dumps(data))
        return path

    return edit


def refused(call, *words, code=2):
    found, out, err = call(*words)
    assert found == code and out == "" and "Traceback" not in err
    return err


def test_truncated_plan(call, plan_file, tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(plan_file.read_text()[:3000])
    for words in (["show", path], ["emit", path, "-o", tmp_path / "program"]):
        err = refused(call, *words)
        assert f"PlanError: {path}: line " in err and "the file is cut short or damaged" in err or "ends too early" in err
    assert not (tmp_path / "program").exists()


def test_no_plan_at_all(call, model, tmp_path):
    assert "PlanError: /nowhere/p.json: cannot be read: No such file or directory" in refused(call, "show", "/nowhere/p.json")
    assert "not JSON" in refused(call, "show", model)
    assert "ModelError: /nowhere/p.json: no such file" in refused(call, "emit", "/nowhere/p.json", *CPU, "-o", tmp_path / "x")
    assert "ModelError: /nowhere/p.json: no such file" in refused(call, "emit", "/nowhere/p.json", "-o", tmp_path / "x")


def test_edited_plan(call, edited):
    path = edited(lambda data: data.update(summary="another"), checksum=False)
    assert f"PlanError: {path}: checksum: expected " in refused(call, "show", path)


def test_plan_of_another_format(call, edited, tmp_path):
    path = edited(lambda data: data.update(format="autopar-plan-99"))
    for words in (["show", path], ["emit", path, "-o", tmp_path / "program"]):
        assert f"PlanError: {path}: format: expected 'autopar-plan-1'" in refused(call, *words)


def test_plan_of_another_model(call, edited, tmp_path):
    path = edited(lambda data: data["model"].update(args={"hidden": "64"}))
    assert "PlanError: the plan belongs to another model: it was made for graph " in refused(call, "emit", path, "-o", tmp_path / "program")
    assert not (tmp_path / "program").exists()


def test_plan_of_another_cluster(call, edited, tmp_path):
    path = edited(lambda data: data["cluster"].update(spec="cpu:4"))
    assert "PlanError: the plan belongs to another cluster: 2 x cpu, this one has 4 x cpu" in refused(call, "emit", path, "-o", tmp_path / "program")


def test_plan_from_python_objects(call, edited, tmp_path):
    path = edited(lambda data: data["model"].update(source=""))
    err = refused(call, "emit", path, "-o", tmp_path / "program")
    assert f"PlanError: {path}: the plan was made from Python objects (autopar.plan), so its model cannot be made again here" in err


def test_plan_whose_model_is_gone(call, edited, tmp_path):
    path = edited(lambda data: data["model"].update(source="/nowhere/net.py:build"))
    assert f"PlanError: {path}: its model /nowhere/net.py:build is not there, nor net.py beside the plan" in refused(call, "emit", path, "-o", tmp_path / "x")


def test_a_run_is_no_plan(call, tmp_path):
    run = tmp_path / "run.json"
    run.write_text('{"format": "autopar-run-1"}')
    assert f"autopar simulate PLAN --against {run}" in refused(call, "simulate", run)


def test_emit_refuses(call, model, plan_file, tmp_path):
    assert "OptionsError: --cluster: missing; a model needs one" in refused(call, "emit", f"{model}:build", "-o", tmp_path / "x")
    err = refused(call, "emit", plan_file, *CPU, "--batch", "4", "-o", tmp_path / "x")
    assert f"OptionsError: --cluster, --batch: {plan_file} is a plan, which has decided this already" in err
    assert "UsageError: Missing option" in refused(call, "emit", plan_file)
    assert f"OptionsError: --measured: {plan_file} is a plan, which has decided this already" in refused(call, "emit", plan_file, "--measured", "H100-80GB", "-o", tmp_path / "x")
    assert "ClusterError: measured: expected a file" in refused(call, "emit", f"{model}:build", "--cluster", "8xH100", "--measured", "H900", "-o", tmp_path / "x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    assert "is not empty and not only an emitted program" in refused(call, "emit", plan_file, "-o", tmp_path / "full")
    assert "OptionsError: -o: expected a folder" in refused(call, "emit", plan_file, "-o", tmp_path / "full" / "thesis.tex")
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "thesis.tex"]


# -- the other commands --------------------------------------------------------------------------------------------------------------


def test_run_refuses(call, tmp_path):
    assert f"ProgramError: {tmp_path} is not an emitted program: it has no program.py" in refused(call, "run", tmp_path)
    (tmp_path / "program.py").write_text("MESH = (\n")
    assert "ProgramError: program.py, line 1: the emitted program is not valid Python" in refused(call, "run", tmp_path)


def test_verify_draws_the_programs_numbers(call_json, model):
    code, data = call_json("verify", f"{model}:build", *CPU, "--arg", "drop=0.5")
    assert code == 0 and data["passed"]


def test_verify_finds_a_wrong_program(call, call_json, model, monkeypatch):
    from autopar.verify import compare

    def print_wrong(*args):
        files = right(*args)
        assert "aten.gelu.default(" in files["program.py"]
        return {**files, "program.py": files["program.py"].replace("aten.gelu.default(", "1.0001 * aten.gelu.default(", 1)}

    right = compare.print_files
    monkeypatch.setattr(compare, "print_files", print_wrong)
    code, out, err = call("verify", f"{model}:build", *CPU)
    assert code == 1 and "WRONG" in out
    assert "VerificationError: build on cpu:2 (mesh a=2) differs from plain PyTorch: " in err and "\n  gradient down.weight, step " in err
    code, data = call_json("verify", f"{model}:build", *CPU)
    assert code == 1 and not data["passed"] and data["error"]["type"] == "VerificationError"
    assert "down.weight" in {f["name"] for f in data["failures"]}


def test_verify_finds_a_wrong_update(call, model, monkeypatch):
    from autopar.verify import compare

    def run_wrong(program, mesh, local, parts, has_loss):
        found = right(program, mesh, local, parts, has_loss)
        local[1]["down.bias"][0] += 1e-6  # on one rank only
        return found

    right = compare._run
    monkeypatch.setattr(compare, "_run", run_wrong)
    code, _, err = call("verify", f"{model}:build", *CPU)
    assert code == 1 and "\n  parameter down.bias, step " in err


def test_profile_refuses(call):
    for word in ("0", "1,x", "", "-2"):
        assert f"OptionsError: --ranks: expected positive whole numbers joined by commas, as in 1,2,4, found {word!r}" in refused(call, "profile", f"--ranks={word}")
    for word in ("0", "-1", "nan", "inf"):
        expected = f"OptionsError: --time-limit: expected a positive number of seconds, found {float(word):g}"
        assert expected in refused(call, "profile", f"--time-limit={word}")
    assert "OptionsError: --device: expected one of auto, cpu, cuda, found 'tpu'" in refused(call, "profile", "--device", "tpu")
    import torch

    if not torch.cuda.is_available():
        assert "OptionsError: --device cuda: torch finds no GPU here" in refused(call, "profile", "--device", "cuda")


def test_profile_under_torchrun_has_its_ranks(call, monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    expected = "OptionsError: --ranks 1,2: only for processes that profile starts itself, on cpu; torchrun has its own"
    assert expected in refused(call, "profile", "--ranks", "1,2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "two")
    assert "RankError: LOCAL_WORLD_SIZE: expected a number, as torchrun sets it, found 'two'" in refused(call, "profile")


def test_demo_refuses(call, model, tmp_path):
    assert "OptionsError: --steps: expected a positive whole number, found 0" in refused(call, "demo", "--steps", "0", "--out", tmp_path)
    assert "OptionsError: --out: expected a folder" in refused(call, "demo", "--out", model)


def test_no_command(call):
    code, out, err = call()
    assert code == 2 and "Usage: autopar" in out + err
    assert "UsageError: No such command 'explode'" in refused(call, "explode")


def test_a_fault_of_our_own_shows_its_traceback(call, call_json, plan_file, monkeypatch):
    from autopar.cli import commands

    monkeypatch.setattr(commands, "show_plan", lambda *_: 1 / 0)
    err = refused_fault(call, "show", plan_file)
    assert "Traceback" in err and "ZeroDivisionError" in err and "This is a fault in autopar" in err
    code, data = call_json("show", plan_file)
    assert code == 3 and data["error"] == {"type": "ZeroDivisionError", "message": "division by zero", "exit_code": 3}


def refused_fault(call, *words):
    code, out, err = call(*words)
    assert (code, out) == (3, "")
    return err


# -- runs ----------------------------------------------------------------------------------------------------------------------------


def test_run_cannot_record(call, tmp_path):
    from autopar.runtime import write_program
    from tests.runtime.programs import zero3

    program = tmp_path / "program"
    write_program({**zero3(2), "train.py": "raise SystemExit(7)"}, program)
    assert "OptionsError: --record: the folder /nowhere does not exist" in refused(call, "run", program, "--record", "/nowhere/run.json")
    err = refused(call, "run", program, "--record", tmp_path / "run.json")
    assert f"OptionsError: --record {tmp_path / 'run.json'}: {program / 'train.py'} takes no --record: emit it again with `autopar emit`" in err
    err = refused(call, "run", program, "--profile", tmp_path / "trace.json")
    assert f"OptionsError: --profile {tmp_path / 'trace.json'}: {program / 'train.py'} takes no --profile: emit it again with `autopar emit`" in err
    assert "give one of them" in refused(call, "run", program, "--record", tmp_path / "run.json", "--no-record")


def test_simulate_against_no_run(call, plan_file, tmp_path):
    path = tmp_path / "run.json"
    assert f"RunError: {path}: cannot be read: No such file or directory; expected a run" in refused(call, "simulate", plan_file, "--against", path)
    path.write_text('{"format": "autopar-run-1", "ranks": [')
    assert f"RunError: {path}: line 1, column 39: not JSON" in refused(call, "simulate", plan_file, "--against", path)
    err = refused(call, "simulate", plan_file, "--against", plan_file)
    assert f"RunError: {plan_file}: format: expected 'autopar-run-1', found 'autopar-plan-1': not a run" in err


def test_a_command_that_is_none_is_told_without_a_stray_stop(call):
    code, out, err = call("foo")
    assert (code, out) == (2, "")
    assert "No such command 'foo'." in err and "?." not in err and err.rstrip().endswith("`autopar --help` shows what it takes.")
