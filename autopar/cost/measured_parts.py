"""Measured parts: of which families of `cost.rows` a node is, as the runtime runs it on `cpu` (`runtime.ops`, `runtime.vocabulary`).

In: an op with local sizes. Out: parts, each a family at a shape. What has no family of its own is pointwise, told from its bytes.
Invariant: the work of the parts is proportional to that of the node, so it may be divided among devices. Torch-free.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from ..graph.node import input_names, packet_of
from ..graph.rule import Site
from .attention import visible_pairs
from .rows import op_work

_LINEARS = frozenset(("autopar.linear", "autopar.linear_input_grad", "autopar.linear_weight_grad"))
_PLAIN = {"aten.mm": (0, 1), "aten.bmm": (0, 1), "aten.addmm": (1, 2), "aten.baddbmm": (1, 2)}  # their factors
_SUMS = frozenset((
    "aten.sum", "aten.mean", "aten.amax", "aten.amin", "aten.max", "aten.min", "aten.prod", "aten.any", "aten.all", "aten.argmax",
    "aten.argmin", "aten.var", "aten.var_mean", "aten.std", "aten.linalg_vector_norm", "aten.logsumexp",
))  # fmt: skip
# Pointwise ops that compute longer than they move bytes, as so many times `gelu` of the same bytes: CPU seconds at 2^17 float32 elements,
# each op beside gelu in one run of one thread (AMD EPYC with AVX2, torch 2.13.0, 2026-11-22). gelu itself is measured by every profile.
_SLOW = {
    "aten.exp": 1.5, "aten.log": 2.1, "aten.tanh": 4.6, "aten.erf": 2.8, "aten.sin": 2.9, "aten.sqrt": 0.8,
    "aten.sigmoid": 0.75, "aten.silu": 0.8,
}  # fmt: skip
_TANH_GELU = 2.8  # gelu(approximate="tanh"), measured likewise


class Part(NamedTuple):
    """A share of a node: `times` the family at each case's shape.

    Args:
        shapes: (cases, dims of the family).
    """

    family: str
    shapes: np.ndarray
    times: float | np.ndarray = 1.0


def node_parts(op: str, site: Site | None, elements: np.ndarray, num_inputs: int, flops: np.ndarray, moved: np.ndarray) -> list[Part]:
    """What the runtime runs for a node. Arguments as of `measured.node_seconds`."""
    packet = packet_of(op)
    size = np.maximum(elements, 1).astype(float)
    if packet in _LINEARS or packet in _PLAIN:
        return _products(packet, site, size, num_inputs)
    if site is not None:
        found = _attention(packet, site, size) or _convolution(packet, site, size, num_inputs, flops)
        found = found or _table_parts(packet, site, size, num_inputs)
        if found:
            return found
    return _pointwise(packet, site, size, np.maximum(moved, 1.0))


def _products(packet: str, site: Site | None, size: np.ndarray, num_inputs: int) -> list[Part]:
    """[m, k] x [k, n] told from the sizes of its operands; the shape of a row is that of the FORWARD product (`rows`)."""
    left, right, out = size[_PLAIN.get(packet, (0, 1))[0]], size[_PLAIN.get(packet, (0, 1))[1]], size[num_inputs]
    count = np.ones(size.shape[1])
    if packet in ("aten.bmm", "aten.baddbmm") and site is not None:
        b, m, n = (float(s) for s in site.outputs[0])
        k = float(site.inputs[_PLAIN[packet][0]][2])
        # a batch is divided before anything else is: the largest divisor by which all three shrank (`ops._local_batch`)
        count = np.maximum(1.0, b / np.minimum.reduce([b * m * k / left, b * k * n / right, b * m * n / out]))
    m, n, k = (np.sqrt(x * y / (z * count)) for x, y, z in ((left, out, right), (right, out, left), (left, right, out)))
    transposed = site is not None and bool(site.arg("transposed", False))
    if packet == "autopar.linear_weight_grad":  # out [o, i] = grad [tokens, o]^T input [tokens, i], or its transpose
        return [Part("matmul_weight_grad", np.stack([k, m, n], axis=1))]
    if packet in _PLAIN:  # torch's own, where linears may be oneDNN's; a batch as one product with the rows of all
        return [Part("matmul_plain", np.stack([k, m * count, n], axis=1))]
    if (packet == "autopar.linear") == transposed:  # the second factor as it lies: rows are summed over
        return [Part("matmul_input_grad", np.stack([m, k, n], axis=1))]
    return [Part("matmul", np.stack([m, n, k], axis=1))]


def _attention(packet: str, site: Site, size: np.ndarray) -> list[Part]:
    if packet not in ("autopar.attention", "autopar.attention_backward"):
        return []
    backward = packet.endswith("backward")
    query, keys, names = site.inputs[backward], site.inputs[backward + 1], input_names(site.node)
    causal, rows = bool(site.arg("is_causal", False)), np.full(size.shape[1], float(query[2]))
    local = size[names.index("rows")] if "rows" in names else rows
    heads = size[int(backward)] / (local * query[3])
    family = ("attention" if causal else "attention_full") + ("_backward" if backward else "")
    # of split rows the last rank has most pairs: a causal square of as many
    sequence = np.sqrt(2 * visible_pairs(local, np.array(float(keys[2])), rows - local) if causal else local * keys[2])
    return [Part(family, np.stack([heads, sequence, np.full(len(heads), float(query[3]))], axis=1))]


def _convolution(packet: str, site: Site, size: np.ndarray, num_inputs: int, flops: np.ndarray) -> list[Part]:
    """Of any number of spatial dims, as a square with as many places and taps; strides and groups by their FLOPs."""
    if packet not in ("aten.convolution", "aten.convolution_backward"):
        return []
    backward = packet.endswith("backward")
    x, w = site.inputs[1 if backward else 0], site.inputs[2 if backward else 1]
    y = site.inputs[0] if backward else site.outputs[0]
    local_x, local_w, local_y = (size[1], size[2], size[0]) if backward else (size[0], size[1], size[num_inputs])
    groups, taps, places = float(site.arg("groups", 1)), float(prod(w[2:])), float(prod(y[2:]))
    channels = np.sqrt(local_x * local_w / local_y * places / (prod(x[2:]) * taps * groups))  # in, of a group
    out = np.maximum(1.0, local_w / (channels * taps))
    batch = np.maximum(1.0, local_y / (out * places))
    side, kernel = np.full(len(batch), places**0.5), np.full(len(batch), taps**0.5)
    shapes = np.stack([batch, np.maximum(1.0, channels), out, side, kernel], axis=1)
    mask = site.arg("output_mask", (True, True, True)) if backward else (False, False)
    families = [f for f, seen in zip(("conv_input_grad", "conv_weight_grad"), mask) if seen] or ["conv"]
    work = len(families) * op_work("conv", "float32", tuple(shapes.T))[0]
    return [Part(family, shapes, flops / work) for family in families]  # 1 but for strides and transposed ones


def _table_parts(packet: str, site: Site, size: np.ndarray, num_inputs: int) -> list[Part]:
    """Norms, softmax, sums and the loss: (rows, columns)."""
    cases = size.shape[1]
    if packet in ("aten.native_layer_norm", "aten._fused_rms_norm") and site.arg("normalized_shape"):
        return [_table_part("layer_norm", size[0], np.full(cases, float(prod(site.arg("normalized_shape")))))]
    if packet in ("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward") and site.arg("normalized_shape"):
        return [_table_part("layer_norm_backward", size[1], np.full(cases, float(prod(site.arg("normalized_shape")))))]
    if packet == "aten.native_group_norm":
        return [_table_part("layer_norm", size[0], np.full(cases, prod(site.inputs[0][1:]) / float(site.arg("group", 1))))]
    if packet == "aten.native_group_norm_backward":
        return [_table_part("layer_norm_backward", size[0], np.full(cases, prod(site.inputs[0][1:]) / float(site.arg("group", 1))))]
    if packet in ("aten._softmax", "aten._log_softmax", "aten._softmax_backward_data", "aten._log_softmax_backward_data"):
        family = "softmax_backward" if packet.endswith("data") else "softmax"
        shape = site.inputs[0]
        return [_table_part(family, size[0], np.full(cases, float(shape[int(site.arg("dim", -1))] if shape else 1)))]
    if packet in ("autopar.sum_exp", "autopar.cross_entropy_backward"):
        # a softmax and the largest of it, of some of the classes of what goes in, too; the gradient is a softmax, of some of the classes with both, times in place
        is_sum = packet == "autopar.sum_exp"
        logits, tokens = (size[0], size[1]) if is_sum else (size[1], size[0])
        walks = np.where(logits < tokens * float(site.arg("num_classes" if is_sum else "num_rows", 0)), 2, int(is_sum))
        found = [_table_part("softmax", logits, logits / tokens), _table_part("row_sum", logits, logits / tokens)._replace(times=walks)]
        return found if is_sum else [*found, Part("add_into", _bytes(2 * logits))]
    if packet in _SUMS and num_inputs:
        ratio = np.maximum(1.0, size[0] / size[num_inputs])
        shape, dims = site.inputs[0], site.arg("dim", None)
        places = {int(d) % max(1, len(shape)) for d in ((dims,) if isinstance(dims, int) else dims or range(len(shape)))}
        long = {d for d, s in enumerate(shape) if s > 1}
        trailing = not long - places or min(places & long, default=0) > max(long - places)
        return [_table_part("row_sum", size[0], ratio) if trailing else _table_part("column_sum", size[0], size[num_inputs])]
    return []


def _table_part(family: str, size: np.ndarray, columns: np.ndarray) -> Part:
    columns = np.minimum(columns, size)
    return Part(family, np.stack([size / columns, columns], axis=1))


def _bytes(elements: np.ndarray) -> np.ndarray:
    """Of float32, in which the loss is computed."""
    return 4.0 * elements.reshape(-1, 1)


def _pointwise(packet: str, site: Site | None, size: np.ndarray, moved: np.ndarray) -> list[Part]:
    shapes = moved.reshape(-1, 1)
    if packet in ("aten.gelu", "aten.gelu_backward"):
        tanh = site is not None and site.arg("approximate", "none") == "tanh"
        return [Part(packet.removeprefix("aten."), shapes, _TANH_GELU if tanh else 1.0)]
    if packet in _SLOW:
        return [Part("gelu", shapes, _SLOW[packet])]
    if packet == "aten._to_copy" and site is not None and "bfloat16" in f"{site.dtypes} {site.arg('dtype')}":
        return [Part("cast", shapes)]
    return [Part("pointwise", shapes)]
