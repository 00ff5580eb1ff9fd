"""Pooling and resampling: batch and channels are free; a spatial dim only where the windows tile it and no index counts positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..node import Arg, input_names
from ..rule import LinearSets, Rule, Shape, Site
from .dims import ints, letters, operand

_HALO = "needs a halo: windows overlap the border of the pieces, or positions are counted from the start"
GRAD = (("grad_output",),)
SELF = (("self",),)


def _num_spatial(site: Site) -> int:
    """2 for `avg_pool2d`, from the op's name."""
    packet = site.node.op.split(".")[1]
    return next(n for n in (1, 2, 3) if f"{n}d" in packet)


def _max_pool(site: Site) -> str:
    count = _num_spatial(site)
    lead = letters(len(site.inputs[0]) - count)
    x, y = ([f"[{side}{k}]" for k in range(count)] for side in "xy")
    return f"{operand(lead + x)} -> {operand(lead + y)}, {operand(lead + y)}"


def _max_pool_backward(site: Site) -> str:
    count = _num_spatial(site)
    lead = letters(len(site.inputs[0]) - count)
    x, y = (operand(lead + [f"[{side}{k}]" for k in range(count)]) for side in "xy")
    return f"grad_output: {y}, self: {x}, indices: {y} -> {x}"


def _tiled(long: Shape, short: Shape, count: int, is_tiled: tuple[bool, ...]) -> tuple[str, str]:
    """Texts of the large and of the small side: `(y [k])` and `y` where blocks of k tile the dim."""
    lead = letters(len(long) - count)
    outer, inner = list(lead), list(lead)
    for k, (size, small) in enumerate(zip(long[-count:], short[-count:])):
        outer.append(f"(y{k}:{small} [k{k}:{size // small}])" if is_tiled[k] else f"[x{k}]")
        inner.append(f"y{k}" if is_tiled[k] else f"[y{k}]")
    return operand(outer), operand(inner)


def _avg_operands(site: Site, long: Shape, short: Shape) -> tuple[str, str]:
    count = _num_spatial(site)
    spread = tuple(ints(site.arg(name, default)) for name, default in (("kernel_size", 1), ("stride", ()), ("padding", 0)))
    kernel, stride, padding = (arg * count if len(arg) == 1 else arg for arg in spread)
    stride = stride or kernel
    tiled = tuple(
        kernel[k] == stride[k] and not padding[k] and long[-count:][k] == short[-count:][k] * kernel[k] for k in range(count)
    )
    return _tiled(long, short, count, tiled)


def _avg_pool(site: Site) -> str:
    long, short = _avg_operands(site, site.inputs[0], site.outputs[0])
    return f"{long} -> {short}"


def _avg_pool_backward(site: Site) -> str:
    long, short = _avg_operands(site, site.outputs[0], site.inputs[0])
    return f"{short}, {long} -> {long}"


def _divides(long: Shape, short: Shape, count: int) -> tuple[bool, ...]:
    return tuple(big % small == 0 for big, small in zip(long[-count:], short[-count:]))


def _adaptive(site: Site) -> str:
    count = _num_spatial(site)
    long, short = site.inputs[0], site.outputs[0]
    left, right = _tiled(long, short, count, _divides(long, short, count))
    return f"{left} -> {right}"


def _adaptive_backward(site: Site) -> str:
    count = _num_spatial(site)
    long, short = site.outputs[0], site.inputs[0]
    left, right = _tiled(long, short, count, _divides(long, short, count))
    return f"{right}, {left} -> {left}"


def _local_output_size(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    return {"output_size": site.outputs[0][-_num_spatial(site) :]}


def _nearest(site: Site) -> str:
    count = _num_spatial(site)
    short, long = site.inputs[0], site.outputs[0]
    left, right = _tiled(long, short, count, _divides(long, short, count))
    return f"{right} -> {left}"


def _nearest_backward(site: Site) -> str:
    count = _num_spatial(site)
    long, short = site.inputs[0], site.outputs[0]
    left, right = _tiled(long, short, count, _divides(long, short, count))
    return f"{left} -> {right}"


def _smooth(site: Site) -> str:
    count = _num_spatial(site)
    lead = letters(len(site.inputs[0]) - count)
    x, y = (operand(lead + [f"[{side}{k}]" for k in range(count)]) for side in "xy")
    return f"{x} -> {y}"


def _local_resample(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    if site.arg("output_size") is None:
        return {}
    return {"output_size": site.outputs[0][-_num_spatial(site) :]}


def _local_resample_backward(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    large, count = site.inputs[0], _num_spatial(site)
    size = {} if site.arg("output_size") is None else {"output_size": large[-count:]}
    return {**size, "input_size": site.outputs[0]}


def _first(site: Site) -> LinearSets:
    return ((input_names(site.node)[0],),)


def _resample(name: str, text: Callable[[Site], str], text_backward: Callable[[Site], str]) -> tuple[Rule, Rule]:
    return (
        Rule(f"aten.{name}", text, _first, flops=4, localise=_local_resample, why_whole=_HALO),
        Rule(f"aten.{name}_backward", text_backward, GRAD, flops=4, localise=_local_resample_backward, why_whole=_HALO),
    )


_ND = ("1d", "2d", "3d")
_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
           "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")  # fmt: skip

ROWS = (
    *(Rule(f"aten.max_pool{nd}_with_indices", _max_pool, why_whole=_HALO) for nd in _ND[1:]),
    *(Rule(f"aten.max_pool{nd}_with_indices_backward", _max_pool_backward, GRAD, why_whole=_HALO) for nd in _ND[1:]),
    *(Rule(f"aten.adaptive_max_pool{nd}", _max_pool, why_whole=_HALO) for nd in _ND[1:]),
    *(Rule(f"aten.adaptive_max_pool{nd}_backward", _max_pool_backward, GRAD, why_whole=_HALO) for nd in _ND[1:]),
    *(Rule(f"aten.avg_pool{nd}", _avg_pool, SELF, why_whole=_HALO) for nd in _ND),
    *(Rule(f"aten.avg_pool{nd}_backward", _avg_pool_backward, GRAD, why_whole=_HALO) for nd in _ND[1:]),
    *(Rule(f"aten._adaptive_avg_pool{nd}", _adaptive, SELF, localise=_local_output_size, why_whole=_HALO) for nd in _ND[1:]),
    *(Rule(f"aten._adaptive_avg_pool{nd}_backward", _adaptive_backward, GRAD, why_whole=_HALO) for nd in _ND[1:]),
    *(row for nd in _ND for row in _resample(f"upsample_nearest{nd}", _nearest, _nearest_backward)),
    *(row for nd in _ND for row in _resample(f"_upsample_nearest_exact{nd}", _nearest, _nearest_backward)),
    *(row for name in _SMOOTH for row in _resample(name, _smooth, _smooth)),
)
