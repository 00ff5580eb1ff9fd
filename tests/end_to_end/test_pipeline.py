"""Real models in pipeline stages give the numbers of plain PyTorch: in float64, all ranks in one process; in float32 on gloo processes.

All models, schedules and numbers of microbatches: benchmarks/pipeline_numbers.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.constraints import StageDegrees, constrain  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402

from tests.solver.narrowing import narrowing  # noqa: E402

from .staged_models import Case, compare_case, gpt, list_cases  # noqa: E402
from .test_processes import run_ranks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

CASES = (
    Case("llama", 2, "1f1b", 4, dp=2, zero=3),
    Case("unet", 2, "zero-bubble", 4, tp=2),
    Case("gpt-frozen", 2, "gpipe", 2, dp=2),
    Case("t5", 2, "interleaved", 2, dp=2, zero=2),
    Case("unet", 2, "zbv", 4, dp=2, zero=1),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model}-{case.schedule}")
def test_stages_equal_plain_pytorch(case):
    if case.model in ("llama", "t5"):
        pytest.importorskip("transformers")
    report = compare_case(case, time_limit_s=30.0)
    assert not report.failures, describe_failure(report)
    assert {k.kind for k in report.kinds} >= {"loss", "gradient", "parameter", "optimizer state"}
    assert report.num_ranks == case.num_ranks and report.plans_in_turns == 1


def test_the_matrix_has_every_model_in_every_schedule_and_stage_count():
    cases = list(list_cases())
    assert len({case.name for case in cases}) == len(cases)
    assert {(c.model, c.schedule) for c in cases} == {(c.model, k) for c in cases for k in ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv")}
    assert {(c.model, c.stages) for c in cases} == {(c.model, n) for c in cases for n in (2, 4)}
    assert {c.microbatches for c in cases} == {1, 2, 4, 8} and {c.zero for c in cases} == {None, 0, 1, 2, 3}


@pytest.mark.gloo
@pytest.mark.parametrize(
    "fix", ["pp=2,tp=2,microbatches=4,schedule=1f1b", "pp=2,dp=2,microbatches=2,schedule=zbv", "pp=2,dp=2,tp=1,zero=1,microbatches=2;stage 1 dp=1 tp=2"]
)
def test_five_adamw_steps_of_four_ranks_equal_plain_pytorch(tmp_path, fix):
    other = "pp=1,dp=4,microbatches=1"
    for code, _, err in run_ranks(4, "pipeline", tmp_path, fix, other, timeout=280):
        assert code == 0, err
    assert {"plan.json", "program.py", "schedule.csv", "stage_0.py", "train.py", "weights.pt"} <= {p.name for p in (tmp_path / "program").iterdir()}


def test_stages_with_other_degrees_equal_plain_pytorch():
    """The first stage splits the batch, the second one weights; what crosses is resharded on the way."""
    words = constrain(pp=2, dp=2, tp=1, microbatches=2, schedule="zbv", stage=[StageDegrees(1, dp=1, tp=2)])
    torch.manual_seed(0)
    report = verify_workload(gpt(), "cpu:4", autopar.Options(constraints=words, price=False, time_limit_s=30.0))
    assert not report.failures, describe_failure(report)
    assert report.num_ranks == 4


def test_degrees_that_the_search_gives_to_single_stages_equal_plain_pytorch():
    """Data parallelism on the first stage, tensor parallelism on the second one: nobody asked for that."""
    workload = narrowing(batch=8, seq=256, width=64, wide=512, device="cpu")
    report = verify_workload(workload, "cpu:4", autopar.Options(constraints=constrain(pp=2, vpp=1, microbatches=2), price=False, time_limit_s=30.0))
    assert not report.failures, describe_failure(report)
    assert "mixed" in report.mesh


@pytest.mark.gloo
def test_a_program_without_a_loss_is_run(tmp_path):
    """Its train.py prints no loss."""
    workload = autopar.Workload(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)), (torch.randn(4, 8),), name="forward")
    files = autopar.compile_workload(workload, "cpu:1", autopar.Options()).files
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    torch.save(workload.model.state_dict(), tmp_path / "weights.pt")
    env = {**os.environ, "PYTHONPATH": str(Path(autopar.__file__).parents[1])}
    run = subprocess.run([sys.executable, str(tmp_path / "train.py"), "--steps", "2"], env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["step", "0", "step", "1"] and '"""Run forward with the program' in files["train.py"]


@pytest.mark.gloo
def test_outputs_of_four_ranks_equal_plain_pytorch(tmp_path):
    """Without a loss: what the model returns comes from two stages, in microbatches."""
    for code, _, err in run_ranks(4, "forward", tmp_path, "pp=2,dp=2,microbatches=2", timeout=200):
        assert code == 0, err


@pytest.mark.gloo
def test_memory_of_what_only_goes_forward_is_as_predicted(tmp_path):
    """No stage runs ahead of the others and holds all that it has sent; what every rank is given at the end counts."""
    for code, _, err in run_ranks(3, "forward_memory", "pp=3,microbatches=8", timeout=200):
        assert code == 0, err


@pytest.mark.gloo
@pytest.mark.parametrize("world, kinds", [(2, ("gpipe", "1f1b", "interleaved,vpp=2")), (4, ("1f1b", "zero-bubble", "zbv"))])
def test_memory_of_training_is_as_predicted_on_every_rank(world, kinds):
    fixes = [f"pp={world},microbatches=8,schedule={kind}" for kind in kinds]
    for code, _, err in run_ranks(world, "stage_memory", *fixes, timeout=280):
        assert code == 0, err


@pytest.mark.gloo
def test_five_adamw_steps_of_eight_ranks_equal_plain_pytorch(tmp_path):
    """Three kinds of parallelism at once; the checkpoint goes on in twice as many stages without data parallelism."""
    fix, other = "pp=2,dp=2,tp=2,zero=1,microbatches=2,schedule=1f1b", "pp=4,tp=2,microbatches=4,schedule=gpipe"
    for code, _, err in run_ranks(8, "pipeline", tmp_path, fix, other, timeout=280):
        assert code == 0, err
