"""Functions that Triton has not, or has not exactly enough: what the kernels of emitted programs call beside `tl`.

In and out: elements in float32 or float64 (whole numbers where a function says so). Each is torch's function to a few roundings of its result, however small that is, and where it
is infinite or not a number, too; `power` and `fraction_power` to as many roundings as their exponent times the binary logarithm of their base, `erfc` to as many as x * x.
What is only asked for in float64 is written for exactness, not for speed: devices work in float32.
"""

from __future__ import annotations

from .fused import INTERPRETED, jit, tl, triton

if triton is not None:
    from triton.language.extra import libdevice


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
    size = tl.where(x + y == x + y, size, x + y)
    return tl.where(large == float("inf"), large, size)


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
def _number(value: tl.constexpr, like):
    """A constant in the type of `like`: a bare one is rounded to float32."""
    return tl.full((), value, like.dtype)


@jit
def is_negative(x):
    """Of its sign alone: -0.0 is, and so may be what is no number."""
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    elif x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) < 0
    else:
        return x < 0


@jit
def copysign(x, y):
    """The size of x with the sign of y."""
    return tl.where(is_negative(y), -tl.abs(x), tl.abs(x))


@jit
def _atan_of_part(x):
    """Of 0 to 1: twice its angle is halved, tan(a / 2) = tan(a) / (1 + sqrt(1 + tan(a) tan(a))), then Taylor's series of what is below 0.2."""
    x = x / (1.0 + tl.sqrt(1.0 + x * x))
    x = x / (1.0 + tl.sqrt(1.0 + x * x))
    z = x * x
    terms: tl.constexpr = 13 if x.dtype == tl.float64 else 6
    series = z * 0.0
    for k in tl.static_range(terms):
        series = _number(1.0 / (2 * (terms - k) - 1), x) - z * series
    return 4.0 * x * series


@jit
def atan2(y, x):
    """The angle of (x, y), with the sign of y, from -pi to pi."""
    wide, high = tl.abs(x), tl.abs(y)
    large, small = tl.maximum(wide, high), tl.minimum(wide, high)
    part = tl.where(large == 0, 0.0, tl.where(small == float("inf"), 1.0, small / large))
    angle = _atan_of_part(part)
    angle = tl.where(high > wide, _number(1.5707963267948966, x) - angle, angle)
    angle = copysign(tl.where(is_negative(x), _number(3.141592653589793, x) - angle, angle), y)
    return tl.where((x != x) | (y != y), x + y, angle)


@jit
def atan(x):
    """The angle of (1, x)."""
    return atan2(x, tl.zeros_like(x) + 1.0)


@jit
def asin(x):
    """The angle of (sqrt(1 - x x), x)."""
    return tl.where(tl.abs(x) > 1.0, float("nan"), atan2(x, tl.sqrt(tl.maximum((1.0 - x) * (1.0 + x), 0.0))))


@jit
def acos(x):
    """The angle of (x, sqrt(1 - x x))."""
    return tl.where(tl.abs(x) > 1.0, float("nan"), atan2(tl.sqrt(tl.maximum((1.0 - x) * (1.0 + x), 0.0)), x))


@jit
def asinh(x):
    """log(x + sqrt(x x + 1)) of the size, near 0 as `log1p`; of what has no square log(2 x)."""
    size = tl.abs(x)
    squared = size * size
    near = log1p(size + squared / (1.0 + tl.sqrt(1.0 + squared)))
    return copysign(tl.where(size > 1e15, tl.log(size) + _number(0.6931471805599453, x), near), x)


@jit
def acosh(x):
    """log(x + sqrt(x x - 1)), near 1 as `log1p`."""
    rest = x - 1.0
    near = log1p(rest + tl.sqrt(rest * (rest + 2.0)))
    return tl.where(x < 1.0, float("nan"), tl.where(x > 1e15, tl.log(x) + _number(0.6931471805599453, x), near))


@jit
def atanh(x):
    """log((1 + x) / (1 - x)) / 2 of the size, near 0 as `log1p`."""
    size = tl.abs(x)
    return copysign(0.5 * log1p(2.0 * size / (1.0 - size)), x)


@jit
def logaddexp2(x, y):
    """log2(exp2(x) + exp2(y)); equal infinities have no difference."""
    return tl.maximum(x, y) + log1p(tl.exp2(-tl.abs(tl.where(x == y, 0.0, x - y)))) * _number(1.4426950408889634, x)


@jit
def fmax(x, y):
    """The larger one; of one that is no number the other."""
    return tl.where(x != x, y, tl.where(y != y, x, tl.maximum(x, y)))


@jit
def fmin(x, y):
    """The smaller one; of one that is no number the other."""
    return tl.where(x != x, y, tl.where(y != y, x, tl.minimum(x, y)))


@jit
def sinc(x):
    """sin(pi x) / (pi x)."""
    angle = _number(3.141592653589793, x) * x
    return tl.where(x == 0, 1.0, tl.sin(angle) / angle)


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
    if not INTERPRETED and x.dtype.is_floating():
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


