"""`p.data = x`: torch gives the tensor other memory, which no op tells; a step on tape needs a write.

In: such an assignment, as averaged teachers (`t.data = t.data * m + s.data * (1 - m)`) and hand-written optimizers have it. Out: a copy
into the tensor. Invariant: equal, as long as the new value shares no memory with what another tensor of the step keeps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.overrides import TorchFunctionMode

from ...errors import TraceError
from ..place import blame_stack, running_frames
from ..private import storage_key

_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class DataWrites(TorchFunctionMode):
    """Copies where the program assigns to `.data`.

    Args:
        kept: the storages that are there before the step: parameters, buffers, states.
    """

    def __init__(self, kept: Callable[[], set[int]]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: D105
        if getattr(func, "__name__", "") != "__set__" or func != _SET_DATA:
            return func(*args, **(kwargs or {}))
        tensor, new = args
        if storage_key(new) == storage_key(tensor) and new.shape == tensor.shape and new.stride() == tensor.stride():
            return None
        if new.shape != tensor.shape:
            raise TraceError(
                f"{_where()}an assignment to .data changes the shape of a tensor from {list(tensor.shape)} to {list(new.shape)}, which a "
                "compiled step cannot follow. Make a new tensor."
            )
        if storage_key(new) in self._kept():
            raise TraceError(
                f"{_where()}an assignment to .data gives two tensors of the model the same memory from then on, which a compiled step "
                "cannot follow. Write x.data.copy_(y)."
            )
        tensor.data.copy_(new)
        return None


def _where() -> str:
    place = blame_stack(running_frames())
    return f"{place}: " if place else ""
