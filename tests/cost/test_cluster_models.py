"""What power, ports, oversubscription and mixed hosts do to the cost model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopar.cluster import list_links, list_machines, parse_cluster
from autopar.cost.attention import attention_seconds
from autopar.cost.collectives import collective_seconds, explain_collective
from autopar.cost.comm_table import mesh_share
from autopar.cost.curves import KINDS, bus_factor, published_curves
from autopar.cost.device_rates import find_device_rates
from autopar.cost.matmul import find_matmul_rates, matmul_seconds
from autopar.cost.model import build_cost_model

HOSTS = '[[hosts]]\ncount = 2\ndevices = 8\ndevice = "H100-80GB"\n'
BIG = 2.0**33


@pytest.fixture
def model_of(tmp_path):
    def do(text):
        path = tmp_path / "c.toml"
        path.write_text(text)
        return build_cost_model(parse_cluster(path))

    return do


def bus(model, kind, ranks, per_host, size=BIG):
    return size * bus_factor(kind, ranks) / float(collective_seconds(model.links, kind, ranks, per_host, size))


def test_a_table_counts_whatever_its_name(model_of):
    """Of a device of the user's own that is called as a preset is, no figure is the preset's."""
    table = "memory_bytes = 80e9\nflops_per_s = { bfloat16 = 100e12, float32 = 12e12 }\nmemory_bytes_per_s = 0.5e12\nsource = \"my bench\"\n"
    links = '[links]\ninside = "nvlink4"\nacross = "ib-400"\n'
    found = [model_of(f'[devices."{name}"]\n{table}[[hosts]]\ncount = 2\ndevices = 8\ndevice = "{name}"\n{links}') for name in ("mine", "H100-80GB")]
    assert found[0].flops_per_s == found[1].flops_per_s and found[0].rates is None and found[1].rates is None
    assert model_of(HOSTS).rates is not None
    more = replace(parse_cluster("2x8xH100-80GB").device, memory_bytes=96 * 2**30, memory_bytes_per_s=2.4e12)
    assert find_device_rates(more) == find_device_rates(parse_cluster("2x8xH100-80GB").device), "with other memory its matmuls are as fast"


# --- power ----------------------------------------------------------------------------------------------------------------------------


def test_power_scales_matmuls_and_attention_and_nothing_else(model_of):
    full, capped = model_of(HOSTS), model_of(HOSTS + "power_w = 500\n")
    assert dict(capped.flops_per_s) == pytest.approx({d: r * 5 / 7 for d, r in full.flops_per_s})
    long, longer = (float(matmul_seconds(m.rates, 1, 8192, 8192, 8192, "bfloat16")) for m in (full, capped))
    assert longer / long == pytest.approx(7 / 5, rel=0.02)
    kw = {"causal": True, "kernel": full.attention, "backward": False}
    slow, fast = (float(attention_seconds(m.rates, 8, 32, 4096, 4096, 128, "bfloat16", **kw)) for m in (capped, full))
    assert slow / fast == pytest.approx(7 / 5, rel=0.02)
    assert (capped.memory_bytes_per_s, capped.links, capped.attention) == (full.memory_bytes_per_s, full.links, full.attention)
    assert "at 500 of 700 W: matmuls at 0.714 of their rate" in capped.source and " W: " not in full.source


def test_power_scales_a_device_of_the_users_own(model_of):
    own = """[devices.mine]
