"""Pointwise ops as Triton expressions: one row per op.

In: the texts of its operands, already in the type in which it is computed. Out: the text of the result. Operands go by schema name. Halves are computed in float32, as torch's own kernels do; what is rounded between two ops of torch is not rounded here.
"""

from __future__ import annotations

import math

from .activations import ACTIVATIONS, DEFAULTS
from .by_arguments import BY_ARGUMENTS
from .literals import FLOATS, number_text

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
    "aten.asin.default": "formulas.asin({self})",
    "aten.acos.default": "formulas.acos({self})",
    "aten.atan.default": "formulas.atan({self})",
    "aten.atan2.default": "formulas.atan2({self}, {other})",
    "aten.asinh.default": "formulas.asinh({self})",
    "aten.acosh.default": "formulas.acosh({self})",
    "aten.atanh.default": "formulas.atanh({self})",
    "aten.sinc.default": "formulas.sinc({self})",
    "aten.deg2rad.default": "{self} * {degree}",
    "aten.rad2deg.default": "{self} / {degree}",
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
    "aten.special_xlog1py.default": "tl.where(({self} == 0) & ({other} == {other}), 0.0, {self} * formulas.log1p({other}))",
    "aten.special_entr.default": "tl.where({self} < 0, float(\"-inf\"), tl.where({self} == 0, 0.0, -({self}) * tl.log({self})))",
    "aten.ldexp.Tensor": "{self} * tl.exp2({other})",
    "aten.heaviside.default": "tl.where({self} == 0, {values}, tl.where({self} > 0, 1, 0))",
    "aten.copysign.Tensor": "formulas.copysign({self}, {other})",
    "aten.fmax.default": "formulas.fmax({self}, {other})",
    "aten.fmin.default": "formulas.fmin({self}, {other})",
    "aten.angle.default": "tl.where({self} < 0, {pi}, tl.where({self} == {self}, 0.0, {self}))",
    "aten.logaddexp2.default": "formulas.logaddexp2({self}, {other})",
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
    "aten.isposinf.default": '{self} == float("inf")',
    "aten.isneginf.default": '{self} == float("-inf")',
    "aten.signbit.default": "formulas.is_negative({self})",
    "aten.isinf.default": 'tl.abs({self}) == float("inf")',
    "aten.isfinite.default": 'tl.abs({self}) < float("inf")',
    "aten.bitwise_not.default": "~{self}",
    "aten.bitwise_and.Tensor": "{self} & {other}",
    "aten.bitwise_or.Tensor": "{self} | {other}",
    "aten.bitwise_xor.Tensor": "{self} ^ {other}",
    **ACTIVATIONS,
}  # fmt: skip

_OF_WHOLE = {
    **dict.fromkeys((f"aten.{name}.default" for name in ("floor", "ceil", "trunc", "round")), "{self}"), **dict.fromkeys(("aten.sign.default", "aten.sgn.default"), "tl.where({self} > 0, 1, tl.where({self} < 0, -1, 0))"),
}  # fmt: skip  # whose results are whole numbers
_SCALAR_FORMS = {f"aten.{p}.Scalar": f"aten.{p}.Tensor" for p in (
    "add", "sub", "rsub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "remainder", "fmod", "lerp",
)}  # fmt: skip
_SCALAR_FORMS.update({f"aten.where.Scalar{form}": "aten.where.self" for form in ("", "Self", "Other")})
_SCALAR_FORMS.update({"aten.max.other": "aten.maximum.default", "aten.min.other": "aten.minimum.default", "aten.xlogy.Scalar_Other": "aten.xlogy.Tensor"})
_CONSTANTS = {"log10_of_2": math.log10(2), "pi": math.pi, "degree": math.pi / 180}
_DEFAULTS = {"aten.addcmul.default": {"value": 1}, "aten.addcdiv.default": {"value": 1}, **DEFAULTS}
_ORDERS = ("eq", "ne", "lt", "le", "gt", "ge")
_PREDICATES = (*_ORDERS, "logical_not", "logical_and", "logical_or", "logical_xor", "isnan", "isinf", "isposinf", "isneginf", "isfinite", "signbit")
_STEPS = ("floor", "ceil", "trunc", "round", "frac", "remainder", "fmod", "floor_divide")
COMPARISONS = frozenset(op for op in (*TEXTS, *_SCALAR_FORMS) if op.split(".")[1] in _PREDICATES)
RELATIONS = frozenset(op for op in COMPARISONS if op.split(".")[1] in _ORDERS)  # whose operands torch converts to one dtype
ROUNDS_NUMBERS = RELATIONS | {"aten.remainder.Scalar", "aten.fmod.Scalar", "aten.remainder.Tensor", "aten.fmod.Tensor"}  # numbers beside halves, to halves


def tells_apart(op: str, dtype: str) -> bool:
    """True for what may be another number where its operands are a rounding away: comparisons, steps, and conversions to whole numbers.

    Args:
        dtype: of the result.
    """
    return op in COMPARISONS or op.split(".")[1] in _STEPS or op.endswith("_mode") or op == "aten._to_copy.default" and dtype not in FLOATS


def pointwise_text(op: str, operands: dict[str, str], options: dict[str, object], dtype: str) -> str | None:
    """The expression of a pointwise op; None where there is none.

    Args:
        operands: schema name -> the text of each tensor, and of each number that stands for one.
        options: schema name -> what else the call has.
        dtype: of the result.
    """
    op = _SCALAR_FORMS.get(op, op)
    names = {key: f"({text})" if " " in text and not text.startswith("tl.") else text for key, text in operands.items()}
    if op in ("aten.add.Tensor", "aten.sub.Tensor", "aten.rsub.Tensor") and options.get("alpha", 1) != 1:
        key = "self" if op == "aten.rsub.Tensor" else "other"
        names[key] = f"{names['alpha']} * {names[key]}"
    if op == "aten.add.Tensor" and dtype == "bool":
        return f"{names['self']} | {names['other']}"
    own = BY_ARGUMENTS.get(op)
    if own is not None:
        return own(op, names, options, dtype)
    text = TEXTS.get(op) if dtype in FLOATS else _OF_WHOLE.get(op) or TEXTS.get(op)
    if text is None:
        return None
    known = {**{k: repr(v) if isinstance(v, int) else number_text(v, dtype) for k, v in _DEFAULTS.get(op, {}).items()}, **{k: number_text(v, dtype) for k, v in _CONSTANTS.items()}, **names}
    try:
        return text.format(**known)
    except KeyError:
        return None
