"""Tensors under way: what `start_*` of a `Comm` returns, and how several tensors travel as one.

In: tensors of one dtype. Out: one flat buffer for all of them, and the tensors that came of it. A bucket of one is not packed. What a collective
reads and writes is held until it is waited for (or, of a reduction that goes `alone`, until the next one starts), and by nobody after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from torch import Tensor

from ..errors import ProgramError
from .digits import merge_digit, split_digit


class Pending:
    """A tensor under way."""

    __slots__ = ("_bring",)

    def __init__(self, bring: Callable[[], Tensor]) -> None:
        self._bring: Callable[[], Tensor] | None = bring

    def wait(self) -> Tensor:
        """The tensor, once; waits for it.

        Raises:
            RankError: another rank is gone, or did not come within the timeout.
        """
        bring, self._bring = self._bring, None
        if bring is None:
            raise ProgramError("a tensor that was under way is waited for a second time")
        return bring()


class Flight:
    """One collective under way.

    Args:
        finish: returns when it is done.
        held: what it reads.
    """

    __slots__ = ("_finish", "_held")

    def __init__(self, finish: Callable[[], object], held: Sequence[Tensor]) -> None:
        self._finish: Callable[[], object] | None = finish
        self._held = tuple(held)

    def finish(self) -> None:
        """Wait until it is done; what it has read goes."""
        if self._finish is not None:
            self._finish()
        self._finish, self._held = None, ()


def pack_whole(xs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Copies of the tensors, one after the other, and each of them as a view."""
    flat = xs[0].new_empty(sum(x.numel() for x in xs))
    views, begin = [], 0
    for x in xs:
        views.append(flat[begin : begin + x.numel()].view(x.shape))
        views[-1].copy_(x)
        begin += x.numel()
    return flat, views


def pack_splits(xs: Sequence[Tensor], dims: Sequence[int], strides: Sequence[int], size: int) -> tuple[Tensor, list[tuple[int, ...]]]:
    """`[size, elements]`: row c has the c-th piece of each tensor, one after the other; and the shapes of the pieces."""
    pieces = [split_digit(x, dim, stride, size) for x, dim, stride in zip(xs, dims, strides)]
    shapes = [tuple(p.shape[1:]) for p in pieces]
    if len(pieces) == 1:
        return pieces[0].view(size, -1), shapes
    packed = xs[0].new_empty(size, sum(prod(shape) for shape in shapes))
    for begin, piece in zip(_begins(shapes), pieces):
        packed[:, begin : begin + piece[0].numel()] = piece.view(size, -1)
    return packed, shapes


def cut_pieces(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """The tensors of these shapes that lie one after the other, as views."""
    return [flat[begin : begin + prod(shape)].view(shape) for begin, shape in zip(_begins(shapes), shapes)]


def unpack_gathered(packed: Tensor, shapes: Sequence[tuple[int, ...]], number: int, dim: int, stride: int) -> Tensor:
    """Of `[size, elements]`, whose row c has what rank c sent, the tensor that the pieces of this number make."""
    begin, shape = _begins(shapes)[number], shapes[number]
    return merge_digit(packed[:, begin : begin + prod(shape)].view(packed.shape[0], *shape), dim, stride)


def _begins(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    begins = [0]
    for shape in shapes[:-1]:
        begins.append(begins[-1] + prod(shape))
    return begins


def here(xs: Sequence[Tensor]) -> list[Pending]:
    """Tensors that have come already."""
    return [Pending(lambda x=x: x) for x in xs]
