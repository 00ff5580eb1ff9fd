"""Which part of a whole tensor a rank holds: cut it out, join all pieces again, name the regions.

A sharding without Partial cuts each dim into digits (`graph.sharding.dim_digits`); a rank holds one coordinate of each axis digit, and
keeps the order. So its piece is, seen in the whole: rectangles (`regions`, for checkpoints), or runs of the flat tensor in rising order
(`owned_runs`, for values that are made chunk by chunk). Where chunks do not divide a dim, what lies behind its end is padding: zeros in a piece that is cut, in no region and in no run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..errors import PlanError
from ..graph.mesh import Mesh, axis_sizes, coordinates, num_ranks
from ..graph.sharding import Shard, Sharding, dim_digits, has_partial, is_uneven, local_shape, pad_shape, short_of, why_illegal


@dataclass(frozen=True)
class Region:
    """A rectangle of the whole tensor, and where it lies in the rank's piece."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    local_offsets: tuple[int, ...]


def cut(tensor: Tensor, sharding: Sharding, mesh: Mesh, rank: int) -> Tensor:
    """The piece of the whole tensor that this rank holds, as a contiguous copy."""
    shape = tuple(tensor.shape)
    _check(shape, sharding, mesh)
    opened, index = _open(_fill_up(tensor, pad_shape(shape, sharding)), sharding, mesh, rank)
    piece = opened[index].reshape(local_shape(shape, sharding, axis_sizes(mesh)))
    return piece.clone(memory_format=torch.contiguous_format)


def join(pieces: Sequence[Tensor], shape: tuple[int, ...], sharding: Sharding, mesh: Mesh) -> Tensor:
    """The whole tensor from the pieces of all ranks, in rank order. Where ranks hold the same, the first one counts."""
    _check(shape, sharding, mesh)
    whole = pieces[0].new_empty(pad_shape(shape, sharding))
    for rank in reversed(range(num_ranks(mesh))):
        opened, index = _open(whole, sharding, mesh, rank)
        place = opened[index]
        place.copy_(pieces[rank].reshape(place.shape))
    return whole[tuple(slice(size) for size in shape)].contiguous() if is_uneven(sharding) else whole


def regions(shape: tuple[int, ...], sharding: Sharding, mesh: Mesh, rank: int) -> list[Region]:
    """The rank's piece as rectangles of the whole: one for plain chunks, several where a digit is strided."""
    _check(shape, sharding, mesh)
    coords = coordinates(mesh, rank)
    runs_of_dims = []
    for dim, size in enumerate(shape):
        runs = [(start, max(0, min(length, size - start))) for start, length in _runs(dim_digits(size, dim, sharding, axis_sizes(mesh)), coords)]
        starts = itertools.accumulate((length for _, length in runs), initial=0)
        runs_of_dims.append([(start, length, local) for (start, length), local in zip(runs, starts)])
    return [
        Region(tuple(start for start, _, _ in box), tuple(length for _, length, _ in box), tuple(local for _, _, local in box))
        for box in itertools.product(*runs_of_dims)
        if not is_uneven(sharding) or all(length for _, length, _ in box)
    ]


