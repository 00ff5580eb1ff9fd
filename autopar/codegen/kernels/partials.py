"""What programs leave in parts: sums over rows, and sums and extremes of everything.

In: what is reduced, and the text of what a block adds to it. Out: the lines of a function that begin such a number, add to it, and store the part of its program; another launch makes one of all parts
(`runtime.fused.add_parts`, `runtime.together.add_up`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .literals import FLOATS, identity_of

_MADE, _NAME = re.compile(r"(\w+(?:, \w+)*) = "), re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Partial:
    """A result that programs leave in parts.

    Args:
        output: its number among the results.
        width: elements of each of the programs' rows.
        dtype: of the result.
        kind: `sum`, `max` or `min`.
    """

    output: int
    width: int
    dtype: str
    kind: str

    @property
    def kept(self) -> str:
        """The dtype of the parts: sums of whole numbers have 64 bits, extremes of small ones 32."""
        if self.dtype in FLOATS:
            return "float64" if self.dtype == "float64" else "float32"
        return "int64" if self.kind == "sum" or self.dtype == "int64" else "int32"


@dataclass(frozen=True, slots=True)
class Running:
    """The number of a program: its name, and what a block adds to it (`text`, `width` columns)."""

    name: str
    text: str
    width: int
    partial: Partial

    def begin(self, shape: str) -> str:
        """The line before all blocks; `shape` is that of a block."""
        partial = self.partial
        if partial.kind == "sum":
            return f"{self.name} = tl.zeros({shape}, tl.{partial.kept})"
        return f"{self.name} = tl.full({shape}, {identity_of(partial.kind, partial.dtype)}, tl.{partial.kept})"

    def add(self) -> str:
        """The line of a block."""
        kind = self.partial.kind
        return f"{self.name} += {self.text}" if kind == "sum" else f'{self.name} = fused.more({self.name}, {self.text}, "{kind}")'

    def whole(self) -> str:
        """The text of the one number that all elements make."""
        kind = self.partial.kind
        return f"tl.sum({self.name})" if kind == "sum" else f'fused.extreme({self.name}, "{kind}")'


def masked(limits: Sequence[str], text: str, partial: Partial) -> str:
    """What a block adds: its text where these hold, in the dtype of the parts where another is computed."""
    if partial.kind != "sum" and partial.kept == "int32" and partial.dtype != "int32":
        text = f"{text}.to(tl.int32)"
    other = "0" if partial.kind == "sum" else identity_of(partial.kind, partial.dtype)
    return f"tl.where({' & '.join(limits)}, {text}, {other})" if limits else text


def add_early(body: Sequence[str], sums: Sequence[Running], has_loops: bool) -> list[str]:
    """The lines of a round with those that add to its numbers, each where what it reads has just been made: what only a sum still needs is not held to the round's end.

    Args:
        body: assignments, stores.
        has_loops: the body has loops, too: then all is added after it.
    """
    added = [running.add() for running in sums]
    made = {name: k for k, line in enumerate(body, 1) if (found := _MADE.match(line)) for name in found[1].split(", ")}
    places = [len(body) if has_loops else max((made[name] for name in _NAME.findall(line) if name in made), default=0) for line in added]
    return [line for k in range(len(body) + 1) for line in (*body[max(0, k - 1) : k], *(a for a, place in zip(added, places) if place == k))]
