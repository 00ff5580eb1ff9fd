"""What a module holds beside its parameters and buffers: hooks, and plain attributes.

In: the user's module. Out: the module as it was, whatever ran in it; hooks on the tensors that stand for its parameters; an error where a
plain attribute carries a tensor from step to step, which no compiled step could do.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..errors import TraceError
from .private import gradient_hooks
from .tape import Tape, written_uids

_CONTAINERS = (dict, OrderedDict, list, set)


def carry_hooks(old: torch.Tensor, new: torch.Tensor) -> None:
    """The hooks that the user put on a parameter's gradient run for the tensor that stands for it."""
    before, after = gradient_hooks(old)
    for hook in before:
        new.register_hook(hook)
    for hook in after:
        new.register_post_accumulate_grad_hook(hook)


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Attributes of every module, and what its lists and tables hold (parameters, buffers, hooks), are put back at the end.

    What `functools.lru_cache` has kept of tensors before means nothing inside, nor later what it keeps inside.
    """
    _clear_caches(model)
    saved = [(m, dict(vars(m)), [(v, v.copy()) for v in vars(m).values() if type(v) in _CONTAINERS]) for m in model.modules()]
    try:
        yield
    finally:
        for module, attributes, contents in saved:
            vars(module).clear()
            vars(module).update(attributes)
            for container, kept in contents:
                container.clear()
                container.extend(kept) if isinstance(container, list) else container.update(kept)
        _clear_caches(model)


def _clear_caches(model: torch.nn.Module) -> None:
    """Empty the caches of functions and methods in the Python modules that define the model's classes (rotary tables, grids of places)."""
    namespaces = [vars(c) for c in dict.fromkeys(c for m in model.modules() for c in type(m).__mro__)]
    namespaces += [vars(sys.modules[n["__module__"]]) for n in namespaces if n.get("__module__") in sys.modules]
    for namespace in {id(n): n for n in namespaces}.values():
        for value in list(namespace.values()):
            cells = value.__closure__ or () if isinstance(value, types.FunctionType) else ()
            for held in (value, *(c.cell_contents for c in cells if c != types.CellType())):
                if isinstance(held, functools._lru_cache_wrapper):
                    held.cache_clear()


@dataclass(frozen=True)
class Attribute:
    """A plain tensor attribute as it was before the step."""

    path: str
    module: torch.nn.Module
    tensor: torch.Tensor


def plain_attributes(model: torch.nn.Module) -> list[Attribute]:
    """The tensors that modules hold as plain attributes."""
    return [
        Attribute(f"{name}.{key}".lstrip("."), module, value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, torch.Tensor) and not value.requires_grad
    ]


def check_carried(attributes: list[Attribute], tape: Tape) -> None:
    """Refuse a tensor that a step reads from a plain attribute and leaves changed there.

    Raises:
        TraceError: with the attribute's name.
    """
    written = {u for record in tape.records for u in written_uids(record)}
    for held in attributes:
        if not tape.knows(held.tensor):
            continue
        now = vars(held.module).get(held.path.rpartition(".")[2])
        if now is not held.tensor or tape.uid(held.tensor) in written:
            raise TraceError(
                f"attribute {held.path}: the step reads this tensor and changes it, but it is neither a parameter nor a buffer, so that no "
                f"state of the step can carry it. Make it one: self.register_buffer({held.path.rpartition('.')[2]!r}, ...)."
            )
