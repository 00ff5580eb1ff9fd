"""Pointwise ops: each output element is a function of the elements that broadcasting aligns with it.

One row maker over a list of packets. Beside the name only linearity differs: through which inputs a Partial may pass. Adding a
constant is not linear, which the sets say by naming both tensors (a Python number is no tensor, so the set does not count).
"""

from __future__ import annotations

from ..node import Arg, Const
from ..rule import LinearSets, Rule, Site

# packets without any linear input
NONLINEAR = """
abs acos acosh asin asinh atan atan2 atanh ceil celu clamp clamp_max clamp_min copysign cos cosh digamma div.Tensor_mode
div.Scalar_mode elu eq erf erfc erfinv exp exp2 expm1 fill floor floor_divide fmax fmin fmod frac full_like ge gelu gt hardshrink
hardsigmoid hardswish hardtanh heaviside hypot isfinite isinf isnan ldexp le leaky_relu lgamma log log10 log1p log2
log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt maximum minimum mish nan_to_num ne
bitwise_and bitwise_not bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift pow _prelu_kernel reciprocal relu relu6
remainder round rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square tan tanh threshold
trunc xlogy zeros_like ones_like empty_like special_entr special_erfcx special_log_ndtr special_ndtri copy
max.other min.other where.Scalar where.ScalarOther where.ScalarSelf
""".split()

# special functions and rarer ones, without any linear input
SPECIAL = """
angle frexp gcd i0 igamma igammac isneginf isposinf lcm mvlgamma nextafter polygamma special_airy_ai special_bessel_j0
special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u
special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he special_i0e
special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_modified_bessel_i0 special_modified_bessel_i1
special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_zeta __lshift__ __rshift__
fake_quantize_per_tensor_affine_cachemask
""".split()

# derivatives: linear in the incoming gradient, which all of them call grad_output
BACKWARDS = """
elu_backward gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward
mish_backward native_dropout_backward _prelu_kernel_backward sigmoid_backward silu_backward softplus_backward softshrink_backward
tanh_backward threshold_backward logit_backward rrelu_with_noise_backward
""".split()


def _is_integer(dtype: Arg) -> bool:
    return isinstance(dtype, Const) and ("int" in dtype.name or "bool" in dtype.name)


def linear_unless_integer(site: Site) -> LinearSets:
    """A cast is linear, except to integers: it rounds, and the sum of rounded parts is not the rounded sum."""
    return () if _is_integer(site.arg("dtype")) else (("self",),)


def linear_if_zero(site: Site) -> LinearSets:
    """Filling in a constant is linear where the constant is zero."""
    return (("self",),) if site.arg("value", 0) == 0 else ()


LINEAR = {
    "add": (("self", "other"),),
    "sub": (("self", "other"),),
    "mul": (("self",), ("other",)),
    "div": (("self",),),
    "neg": (("self",),),
    "clone": (("self",),),
    "_to_copy": linear_unless_integer,
    "where.self": (("self", "other"),),
    "addcmul": (("self", "tensor1"), ("self", "tensor2")),
    "addcdiv": (("self", "tensor1"),),
    "lerp": (("self", "end"),),
    "masked_fill": linear_if_zero,
    "_conj": (("self",),),
    "_conj_physical": (("self",),),
    "conj_physical": (("self",),),
    "_neg_view": (("self",),),
    "complex": (("real", "imag"),),
    "polar": (("abs",),),
    "hardshrink_backward": (("grad_out",),),
    "fake_quantize_per_tensor_affine_cachemask_backward": (("grad",),),
    "deg2rad": (("self",),),
    "rad2deg": (("self",),),
}


def _text(site: Site) -> str:
    outputs = sum(1 for _ in site.node.outputs)
    return ", ".join(["..."] * len(site.inputs)) + " -> " + ", ".join(["..."] * outputs)


ROWS = (
    *(Rule(f"aten.{name}", _text) for name in (*NONLINEAR, *SPECIAL)),
    *(Rule(f"aten.{name}", _text, linear=(("grad_output",),)) for name in BACKWARDS),
    *(Rule(f"aten.{name}", _text, linear=sets) for name, sets in LINEAR.items()),
)
