"""Shardings: what each mesh axis does to one value.

A `Placement` is what ONE axis does (torch's names): `Replicate()`, `Partial(op)`, or `Shard(dim, stride)`. Shard splits by a digit:
along an axis of size N, coordinate c holds the indices i of the dim with `(i // stride) % N == c`. The plain chunking of torch is
`stride = dim size / N`; a fused QKV projection split by heads, or a merged dim (batch sequence) split by sequence, are other strides of
the same form, so there is one canonical form for all of them and equality is equality. Local tensors keep the global order.

A dim that N does not divide may be cut by one axis all the same, into N chunks of `stride` that together are `short` elements longer than the dim:
what lies behind its end is padding, so that all ranks hold the same shape . The digit is the same; no other axis cuts that dim. Only
states and what their updates do element by element take such shardings (`graph.strategy`).

Text: `R`, `P` (sum), `Pmax`, `Pmin`, `S1/64` (dim 1, stride 64), `S0/18-2` (chunks of 18, 2 short: dim 0 of size 52 among 3); a sharding joins its axes
with commas, in mesh order: `S0/4,R`; `-` where the mesh has no axes. Sizes that do not divide are refused (`why_illegal`), never padded silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Union

from ..errors import PlanError


@dataclass(frozen=True, slots=True, order=True)
class Replicate:
    """Every rank along the axis holds the same."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True, order=True)
class Partial:
    """The value is the reduction (`sum`, `max` or `min`) of what the ranks along the axis hold."""

    op: str = "sum"

    def __str__(self) -> str:
        return "P" if self.op == "sum" else f"P{self.op}"


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """The ranks along the axis hold the digit of radix N at `stride` (in elements of the whole dim) of dim `dim`, which is `short` elements short of N strides."""

    dim: int
    stride: int
    short: int = 0

    def __hash__(self) -> int:  # hashed millions of times; what is short follows from the rest as a rule
        return hash((self.dim, self.stride))

    def __str__(self) -> str:
        return f"S{self.dim}/{self.stride}" + (f"-{self.short}" if self.short else "")


Placement = Union[Replicate, Partial, Shard]
REPLICATE = Replicate()
PARTIAL = Partial()


@dataclass(frozen=True, slots=True, order=True)
class Sharding:
    """One placement per mesh axis, in mesh order. `()` on the mesh of one rank."""

    placements: tuple[Placement, ...]

    def __str__(self) -> str:
        return ",".join(str(p) for p in self.placements) or "-"


def replicated(num_axes: int) -> Sharding:
    """Every axis replicates."""
    return Sharding((REPLICATE,) * num_axes)


def is_replicated(sharding: Sharding) -> bool:
    """True where every rank holds the whole value."""
    return all(isinstance(p, Replicate) for p in sharding.placements)


def has_partial(sharding: Sharding) -> bool:
    """True where some axis still owes a reduction."""
    return any(isinstance(p, Partial) for p in sharding.placements)


def why_illegal(shape: tuple[int, ...], sharding: Sharding, sizes: tuple[int, ...]) -> str:
    """Why this sharding of this shape cannot be: "" where it can.

    Args:
        shape: of the whole value.
        sharding: one placement per axis.
        sizes: of the mesh axes.
    """
    if len(sharding.placements) != len(sizes):
        return f"{len(sharding.placements)} placements for {len(sizes)} mesh axes"
    by_dim: dict[int, list[tuple[int, int]]] = {}
    short: set[int] = set()
    for placement, size in zip(sharding.placements, sizes):
        if isinstance(placement, Shard):
            if not 0 <= placement.dim < len(shape):
                return f"dim {placement.dim} of a {len(shape)}-dim tensor"
            if placement.stride < 1 or (shape[placement.dim] + placement.short) % (placement.stride * size):
                padded = f" and {placement.short} of padding" if placement.short else ""
                return f"dim {placement.dim} of size {shape[placement.dim]}{padded} is not a multiple of {placement.stride} x {size}"
            if placement.short and placement != uneven_chunks(placement.dim, shape[placement.dim], size):
                return f"dim {placement.dim} of size {shape[placement.dim]} needs no padding of {placement.short} to be cut into {size} chunks"
            by_dim.setdefault(placement.dim, []).append((placement.stride, size))
            short |= {placement.dim} if placement.short else set()
    for dim, digits in by_dim.items():
        digits.sort()
        if dim in short and len(digits) > 1:
            return f"dim {dim} is cut into chunks that do not divide it, and by a second axis"
        for (low, size), (high, _) in zip(digits, digits[1:]):
            if high % (low * size):
                return f"dim {dim}: the digits at strides {low} and {high} overlap"
    return ""


