"""Models of the zoo give the same numbers fused and op by op, and all their kernels have Triton text: a few of each family; `benchmarks/zoo_kernels.py` runs them all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import zoo_kernels  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]
MODELS = (
    "own.py:lstm", "own.py:contrastive", "own.py:state_space", "own.py:unet_3d", "own.py:depthwise_net", "own.py:moe_one_hot", "huggingface.py:qwen3",
    "huggingface.py:t5", "user_optimizers.py:lion",
)  # fmt: skip
INTERPRETED = ("own.py:dlrm", "own.py:contrastive")


@pytest.mark.parametrize("model", MODELS)
def test_numbers_are_the_same_fused_and_not(model):
    """Loss, gradients and new states of a random plan on one rank and on two, in float64."""
    row = zoo_kernels.survey(str(ROOT / "tests" / "zoo" / model))
    if row.skipped:
        pytest.skip(f"{row.skipped} is not installed")
    assert not row.failed and row.kernels and not row.plain, row
    assert len(row.differences) == 2 and row.worst <= zoo_kernels.SMALL, row.differences


def test_numbers_are_the_same_in_triton(tmp_path):
    """The same with the Triton kernels of whole steps, in Triton's interpreter."""
    pytest.importorskip("triton")
    command = [sys.executable, "benchmarks/zoo_kernels.py", *(f"tests/zoo/{m}" for m in INTERPRETED), "--jobs", "1", "--json", str(tmp_path / "rows.json")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert all(0 < row["differences"][0][0] for row in rows), "no rounding is different: Triton did not run"


def test_a_difference_is_found():
    import torch

    one = torch.ones(3, dtype=torch.float64)
    assert zoo_kernels._difference(one + 1e-6, one) > zoo_kernels.SMALL
    assert zoo_kernels._difference(one * float("nan"), one) == float("inf")
    assert zoo_kernels._difference(torch.tensor([1]), torch.tensor([2])) == float("inf")
