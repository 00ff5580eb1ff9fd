"""Fourier transforms and complex numbers.

A transform needs every element of the dims that it runs along; all others are free. All are linear. A complex number is one element:
the pair of `view_as_real` is whole.
"""

from __future__ import annotations

from ..rule import Rule, Site
from .dims import hold, letters, normal_dims, operand

SELF = (("self",),)


def _transform(site: Site) -> str:
    rank = len(site.inputs[0])
    dims = normal_dims(site.arg("dim"), rank) if site.arg("dim") else ()
    right = [f"[out{k}]" if k in dims else name for k, name in enumerate(letters(rank))]
    return f"{operand(hold(letters(rank), dims))} -> {operand(right)}"


_ALL = "every frequency needs every element of the dim"
_PAIR = "the two parts of a complex number stay together"

ROWS = (
    *(Rule(f"aten.{name}", _transform, SELF, flops=5, why_whole=_ALL) for name in ("_fft_r2c", "_fft_c2r", "_fft_c2c")),
    *(Rule(f"aten.{name}", "... -> ... [pair]", SELF, flops=0, why_whole=_PAIR) for name in ("view_as_real", "view_as_real_copy")),
    *(Rule(f"aten.{name}", "... [pair] -> ...", SELF, flops=0, why_whole=_PAIR) for name in ("view_as_complex", "view_as_complex_copy")),
)
