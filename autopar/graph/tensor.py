"""Values: one `Value` is one version of one tensor.

An in-place write never changes a value: it makes the next version of the same storage (`weight@0` -> `weight@1`), so that
what must wait for what is in the graph and nowhere else. Everything here is data; derived facts (uses, live ranges, costs) are
tables that functions return.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "complex64": 8, "complex128": 16,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


class Kind(enum.Enum):
    """What a value is to the person who trains: it decides who holds its bytes, and for how long."""

    __hash__ = object.__hash__  # enum's own is Python's, and these are in most keys

    PARAM = "param"
    BUFFER = "buffer"
    OPTIM = "optim"
    BATCH = "batch"
    GRAD = "grad"
    ACTIVATION = "activation"
    LOSS = "loss"


LOGITS_BLOCK = 1 << 20  # elements of logits on which the loss works at a time, where it is no kernel (`runtime.vocabulary`)
STATE_KINDS = frozenset({Kind.PARAM, Kind.BUFFER, Kind.OPTIM})


@dataclass(frozen=True, slots=True)
class Value:
    """One version of one tensor.

    Args:
        name: unique in its graph. A state is `storage@version` (`h.0.attn.weight@0`); everything else a short id (`mm_3`).
        storage: the storage it is a version of: a parameter's or buffer's own name in the model, `exp_avg:NAME` for the
            optimizer state `exp_avg` of parameter NAME, `grad:NAME` for a gradient; for activations equal to `name`.
        version: 0 for what enters the step; 1, 2, ... for what writes make of it.
        shape: in elements, whole (in a Graph) or local (in a Program). Never symbolic.
        dtype: torch's name without the prefix: `float32`, `bfloat16`, `int64`, `bool`.
        kind: see `Kind`.
    """

    name: str
    storage: str
    version: int
    shape: tuple[int, ...]
    dtype: str
    kind: Kind


def power_of_two(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(number - 1, 0).bit_length()


def num_elements(shape: tuple[int, ...]) -> int:
    """The number of elements of a tensor of this shape; 1 for a scalar."""
    return math.prod(shape)


def count_batch(batch: Sequence[tuple[tuple[int, ...], str]]) -> tuple[int, str] | None:
    """How many tokens or samples a batch has, and which of both: the elements of the first whole numbers where these have two dims, as texts have, else
    the first dim of these, or of the first input. None where no batch enters.

    Args:
        batch: shape and dtype of each input and target.
    """
    whole_numbers = [shape for shape, dtype in batch if dtype in ("int64", "int32")]
    shape = (whole_numbers or [shape for shape, _ in batch] or [None])[0]
    if shape is None:
        return None
    return (num_elements(shape), "tokens") if whole_numbers and len(shape) == 2 else ((*shape, 1)[0], "samples")


def size_bytes(value: Value) -> int:
    """Bytes of the value as a dense tensor of its own shape."""
    return num_elements(value.shape) * DTYPE_BYTES[value.dtype]
