"""Pointwise ops as Triton expressions: one row per op.

In: the texts of its operands, already in the type in which it is computed. Out: the text of the result. Operands go by schema name. Halves are computed in float32, as torch's own kernels do; what is rounded between two ops of torch is not rounded here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .activations import ACTIVATIONS, DEFAULTS

# op -> text; {self}, {other}, ... are operands and numbers by schema name
TEXTS = {
    "aten.add.Tensor": "{self} + {other}",
    "aten.sub.Tensor": "{self} - {other}",
    "aten.mul.Tensor": "{self} * {other}",
    "aten.div.Tensor": "{self} / {other}",
    "aten.neg.default": "-({self})",
    "aten.reciprocal.default": "1.0 / {self}",
    "aten.exp.default": "tl.exp({self})",
    "aten.log.default": "tl.log({self})",
    "aten.log2.default": "tl.log2({self})",
    "aten.log10.default": "tl.log2({self}) * {log10_of_2}",
    "aten.log1p.default": "formulas.log1p({self})",
    "aten.exp2.default": "tl.exp2({self})",
    "aten.expm1.default": "formulas.expm1({self})",
    "aten.sqrt.default": "tl.sqrt({self})",
    "aten.rsqrt.default": "1.0 / tl.sqrt({self})",
    "aten.sin.default": "tl.sin({self})",
    "aten.cos.default": "tl.cos({self})",
    "aten.tan.default": "tl.sin({self}) / tl.cos({self})",
    "aten.sinh.default": "0.5 * (formulas.expm1({self}) - formulas.expm1(-({self})))",
    "aten.cosh.default": "0.5 * (tl.exp({self}) + tl.exp(-({self})))",
    "aten.erf.default": "tl.erf({self})",
    "aten.erfc.default": "formulas.erfc({self})",
    "aten.abs.default": "tl.abs({self})",
    "aten.floor.default": "tl.floor({self})",
    "aten.ceil.default": "tl.ceil({self})",
    "aten.trunc.default": "formulas.truncated({self})",
    "aten.frac.default": "{self} - formulas.truncated({self})",
    "aten.round.default": "formulas.nearest({self})",
    "aten.remainder.Tensor": "formulas.remainder({self}, {other})",
    "aten.fmod.Tensor": "formulas.fmod({self}, {other})",
    "aten.rsub.Tensor": "{other} - {self}",
    "aten.lerp.Tensor": "tl.where(tl.abs({weight}) < 0.5, {self} + {weight} * ({end} - {self}), {end} - (1.0 - {weight}) * ({end} - {self}))",
    "aten.hypot.default": "formulas.hypot({self}, {other})",
    "aten.xlogy.Tensor": "tl.where(({self} == 0) & ({other} == {other}), 0.0, {self} * tl.log({other}))",
    "aten.logaddexp.default": "formulas.logaddexp({self}, {other})",
    "aten.sign.default": "tl.where({self} > 0, 1.0, tl.where({self} < 0, -1.0, 0.0))",
    "aten.sgn.default": "tl.where({self} > 0, 1.0, tl.where({self} < 0, -1.0, 0.0))",
    "aten.square.default": "{self} * {self}",
    "aten.maximum.default": "tl.maximum({self}, {other}, propagate_nan=tl.PropagateNan.ALL)",
    "aten.minimum.default": "tl.minimum({self}, {other}, propagate_nan=tl.PropagateNan.ALL)",
    "aten.where.self": "tl.where({condition}, {self}, {other})",
    "aten.masked_fill.Scalar": "tl.where({mask}, {value}, {self})",
    "aten.addcmul.default": "{self} + {value} * {tensor1} * {tensor2}",
    "aten.addcdiv.default": "{self} + {value} * ({tensor1} / {tensor2})",
    "aten.masked_fill.Tensor": "tl.where({mask}, {value}, {self})",
    "aten.clone.default": "{self}",
    "aten.copy.default": "{src}",
    "aten._to_copy.default": "{self}",
    "aten.eq.Tensor": "{self} == {other}",
    "aten.ne.Tensor": "{self} != {other}",
    "aten.lt.Tensor": "{self} < {other}",
    "aten.le.Tensor": "{self} <= {other}",
    "aten.gt.Tensor": "{self} > {other}",
    "aten.ge.Tensor": "{self} >= {other}",
    "aten.logical_not.default": "{self} == 0",
    "aten.logical_and.default": "({self} != 0) & ({other} != 0)",
    "aten.logical_or.default": "({self} != 0) | ({other} != 0)",
    "aten.logical_xor.default": "({self} != 0) != ({other} != 0)",
    "aten.isnan.default": "{self} != {self}",
    "aten.isinf.default": 'tl.abs({self}) == float("inf")',
    "aten.isfinite.default": 'tl.abs({self}) < float("inf")',
    "aten.bitwise_not.default": "~{self}",
    "aten.bitwise_and.Tensor": "{self} & {other}",
    "aten.bitwise_or.Tensor": "{self} | {other}",
    "aten.bitwise_xor.Tensor": "{self} ^ {other}",
    **ACTIVATIONS,
}  # fmt: skip

_SCALAR_FORMS = {f"aten.{p}.Scalar": f"aten.{p}.Tensor" for p in (
    "add", "sub", "rsub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "remainder", "fmod", "lerp",
)}  # fmt: skip
_SCALAR_FORMS.update({f"aten.where.Scalar{form}": "aten.where.self" for form in ("", "Self", "Other")})
_SCALAR_FORMS.update({"aten.max.other": "aten.maximum.default", "aten.min.other": "aten.minimum.default", "aten.xlogy.Scalar_Other": "aten.xlogy.Tensor"})
_SCALAR_FORMS.update({"aten.div.Tensor_mode": "aten.div.Tensor", "aten.div.Scalar_mode": "aten.div.Tensor"})
_DEFAULTS = {"aten.addcmul.default": {"value": 1}, "aten.addcdiv.default": {"value": 1}, **DEFAULTS}
_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor", "isnan", "isinf", "isfinite")
COMPARISONS = frozenset(op for op in (*TEXTS, *_SCALAR_FORMS) if op.split(".")[1] in _PREDICATES)


def pointwise_text(op: str, operands: dict[str, str], options: dict[str, object], literal: Callable[[float], str], is_float: bool = True) -> str | None:
    """The expression of a pointwise op; None where there is none.

    Args:
        operands: schema name -> the text of each tensor, and of each number that stands for one.
        options: schema name -> what else the call has.
        literal: the text of a number of the type in which it is computed.
        is_float: that type is no whole number.
    """
    op = _SCALAR_FORMS.get(op, op)
    names = {key: f"({text})" if " " in text and not text.startswith("tl.") else text for key, text in operands.items()}
    if op in ("aten.add.Tensor", "aten.sub.Tensor", "aten.rsub.Tensor") and options.get("alpha", 1) != 1:
        key = "self" if op == "aten.rsub.Tensor" else "other"
        names[key] = f"{names['alpha']} * {names[key]}"
    elif op in ("aten.div.Tensor", "aten.floor_divide.default") and (op != "aten.div.Tensor" or options.get("rounding_mode")):
        return _rounded_quotient(names["self"], names["other"], str(options.get("rounding_mode", "floor")), is_float)
    elif op in ("aten.gelu.default", "aten.gelu_backward.default"):
        return _gelu(op, names, options.get("approximate", "none") == "tanh", literal)
    elif op == "aten.pow.Tensor_Scalar":
        return _power(names["self"], options.get("exponent"), literal, is_float)
    elif op == "aten.pow.Tensor_Tensor":
        return f"formulas.power({names['self']}, {names['exponent']})" if is_float else None
    elif op == "aten.pow.Scalar":
        return _scalar_power(options.get("self"), names["exponent"], literal)
    elif op == "aten.elu_backward.default":
        return _elu_backward(names, bool(options.get("is_result")))
    elif op in ("aten.clamp.default", "aten.clamp.Tensor", "aten.clamp_min.Tensor", "aten.clamp_max.Tensor", "aten.clamp_min.default", "aten.clamp_max.default"):
        text = names["self"]
        for key, bound in (("min", "tl.maximum"), ("max", "tl.minimum")):
            text = f"{bound}({text}, {names[key]}, propagate_nan=tl.PropagateNan.ALL)" if key in names else text
        return text
    text = TEXTS.get(op)
    if text is None:
        return None
    known = {**{k: repr(v) if isinstance(v, int) else literal(v) for k, v in _DEFAULTS.get(op, {}).items()}, "log10_of_2": literal(math.log10(2)), **names}
    try:
        return text.format(**known)
    except KeyError:
        return None


def _gelu(op: str, names: dict[str, str], tanh: bool, literal: Callable[[float], str]) -> str:
    x, backward = names["self"], op == "aten.gelu_backward.default"
    if not tanh:
        cdf = f"0.5 * (1.0 + tl.erf({x} * {literal(math.sqrt(0.5))}))"
        if not backward:
            return f"{x} * ({cdf})"
        return f"{names['grad_output']} * ({cdf} + {x} * tl.exp(-0.5 * {x} * {x}) * {literal(1 / math.sqrt(2 * math.pi))})"
    root = literal(2 * math.sqrt(2 / math.pi))  # Hendrycks and Gimpel 2016, "Gaussian error linear units"; (1 + tanh(u)) / 2 is the sigmoid of 2 u
    part = f"formulas.sigmoid({root} * ({x} + {literal(0.044715)} * {x} * {x} * {x}))"
    if not backward:
        return f"{x} * {part}"
    slope = f"{root} * (1.0 + {literal(3 * 0.044715)} * {x} * {x})"
    return f"{names['grad_output']} * ({part} + {x} * {part} * (1.0 - {part}) * ({slope}))"


def _elu_backward(names: dict[str, str], of_result: bool) -> str:
    """Of alpha (exp(s x) - 1) below zero and x above, times a scale; `of_result`: what is known is the result."""
    x, grad, below, scale = names["self_or_result"], names["grad_output"], f"{names['alpha']} * {names['scale']}", names["input_scale"]
    slope = f"({x} + {below})" if of_result else f"{below} * tl.exp({x} * {scale})"
    return f"tl.where({x} <= 0, {grad} * {scale} * {slope}, {grad} * {names['scale']})"


def _rounded_quotient(x: str, y: str, mode: str, is_float: bool) -> str:
    if mode == "trunc":
        return f"formulas.truncated({x} / {y})" if is_float else f"{x} // {y}"
    return f"formulas.{'' if is_float else 'whole_'}floor_divided({x}, {y})"


def _power(x: str, exponent: object, literal: Callable[[float], str], is_float: bool) -> str | None:
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
        return f"formulas.fraction_power({x}, {literal(exponent)})"
    size = f"tl.exp2({literal(exponent)} * tl.log2(tl.abs({x})))"
    return f"tl.where({x} < 0, -{size}, {size})" if exponent % 2 == 1 else size


def _scalar_power(base: object, exponent: str, literal: Callable[[float], str]) -> str | None:
    """`base ** x` as exp2(x log2(base)): exact to the rounding of the exponent."""
    if not isinstance(base, (int, float)) or not 0 < base < math.inf:
        return None
    return f"tl.zeros_like({exponent}) + 1.0" if base == 1 else f"tl.exp2({exponent} * {literal(math.log2(base))})"