@dataclass(frozen=True)
class OwnedRuns:
    """Which elements of the flat whole tensor a rank owns: rows of `length` elements, by the digits of the row number.

    Args:
        length: of a row, in elements.
        digits: (stride in rows, radix, the rank's coordinate): a row is owned where all of them match.
        chunks: of dims that are cut into chunks which do not divide them: (stride in rows, length of the dim, of a chunk, the rank's coordinate).
    """

    length: int
    digits: tuple[tuple[int, int, int], ...]
    chunks: tuple[tuple[int, int, int, int], ...] = ()

    def touches(self, start: int, stop: int) -> bool:
        """True where the rank owns something in this range of the flat whole tensor."""
        return bool(self._owned(start // self.length, -(-stop // self.length)).any())

    def take(self, values: Tensor, start: int) -> Tensor:
        """The owned elements of the flat range that begins at element `start`, in order.

        Args:
            values: 1-dim, what the whole tensor has there.
        """
        stop = start + values.numel()
        first, last = -(-start // self.length), stop // self.length  # the rows between them lie inside the range
        parts = []
        if start < first * self.length and self._owned(first - 1, first).any():
            parts.append(values[: min(first * self.length, stop) - start])
        if first < last:
            inside = values[first * self.length - start : last * self.length - start].view(last - first, self.length)
            parts.append(inside[self._owned(first, last)].view(-1))
        if first <= last and last * self.length < stop and self._owned(last, last + 1).any():
            parts.append(values[last * self.length - start :])
        return torch.cat(parts) if parts else values[:0]

    def _owned(self, first: int, last: int) -> Tensor:
        rows = torch.arange(first, last)
        owned = torch.ones(last - first, dtype=torch.bool)
        for stride, radix, coordinate in self.digits:
            owned &= torch.div(rows, stride, rounding_mode="floor") % radix == coordinate
        for stride, size, chunk, coordinate in self.chunks:
            owned &= torch.div(torch.div(rows, stride, rounding_mode="floor") % size, chunk, rounding_mode="floor") == coordinate
        return owned


def owned_runs(shape: tuple[int, ...], sharding: Sharding, mesh: Mesh, rank: int) -> OwnedRuns:
    """The rank's piece as runs of the flat whole tensor; padding is in none."""
    _check(shape, sharding, mesh)
    coords = coordinates(mesh, rank)
    digits: list[tuple[int, int | None, int]] = []  # radix, axis, and of a whole dim in uneven chunks their length
    for dim, size in enumerate(shape):
        cut_here = next((a for a, p in enumerate(sharding.placements) if isinstance(p, Shard) and p.dim == dim and p.short), None)
        if cut_here is None:
            digits += [(radix, axis, 0) for radix, axis in dim_digits(size, dim, sharding, axis_sizes(mesh))]
        else:
            digits.append((size, cut_here, -(-size // axis_sizes(mesh)[cut_here])))
    last = max((i for i, (_, axis, _) in enumerate(digits) if axis is not None), default=-1)
    length = prod(radix for radix, _, _ in digits[last + 1 :])
    found: list[tuple[int, int, int]] = []
    chunks: list[tuple[int, int, int, int]] = []
    stride = 1
    for radix, axis, chunk in reversed(digits[: last + 1]):
        if axis is not None and chunk:
            chunks.append((stride, radix, chunk, coords[axis]))
        elif axis is not None:
            found.append((stride, radix, coords[axis]))
        stride *= radix
    return OwnedRuns(length, tuple(reversed(found)), tuple(reversed(chunks)))


def inside(piece: Tensor, shape: tuple[int, ...], sharding: Sharding, mesh: Mesh, rank: int) -> Tensor:
    """A rank's piece without its padding, as a view."""
    for placement, coordinate in zip(sharding.placements, coordinates(mesh, rank)):
        if isinstance(placement, Shard) and placement.short:
            length = shape[placement.dim] - coordinate * placement.stride
            piece = piece.narrow(placement.dim, 0, max(0, min(placement.stride, length)))
    return piece


def _open(tensor: Tensor, sharding: Sharding, mesh: Mesh, rank: int) -> tuple[Tensor, tuple[int | slice, ...]]:
    """A view of the whole tensor, with the padding that its pieces have: one dim per digit; and the index of the rank's piece in it."""
    coords = coordinates(mesh, rank)
    digits = [d for dim, size in enumerate(tensor.shape) for d in dim_digits(size - short_of(dim, sharding), dim, sharding, axis_sizes(mesh))]
    index = tuple(slice(None) if axis is None else coords[axis] for _, axis in digits)
    return tensor.view([radix for radix, _ in digits]), index


def _fill_up(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """With zeros behind the end of each dim."""
    if tuple(tensor.shape) == shape:
        return tensor
    padded = tensor.new_zeros(shape)
    padded[tuple(slice(size) for size in tensor.shape)] = tensor
    return padded


def _runs(digits: tuple[tuple[int, int | None], ...], coords: tuple[int, ...]) -> list[tuple[int, int]]:
    """(start, length) of the runs of one dim that a rank holds, in order."""
    last = max((i for i, (_, axis) in enumerate(digits) if axis is not None), default=-1)
    length = prod(radix for radix, _ in digits[last + 1 :])
    starts = [0]
    for radix, axis in digits[: last + 1]:
        picked = range(radix) if axis is None else (coords[axis],)
        starts = [start * radix + k for start in starts for k in picked]
    return [(start * length, length) for start in starts]


def _check(shape: tuple[int, ...], sharding: Sharding, mesh: Mesh) -> None:
    reason = why_illegal(shape, sharding, axis_sizes(mesh)) or ("a partial value has no pieces" if has_partial(sharding) else "")
    if reason:
        raise PlanError(f"a tensor of shape {list(shape)} cannot be cut as {sharding}: {reason}")
