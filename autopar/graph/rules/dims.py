"""Dims as rule text: what the row functions of all families need to name dims, hold them whole and read dim arguments."""

from __future__ import annotations

from collections.abc import Iterable

from ..node import Arg


def letters(rank: int, prefix: str = "d") -> list[str]:
    """One factor name per dim: `d0 d1 d2`."""
    return [f"{prefix}{k}" for k in range(rank)]


def hold(names: Iterable[str], dims: Iterable[int]) -> list[str]:
    """The same names with those at `dims` whole: `d0 [d1] d2`."""
    kept = set(dims)
    return [f"[{name}]" if k in kept else name for k, name in enumerate(names)]


def operand(names: Iterable[str]) -> str:
    """Dims joined to the text of one operand; a scalar has none."""
    return " ".join(names)


def whole_operand(rank: int, prefix: str) -> str:
    """An operand of which nothing may be split."""
    return operand(hold(letters(rank, prefix), range(rank)))


def normal_dim(dim: Arg, rank: int) -> int:
    """A dim counted from the front (a scalar counts as one dim)."""
    assert isinstance(dim, int)
    return dim % max(rank, 1)


def normal_dims(dims: Arg, rank: int) -> tuple[int, ...]:
    """Dims counted from the front; none at all means every dim, as in `sum(dim=None)`."""
    if dims is None or dims == ():
        return tuple(range(rank))
    many = dims if isinstance(dims, tuple) else (dims,)
    return tuple(normal_dim(d, rank) for d in many) if rank else ()


def ints(arg: Arg) -> tuple[int, ...]:
    """A list argument of integers; one integer is a list of one."""
    many = arg if isinstance(arg, tuple) else (arg,)
    assert all(isinstance(i, int) for i in many), f"expected integers, found {arg!r}"
    return many  # type: ignore[return-value]
