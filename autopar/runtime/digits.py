"""Digits: a dim seen as (outer, N, stride), where the digit N belongs to the ranks along one mesh axis.

Local order is kept, so bringing the digit to the front, and putting it back, is all the data movement that a collective needs. A dim that is
shorter than all its chunks together gets zeros behind its end when it is cut, and loses them (`short`) when it is joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F


def split_digits(x: Tensor, dims: Sequence[int], strides: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """`split_digit` by one digit after the other: `[*sizes, *piece shape]`, contiguous."""
    for place, (dim, stride, size) in enumerate(zip(dims, strides, sizes)):
        x = split_digit(x, dim + place, stride, size)
    return x.permute(*reversed(range(len(sizes))), *range(len(sizes), x.dim())).contiguous()


def merge_digits(pieces: Tensor, dims: Sequence[int], strides: Sequence[int], shorts: Sequence[int]) -> Tensor:
    """`[*sizes, *piece shape]`: bring one digit after the other back."""
    for left, (dim, stride, short) in zip(reversed(range(len(dims))), zip(dims, strides, shorts)):
        pieces = merge_digit(pieces, dim + left, stride, short)
    return pieces


def split_digit(x: Tensor, dim: int, stride: int, size: int) -> Tensor:
    """Cut `dim` of a tensor by the digit of radix `size` at `stride`.

    Returns:
        contiguous `[size, *piece shape]`, piece c holding the indices i with `(i // stride) % size == c`.
    """
    x = _fill_up(x, dim, stride * size)
    length = x.shape[dim]
    opened = x.reshape(prod(x.shape[:dim]), length // (stride * size), size, stride, prod(x.shape[dim + 1 :]))
    return opened.permute(2, 0, 1, 3, 4).contiguous().view(size, *x.shape[:dim], length // size, *x.shape[dim + 1 :])


def take_digit(x: Tensor, dim: int, stride: int, size: int, coordinate: int) -> Tensor:
    """One piece of `split_digit`, as a contiguous copy."""
    if x.shape[dim] < stride * size:
        begin = min(coordinate * stride, x.shape[dim])
        x, size, coordinate = _fill_up(x.narrow(dim, begin, min(stride, x.shape[dim] - begin)), dim, stride), 1, 0
    length = x.shape[dim]
    opened = x.reshape(prod(x.shape[:dim]), length // (stride * size), size, stride, prod(x.shape[dim + 1 :]))
    piece = opened[:, :, coordinate].clone(memory_format=torch.contiguous_format)
    return piece.view(*x.shape[:dim], length // size, *x.shape[dim + 1 :])


def merge_digit(pieces: Tensor, dim: int, stride: int, short: int = 0) -> Tensor:
    """Undo `split_digit`: `[size, *piece shape]` becomes one contiguous tensor, without the `short` elements of padding that the dim has."""
    size, shape = pieces.shape[0], pieces.shape[1:]
    opened = pieces.reshape(size, prod(shape[:dim]), shape[dim] // stride, stride, prod(shape[dim + 1 :]))
    merged = opened.permute(1, 2, 0, 3, 4).reshape(*shape[:dim], shape[dim] * size, *shape[dim + 1 :])
    return merged.narrow(dim, 0, shape[dim] * size - short).contiguous() if short else merged


def _fill_up(x: Tensor, dim: int, length: int) -> Tensor:
    """With zeros behind the end of a dim that is shorter than this."""
    missing = length - x.shape[dim]
    return F.pad(x, (0, 0) * (x.dim() - dim - 1) + (0, missing)) if missing > 0 else x
