"""The error that a plan tells: measured where such steps were compared, none where none was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.cluster import Link, list_devices, list_links, parse_cluster
from autopar.cost.error_bar import error_bar
from autopar.cost.measured_file import load_packaged
from autopar.cost.model import build_cost_model
from autopar.cost.unlike import Unlike

from .test_measured import ROWS


def bar_of(device, dtype="bfloat16", **changes):
    cluster = parse_cluster(f"2x8x{device}")
    return error_bar(build_cost_model(replace(cluster, device=replace(cluster.device, **changes))), dtype)


@pytest.mark.parametrize("device", [d.name for d in list_devices() if d.kind == "cuda"])
def test_every_preset_has_an_error_or_says_that_none_was_measured(device):
    found, source = bar_of(device, "float16")
    compared = device.startswith(("A100", "H100-80GB", "H200"))
    assert (found is not None) is compared and ("nine of ten of" in source) is compared
    assert compared or source == f"not known of steps on {device}"


def test_the_error_is_of_what_was_compared():
    assert bar_of("H100-80GB")[1].endswith(". It is of this program: a framework that runs the same split op by op, or hides less of what it sends, takes longer")
    assert bar_of("H100-80GB")[0] == pytest.approx(0.103) and "319 published steps" in bar_of("A100-40GB")[1] and "one H200" in bar_of("H200-141GB")[1]
    assert bar_of("H100-80GB", "float32") == (None, "not known of steps on GPUs in float32")
    assert bar_of("H100-80GB", power_w=500.0) == (None, "not known of steps under a power limit")
    own = dict(flops_per_s=(("bfloat16", 1e15), ("float32", 6e13)))
    assert bar_of("H100-80GB", **own)[0] is None, "a device with figures of its own is another, whatever its name"


def test_encoders_have_an_error_where_one_was_compared():
    for device, known in (("A100-80GB", False), ("H100-80GB", False), ("H200-141GB", True)):
        found, source = error_bar(build_cost_model(parse_cluster(f"8x{device}")), "bfloat16", step_s=1.0, unlike=Unlike("", "", encodes=True))
        assert (found is not None) is known and (known or f"attention without a mask on {device}" in source)


def test_steps_at_a_measured_level_have_an_error_of_their_own():
    for device, share in (("H100-80GB", 0.106), ("H200-141GB", None)):
        model = build_cost_model(parse_cluster(f"8x{device}"), load_packaged(device))
        found, source = error_bar(model, "bfloat16")
        assert found == share and ("at the level of one" in source if share else source == f"not known of steps on {device} at a level of their own")


def test_links_that_nobody_measured_leave_no_error_where_much_is_sent():
    own = Link("own", 8e-6, 5e10, "mine")
    for inside, across, sent, known in (("nvlink4", "ib-400", 0.9, True), ("nvlink4", own, 0.04, True), ("nvlink4", own, 0.06, False), ("nvlink4", "ethernet-100", 0.5, False), ("pcie5", "ib-400", 0.5, False)):
        found_link = {link.name: link for link in list_links()}
        inside, across = found_link.get(inside, inside), found_link.get(across, across)
        for hosts in (1, 2):
            cluster = replace(parse_cluster(f"{hosts}x8xH100-80GB"), inside=inside, across=across)
            found, source = error_bar(build_cost_model(cluster), "bfloat16", step_s=1.0, sent_s=sent)
            wanted = known or hosts == 1 and inside.name == "nvlink4"
            assert (found is not None) is wanted, (inside.name, across.name, sent, hosts)
            assert wanted or f"{sent:.0%} is communication" in source and (across.name in source or inside.name in source)


def test_a_cpu_needs_its_profile():
    model = build_cost_model(parse_cluster("cpu:2"))
    assert error_bar(model, "float32") == (None, "default figures: run `autopar profile` on the machine")
    found, source = error_bar(measured(ROWS), "float32")
    assert found == 0.13 and source.startswith("nine of ten of 35 steps")


def measured(rows, cluster="cpu:4"):
    return build_cost_model(parse_cluster(cluster), rows)


def test_what_no_row_of_the_machine_prices_has_no_error():
    assert error_bar(measured(ROWS, "cpu:8"), "float32") == (None, "not known of 8 ranks on a machine that was measured with 4 at once: run `autopar profile --ranks 1,8`")
    found, source = error_bar(measured(replace(ROWS, comms=())), "float32")
    assert found is None and "no rows of it (all_reduce, " in source and "matmul" not in source
    found, source = error_bar(measured(replace(ROWS, ops=tuple(r for r in ROWS.ops if r.family != "attention"))), "float32")
    assert found is None and "no rows of it (attention)" in source
    alone = replace(ROWS, ops=tuple(replace(r, ranks=1) for r in ROWS.ops), comms=())
    assert error_bar(measured(alone, "cpu:1"), "float32")[0] == 0.13, "one rank sends nothing"


def test_a_step_that_may_wait_for_its_host_has_no_error():
    model = build_cost_model(parse_cluster("1xH200-141GB"))
    for calls, step_ms, known in ((207, 1.84, False), (831, 22.97, False), (729, 78.9, True), (1000, 48.9, False), (1000, 49.1, True)):
        found, source = error_bar(model, "bfloat16", calls, step_ms / 1e3)
        assert (found is not None) is known and ("wait for its host" in source) is not known
    assert "asks for 207 kernels" in error_bar(model, "bfloat16", 207, 1.84e-3)[1] and "10.1 ms together" in error_bar(model, "bfloat16", 207, 1.84e-3)[1]
    assert error_bar(measured(ROWS), "float32", 10**6, 1e-3)[0] == 0.13, "on a CPU who asks is who works"
