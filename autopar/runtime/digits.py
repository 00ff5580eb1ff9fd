"""Digits: a dim seen as (outer, N, stride), where the digit N belongs to the ranks along one mesh axis.

Local order is kept, so bringing the digit to the front, and putting it back, is all the data movement that a collective needs. A dim that is
shorter than all its chunks together gets zeros behind its end when it is cut, and loses them (`short`) when it is joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Union

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import ProgramError


def open_digits(x: Tensor, dims: Sequence[int], strides: Sequence[int], sizes: Sequence[int], order: Sequence[int]) -> tuple[Tensor, tuple[int, ...]]:
    """`split_digit` by one digit after the other, without a copy: a view `[*sizes, *parts of the piece]`, and the shape of the piece that the parts make.

    Args:
        order: of the digits in front, by their places.
    """
    shape = list(x.shape)
    for dim, stride, size in zip(dims, strides, sizes):
        if 0 < shape[dim] < stride * size:  # an empty dim has empty pieces
            x, shape[dim] = _fill_up(x, dim, stride * size), stride * size
        shape[dim] //= size
    rows = _merge_factors(shape, [*enumerate(zip(dims, strides, sizes))][::-1])
    flat = [factor for row in rows for factor in row]
    own = [at for at, (_, digit) in enumerate(flat) if digit is None]
    front = [next(at for at, (_, digit) in enumerate(flat) if digit == k) for k in order]
    return x.view([size for size, _ in flat]).permute(*front, *own), tuple(shape)


def merge_digits(pieces: Tensor, dims: Sequence[int], strides: Sequence[int], shorts: Sequence[int]) -> Tensor:
    """`[*sizes, *piece shape]`: bring one digit after the other back, in one copy."""
    count = len(dims)
    sizes, shape = pieces.shape[:count], pieces.shape[count:]
    rows = _merge_factors(shape, list(enumerate(zip(dims, strides, sizes))))
    places = iter(range(count, count + sum(digit is None for row in rows for _, digit in row)))
    opened = pieces.reshape(*sizes, *(size for row in rows for size, digit in row if digit is None))
    merged = opened.permute([next(places) if digit is None else digit for row in rows for _, digit in row]).reshape([prod(size for size, _ in row) for row in rows])
    for dim, short in zip(dims, shorts):
        merged = merged.narrow(dim, 0, merged.shape[dim] - short)
    return merged.contiguous()


Factor = tuple[int, Union[int, None]]  # of a dim: its size, and which digit it is; None: a part of the piece


def _merge_factors(shape: Sequence[int], digits: Sequence[tuple[int, tuple[int, int, int]]]) -> list[list[Factor]]:
    """Each dim of what is merged of pieces as factors, outermost first.

    Args:
        shape: of a piece.
        digits: (number, (dim, stride, size)), in the order in which they come back.
    """
    rows: list[list[Factor]] = [[(size, None)] for size in shape]
    for number, (dim, stride, size) in digits:
        row, place, inner = rows[dim], len(rows[dim]), 1
        while inner < stride and 0 < row[place - 1][0] <= stride // inner:
            place -= 1
            inner *= row[place][0]
        if inner < stride:
            whole, low = row[place - 1][0], stride // inner
            if row[place - 1][1] is not None or whole % low or stride % inner:
                raise ProgramError(f"digits of dim {dim} overlap: one at stride {stride} cuts another")
            row[place - 1 : place] = [(whole // low, None), (low, None)]
        row.insert(place, (size, number))
    return rows


def split_digit(x: Tensor, dim: int, stride: int, size: int) -> Tensor:
    """Cut `dim` of a tensor by the digit of radix `size` at `stride`.

    Returns:
        contiguous `[size, *piece shape]`, piece c holding the indices i with `(i // stride) % size == c`.
    """
    opened, shape = open_digits(x, (dim,), (stride,), (size,), (0,))
    return opened.reshape(size, *shape).contiguous()


def take_digit(x: Tensor, dim: int, stride: int, size: int, coordinate: int) -> Tensor:
    """One piece of `split_digit`, as a contiguous copy."""
    if 0 < x.shape[dim] < stride * size:
        begin = min(coordinate * stride, x.shape[dim])
        x, size, coordinate = _fill_up(x.narrow(dim, begin, min(stride, x.shape[dim] - begin)), dim, stride), 1, 0
    length = x.shape[dim]
    opened = x.reshape(prod(x.shape[:dim]), length // (stride * size), size, stride, prod(x.shape[dim + 1 :]))
    piece = opened[:, :, coordinate].clone(memory_format=torch.contiguous_format)
    return piece.view(*x.shape[:dim], length // size, *x.shape[dim + 1 :])


def merge_digit(pieces: Tensor, dim: int, stride: int, short: int = 0) -> Tensor:
    """Undo `split_digit`: `[size, *piece shape]` becomes one contiguous tensor, without the `short` elements of padding that the dim has."""
    return merge_digits(pieces, (dim,), (stride,), (short,))


def _fill_up(x: Tensor, dim: int, length: int) -> Tensor:
    """With zeros behind the end of a dim that is shorter than this."""
    missing = length - x.shape[dim]
    return F.pad(x, (0, 0) * (x.dim() - dim - 1) + (0, missing)) if missing > 0 else x
