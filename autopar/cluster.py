"""Clusters: what the user's text or TOML file says of the machines, with the origin of every figure.

In: `cpu:4`, `2x8xH100-80GB` (hosts x devices x type), `8xH100-80GB` (one host), or the path of a TOML file. Out: a `Cluster` of
equal hosts. Everything that is wrong is a `ClusterError` that names the file, the key, what was expected and what was found. Figures
are nominal (data sheets); how much of them is reached is the cost model's business.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one rank's share of a CPU.

    Args:
        name: preset or the user's own.
        kind: `cpu` or `cuda` (ROCm devices are `cuda` to torch).
        memory_bytes: of one device.
        flops_per_s: (dtype, dense matmul peak); a dtype that is not listed runs at the float32 figure.
        memory_bytes_per_s: of the device's own memory.
        launch_s: overhead of starting one op.
        source: where the figures come from.
    """

    name: str
    kind: str
    memory_bytes: int
    flops_per_s: tuple[tuple[str, float], ...]
    memory_bytes_per_s: float
    launch_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Link:
    """What connects devices: seconds per hop, and bytes per second that one device sends in one direction."""

    name: str
    latency_s: float
    bandwidth_bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal hosts of equal devices.

    Args:
        spec: the user's text, or the path of the file.
        inside: between devices of one host.
        across: between hosts, per device. On a single host nothing crosses it.
    """

    spec: str
    num_hosts: int
    devices_per_host: int
    device: Device
    inside: Link
    across: Link


def num_devices(cluster: Cluster) -> int:
    """Devices of the whole cluster."""
    return cluster.num_hosts * cluster.devices_per_host


_DEFAULT = "default, run `autopar profile`"
_LAUNCH_S = 4e-6  # CUDA kernel launch seen from the stream: 2-5 us (NVIDIA forum and Nsight figures; assumption, not measured here)
_STAS = "data sheet as listed in stas00/ml-engineering"
MIB, GIB = 2**20, 2**30


def _gpu(name: str, mebibytes: int, tflops: Mapping[str, float], memory_gb_per_s: float, source: str) -> Device:
    flops = tuple((dtype, value * 1e12) for dtype, value in tflops.items())
    return Device(name, "cuda", mebibytes * MIB, flops, memory_gb_per_s * 1e9, _LAUNCH_S, source)


def _tflops(half: float, fp32: float, fp64: float) -> dict[str, float]:
    return {"bfloat16": half, "float16": half, "float32": fp32, "float64": fp64}


# float32 without TF32: torch's default `float32_matmul_precision` is "highest". float64 figures: the vendors' data sheets, tensor
# cores where there are any. Memory: MiB as `nvidia-smi` and `rocm-smi` print it (memory.total): "80 GB" are nearly 80 GiB.
# cpu: one rank of four on two cores, rounded down from what `autopar profile` found on the machine where this was written; 2 GiB is a
# modest share of a laptop.
_DEVICES = (
    Device("cpu", "cpu", 2 * GIB, (("float32", 40e9), ("float64", 20e9), ("bfloat16", 20e9)), 10e9, 5e-6, _DEFAULT),
    _gpu("V100-16GB", 16160, {"float16": 125, "float32": 15.7, "float64": 7.8}, 900, "NVIDIA V100 data sheet"),
    _gpu("V100-32GB", 32510, {"float16": 125, "float32": 15.7, "float64": 7.8}, 900, "NVIDIA V100 data sheet"),
    _gpu("A100-40GB", 40536, _tflops(312, 19.5, 19.5), 1555, "NVIDIA A100 data sheet; " + _STAS),
    _gpu("A100-80GB", 81251, _tflops(312, 19.5, 19.5), 2000, "NVIDIA A100 data sheet (SXM 80 GB); " + _STAS),
    _gpu("H100-80GB", 81559, _tflops(989, 67, 67), 3350, "NVIDIA H100 SXM data sheet; " + _STAS),
    _gpu("H100-PCIe", 81559, _tflops(756, 51, 51), 2000, "NVIDIA H100 PCIe data sheet; " + _STAS),
    _gpu("H200-141GB", 143771, _tflops(989, 67, 67), 4800, "NVIDIA H200 data sheet; " + _STAS),
    _gpu("B200", 183359, _tflops(2250, 80, 40), 8000, "NVIDIA HGX B200 data sheet; " + _STAS),
    _gpu("B300", 275040, _tflops(2250, 80, 1.2), 8000, "NVIDIA HGX B300 data sheet; " + _STAS),
    _gpu("MI300X", 196592, _tflops(1307, 163.4, 163.4), 5300, "AMD MI300X data sheet; " + _STAS),
    _gpu("L40S", 46068, _tflops(362, 91.6, 1.4), 864, "NVIDIA L40S data sheet; " + _STAS),
)

# Latencies: per hop of a large-message protocol. NCCL's own tuning table (src/graph/tuning.cc) has 0.6 / 1.9 / 3.4 us per NVLink
# hop and 2.7 / 4.0 / 14 us per network hop for its LL / LL128 / Simple protocols; 2 and 8 us lie between and give 33 us and 77 us
# for an all-reduce over 8 and 2x8 H100 where aws nccl-tests measured 16-43 us (up to 2 MiB) and 69 us.
_NCCL = "; latency between NCCL's LL128 and Simple tuning figures"
_LINKS = (
    Link("loopback", 200e-6, 0.5e9, _DEFAULT),
    Link("nvlink2", 2e-6, 150e9, "V100: 6 links x 25 GB/s per direction" + _NCCL),
    Link("nvlink3", 2e-6, 300e9, "A100: 12 links x 25 GB/s per direction" + _NCCL),
    Link("nvlink4", 2e-6, 450e9, "H100: 18 links x 25 GB/s per direction" + _NCCL),
    Link("nvlink5", 2e-6, 900e9, "B200: 18 links x 50 GB/s per direction" + _NCCL),
    Link("xgmi", 3e-6, 448e9, "MI300X: 7 links x 64 GB/s per direction" + _NCCL),
    Link("pcie4", 5e-6, 31e9, "PCIe Gen4 x16, per direction; latency NCCL tuning, PCI Simple 5.7 us"),
    Link("pcie5", 5e-6, 63e9, "PCIe Gen5 x16, per direction; latency NCCL tuning, PCI Simple 5.7 us"),
    Link("ib-50", 8e-6, 6.25e9, "DGX-1 and DGX-2 (V100): half of a 100 Gb/s port per device" + _NCCL),
    Link("ib-100", 8e-6, 12.5e9, "one 100 Gb/s port per device" + _NCCL),
    Link("ib-200", 8e-6, 25e9, "DGX A100: one 200 Gb/s port per device" + _NCCL),
    Link("ib-400", 8e-6, 50e9, "DGX H100, HGX B200: one 400 Gb/s port per device" + _NCCL),
    Link("ib-800", 8e-6, 100e9, "HGX B300: one 800 Gb/s port per device" + _NCCL),
    Link("ethernet-10", 30e-6, 1.25e9, "one 10 Gb/s port per device; latency of kernel TCP, assumption"),
    Link("ethernet-100", 30e-6, 12.5e9, "one 100 Gb/s port per device; latency of kernel TCP, assumption"),
)

_DEVICE_LINKS = {  # device -> (inside, across): NVIDIA's and AMD's own 8-device hosts (DGX, HGX)
    "cpu": ("loopback", "ethernet-10"),
    "V100-16GB": ("nvlink2", "ib-50"), "V100-32GB": ("nvlink2", "ib-50"),
    "A100-40GB": ("nvlink3", "ib-200"), "A100-80GB": ("nvlink3", "ib-200"),
    "H100-80GB": ("nvlink4", "ib-400"), "H100-PCIe": ("pcie5", "ib-400"), "H200-141GB": ("nvlink4", "ib-400"),
    "B200": ("nvlink5", "ib-400"), "B300": ("nvlink5", "ib-800"), "MI300X": ("xgmi", "ib-400"), "L40S": ("pcie4", "ib-200"),
}  # fmt: skip
_SHORT = {"V100": "V100-32GB", "A100": "A100-80GB", "H100": "H100-80GB", "H200": "H200-141GB"}
_FORMS = "cpu:4, 2x8xH100-80GB (hosts x devices x type), 8xH100-80GB (one host), or the path of a TOML file"


def list_devices() -> tuple[Device, ...]:
    """The presets, for `autopar plan --help` and the documentation."""
    return _DEVICES


def list_links() -> tuple[Link, ...]:
    """The presets."""
    return _LINKS


def parse_cluster(text_or_path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster from its short text or its TOML file.

    Raises:
        ClusterError: names the place, what was expected and what was found.
    """
    text = os.fspath(text_or_path).strip()
    if text.endswith(".toml") or "/" in text or os.sep in text or Path(text).is_file():
        return _read_file(text)
    cpu = re.fullmatch(r"cpu(?::(.*))?", text)
    if cpu:
        if cpu[1] is None:
            raise ClusterError("cluster 'cpu': expected the number of ranks, as in cpu:4")
        return _preset_cluster(text, 1, _parse_count(cpu[1], text, "the number of ranks"), "cpu")
    parts = text.split("x", 2)
    if len(parts) == 3 and _is_number(parts[1]):
        hosts, devices, name = parts
    elif len(parts) >= 2 and _is_number(parts[0]):
        hosts, devices, name = "1", parts[0], text.split("x", 1)[1]
    else:
        raise ClusterError(f"cluster {text!r}: expected {_FORMS}{_suggest(text)}")
    num_hosts = _parse_count(hosts, text, "the number of hosts")
    return _preset_cluster(text, num_hosts, _parse_count(devices, text, "the number of devices per host"), name)


