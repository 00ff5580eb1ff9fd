"""Reshards on all ranks in numpy: after the steps every rank holds its piece of the target, and no detour was taken."""

import random

import numpy as np
import pytest

from autopar.errors import GraphError
from autopar.graph.reshard import COLLECTIVES, StepKind, moved_elements, reshard_steps
from autopar.graph.sharding import PARTIAL, REPLICATE, Partial, Shard, Sharding, has_partial, is_uneven, local_shape, parse_sharding, uneven_chunks, why_illegal

from .drafts import make_mesh
from .pieces import cut, join, run_step

SHAPES = [(24,), (8, 6), (12, 4, 6), (16, 9), (4, 1, 12), (36, 2)]
MESHES = [(2,), (4,), (3,), (2, 2), (2, 3), (4, 2), (2, 2, 2)]


def draw_sharding(rng, shape, sizes, reductions):
    """A random legal sharding: any dim, any stride, several axes on one dim, Partials of one reduction."""
    while True:
        placements = []
        for size in sizes:
            options = [REPLICATE, *reductions]
            options += [Shard(d, s) for d, n in enumerate(shape) for s in range(1, n + 1) if n % (s * size) == 0]
            options += [uneven_chunks(d, n, size) for d, n in enumerate(shape) if n % size]
            kind = rng.random()
            placements.append(rng.choice([p for p in options if isinstance(p, Shard)] or [REPLICATE]) if kind < 0.6 else rng.choice(options))
        sharding = Sharding(tuple(placements))
        if not why_illegal(shape, sharding, sizes):
            return sharding


def cases(count):
    rng = random.Random(7)
    for _ in range(count):
        shape, sizes = rng.choice(SHAPES), rng.choice(MESHES)
        reductions = rng.choice([(), (PARTIAL,), (Partial("max"),)])
        target_reductions = rng.choice([(), (PARTIAL,)]) if reductions != (Partial("max"),) else ()
        yield shape, sizes, draw_sharding(rng, shape, sizes, reductions), draw_sharding(rng, shape, sizes, target_reductions)


def gather_everything(shape, source, target, sizes):
    """Elements moved by the plain way: reduce and gather every axis that changes, innermost axis first, then cut locally."""
    here, moved = list(source.placements), 0.0
    for axis in reversed(range(len(sizes))):
        if here[axis] == target.placements[axis] or here[axis] == REPLICATE:
            continue
        held = np.prod(local_shape(shape, Sharding(tuple(here)), sizes))
        share = (sizes[axis] - 1) / sizes[axis]
        moved += share * (held * sizes[axis] if isinstance(here[axis], Shard) else 2 * held)
        here[axis] = REPLICATE
    return moved


def test_random_reshards():
    numbers = np.random.default_rng(0)
    kinds, uneven = set(), 0
    for shape, sizes, source, target in cases(600):
        mesh = make_mesh(*sizes)
        x = numbers.standard_normal(shape)
        uneven += is_uneven(source) or is_uneven(target)
        steps = reshard_steps(shape, source, target, sizes)
        kinds |= {step.kind for step in steps}
        pieces = cut(x, source, mesh, numbers)
        for step in steps:
            pieces = run_step(pieces, step, mesh)
        where = f"{shape} {sizes}: {source} -> {target}"
        if has_partial(target):
            assert np.allclose(join(pieces, shape, target, mesh), x), where
        else:
            for found, wanted in zip(pieces, cut(x, target, mesh, numbers)):
                assert found.shape == wanted.shape and np.allclose(found, wanted), where
    assert kinds == set(StepKind) and uneven > 50


def test_hardly_more_than_gathering_everything():
    """An outer axis weighs a hundredth more per axis inside of it, so a path may move that much more."""
    for shape, sizes, source, target in cases(400):
        moved = sum(moved_elements(s, sizes[s.axis]) for s in reshard_steps(shape, source, target, sizes))
        assert moved <= 1.02 * gather_everything(shape, source, target, sizes) + 0.02, f"{shape} {sizes}: {source} -> {target}"


