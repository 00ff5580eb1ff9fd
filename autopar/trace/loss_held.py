"""What a loss holds itself: class weights, a frozen network of a perceptual loss, a teacher in its closure.

In: the loss. Out: its tensors in float64 while a step is verified; an error where a step would train them, which no optimizer of the
model's parameters does. Invariant: afterwards the loss is as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ..errors import ModelError
from .precision import widest
from .private import FakeTensor, without_modes
from .reach import replace_tensors


@contextlib.contextmanager
def widened(loss: object, active: bool = True) -> Iterator[None]:
    """Tensors of real or complex numbers that the loss can reach are float64 or complex128 inside; those of a traced or verified model are so already."""
    new: dict[int, torch.Tensor] = {}
    old: dict[int, torch.Tensor] = {}

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.dtype == widest(tensor.dtype):
            return tensor
        if id(tensor) not in new:
            with without_modes():
                wide = tensor.detach().to(widest(tensor.dtype))
                wide = torch.nn.Parameter(wide, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else wide
            new[id(tensor)], old[id(wide)] = wide, tensor
        return new[id(tensor)]

    if active:
        replace_tensors([loss], widen)
    try:
        yield
    finally:
        if active:
            replace_tensors([loss], lambda tensor: old.get(id(tensor), tensor))


def refuse_trained(loss: object, name: str) -> None:
    """Refuse a loss of which a parameter has just been given a gradient.

    Raises:
        ModelError: with its shape.
    """
    found: list[torch.Tensor] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, torch.nn.Parameter) and not isinstance(tensor, FakeTensor) and isinstance(tensor.grad, FakeTensor):
            found.append(tensor)
            tensor.grad = None
        return tensor

    replace_tensors([loss], look)
    if found:
        raise ModelError(
            f"loss {name}: holds a parameter of shape {list(found[0].shape)} that gets a gradient, but the optimizer is given the model's "
            "parameters alone. Put the loss into the model and return it from forward, or freeze it: loss.requires_grad_(False)."
        )
