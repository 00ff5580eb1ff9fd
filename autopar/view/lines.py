"""Lines for people: headings, tables and bars on a console of any width.

In: texts. Out: lines that never exceed the width: a table where it fits whole, else one record per row, so that no name is ever cut. `rich` is
imported when something is printed, never when this file is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from .units import print_bytes

if TYPE_CHECKING:
    from rich.console import Console

BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Column:
    """Of a table.

    Args:
        right: its texts stand at the right.
        told: the title stands beside each text where rows are records; else the text says what it is.
    """

    title: str
    right: bool = False
    told: bool = False


def print_text(show: Callable[[Console], None], width: int) -> str:
    """What a function prints, as plain text.

    Args:
        width: in columns.
    """
    from rich.console import Console

    out = StringIO()
    show(Console(file=out, width=max(40, width), color_system=None, highlight=False, legacy_windows=False, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_bar(share: float) -> str:
    """`#####...............`."""
    full = min(BAR_WIDTH, round(share * BAR_WIDTH))
    return "#" * full + "." * (BAR_WIDTH - full)


def print_line(console: Console, text: str, style: str = "", indent: int = 2) -> None:
    """One line, folded where it is too long."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, indent)))


def print_under_way(console: Console, under_way_bytes: int) -> None:
    """What a program holds beside its plan's peak; nothing where that is none."""
    if under_way_bytes:
        print_line(console, f"beside it at most {print_bytes(under_way_bytes)}: of collectives under way, as far as there is room, of kernels' arguments and of copies", "dim")


def print_heading(console: Console, title: str, note: str = "") -> None:
    """An empty line, then a title with a note beside it."""
    from rich.text import Text

    console.print()
    console.print(Text.assemble((title, "bold"), (f"  {note}" if note else "", "dim")))


def fits(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> bool:
    """True where a table of these rows is no wider than the console."""
    widths = [max(len(line) for text in (c.title, *(row[k] for row in rows)) for line in text.split("\n")) for k, c in enumerate(columns)]
    return sum(widths) + 2 * len(widths) <= console.width


def print_rows(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A table where it fits whole; else one record per row: the first field on its own line, the others below it."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if fits(console, columns, rows):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for column in columns:
            table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(field) for field in row))  # no markup: a rule's `[v]` is no style
        console.print(Padding(table, (0, 0, 0, 2)))
        return
    for row in rows:
        print_line(console, row[0])
        fields = [(f"{c.title} " if c.told else "") + field.replace("\n", ", ") for c, field in zip(columns[1:], row[1:]) if field]
        print_line(console, "  ".join(fields), "dim", indent=4)
