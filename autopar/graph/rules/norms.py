"""Normalisations and softmax: the dims that are averaged over are whole; the gradients of weight and bias sum over all others."""

from __future__ import annotations

from collections.abc import Mapping

from ..node import Arg
from ..rule import Rule, Shape, Site
from .dims import hold, ints, letters, normal_dim, operand, whole_operand

_NORM = "its mean and variance need all of it"
_SOFT = "the sum of exponentials needs all of it"


def _layer_norm_operands(site: Site) -> tuple[str, str, str]:
    """Texts of the input, of its statistics and of the weight."""
    rank, inner = len(site.inputs[0]), len(ints(site.arg("normalized_shape")))
    names = letters(rank)
    outer, normed = names[: rank - inner], hold(names, range(rank))[rank - inner :]
    return operand(outer + normed), operand(outer + ["1"] * inner), operand(normed)


def _layer_norm(site: Site) -> str:
    x, stat, weight = _layer_norm_operands(site)
    return f"input: {x}, weight: {weight}, bias: {weight} -> {x}, {stat}, {stat}"


def _layer_norm_backward(site: Site) -> str:
    x, stat, weight = _layer_norm_operands(site)
    inputs = f"grad_out: {x}, input: {x}, mean: {stat}, rstd: {stat}, weight: {weight}, bias: {weight}"
    return f"{inputs} -> {x}, {weight}, {weight}"


def _rms_norm(site: Site) -> str:
    x, stat, weight = _layer_norm_operands(site)
    return f"input: {x}, weight: {weight} -> {x}, {stat}"


def _rms_norm_backward(site: Site) -> str:
    x, stat, weight = _layer_norm_operands(site)
    return f"grad_out: {x}, input: {x}, rstd: {stat}, weight: {weight} -> {x}, {weight}"


def _group_norm_operands(site: Site) -> tuple[str, str]:
    groups = site.arg("group")
    spatial = whole_operand(len(site.inputs[0]) - 2, "x")
    channels = f"(g:{groups} [c])"
    return f"n {channels} {spatial}", channels


def _group_norm(site: Site) -> str:
    x, channels = _group_norm_operands(site)
    return f"input: {x}, weight: {channels}, bias: {channels} -> {x}, n g, n g"


def _group_norm_backward(site: Site) -> str:
    x, channels = _group_norm_operands(site)
    inputs = f"grad_out: {x}, input: {x}, mean: n g, rstd: n g, weight: {channels}"
    return f"{inputs} -> {x}, {channels}, {channels}"


def _local_groups(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    groups = site.arg("group")
    assert isinstance(groups, int)
    batch, channels = site.inputs[0][:2]
    return {"N": batch, "C": channels, "group": groups * channels // whole_inputs[0][1]}


def _softmax(site: Site) -> str:
    rank = len(site.outputs[0])
    x = operand(hold(letters(rank), (normal_dim(site.arg("dim"), rank),)))
    return ", ".join([x] * len(site.inputs)) + f" -> {x}"


ROWS = (
    Rule("aten.native_layer_norm", _layer_norm, flops=8, why_whole=_NORM),
    Rule("aten.native_layer_norm_backward", _layer_norm_backward, (("grad_out",),), flops=16, why_whole=_NORM),
    Rule("aten._fused_rms_norm", _rms_norm, flops=5, why_whole=_NORM),
    Rule("aten._fused_rms_norm_backward", _rms_norm_backward, (("grad_out",),), flops=10, why_whole=_NORM),
    Rule("aten.native_group_norm", _group_norm, flops=8, localise=_local_groups, why_whole=_NORM),
    Rule("aten.native_group_norm_backward", _group_norm_backward, (("grad_out",),), flops=16, localise=_local_groups, why_whole=_NORM),
    Rule("aten._safe_softmax", _softmax, flops=5, why_whole=_SOFT),
    Rule("aten._softmax", _softmax, flops=5, why_whole=_SOFT),
    Rule("aten._log_softmax", _softmax, flops=5, why_whole=_SOFT),
    Rule("aten._softmax_backward_data", _softmax, (("grad_output",),), flops=4, why_whole=_SOFT),
    Rule("aten._log_softmax_backward_data", _softmax, (("grad_output",),), flops=4, why_whole=_SOFT),
)
