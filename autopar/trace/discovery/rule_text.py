"""Rule texts: what experiments found, in the notation of `graph.rule`; and texts taken apart again, for regions.

In: whole shapes and factors, or a text. Out: a text, or its operands. Invariant: a dim that no factor splits stands in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from ...errors import RuleError
from .experiment import Found

_LETTERS = "bsdefghklmnpqrtuvwxyzac"
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RuleText:
    """A text, and the letter of each factor in it."""

    text: str
    letters: tuple[str, ...]


def print_rule(
    inputs: tuple[Shape, ...], outputs: tuple[Shape | None, ...], factors: tuple[Found, ...], others: tuple[tuple[Shape | None, ...], ...] = ()
) -> RuleText:
    """The text of these factors on whole shapes; dims of size 1 are `1`, an output that does not exist is a scalar.

    Args:
        others: more shapes that the same operands may have, inputs then outputs: dims share a letter if they are of one size in all.
    """
    fresh = _names()
    size = [_factor_size(inputs, outputs, f) for f in factors]
    letters: dict[int, str] = {}
    whole: dict[tuple[int, ...], list[str]] = {}  # sizes in all shapes -> letters of dims that stay whole

    def letter_of(factor: int) -> str:
        if factor not in letters:
            letters[factor] = next(fresh)
        return letters[factor]

    def print_dims(number: int, shape: Shape, owner: dict[int, int]) -> str:
        parts, taken = [], set()
        for d, n in enumerate(shape):
            if n == 1:
                parts.append("1")
            elif d in owner:
                letter = letter_of(owner[d])
                parts.append(letter if n == size[owner[d]] else f"({letter} [{next(fresh)}])")
            else:
                sizes = (n, *((o[number] or ())[d] for o in others))
                letter = next((x for x in whole.setdefault(sizes, []) if x not in taken), None)
                if letter is None:
                    letter = next(fresh)
                    whole[sizes].append(letter)
                taken.add(letter)
                parts.append(f"[{letter}]")
        return " ".join(parts)

    left = [print_dims(i, shape, {f.dims[i]: k for k, f in enumerate(factors) if f.dims[i] >= 0}) for i, shape in enumerate(inputs)]
    right = []
    for j, shape in enumerate(outputs):
        if shape is None:
            right.append("")
            continue
        text = print_dims(len(inputs) + j, shape, {f.ways[j]: k for k, f in enumerate(factors) if isinstance(f.ways[j], int)})
        same = [f"{{{letter_of(k)}}}" for k, f in enumerate(factors) if f.ways[j] == "same"]
        right.append(" ".join([*same, *([text] if text else [])]))
    return RuleText(f"{', '.join(left)} -> {', '.join(right)}", tuple(letters.get(k, "") for k in range(len(factors))))


def fits(inputs: tuple[Shape, ...], outputs: tuple[Shape | None, ...], factor: Found) -> bool:
    """True where the factor's smallest dim divides its others on these shapes, as the notation needs."""
    sizes = _factor_sizes(inputs, outputs, factor)
    return bool(sizes) and min(sizes) > 1 and all(n % min(sizes) == 0 for n in sizes)


def _factor_sizes(inputs: tuple[Shape, ...], outputs: tuple[Shape | None, ...], factor: Found) -> list[int]:
    sizes = [shape[d] for shape, d in zip(inputs, factor.dims) if d >= 0]
    return sizes + [shape[w] for shape, w in zip(outputs, factor.ways) if shape is not None and isinstance(w, int)]


def _factor_size(inputs: tuple[Shape, ...], outputs: tuple[Shape | None, ...], factor: Found) -> int:
    return min(_factor_sizes(inputs, outputs, factor))


def _names() -> Iterator[str]:
    yield from _LETTERS
    count = 0
    while True:
        yield f"f{count}"
        count += 1


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a comma: its name, "" where it has none, and its dims as text."""

    name: str
    dims: str


def split_rule(text: str) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The operands left and right of the arrow.

    Raises:
        RuleError: there is no arrow, or more than one.
    """
    if text.count("->") != 1:
        raise RuleError(f'rule {text!r}: expected inputs -> outputs with one arrow, such as "b s d, d e -> b s e"')
    left, right = text.split("->")
    return _operands(left), _operands(right)


