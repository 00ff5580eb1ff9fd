"""Workloads: what is trained, on what. Everything that the tracer needs, in one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from ..errors import InputError, ModelError


@dataclass(frozen=True)
class Workload:
    """A model with its inputs, loss and optimizer.

    Args:
        model: any module, on any device (meta: no memory).
        example_inputs: what `forward` takes: a tuple, or a dict of keyword arguments, with the GLOBAL batch's shapes.
        example_targets: what the loss takes after the model's output.
        loss: `loss(output, *targets)` returns a scalar; None: forward only.
        optimizer: a `torch.optim` class, a partial, or any callable from parameters to an optimizer; None: gradients only.
        init: for parameters whose making was recorded: (op, arguments) in order, e.g. `(("normal_", (0.0, 0.02)),)`. Empty where
            unknown: then the model's own values are used.
        name: for people.
        norm_turns: batch norm takes its statistics from each of so many microbatches, one after the other, as a loop over them would; 1: from the
            whole batch. (`Options.batchnorm` sets it.)
    """

    model: torch.nn.Module
    example_inputs: tuple | dict
    example_targets: tuple = ()
    loss: Callable[..., torch.Tensor] | None = None
    optimizer: Callable[..., object] | None = None
    init: Mapping[str, tuple[tuple[str, tuple], ...]] = field(default_factory=dict)
    name: str = ""
    norm_turns: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.model, torch.nn.Module):
            raise ModelError(f"model: expected a torch.nn.Module, found {type(self.model).__name__}. Pass the module itself, built.")
        if isinstance(self.model, torch.jit.ScriptModule):
            raise ModelError(
                f"model: {type(self.model).__name__} is a module of TorchScript, which runs its own code and cannot be traced. Pass the "
                "nn.Module from which torch.jit made it."
            )
        if isinstance(self.example_inputs, torch.Tensor):
            object.__setattr__(self, "example_inputs", (self.example_inputs,))
        if isinstance(self.example_targets, torch.Tensor):
            object.__setattr__(self, "example_targets", (self.example_targets,))
        if isinstance(self.example_inputs, list):
            object.__setattr__(self, "example_inputs", tuple(self.example_inputs))
        if isinstance(self.example_targets, list):
            object.__setattr__(self, "example_targets", tuple(self.example_targets))
        if not isinstance(self.example_inputs, (tuple, dict)):
            raise InputError(
                f"example_inputs: expected a tuple of what forward takes, or a dict of keyword arguments, "
                f"found {type(self.example_inputs).__name__}"
            )
        tensors = find_tensors("input:", self.example_inputs)
        if tensors and not any(t.numel() for _, t in tensors):
            name, empty = tensors[0]
            raise InputError(f"example_inputs: {name} has shape {list(empty.shape)}, so no sample; expected the global batch's shapes")
        if not isinstance(self.example_targets, tuple):
            raise InputError(f"example_targets: expected a tuple, found {type(self.example_targets).__name__}")
        if self.loss is not None and not callable(self.loss):
            raise ModelError(f"loss: expected a callable loss(output, *targets) or None, found {type(self.loss).__name__}")
        if self.optimizer is not None and not callable(self.optimizer):
            raise ModelError(
                f"optimizer: expected a torch.optim class, a partial, or a callable from parameters to an optimizer, found "
                f"{type(self.optimizer).__name__}. An optimizer that is already built holds the unsharded parameters: pass "
                "`lambda params: torch.optim.AdamW(params, lr=...)` instead."
            )
        if self.optimizer is not None and self.loss is None:
            raise ModelError("optimizer: given without a loss; pass loss=..., or leave the optimizer out for a forward-only program")
        if self.example_targets and self.loss is None:
            raise ModelError("example_targets: given without a loss; pass loss=..., or leave the targets out")


def find_tensors(prefix: str, value: object) -> list[tuple[str, torch.Tensor]]:
    """The tensors inside inputs, named by where they are: `input:0`, `input:mask`, `input:0.k`."""
    if isinstance(value, torch.Tensor):
        return [(prefix, value)]
    if isinstance(value, dict):
        items = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, (tuple, list)):
        items = [(str(k), v) for k, v in enumerate(value)]
    else:
        return []
    join = "" if prefix.endswith(":") else "."
    return [found for key, item in items for found in find_tensors(f"{prefix}{join}{key}", item)]


def map_tensors(prefix: str, value: object, table: Mapping[str, torch.Tensor]) -> object:
    """`value` with each tensor replaced by the one of its name in `table` (see `find_tensors`)."""
    if isinstance(value, torch.Tensor):
        return table[prefix]
    join = "" if prefix.endswith(":") else "."
    if isinstance(value, dict):
        return {k: map_tensors(f"{prefix}{join}{k}", v, table) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        items = [map_tensors(f"{prefix}{join}{k}", v, table) for k, v in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
