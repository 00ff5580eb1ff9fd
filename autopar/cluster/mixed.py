"""Hosts of different kinds: equal stages and equal shards wait for the slowest, so every device counts as the slowest in each figure.

In: the kinds of hosts. Out: one device, one link inside, one link across and its ports, with the least of each figure. Nothing here
gives a slow host less to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .nouns import Device, Link, rate_of


@dataclass(frozen=True, slots=True)
class HostKind:
    """Equal hosts of a cluster.

    Args:
        nics: ports of one host; None: one for each device.
        inside, across: None where nothing was said and nothing is known.
    """

    count: int
    devices: int
    device: Device
    nics: int | None
    inside: Link | None
    across: Link | None


def print_kinds(kinds: Sequence[HostKind]) -> str:
    """What people read: `2 x 8 A100-80GB and 1 x 8 H100-80GB`."""
    return " and ".join(f"{k.count} x {k.devices} {k.device.name}" for k in kinds)


def slowest_device(devices: Sequence[Device], said: str) -> Device:
    """A device with the slowest figures; the device itself where all are equal.

    Args:
        said: which hosts there are.
    """
    parts = tuple(dict.fromkeys(devices))
    if len(parts) == 1:
        return parts[0]
    dtypes = dict.fromkeys(dtype for part in parts for dtype, _ in part.flops_per_s)
    sources = "; ".join(f"{part.name}: {part.source}" for part in parts)
    return Device(
        "+".join(dict.fromkeys(part.name for part in parts)),
        parts[0].kind,
        min(part.memory_bytes for part in parts),
        tuple((dtype, min(rate_of(part, dtype) for part in parts)) for dtype in dtypes),
        min(part.memory_bytes_per_s for part in parts),
        max(part.launch_s for part in parts),
        f"mixed: {said}; every device counts as the slowest in each figure; {sources}",
        parts=parts,
    )


def slowest_link(links: Sequence[Link]) -> Link:
    """The link of least bandwidth, with the longest latency of all."""
    return _with_longest_latency(min(links, key=lambda link: (link.bandwidth_bytes_per_s, -link.latency_s)), links)


def slowest_across(kinds: Sequence[HostKind]) -> tuple[Link, int | None]:
    """(port, ports of a host) of the kind of host whose ports together carry least, with the longest latency of all."""
    slow = min(kinds, key=lambda k: (k.devices if k.nics is None else k.nics) * k.across.bandwidth_bytes_per_s)
    return _with_longest_latency(slow.across, [k.across for k in kinds]), slow.nics


def _with_longest_latency(slow: Link, links: Sequence[Link]) -> Link:
    latest = max(links, key=lambda link: link.latency_s)
    if latest.latency_s == slow.latency_s:
        return slow
    return replace(slow, latency_s=latest.latency_s, source=f"{slow.source}; the longer latency of {latest.name}: {latest.source}")
