"""The nouns of clusters, and what follows from them. Bytes, seconds, watts; links per direction."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ClusterError

MOST_DEVICES = 2**18  # of a cluster: the search for layouts grows with their number


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one rank's share of a CPU.

    Args:
        name: preset or the user's own.
        kind: `cpu` or `cuda` (ROCm devices are `cuda` to torch).
        memory_bytes: of one device.
        flops_per_s: (dtype, dense matmul peak at full power); a dtype that is not listed runs at the float32 figure.
        memory_bytes_per_s: of the device's own memory.
        launch_s: overhead of starting one op.
        source: where the figures come from.
        board_power_w: full power, for which the peaks hold; None: not known.
        power_w: that it may draw here; None: full power.
        parts: the different devices of a mixed cluster, of which this one has the slowest figures; (): it is one device.
    """

    name: str
    kind: str
    memory_bytes: int
    flops_per_s: tuple[tuple[str, float], ...]
    memory_bytes_per_s: float
    launch_s: float
    source: str
    board_power_w: float | None = None
    power_w: float | None = None
    parts: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """What connects devices.

    Args:
        latency_s: per hop.
        bandwidth_bytes_per_s: that one device (between hosts: one port) sends in one direction.
        oversubscription: by which that of the port itself was divided, because the network behind it does not carry all at once.
    """

    name: str
    latency_s: float
    bandwidth_bytes_per_s: float
    source: str
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A host that can be bought or rented.

    Args:
        device, inside, across: names of presets.
        devices: of one host.
        nics: ports of one host, each of them an `across`.
    """

    name: str
    device: str
    devices: int
    nics: int
    inside: str
    across: str
    source: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal hosts of equal devices.

    Args:
        spec: the user's text, or the path of the file.
        inside: between devices of one host.
        across: between hosts, one port. On a single host nothing crosses it.
        nics: ports of one host, which its devices share; None: one for each device.
    Raises:
        ClusterError: more than `MOST_DEVICES` in all.
    """

    spec: str
    num_hosts: int
    devices_per_host: int
    device: Device
    inside: Link
    across: Link
    nics: int | None = None

    def __post_init__(self) -> None:
        if num_devices(self) > MOST_DEVICES:
            raise ClusterError(
                f"cluster {self.spec!r}: expected at most {MOST_DEVICES:,} devices, found {num_devices(self):,} ({self.num_hosts:,} x "
                f"{self.devices_per_host:,})"
            )


def num_devices(cluster: Cluster) -> int:
    """Devices of the whole cluster."""
    return cluster.num_hosts * cluster.devices_per_host


def ports_per_device(cluster: Cluster) -> float:
    """Ports between hosts that each device has for itself where all devices of a host send at once; below 1: they share."""
    return 1.0 if cluster.nics is None else cluster.nics / cluster.devices_per_host


def rate_of(device: Device, dtype: str) -> float:
    """Peak FLOP/s; a dtype without a figure runs as float32, and float32 without one at the slowest."""
    rates = dict(device.flops_per_s)
    return rates.get(dtype) or rates.get("float32") or min(rates.values())


def power_share(device: Device) -> float:
    """Of the matmul level at full power, what is left at the device's limit: power over board power.

    Source: torchtitan's H100 of 500 W instead of 700; with its peak scaled by 500/700 published bf16 steps were predicted within 9 %,
    without within 31 %. Bandwidth keeps its figure: memory and links have clocks of their own.
    """
    return 1.0 if device.power_w is None or device.board_power_w is None else device.power_w / device.board_power_w
