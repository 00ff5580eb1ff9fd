"""Types and literals of Triton texts.

In: dtypes as graphs name them, numbers. Out: the types in which kernels compute and keep them, the dtype in which torch compares several, the numbers as kernels spell them.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from math import copysign, inf, isfinite

TYPES = {"float64": "tl.float64", "float32": "tl.float32", "bfloat16": "tl.float32", "float16": "tl.float32", "int64": "tl.int64", "int32": "tl.int32",
         "int16": "tl.int16", "int8": "tl.int8", "uint8": "tl.uint8", "bool": "tl.int1"}  # fmt: skip
LOWEST = {"float64": "-1.7976931348623157e+308", "float32": "-3.4028234663852886e+38"}  # at or below any logit that is a number
LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38, "float16": 65504.0}  # finite numbers
FLOATS = ("float64", "float32", "bfloat16", "float16")
HALVES = ("bfloat16", "float16")
SMALL = {"int16": (-(2**15), 2**15 - 1), "int8": (-128, 127), "uint8": (0, 255), "bool": (0, 1)}  # whole numbers that Triton reduces in int32: the least and the largest
_BEYOND = {"bfloat16": 3.3961775292304601e38, "float16": 65520.0}  # rounded to infinity
_WHOLE = {"int64": (-(2**63), 2**63 - 1), "int32": (-(2**31), 2**31 - 1), **SMALL}


def identity_of(kind: str, dtype: str) -> str:
    """What a reduction (`Printer.reduce`) takes for an element that is none."""
    if kind == "sum":
        return "0.0" if dtype in FLOATS else "0"
    if dtype in FLOATS:
        return 'float("inf")' if kind == "min" else 'float("-inf")'
    return str(_WHOLE[dtype][kind == "min"])


def common_dtype(wide: Sequence[str], scalars: Sequence[str], numbers: Sequence[float | int]) -> str:
    """The dtype in which torch compares: of tensors with dims, but where tensors without any, or after these numbers, are of a higher kind (bools, whole numbers, floats).

    Source: torch.result_type, ATen/native/TypeProperties.cpp.
    """
    levels = wide, scalars, ["float32" if isinstance(n, float) else "int64" for n in numbers]
    return functools.reduce(lambda high, low: low if _kind(low) > _kind(high) else high, (functools.reduce(_promoted, level) for level in levels if level))


def _kind(dtype: str) -> int:
    return 2 if dtype in FLOATS else int(dtype != "bool")


def _promoted(a: str, b: str) -> str:
    """The least dtype that has the numbers of both; of a whole and a float one the float one."""
    apart = {("int8", "uint8"): "int16", ("bfloat16", "float16"): "float32"}
    return apart.get((min(a, b), max(a, b))) or min(a, b, key=list(TYPES).index)


def as_kept(number: float | int, dtype: str) -> float | int:
    """A number as a tensor of this dtype has it: rounded to float32 and then to the nearest half, to the even one of two; of whole numbers counted on from the other end."""
    if dtype in _WHOLE and dtype != "bool" and isfinite(number):
        least, most = _WHOLE[dtype]
        return (int(number) - least) % (most - least + 1) + least
    if dtype not in HALVES or not isfinite(number):
        return number
    if abs(number) >= _BEYOND["bfloat16"]:
        return copysign(inf, number)
    [bits], [single] = (struct.unpack(kind, struct.pack("f", number)) for kind in "If")
    if dtype == "float16":
        return copysign(inf, number) if abs(single) >= _BEYOND[dtype] else struct.unpack("e", struct.pack("e", single))[0]
    return struct.unpack("f", struct.pack("I", bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000))[0]


def converted(text: str, dtype: str, wanted: str, rounds: bool = False) -> str:
    """The text of a value of one dtype in the type in which another is computed.

    Args:
        rounds: as a half, where that is wanted.
    """
    if rounds and wanted in HALVES and dtype != wanted:
        text, dtype = f"{text if TYPES[dtype] == 'tl.float32' else f'{text}.to(tl.float32)'}.to(tl.{wanted})", ""
    return text if TYPES.get(dtype) == TYPES[wanted] else f"{text}.to({TYPES[wanted]})"


def number_text(number: float | int, dtype: str) -> str:
    """A literal of a kernel: in float64 as such, for a bare one is rounded to float32; whole numbers as their dtype has them."""
    if isinstance(number, float) and number in (inf, -inf):
        text = f'float("{"-" if number < 0 else ""}inf")'
    elif number != number:
        text = 'float("nan")'
    else:
        text = repr(float(number) if dtype in FLOATS else as_kept(number, dtype))
    return f"tl.full((), {text}, tl.float64)" if dtype == "float64" else text


def type_text(dtype: str) -> str:
    """In Triton; of what an address is a bool has one bit."""
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"