def path(shape, source, target, sizes):
    steps = reshard_steps(shape, parse_sharding(source), parse_sharding(target), sizes)
    return " ".join(f"{s.kind.value}:{'abc'[s.axis]}" for s in steps)


@pytest.mark.parametrize(
    ("shape", "source", "target", "sizes", "steps"),
    [
        ((8, 6), "R", "R", (2,), ""),
        ((8, 6), "S0/4", "R", (2,), "all_gather:a"),
        ((8, 6), "R", "S0/4", (2,), "slice:a"),
        ((8, 6), "P", "R", (2,), "all_reduce:a"),
        ((8, 6), "P", "S0/4", (2,), "reduce_scatter:a"),
        ((8, 6), "S0/4", "S1/3", (2,), "all_to_all:a"),
        ((8, 6), "R", "P", (2,), "keep:a"),
        ((8, 6), "S0/4", "P", (2,), "all_gather:a keep:a"),
        ((8, 6), "S0/4", "S0/2", (2,), "all_gather:a slice:a"),  # another digit of the same dim
        ((8, 6), "P,R", "R,S0/4", (2, 2), "slice:b all_reduce:a"),  # cut before reducing
        ((8, 8), "S0/4,P", "R,S1/4", (2, 2), "reduce_scatter:b all_gather:a"),  # reduce the small one
        ((8, 8), "P,P", "S0/4,S0/2", (2, 2), "reduce_scatter:b reduce_scatter:a"),  # across, the outer axis, with the smaller piece
        ((8, 8), "S0/4,S0/2", "R,R", (2, 2), "all_gather:a all_gather:b"),  # the same
        ((8, 8), "P,P", "S1/4,S1/1", (2, 4), "reduce_scatter:b reduce_scatter:a"),
        ((8, 8), "R,R", "S0/4,S1/2", (2, 4), "slice:b slice:a"),  # the larger cut first: less is written
        ((8, 8), "R,P", "S0/4,R", (2, 4), "slice:a all_reduce:b"),
        ((8, 8), "S0/4,S0/2", "S0/2,S0/4", (2, 2), "all_gather:a all_gather:b slice:b slice:a"),  # each digit is in the other's way
        ((8, 8), "S0/4,S0/1,P", "S0/2,S1/2,P", (2, 4, 2), "all_to_all:b all_gather:a slice:a"),  # a Partial that stays
        ((8,), "S0/4,R", "R,S0/4", (2, 2), "all_gather:a slice:b"),  # no rank holds what its neighbour needs: a permute would be a new step
        ((8, 6), "P", "Pmax", (2,), None),
        ((8, 6), "R", "Pmax", (2,), None),
    ],
)
def test_known_paths(shape, source, target, sizes, steps):
    if steps is None:
        with pytest.raises(GraphError) as error:
            path(shape, source, target, sizes)
        assert str(error.value) == f"no reshard from {source} to {target} for shape {list(shape)} on a mesh of {sizes}"
    else:
        assert path(shape, source, target, sizes) == steps


def test_bytes_of_the_steps():
    """Ring algorithms: (N-1)/N of the gathered elements, twice that for an all-reduce."""
    moved = {}
    for source, target in [("S0/2", "R"), ("R", "S0/2"), ("P", "R"), ("P", "S0/2"), ("S0/2", "S1/2"), ("R", "P")]:
        (step,) = reshard_steps((8, 8), parse_sharding(source), parse_sharding(target), (4,))
        moved[step.kind.value] = moved_elements(step, 4)
        assert (step.kind in COLLECTIVES) == (moved_elements(step, 4) > 0)
    assert moved == {"all_gather": 48, "slice": 0, "all_reduce": 96, "reduce_scatter": 48, "all_to_all": 12, "keep": 0}
