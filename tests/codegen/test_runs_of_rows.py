"""Sums over the tokens of each sample, where kernels work on rows of tokens: in the same kernel, a sum of each run of rows."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from autopar.api import compile_workload  # noqa: E402
from autopar.graph.blocks import ROOMY, may_group, most_rows  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace import Workload  # noqa: E402

from .kernel_cases import ADAMW, modulated  # noqa: E402

pytestmark = pytest.mark.torch


def emitted(workload):
    files = compile_workload(workload, "1xH100-80GB", Options(precision="fp32", price=False)).files
    return files["program.py"], files["kernels.py"]


def test_gradients_of_scales_and_shifts_are_made_beside_the_norms():
    """Nothing as large as the activations is written for them, and nothing reads it back."""
    program, kernels = emitted(modulated(2, 128, 128))
    assert "torch.sum(" not in program
    assert len(re.findall(r"fused\.Out\(\[2, 128\], .*groups=2\)", kernels)) >= 5
    [gradient] = [text for text in kernels.split("\n\n\n") if text.startswith("@fused.jit") and "layer_norm_backward = " in text]
    assert gradient.count("tl.store(") == 3 and "% 2 * 128" in gradient  # two sums, and the gradient of what the norm reads


def test_what_no_block_divides_is_summed_up_by_itself():
    """Beside the norm's gradient, which has its kernel all the same."""
    program, kernels = emitted(modulated(2, 100, 128))
    assert "groups=" not in kernels and "layer_norm_backward = " in kernels


def test_of_one_sample_it_is_a_sum_over_all_rows():
    """As many as there are: a rank of many often has one."""
    program, kernels = emitted(modulated(1, 100, 128))
    assert "torch.sum(" not in program and "groups=" not in kernels
    assert len(re.findall(r"fused\.Out\(\[1, 128\], torch.float32, 128", kernels)) >= 3


def test_a_run_is_of_whole_blocks():
    for cols in (2, 24, 128, 1000, ROOMY):
        most = max(most_rows("rows", cols), most_rows("columns"))
        assert [may_group(count, cols) for count in (most, 3 * most, most // 2, most + 1)] == [True, True, False, False]
    assert not may_group(2**14, 1) and not may_group(2**14, ROOMY + 1)


def test_what_reads_such_a_sum_is_another_kernel():
    """Of squares, where as many rows are tokens of all samples as elements of their sums."""

    class Squeezed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.scale = torch.nn.Linear(128, 128), torch.nn.Parameter(torch.ones(128))

        def forward(self, x):
            y = self.up(x).tanh() * self.scale
            return (y.sum(1) * 0.5).sigmoid() * self.scale

    program, kernels = emitted(Workload(Squeezed(), (torch.randn(2, 128, 128),), (torch.randn(2, 128),), F.mse_loss, ADAMW))
    [head] = [line for line in program.splitlines() if "tanh" in line and "kernels." in line and "backward" not in line]
    assert "groups=2" in kernels and "sigmoid" not in head.partition("(")[0] and "no Triton" not in kernels.lower()
