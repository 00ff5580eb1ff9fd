"""Masks beside numbers: a thread takes as many elements of each side by side, so threads need not exchange what they have loaded."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch.nn import functional as F

from autopar import Workload
from autopar.codegen.kernels.parts import print_parts
from benchmarks.kernel_compile import compile_kernels
from benchmarks.norm_spills import Kind, Net

from .kernel_cases import ADAMW, kernels_of

pytestmark = pytest.mark.torch


def kernels_with(dropout, precision):
    """Of blocks of norms, linears, dropout and residuals."""
    with torch.device("meta"):
        net, x, y = Net(Kind(1024, "LayerNorm", "before", True, dropout, precision)), torch.empty(512, 16), torch.empty(512, dtype=torch.long)
    return kernels_of(Workload(net, (x,), (y,), F.cross_entropy, ADAMW), precision)


def has_mask(kernel):
    names = {*kernel.graph.inputs, *kernel.graph.outputs}
    return any(v.dtype == "bool" and v.name in names and len(v.shape) > 1 for v in kernel.graph.values)


@pytest.mark.parametrize("precision, side", [("fp32", 4), ("bf16", 8)])
def test_a_thread_takes_as_many_of_a_mask_as_of_what_it_masks(precision, side):
    seen = set()
    for kernel in kernels_with(0.1, precision):
        text = "\n".join(line for part in print_parts(kernel) if part.text for line in part.text.lines)
        found = set(re.findall(r"fused\.places\(\w+, (\d+)\)", text))
        assert found == ({str(side)} if has_mask(kernel) else set()), kernel.name
        seen.add(has_mask(kernel))
    assert seen == {True, False}
    assert not any("fused.places" in line for kernel in kernels_with(0.0, precision) for part in print_parts(kernel) if part.text for line in part.text.lines)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_threads_wait_for_their_sums_alone(precision):
    """Two waits for the sums along a row; in halves at most two more for each result of the loop, and four for each sum over rows after it."""
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    rows = compile_kernels([k for k in kernels_with(0.1, precision) if "norm" in k.name and has_mask(k)], [90])
    assert len(rows) >= 2 and max(row.waits for row in rows) <= (4 if precision == "fp32" else 9), rows
