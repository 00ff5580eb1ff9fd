"""Ops on lists of tensors (`torch._foreach_*`), run one tensor at a time, so that each parameter's update stands alone.

In: a call of a foreach op. Out: what it returns. Invariant: equal to the op; nothing else runs but plain ATen ops, by torch's own choice of
overload.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_PREFIX = "_foreach_"
_ATEN = torch.ops.aten


def is_foreach(op: torch._ops.OpOverload) -> bool:
    """True for `aten._foreach_*`."""
    return op.__name__.startswith(_PREFIX)


def run_apart(op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> list[torch.Tensor] | None:
    """What a foreach op returns (None where it writes in place).

    Args:
        op: `aten._foreach_NAME[_].OVERLOAD`.
        args, kwargs: as it was called.
    """
    bound = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
    bound |= {a.name: value for a, value in zip(op._schema.arguments, args)} | kwargs
    bound.pop("memory_format", None)
    size = max(len(v) for v in bound.values() if isinstance(v, (list, tuple)))
    name = op._schema.name.split("::")[1].removeprefix(_PREFIX)
    single = _SPECIAL.get(name.rstrip("_")) or _plain
    found = []
    for k in range(size):
        one = {key: v[k] if isinstance(v, (list, tuple)) or key == "scalars" else v for key, v in bound.items()}
        found.append(single(name, one))
    return None if name.endswith("_") else found


def _plain(name: str, one: dict) -> torch.Tensor:
    """The op of the same name; the arguments are in the same order."""
    options = {k: one.pop(k) for k in ("alpha", "non_blocking") if k in one}
    return getattr(_ATEN, name)(*one.values(), **options)


def _product(name: str, one: dict) -> torch.Tensor:
    """addcmul, addcdiv: the factor may be a tensor."""
    x, y, z = one["self"], one["tensor1"], one["tensor2"]
    factor = one["scalars"] if "scalars" in one else one["value"]
    if not isinstance(factor, torch.Tensor):
        return getattr(_ATEN, name)(x, y, z, value=factor)
    step = (y * z if name.startswith("addcmul") else y / z) * factor
    return x.add_(step) if name.endswith("_") else x + step


def _limit(name: str, one: dict) -> torch.Tensor:
    """maximum, minimum: with a number they are clamps."""
    x, other = one.values()
    if isinstance(other, torch.Tensor) and not name.endswith("_"):
        return getattr(_ATEN, name)(x, other)
    return getattr(_ATEN, ("clamp_min" if name.startswith("maximum") else "clamp_max") + name[7:])(x, other)


def _norm(name: str, one: dict) -> torch.Tensor:
    return torch.linalg.vector_norm(one["self"], one["ord"], dtype=one["dtype"])


def _powsum(name: str, one: dict) -> torch.Tensor:
    return _ATEN.sum(_ATEN.pow(_ATEN.abs(one["self"]), one["ord"]), dtype=one["dtype"])


_SPECIAL: dict[str, Callable[[str, dict], torch.Tensor]] = {
    "addcmul": _product, "addcdiv": _product, "maximum": _limit, "minimum": _limit, "norm": _norm, "powsum": _powsum,
}  # fmt: skip
