"""Types and literals of Triton texts.

In: dtypes as graphs name them, numbers. Out: the types in which kernels compute and keep them, the numbers as kernels spell them.
"""

from __future__ import annotations

from math import inf

TYPES = {"float64": "tl.float64", "float32": "tl.float32", "bfloat16": "tl.float32", "float16": "tl.float32", "int64": "tl.int64", "int32": "tl.int32",
         "int16": "tl.int16", "int8": "tl.int8", "uint8": "tl.uint8", "bool": "tl.int1"}  # fmt: skip
LOWEST = {"float64": "-1.7976931348623157e+308", "float32": "-3.4028234663852886e+38"}  # at or below any logit that is a number
LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38, "float16": 65504.0}  # finite numbers
FLOATS = ("float64", "float32", "bfloat16", "float16")
HALVES = ("bfloat16", "float16")
SMALL = {"int16": (-(2**15), 2**15 - 1), "int8": (-128, 127), "uint8": (0, 255), "bool": (0, 1)}  # whole numbers that Triton reduces in int32: the least and the largest
_WHOLE = {"int64": (-(2**63), 2**63 - 1), "int32": (-(2**31), 2**31 - 1), **SMALL}


def identity_of(kind: str, dtype: str) -> str:
    """What a reduction (`Printer.reduce`) takes for an element that is none."""
    if kind == "sum":
        return "0.0" if dtype in FLOATS else "0"
    if dtype in FLOATS:
        return 'float("inf")' if kind == "min" else 'float("-inf")'
    return str(_WHOLE[dtype][kind == "min"])


def number_text(number: float | int, dtype: str) -> str:
    """A literal of a kernel: in float64 as such, for a bare one is rounded to float32."""
    if isinstance(number, float) and number in (inf, -inf):
        text = f'float("{"-" if number < 0 else ""}inf")'
    elif number != number:
        text = 'float("nan")'
    else:
        text = repr(float(number) if dtype in FLOATS else number)
    return f"tl.full((), {text}, tl.float64)" if dtype == "float64" else text


def type_text(dtype: str) -> str:
    """In Triton; of what an address is a bool has one bit."""
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"
