"""Numbers in a wrong unit, power, ports, oversubscription, machines and mixed hosts in a TOML file: each message, and what files mean."""

from __future__ import annotations

import pytest

from autopar.cluster import list_machines, num_devices, parse_cluster, ports_per_device, power_share
from autopar.errors import ClusterError

HOSTS = '[[hosts]]\ncount = 2\ndevices = 8\ndevice = "H100-80GB"\n'
OWN = """[[hosts]]
count = 1
devices = 1
device = "mine"
[devices.mine]
memory_bytes = 24e9
flops_per_s = { bfloat16 = 100e12, float32 = 20e12 }
memory_bytes_per_s = 1e12
source = "my bench"
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def do(text):
        (tmp_path / "c.toml").write_text(text)
        return parse_cluster("c.toml")

    return do


def inside(figures):
    return HOSTS + f"[links]\ninside = {{ {figures} }}\n"


SLOW = "c.toml: links.inside.bandwidth_bytes_per_s: expected bytes per second, at least 1e6, found "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (inside("latency_s = 4e-6, bandwidth_bytes_per_s = 450"),
         SLOW + "450 bytes/s; did you mean 450e9 (450 GB/s), or 56.25e9 (450 Gb/s)?"),
        (inside("latency_s = 4e-6, bandwidth_bytes_per_s = 50"),
         SLOW + "50 bytes/s; did you mean 50e9 (50 GB/s), or 6.25e9 (50 Gb/s)?"),
        (inside("latency_s = 4e-6, bandwidth_bytes_per_s = 25000"), SLOW + "25000 bytes/s; did you mean 25000e6 (25000 MB/s)?"),
        (inside("latency_s = 4e-6, bandwidth_bytes_per_s = 450e18"),
         "c.toml: links.inside.bandwidth_bytes_per_s: expected bytes per second, at most 1e+15, found 4.5e+20; no machine has as much"),
        (inside("latency_s = 8, bandwidth_bytes_per_s = 450e9"),
         "c.toml: links.inside.latency_s: expected seconds, at most 0.1, found 8 s; did you mean 8e-6 (8 us)?"),
        (OWN.replace("24e9", "24"),
         "c.toml: devices.mine.memory_bytes: expected bytes, at least 16777216 (16 MiB), found 24 bytes; did you mean 25769803776 (24 "
         "GiB)?"),
        (OWN.replace("24e9", "81559"),
         "c.toml: devices.mine.memory_bytes: expected bytes, at least 16777216 (16 MiB), found 81559 bytes; "
         "did you mean 85520809984 (81559 MiB)?"),
        (OWN.replace("24e9", "24e18"), "c.toml: devices.mine.memory_bytes: expected bytes, at most 1.1259e+15, found 2.4e+19; no "
         "machine has as much"),
        (OWN.replace("100e12", "989"),
         "c.toml: devices.mine.flops_per_s.bfloat16: expected FLOP per second, at least 1e7, found 989 FLOP/s; did you mean 989e12 (989 "
         "TFLOP/s)?"),
        (OWN.replace("100e12", "989000"),
         "c.toml: devices.mine.flops_per_s.bfloat16: expected FLOP per second, at least 1e7, found 989000 FLOP/s; "
         "did you mean 989000e9 (989000 GFLOP/s)?"),
        (OWN.replace("= 1e12", "= 3350"),
         "c.toml: devices.mine.memory_bytes_per_s: expected bytes per second, at least 1e9, found 3350 bytes/s; did you mean 3350e9 "
         "(3350 GB/s)?"),
        (OWN.replace("= 1e12", "= 3.35"),
         "c.toml: devices.mine.memory_bytes_per_s: expected bytes per second, at least 1e9, found 3.35 bytes/s; did you mean 3.35e12 "
         "(3.35 TB/s)?"),
        (OWN.replace("= 1e12", "= 3350000"),
         "c.toml: devices.mine.memory_bytes_per_s: expected bytes per second, at least 1e9, found 3.35e+06 bytes/s; did you mean 3.35e12 "
         "(3350000 MB/s)?"),
        (OWN + "launch_s = 4\n", "c.toml: devices.mine.launch_s: expected seconds, at most 0.1, found 4 s; did you mean 4e-6 (4 us)?"),
        (HOSTS + "power_w = 0.5\n", "c.toml: hosts[0].power_w: expected watts of one device, 10 to 10000, found 0.5 W; did you mean 500 "
         "(0.5 kW)?"),
        (HOSTS + "power_w = 500000\n",
         "c.toml: hosts[0].power_w: expected watts of one device, 10 to 10000, found 500000 W; did you mean 500 (500000 mW)?"),
        (HOSTS + "power_w = 900\n", "c.toml: hosts[0].power_w: expected watts of one H100-80GB, 70 to its full 700, found 900"),
        (HOSTS + "power_w = 50\n", "c.toml: hosts[0].power_w: expected watts of one H100-80GB, 70 to its full 700, found 50"),
        (HOSTS + 'power_w = "500W"\n', 'c.toml: hosts[0].power_w: expected a positive number, found "500W"'),
        (OWN.replace('"mine"\n', '"mine"\npower_w = 300\n', 1),
         "c.toml: hosts[0].power_w: the full power of mine is not known: describe it as [devices.NAME] with board_power_w, the watts at "
         "which its "
         "flops_per_s hold"),
        (HOSTS + "nics = 0\n", "c.toml: hosts[0].nics: expected a positive whole number, found 0"),
        (HOSTS + "[links]\noversubscription = 0.25\n",
         "c.toml: links.oversubscription: expected what hosts can send over what the network carries, at least 1, found 0.25; did you "
         "mean 4?"),
        (HOSTS.replace("count = 2", "count = 1") + "[links]\noversubscription = -4\n", "c.toml: links.oversubscription: expected a positive number, found -4"),
        (HOSTS + "[links]\noversubscription = 1e30\n", "c.toml: links.oversubscription: expected what hosts can send over what the network carries, up to 1000, found 1e+30"),
        (HOSTS + f"[links]\noversubscription = 1{'0' * 400}\n", f"c.toml: links.oversubscription: expected a positive number, found 1{'0' * 400}"),
        (HOSTS + "[links]\noversubscription = 0\n", "c.toml: links.oversubscription: expected a positive number, found 0"),
        ('[[hosts]]\ncount = 2\nmachine = "p4d"\n',
         f"c.toml: hosts[0].machine: unknown machine 'p4d'; known: {', '.join(m.name for m in list_machines())}"),
        ('[[hosts]]\ncount = 2\nmachine = 4\n', "c.toml: hosts[0].machine: expected the name of a machine, found 4"),
        (HOSTS + 'machine = "DGX-H100"\n',
         "c.toml: hosts[0].devices: a machine says its devices; expected machine, or devices and device, found both"),
    ],
)  # fmt: skip
def test_bad_files(text, message, read):
    with pytest.raises(ClusterError) as error:
        read(text)
    assert str(error.value) == message


def test_the_bounds_leave_slow_machines_alone(read):
    slow = OWN.replace("24e9", "16777216").replace("100e12", "1e7").replace("= 1e12", "= 1e9") + "launch_s = 0.1\n"
    assert read(slow + "[links]\ninside = { latency_s = 0.1, bandwidth_bytes_per_s = 1e6 }\n").inside.bandwidth_bytes_per_s == 1e6


@pytest.mark.parametrize("name", ["H100", "H100-80GB", "A100"])
def test_a_table_counts_under_the_name_of_a_preset(read, name):
    links = '[links]\ninside = "nvlink4"\nacross = "ib-400"\n'
    assert read(OWN.replace('"mine"', f'"{name}"').replace("[devices.mine]", f"[devices.{name}]") + links).device.memory_bytes == 24e9


def test_a_table_counts_beside_a_machine(read):
    device = read('[[hosts]]\ncount = 1\nmachine = "DGX-H100"\n' + OWN[OWN.index("[devices") :].replace("mine", "H100-80GB")).device
    assert device.memory_bytes == 24e9 and read('[[hosts]]\ncount = 1\nmachine = "DGX-H100"\n').device.memory_bytes > 80e9


def test_power(read):
    cluster = read(HOSTS + "power_w = 500\n")
    assert power_share(cluster.device) == 500 / 700
    assert cluster.device.source.endswith("; at 500 of 700 W: matmuls at 0.714 of their rate")
    assert read(HOSTS + "power_w = 700\n").device == read(HOSTS).device and power_share(read(HOSTS).device) == 1.0


def test_power_of_an_own_device(read):
    text = OWN.replace('"mine"\n', '"mine"\npower_w = 300\n', 1) + "board_power_w = 400\n"
    assert power_share(read(text).device) == 0.75


def test_machines(read):
    cluster = read('[[hosts]]\ncount = 2\nmachine = "p4d.24xlarge"\n')
    named = parse_cluster("2xp4d.24xlarge")
    assert (cluster.device, cluster.inside, cluster.across, cluster.nics) == (named.device, named.inside, named.across, named.nics)
    assert num_devices(cluster) == 16 and ports_per_device(cluster) == 0.5
    assert read('[[hosts]]\ncount = 2\nmachine = "DGX-H100"\nnics = 2\n').nics == 2


def test_ports(read):
    assert read(HOSTS).nics is None and ports_per_device(read(HOSTS)) == 1.0
    shared = read(HOSTS + "nics = 1\n")
    assert (shared.nics, ports_per_device(shared), shared.across) == (1, 1 / 8, read(HOSTS).across)
    assert ports_per_device(read(HOSTS + "nics = 16\n")) == 2.0
    # the default of a V100 is half of a port: where their number is said it is a whole one
    v100 = read(HOSTS.replace("H100-80GB", "V100-32GB") + "nics = 4\n")
    assert v100.across.name == "ib-100" and v100.across.bandwidth_bytes_per_s * ports_per_device(v100) == 6.25e9


def test_oversubscription(read):
    for across in ("", 'across = "ib-200"\n', "across = { latency_s = 8e-6, bandwidth_bytes_per_s = 30e9 }\n"):
        whole, divided = read(HOSTS + "[links]\n" + across), read(HOSTS + "[links]\n" + across + "oversubscription = 4\n")
        assert divided.across.bandwidth_bytes_per_s == whole.across.bandwidth_bytes_per_s / 4
        assert divided.across.source == (
            whole.across.source + "; divided by 4: oversubscribed where all hosts send at once (racks are not told apart)"
        )
        assert (divided.across.latency_s, divided.inside) == (whole.across.latency_s, whole.inside)


# --- hosts of different kinds -------------------------------------------------------------------------------------------------------


def test_a_mixed_cluster_is_as_slow_as_its_slowest(read):
    cluster = read(HOSTS + HOSTS.replace("H100-80GB", "A100-40GB").replace("count = 2", "count = 1"))
    slow, fast = parse_cluster("8xA100-40GB"), parse_cluster("8xH100-80GB")
    assert (cluster.num_hosts, cluster.devices_per_host, cluster.device.name) == (3, 8, "H100-80GB+A100-40GB")
    assert cluster.device.flops_per_s == slow.device.flops_per_s and cluster.device.memory_bytes == slow.device.memory_bytes
    assert (cluster.inside, cluster.across) == (slow.inside, slow.across) and cluster.device.parts == (fast.device, slow.device)
    assert cluster.device.source == (
        "mixed: 2 x 8 H100-80GB and 1 x 8 A100-40GB; every device counts as the slowest in each figure; "
        f"H100-80GB: {fast.device.source}; A100-40GB: {slow.device.source}"
    )


def test_the_slowest_figure_may_come_from_different_hosts(read):
    device = read(HOSTS.replace("H100-80GB", "L40S") + HOSTS.replace("H100-80GB", "A100-40GB")).device
    l40s, a100 = device.parts
    assert (device.memory_bytes, device.memory_bytes_per_s) == (a100.memory_bytes, l40s.memory_bytes_per_s)
    assert dict(device.flops_per_s) == {"bfloat16": 312e12, "float16": 312e12, "float32": 19.5e12, "float64": 1.4e12}


def test_a_dtype_that_one_host_lacks_runs_there_as_float32(read):
    device = read(HOSTS.replace("H100-80GB", "V100-32GB") + HOSTS.replace("H100-80GB", "A100-40GB")).device
    assert dict(device.flops_per_s)["bfloat16"] == 15.7e12


def test_equal_hosts_at_different_power_are_mixed(read):
    device = read(HOSTS + HOSTS + "power_w = 350\n").device
    assert device.name == "H100-80GB" and [power_share(part) for part in device.parts] == [1.0, 0.5]


def test_the_ports_of_the_host_that_sends_least(read):
    few = HOSTS + "nics = 2\n"
    for text in (HOSTS + few, few + HOSTS):
        assert read(text).nics == 2
    # 8 ports of 25 GB/s send more than 2 of 50
    cluster = read(few + HOSTS.replace("H100", "A100"))
    assert (cluster.nics, cluster.across.name) == (2, "ib-400")


def test_the_longest_latency_counts_too(read):
    cluster = read(HOSTS + HOSTS.replace("H100-80GB", "L40S"))
    assert (cluster.inside.name, cluster.inside.latency_s, cluster.inside.bandwidth_bytes_per_s) == ("pcie4", 5e-6, 31e9)
    cluster = read('[[hosts]]\ncount = 1\nmachine = "p5.48xlarge"\n' + HOSTS + "nics = 1\n")
    assert (cluster.across.name, cluster.nics, cluster.across.latency_s) == ("ib-400", 1, 16e-6)
    assert "; the longer latency of efa-400: AWS" in cluster.across.source
