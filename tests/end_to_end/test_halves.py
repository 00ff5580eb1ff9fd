"""Training in halves: bf16 and fp16 keep float32 masters, and follow float32 as plain PyTorch does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import autopar  # noqa: E402

pytestmark = pytest.mark.torch


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
    return model, torch.randn(32, 16), torch.randint(0, 8, (32,))


def losses(precision, steps=6):
    model, x, y = build()
    step = autopar.compile(
        model, "cpu:1", example_inputs=(x,), example_targets=(y,), loss=nn.functional.cross_entropy, optimizer=torch.optim.AdamW, options=autopar.Options(precision=precision)
    )
    return step, [float(step(x, y)) for _ in range(steps)]


@pytest.mark.parametrize("precision, dtype, near", [("bf16", "bfloat16", 2e-3), ("fp16", "float16", 3e-4)])
def test_masters_are_float32_and_losses_follow(precision, dtype, near):
    _, exact = losses("fp32")
    step, found = losses(precision)
    assert found == pytest.approx(exact, abs=near) and found[-1] < found[0]
    dtypes = {tensor.name: tensor.dtype for tensor in step.plan.tensors if tensor.name.partition("@")[0] in ("0.weight", "exp_avg:0.weight", "master:0.weight")}
    assert {name.partition("@")[0]: found for name, found in dtypes.items()} == {"0.weight": dtype, "master:0.weight": "float32", "exp_avg:0.weight": "float32"}


def test_a_device_without_bf16_says_which_has_a_figure():
    from autopar.api import _no_rate
    from autopar.cluster import parse_cluster

    told = _no_rate(parse_cluster("8xV100-32GB"), "bf16")
    assert "no figure for bfloat16" in told and told.endswith("--precision fp16 has one")
    assert _no_rate(parse_cluster("8xV100-32GB"), "fp16") == "" and _no_rate(parse_cluster("8xH100"), "bf16") == ""
