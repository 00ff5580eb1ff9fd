"""One test per message about clusters, and what good texts mean."""

from __future__ import annotations

import pytest

from autopar.cluster import list_devices, num_devices, parse_cluster, rate_of
from autopar.errors import ClusterError

FORMS = "cpu:4, 2x8xH100-80GB (hosts x devices x type), 8xH100-80GB (one host), 2xDGX-H100 (hosts x machine), or the path of a TOML file"
DEVICES = (
    "cpu, V100-16GB, V100-32GB, A100-40GB, A100-80GB, H100-80GB, H100-PCIe, H200-141GB, B200, B300, GB200, GB300, MI300X, MI355X, L40S, RTX4090"
)
LINKS = (
    "loopback, nvlink2, nvlink2-cube, nvlink3, nvlink4, nvlink5, nvl72, xgmi, xgmi4, pcie4, pcie5, ib-50, ib-100, ib-200, ib-400, ib-800, efa-100, efa-400, "
    "ethernet-10, ethernet-25, ethernet-100"
)


@pytest.mark.parametrize(
    ("text", "hosts", "devices", "device", "inside", "across"),
    [
        ("cpu:4", 1, 4, "cpu", "loopback", "ethernet-10"),
        ("2x8xH100-80GB", 2, 8, "H100-80GB", "nvlink4", "ib-400"),
        ("8xH100-80GB", 1, 8, "H100-80GB", "nvlink4", "ib-400"),
        ("4x8xH100", 4, 8, "H100-80GB", "nvlink4", "ib-400"),
        ("3x6xV100", 3, 6, "V100-32GB", "nvlink2", "ib-50"),
        ("8xH100-PCIe", 1, 8, "H100-PCIe", "pcie5", "ib-400"),
        (" 1x1xA100 ", 1, 1, "A100-80GB", "nvlink3", "ib-200"),
    ],
)
def test_short_texts(text, hosts, devices, device, inside, across):
    cluster = parse_cluster(text)
    assert (cluster.num_hosts, cluster.devices_per_host, cluster.device.name) == (hosts, devices, device)
    assert (cluster.inside.name, cluster.across.name) == (inside, across)
    assert cluster.spec == text.strip() and num_devices(cluster) == hosts * devices


def test_nic_bandwidths_of_the_usual_hosts():
    across = {d: parse_cluster(f"2x8x{d}").across.bandwidth_bytes_per_s for d in ("H100-80GB", "A100-80GB", "V100-32GB")}
    assert across == {"H100-80GB": 50e9, "A100-80GB": 25e9, "V100-32GB": 6.25e9}


def test_every_figure_is_positive_and_has_a_source():
    for device in list_devices():
        assert device.source and device.memory_bytes > 0 and device.memory_bytes_per_s > 0 and device.launch_s > 0
        assert device.flops_per_s and all(rate > 0 for _, rate in device.flops_per_s)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"cluster '': expected {FORMS}"),
        ("many", f"cluster 'many': expected {FORMS}"),
        ("H100", f"cluster 'H100': expected {FORMS}; did you mean 8xH100?"),
        ("cpu", "cluster 'cpu': expected the number of ranks, as in cpu:4"),
        ("cpu:0", "cluster 'cpu:0': the number of ranks: expected a positive whole number, found '0'"),
        ("cpu:-2", "cluster 'cpu:-2': the number of ranks: expected a positive whole number, found '-2'"),
        ("cpu:99999999999", "cluster 'cpu:99999999999': expected at most 262,144 devices, found 99,999,999,999 (1 x 99,999,999,999)"),
        ("999999x8xH100", "cluster '999999x8xH100': expected at most 262,144 devices, found 7,999,992 (999,999 x 8)"),
        ("cpu:two", "cluster 'cpu:two': the number of ranks: expected a positive whole number, found 'two'"),
        ("0x8xH100", "cluster '0x8xH100': the number of hosts: expected a positive whole number, found '0'"),
        ("2x0xH100", "cluster '2x0xH100': the number of devices per host: expected a positive whole number, found '0'"),
        ("-1x8xH100", "cluster '-1x8xH100': the number of hosts: expected a positive whole number, found '-1'"),
        ("1.5xH100", "cluster '1.5xH100': the number of devices per host: expected a positive whole number, found '1.5'"),
        (4, f"cluster: expected {FORMS}; found int 4"),
        (None, f"cluster: expected {FORMS}; found NoneType None"),
        ("8xH10", f"cluster '8xH10': unknown device 'H10'; known: {DEVICES}; did you mean H100?"),
        ("8xh100-80gb", f"cluster '8xh100-80gb': unknown device 'h100-80gb'; known: {DEVICES}; did you mean H100-80GB?"),
        ("8xTPUv4", f"cluster '8xTPUv4': unknown device 'TPUv4'; known: {DEVICES}, or describe it in a TOML file as [devices.NAME]"),
        ("32xH100", "cluster '32xH100': 32 devices on a host: nvlink4 joins at most 8, expected several hosts, as in 4x8xH100-80GB, "
         "or what joins them as links.inside of a TOML file, with its figures"),
        ("2x80xGB200", "cluster '2x80xGB200': 80 devices on a host: nvl72 joins at most 72, expected several hosts, as in HOSTSx72xGB200, "
         "or what joins them as links.inside of a TOML file, with its figures"),
        ("nowhere.toml", f"nowhere.toml: no such file; expected {FORMS}"),
    ],
)  # fmt: skip
def test_bad_short_texts(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClusterError) as error:
        parse_cluster(text)
    assert str(error.value) == message


