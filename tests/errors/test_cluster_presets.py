"""The presets: their tables in docs/clusters.md, their links, the machines by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.cluster import device_links, list_devices, list_links, list_machines, num_devices, parse_cluster, ports_per_device
from autopar.errors import ClusterError

DOCS = Path(__file__).parents[2] / "docs" / "clusters.md"
DTYPES = ("bfloat16", "float16", "float32", "float64")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def device_table():
    def rates(device):
        known = dict(device.flops_per_s)
        return " / ".join(f"{known[dtype] / 1e12:g}" if dtype in known else "-" for dtype in DTYPES)

    rows = (
        (
            f"`{d.name}`", f"{d.memory_bytes / 2**30:.1f}", rates(d), f"{d.memory_bytes_per_s / 1e9:g}", f"{d.board_power_w or '-'}",
            ", ".join(f"`{link}`" for link in device_links(d.name)), d.source,
        )
        for d in list_devices()
    )  # fmt: skip
    return table(("device", "GiB", f"TFLOP/s: {' / '.join(DTYPES)}", "memory GB/s", "W", "inside, across", "source"), rows)


def link_table():
    rows = ((f"`{x.name}`", f"{x.latency_s * 1e6:g}", f"{x.bandwidth_bytes_per_s / 1e9:g}", x.source) for x in list_links())
    return table(("link", "us", "GB/s", "source"), rows)


def machine_table():
    rows = ((f"`{m.name}`", f"{m.devices} x `{m.device}`", f"`{m.inside}`", f"{m.nics} x `{m.across}`", m.source) for m in list_machines())
    return table(("machine", "devices", "inside", "ports", "source"), rows)


@pytest.mark.parametrize("make", [device_table, link_table, machine_table])
def test_the_documentation_lists_every_preset_with_its_source(make):
    assert make() in DOCS.read_text(encoding="utf-8"), f"docs/clusters.md: expected this table:\n{make()}"


def test_names_stand_for_one_thing():
    names = [x.name for x in (*list_devices(), *list_machines())]
    assert len(names) == len(set(names)) and len({x.name for x in list_links()}) == len(list_links())


@pytest.mark.parametrize("machine", list_machines(), ids=lambda m: m.name)
def test_machines_by_name(machine):
    cluster = parse_cluster(f"3x{machine.name}")
    assert (cluster.num_hosts, cluster.devices_per_host, cluster.device.name) == (3, machine.devices, machine.device)
    assert (cluster.inside.name, cluster.across.name) == (machine.inside, machine.across)
    assert ports_per_device(cluster) == machine.nics / machine.devices


@pytest.mark.parametrize(
    ("machine", "gbit_per_host"),
    [
        ("p3.16xlarge", 25), ("p3dn.24xlarge", 100), ("DGX-1", 400), ("DGX-2", 800), ("p4d.24xlarge", 400), ("p5.48xlarge", 3200),
        ("DGX-A100-80GB", 1600),
    ],
)  # fmt: skip
def test_what_a_host_sends(machine, gbit_per_host):
    cluster = parse_cluster(f"2x{machine}")
    sent = cluster.across.bandwidth_bytes_per_s * ports_per_device(cluster) * cluster.devices_per_host
    assert sent == pytest.approx(gbit_per_host * 1e9 / 8)


def test_the_share_of_a_port_that_a_v100_is_known_by_is_that_of_its_machine():
    known, machine = parse_cluster("2x16xV100-32GB"), parse_cluster("2xDGX-2")
    assert num_devices(known) == num_devices(machine)
    assert known.across.bandwidth_bytes_per_s == machine.across.bandwidth_bytes_per_s * ports_per_device(machine)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2x8xDGX-H100", "cluster '2x8xDGX-H100': DGX-H100 is a whole host: expected hosts x machine, as in 2xDGX-H100"),
        ("0xDGX-H100", "cluster '0xDGX-H100': the number of hosts: expected a positive whole number, found '0'"),
    ],
)
def test_bad_machines(text, message):
    with pytest.raises(ClusterError) as error:
        parse_cluster(text)
    assert str(error.value) == message


def test_a_machine_alone_is_no_cluster():
    with pytest.raises(ClusterError, match="did you mean 1xp4d.24xlarge \\(one such machine\\)\\?$"):
        parse_cluster("p4d.24xlarge")
