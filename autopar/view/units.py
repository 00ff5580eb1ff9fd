"""Units for print: seconds as ms, bytes as MiB or GiB. Inside, quantities stay in seconds and bytes."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal

_EXACT = Context(prec=400)  # digits of the largest float and more


def print_number(x: float) -> str:
    """Three digits or so, thousands apart: `1,234`, `12.3`, `0.52`, `0.0031`.

    Halves are rounded up, as the page's own script does: the same number is the same text in the terminal and on the page.
    """
    size = abs(x)
    if x == 0:
        return "0"
    if size < 0.0001:
        return "<0.0001"
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 3 if size >= 0.01 else 4
    return f"{Decimal(x).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP, _EXACT):,}"


def print_ms(seconds: float) -> str:
    """Seconds as milliseconds."""
    return f"{print_number(seconds * 1e3)} ms"


def print_bytes(count: float) -> str:
    """Bytes as GiB, MiB or (small ones) KiB and B."""
    if count == 0:
        return "0"
    for size, unit, least in ((2**30, "GiB", 2**29), (2**20, "MiB", 2**20 / 10), (2**10, "KiB", 2**10)):
        if count >= least:
            return f"{print_number(count / size)} {unit}"
    return f"{count:.0f} B"


def print_count(count: float) -> str:
    """`124 M`, `1.20 T`."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{print_number(count / size)} {letter}"
    return f"{count:g}" if count == int(count) else print_number(count)


def print_flops(count: float) -> str:
    """`6.62 TFLOP`, `100 FLOP`."""
    number, _, letter = print_count(count).partition(" ")
    return f"{number} {letter}FLOP"


def print_percent(share: float) -> str:
    """0.0013 as `0.13 %`."""
    return "<0.01 %" if 0 < share < 1e-4 else f"{print_number(share * 100)} %"
