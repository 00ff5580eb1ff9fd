"""Kernels that would read the same tensors are one: both gradients of a norm, however it is spelled."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from autopar.api import compile_workload  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace import Workload  # noqa: E402

pytestmark = pytest.mark.torch


def by_hand(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def in_float32(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).type_as(x) * weight


def by_a_norm(x, weight):
    return x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + 1e-6) * weight


def by_torch(x, weight):
    return nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


class Block(nn.Module):
    def __init__(self, norm, width):
        super().__init__()
        self.norm, self.weight, self.up = norm, nn.Parameter(torch.ones(width)), nn.Linear(width, width, False)

    def forward(self, x):
        return x + self.up(self.norm(x, self.weight))


def launches(norm, precision, width):
    """What is not a matmul in the backward pass of a block."""
    model = nn.Sequential(*(Block(norm, width) for _ in range(3)), nn.Linear(width, 8))
    workload = Workload(model, (torch.randn(8, 16, width),), (torch.randn(8, 16, 8),), nn.functional.mse_loss, torch.optim.AdamW)
    text = compile_workload(workload, "1xH100-80GB", Options(precision=precision, price=False)).files["program.py"]
    [body] = re.findall(r"\ndef block_backward\(.*?(?=\ndef )", text, re.DOTALL)
    return re.findall(r"(?:kernels|aten|torch)\.\w+\(", body)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("norm", [by_hand, in_float32, by_a_norm, by_torch])
def test_both_gradients_of_a_norm_are_one_kernel(norm, precision):
    found = launches(norm, precision, 64)
    assert len([call for call in found if call.startswith("kernels.")]) == 1, found
