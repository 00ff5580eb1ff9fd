"""Tensors where torch wants numbers: factors of an update that depend on the step.

In: an optimizer's calls such as `p.addcdiv_(m, v, value=-lr / bias_correction)` with a tensor for `value` or `alpha`. Out: the same with
a multiplication. Invariant: equal to rounding; no value is read.
"""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode


class TensorFactors(TorchFunctionMode):
    """`p.addcdiv_(m, v, value=-lr / bias_correction)`: torch wants numbers for `value` and `alpha`; tensors serve as well."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: D105
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "").rstrip("_")
        key = {"addcdiv": "value", "addcmul": "value", "add": "alpha", "sub": "alpha", "lerp": "weight"}.get(name)
        if key is None or not isinstance(kwargs.get(key), torch.Tensor):
            return func(*args, **kwargs)
        factor = kwargs.pop(key)
        if key == "weight":
            end = kwargs.pop("end") if "end" in kwargs else args[1]
            return args[0].add_((end - args[0]) * factor) if func.__name__.endswith("_") else args[0] + (end - args[0]) * factor
        if key == "alpha":
            return func(args[0], args[1] * factor, **kwargs)
        step = args[1] / args[2] if name == "addcdiv" else args[1] * args[2]
        return args[0].add_(step * factor) if func.__name__.endswith("_") else args[0].add(step * factor)