HOSTS = '[[hosts]]\ncount = 2\ndevices = 8\ndevice = "H100-80GB"\n'
OWN = """[devices.mine]
memory_bytes = 24e9
flops_per_s = { bfloat16 = 100e12, float32 = 20e12 }
memory_bytes_per_s = 1e12
source = "my bench"
"""
OWN_HOSTS = '[[hosts]]\ncount = 1\ndevices = 4\ndevice = "mine"\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def do(text):
        (tmp_path / "c.toml").write_text(text)
        return "c.toml"

    return do


def test_a_file_with_presets(write):
    cluster = parse_cluster(write(HOSTS + '[links]\nacross = "ib-200"\n'))
    assert (cluster.spec, cluster.num_hosts, cluster.devices_per_host) == ("c.toml", 2, 8)
    assert (cluster.device.name, cluster.inside.name, cluster.across.name) == ("H100-80GB", "nvlink4", "ib-200")


def test_a_file_with_own_figures(write):
    text = OWN_HOSTS + OWN + "[links]\ninside = { latency_s = 4e-6, bandwidth_bytes_per_s = 30e9 }\n"
    cluster = parse_cluster(write(text))
    device = cluster.device
    assert (device.kind, device.memory_bytes, device.source) == ("cuda", 24 * 10**9, "my bench")
    assert device.flops_per_s == (("bfloat16", 100e12), ("float32", 20e12))
    assert (cluster.inside.latency_s, cluster.inside.bandwidth_bytes_per_s, cluster.inside.source) == (4e-6, 30e9, "c.toml: links.inside")


def test_several_tables_of_equal_hosts_add_up(write):
    assert num_devices(parse_cluster(write(HOSTS + HOSTS))) == 32


def test_one_own_device_needs_no_links(write):
    cluster = parse_cluster(write(OWN_HOSTS.replace("4", "1") + OWN))
    assert num_devices(cluster) == 1 and cluster.inside.latency_s == 0.0


def _link(text):
    return HOSTS + "[links]\n" + text + "\n"


