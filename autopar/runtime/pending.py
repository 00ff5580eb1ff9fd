"""Tensors under way: what `start_*` of a `Comm` returns, and how several tensors travel as one.

In: tensors of one dtype. Out: one flat buffer for all of them, and the tensors that came of it. A bucket of one is not packed. What a collective
reads and writes is held until it is waited for (or, of a reduction that goes `alone`, until the next one starts), and by nobody after that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Union

import torch
from torch import Tensor

from ..errors import ProgramError
from ..graph.messages import list_in_place
from .digits import merge_digits, open_digits

Digits = Union[int, Sequence[int]]  # a dim or a stride: one, or one for each of several axes


class Pending:
    """A tensor under way.

    Args:
        bring: waits for it.
        flight: what brings it; None where it is here.
    """

    __slots__ = ("_bring", "flight")

    def __init__(self, bring: Callable[[], Tensor], flight: Flight | None = None) -> None:
        self._bring: Callable[[], Tensor] | None = bring
        self.flight = flight

    def wait(self) -> Tensor:
        """The tensor, once; waits for it.

        Raises:
            RankError: another rank is gone, or did not come within the timeout.
        """
        bring, self._bring, self.flight = self._bring, None, None
        if bring is None:
            raise ProgramError("a tensor that was under way is waited for a second time")
        return bring()


class Flight:
    """One collective under way.

    Args:
        finish: returns when it is done.
        read: what it reads.
        made_of: what that was made of.
        works: of torch's process groups, what it consists of.
    """

    __slots__ = ("_finish", "_made", "_read", "works")

    def __init__(self, finish: Callable[[], object], read: Sequence[Tensor], made_of: Sequence[Tensor] = (), works: Sequence[Any] = ()) -> None:
        self._finish: Callable[[], object] | None = finish
        self.works = tuple(works)
        self._read = tuple(read)
        self._made = [x for x in read if not shares_memory(x, made_of)]

    def finish(self) -> None:
        """Wait until it is done; what it has read goes."""
        if self._finish is not None:
            self._finish()
            for x in self._made:
                give_back(x)
        self._finish, self._read, self._made, self.works = None, (), [], ()

    def listen(self, tell: Callable[[], None]) -> int:
        """Have it told, by the thread that brings it, when each of its works is done; never of one that cannot tell.

        Returns:
            how many there are.
        """
        for work in self.works:
            with contextlib.suppress(RuntimeError):
                work.get_future().add_done_callback(lambda _: tell())
        return len(self.works)


def give_back(x: Tensor, *kept: Tensor) -> None:
    """Nobody reads x any more: let its memory go, unless it is that of one of these.

    A collective's thread holds what it has sent until it runs again, which is late where ranks share cores (4 ranks on 2 cores: 4 and 8 MiB of 67 were still
    held when the next tensors were made). A GPU's allocator knows by its streams when memory is free.
    """
    if x.device.type == "cpu" and not shares_memory(x, kept):
        x.untyped_storage().resize_(0)


def shares_memory(x: Tensor, others: Sequence[Tensor]) -> bool:
    return any(x.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() for other in others)


def pack_whole(xs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Copies of the tensors, one after the other, and each of them as a view."""
    flat = xs[0].new_empty(sum(x.numel() for x in xs))
    return flat, pack_into(flat, xs)


def pack_into(flat: Tensor, xs: Sequence[Tensor]) -> list[Tensor]:
    """Copy the tensors there, one after the other; each of them as a view."""
    views, begin = [], 0
    for x in xs:
        views.append(flat[begin : begin + x.numel()].view(x.shape))
        views[-1].copy_(x)
        begin += x.numel()
    return views


_ALIGNED_BYTES = 64  # a line of a CPU's cache; a GPU's widest load is 16 bytes (CUDA C++ Programming Guide, "Device Memory Accesses"), which divides it


