"""Meshes: named axes with sizes, and the rank at each coordinate.

Ranks are numbered as torchrun numbers them: host by host. The last axis varies fastest, so it is the one whose neighbours
sit closest. `link` says which link of the cluster the ranks of one group along the axis must cross.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis: its short name, how many ranks along it, and the slowest link a group along it crosses (`inside`, `across`)."""

    name: str
    size: int
    link: str = "inside"


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes, outermost first. A mesh of one rank has no axes."""

    axes: tuple[MeshAxis, ...]


def num_ranks(mesh: Mesh) -> int:
    """Number of ranks of the whole mesh."""
    return prod(a.size for a in mesh.axes)


def axis_sizes(mesh: Mesh) -> tuple[int, ...]:
    """Size of each axis, outermost first."""
    return tuple(a.size for a in mesh.axes)


def coordinates(mesh: Mesh, rank: int) -> tuple[int, ...]:
    """Where this rank sits: one coordinate per axis."""
    coords = []
    for axis in reversed(mesh.axes):
        coords.append(rank % axis.size)
        rank //= axis.size
    return tuple(reversed(coords))


def axis_groups(mesh: Mesh, axis: int) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks that communicate along this axis: all ranks, each in one group, in coordinate order."""
    stride = prod(a.size for a in mesh.axes[axis + 1 :])
    size = mesh.axes[axis].size
    starts = [r for r in range(num_ranks(mesh)) if (r // stride) % size == 0]
    return tuple(tuple(start + k * stride for k in range(size)) for start in starts)


def joint_name(mesh: Mesh, names: Collection[str]) -> str:
    """What the ranks along these axes together are called: `dp+tp`, in the order of the mesh."""
    return "+".join(axis.name for axis in mesh.axes if axis.name in names)


def joint_group(mesh: Mesh, names: Collection[str], rank: int) -> tuple[int, ...]:
    """The ranks that differ from this one along these axes only, in order."""
    own = [c for axis, c in zip(mesh.axes, coordinates(mesh, rank)) if axis.name not in names]
    others = ((r, coordinates(mesh, r)) for r in range(num_ranks(mesh)))
    return tuple(r for r, place in others if [c for axis, c in zip(mesh.axes, place) if axis.name not in names] == own)


def print_mesh(mesh: Mesh) -> str:
    """`a=2 b=4`; `1 rank` for the trivial mesh."""
    return " ".join(f"{a.name}={a.size}" for a in mesh.axes) or "1 rank"
