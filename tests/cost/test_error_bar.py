"""The error that a plan tells: measured where such steps were compared, none where none was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.cluster import list_devices, parse_cluster
from autopar.cost.error_bar import error_bar
from autopar.cost.model import build_cost_model


def bar_of(device, dtype="bfloat16", **changes):
    cluster = parse_cluster(f"2x8x{device}")
    return error_bar(build_cost_model(replace(cluster, device=replace(cluster.device, **changes))), dtype)


@pytest.mark.parametrize("device", [d.name for d in list_devices() if d.kind == "cuda"])
def test_every_preset_has_an_error_or_says_that_none_was_measured(device):
    found, source = bar_of(device, "float16")
    compared = device.startswith(("A100", "H100-80GB", "H200", "V100"))
    assert (found is not None) is compared and ("nine of ten of" in source) is compared
    assert compared or source == f"no measured step of {device} has been compared with its prediction"


def test_the_error_is_of_what_was_compared():
    assert bar_of("H100-80GB")[0] == pytest.approx(0.103) and "319 published steps" in bar_of("A100-40GB")[1] and "one H200" in bar_of("H200-141GB")[1]
    assert bar_of("H100-80GB", "float32") == (None, "no measured step in float32 on a GPU has been compared with its prediction")
    assert bar_of("V100-32GB")[0] is None, "it has no bfloat16, and runs as float32"
    limited, source = bar_of("H100-80GB", power_w=500.0)
    assert limited == 0.40 and "power limit" in source and bar_of("V100-32GB", "float16", power_w=200.0)[0] == 0.48
    own = dict(flops_per_s=(("bfloat16", 1e15), ("float32", 6e13)))
    assert bar_of("H100-80GB", **own)[0] is None, "a device with figures of its own is another, whatever its name"


def test_a_cpu_needs_its_profile():
    model = build_cost_model(parse_cluster("cpu:2"))
    assert error_bar(model, "float32") == (None, "default figures: run `autopar profile` on the machine")
    found, source = error_bar(replace(model, measured=object()), "float32")  # type: ignore[arg-type]
    assert found == 0.13 and source.startswith("nine of ten of 35 steps")
