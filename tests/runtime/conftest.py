"""Random shardings for the tests of this floor."""

from __future__ import annotations

import itertools
import random

from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.sharding import REPLICATE, Partial, Shard, Sharding, uneven_chunks, why_illegal


def mesh_of(*sizes: int) -> Mesh:
    return Mesh(tuple(MeshAxis(name, size) for name, size in zip("abc", sizes)))


def legal_placements(shape: tuple[int, ...], size: int, partial: bool) -> list:
    """Every placement one axis can have, alone."""
    found: list = [REPLICATE] + ([Partial("sum")] if partial else [])
    for dim, length in enumerate(shape):
        found += [Shard(dim, stride) for stride in range(1, length + 1) if length % (stride * size) == 0]
        found += [uneven_chunks(dim, length, size)] if length % size else []
    return found


def all_shardings(shape: tuple[int, ...], mesh: Mesh, partial: bool = False) -> list[Sharding]:
    sizes = tuple(a.size for a in mesh.axes)
    choices = itertools.product(*(legal_placements(shape, size, partial) for size in sizes))
    return [s for s in map(Sharding, choices) if not why_illegal(shape, s, sizes)]


def some(rng: random.Random, things: list, count: int) -> list:
    return things if len(things) <= count else rng.sample(things, count)
