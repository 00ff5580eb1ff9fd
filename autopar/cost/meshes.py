"""Meshes: the ways to lay the devices of a cluster out on axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, prod

import numpy as np

from ..cluster import Cluster, num_devices
from ..graph.mesh import Mesh, MeshAxis


@dataclass(frozen=True, slots=True, order=True)
class Spread:
    """How a group of ranks lies on hosts.

    Args:
        per_host: as many on each host, but for the last, as give the number of hosts; all of them where nothing leaves the host.
        fewest: on the host that has the fewest.
    """

    per_host: int
    fewest: int


@lru_cache(maxsize=4096)
def worst_spread(sizes: tuple[int, ...], axes: tuple[int, ...], devices_per_host: int) -> Spread:
    """Of the groups of ranks along these axes, the one on the most hosts, and of those the one with the fewest ranks on one of them.

    A degree that does not divide a host leaves some groups whole on a host and others across two: three ranks of each host's eight, every other one, are 0, 2, 4, and then 6, 8, 10.

    Args:
        sizes: of all axes of the mesh, laid over the cluster host by host, last axis fastest.
        axes: in the order of the mesh.
    """
    ranks = prod(sizes[axis] for axis in axes)
    groups = np.moveaxis(np.arange(prod(sizes)).reshape(sizes), axes, range(-len(axes), 0)).reshape(-1, ranks)
    firsts = np.unique(groups[:, 0] % devices_per_host)  # groups whose first ranks lie alike on their hosts lie alike
    worst = (1, -ranks)
    for first in firsts:
        counts = np.unique((groups[0] + first) // devices_per_host, return_counts=True)[1]
        worst = max(worst, (len(counts), -int(counts.min())))
    hosts, fewest = worst[0], -worst[1]
    return Spread(ranks if hosts == 1 else min(-(-ranks // hosts), (ranks - 1) // (hosts - 1)), fewest)


def list_meshes(cluster: Cluster, max_axes: int = 3) -> tuple[Mesh, ...]:
    """Every way to lay the devices out on up to `max_axes` axes, fewest axes first.

    Two orders of the same sizes count once where each size crosses the same link and shares hosts in the same way; the order that is kept
    has the larger axes outside.
    """
    found: dict[tuple[tuple[int, str, Spread], ...], Mesh] = {}
    for count in range(1, max_axes + 1):
        for sizes in sorted(_factorizations(num_devices(cluster), count), reverse=True):
            axes = []
            kinds = []
            stride = 1
            for size in reversed(sizes):
                span = stride * size
                inside = cluster.num_hosts == 1 or cluster.devices_per_host % span == 0
                axes.append((size, "inside" if inside else "across"))
                kinds.append((size, axes[-1][1], Spread(size, size) if inside else worst_spread((num_devices(cluster) // span, size, stride), (1,), cluster.devices_per_host)))
                stride = span
            mesh = Mesh(tuple(MeshAxis(name, size, link) for name, (size, link) in zip("abcdefgh", reversed(axes))))
            found.setdefault(tuple(sorted(kinds)), mesh)
    return tuple(found.values()) or (Mesh(()),)


def _factorizations(number: int, count: int) -> list[tuple[int, ...]]:
    """Ordered factorizations into `count` factors of at least 2."""
    if count == 1:
        return [(number,)] if number > 1 else []
    small = [d for d in range(2, isqrt(number) + 1) if number % d == 0]
    firsts = {*small, *(number // d for d in small)}
    return [(first, *rest) for first in firsts for rest in _factorizations(number // first, count - 1)]