memory_bytes = 24e9
flops_per_s = { bfloat16 = 100e12 }
memory_bytes_per_s = 1e12
board_power_w = 400
source = "my bench"
[[hosts]]
count = 1
devices = 1
device = "mine"
"""
    full, capped = model_of(own), model_of(own + "power_w = 100\n")
    assert capped.rates is None and dict(capped.flops_per_s)["bfloat16"] == pytest.approx(dict(full.flops_per_s)["bfloat16"] / 4)


# --- ports ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("per_host", [1, 2, 8])
def test_groups_share_the_ports_of_a_host(model_of, kind, per_host):
    """All groups of a host send at once: with one port for eight devices each gets an eighth of what it had."""
    all_ports, one = model_of(HOSTS), model_of(HOSTS + "nics = 1\n")
    ranks = 2 * per_host
    own = all_ports.links.across_bytes_per_s * (1 if kind == "all_to_all" else per_host) / 8
    assert bus(one, kind, ranks, per_host) == pytest.approx(own, rel=0.05)
    assert bus(all_ports, kind, ranks, per_host) == pytest.approx(8 * own, rel=0.25)  # eight ports may exceed what is inside


def test_a_message_to_another_stage_shares_the_port_too(model_of):
    all_ports, one = model_of(HOSTS), model_of(HOSTS + "nics = 1\n")
    alone, shared = (float(collective_seconds(m.links, "send_recv", 2, 1, BIG)) for m in (all_ports, one))
    assert shared / alone == pytest.approx(8, rel=0.02)
    more = model_of(HOSTS + "nics = 32\n")
    assert float(collective_seconds(more.links, "send_recv", 2, 1, BIG)) == pytest.approx(alone)


def test_inside_a_host_ports_do_not_matter(model_of):
    one, all_ports = model_of(HOSTS + "nics = 1\n"), model_of(HOSTS)
    assert bus(one, "all_reduce", 8, 8) == bus(all_ports, "all_reduce", 8, 8)
    assert "one 400 Gb/s port per device" in one.source and one.source.endswith(" (1 for the 8 devices of a host)")
    assert "devices of a host)" not in all_ports.source


def test_the_measured_rows_of_p4d_speak_for_it():
    seconds, source, outside = explain_collective(build_cost_model(parse_cluster("2xp4d.24xlarge")).links, "all_reduce", 16, 8, 2**30)
    row = next(c for c in published_curves() if (c.device, c.ranks, c.per_host, c.nics) == ("A100", 16, 8, 4))
    assert source.startswith("measured: " + row.source) and outside == 1.0
    assert seconds == pytest.approx(float(np.interp(2**30, row.bytes, row.seconds)), rel=0.1)


@pytest.mark.parametrize(
    ("text", "kind", "ranks", "per_host", "size"),
    [
        ("1xGB200-NVL72", "all_reduce", 72, 72, 2**30), ("2xGB200-NVL72", "all_reduce", 144, 72, 2**31),
        ("1x8xGB300", "all_to_all", 8, 8, 2**33), ("1x8xMI355X", "all_reduce", 8, 8, 2**33), ("1x8xMI355X", "all_to_all", 8, 8, 2**33),
    ],
)  # fmt: skip
def test_rows_of_the_newer_links_are_reached(text, kind, ranks, per_host, size):
    links = build_cost_model(parse_cluster(text)).links
    seconds, source, outside = explain_collective(links, kind, ranks, per_host, size)
    curves = [c for c in published_curves() if c.inside == links.inside.name and c.bytes]
    row = next(c for c in curves if (c.kind, c.ranks, c.per_host) == (kind, ranks, per_host))
    assert source.startswith("measured: ") and outside == 1.0
    assert seconds == pytest.approx(float(np.interp(size, row.bytes, row.seconds)), rel=0.05)


def test_every_link_of_a_measured_row_is_a_preset():
    assert {c.inside for c in published_curves()} <= {link.name for link in list_links()}


def test_a_mesh_has_one_link_to_each_other_device():
    links = {link.name: link for link in list_links()}
    for name in ("xgmi", "xgmi4"):
        assert [mesh_share(links[name], ranks) for ranks in (2, 8)] == [1 / 7, 1]
    assert mesh_share(links["nvlink4"], 2) == 1


def test_a_cube_has_links_to_four_others():
    """Rings among the first so many devices of a DGX-1, each over one link."""
    cube = next(link for link in list_links() if link.name == "nvlink2-cube")
    assert [round(6 * mesh_share(cube, ranks)) for ranks in range(2, 9)] == [1, 2, 4, 1, 2, 2, 6]


@pytest.mark.parametrize("machine", [m.name for m in list_machines()])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "send_recv"])
def test_machines_have_prices_that_never_fall(machine, kind):
    model = build_cost_model(parse_cluster(f"4x{machine}"))
    per_host = model.cluster.devices_per_host
    for ranks, here in ((2, 1), (2, 2), (per_host, per_host), (4, 1), (4 * per_host, per_host)):
        seconds = collective_seconds(model.links, kind, ranks, here, 2.0 ** np.arange(0, 36))
        assert np.all(np.isfinite(seconds)) and np.all(seconds >= 0) and np.all(np.diff(seconds) >= -1e-12)


# --- oversubscription -----------------------------------------------------------------------------------------------------------------


def test_an_oversubscribed_network_divides_what_crosses_it(model_of):
    whole, divided = model_of(HOSTS), model_of(HOSTS + "[links]\noversubscription = 4\n")
    assert bus(divided, "all_gather", 16, 1) == pytest.approx(bus(whole, "all_gather", 16, 1) / 4, rel=0.05)
    assert bus(divided, "all_gather", 8, 8) == bus(whole, "all_gather", 8, 8)
    assert "divided by 4: oversubscribed where all hosts send at once (racks are not told apart)" in divided.source


@pytest.mark.parametrize("device", ["A100-80GB", "A100-40GB", "H100-80GB", "H200-141GB", "V100-32GB", "MI300X", "B200", "L40S"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_network_that_is_oversubscribed_more_is_never_faster(model_of, device, kind):
    """Its ratio divides bandwidth and nothing else: a message takes no longer than one of so many times its bytes takes through the ports alone, a small one what it takes there."""
    hosts, sizes = HOSTS.replace("H100-80GB", device), 2.0 ** np.arange(0, 36, 0.5)
    groups = ((2, 1, None), (3, 1, None), (3, 2, 1), (4, 2, None), (8, 1, None), (8, 4, None), (12, 4, None), (16, 8, None), (16, 8, 1), (32, 8, None), (64, 8, None), (512, 8, None))
    whole, ratios = model_of(hosts).links, (1.0001, 1.2, 1.4, 1.5, 1.6, 2, 2.2, 3, 4, 8, 16, 100)
    divided = [(ratio, model_of(f"{hosts}[links]\noversubscription = {ratio}\n").links) for ratio in ratios]
    for ranks, per_host, nics in groups if kind != "send_recv" else groups[:1]:
        before = collective_seconds(whole, kind, ranks, per_host, sizes, nics)
        tiny = before[0]
        for ratio, links in divided:
            after = collective_seconds(links, kind, ranks, per_host, sizes, nics)
            assert np.all(after >= before * (1 - 1e-9)) and np.all(after <= collective_seconds(whole, kind, ranks, per_host, ratio * sizes, nics) * (1 + 1e-9))
            assert after[0] == pytest.approx(tiny, rel=0.1)
            before = after


# --- hosts of different kinds ---------------------------------------------------------------------------------------------------------


def test_a_mixed_cluster_costs_what_its_slowest_costs(model_of):
    mixed = model_of(HOSTS + HOSTS.replace("H100-80GB", "A100-40GB"))
    slow = build_cost_model(parse_cluster("4x8xA100-40GB"))
    assert mixed.rates.tiles == slow.rates.tiles and mixed.flops_per_s == slow.flops_per_s and mixed.attention == slow.attention
    assert mixed.memory_bytes_per_s == slow.memory_bytes_per_s
    assert mixed.source.startswith("mixed: 2 x 8 H100-80GB and 2 x 8 A100-40GB; every device counts as the slowest in each figure; ")
    assert "matmuls: the slowest of H100-80GB and A100-40GB: A100-40GB: " in mixed.source


def test_no_matmul_is_faster_than_on_any_of_its_devices(model_of):
    mixed = model_of(HOSTS.replace("H100-80GB", "L40S") + HOSTS.replace("H100-80GB", "A100-40GB"))
    for dtype in ("bfloat16", "float32", "float64"):
        for m in (16, 512, 8192):
            seconds = float(matmul_seconds(mixed.rates, 1, m, 4096, 4096, dtype))
            alone = [float(matmul_seconds(find_matmul_rates(d), 1, m, 4096, 4096, dtype)) for d in ("L40S", "A100-40GB")]
            assert seconds >= 0.97 * max(alone)


def test_what_one_host_cannot_compute_in_bfloat16_is_float32(model_of):
    mixed = model_of(HOSTS.replace("H100-80GB", "V100-32GB") + HOSTS.replace("H100-80GB", "A100-40GB"))
    assert "bfloat16" not in dict(mixed.flops_per_s) and mixed.attention == "efficient"
    assert dict(mixed.flops_per_s)["float32"] == pytest.approx(0.9 * 15.7e12)


def test_the_power_of_each_host_counts(model_of):
    mixed = model_of(HOSTS + HOSTS + "power_w = 350\n")
    full = build_cost_model(parse_cluster("2x8xH100-80GB"))
    assert dict(mixed.flops_per_s) == pytest.approx({d: r / 2 for d, r in full.flops_per_s})
    # an H100 at half its power is slower than an A100
    slow = model_of(HOSTS + "power_w = 200\n" + HOSTS.replace("H100", "A100"))
    assert dict(slow.flops_per_s)["bfloat16"] == pytest.approx(713e12 * 2 / 7)
