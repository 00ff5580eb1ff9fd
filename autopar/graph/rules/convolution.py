"""Convolutions of any number of spatial dims, plain, grouped, depthwise and transposed.

Batch and channels split: output channels like a column-parallel matmul, input channels like a row-parallel one (the bias owed), groups
as a batch. A spatial dim splits only where the windows tile it (patch embeddings, 1x1 kernels): others need a halo.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ..node import Arg
from ..rule import Rule, Shape, Site
from .dims import ints

_HALO = "needs a halo: windows overlap the border of the pieces"


def _per_dim(arg: Arg, count: int) -> tuple[int, ...]:
    many = ints(arg)
    return many * count if len(many) == 1 else many


def _spatial(site: Site, before: Shape, kernel: Shape, after: Shape) -> tuple[str, str, str]:
    """Texts of the spatial dims of input, weight and output."""
    count = len(kernel)
    strides, paddings = _per_dim(site.arg("stride"), count), _per_dim(site.arg("padding"), count)
    dilations = _per_dim(site.arg("dilation"), count)
    if site.arg("transposed"):
        right, middle, left = _tiles(after, kernel, before, strides, paddings, dilations)
    else:
        left, middle, right = _tiles(before, kernel, after, strides, paddings, dilations)
    return left, middle, right


def _tiles(long: Shape, kernel: Shape, short: Shape, strides: Shape, paddings: Shape, dilations: Shape) -> tuple[str, str, str]:
    outer, middle, inner = [], [], []
    for k, size in enumerate(kernel):
        is_tiled = size == strides[k] and not paddings[k] and (dilations[k] == 1 or size == 1) and long[k] == short[k] * size
        outer.append(f"(y{k}:{short[k]} [k{k}:{size}])" if is_tiled else f"[x{k}]")
        middle.append(f"[k{k}]")
        inner.append(f"y{k}" if is_tiled else f"[y{k}]")
    return " ".join(outer), " ".join(middle), " ".join(inner)


def _operands(site: Site, before: Shape, weight: Shape, after: Shape) -> tuple[str, str, str, str]:
    """Texts of input, weight, output and bias."""
    x, k, y = _spatial(site, before[2:], weight[2:], after[2:])
    groups = site.arg("groups")
    inside, outside = ("i", "o") if groups == 1 else (f"(g:{groups} i)", f"(g:{groups} o)")
    kernel = f"{inside} o {k}" if site.arg("transposed") else f"{outside} i {k}"
    return f"n {inside} {x}", kernel, f"n {outside} {y}", outside


def _convolution(site: Site) -> str:
    x, weight, y, bias = _operands(site, site.inputs[0], site.inputs[1], site.outputs[0])
    return f"input: {x}, weight: {weight}, bias: {bias} -> {y}"


def _convolution_backward(site: Site) -> str:
    grad, before, weight = site.inputs
    x, kernel, y, bias = _operands(site, before, weight, grad)
    return f"{y}, {x}, {kernel} -> {x}, {kernel}, {bias} {{i}}"  # the bias has no input channels: the same for all of them


def _groups(site: Site, before: Shape, weight: Shape, after: Shape) -> int:
    return after[1] // weight[1] if site.arg("transposed") else before[1] // weight[1]


def _local_groups(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    return {"groups": _groups(site, site.inputs[0], site.inputs[1], site.outputs[0])}


def _local_backward(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    grad, before, weight = site.inputs
    sizes = None if site.arg("bias_sizes") is None else (grad[1],)
    return {"bias_sizes": sizes, "groups": _groups(site, before, weight, grad)}


def _flops(site: Site) -> float:
    weight = site.inputs[1]
    positions = site.inputs[0] if site.arg("transposed") else site.outputs[0]
    return 2.0 * prod(positions) * prod(weight[1:])


def _backward_flops(site: Site) -> float:
    grad, before, weight = site.inputs
    mask = site.arg("output_mask")
    assert isinstance(mask, tuple)
    return 2.0 * prod(before if site.arg("transposed") else grad) * prod(weight[1:]) * (bool(mask[0]) + bool(mask[1]))


ROWS = (
    Rule("aten.convolution", _convolution, owed=("bias",), flops=_flops, localise=_local_groups, why_whole=_HALO),
    Rule("aten.convolution_backward", _convolution_backward, flops=_backward_flops, localise=_local_backward, why_whole=_HALO),
)
