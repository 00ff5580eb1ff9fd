"""What programs leave in parts: sums over rows, and sums and extremes of everything.

In: what is reduced, and the text of what a block adds to it. Out: the lines of a function that begin such a number, add to it, and store the part of its program; another launch makes one of all parts
(`runtime.fused.add_parts`, `runtime.together.add_up`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .literals import FLOATS, identity_of


@dataclass(frozen=True, slots=True)
class Partial:
    """A result that programs leave in parts.

    Args:
        output: its number among the results.
        width: elements of each of the programs' rows.
        dtype: of the result.
        kind: `sum`, `max` or `min`.
        groups: of so many runs of rows there is a sum each.
    """

    output: int
    width: int
    dtype: str
    kind: str
    groups: int = 1

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


def rows_of_program(program: str, rows: int, groups: int) -> str:
    """The first rows of a program's blocks, as the range of a loop. Of several groups of rows it has one: its sums are of that alone. All blocks divide a group.

    Args:
        program: the text of its number.
    """
    if groups == 1:
        return f"{program} * ROWS, {rows}, PROGRAMS * ROWS"
    begin = f"{program} % {groups} * {rows // groups}"
    return f"{begin} + {program} // {groups} * ROWS, {begin} + {rows // groups}, PROGRAMS // {groups} * ROWS"


def masked(limits: Sequence[str], text: str, partial: Partial) -> str:
    """What a block adds: its text where these hold, in the dtype of the parts where another is computed."""
    if partial.kind != "sum" and partial.kept == "int32" and partial.dtype != "int32":
        text = f"{text}.to(tl.int32)"
    other = "0" if partial.kind == "sum" else identity_of(partial.kind, partial.dtype)
    return f"tl.where({' & '.join(limits)}, {text}, {other})" if limits else text


def where_text(limits: Sequence[str], text: str) -> str:
    """A text where these hold, else 0."""
    return f"tl.where({' & '.join(limits)}, {text}, 0)" if limits else text
