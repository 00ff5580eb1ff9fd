"""Groups of ranks, and what their ports carry at least.

In: a group and a kind of collective. Out: bytes on a device's link inside its host and on a port between hosts, per byte of nccl-tests' size (see `cost.curves`). Knows neither
figures of links nor seconds. Invariant: more ports carry no more each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from .curves import bus_factor


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks in all, on one host, and the ports that they drive on each host: less than one where groups share them."""

    ranks: int
    per_host: int
    nics: float

    @property
    def hosts(self) -> int:
        return ceil(self.ranks / self.per_host)


def port_bytes(kind: str, group: Group) -> tuple[float, float]:
    """(on a device's link inside its host, on one port between hosts), per byte, one way.

    A ring sends what `bus_factor` says past each rank; where it leaves the host, one rank of a host sends through the ports instead. Between two hosts an all_reduce leaves each host once, and
    an all_to_all sends each host only what is for it.
    """
    n, g = group.ranks, group.per_host
    factor = bus_factor(kind, n)
    if group.hosts == 1:
        return factor, 0.0
    if kind == "send_recv":
        return 0.0, 1 / min(1.0, group.nics)  # one connection, through one port
    if kind == "all_to_all":
        return (g - 1) / n, (n - g) / n * g / group.nics
    once = kind == "all_reduce" and group.hosts == 2
    return factor * (g - 1) / g, (1.0 if once else factor) / group.nics


__all__ = ["Group", "port_bytes"]
