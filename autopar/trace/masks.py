"""Masks that depend on shapes alone: `x[~torch.eye(n, dtype=torch.bool)]` selects a known number of elements.

In: a call that selects by a mask, and what the tape knows of the mask. Out: the same call with the places that the mask selects, as whole
numbers. Invariant: equal to the call; where a mask depends on data nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .private import without_modes

_ATEN = torch.ops.aten
_INDEX = frozenset({_ATEN.index.Tensor, _ATEN._unsafe_index.Tensor})


def by_places(
    op: torch._ops.OpOverload, args: tuple, known: Callable[[torch.Tensor], torch.Tensor | None]
) -> tuple[torch.Tensor, list[torch.Tensor | None]] | None:
    """What `aten.index.Tensor` takes instead of the call's arguments.

    Args:
        op, args: the call.
        known: the real value of a tensor, None where it depends on data.

    Returns:
        The tensor and the places in each of its dims; None where a mask is not known, or the call selects by none.
    """
    if op is _ATEN.masked_select.default:
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        mask = known(args[1])
        return None if mask is None else (args[0].expand(shape), _places(mask, shape))
    if op not in _INDEX:
        return None
    found: list[torch.Tensor | None] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            found.append(index)
            continue
        mask = known(index)
        if mask is None:
            return None
        found += _places(mask, mask.shape)
    return args[0], found


def _places(mask: torch.Tensor, shape: torch.Size) -> list[torch.Tensor]:
    with without_modes():
        return list(mask.expand(shape).nonzero(as_tuple=True))
