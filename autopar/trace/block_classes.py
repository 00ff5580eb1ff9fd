"""Block classes: which numbered modules of a model (`h.0`, `h.1`, ...; `layer0`, `layer1`, ...) are the same but for their parameters' values.

In: a module tree. Out: `BlockClass`es. Invariant: two blocks of a class have the same types, parameter and buffer shapes, and equal
attributes all the way down; whole numbers alone may differ (`layer_idx`), and are then watched (`Watched`): a block that computes with
such a number is not copied.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch import nn

from ..graph.repeats import block_path, numbers_on

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks", "_forward_hooks_always_called",
)  # fmt: skip
_OWN = frozenset({"_parameters", "_buffers", "_modules", *_HOOKS})


@dataclass(frozen=True)
class BlockClass:
    """Blocks of one family that are alike.

    Args:
        members: their paths, in order.
        watched: (path inside the block, attribute) of the whole numbers that differ from block to block.
    """

    members: tuple[str, ...]
    watched: tuple[tuple[str, str], ...]


class Watched(int):
    """A whole number that notes when a program computes with it or decides by it."""

    seen = False

    @classmethod
    def _note(cls, name: str):
        plain = getattr(int, name)

        def method(self, *args):
            Watched.seen = True
            return plain(int(self), *args)

        return method


for _name in (
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ "
    "__rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __neg__ __abs__ __bool__ __index__ __float__ __int__ __and__ __or__ __xor__ __lshift__ "
    "__rshift__ __hash__ __str__ __repr__ __format__"
).split():
    setattr(Watched, _name, Watched._note(_name))


def find_block_classes(model: nn.Module, fewest: int) -> list[BlockClass]:
    """Classes of blocks, outermost families first; blocks inside a block of a class are not looked at.

    Args:
        fewest: members that a class must have.
    """
    shared = _shared_tensors(model)
    families: dict[str, list[str]] = {}
    for path, _ in model.named_modules():
        for family, number in numbers_on(path)[-1:]:
            if block_path(family, number) == path:
                families.setdefault(family, []).append(path)
    found: list[BlockClass] = []
    for paths in families.values():
        if any(paths[0].startswith(f"{m}.") for c in found for m in c.members):
            continue
        classes: dict[object, list[str]] = {}
        for path in paths:
            signature = _signature(model.get_submodule(path), shared)
            if signature is not None:
                classes.setdefault(signature, []).append(path)
        for members in classes.values():
            if len(members) >= fewest:
                found.append(BlockClass(tuple(members), _differing_numbers([model.get_submodule(p) for p in members])))
    return found


def _shared_tensors(model: nn.Module) -> set[int]:
    """Parameters and buffers that stand in more than one module."""
    seen: set[int] = set()
    twice: set[int] = set()
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                (twice if id(tensor) in seen else seen).add(id(tensor))
    return twice


def _signature(block: nn.Module, shared: set[int]) -> tuple | None:
    """Equal for alike blocks; None for a block that cannot be copied."""
    parts: list[object] = []
    for path, module in block.named_modules():
        if any(getattr(module, hooks, None) for hooks in _HOOKS) or "forward" in vars(module) or "__call__" in vars(module):
            return None
        parts += [path, type(module)]
        for kind, table in (("p", module._parameters), ("b", module._buffers)):
            for name, tensor in table.items():
                if tensor is None:
                    parts += [kind, name, None]
                    continue
                if id(tensor) in shared or type(tensor) not in (torch.Tensor, nn.Parameter):
                    return None
                parts += [kind, name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad]
        for name, value in vars(module).items():
            if name not in _OWN:
                shown = _show(value)
                if shown is None:
                    return None
                parts += [name, shown]
    return tuple(parts)


def _show(value: object) -> object:
    """A hashable form of an attribute; None where it cannot be compared. Whole numbers all look the same (`_differing_numbers`)."""
    if value is None or isinstance(value, (bool, float, complex, str, bytes, torch.dtype, torch.device, enum.Enum, type)):
        return ("is", type(value), repr(value) if isinstance(value, float) else value)
    if isinstance(value, int):
        return ("whole number",)
    if isinstance(value, (list, tuple)):
        items = tuple(("is", v) if type(v) is int else _show(v) for v in value)
        return None if None in items else (type(value), items)
    if isinstance(value, (set, frozenset)):
        return (type(value), frozenset(value)) if all(isinstance(v, (str, int)) for v in value) else None
    if isinstance(value, dict):
        items = tuple((k, ("is", v) if type(v) is int else _show(v)) for k, v in value.items())
        return None if any(not isinstance(k, str) or v is None for k, v in items) else (type(value), items)
    if isinstance(value, (torch.Tensor, nn.Module)):
        return None
    return ("same object", id(value))


def _differing_numbers(blocks: list[nn.Module]) -> tuple[tuple[str, str], ...]:
    found = []
    for path, module in blocks[0].named_modules():
        for name, value in vars(module).items():
            if type(value) is int and any(vars(b.get_submodule(path))[name] != value for b in blocks[1:]):
                found.append((path, name))
    return tuple(found)
