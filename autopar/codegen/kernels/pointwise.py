"""Pointwise ops as Triton expressions: one row per op.

In: the texts of its operands, already in the type in which it is computed. Out: the text of the result. Operands go by schema name. Halves are computed in float32, as torch's own kernels do; what is rounded between two ops of torch is not rounded here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_SIGMOID = "(1.0 / (1.0 + tl.exp(-({x}))))"
_TANH = "(2.0 / (1.0 + tl.exp(-2.0 * ({x}))) - 1.0)"

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
    "aten.log1p.default": "tl.log(1.0 + {self})",
    "aten.sqrt.default": "tl.sqrt({self})",
    "aten.rsqrt.default": "1.0 / tl.sqrt({self})",
    "aten.sin.default": "tl.sin({self})",
    "aten.cos.default": "tl.cos({self})",
    "aten.erf.default": "tl.erf({self})",
    "aten.abs.default": "tl.abs({self})",
    "aten.floor.default": "tl.floor({self})",
    "aten.ceil.default": "tl.ceil({self})",
    "aten.tanh.default": _TANH.format(x="{self}"),
    "aten.sigmoid.default": _SIGMOID.format(x="{self}"),
    "aten.silu.default": "{self} * " + _SIGMOID.format(x="{self}"),
    "aten.relu.default": "tl.where({self} <= 0, 0, {self})",
    "aten.sign.default": "tl.where({self} > 0, 1.0, tl.where({self} < 0, -1.0, 0.0))",
    "aten.sgn.default": "tl.where({self} > 0, 1.0, tl.where({self} < 0, -1.0, 0.0))",
    "aten.square.default": "{self} * {self}",
    "aten.maximum.default": "tl.where({self} != {self}, {self}, tl.where({other} != {other}, {other}, tl.maximum({self}, {other})))",
    "aten.minimum.default": "tl.where({self} != {self}, {self}, tl.where({other} != {other}, {other}, tl.minimum({self}, {other})))",
    "aten.where.self": "tl.where({condition}, {self}, {other})",
    "aten.masked_fill.Scalar": "tl.where({mask}, {value}, {self})",
    "aten.addcmul.default": "{self} + {value} * {tensor1} * {tensor2}",
    "aten.addcdiv.default": "{self} + {value} * ({tensor1} / {tensor2})",
    "aten.clone.default": "{self}",
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
    "aten.bitwise_and.Tensor": "{self} & {other}",
    "aten.bitwise_or.Tensor": "{self} | {other}",
    "aten.bitwise_xor.Tensor": "{self} ^ {other}",
    "aten.silu_backward.default": "{grad_output} * " + _SIGMOID.format(x="{self}") + " * (1.0 + {self} * (1.0 - " + _SIGMOID.format(x="{self}") + "))",
    "aten.tanh_backward.default": "{grad_output} * (1.0 - {output} * {output})",
    "aten.sigmoid_backward.default": "{grad_output} * {output} * (1.0 - {output})",
    "aten.threshold_backward.default": "tl.where({self} <= {threshold}, 0, {grad_output})",
}  # fmt: skip

_SCALAR_FORMS = {f"aten.{p}.Scalar": f"aten.{p}.Tensor" for p in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or")}
_DEFAULTS = {"aten.addcmul.default": {"value": 1}, "aten.addcdiv.default": {"value": 1}}
COMPARISONS = frozenset(op for op in (*TEXTS, *_SCALAR_FORMS) if op.split(".")[1] in ("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or"))


def pointwise_text(op: str, operands: dict[str, str], options: dict[str, object], literal: Callable[[float], str]) -> str | None:
    """The expression of a pointwise op; None where there is none.

    Args:
        operands: schema name -> the text of each tensor, and of each number that stands for one.
        options: schema name -> what else the call has.
        literal: the text of a number of the type in which it is computed.
    """
    op = _SCALAR_FORMS.get(op, op)
    names = {key: f"({text})" if " " in text and not text.startswith("tl.") else text for key, text in operands.items()}
    if op in ("aten.add.Tensor", "aten.sub.Tensor") and options.get("alpha", 1) != 1:
        names["other"] = f"{names['alpha']} * {names['other']}"
    elif op == "aten.div.Tensor" and options.get("rounding_mode"):
        return None
    elif op in ("aten.gelu.default", "aten.gelu_backward.default"):
        return _gelu(op, names, options.get("approximate", "none") == "tanh", literal)
    elif op == "aten.pow.Tensor_Scalar":
        return _power(names["self"], options.get("exponent"))
    elif op == "aten.pow.Scalar":
        return _scalar_power(options.get("self"), names["exponent"], literal)
    elif op in ("aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default"):
        text = names["self"]
        for key, bound in (("min", "tl.maximum"), ("max", "tl.minimum")):
            text = f"{bound}({text}, {names[key]})" if key in names else text
        return f"tl.where({names['self']} != {names['self']}, {names['self']}, {text})"
    text = TEXTS.get(op)
    if text is None:
        return None
    known = {**{k: repr(v) for k, v in _DEFAULTS.get(op, {}).items()}, **names}
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
    root = literal(math.sqrt(2 / math.pi))  # Hendrycks and Gimpel 2016, "Gaussian error linear units"
    inner = _TANH.format(x=f"({root} * ({x} + {literal(0.044715)} * {x} * {x} * {x}))")
    if not backward:
        return f"0.5 * {x} * (1.0 + {inner})"
    slope = f"{root} * (1.0 + {literal(3 * 0.044715)} * {x} * {x})"
    return f"{names['grad_output']} * (0.5 * (1.0 + {inner}) + 0.5 * {x} * (1.0 - {inner} * {inner}) * ({slope}))"


def _power(x: str, exponent: object) -> str | None:
    whole = {2: f"{x} * {x}", 3: f"{x} * {x} * {x}", 4: f"{x} * {x} * {x} * {x}", 0.5: f"tl.sqrt({x})", -0.5: f"1.0 / tl.sqrt({x})", 1: x, -1: f"1.0 / {x}"}
    return whole.get(exponent) if isinstance(exponent, (int, float)) else None


def _scalar_power(base: object, exponent: str, literal: Callable[[float], str]) -> str | None:
    """`base ** x` as exp2(x log2(base)): exact to the rounding of the exponent."""
    return f"tl.exp2({exponent} * {literal(math.log2(base))})" if isinstance(base, (int, float)) and base > 0 else None