def local_shape(shape: tuple[int, ...], sharding: Sharding, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Shape that one rank holds (every rank the same)."""
    if not sizes:
        return shape
    local = list(shape)
    for placement, size in zip(sharding.placements, sizes):
        if isinstance(placement, Shard):
            local[placement.dim] = (local[placement.dim] + placement.short) // size
    return tuple(local)


def uneven_chunks(dim: int, length: int, size: int) -> Shard:
    """`length` elements cut among `size` ranks into chunks, of which the last ones are shorter, or empty."""
    stride = -(-length // size)
    return Shard(dim, stride, stride * size - length)


def local_elements(shape: tuple[int, ...], sharding: Sharding, sizes: tuple[int, ...]) -> int:
    """Elements that one rank holds, with their padding."""
    total = prod(shape)
    for p, size in zip(sharding.placements, sizes):
        if isinstance(p, Shard):
            total = (total // shape[p.dim] * (shape[p.dim] + p.short) if p.short else total) // size
    return total


def dim_digits(size: int, dim: int, sharding: Sharding, sizes: tuple[int, ...]) -> tuple[tuple[int, int | None], ...]:
    """The dim, with the padding that it has, as a product of digits, most significant first: (radix, mesh axis that holds it or None where it is local).

    Reshaping the padded dim to these radices and picking the own coordinate at each axis digit is the local piece.
    """
    cuts = sorted(
        ((p.stride, n, axis) for axis, (p, n) in enumerate(zip(sharding.placements, sizes)) if isinstance(p, Shard) and p.dim == dim),
        reverse=True,
    )
    digits: list[tuple[int, int | None]] = []
    rest = size + short_of(dim, sharding)
    for stride, n, axis in cuts:
        outer = rest // (stride * n)
        if outer != 1:  # 0: an empty dim has empty pieces
            digits.append((outer, None))
        digits.append((n, axis))
        rest = stride
    if rest > 1 or not digits:
        digits.append((rest, None))
    return tuple(digits)


def short_of(dim: int, sharding: Sharding) -> int:
    """Elements of padding that a dim has."""
    return sum(p.short for p in sharding.placements if isinstance(p, Shard) and p.dim == dim)


def is_uneven(sharding: Sharding) -> bool:
    """True where some dim is cut into chunks that do not divide it."""
    return any(isinstance(p, Shard) and p.short for p in sharding.placements)


def pad_shape(shape: tuple[int, ...], sharding: Sharding) -> tuple[int, ...]:
    """The whole shape with the padding that its pieces have."""
    return tuple(size + short_of(dim, sharding) for dim, size in enumerate(shape)) if is_uneven(sharding) else shape


def chunk(dim: int, shape: tuple[int, ...], axes: tuple[int, ...], sizes: tuple[int, ...]) -> Sharding:
    """`dim` cut into contiguous chunks by `axes` (mesh indices, outermost first), other axes replicate."""
    placements: list[Placement] = [REPLICATE] * len(sizes)
    stride = shape[dim]
    for axis in axes:
        stride //= sizes[axis]
        placements[axis] = Shard(dim, stride)
    return Sharding(tuple(placements))


def parse_sharding(text: str, where: str = "sharding") -> Sharding:
    """Read back what `str(sharding)` printed.

    Raises:
        PlanError: the text is not of that form.
    """
    if text == "-":
        return Sharding(())
    return Sharding(tuple(_parse_placement(part, where) for part in text.split(",")))


def _parse_placement(text: str, where: str) -> Placement:
    if text == "R":
        return REPLICATE
    if text == "P":
        return PARTIAL
    if text in ("Pmax", "Pmin"):
        return Partial(text[1:])
    dim, _, chunks = text[1:].partition("/")
    stride, dash, short = chunks.partition("-")
    if text[:1] == "S" and dim.isdigit() and stride.isdigit() and (short.isdigit() or not dash):
        return Shard(int(dim), int(stride), int(short or 0))
    raise PlanError(f"{where}: expected R, P, Pmax, Pmin, S<dim>/<stride> or S<dim>/<stride>-<padding> per mesh axis, found {text!r}")
