"""All ranks in numpy: cut a tensor into pieces, run reshard steps and whole programs on them."""

import numpy as np

from autopar.graph.mesh import axis_groups, coordinates, num_ranks
from autopar.graph.reshard import Step, StepKind
from autopar.graph.sharding import Partial, Shard, is_uneven


def take(x, dim, stride, size, coordinate):
    """The indices i of `dim` with (i // stride) % size == coordinate; zeros where a dim that `size` strides are longer than has none."""
    index = np.arange(x.shape[dim])
    piece = np.take(x, index[(index // stride) % size == coordinate], axis=dim)
    missing = stride - piece.shape[dim] if stride * size > x.shape[dim] else 0
    return np.pad(piece, [(0, missing if d == dim else 0) for d in range(x.ndim)])


def put(pieces, dim, stride, short=0):
    """The tensor of which `take` gives these pieces, which are `short` elements longer together."""
    shape = list(pieces[0].shape)
    shape[dim] *= len(pieces)
    whole = np.empty(shape)
    index = np.arange(shape[dim])
    for c, piece in enumerate(pieces):
        np.moveaxis(whole, dim, 0)[(index // stride) % len(pieces) == c] = np.moveaxis(piece, dim, 0)
    return np.take(whole, np.arange(shape[dim] - short), axis=dim)


def cut(x, sharding, mesh, rng):
    """Each rank's piece of `x`; what a Partial holds is random but for its sum (or max)."""
    addends = {(): x}  # coordinates of the Partial axes so far -> the whole tensor there
    for placement, axis in zip(sharding.placements, mesh.axes):
        split = {}
        for place, value in addends.items():
            if isinstance(placement, Partial):
                parts = [rng.standard_normal(x.shape) for _ in range(axis.size)]
                if placement.op == "sum":
                    parts[-1] = value - sum(parts[:-1])
                else:
                    owner = rng.integers(0, axis.size, x.shape)
                    parts = [np.where(owner == c, value, value - abs(p)) for c, p in enumerate(parts)]
            else:
                parts = [value] * axis.size
            split |= {(*place, c): part for c, part in enumerate(parts)}
        addends = split
    pieces = []
    for rank in range(num_ranks(mesh)):
        place = coordinates(mesh, rank)
        piece = addends[place]
        # the outer digits first: taking one leaves the strides below it as they are
        digits = [(p.stride, p.dim, axis.size, c) for p, axis, c in zip(sharding.placements, mesh.axes, place) if isinstance(p, Shard)]
        for stride, dim, size, c in sorted(digits, reverse=True):
            piece = take(piece, dim, stride, size, c)
        pieces.append(piece)
    return pieces


def join(pieces, shape, sharding, mesh):
    """The whole tensor that the pieces stand for; fails where ranks that must agree do not."""
    for k, (placement, axis) in reversed(list(enumerate(zip(sharding.placements, mesh.axes)))):
        if isinstance(placement, Partial):
            for group in axis_groups(mesh, k):
                total = combine([pieces[r] for r in group], placement.op)
                pieces = [total if r in group else p for r, p in enumerate(pieces)]
    whole = np.full(shape, np.nan)
    for rank, piece in enumerate(pieces):
        where = [np.arange(n) for n in shape]
        for placement, axis, c in zip(sharding.placements, mesh.axes, coordinates(mesh, rank)):
            if isinstance(placement, Shard):
                kept = where[placement.dim]
                where[placement.dim] = kept[(kept // placement.stride) % axis.size == c]
        place = np.ix_(*where)
        if is_uneven(sharding):  # the rest is padding
            piece = piece[tuple(slice(len(kept)) for kept in where)]
        assert piece.shape == whole[place].shape, (piece.shape, whole[place].shape)
        seen = ~np.isnan(whole[place])
        assert np.allclose(whole[place][seen], piece[seen]), "ranks disagree"
        whole[place] = piece
    return whole


def combine(values, op):
    return sum(values[1:], values[0]) if op in ("", "sum") else np.maximum.reduce(values)


def run_step(pieces, step: Step, mesh):
    """One step on all ranks."""
    size = mesh.axes[step.axis].size
    after = list(pieces)
    for group in axis_groups(mesh, step.axis):
        mine = [pieces[r] for r in group]
        for c, rank in enumerate(group):
            if step.kind is StepKind.ALL_GATHER:
                made = put(mine, step.from_dim, step.from_stride, step.from_short)
            elif step.kind is StepKind.REDUCE_SCATTER:
                made = take(combine(mine, step.op), step.to_dim, step.to_stride, size, c)
            elif step.kind is StepKind.ALL_REDUCE:
                made = combine(mine, step.op)
            elif step.kind is StepKind.ALL_TO_ALL:
                made = put([take(x, step.to_dim, step.to_stride, size, c) for x in mine], step.from_dim, step.from_stride)
            elif step.kind is StepKind.SLICE:
                made = take(pieces[rank], step.to_dim, step.to_stride, size, c)
            else:
                made = pieces[rank] if c == 0 else np.zeros_like(pieces[rank])
            assert pieces[rank].shape == step.local_in and made.shape == step.local_out
            after[rank] = made
    return after
