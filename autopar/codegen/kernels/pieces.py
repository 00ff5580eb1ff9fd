"""Pieces: a wide row in pieces of columns, where registers do not hold a whole one of all that a round over rows reads.

A thread has some columns side by side, and others a whole round of threads further on. Of these a compiler makes an address each, in every tensor, and keeps them all from exchange to exchange: LLVM knows of a
thread only that there are at most 1,024, so of the second columns of one of 512 it does not see that they lie 512 times as far. In pieces of one column group each, the distance is a number in the load itself,
and a tensor has one address. One piece after the other goes through what stands between two exchanges, and what an exchange sums up is added up before.

In: the lines of a function over wide rows. Out: the same lines in pieces; what they make differs by the order of sums.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_MADE = re.compile(r"\s*(\w+(?:, \w+)*) \+?= ")
_NAME = re.compile(r"""(?<![\w."'])[A-Za-z_]\w*(?![\w("']|=(?!=))""")  # of a value: no attribute, function, keyword or string
_EXCHANGE = re.compile(r"(?:tl\.sum|row_sums)\(")


def in_pieces(lines: Sequence[str], cols: int, step: int, whole: int) -> list[str]:
    """The lines of a function in pieces of columns.

    Args:
        lines: assignments, stores, and a loop around some of them; along rows nothing but sums is made.
        cols: columns of a row.
        step: columns of a piece.
        whole: pieces of a block, COLS columns; those behind the row are left out.
    """
    starts, wide = range(0, cols, step), {"col"}
    made: list[str] = []
    waiting: list[str] = []

    def all_pieces(summed: Sequence[tuple[str, str]] = ()) -> None:
        indent = " " * _indent(waiting[0]) if waiting else ""
        made.extend(line for line in waiting if not _reads(line, wide))
        for start in starts:
            made.extend(_piece(line, wide, start) for line in waiting if _reads(line, wide))
            made.extend(f"{indent}{name} {'+=' if start else '='} {_piece(text, wide, start)}" for name, text in summed)
        waiting.clear()

    for line in lines:
        if waiting and _indent(line) != _indent(waiting[0]):  # the loop has begun, or ended
            all_pieces()
        name = _MADE.match(line)
        if name and name[1] == "col":
            made.append(line.replace("COLS", f"COLS // {whole}"))
        elif name and is_exchange(line):
            begin, arguments, end = _exchanged(line)
            parts = {text: f"{wish}_parts" for wish, text in zip(name[1].split(", "), arguments)}
            all_pieces([(part, text) for text, part in parts.items()])
            made.append(f"{line[:begin]}{', '.join(parts.get(text, text) for text in arguments)}{line[end:]}")
        else:
            if line.lstrip().startswith("for "):
                all_pieces()
            if name and (_reads(line[name.end() :], wide) or "COLS" in line):
                wide.update(name[1].split(", "))
            waiting.append(line.replace("COLS", f"COLS // {whole}"))
    all_pieces()
    return made


def is_exchange(line: str) -> bool:
    """True for a sum along rows."""
    return "axis=1" in line or "row_sums(" in line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _reads(text: str, names: Collection[str]) -> bool:
    return any(name in names for name in _NAME.findall(text))


def _piece(text: str, wide: Collection[str], start: int) -> str:
    """A text of the columns from `start` on."""
    text = re.sub(r" \+ col(?=[,)])", f" + {start} + col", text) if start else text
    return _NAME.sub(lambda name: _at(name[0], start, text[: name.start()]) if name[0] in wide else name[0], text)


def _at(name: str, start: int, before: str) -> str:
    if name != "col":
        return f"{name}_at_{start}"
    return "col" if not start or before.endswith(f" + {start} + ") else f"({start} + col)"


def _exchanged(line: str) -> tuple[int, list[str], int]:
    """Of an exchange the arguments, where the first begins and where the last one ends."""
    found = _EXCHANGE.search(line)
    assert found is not None
    first = begin = place = found.end()
    depth, arguments = 0, []
    while depth >= 0:
        depth += (line[place] in "([") - (line[place] in ")]")
        if depth < 0 or depth == 0 and line[place] == ",":
            arguments.append(line[begin:place].strip())
            begin = place + 1
        place += 1
    return first, arguments, place - 1
