"""Launching a Triton kernel again, without what Triton looks up at each launch.

In: a function of `triton.jit`, its grid, and all of its arguments that are no tensors. Out: a function of its tensors. Triton asks at every launch for the type and the alignment of each argument, whether a
kernel of these is there, and whether what its text names has changed: 52 to 60 us on the host of an H200 under cProfile, longer than many kernels run. Here the first launch goes that way; those with tensors of the
same dtypes at whole 16 bytes go straight to what it compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

ALIGNED = 16  # bytes: Triton compiles for addresses that are multiples of it, and for others


def straight(kernel: Any, grid: tuple[int, ...], numbers: Sequence[int], sizes: Mapping[str, Any], device: torch.device) -> Callable[..., None]:
    """A function of the kernel's tensors, which come first among its arguments.

    Args:
        numbers: the arguments behind them.
        sizes: the constants of its text by name, and options of Triton's.
        device: of all tensors.
    """
    through = kernel[grid]
    if device.type != "cuda" or torch.version.hip is not None:  # a kernel for AMD's depends on the tensors' sizes, too
        return lambda *tensors: through(*tensors, *numbers, **sizes)
    constants = [sizes[name] for name in kernel.arg_names if name in sizes]
    full, rest, index = (*grid, 1, 1)[:3], (*numbers, *constants), device.index
    runner: Callable[..., None] | None = None
    dtypes: list[torch.dtype] = []

    def launch(*tensors: Tensor) -> None:
        nonlocal runner, dtypes
        aligned = not any([x.data_ptr() % ALIGNED for x in tensors])
        if runner is not None and aligned and [x.dtype for x in tensors] == dtypes:
            runner(*tensors, *rest, stream=torch._C._cuda_getCurrentRawStream(index))
            return
        compiled = through(*tensors, *numbers, **sizes)
        if aligned and runner is None:
            runner, dtypes = compiled[full], [x.dtype for x in tensors]

    return launch
