"""Indices: where an element is, as a sum of products of a kernel's variables, kept as simple as divisions allow.

In: variables with their sizes. Out: `Index` values that add, scale, divide and take remainders exactly, and print as the text of a kernel. Views are nothing
but arithmetic on them: `flat` and `coordinates` go between an element's number in row-major order and its place in each dim. Invariant: for every value of
the variables within their sizes, the text is the number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from ...graph.tensor import num_elements


@dataclass(frozen=True, slots=True)
class Atom:
    """A variable (`of` is None), or a quotient or remainder that cannot be taken apart; it is 0 .. size - 1."""

    name: str  # of a variable, else "//" or "%"
    size: int
    of: Index | None = None
    by: int = 1


@dataclass(frozen=True, slots=True)
class Index:
    """The sum of `factor * atom` over `terms`, and `start`."""

    terms: tuple[tuple[Atom, int], ...] = ()
    start: int = 0

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.start + other)
        found = dict(self.terms)
        for atom, factor in other.terms:
            found[atom] = found.get(atom, 0) + factor
        return _rejoin(Index(tuple((a, f) for a, f in found.items() if f), self.start + other.start))

    def __mul__(self, factor: int) -> Index:
        return Index(tuple((a, f * factor) for a, f in self.terms) if factor else (), self.start * factor)

    def __floordiv__(self, by: int) -> Index:
        if by == 1:
            return self
        whole, rest = self._apart(by)
        low, high = rest.bounds()
        if low >= 0 and high < by:
            return whole
        unit, large, _ = rest._units(by)
        if unit == by:
            return whole + large
        low, high = large.bounds()
        by //= unit
        shift = -(low // by) if low < 0 else 0  # a kernel's `//` rounds what is negative towards zero
        atom = Atom("//", (high + shift * by) // by + 1, large + shift * by, by)
        return whole + Index(((atom, 1),), -shift)

    def __mod__(self, by: int) -> Index:
        _, rest = self._apart(by)
        low, high = rest.bounds()
        if low >= 0 and high < by:
            return rest
        unit, large, small = rest._units(by)
        if unit == by:
            return small
        low, _ = large.bounds()
        by //= unit
        return Index(((Atom("%", by, large + (-(low // by) * by if low < 0 else 0), by), 1),)) * unit + small

    def _units(self, by: int) -> tuple[int, Index, Index]:
        """(u, a, b) with self = u * a + b and 0 <= b < u, for the largest u found that divides `by`."""
        terms = sorted(self.terms, key=lambda t: -gcd(t[1], by))
        for count in range(1, len(terms) + 1):
            unit = gcd(by, *(f for _, f in terms[:count]))
            small = Index(tuple(terms[count:]), self.start % unit)
            low, high = small.bounds()
            if unit > 1 and low >= 0 and high < unit:
                return unit, Index(tuple((a, f // unit) for a, f in terms[:count]), self.start // unit), small
        return 1, self, Index()

    def _apart(self, by: int) -> tuple[Index, Index]:
        """(q, r) with self = q * by + r, all terms that `by` divides in q."""
        whole = tuple((a, f // by) for a, f in self.terms if f % by == 0)
        rest = tuple((a, f) for a, f in self.terms if f % by)
        return Index(whole, self.start // by), Index(rest, self.start % by)

    def bounds(self) -> tuple[int, int]:
        """The least and the largest number that it can be."""
        low = high = self.start
        for atom, factor in self.terms:
            reach = factor * (atom.size - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def variables(self) -> frozenset[str]:
        """Names of the variables that it depends on."""
        return frozenset(n for a, _ in self.terms for n in (a.of.variables() if a.of is not None else (a.name,)))

    def text(self) -> str:
        """As an expression of the kernel."""
        parts = []
        for atom, factor in self.terms:
            name = atom.name if atom.of is None else f"({atom.of.text()}) {atom.name} {atom.by}"
            name = f"({name})" if atom.of is not None and factor != 1 else name
            parts.append(name if factor == 1 else f"{name} * {factor}")
        if self.start or not parts:
            parts.append(str(self.start))
        return " + ".join(parts)


def _rejoin(index: Index) -> Index:
    """With `x // k * k + x % k` as `x`, also where x is a quotient itself."""
    terms = dict(index.terms)
    for atom, factor in index.terms:
        if atom.name == "%" and atom.of is not None:
            quotients = {(atom.of, atom.by)}
            if len(atom.of.terms) == 1 and not atom.of.start and atom.of.terms[0][0].name == "//" and atom.of.terms[0][1] == 1:
                inner = atom.of.terms[0][0]
                quotients.add((inner.of, inner.by * atom.by))  # x // a // b is x // ab
            other = next((a for a, f in terms.items() if a.name == "//" and (a.of, a.by) in quotients and f == factor * atom.by), None)
            if other is not None:
                del terms[atom], terms[other]
                return Index(tuple(terms.items()), index.start) + atom.of * factor
    return index


def variable(name: str, size: int) -> Index:
    """A variable that runs from 0 to `size` - 1."""
    return Index(((Atom(name, size), 1),)) if size > 1 else Index()


def place_in_row(row: Index, col: Index, width: int, inner: int = 1) -> Index:
    """The number of element `col` of a row: rows are `width` elements long, neighbours in a row lie `inner` elements apart."""
    return (row // inner) * (width * inner) + col * inner + row % inner


def row_of(flat: Index, width: int, inner: int = 1) -> Index:
    """The number of the row in which the element `flat` lies, as `place_in_row` counts."""
    return (flat // (width * inner)) * inner + flat % inner


def coordinates(flat: Index, shape: Sequence[int]) -> list[Index]:
    """The place in each dim of the element with this number."""
    found, inner = [], num_elements(tuple(shape))
    for size in shape:
        inner //= max(size, 1)
        found.append((flat // inner) % size if size > 1 else Index())
    return found


def in_memory(flat: Index, shape: Sequence[int], strides: Sequence[int]) -> Index:
    """Where the element with this number lies in a tensor with these strides."""
    sizes, steps = [], []
    for size, step in zip(shape, strides):
        if sizes and steps[-1] == step * size:  # one dim of both: fewer divisions
            sizes[-1], steps[-1] = sizes[-1] * size, step
        elif size > 1:
            sizes.append(size)
            steps.append(step)
    found = Index()
    for place, step in zip(coordinates(flat, sizes), steps):
        found = found + place * step
    return found


def flatten(places: Sequence[Index], shape: Sequence[int]) -> Index:
    """The number of the element at this place."""
    found = Index()
    for place, size in zip(places, shape):
        found = found * size + place
    return found


def broadcast(flat: Index, shape: Sequence[int], to: Sequence[int]) -> Index:
    """The number, in an operand of shape `to`, of what meets the element `flat` of the result."""
    if tuple(shape) == tuple(to):
        return flat
    places = coordinates(flat, shape)[len(shape) - len(to) :]
    return flatten([p if size > 1 else Index() for p, size in zip(places, to)], to)


def view_source(flat: Index, packet: str, arg: Callable[[str, object], object], shape: Sequence[int], base: Sequence[int]) -> Index | None:
    """The number, in the base of a view, of the view's element `flat`; None for a view that is not known.

    Args:
        arg: (name, default) -> the view's argument.
        shape, base: of the view and of its base.
    """
    if packet in ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias", "detach"):
        return flat
    places = coordinates(flat, shape)
    if packet == "expand":
        return broadcast(flat, shape, base)
    if packet == "permute":
        dims = [int(d) % len(base) for d in arg("dims", ())]  # type: ignore[attr-defined]
        return flatten([places[dims.index(d)] for d in range(len(base))], base)
    if packet in ("transpose", "t"):
        a, b = (0, 1) if packet == "t" else (int(arg(key, k)) % max(len(base), 1) for k, key in enumerate(("dim0", "dim1")))  # type: ignore[call-overload]
        if len(base) > 1:
            places[a], places[b] = places[b], places[a]
        return flatten(places, base)
    if packet == "diagonal":
        one, two, offset = (int(arg(key, k)) for key, k in (("dim1", 0), ("dim2", 1), ("offset", 0)))  # type: ignore[call-overload]
        inner, last = iter(places[:-1]), {one % len(base): places[-1] + max(-offset, 0), two % len(base): places[-1] + max(offset, 0)}
        return flatten([last[d] if d in last else next(inner) for d in range(len(base))], base)
    if packet not in ("slice", "select"):
        return None  # no view; its `dim` may be several
    dim = int(arg("dim", 0)) % max(len(base), 1)  # type: ignore[call-overload]
    if packet == "slice":
        start = arg("start", 0) or 0
        start = min(max(int(start) + (base[dim] if int(start) < 0 else 0), 0), base[dim])  # type: ignore[call-overload]
        places[dim] = places[dim] * int(arg("step", 1)) + start  # type: ignore[call-overload]
        return flatten(places, base)
    return flatten([*places[:dim], Index((), int(arg("index", 0)) % base[dim]), *places[dim:]], base)  # type: ignore[call-overload]
