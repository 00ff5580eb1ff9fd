"""Masks of positions, as T5's decoder has them, are launches of nothing but what they are for."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.api import compile_workload  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace import Workload  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH, HEADS, WIDTH = 16, 4, 32


def filled(bias, late):
    return bias.masked_fill(late, torch.finfo(bias.dtype).min)


def chosen(bias, late):
    return torch.where(late, torch.finfo(bias.dtype).min, bias)


def added(bias, late):
    return bias + torch.where(late, torch.finfo(bias.dtype).min, torch.zeros((), dtype=bias.dtype))


class Decoder(nn.Module):
    """Attention with a bias of distances and a mask of its own."""

    def __init__(self, masked):
        super().__init__()
        self.masked, self.qkv, self.out = masked, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Embedding(LENGTH, HEADS)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        place = torch.arange(s, device=x.device)
        bias = self.bias((place[:, None] - place).abs()).permute(2, 0, 1).unsqueeze(0)
        mask = self.masked(bias, place > place[:, None])
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, s, WIDTH))


@pytest.mark.parametrize("masked, launches", [(filled, 2), (chosen, 2), (added, 1)])
def test_a_mask_is_filled_in_by_one_kernel(masked, launches):
    """Of what is between the bias and attention. What was compared is a launch of its own where the backward pass reads it, too; the number is the kernel's."""
    workload = Workload(Decoder(masked), (torch.randn(2, LENGTH, WIDTH),), (torch.randn(2, LENGTH, WIDTH),), F.mse_loss, torch.optim.AdamW)
    text = compile_workload(workload, "1xH100-80GB", Options(precision="bf16", price=False)).files["program.py"]
    [between] = re.findall(r"ops\.embedding\(.*?\n(.*?)\n[^\n]* = ops\.attention\(", text, re.DOTALL)
    calls = [line.strip() for line in between.splitlines() if re.search(r" = (?!\w+\.(?:permute|reshape)\()", line) and "kept[" not in line]
    assert len(calls) == launches and "kernels." in calls[-1], calls
