"""Pointwise ops whose Triton expression depends on more than the texts of their operands: on numbers, modes and the dtype of the result.

In: an op, the texts of its operands by schema name, what else the call has, the dtype of the result. Out: its text; None where there is none.
"""

from __future__ import annotations

import math

from .literals import FLOATS, HALVES, LARGEST, TYPES, number_text


def _gelu(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str:
    x, backward = names["self"], op == "aten.gelu_backward.default"
    if options.get("approximate", "none") != "tanh":
        cdf = f"0.5 * (1.0 + tl.erf({x} * {number_text(math.sqrt(0.5), dtype)}))"
        if not backward:
            return f"{x} * ({cdf})"
        return f"{names['grad_output']} * ({cdf} + {x} * tl.exp(-0.5 * {x} * {x}) * {number_text(1 / math.sqrt(2 * math.pi), dtype)})"
    root = number_text(2 * math.sqrt(2 / math.pi), dtype)  # Hendrycks and Gimpel 2016, "Gaussian error linear units"; (1 + tanh(u)) / 2 is the sigmoid of 2 u
    part = f"formulas.sigmoid({root} * ({x} + {number_text(0.044715, dtype)} * {x} * {x} * {x}))"
    if not backward:
        return f"{x} * {part}"
    slope = f"{root} * (1.0 + {number_text(3 * 0.044715, dtype)} * {x} * {x})"
    return f"{names['grad_output']} * ({part} + {x} * {part} * (1.0 - {part}) * ({slope}))"


def _elu_backward(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str:
    """Of alpha (exp(s x) - 1) below zero and x above, times a scale; `is_result`: what is known is the result."""
    x, grad, below, scale = names["self_or_result"], names["grad_output"], f"{names['alpha']} * {names['scale']}", names["input_scale"]
    slope = f"({x} + {below})" if options.get("is_result") else f"{below} * tl.exp({x} * {scale})"
    return f"tl.where({x} <= 0, {grad} * {scale} * {slope}, {grad} * {names['scale']})"


def _clamp(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str:
    text = names["self"]
    for key, bound in (("min", "tl.maximum"), ("max", "tl.minimum")):
        text = f"{bound}({text}, {names[key]}, propagate_nan=tl.PropagateNan.ALL)" if key in names else text
    return text


def _rounded_quotient(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str:
    x, y, is_float = names["self"], names["other"], dtype in FLOATS
    mode = "floor" if op == "aten.floor_divide.default" else options.get("rounding_mode")
    if mode is None:
        return f"{x} / {y}"
    if mode == "trunc":
        return f"formulas.truncated({x} / {y})" if is_float else f"{x} // {y}"
    return f"formulas.{'' if is_float else 'whole_'}floor_divided({x}, {y})"


def _number_power(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str | None:
    x, exponent, is_float = names["self"], options.get("exponent"), dtype in FLOATS
    if not isinstance(exponent, (int, float)) or not math.isfinite(exponent):
        return None
    if exponent == 0:
        return f"tl.zeros_like({x}) + {1.0 if is_float else 1}"
    product = " * ".join([x] * int(abs(exponent))) if exponent in (1, 2, 3, 4, -1, -2, -3, -4) else ""
    if product and (exponent > 0 or is_float):
        return product if exponent > 0 else f"1.0 / {x}" if exponent == -1 else f"1.0 / ({product})"
    if not is_float:
        return None
    if exponent in (0.5, -0.5):
        return f"tl.sqrt({x})" if exponent > 0 else f"1.0 / tl.sqrt({x})"
    if exponent != int(exponent):
        return f"formulas.fraction_power({x}, {number_text(exponent, dtype)})"
    size = f"tl.exp2({number_text(exponent, dtype)} * tl.log2(tl.abs({x})))"
    return f"tl.where({x} < 0, -{size}, {size})" if exponent % 2 == 1 else size


def _power(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str | None:
    return f"formulas.power({names['self']}, {names['exponent']})" if dtype in FLOATS else None


def _power_of_number(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str | None:
    """`base ** x` as exp2(x log2(base)): exact to the rounding of the exponent. Whole powers of whole numbers are not rounded: None."""
    if dtype not in FLOATS:
        return None
    base, exponent = options.get("self"), names["exponent"]
    if not isinstance(base, (int, float)) or not 0 < base < math.inf:
        return None
    return f"tl.zeros_like({exponent}) + 1.0" if base == 1 else f"tl.exp2({exponent} * {number_text(math.log2(base), dtype)})"


def _logit(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str:
    """log(x / (1 - x)) and its gradient: of what lies eps within 0 and 1, or of all numbers."""
    x, eps = names["self"], options.get("eps")
    backward = op == "aten.logit_backward.default"
    if not isinstance(eps, (int, float)) or eps < 0:
        return f"tl.where(({x} < 0) | ({x} > 1), float(\"nan\"), {names['grad_output']} / ({x} * (1.0 - {x})))" if backward else f"tl.log({x} / (1.0 - {x}))"
    low, high = number_text(eps, dtype), number_text(1 - eps, dtype)
    if backward:
        return f"tl.where(({x} < {low}) | ({x} > {high}), 0.0, {names['grad_output']} / ({x} * (1.0 - {x})))"
    near = f"tl.where({x} < {low}, {low}, tl.where({x} > {high}, {high}, {x}))"
    return f"tl.log({near} / (1.0 - {near}))"


def _nan_to_num(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str:
    x = names["self"]
    if dtype not in FLOATS:
        return x
    zero, high, low = (names.get(key) or number_text(number, dtype) for key, number in (("nan", 0.0), ("posinf", LARGEST[dtype]), ("neginf", -LARGEST[dtype])))
    return f'tl.where({x} != {x}, {zero}, tl.where({x} == float("inf"), {high}, tl.where({x} == float("-inf"), {low}, {x})))'


def _round_decimals(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str | None:
    decimals = options.get("decimals")
    if dtype not in FLOATS or dtype in HALVES or not isinstance(decimals, int) or abs(decimals) > 10:
        return None
    unit = number_text(10.0 ** abs(decimals), dtype)
    return f"formulas.nearest({names['self']} * {unit}) / {unit}" if decimals >= 0 else f"formulas.nearest({names['self']} / {unit}) * {unit}"


def _copysign(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str:
    sign = "-" if math.copysign(1.0, float(options["other"])) < 0 else ""  # type: ignore[arg-type]
    return f"{sign}tl.abs({names['self']})"


def _shift(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str | None:
    """Of whole numbers by less than they have bits."""
    count = options.get("other")
    if dtype in FLOATS or not isinstance(count, int) or not 0 <= count < 8:
        return None
    return f"{names['self']} {'<<' if 'lshift' in op or 'left' in op else '>>'} {count}"


def _number(op: str, names: dict[str, str], options: dict[str, object], dtype: str) -> str | None:
    """A tensor without dims."""
    if options.get("size") != () or "fill_value" not in options:
        return None
    return f"tl.full((), {number_text(options['fill_value'], 'float32' if dtype == 'float64' else dtype)}, {TYPES[dtype]})"  # type: ignore[arg-type]


BY_ARGUMENTS = {
    "aten.full.default": _number,
    **dict.fromkeys(("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.floor_divide.default"), _rounded_quotient), **dict.fromkeys(("aten.gelu.default", "aten.gelu_backward.default"), _gelu),
    "aten.pow.Tensor_Scalar": _number_power, "aten.pow.Tensor_Tensor": _power, "aten.pow.Scalar": _power_of_number, "aten.elu_backward.default": _elu_backward,
    **dict.fromkeys((f"aten.clamp{form}" for form in (".default", ".Tensor", "_min.Tensor", "_max.Tensor", "_min.default", "_max.default")), _clamp),
    **dict.fromkeys(("aten.logit.default", "aten.logit_backward.default"), _logit), "aten.nan_to_num.default": _nan_to_num, "aten.round.decimals": _round_decimals,
    **dict.fromkeys(("aten.__lshift__.Scalar", "aten.__rshift__.Scalar", "aten.bitwise_left_shift.Tensor_Scalar", "aten.bitwise_right_shift.Tensor_Scalar"), _shift), "aten.copysign.Scalar": _copysign,
}  # fmt: skip