class Bucket:
    """Room for tensors of one dtype that will travel together (`pack_around`), opened before they are made: `bucket[k]` is where the k-th lies, aligned. What lies between them is zero. What
    goes alone has room of its own, from when it is first asked for.

    Args:
        own: as of `pack_around`.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], dtype: torch.dtype, own: Sequence[int], device: torch.device) -> None:
        sizes, step = [prod(shape) for shape in shapes], _ALIGNED_BYTES // dtype.itemsize
        alone = list_in_place([size * dtype.itemsize for size in sizes], own, device.type == "cpu")
        rest = [k for k in range(len(sizes)) if k not in alone]
        rooms = {k: -(-sizes[k] // step) * step for k in rest}
        self.flat = torch.empty(sum(rooms.values()), dtype=dtype, device=device)
        self._alone = {k: tuple(shapes[k]) for k in alone}
        self._views: dict[int, Tensor] = {}
        begin = 0
        for k, room in rooms.items():
            self._views[k] = self.flat[begin : begin + sizes[k]].view(shapes[k])
            self.flat[begin + sizes[k] : begin + room].zero_()
            begin += room

    def __getitem__(self, place: int) -> Tensor:
        if place not in self._views:
            self._views[place] = self.flat.new_empty(self._alone[place])
        return self._views[place]

    def find_room(self, place: int) -> Tensor | None:
        """Where the tensor lies; None where it goes alone and has no room yet: what is made may become it (`settle`)."""
        return self._views.get(place)

    def settle(self, place: int, made: Tensor) -> None:
        """What goes alone, as it was made: packed."""
        self._views[place] = made


def pack_around(xs: Sequence[Tensor], own: Sequence[int], bucket: Bucket | None = None) -> list[tuple[Tensor, dict[int, Tensor]]]:
    """What travels, flat, and of each the tensors in it by their places in `xs`: first what goes alone, no copy unless it has gaps, then the rest, packed.

    Args:
        own: places of tensors that may be written over: those go alone of which `graph.messages` says so.
        bucket: for these tensors; what lies there already is not copied.
    """
    alone = list_in_place([x.nbytes for x in xs], own, xs[0].device.type == "cpu")
    found = [(x.view(-1), {k: x}) for k, x in ((k, xs[k].contiguous()) for k in alone)]
    rest = [k for k in range(len(xs)) if k not in alone]
    if rest and bucket is not None:
        for k in rest:
            if xs[k].data_ptr() != bucket[k].data_ptr():
                bucket[k].copy_(xs[k])
        found.append((bucket.flat, {k: bucket[k] for k in rest}))
    elif rest:
        flat, views = pack_whole([xs[k] for k in rest])
        found.append((flat, dict(zip(rest, views))))
    return found


@dataclass(frozen=True)
class Along:
    """The axes of one collective, in the order in which it would take them one after the other.

    Args:
        axes, sizes: their names, and how many ranks each has.
        places: of each, its place among them in the order of the mesh, which is that of the ranks.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.sizes)


def pack_splits(xs: Sequence[Tensor], dims: Sequence[Digits], strides: Sequence[Digits], along: Along) -> tuple[Tensor, list[tuple[int, ...]]]:
    """`[ranks, elements]`: row c has the c-th piece of each tensor, one after the other; and the shapes of the pieces."""
    size, count = along.size, len(along.sizes)
    opened = [open_digits(x, each_digit(dim), each_digit(stride), along.sizes, _inverse(along.places)) for x, dim, stride in zip(xs, dims, strides)]
    shapes = [shape for _, shape in opened]
    if len(opened) == 1:
        return opened[0][0].reshape(size, -1).contiguous(), shapes
    packed = xs[0].new_empty(size, sum(prod(shape) for shape in shapes))
    for begin, (pieces, shape) in zip(_begins(shapes), opened):
        place = packed[:, begin : begin + prod(shape)].unflatten(0, pieces.shape[:count])
        (place.unflatten(-1, pieces.shape[count:]) if shape else place.squeeze(-1)).copy_(pieces)
    return packed, shapes


def cut_pieces(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """The tensors of these shapes that lie one after the other, as views."""
    return [flat[begin : begin + prod(shape)].view(shape) for begin, shape in zip(_begins(shapes), shapes)]


def unpack_gathered(packed: Tensor, shapes: Sequence[tuple[int, ...]], number: int, dim: Digits, stride: Digits, short: Digits, along: Along) -> Tensor:
    """Of `[ranks, elements]`, whose row c has what rank c sent, the tensor that the pieces of this number make."""
    begin, shape, count = _begins(shapes)[number], shapes[number], len(along.sizes)
    sizes = [along.sizes[k] for k in _inverse(along.places)]
    pieces = packed[:, begin : begin + prod(shape)].unflatten(0, sizes).unflatten(-1, shape or (1,))
    return merge_digits(pieces.permute(*along.places, *range(count, pieces.dim())), each_digit(dim), each_digit(stride), each_digit(short or (0,) * count))


def each_digit(digits: Digits) -> tuple[int, ...]:
    """A dim or a stride for each axis."""
    return (digits,) if isinstance(digits, int) else tuple(digits)


def _inverse(places: Sequence[int]) -> list[int]:
    return [places.index(k) for k in range(len(places))]


def _begins(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    begins = [0]
    for shape in shapes[:-1]:
        begins.append(begins[-1] + prod(shape))
    return begins


def here(xs: Sequence[Tensor]) -> list[Pending]:
    """Tensors that have come already."""
    return [Pending(lambda x=x: x) for x in xs]