def _operands(text: str) -> tuple[Operand, ...]:
    found = []
    for piece in text.split(","):
        name, colon, rest = re.match(r"\s*(?:([A-Za-z_]\w*)(:)(?!\d))?(.*)", piece, re.S).groups(default="")  # type: ignore[union-attr]
        found.append(Operand(name if colon else "", (rest if colon else piece).strip()))
    return tuple(found)


Dim = tuple[tuple[str, int], ...]  # letters of one dim, outermost first, each with the size that it states (0: none)
_TOKEN = re.compile(r"\.\.\.|[()]|\[?[A-Za-z_]\w*(?::\d+)?\]?|1")


def read_dims(dims: str) -> tuple[Dim | None, ...]:
    """The dims of an operand, None for `...`; what stands in braces is no dim, `1` is a dim without letters."""
    found: list[Dim | None] = []
    group: list[tuple[str, int]] | None = None
    for token in _TOKEN.findall(re.sub(r"\{\w+\}", " ", dims)):
        if token == "...":
            found.append(None)
        elif token == "(":
            group = []
        elif token == ")":
            found.append(tuple(group or ()))
            group = None
        else:
            name, _, size = token.strip("[]").partition(":")
            item = () if token == "1" else ((name, int(size or 0)),)
            if group is None:
                found.append(item)
            else:
                group += item
    return tuple(found)


def letters_of(dims: str) -> dict[str, int]:
    """The letters of an operand, each with the size that it states (0: none)."""
    return {name: size for dim in read_dims(dims) for name, size in dim or ()}


def print_shape(dims: str, letters: Mapping[str, int], leading: Shape) -> Shape:
    """The shape of an operand.

    Raises:
        KeyError: a letter has no size.
    """
    parts = ([*leading] if dim is None else [prod(letters[name] for name, _ in dim)] for dim in read_dims(dims))
    return tuple(size for part in parts for size in part)


def solve_letters(operands: tuple[Operand, ...], shapes: tuple[Shape, ...]) -> tuple[dict[str, int], Shape]:
    """Size of each letter, as far as the shapes say, and the longest leading shape (`...`, broadcast).

    Raises:
        RuleError: a text and its shape do not fit.
    """
    letters: dict[str, int] = {}
    leading: Shape = ()
    groups: list[tuple[Dim, int]] = []
    for operand, shape in zip(operands, shapes):
        dims = read_dims(operand.dims)
        spare = len(shape) - sum(dim is not None for dim in dims)
        if spare < 0 or (spare and None not in dims):
            raise RuleError(f"operand {operand.dims!r} does not fit shape {list(shape)}")
        at = 0
        for dim in dims:
            if dim is None:
                here = shape[at : at + spare]
                wide, narrow = (here, leading) if len(here) >= len(leading) else (leading, here)
                leading = (*wide[: len(wide) - len(narrow)], *(max(a, b) for a, b in zip(wide[len(wide) - len(narrow) :], narrow)))
                at += spare
                continue
            letters.update({name: size for name, size in dim if size})
            if len(dim) == 1:
                letters[dim[0][0]] = max(letters.get(dim[0][0], 1), shape[at])
            groups.append((dim, shape[at]))
            at += 1
    for dim, size in groups:
        known = prod(letters[name] for name, _ in dim if name in letters)
        unknown = [name for name, _ in dim if name not in letters]
        if len(unknown) == 1 and size % known == 0:
            letters[unknown[0]] = size // known
    return letters, leading


def hold_letter(text: str, letter: str) -> str:
    """The text with a letter whole: `b d` -> `b [d]`; where it stood in braces it goes."""
    text = re.sub(rf"\{{{letter}\}}\s*", "", text)
    return re.sub(rf"(?<![\w\[]){letter}((?::\d+)?)(?![\w\]])", rf"[{letter}\1]", text)