NEED = f"expected a preset ({LINKS}) or {{ latency_s = ..., bandwidth_bytes_per_s = ... }}, found nothing; mine has no default"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.toml: hosts: expected at least one [[hosts]] table with count, devices and device, found nothing"),
        ("hosts = 3\n", "c.toml: hosts: expected at least one [[hosts]] table with count, devices and device, found 3"),
        ("hosts = [3]\n", "c.toml: hosts[0]: expected a table, found 3"),
        (HOSTS + "[link]\n", "c.toml: link: unknown key; expected one of hosts, devices, links; did you mean links?"),
        (HOSTS + "gpus = 1\n", "c.toml: hosts[0].gpus: unknown key; expected one of count, devices, device, machine, nics, power_w"),
        (HOSTS.replace("count", "cuont"), "c.toml: hosts[0].cuont: unknown key; expected one of count, devices, device, machine, nics, power_w; "
         "did you mean count?"),
        (HOSTS.replace("2", "0"), "c.toml: hosts[0].count: expected a positive whole number, found 0"),
        (HOSTS.replace("= 8", "= -8"), "c.toml: hosts[0].devices: expected a positive whole number, found -8"),
        (HOSTS.replace("= 8", "= true"), "c.toml: hosts[0].devices: expected a positive whole number, found true"),
        (HOSTS.replace("= 8", "= 1.5"), "c.toml: hosts[0].devices: expected a positive whole number, found 1.5"),
        (HOSTS.replace("devices = 8\n", ""), "c.toml: hosts[0].devices: expected a positive whole number, found nothing"),
        (HOSTS.replace('"H100-80GB"', "100"), "c.toml: hosts[0].device: expected the name of a device, found 100"),
        (HOSTS.replace("H100-80GB", "H101"), f"c.toml: hosts[0].device: unknown device 'H101'; known: {DEVICES}; did you mean H100?"),
        (
            HOSTS + HOSTS.replace("H100", "A100").replace("= 8", "= 4"),
            "c.toml: hosts: expected the same number of devices on every host, found 2 x 8 H100-80GB and 2 x 4 A100-80GB; set devices to 4 on all "
            "of them (the others stay idle), or plan each kind of host alone",
        ),
        (
            HOSTS + HOSTS.replace("H100-80GB", "cpu"),
            "c.toml: hosts: one program runs on cpu or on cuda devices, found 2 x 8 H100-80GB and 2 x 8 cpu; plan each kind of host alone",
        ),
        (
            HOSTS + HOSTS.replace("H100-80GB", "MI300X"),
            "c.toml: hosts: the collectives of NVIDIA's GPUs (NCCL) and of AMD's (RCCL) do not meet in one program, found 2 x 8 H100-80GB and 2 x 8 MI300X; "
            "plan each kind of host alone",
        ),
        (HOSTS.replace("= 8", "= 16"), "c.toml: hosts[0]: 16 devices on a host: nvlink4 joins at most 8, expected several hosts, as in 4x8xH100-80GB, "
         "or what joins them as links.inside of a TOML file, with its figures"),
        (_link('inside = "nvlink"'), f"c.toml: links.inside: unknown link 'nvlink'; known: {LINKS}; did you mean nvlink5?"),
        (_link("between = 1"), "c.toml: links.between: unknown key; expected one of inside, across, oversubscription"),
        (_link("across = 50e9"), "c.toml: links.across: expected a table, found 50000000000.0"),
        (
            _link('across = { latency_s = 8e-6, bandwidth_bytes_per_s = "900GB/s" }'),
            'c.toml: links.across.bandwidth_bytes_per_s: expected a positive number, found "900GB/s"',
        ),
        (
            _link('across = { latency_s = "8us", bandwidth_bytes_per_s = 1e9 }'),
            'c.toml: links.across.latency_s: expected a number that is not negative, found "8us"',
        ),
        (
            _link("across = { latency_s = 8e-6, bandwidth_gb_per_s = 50 }"),
            "c.toml: links.across.bandwidth_gb_per_s: unknown key; expected one of latency_s, bandwidth_bytes_per_s, source; "
            "did you mean bandwidth_bytes_per_s?",
        ),
        (
            _link("across = { latency_s = 8e-6 }"),
            "c.toml: links.across.bandwidth_bytes_per_s: expected a positive number, found nothing",
        ),
        (
            _link("across = { latency_s = 8e-6, bandwidth_bytes_per_s = inf }"),
            "c.toml: links.across.bandwidth_bytes_per_s: expected a positive number, found inf",
        ),
        (OWN_HOSTS + OWN, f"c.toml: links.inside: {NEED}"),
        (OWN_HOSTS.replace("= 4", "= 1").replace("= 1\nd", "= 2\nd", 1) + OWN, f"c.toml: links.across: {NEED}"),
        (OWN_HOSTS + OWN.replace('source = "my bench"\n', ""), "c.toml: devices.mine.source: expected where the figures come from, as text, found nothing"),
        (OWN_HOSTS + OWN.replace("24e9", '"24GB"'), 'c.toml: devices.mine.memory_bytes: expected a positive number, found "24GB"'),
        (OWN_HOSTS + OWN.replace("24e9", "0"), "c.toml: devices.mine.memory_bytes: expected a positive number, found 0"),
        (OWN_HOSTS + OWN.replace("100e12", "-1"), "c.toml: devices.mine.flops_per_s.bfloat16: expected a positive number, found -1"),
        (
            OWN_HOSTS + OWN.replace("bfloat16", "bf16"),
            "c.toml: devices.mine.flops_per_s.bf16: unknown key; expected one of float64, float32, float16, bfloat16, float8_e4m3fn, "
            "float8_e5m2; did you mean bfloat16?",
        ),
        (
            OWN_HOSTS + OWN.replace("{ bfloat16 = 100e12, float32 = 20e12 }", "{}"),
            "c.toml: devices.mine.flops_per_s: expected at least one dtype, as in { bfloat16 = 989e12 }, found none",
        ),
        (OWN_HOSTS + OWN.replace("{ bfloat16 = 100e12, float32 = 20e12 }", "1e12"), "c.toml: devices.mine.flops_per_s: expected a table, found 1000000000000.0"),
        (OWN_HOSTS + OWN + 'kind = "tpu"\n', 'c.toml: devices.mine.kind: expected "cpu" or "cuda", found "tpu"'),
        (OWN_HOSTS + OWN + "memory_gb = 24\n", "c.toml: devices.mine.memory_gb: unknown key; expected one of kind, memory_bytes, flops_per_s, "
         "memory_bytes_per_s, launch_s, source, board_power_w; did you mean memory_bytes?"),
        ("devices = 3\n" + HOSTS, "c.toml: devices: expected a table, found 3"),
    ],
)  # fmt: skip
def test_bad_files(text, message, write):
    with pytest.raises(ClusterError) as error:
        parse_cluster(write(text))
    assert str(error.value) == message


