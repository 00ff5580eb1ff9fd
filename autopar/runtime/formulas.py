"""Functions that Triton has not, or has not exactly enough: what the kernels of emitted programs call beside `tl`.

In and out: elements in float32 or float64 (whole numbers where a function says so). Each is torch's function to a few roundings, where it is infinite or not a number, too;
`power` to as many roundings as its exponent times the binary logarithm of its base.
"""

from __future__ import annotations

from .fused import jit, tl


@jit
def log1p(x):
    """log(1 + x). Near 0 the rounding of 1 + x is divided out again (Kahan)."""
    whole = 1.0 + x
    near = tl.where(whole == 1.0, x, tl.log(whole) * (x / (whole - 1.0)))
    return tl.where(tl.abs(x) < 0.5, near, tl.log(whole))


@jit
def expm1(x):
    """exp(x) - 1, near 0 as `log1p`."""
    whole = tl.exp(x)
    near = tl.where(whole == 1.0, x, (whole - 1.0) * (x / tl.log(whole)))
    return tl.where(tl.abs(x) < 0.5, near, whole - 1.0)


@jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@jit
def softplus(x):
    """log(1 + exp(x))."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@jit
def truncated(x):
    """The whole part, towards zero."""
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@jit
def nearest(x):
    """The nearest whole number, the even one of two."""
    low = tl.floor(x)
    rest = x - low
    is_odd = tl.floor(low * 0.5) * 2.0 != low
    return tl.where((rest > 0.5) | ((rest == 0.5) & is_odd), low + 1.0, low)


@jit
def remainder(x, y):
    """What division leaves, with the sign of y: whole numbers, too."""
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@jit
def floor_divided(x, y):
    """x / y towards minus infinity, exact where x / y itself would be rounded up to a whole number."""
    rest = x % y
    parts = (x - rest) / y
    parts = tl.where((rest != 0) & ((rest < 0) != (y < 0)), parts - 1.0, parts)
    low = tl.floor(parts)
    return tl.where(y == 0, x / y, tl.where(parts - low > 0.5, low + 1.0, low))


@jit
def whole_floor_divided(x, y):
    """x / y of whole numbers towards minus infinity."""
    parts = x // y
    return tl.where((x % y != 0) & ((x < 0) != (y < 0)), parts - 1, parts)


@jit
def power(x, y):
    """x ** y; of a base below zero for whole exponents only."""
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    signed = tl.where(tl.floor(y * 0.5) * 2.0 == y, size, -size)
    below = tl.where(tl.floor(y) == y, signed, float("nan"))
    return tl.where(y == 0, 1.0, tl.where(x < 0, below, size))
