"""Segments through torch.compile (`Options(local="inductor")`): each a function that the emitted `kernels.py` hands over.

In: a function of tensors. Out: one that runs what torch's compiler makes of it. Where the compiler itself breaks down (an internal error of Inductor's), the function runs op by op, and a warning
names it: nothing is silent, and nothing stops a step that plain torch can run.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch


def compiled(ops: Callable) -> Callable:
    """`ops` through torch.compile, made when it is first called: for its first shapes, then for any. What its compiler breaks down over runs op by op, and a warning says so."""
    made, broken = torch.compile(ops), list[Exception]()

    @functools.wraps(ops)
    def run(*inputs: Any) -> Any:
        if not broken:
            try:
                return made(*inputs)
            except torch._dynamo.exc.BackendCompilerFailed as error:  # before anything ran
                inner = getattr(error, "inner_exception", error)
                if type(inner).__name__ == "InvalidCxxCompiler":  # there is none: nothing would be compiled
                    raise
                broken.append(error)
                warnings.warn(f"torch.compile cannot have {ops.__name__}, which runs op by op: {type(inner).__name__}: {inner}", RuntimeWarning, stacklevel=2)
        return ops(*inputs)

    return run
