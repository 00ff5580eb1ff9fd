"""The user's own ops on the whole road: discovered, registered or as a region; planned, verified, emitted, run by real processes."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import library  # noqa: E402

import autopar  # noqa: E402
from autopar.api import compile_workload, hold_files  # noqa: E402
from autopar.errors import ModelError, PlanError  # noqa: E402
from autopar.graph.plan_json import load_plan, save_plan  # noqa: E402
from autopar.graph.registry import rules_in_force  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace.discovery import discover, register  # noqa: E402
from autopar.trace.load import load_workload  # noqa: E402
from tests.codegen.random_plans import Assigner, Control  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

FILE = Path(__file__).parents[1] / "trace" / "user_ops.py"
DISCOVERED = {
    "userops.mix.default": "b s d, d e, e -> b s e",
    "userops.gate.default": "b s d, d -> b s d",
    "userops.row_softmax.default": "b s [d] -> b s [d]",
    "userops.row_softmax_backward.default": "b s [d], b s [d] -> b s [d]",
    "userops.gate_backward.default": "b s d, b s d, d -> b s d, d",
    "userops.mix_backward.default": "b s d, b s e, e d -> b s e, e d, {e} d",
}


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(register, "_REGISTERED", {})


def load(how, real=False):
    """The workload; `real`: with weights that hold numbers."""
    workload = load_workload(f"{FILE}:{'build_region' if how == 'region' else 'build'}")
    if real:
        workload = sys.modules["autopar_user_user_ops"].build(how == "region")
    if how == "registered":
        autopar.register_rule("userops::mix", "... d, d e, e -> ... e", owed=("bias",), linear=(("x", "bias"),), flops=2.0)
        autopar.register_rule("userops::gate", "... d, d -> ... d")
    return workload


@pytest.mark.parametrize("how", ["discovered", "registered", "region"])
def test_random_plans_give_the_numbers_of_the_whole(how):
    control = Control(load(how, real=True))
    rows = discover.find_rows(control.graph, (), None, budget_s=30.0)
    origins = {row.op.removesuffix(".default"): row.origin for row in rows}
    if how == "region":
        assert origins["autopar_region.user_ops_route"] == origins["autopar_region.user_ops_route_backward"] == "region"
    else:
        assert origins["userops.mix"] == origins["userops.gate"] == how
        assert origins["userops.mix_backward"] == "discovered"
    rng = random.Random(how)
    for sizes, draws in (((2,), 4), ((4,), 3), ((2, 2), 5)):
        assigner = Assigner(control.graph, sizes, rules_in_force(rows))
        for k in range(draws):
            difference, whose = control.worst(assigner.program(assigner.draw(rng)))
            assert difference < 1e-10, (sizes, k, whose)


def test_the_plan_lists_what_was_discovered_and_brings_it_along(tmp_path, monkeypatch):
    workload = load("discovered")
    monkeypatch.setattr(autopar.api, "find_rows", partial(autopar.api.find_rows, budget_s=30.0))  # on a busy machine, too
    plan = compile_workload(workload, "cpu:4", Options(), cache_path=tmp_path / "rules").plan
    assert {row.op: row.text for row in plan.rules} == DISCOVERED
    assert all(row.num_trials > 0 and row.seconds > 0 and row.origin == "discovered" for row in plan.rules)
    shown = str(plan)
    assert "Rules of ops that are not in the table" in shown and "userops.mix" in shown and "b s d, d e, e -> b s e" in shown
    assert "[..] is whole in userops.row_softmax, userops.row_softmax_backward: not found splittable by discovery" in " ".join(shown.split())
    save_plan(plan, tmp_path / "plan.json")
    read = load_plan(tmp_path / "plan.json")
    assert read.rules == plan.rules

    def never(*_):
        raise AssertionError("a plan brings its rules along")

    monkeypatch.setattr(discover, "discover_rule", never)
    again = compile_workload(workload, "cpu:4", Options(), given_plan=read, cache_path=None)
    assert again.plan.rules == plan.rules
    text = (tmp_path / "plan.json").read_text().replace('"checksum": "' + text_between(tmp_path), '"checksum": "')
    (tmp_path / "plan.json").write_text(text.replace('"origin": "discovered"', '"origin": "dreamt"', 1))
    with pytest.raises(PlanError, match=r"rules\[0\] \(userops\.\w+\.default\)\.origin: expected one of discovered, registered, region, found 'dreamt'"):
        load_plan(tmp_path / "plan.json")


def text_between(folder):
    return (folder / "plan.json").read_text().partition('"checksum": "')[2].partition('"')[0]


@pytest.mark.parametrize("how", ["discovered", "region"])
def test_it_verifies(how):
    report = autopar.verify_workload(load(how), "cpu:2", Options(memory_bytes=80_000))
    assert not report.failures


@pytest.mark.gloo
def test_the_emitted_program_runs_and_says_what_is_gone(tmp_path):
    user = tmp_path / "project" / "user_ops.py"
    user.parent.mkdir()
    user.write_text(FILE.read_text())
    compiled = compile_workload(load_workload(f"{user}:build_region"), "cpu:2", Options(), cache_path=None)
    hold_files(compiled).emit(tmp_path / "project" / "out")
    losses = []
    for code, out, err in run_ranks(tmp_path / "project" / "out" / "train.py", tmp_path):
        assert code == 0, err
        losses += out.splitlines()
    assert [line.partition("  loss ")[0] for line in losses] == ["step 0", "step 1"]
    user.rename(tmp_path / "project" / "moved.py")
    ((code, _, err),) = run_ranks(tmp_path / "project" / "out" / "train.py", tmp_path, count=1)
    assert code != 0
    assert "which nothing has registered" in err and "user_ops.py (no such file)" in err and "write where it is now into OPS" in err


def run_ranks(script, cwd, count=2):
    """(code, stdout, stderr) of each of two ranks, or of the first alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    same = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    same["PYTHONPATH"] = str(Path(autopar.__file__).parents[1])
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), "--steps", "2"], env={**os.environ, **same, "RANK": str(r), "LOCAL_RANK": str(r)}, cwd=cwd,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for r in range(count)
    ]  # fmt: skip
    try:
        return [(p.returncode, *found) for p in processes for found in [p.communicate(timeout=200)]]
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.communicate()


def test_an_op_that_draws_its_own_numbers_cannot_be_compared():
    @library.custom_op("userops::noise", mutates_args=())
    def noise(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    noise.register_fake(lambda x: torch.empty_like(x))
    noise.register_autograd(lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: None)

    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(6))

        def forward(self, x):
            return torch.ops.userops.noise(x * self.weight)

    workload = autopar.Workload(Noisy(), (torch.ones(4, 6),), loss=lambda y: y.square().mean(), optimizer=torch.optim.SGD)
    with pytest.raises(ModelError, match="userops.noise.default gives other numbers on the same data each time, so there is nothing to compare"):
        autopar.verify_workload(workload, "cpu:2")
