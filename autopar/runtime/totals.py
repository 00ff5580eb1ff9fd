"""One number of all parameters, and the arithmetic that follows of it, in one launch.

In: a number of each parameter, or the share that a launch for many parameters has left of it in parts (`runtime.together`). Out: the number that all of them make (a sum, the largest, the smallest) and
what a kernel that `codegen.kernels.totals` printed makes of it. Parts of one launch lie in one buffer, in the order of its parameters; where all of them are asked for, and nothing else, the buffer is taken
as it is. What comes from several launches is put together first. The order in which numbers are added up follows from sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

import torch
from torch import Tensor

from ..graph.tensor import power_of_two
from .fused import along, can_wait, jit, more, on_device, tl
from .fused import runs_triton as _runs_triton
from .straight import straight

MOST_COLS = 8192  # parts that are held at once, 16 for a thread
OF_A_WARP = 512


class Share(NamedTuple):
    """What a launch has left of the number of one of its parameters: the parts of its buffer between two of the bounds."""

    buffer: Tensor
    bounds: Sequence[int]
    number: int


@jit
def add_all(part_ptr, count, COLS: tl.constexpr, KIND: tl.constexpr, NONE: tl.constexpr):
    """The sum (or extreme) of all parts. `NONE` changes no result."""
    total = tl.full([COLS], NONE, part_ptr.dtype.element_ty)
    for start in range(0, count, COLS):
        place = start + tl.arange(0, COLS)
        total = more(total, tl.load(part_ptr + place, mask=place < count, other=NONE), KIND)
    return along(total, 0, KIND)


class Total:
    """A Triton function that makes a number of all parts, of one program.

    Args:
        kernel: takes (parts, other numbers, results, COUNT, COLS, WAITS).
        dtype: of the parts.
        made: dtypes of its results.
    """

    def __init__(self, kernel: Any, dtype: torch.dtype, made: Sequence[torch.dtype] = ()) -> None:
        self._kernel, self._dtype, self._made = kernel, dtype, tuple(made)
        self._launches: dict[tuple[int, torch.device], Callable[..., None]] = {}

    def run(self, numbers: Sequence[Union[Share, Tensor]], *others: Tensor) -> Any:
        """Launch it.

        Args:
            numbers: of each parameter.
            others: numbers that it reads, or rewrites.
        Returns:
            the results: one, a tuple of several, or None.
        """
        parts = gather_parts(numbers, self._dtype)
        device = parts.device
        results = [torch.empty((), dtype=dtype, device=device) for dtype in self._made]
        with on_device(device):
            self._launch(len(parts), device)(parts, *others, *results)
        return None if not results else results[0] if len(results) == 1 else tuple(results)

    def _launch(self, count: int, device: torch.device) -> Callable[..., None]:
        key = count, device
        if key not in self._launches:
            cols, waits = min(MOST_COLS, power_of_two(count)), can_wait(device)
            sizes = {"COLS": cols, "WAITS": waits, "num_warps": max(1, cols // OF_A_WARP), **({"launch_pdl": True} if waits else {})}
            self._launches[key] = straight(self._kernel, (1,), [count], sizes, device)
        return self._launches[key]


def gather_parts(numbers: Sequence[Union[Share, Tensor]], dtype: torch.dtype) -> Tensor:
    """All parts, in one row."""
    shares: dict[int, list[Share]] = {}
    whole = []
    for x in numbers:
        if isinstance(x, Share):
            shares.setdefault(id(x.buffer), []).append(x)
        else:
            whole.append(x)
    found = []
    for of in shares.values():
        buffer, bounds, _ = of[0]
        found += [buffer] if len(of) == len(bounds) - 1 else [buffer[bounds[x.number] : bounds[x.number + 1]] for x in of]
    if whole:
        found.append(torch.cat([x.reshape(1) for x in whole]).to(dtype))
    return found[0] if len(found) == 1 else torch.cat(found)


def runs_triton(numbers: Sequence[Union[Share, Tensor]]) -> bool:
    """True where kernels that work on these numbers are Triton's."""
    return isinstance(numbers[0], Share) or _runs_triton(numbers[0])
