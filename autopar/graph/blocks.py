"""Blocks: how many rows and columns a program of a kernel may have at once, and how many of these are a thread's own.

In: the shape of a kernel's grid. Out: limits that every launch keeps (`runtime.fused`, `runtime.block_table`), so that a kernel's text asks only where an element may be none.
"""

from __future__ import annotations

from .tensor import power_of_two

LARGEST = 16384  # elements of a block
MORE_ROWS = 4  # times those of the rule, at most
FLAT = 1024  # elements of a flat kernel's block, by rule
WIDEST_TILE = 8192  # elements of a row that a program holds at once; wider rows are walked along
ROOMY = 4096  # elements of a row beside which registers have room; 16 warps, each thread with half as many registers, hold wider ones
THREADS = 512  # of a program that holds rows of more
PIECE_WARPS = 8  # of one that goes through them in pieces: of 255 registers for twice as many sums more are left for all else than of 128
WALK = 4096  # columns at a time where rows are wider than a program holds
EIGHT = 8  # columns that a thread has side by side: 16 bytes of 16-bit numbers
COLUMN_BLOCK, COLUMN_ROWS = 64, 16  # of a program that walks down rows, by rule


def block_cols(shape: str, cols: int, walks: bool = False) -> int:
    """Columns of a block, by rule.

    Args:
        shape: of the grid: `rows`, or `columns`.
        cols: elements of a row.
        walks: a program goes along its rows in blocks; it may then have more than these.
    """
    return min(COLUMN_BLOCK, power_of_two(cols)) if shape == "columns" else WALK if walks else power_of_two(cols)


def may_group(count: int, cols: int) -> bool:
    """True where runs of so many rows may be summed up each by itself: blocks divide them, whatever the sizes, and registers have room for a row."""
    return 1 < cols <= ROOMY and count % max(most_rows("rows", cols), most_rows("columns")) == 0


def most_rows(shape: str, cols: int = 1, walks: bool = False) -> int:
    """The most rows of a block, a power of two; every block has a power of two of them."""
    if shape == "flat":
        return MORE_ROWS * FLAT
    return MORE_ROWS * COLUMN_ROWS if shape == "columns" else max(1, LARGEST // block_cols(shape, cols, walks))