def test_a_file_that_is_not_toml(write):
    with pytest.raises(ClusterError, match=r"^c\.toml: not valid TOML: .*line 1"):
        parse_cluster(write("hosts = \n"))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ClusterError, match="cannot be read: Is a directory"):
        parse_cluster(tmp_path)


def test_a_path_object_will_do(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(HOSTS)
    assert num_devices(parse_cluster(path)) == 16


def test_a_binary_file_is_not_toml(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="not valid TOML"):
        parse_cluster(path)


def test_a_device_without_float32_has_the_rate_of_its_slowest_dtype(tmp_path):
    """A dtype that is not listed runs as float32; where there is no figure for that either, at the slowest."""
    path = tmp_path / "c.toml"
    path.write_text(
        '[devices.mine]\nmemory_bytes = 24e9\nflops_per_s = { bfloat16 = 100e12, float16 = 90e12 }\nmemory_bytes_per_s = 1e12\nsource = "s"\n[[hosts]]\ncount = 1\ndevices = 1\ndevice = "mine"\n'
    )
    device = parse_cluster(path).device
    assert [rate_of(device, dtype) for dtype in ("bfloat16", "float16", "float32", "float64")] == [100e12, 90e12, 90e12, 90e12]


TWO, MINE = '[[hosts]]\ncount = 2\ndevices = 4\ndevice = "mine"\n', '[devices.mine]\nmemory_bytes = 24e9\nflops_per_s = { float32 = 1e12 }\nmemory_bytes_per_s = 1e12\nsource = "x"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TWO + MINE, f"links.inside and links.across: expected a preset ({LINKS}) or {{ latency_s = ..., bandwidth_bytes_per_s = ... }}, found nothing; mine has no default"),
        (TWO + '[devices.mine]\nkind = "cuda"\nsource = "x"\n', "devices.mine: expected memory_bytes, flops_per_s, memory_bytes_per_s, source, found no memory_bytes, flops_per_s, memory_bytes_per_s"),
        ('[[hosts]]\ndevice = "H100-80GB"\n', "hosts[0]: expected count, devices, device, found no count, devices"),
        ('[[hosts]]\ncount = 2\ndevices = 8\ndevice = "H100-80GB"\n[links.across]\nsource = "x"\n', "links.across: expected latency_s, bandwidth_bytes_per_s, found no latency_s, bandwidth_bytes_per_s"),
    ],
    ids=["links", "device", "hosts", "link"],
)
def test_all_that_is_missing_is_named_at_once(text, message, write):
    path = write(text)
    with pytest.raises(ClusterError) as caught:
        parse_cluster(path)
    assert str(caught.value) == f"{path}: {message}"
