"""Functions that Triton has not, or has not exactly enough: what the kernels of emitted programs call beside `tl`.

In and out: elements in float32 or float64 (whole numbers where a function says so). Each is torch's function to a few roundings of its result, however small that is, and where it
is infinite or not a number, too; `power` and `fraction_power` to as many roundings as their exponent times the binary logarithm of their base, `erfc` to as many as x * x.
What is only asked for in float64 is written for exactness, not for speed: devices work in float32.
"""

from __future__ import annotations

from .fused import interprets, jit, tl, triton

if triton is not None:
    from triton.language.extra import libdevice

    _INTERPRETED = tl.constexpr(interprets())


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
def tanh(x):
    """Below 0.625 in float32 an odd polynomial (Cephes, tanhf.c), which is as exact next to 0 as elsewhere."""
    if x.dtype == tl.float64:
        rest = expm1(-2.0 * tl.abs(x))
        return tl.where(x < 0, rest, -rest) / (2.0 + rest)
    z = x * x
    near = ((((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z - 3.33332819422e-1) * z * x + x
    return tl.where(tl.abs(x) < 0.625, near, 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x)))


@jit
def tanh_softplus(x):
    """tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2), where e = exp(x): 1 beyond 20."""
    e = tl.exp(tl.minimum(x, 20.0))
    e = e * (e + 2.0)
    return e / (e + 2.0)


@jit
def softplus(x):
    """log(1 + exp(x))."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@jit
def logaddexp(x, y):
    """log(exp(x) + exp(y)); equal infinities have no difference."""
    return tl.maximum(x, y) + log1p(tl.exp(-tl.abs(tl.where(x == y, 0.0, x - y))))


@jit
def hypot(x, y):
    """The root of x x + y y, which may be out of range where it is not; infinite beside what is no number, too."""
    x, y = tl.abs(x), tl.abs(y)
    large, small = tl.maximum(x, y), tl.minimum(x, y)
    ratio = small / large
    size = tl.where(large == 0, 0.0, large * tl.sqrt(1.0 + ratio * ratio))
    size = tl.where((x != x) | (y != y), x + y, size)
    return tl.where((x == float("inf")) | (y == float("inf")), float("inf"), size)


@jit
def erfc(x):
    """1 - erf(x), beyond 0.5 by itself: Chebyshev's polynomial of Numerical Recipes (`erfcc`), in float64 a continued fraction (Abramowitz and Stegun 1964, 7.1.14)."""
    size = tl.abs(x)
    if x.dtype == tl.float64:
        fraction = size
        for k in tl.static_range(50):
            fraction = size + (25.0 - 0.5 * k) / fraction
        far = tl.exp(-size * size) / (tl.full((), 1.7724538509055159, tl.float64) * fraction)
        return tl.where(x > 2.0, far, 1.0 - tl.erf(x))
    t = 1.0 / (1.0 + 0.5 * size)
    far = -0.82215223 + t * 0.17087277
    far = -0.18628806 + t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * far)))
    far = t * tl.exp(-size * size + (-1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * far)))))
    return tl.where(x > 0.5, far, 1.0 - tl.erf(x))


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
def fmod(x, y):
    """What division leaves, exact, with the sign of x: whole numbers, too. Of floats Triton's own on a GPU is x - trunc(x / y) y, rounded, and no number beside infinity."""
    if not _INTERPRETED and x.dtype.is_floating():
        return libdevice.fmod(x, y)
    else:
        return x % y


@jit
def remainder(x, y):
    """What division leaves, with the sign of y: whole numbers, too."""
    rest = fmod(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@jit
def floor_divided(x, y):
    """x / y towards minus infinity, exact where x / y itself would be rounded up to a whole number."""
    rest = fmod(x, y)
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
    """x ** y; of a finite base below zero for whole exponents only."""
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    size = tl.where((y == 0) | (x == 1) | (tl.abs(x) == 1) & (tl.abs(y) == float("inf")), 1.0, size)
    signed = tl.where(tl.floor(y * 0.5) * 2.0 == y, size, -size)
    below = tl.where(tl.floor(y) == y, signed, tl.where(x == float("-inf"), size, float("nan")))
    return tl.where(x < 0, below, size)


@jit
def fraction_power(x, y):
    """x ** y for an exponent that is no whole number: of -inf as of inf."""
    return tl.exp2(y * tl.log2(tl.where(x == float("-inf"), float("inf"), x)))


@jit
def _larger(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@jit
def _smaller(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@jit
def row_max(x):
    """The largest elements along rows, no number where one is none: `[rows, cols]` -> `[rows, 1]`. Triton's interpreter takes long for reductions that are not its own."""
    if _INTERPRETED:
        return tl.where(tl.max((x != x).to(tl.int32), axis=1) > 0, float("nan"), tl.max(x, axis=1))[:, None]
    return tl.reduce(x, 1, _larger)[:, None]


@jit
def row_min(x):
    """The smallest elements along rows, as `row_max`."""
    if _INTERPRETED:
        return tl.where(tl.max((x != x).to(tl.int32), axis=1) > 0, float("nan"), tl.min(x, axis=1))[:, None]
    return tl.reduce(x, 1, _smaller)[:, None]
