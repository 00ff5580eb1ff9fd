"""Kinds: the text that tells which blocks of a row are of which kind.

In: a row (`codegen.rows`). Out: conditions on the number of a block, `i % 2`, `i % 6 == 5`, `i in (3, 7, 8)`; of the kind that has most blocks, none.
"""

from __future__ import annotations

from collections.abc import Sequence

from .rows import Row


def branch_kinds(row: Row) -> list[tuple[str, int]]:
    """(head of a branch, kind): `if i % 2:`, `elif i in (3, 8):`, `else:`; a single kind has none."""
    order = _by_size(row)
    if len(order) == 1:
        return [("", 0)]
    heads = [f"{'elif' if n else 'if'} {_test(row, kind, 'i')}:" for n, kind in enumerate(order[:-1])]
    return list(zip([*heads, "else:"], order))


def pick_kind(row: Row, texts: Sequence[str], number: str) -> str:
    """An expression for one of these texts, of which each kind has one, by the number of a block."""
    order = _by_size(row)
    if len(set(texts)) == 1:
        return texts[0]
    return "(" + "".join(f"{texts[kind]} if {_test(row, kind, number)} else " for kind in order[:-1]) + f"{texts[order[-1]]})"


def print_numbers(row: Row) -> str:
    """The numbers of the blocks in the order in which they run: `range(12)`, `range(11, 0, -1)`, `(0, 1, 3, 4)`."""
    numbers = row.numbers
    first, step = numbers[0], numbers[1] - numbers[0]
    if any(b - a != step for a, b in zip(numbers, numbers[1:])):
        return f"({', '.join(map(str, numbers))})"
    end = numbers[-1] + step
    return f"range({first}, {end}, {step})" if step != 1 else f"range({first}, {end})" if first else f"range({end})"


def print_blocks(row: Row, kind: int) -> str:
    """Which blocks are of a kind: `i = 1 .. 23`, `i in range(0, 24, 2)`, `i = 1 .. 23, i % 2`, `i = 1 .. 23, all others`."""
    order, neighbours = _by_size(row), all(abs(b - a) == 1 for a, b in zip(row.numbers, row.numbers[1:]))
    all_of_them = f"i = {row.numbers[0]} .. {row.numbers[-1]}" if neighbours else f"i in {print_numbers(row)}"
    if len(order) == 1:
        return all_of_them
    return f"{all_of_them}, {'all others' if kind == order[-1] else _test(row, kind, 'i')}"


def _by_size(row: Row) -> list[int]:
    """The kinds, that of most blocks last."""
    return sorted(range(len(row.loops)), key=lambda kind: (len(row.loops[kind].blocks), -kind))


def _test(row: Row, kind: int, number: str) -> str:
    """What is true of the numbers of this kind and of no other of the row."""
    own, text = {block.index for block in row.loops[kind].blocks}, f"({number})" if " " in number else number
    low, high = min(row.numbers), max(row.numbers)
    for period in range(2, len(row.numbers) // 2 + 1):
        rest = min(own) % period
        if own == {i for i in row.numbers if i % period == rest}:
            return f"{text} % 2" if (period, rest) == (2, 1) else f"{text} % {period} == {rest}"
    if own == set(range(low, max(own) + 1)):
        return f"{text} <= {max(own)}"
    if own == set(range(min(own), high + 1)):
        return f"{text} >= {min(own)}"
    return f"{text} in ({', '.join(map(str, sorted(own)))})"
