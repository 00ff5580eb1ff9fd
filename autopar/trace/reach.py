"""Reaching every tensor that a model holds: in modules, lists, dicts, objects, and in what functions close over.

In: objects, and what each tensor becomes. Out: the same objects with the tensors replaced where they stand; a tuple that holds one is made
anew. Invariant: each object is visited once; classes, Python modules and global variables are left alone.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable

import torch

_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, torch.dtype, torch.device, torch.Generator)


def replace_tensors(roots: Iterable[object], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace every tensor `t` that can be reached from the roots by `change(t)`."""
    walk = _Walk(change)
    for root in roots:
        walk.replaced(root)


class _Walk:
    """Lives for one call of `replace_tensors`."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._change = change
        self._seen: dict[int, object] = {}  # kept alive, so that an id stays an id

    def replaced(self, value: object) -> object:
        """The value itself after a visit, or what stands for it."""
        if isinstance(value, torch.Tensor):
            return self._change(value)
        if isinstance(value, _LEAVES) or id(value) in self._seen:
            return value
        if isinstance(value, tuple):
            items = [self.replaced(v) for v in value]
            if all(a is b for a, b in zip(items, value)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        self._seen[id(value)] = value
        if isinstance(value, dict):
            self._items(value)
        elif isinstance(value, list):
            value[:] = [self.replaced(v) for v in value]
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.replaced(value.__self__)
        elif isinstance(value, functools.partial):
            state = value.__reduce__()[2]
            value.__setstate__((self.replaced(state[0]), self.replaced(state[1]), self.replaced(state[2]), state[3]))
        elif hasattr(value, "__dict__"):
            self._items(vars(value))
        return value

    def _items(self, table: dict) -> None:
        for key, item in list(table.items()):
            new = self.replaced(item)
            if new is not item:
                table[key] = new

    def _function(self, function: types.FunctionType) -> None:
        for cell in function.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:
                continue  # not filled yet
            new = self.replaced(held)
            if new is not held:
                cell.cell_contents = new
        if function.__defaults__:
            function.__defaults__ = self.replaced(function.__defaults__)
        self._items(function.__kwdefaults__ or {})
        self._items(vars(function))
