"""Activations and their gradients as Triton expressions: one row per op, as in `pointwise`.

Formulas are those of torch's own kernels (ATen/native/cuda/Activation*.cu), or equal ones that lose less where a result is small; {names} are operands and numbers by schema
name. Where two pieces of a function meet, each takes the side that torch takes.
"""

from __future__ import annotations

SIGMOID = "(1.0 / (1.0 + tl.exp(-({x}))))"

_SELF = "{self}"
_MISH = "formulas.tanh_softplus({self})"
_SHRUNK = "({self} >= -({lambd})) & ({self} <= {lambd})"

ACTIVATIONS = {
    "aten.tanh.default": "formulas.tanh({self})",
    "aten.sigmoid.default": SIGMOID.format(x=_SELF),
    "aten.silu.default": "{self} * " + SIGMOID.format(x=_SELF),
    "aten.relu.default": "tl.where({self} <= 0, 0, {self})",
    "aten.leaky_relu.default": "tl.where({self} > 0, {self}, {self} * {negative_slope})",
    "aten._prelu_kernel.default": "tl.where({self} > 0, {self}, {self} * {weight})",
    "aten.elu.default": "tl.where({self} <= 0, formulas.expm1({self} * {input_scale}) * {alpha} * {scale}, {self} * {scale})",
    "aten.celu.default": "tl.where({self} <= 0, formulas.expm1({self} / {alpha}) * {alpha}, {self})",
    "aten.threshold.default": "tl.where({self} <= {threshold}, {value}, {self})",
    "aten.hardtanh.default": "tl.where({self} != {self}, {self}, tl.minimum(tl.maximum({self}, {min_val}), {max_val}))",
    "aten.hardsigmoid.default": "tl.where({self} != {self}, {self}, tl.minimum(tl.maximum({self} + 3.0, 0.0), 6.0) / 6.0)",
    "aten.hardswish.default": "{self} * tl.minimum(tl.maximum({self} + 3.0, 0.0), 6.0) / 6.0",
    "aten.softplus.default": "tl.where({self} * {beta} > {threshold}, {self}, formulas.softplus({self} * {beta}) / {beta})",
    "aten.log_sigmoid.default": "-formulas.softplus(-({self}))",
    "aten.mish.default": "{self} * " + _MISH,
    "aten.hardshrink.default": f"tl.where({_SHRUNK}, 0, {_SELF})",
    "aten.softshrink.default": "tl.where({self} > {lambd}, {self} - {lambd}, tl.where({self} < -({lambd}), {self} + {lambd}, {self} * 0))",
    "aten.silu_backward.default": "{grad_output} * " + SIGMOID.format(x=_SELF) + " * (1.0 + {self} * (1.0 - " + SIGMOID.format(x=_SELF) + "))",
    "aten.tanh_backward.default": "{grad_output} * (1.0 - {output} * {output})",
    "aten.sigmoid_backward.default": "{grad_output} * {output} * (1.0 - {output})",
    "aten.threshold_backward.default": "tl.where({self} <= {threshold}, 0, {grad_output})",
    "aten.leaky_relu_backward.default": "tl.where({self} > 0, {grad_output}, {grad_output} * {negative_slope})",
    "aten.hardtanh_backward.default": "tl.where(({self} <= {min_val}) | ({self} >= {max_val}), 0, {grad_output})",
    "aten.hardsigmoid_backward.default": "tl.where(({self} > -3.0) & ({self} < 3.0), {grad_output} / 6.0, 0)",
    "aten.hardswish_backward.default": "tl.where({self} <= -3.0, 0, tl.where({self} < 3.0, {grad_output} * ({self} / 3.0 + 0.5), {grad_output}))",
    "aten.softplus_backward.default": "tl.where({self} * {beta} > {threshold}, {grad_output}, {grad_output} * formulas.sigmoid({self} * {beta}))",
    "aten.mish_backward.default": "{grad_output} * (" + _MISH + " + {self} * formulas.sigmoid({self}) * (1.0 - " + _MISH + " * " + _MISH + "))",
    "aten.hardshrink_backward.default": f"tl.where({_SHRUNK}, 0, {{grad_out}})",
    "aten.softshrink_backward.default": f"tl.where({_SHRUNK}, 0, {{grad_output}})",
    "aten.native_dropout_backward.default": "{grad_output} * tl.where({mask}, {scale}, 0.0)",
}  # fmt: skip

DEFAULTS = {
    "aten.leaky_relu.default": {"negative_slope": 0.01}, "aten.elu.default": {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0},
    "aten.celu.default": {"alpha": 1.0}, "aten.hardtanh.default": {"min_val": -1.0, "max_val": 1.0}, "aten.softplus.default": {"beta": 1.0, "threshold": 20.0},
    "aten.hardshrink.default": {"lambd": 0.5}, "aten.softshrink.default": {"lambd": 0.5},
}  # fmt: skip
