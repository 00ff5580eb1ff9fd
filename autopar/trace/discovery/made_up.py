"""Made-up data: small inputs on which an op that nobody described can be run.

In: the shapes and dtypes of a node's inputs and its numeric attributes. Out: ways to shrink them (`list_shrinkings`), and tensors of the
shrunk shapes (`make_inputs`). Every size that is shrunk becomes a multiple of 6, so that 2 and 3 shards exist. A dim of size 1 stays
so: it may be broadcast. Which sizes belong together is not known beforehand: the ways are tried from the freest to the strictest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import lcm, prod

import torch

from ...graph.node import Arg

Shape = tuple[int, ...]
Args = tuple[tuple[str, Arg], ...]
STEP = 6  # divides by 2 and by 3
MAX_ELEMENTS = 2**21  # of all inputs together: larger ones cannot be run often enough
KINDS = ("signed", "zeros", "large", "small", "mixed")
DOMAINS = ("real", "positive", "unit")  # where an op is defined: logarithms and arc sines are not everywhere
_SMALLEST_ATTRIBUTE = 2
_LARGEST_DIVISOR = 64  # an attribute up to this size may be a number of heads or groups


@dataclass(frozen=True, slots=True)
class Shrinking:
    """Two sets of small shapes for the same inputs, with the attributes that go with each."""

    shapes: tuple[tuple[Shape, ...], tuple[Shape, ...]]
    args: tuple[Args, Args]


def list_shrinkings(shapes: tuple[Shape, ...], args: Args) -> Iterator[Shrinking]:
    """Ways to shrink, freest first: every size for itself; multiples of the attributes that divide it; products and multiples of other
    sizes kept so; one or two sizes left as they are; all of them.

    Each with the attributes as they are, then with those that equal a size following it.
    """
    numbers = _numbers(args)
    sizes = list(dict.fromkeys(s for shape in shapes for s in shape if s > 1))
    ways = [((), False, ()), (numbers, False, ()), (numbers, True, ())]
    ways += [(numbers, False, kept) for count in (1, 2) for kept in combinations(sizes, count) if count < len(sizes)]
    seen = set()
    for divisors, related, kept in ways:
        tables = tuple(_size_table(sizes, divisors, related, kept, turn) for turn in (0, 1))
        for follow in (False, True):
            made = Shrinking(
                tuple(tuple(tuple(table[s] for s in shape) for shape in shapes) for table in tables),  # type: ignore[arg-type]
                tuple(_follow(args, table) if follow else args for table in tables),  # type: ignore[arg-type]
            )
            if made not in seen:
                seen.add(made)
                yield made
    yield Shrinking((shapes, shapes), (args, args))


def _numbers(arg: object) -> tuple[int, ...]:
    if isinstance(arg, bool) or not isinstance(arg, (int, tuple)):
        return ()
    if isinstance(arg, int):
        return (arg,) if arg >= _SMALLEST_ATTRIBUTE else ()
    return tuple(n for item in arg for n in _numbers(item))


def _size_table(sizes: list[int], divisors: tuple[int, ...], related: bool, kept: tuple[int, ...], turn: int) -> dict[int, int]:
    """Size -> small size. Turn 1 hands out other ones."""
    table = {0: 0, 1: 1, **{s: s for s in kept}}
    order = sorted(sizes) if related else sizes[::-1] if turn else sizes
    taken: set[int] = set(kept)
    for size in order:
        small = table.get(size) or (_related_size(size, table) if related else None)
        if small is None:
            unit = lcm(STEP, *(n for n in divisors if n <= _LARGEST_DIVISOR and size % n == 0))
            count = 2 if turn and (related or len(sizes) == 1) else 1
            while unit * count in taken:
                count += 1
            small = unit * count
        table[size] = small
        taken.add(small)
    return table


def _related_size(size: int, table: dict[int, int]) -> int | None:
    """A product of two known sizes stays that product; a small multiple of a known size stays that multiple."""
    known = sorted((s for s in table if s > 1), reverse=True)
    for a in known:
        if size % a == 0 and size // a in table and size // a > 1:
            return table[a] * table[size // a]
    for a in known:
        if size % a == 0 and 1 < size // a <= 16:
            return table[a] * (size // a)
    return None


def _follow(args: Args, table: dict[int, int]) -> Args:
    def change(arg: Arg) -> Arg:
        if isinstance(arg, tuple):
            return tuple(change(a) for a in arg)
        if isinstance(arg, bool) or not isinstance(arg, int) or arg < _SMALLEST_ATTRIBUTE:
            return arg
        return table.get(arg, arg)

    return tuple((name, change(value)) for name, value in args)


def count_elements(shapes: tuple[Shape, ...]) -> int:
    """Of all tensors together."""
    return sum(prod(shape) for shape in shapes)


def widen(dtype: torch.dtype, wide: bool) -> torch.dtype:
    """The dtype to try an op in: float64 where it takes that, so that rounding does not look like an error; else float32."""
    if dtype.is_complex:
        return torch.complex128 if wide else torch.complex64
    if dtype.is_floating_point:
        return torch.float64 if wide else torch.float32
    return dtype


def make_inputs(
    shapes: tuple[Shape, ...], dtypes: tuple[torch.dtype, ...], kind: str, domain: str, num_shards: int, seed: int
) -> tuple[torch.Tensor, ...]:
    """One tensor per input.

    Args:
        dtypes: as the op shall get them.
        kind: of `KINDS`; what floating numbers look like.
        domain: of `DOMAINS`.
        num_shards: whole numbers stay below the smallest dim divided by this, so that as indices they are valid on every piece.
        seed: of the random numbers.
    """
    rng = torch.Generator().manual_seed(seed)
    limit = max(min((s for shape in shapes for s in shape if s > 1), default=2) // num_shards, 1)
    return tuple(_make(shape, dtype, kind, domain, limit, rng) for shape, dtype in zip(shapes, dtypes))


def _make(shape: Shape, dtype: torch.dtype, kind: str, domain: str, limit: int, rng: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=rng).to(torch.bool)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, limit, shape, generator=rng).to(dtype)
    x = torch.randn(shape, generator=rng, dtype=torch.float64)
    if kind == "zeros":
        x = x * (torch.rand(shape, generator=rng) > 0.4)
    elif kind in ("large", "small"):
        x = x * (1e3 if kind == "large" else 1e-3)
    elif kind == "mixed":
        x = x * 10.0 ** torch.randint(-2, 4, shape, generator=rng)
    if domain == "positive":
        x = x.abs() + (0.1 if kind != "small" else 1e-4)
    elif domain == "unit":
        x = x.abs().frac() * 0.98 + 0.01
    if dtype.is_complex:
        x = torch.complex(x, torch.randn(shape, generator=rng, dtype=torch.float64))
    return x.to(dtype)
