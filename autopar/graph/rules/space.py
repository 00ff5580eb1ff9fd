"""Pixels: padding, sampling at given places, pixel shuffles, sliding windows and the inverses of pooling. Batch and channels are free."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..node import Arg, input_names
from ..rule import LinearSets, Rule, Shape, Site
from .dims import ints, letters, operand

SELF = (("self",),)
GRAD = (("grad_output",),)
_ENDS = "only the ends of the dim are padded"
_ANY = "any position may be asked for"
_WINDOW = "the windows overlap the border of the pieces"
_BLOCK = "the pixels of a block stay together"


def _spatial_dims(site: Site) -> int:
    """2 for `reflection_pad2d`, from the op's name."""
    packet = site.node.op.split(".")[1]
    return next(n for n in (1, 2, 3) if f"{n}d" in packet)


def _pad_operands(site: Site, rank: int) -> tuple[str, str]:
    """Texts of the small and of the padded side."""
    padding = ints(site.arg("padding"))
    names = letters(rank)
    padded = [k // 2 for k, amount in enumerate(padding) if amount]
    small = [f"[{n}]" if rank - 1 - k in padded else n for k, n in enumerate(names)]
    large = [f"[out{k}]" if rank - 1 - k in padded else n for k, n in enumerate(names)]
    return operand(small), operand(large)


def _pad(site: Site) -> str:
    small, large = _pad_operands(site, len(site.inputs[0]))
    return f"{small} -> {large}"


def _pad_backward(site: Site) -> str:
    small, large = _pad_operands(site, len(site.outputs[0]))
    return f"grad_output: {large}, self: {small} -> {small}"


def _grid(site: Site) -> tuple[str, str, str]:
    """Texts of the image, of the grid and of what is sampled."""
    count = _spatial_dims(site)
    image, places = [f"[x{k}]" for k in range(count)], [f"y{k}" for k in range(count)]
    return operand(["n", "c", *image]), operand(["n", *places, "[xy]"]), operand(["n", "c", *places])


def _grid_sampler(site: Site) -> str:
    image, grid, out = _grid(site)
    return f"{image}, {grid} -> {out}"


def _grid_sampler_backward(site: Site) -> str:
    image, grid, out = _grid(site)
    return f"{out}, {image}, {grid} -> {image}, {grid}"


def _shuffle_sides(site: Site, factor: str) -> tuple[str, str]:
    r = site.arg(factor)
    return f"... (c [p:{r}] [q:{r}]) h w", f"... c (h [p:{r}]) (w [q:{r}])"


def _pixel_shuffle(site: Site) -> str:
    deep, wide = _shuffle_sides(site, "upscale_factor")
    return f"{deep} -> {wide}"


def _pixel_unshuffle(site: Site) -> str:
    deep, wide = _shuffle_sides(site, "downscale_factor")
    return f"{wide} -> {deep}"


def _channel_shuffle(site: Site) -> str:
    rest = operand(letters(len(site.inputs[0]) - 2, "x"))
    groups = site.arg("groups")
    return f"n ([g:{groups}] c) {rest} -> n (c [g:{groups}]) {rest}"


def _window_operands(site: Site, image: Shape) -> tuple[str, str]:
    """Texts of the image and of its windows in columns; windows that tile the image are free."""
    names = ("kernel_size", "stride", "padding", "dilation")
    (kh, kw), stride, padding, dilation = (many * 2 if len(many := ints(site.arg(name))) == 1 else many for name in names)
    batch = "n " if len(image) == 4 else ""
    high, wide = image[-2:]
    if stride == (kh, kw) and not any(padding) and dilation == (1, 1) and high % kh == 0 and wide % kw == 0:
        y, x = high // kh, wide // kw
        return f"{batch}c (y:{y} [i:{kh}]) (x:{x} [j:{kw}])", f"{batch}(c [i:{kh}] [j:{kw}]) (y:{y} x:{x})"
    return f"{batch}c [h] [w]", f"{batch}(c [k:{kh * kw}]) [l]"


def _im2col(site: Site) -> str:
    image, columns = _window_operands(site, site.inputs[0])
    return f"{image} -> {columns}"


def _col2im(site: Site) -> str:
    image, columns = _window_operands(site, site.outputs[0])
    return f"{columns} -> {image}"


def _local_image(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    return {"output_size": site.outputs[0][-2:]}


def _unpool(site: Site) -> str:
    count = _spatial_dims(site)
    lead = letters(len(site.inputs[0]) - count)
    small, large = (operand(lead + [f"[{side}{k}]" for k in range(count)]) for side in "xy")
    return f"{small}, {small} -> {large}"


def _fractional(site: Site) -> str:
    count = _spatial_dims(site)
    lead = ["n", "c"][2 - (len(site.inputs[0]) - count) :]
    large, small = (operand(lead + [f"[{side}{k}]" for k in range(count)]) for side in "xy")
    samples = operand([*(["1"] if len(lead) == 1 else []), *lead, "[u]"])
    return f"{large}, {samples} -> {small}, {small}"


def _fractional_backward(site: Site) -> str:
    count = _spatial_dims(site)
    lead = letters(len(site.outputs[0]) - count)
    large, small = (operand(lead + [f"[{side}{k}]" for k in range(count)]) for side in "xy")
    return f"grad_output: {small}, self: {large}, indices: {small} -> {large}"


def _first(site: Site) -> LinearSets:
    return ((input_names(site.node)[0],),)


def _pair(name: str, text: Callable[[Site], str], text_backward: Callable[[Site], str], why: str) -> tuple[Rule, Rule]:
    return (
        Rule(f"aten.{name}", text, _first, flops=0, why_whole=why),
        Rule(f"aten.{name}_backward", text_backward, GRAD, flops=0, why_whole=why),
    )


_ND = ("1d", "2d", "3d")

ROWS = (
    *(row for nd in _ND for kind in ("reflection", "replication") for row in _pair(f"{kind}_pad{nd}", _pad, _pad_backward, _ENDS)),
    *(Rule(f"aten.grid_sampler_{nd}", _grid_sampler, (("input",),), flops=8, why_whole=_ANY) for nd in _ND[1:]),
    *(Rule(f"aten.grid_sampler_{nd}_backward", _grid_sampler_backward, GRAD, flops=16, why_whole=_ANY) for nd in _ND[1:]),
    Rule("aten.pixel_shuffle", _pixel_shuffle, SELF, flops=0, why_whole=_BLOCK),
    Rule("aten.pixel_unshuffle", _pixel_unshuffle, SELF, flops=0, why_whole=_BLOCK),
    *(Rule(f"aten.{n}channel_shuffle", _channel_shuffle, SELF, flops=0, why_whole="the groups stay whole") for n in ("", "native_")),
    Rule("aten.im2col", _im2col, SELF, flops=0, why_whole=_WINDOW),
    Rule("aten.col2im", _col2im, SELF, flops=0, localise=_local_image, why_whole=_WINDOW),
    *(Rule(f"aten.max_unpool{nd}", _unpool, SELF, flops=0, why_whole=_ANY) for nd in _ND[1:]),
    *(Rule(f"aten.fractional_max_pool{nd}", _fractional, why_whole=_WINDOW) for nd in _ND[1:]),
    *(Rule(f"aten.fractional_max_pool{nd}_backward", _fractional_backward, GRAD, why_whole=_WINDOW) for nd in _ND[1:]),
)
