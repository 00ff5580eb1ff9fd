"""The figures: devices, links, and machines that are sold or rented, each with its source.

`docs/clusters.md` lists them all; a test keeps its tables equal to these. "not verified" in a source: from memory of a data sheet, seen
in no source that was at hand when it was written.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from ..errors import ClusterError
from .nouns import Device, Link, Machine

_DEFAULT = "default, run `autopar profile`"
LAUNCH_S = 4e-6  # CUDA kernel launch seen from the stream: 2-5 us (NVIDIA forum and Nsight figures; assumption, not measured here)
_STAS = "data sheet as listed in stas00/ml-engineering"
MIB, GIB = 2**20, 2**30


def _gpu(name: str, mebibytes: int, tflops: Mapping[str, float], memory_gb_per_s: float, board_power_w: float, source: str) -> Device:
    flops = tuple((dtype, value * 1e12) for dtype, value in tflops.items())
    return Device(name, "cuda", mebibytes * MIB, flops, memory_gb_per_s * 1e9, LAUNCH_S, source, board_power_w)


def _tflops(half: float, fp32: float, fp64: float) -> dict[str, float]:
    return {"bfloat16": half, "float16": half, "float32": fp32, "float64": fp64}


# float32 without TF32: torch's default `float32_matmul_precision` is "highest". float64 figures: the vendors' data sheets, tensor
# cores where there are any. Memory: MiB as `nvidia-smi` and `rocm-smi` print it (memory.total): "80 GB" are nearly 80 GiB; of GB200,
# GB300 and MI355X the data sheet's GB as 10^9 bytes, which is less than these tools print.
# Board power: the data sheets' maximum (SXM and OAM modules; V100 the 300 W of SXM2; H100-PCIe and L40S cards 350 W; per GPU of a GB200 or
# GB300). MI300X, MI355X, B200, B300, GB200, GB300 as published in vendors' comparisons; the others not verified beside torchtitan's 700 W.
# cpu: one rank of four on two cores, rounded down from what `autopar profile` found on the machine where this was written; 2 GiB is a
# modest share of a laptop.
_VOLTA = {"float16": 125, "float32": 15.7, "float64": 7.8}
_DEVICES = (
    Device("cpu", "cpu", 2 * GIB, (("float32", 40e9), ("float64", 20e9), ("bfloat16", 20e9)), 10e9, 5e-6, _DEFAULT),
    _gpu("V100-16GB", 16160, _VOLTA, 900, 300, "NVIDIA V100 data sheet"),
    _gpu("V100-32GB", 32510, _VOLTA, 900, 300, "NVIDIA V100 data sheet"),
    _gpu("A100-40GB", 40536, _tflops(312, 19.5, 19.5), 1555, 400, "NVIDIA A100 data sheet; " + _STAS),
    _gpu("A100-80GB", 81251, _tflops(312, 19.5, 19.5), 2000, 400, "NVIDIA A100 data sheet (SXM 80 GB); " + _STAS),
    _gpu("H100-80GB", 81559, _tflops(989, 67, 67), 3350, 700, "NVIDIA H100 SXM data sheet; " + _STAS),
    _gpu("H100-PCIe", 81559, _tflops(756, 51, 51), 2000, 350, "NVIDIA H100 PCIe data sheet; " + _STAS),
    _gpu("H200-141GB", 143771, _tflops(989, 67, 67), 4800, 700, "NVIDIA H200 data sheet; " + _STAS),
    _gpu("B200", 183359, _tflops(2250, 80, 40), 8000, 1000, "NVIDIA HGX B200 data sheet; " + _STAS),
    _gpu("B300", 275040, _tflops(2250, 80, 1.2), 8000, 1100, "NVIDIA HGX B300 data sheet; " + _STAS),
    _gpu("GB200", 177383, _tflops(2500, 80, 40), 8000, 1200, "NVIDIA GB200 NVL72 data sheet, per GPU; " + _STAS),
    _gpu("GB300", 266075, _tflops(2500, 80, 1.25), 8000, 1400, "NVIDIA GB300 NVL72 data sheet, per GPU, as listed by verda.com"),
    _gpu("MI300X", 196592, _tflops(1307, 163.4, 163.4), 5300, 750, "AMD MI300X data sheet; " + _STAS),
    _gpu("MI355X", 274658, _tflops(2500, 157.3, 78.6), 8000, 1400, "AMD MI355X data sheet; " + _STAS + "; float64 not verified"),
    _gpu("L40S", 46068, _tflops(362, 91.6, 1.4), 864, 350, "NVIDIA L40S data sheet; " + _STAS),
    _gpu("RTX4090", 24564, _tflops(165.2, 82.6, 1.3), 1008, 450, "NVIDIA Ada architecture white paper (RTX 4090)"),
)

# Latencies: per hop of a large-message protocol. NCCL's own tuning table (src/graph/tuning.cc) has 0.6 / 1.9 / 3.4 us per NVLink
# hop and 2.7 / 4.0 / 14 us per network hop for its LL / LL128 / Simple protocols; 2 and 8 us lie between and give 33 us and 77 us
# for an all-reduce over 8 and 2x8 H100 where aws nccl-tests measured 16-43 us (up to 2 MiB) and 69 us.
_NCCL = "; latency between NCCL's LL128 and Simple tuning figures"
_EFA = "; latency of a small EFA message, 16 us, not verified"
_LINKS = (
    Link("loopback", 200e-6, 0.5e9, _DEFAULT),
    Link("nvlink2", 2e-6, 150e9, "V100: 6 links x 25 GB/s per direction" + _NCCL),
    Link("nvlink2-cube", 2e-6, 150e9, "V100 in a DGX-1 or p3: 6 links x 25 GB/s per direction, one or two to each of four others, no switch" + _NCCL),
    Link("nvlink3", 2e-6, 300e9, "A100: 12 links x 25 GB/s per direction" + _NCCL),
    Link("nvlink4", 2e-6, 450e9, "H100: 18 links x 25 GB/s per direction" + _NCCL),
    Link("nvlink5", 2e-6, 900e9, "B200: 18 links x 50 GB/s per direction" + _NCCL),
    Link("nvl72", 2e-6, 900e9, "GB200 and GB300 NVL72: 18 links x 50 GB/s per direction, 72 devices on one switch" + _NCCL),
    Link("xgmi", 3e-6, 448e9, "MI300X: 7 links x 64 GB/s per direction" + _NCCL),
    Link("xgmi4", 3e-6, 535.5e9, "MI355X: 7 links x 76.5 GB/s per direction" + _NCCL),
    Link("pcie4", 5e-6, 31e9, "PCIe Gen4 x16, per direction; latency NCCL tuning, PCI Simple 5.7 us"),
    Link("pcie5", 5e-6, 63e9, "PCIe Gen5 x16, per direction; latency NCCL tuning, PCI Simple 5.7 us"),
    Link("ib-50", 8e-6, 6.25e9, "DGX-1 and DGX-2 (V100): half of a 100 Gb/s port per device" + _NCCL),
    Link("ib-100", 8e-6, 12.5e9, "one 100 Gb/s port per device" + _NCCL),
    Link("ib-200", 8e-6, 25e9, "DGX A100: one 200 Gb/s port per device" + _NCCL),
    Link("ib-400", 8e-6, 50e9, "DGX H100, HGX B200: one 400 Gb/s port per device" + _NCCL),
    Link("ib-800", 8e-6, 100e9, "HGX B300, GB300: one 800 Gb/s port per device" + _NCCL),
    Link("efa-100", 16e-6, 12.5e9, "AWS Elastic Fabric Adapter, one 100 Gb/s port" + _EFA),
    Link("efa-400", 16e-6, 50e9, "AWS Elastic Fabric Adapter, 400 Gb/s (of P5: four ports of 100)" + _EFA),
    Link("ethernet-10", 30e-6, 1.25e9, "one 10 Gb/s port per device; latency of kernel TCP, assumption"),
    Link("ethernet-25", 30e-6, 3.125e9, "one 25 Gb/s port; latency of kernel TCP, assumption"),
    Link("ethernet-100", 30e-6, 12.5e9, "one 100 Gb/s port per device; latency of kernel TCP, assumption"),
)

# device -> (inside, across): NVIDIA's and AMD's own 8-device hosts (DGX, HGX) and racks. MI355X: as MI300X, not verified. RTX4090: no usual
# network; what a main board has.
_DEVICE_LINKS = {
    "cpu": ("loopback", "ethernet-10"),
    "V100-16GB": ("nvlink2-cube", "ib-50"), "V100-32GB": ("nvlink2", "ib-50"),
    "A100-40GB": ("nvlink3", "ib-200"), "A100-80GB": ("nvlink3", "ib-200"),
    "H100-80GB": ("nvlink4", "ib-400"), "H100-PCIe": ("pcie5", "ib-400"), "H200-141GB": ("nvlink4", "ib-400"),
    "B200": ("nvlink5", "ib-400"), "B300": ("nvlink5", "ib-800"), "GB200": ("nvl72", "ib-800"), "GB300": ("nvl72", "ib-800"),
    "MI300X": ("xgmi", "ib-400"), "MI355X": ("xgmi4", "ib-400"), "L40S": ("pcie4", "ib-200"), "RTX4090": ("pcie4", "ethernet-10"),
}  # fmt: skip
# So many devices are on one such link at most, by the hosts there are: HGX A100 of Google's a2-megagpu-16g and DGX-2 have 16, racks 72.
_MOST_JOINED = {"nvlink2": 16, "nvlink2-cube": 8, "nvlink3": 16, "nvlink4": 8, "nvlink5": 8, "nvl72": 72, "xgmi": 8, "xgmi4": 8}
# The whole port of a link that stands for a share of one: for hosts whose number of ports is said.
PORT_OF = {"ib-50": "ib-100"}
_PARTS = frozenset(("mig", "laptop", "mobile", "d", "q", "ti", "super"))  # words of what is no whole device of that name
_SHORT = {"V100": "V100-32GB", "A100": "A100-80GB", "H100": "H100-80GB", "H200": "H200-141GB"}

_AWS = "AWS EC2 instance page, {}"
_MACHINES = (
    Machine("DGX-1", "V100-16GB", 8, 4, "nvlink2-cube", "ib-100", "NVIDIA DGX-1 (V100) data sheet, 4 x 100 Gb/s; not verified"),
    Machine("DGX-2", "V100-32GB", 16, 8, "nvlink2", "ib-100", "NVIDIA DGX-2 data sheet, 8 x 100 Gb/s (as in arXiv 1910.02054, ZeRO)"),
    Machine("p3.16xlarge", "V100-16GB", 8, 1, "nvlink2-cube", "ethernet-25", _AWS.format("25 Gb/s; not verified")),
    Machine("p3dn.24xlarge", "V100-32GB", 8, 1, "nvlink2-cube", "efa-100", _AWS.format("100 Gb/s; not verified")),
    Machine("DGX-A100-40GB", "A100-40GB", 8, 8, "nvlink3", "ib-200", "NVIDIA DGX A100 data sheet, 8 x 200 Gb/s; " + _STAS),
    Machine("DGX-A100-80GB", "A100-80GB", 8, 8, "nvlink3", "ib-200", "NVIDIA DGX A100 data sheet, 8 x 200 Gb/s; " + _STAS),
    Machine("p4d.24xlarge", "A100-40GB", 8, 4, "nvlink3", "efa-100", _AWS.format("400 Gb/s (AWS compute blog, P4d deep dive): four ports")),
    Machine("p4de.24xlarge", "A100-80GB", 8, 4, "nvlink3", "efa-100", _AWS.format("as P4d; not verified")),
    Machine("DGX-H100", "H100-80GB", 8, 8, "nvlink4", "ib-400", "NVIDIA DGX H100 data sheet, 8 x 400 Gb/s; " + _STAS),
    Machine("p5.48xlarge", "H100-80GB", 8, 8, "nvlink4", "efa-400", _AWS.format("3200 Gb/s; not verified")),
    Machine("DGX-H200", "H200-141GB", 8, 8, "nvlink4", "ib-400", "NVIDIA DGX H200 data sheet, 8 x 400 Gb/s; " + _STAS),
    Machine("DGX-B200", "B200", 8, 8, "nvlink5", "ib-400", "NVIDIA DGX B200 data sheet, 8 x 400 Gb/s; " + _STAS),
    Machine("p6-b200.48xlarge", "B200", 8, 8, "nvlink5", "efa-400", _AWS.format("EFA v4, 8 x 400 Gb/s; " + _STAS)),
    Machine("DGX-B300", "B300", 8, 8, "nvlink5", "ib-800", "NVIDIA DGX B300 data sheet, 8 x 800 Gb/s; " + _STAS),
    Machine("GB200-NVL72", "GB200", 72, 72, "nvl72", "ib-800", "NVIDIA GB200 NVL72; 800 Gb/s per device (p6e-gb200) " + _STAS),
    Machine("GB300-NVL72", "GB300", 72, 72, "nvl72", "ib-800", "NVIDIA GB300 NVL72, 72 ConnectX-8 (800 Gb/s)"),
)


def list_devices() -> tuple[Device, ...]:
    """The presets, for `autopar plan --help` and the documentation."""
    return _DEVICES


def name_preset(gpu: str) -> str | None:
    """The preset of a GPU, by torch's name of it: `NVIDIA H100 80GB HBM3` is H100-80GB, `NVIDIA H200` H200-141GB; None where that fits none, or several, or it is a part or a smaller form of one
    (MIG, a laptop's)."""
    words = re.findall(r"[a-z0-9]+", gpu.lower())
    if _PARTS.intersection(words):
        return None
    said = {*words, *(a + b for a, b in zip(words, words[1:]))}  # RTX 4090, and GH200 is no H200
    chips = {d.name: d.name.lower().split("-") for d in _DEVICES if d.kind == "cuda"}
    here = [name for name, own in chips.items() if own[0] in said]
    whole = [name for name in here if all(word in said for word in chips[name])]
    found = whole if len(whole) == 1 else here
    return found[0] if len(found) == 1 else None


def list_links() -> tuple[Link, ...]:
    """The presets."""
    return _LINKS


def list_machines() -> tuple[Machine, ...]:
    """The presets."""
    return _MACHINES


def list_short_names() -> tuple[str, ...]:
    """Names without a memory size, of the usual variant."""
    return tuple(_SHORT)


def device_links(device: str) -> tuple[str, str]:
    """(inside, across) of the usual host of a device preset."""
    return _DEVICE_LINKS[device]


def find_device(name: object, where: str, own: Mapping[str, Device]) -> Device:
    """A preset or one of the user's own, by name.

    Raises:
        ClusterError: there is none; says which there are.
    """
    known = {d.name: d for d in _DEVICES} | own
    found = name if not isinstance(name, str) or name in own else _SHORT.get(name, name)  # a table counts under the name that it has
    if isinstance(found, str) and found in known:
        return known[found]
    hint = nearest(name, [*known, *_SHORT]) or ", or describe it in a TOML file as [devices.NAME]"
    raise ClusterError(f"{where}: unknown device {name!r}; known: {', '.join(known)}{hint}")


def find_link(name: str, where: str) -> Link:
    """A preset, by name.

    Raises:
        ClusterError: there is none; says which there are.
    """
    for link in _LINKS:
        if link.name == name:
            return link
    known = [link.name for link in _LINKS]
    raise ClusterError(f"{where}: unknown link {name!r}; known: {', '.join(known)}{nearest(name, known)}")


def check_joined(link: Link, hosts: int, devices: int, device: str, where: str) -> None:
    """A host has no more devices than its link joins anywhere.

    Raises:
        ClusterError: it has.
    """
    most = _MOST_JOINED.get(link.name)
    if most is not None and devices > most:
        better = f"{hosts * devices // most}x{most}x{device}" if devices % most == 0 else f"HOSTSx{most}x{device}"
        raise ClusterError(
            f"{where}: {devices} devices on a host: {link.name} joins at most {most}, expected several hosts, as in {better}, "
            "or what joins them as links.inside of a TOML file, with its figures"
        )


def check_one_maker(devices: Sequence[Device], said: str, where: str) -> None:
    """GPUs of NVIDIA and of AMD have no collectives together.

    Args:
        said: which hosts there are.
    Raises:
        ClusterError: there are both.
    """
    makers = {"AMD" if device.name.startswith("MI") else "NVIDIA" for device in devices if device.kind == "cuda" and device.name in _DEVICE_LINKS}
    if len(makers) > 1:
        raise ClusterError(f"{where}: the collectives of NVIDIA's GPUs (NCCL) and of AMD's (RCCL) do not meet in one program, found {said}; plan each kind of host alone")


def find_machine(name: object, where: str) -> Machine:
    """A preset, by name.

    Raises:
        ClusterError: there is none; says which there are.
    """
    for machine in _MACHINES:
        if machine.name == name:
            return machine
    known = [machine.name for machine in _MACHINES]
    raise ClusterError(f"{where}: unknown machine {name!r}; known: {', '.join(known)}{nearest(name, known)}")


def nearest(found: object, known: list[str]) -> str:
    """What is near, as "; did you mean NAME?"; or nothing."""
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(found).lower(), list(lower), n=1, cutoff=0.6)
    return f"; did you mean {lower[close[0]]}?" if close else ""