def _suggest(text: str) -> str:
    """What a text that is no cluster may have meant."""
    known = [*_names(_DEVICES), *_SHORT]
    close = difflib.get_close_matches(text.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    name = next((k for k in known if close and k.lower() == close[0]), "")
    return f"; did you mean {name}:4?" if name == "cpu" else f"; did you mean 8x{name}?" if name else ""


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[-+]?\d+(\.\d*)?\s*", text) is not None


def _parse_count(text: str, spec: str, what: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
        raise ClusterError(f"cluster {spec!r}: {what}: expected a positive whole number, found {text!r}")
    return int(text)


def _preset_cluster(spec: str, num_hosts: int, devices: int, name: str) -> Cluster:
    device = _find_device(name, f"cluster {spec!r}", {})
    inside, across = _DEVICE_LINKS[device.name]
    return Cluster(spec, num_hosts, devices, device, _find_link(inside, spec), _find_link(across, spec))


def _names(rows: tuple[Device, ...] | tuple[Link, ...]) -> list[str]:
    return [row.name for row in rows]


def _nearest(found: object, known: list[str]) -> str:
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(found).lower(), list(lower), n=1, cutoff=0.6)
    return f"; did you mean {lower[close[0]]}?" if close else ""


def _find_device(name: object, where: str, own: Mapping[str, Device]) -> Device:
    known = {d.name: d for d in _DEVICES} | own
    if isinstance(name, str) and _SHORT.get(name, name) in known:
        return known[_SHORT.get(name, name)]
    hint = _nearest(name, [*known, *_SHORT]) or ", or describe it in a TOML file as [devices.NAME]"
    raise ClusterError(f"{where}: unknown device {name!r}; known: {', '.join(known)}{hint}")


def _find_link(name: str, where: str) -> Link:
    for link in _LINKS:
        if link.name == name:
            return link
    raise ClusterError(f"{where}: unknown link {name!r}; known: {', '.join(_names(_LINKS))}{_nearest(name, _names(_LINKS))}")


# --- the TOML form ---------------------------------------------------------------------------------------------------------------

_TOP_KEYS = ["hosts", "devices", "links"]
_HOST_KEYS = ["count", "devices", "device"]
_DEVICE_KEYS = ["kind", "memory_bytes", "flops_per_s", "memory_bytes_per_s", "launch_s", "source"]
_LINK_KEYS = ["latency_s", "bandwidth_bytes_per_s", "source"]
_DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def _read_file(path: str) -> Cluster:
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except FileNotFoundError:
        raise ClusterError(f"{path}: no such file; expected {_FORMS}") from None
    except OSError as error:
        raise ClusterError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: not valid TOML: {error}") from None
    _check_keys(data, _TOP_KEYS, path, "")
    devices = _table(data.get("devices", {}), path, "devices")
    own = {name: _read_device(name, table, path) for name, table in devices.items()}
    num_hosts, per_host, device = _read_hosts(data.get("hosts"), path, own)
    links = _table(data.get("links", {}), path, "links")
    _check_keys(links, ["inside", "across"], path, "links")
    inside, across = _DEVICE_LINKS.get(device.name, ("", "")) if device.name not in own else ("", "")
    inside_link = _read_link(links.get("inside", inside), path, "links.inside", device, needed=per_host > 1)
    across_link = _read_link(links.get("across", across), path, "links.across", device, needed=num_hosts > 1)
    # a link that nothing crosses may be left out: the other one stands for it
    one = inside_link or across_link or Link("none", 0.0, math.inf, "one device: nothing is sent")
    return Cluster(path, num_hosts, per_host, device, inside_link or one, across_link or one)


def _table(found: object, path: str, key: str) -> dict[str, object]:
    if not isinstance(found, dict):
        raise ClusterError(f"{path}: {key}: expected a table, found {_show(found)}")
    return found


def _show(found: object) -> str:
    if found is None:
        return "nothing"
    if isinstance(found, (dict, list)):
        return "a table" if isinstance(found, dict) else "a list"
    if isinstance(found, str):
        return f'"{found}"'
    return str(found).lower() if isinstance(found, bool) else str(found)


def _check_keys(table: Mapping[str, object], known: list[str], path: str, key: str) -> None:
    for name in table:
        if name not in known:
            place = f"{key}.{name}" if key else name
            raise ClusterError(f"{path}: {place}: unknown key; expected one of {', '.join(known)}{_nearest(name, known)}")


def _number(table: Mapping[str, object], name: str, path: str, key: str, zero: bool = False) -> float:
    found = table.get(name)
    good = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    if not good or found < 0 or (found == 0 and not zero):  # type: ignore[operator]
        wanted = "a number that is not negative" if zero else "a positive number"
        raise ClusterError(f"{path}: {key}.{name}: expected {wanted}, found {_show(found)}")
    return float(found)  # type: ignore[arg-type]


def _whole(table: Mapping[str, object], name: str, path: str, key: str) -> int:
    found = table.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ClusterError(f"{path}: {key}.{name}: expected a positive whole number, found {_show(found)}")
    return found


def _text(table: Mapping[str, object], name: str, path: str, key: str, wanted: str) -> str:
    found = table.get(name)
    if not isinstance(found, str) or not found.strip():
        raise ClusterError(f"{path}: {key}.{name}: expected {wanted}, found {_show(found)}")
    return found


def _read_device(name: str, found: object, path: str) -> Device:
    key = f"devices.{name}"
    table = _table(found, path, key)
    _check_keys(table, _DEVICE_KEYS, path, key)
    kind = table.get("kind", "cuda")
    if kind not in ("cpu", "cuda"):
        raise ClusterError(f'{path}: {key}.kind: expected "cpu" or "cuda", found {_show(kind)}')
    rates = _table(table.get("flops_per_s"), path, f"{key}.flops_per_s")
    _check_keys(rates, _DTYPES, path, f"{key}.flops_per_s")
    if not rates:
        raise ClusterError(f"{path}: {key}.flops_per_s: expected at least one dtype, as in {{ bfloat16 = 989e12 }}, found none")
    return Device(
        name,
        str(kind),
        int(_number(table, "memory_bytes", path, key)),
        tuple((dtype, _number(rates, dtype, path, f"{key}.flops_per_s")) for dtype in rates),
        _number(table, "memory_bytes_per_s", path, key),
        _number(table, "launch_s", path, key, zero=True) if "launch_s" in table else _LAUNCH_S,
        _text(table, "source", path, key, "where the figures come from, as text"),
    )


def _read_hosts(found: object, path: str, own: Mapping[str, Device]) -> tuple[int, int, Device]:
    if not isinstance(found, list) or not found:
        raise ClusterError(f"{path}: hosts: expected at least one [[hosts]] table with count, devices and device, found {_show(found)}")
    rows = []
    for i, item in enumerate(found):
        key = f"hosts[{i}]"
        table = _table(item, path, key)
        _check_keys(table, _HOST_KEYS, path, key)
        name = _text(table, "device", path, key, "the name of a device")
        device = _find_device(name, f"{path}: {key}.device", own)
        rows.append((_whole(table, "count", path, key), _whole(table, "devices", path, key), device))
    if any(row[1:] != rows[0][1:] for row in rows):
        kinds = " and ".join(dict.fromkeys(f"{n} x {d.name}" for _, n, d in rows))
        raise ClusterError(f"{path}: hosts: mixed clusters are not planned yet, found hosts of {kinds}; plan each kind of host alone")
    return sum(row[0] for row in rows), rows[0][1], rows[0][2]


def _read_link(found: object, path: str, key: str, device: Device, needed: bool) -> Link | None:
    if found == "":
        if needed:
            raise ClusterError(
                f"{path}: {key}: expected a preset ({', '.join(_names(_LINKS))}) or "
                f"{{ latency_s = ..., bandwidth_bytes_per_s = ... }}, found nothing; {device.name} has no default"
            )
        return None
    if isinstance(found, str):
        return _find_link(found, f"{path}: {key}")
    table = _table(found, path, key)
    _check_keys(table, _LINK_KEYS, path, key)
    source = _text(table, "source", path, key, "where the figures come from, as text") if "source" in table else f"{path}: {key}"
    return Link("own", _number(table, "latency_s", path, key, zero=True), _number(table, "bandwidth_bytes_per_s", path, key), source)
