"""Lines of a kernel's function: the scopes in which they run, and where in a round each of them stands.

In: assignments, stores, and what is added to a program's numbers (`partials`). Out: the same lines in another order, or fewer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...graph.tensor import power_of_two
from .index import Index

_MADE, _NAME = re.compile(r"(\w+(?:, \w+)*) = "), re.compile(r"\w+")


@dataclass(slots=True)
class Scope:
    """Lines that run where these variables exist; names of what they have made."""

    variables: frozenset[str]
    lines: list[str] = field(default_factory=list)
    names: dict[tuple[object, ...], str] = field(default_factory=dict)

    def let_go(self, kept: frozenset[str]) -> None:
        """Forget what is made of each element of a row, but these values: who needs it again makes it again."""
        self.names = {key: name for key, name in self.names.items() if key[0] in kept or not any(isinstance(part, Index) and is_wide(part) for part in key)}


def is_wide(index: Index) -> bool:
    """True for the place of an element of a row, false for that of a row."""
    return any(name.startswith("col") for name in index.variables())


def as_block(text: str, width: int, cols: int, scopes: Sequence[Scope]) -> str:
    """A text as a block of rows and columns, to be reduced along them: what is the same in all columns (the gradient of a sum of a row) is widened.

    Args:
        width: of a row.
        cols: of the kernel's rows.
        scopes: in which what the text names was made.
    """
    made = {name: line for scope in scopes for line in scope.lines if (found := _MADE.match(line)) for name in found[1].split(", ")}
    seen, todo = set[str](), [text]
    while todo:
        names = set(_NAME.findall(todo.pop())) - seen
        if any(name.startswith("col") for name in names - made.keys()):
            return text
        seen |= names
        todo += [made[name].partition(" = ")[2] for name in names & made.keys()]
    return f"tl.broadcast_to({text}, [ROWS, {'COLS' if width == cols else power_of_two(width)}])"


def place_early(body: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The lines of a round with others, each where what it reads has just been made: what only a sum still needs is not held to the round's end.

    Args:
        body: assignments; no loops.
        lines: what is added to a program's numbers.
    """
    made = {name: k for k, line in enumerate(body, 1) if (found := _MADE.match(line)) for name in found[1].split(", ")}
    places = [max((made[name] for name in _NAME.findall(line) if name in made), default=0) for line in lines]
    return [line for k in range(len(body) + 1) for line in (*body[max(0, k - 1) : k], *(a for a, place in zip(lines, places) if place == k))]


def drop_unread(body: Sequence[str], after: Sequence[str]) -> list[str]:
    """The lines of which something is read, in the body or after it.

    Args:
        body: assignments, stores; no loops.
    """
    read, kept = set(_NAME.findall(" ".join(after))), []
    for line in reversed(body):
        made = _MADE.match(line)
        if made is None or read & set(made[1].split(", ")):
            kept.append(line)
            read |= set(_NAME.findall(line[made.end() :] if made else line))
    return kept[::-1]
