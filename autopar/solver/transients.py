"""Transients: what a reshard holds while it is under way, beside the value as it was made and the copy that it ends with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cost.wires import step_held_bytes
from ..graph.reshard import Step, reshard_steps
from ..graph.reshard_pairs import reshard_pairs
from ..graph.sharding import Sharding, local_elements
from ..graph.tensor import DTYPE_BYTES, Value, num_elements


def transient_bytes(value: Value, source: Sharding, target: Sharding, sizes: tuple[int, ...]) -> int:
    """Bytes at the worst step of a reshard, over those of its result: inner results, and buffers that a collective packs into."""
    width = DTYPE_BYTES[value.dtype]
    result = local_elements(value.shape, target, sizes) * width
    worst = 0
    for number, step in enumerate(reshard_steps(value.shape, source, target, sizes)):
        before = num_elements(step.local_in) * width if number else 0  # the first step reads the value itself
        worst = max(worst, before + num_elements(step.local_out) * width + _held(step, value.dtype, sizes))
    return max(0, worst - result)


def transient_matrix(value: Value, sources: Sequence[Sharding], targets: Sequence[Sharding], sizes: tuple[int, ...]) -> np.ndarray:
    """`transient_bytes` of every source to every target; 0 where there is no way."""
    width = DTYPE_BYTES[value.dtype]
    results = np.array([local_elements(value.shape, t, sizes) for t in targets], dtype=np.int64)
    worst = np.zeros(len(sources) * len(targets), np.int64)
    for step in reshard_pairs(value.shape, sources, targets, sizes).steps:
        held = step.elements_out + step.held_elements + (0 if step.first else step.elements_in)  # the first step reads the value itself
        worst[step.pairs] = np.maximum(worst[step.pairs], held)
    return np.maximum(0, worst.reshape(len(sources), len(targets)) - results) * width


def _held(step: Step, dtype: str, sizes: tuple[int, ...]) -> int:
    ends = (step.from_dim, step.from_stride), (step.to_dim, step.to_stride)
    return step_held_bytes(step.kind, step.local_in, step.local_out, dtype, sizes[step.axis], ends)
