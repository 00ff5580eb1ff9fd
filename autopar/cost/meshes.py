"""Meshes: the ways to lay the devices of a cluster out on axes."""

from __future__ import annotations

from math import isqrt

from ..cluster import Cluster, num_devices
from ..graph.mesh import Mesh, MeshAxis


def list_meshes(cluster: Cluster, max_axes: int = 3) -> tuple[Mesh, ...]:
    """Every way to lay the devices out on up to `max_axes` axes, fewest axes first.

    Two orders of the same sizes count once where each size crosses the same link and shares hosts in the same way; the order that is kept
    has the larger axes outside.
    """
    found: dict[tuple[tuple[int, str, int], ...], Mesh] = {}
    for count in range(1, max_axes + 1):
        for sizes in sorted(_factorizations(num_devices(cluster), count), reverse=True):
            axes = []
            kinds = []
            stride = 1
            for size in reversed(sizes):
                span = stride * size
                inside = cluster.num_hosts == 1 or cluster.devices_per_host % span == 0
                axes.append((size, "inside" if inside else "across"))
                kinds.append((size, axes[-1][1], size if inside else max(1, cluster.devices_per_host // stride)))
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
