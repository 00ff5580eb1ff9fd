"""Precisions: which dtype parameters and activations have while a step is traced, and float64 for verification.

`float64_everywhere()` rewrites what a model hard-codes (rotary embeddings and RMSNorm cast to float32): both the traced step and the
eager reference run under it, so that they can be compared to 1e-10.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WIDE = frozenset({torch.float64, torch.complex128})
_NARROW = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex32})


class _Float64(TorchDispatchMode):
    """Every op that asks for a narrower float gets float64, or complex128."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: D105
        if func is torch.ops.prim.device.default:
            return args[0].device
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float64:
            return _grouped_mm(*args, **(kwargs or {}))
        args = tuple([_widen(a) for a in args])
        kwargs = {k: _widen(v) for k, v in kwargs.items()} if kwargs else {}
        if _mixes(func, args):
            args = tuple([_widen_constant(a) for a in args])
        out = func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default and out.dtype in _NARROW:
            return out.to(widest(out.dtype))
        return out


def _mixes(op: torch._ops.OpOverload, args: tuple) -> bool:
    """True where narrow tensors meet wide ones: constants of a loss or of the user's own, which are no states of the model."""
    dtypes = {a.dtype for a in args if isinstance(a, torch.Tensor)}
    return not dtypes.isdisjoint(_WIDE) and not dtypes.isdisjoint(_NARROW) and all(a.alias_info is None for a in op._schema.arguments)


def _widen_constant(value: object) -> object:
    return value.to(widest(value.dtype)) if isinstance(value, torch.Tensor) and value.dtype in _NARROW else value


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, bias=None, out_dtype=None) -> torch.Tensor:
    """`aten._grouped_mm`, which has no float64: products of the parts that end at `offs`, of rows, of columns, or of what is summed."""
    ends = offs[:-1].tolist()
    if a.dim() == b.dim() == 2:
        return torch.stack([x @ y for x, y in zip(torch.tensor_split(a, ends, 1), torch.tensor_split(b, ends, 0))])
    if a.dim() == 2:
        return torch.cat([x @ y for x, y in zip(torch.tensor_split(a, ends, 0), b)], 0)
    return torch.cat([x @ y for x, y in zip(a, torch.tensor_split(b, ends, 1))], 1)


def _widen(value: object) -> object:
    return widest(value) if isinstance(value, torch.dtype) and value in _NARROW else value


@contextlib.contextmanager
def float64_everywhere() -> Iterator[None]:
    """Inside, casts to and creations of narrower floats give float64, and float64 is the default dtype."""
    with default_dtype(torch.float64), _Float64():
        yield


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Make `dtype` torch's default inside (None: leave it)."""
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # precision -> dtype of parameters and activations, beside fp32 masters


def widest(dtype: torch.dtype) -> torch.dtype:
    """float64 for a floating dtype, complex128 for a complex one, any other as it is."""
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


def state_dtype(dtype: torch.dtype, precision: str) -> torch.dtype:
    """The dtype that a parameter of this dtype has under a precision (`fp32`, `bf16`, `fp16`, `fp64`)."""
    if precision == "fp64":
        return widest(dtype)
    if not dtype.is_floating_point:
        return dtype
    return HALVES.get(precision, torch.float32)
