"""Spellings of views that copy, and views with several results: the row of the plain view, or one made of it.

Tracing writes most of these as slices and views; they have rows for graphs that come another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import gcd

from ..node import Arg
from ..rule import Rule, Shape, Site
from . import slices, views
from .dims import hold, letters, normal_dim, operand, whole_operand

SELF = (("self",),)

# the copying spelling of each view
_COPIES = {
    "alias": "alias_copy", "detach": "detach_copy", "as_strided": "as_strided_copy", "expand": "expand_copy", "permute": "permute_copy",
    "view.default": "view_copy.default", "t": "t_copy", "transpose": "transpose_copy", "squeeze": "squeeze_copy",
    "unsqueeze": "unsqueeze_copy", "unfold": "unfold_copy", "slice": "slice_copy", "select": "select_copy", "diagonal": "diagonal_copy",
}  # fmt: skip


def _pieces(site: Site) -> str:
    """A dim cut into runs: what is inside of their common chunk is free."""
    rank = len(site.inputs[0])
    dim = normal_dim(site.arg("dim", 0), rank)
    names, whole = letters(rank), site.inputs[0][dim]
    sizes = [shape[dim] for shape in site.outputs]
    chunk = gcd(*sizes)
    if len(sizes) == 1:
        texts = ["c", "c"]
    elif chunk > 1:
        texts = [f"([g{k}:{size // chunk}] c:{chunk})" for k, size in enumerate((whole, *sizes))]
    else:
        texts = [f"[piece{k}]" for k in range(len(sizes) + 1)]
    operands = [operand((*names[:dim], text, *names[dim + 1 :])) for text in texts]
    return f"{operands[0]} -> {', '.join(operands[1:])}"


def _local_sizes(name: str) -> Callable[[Site, tuple[Shape, ...]], Mapping[str, Arg]]:
    """The argument `name` lists the sizes of the runs."""

    def localise(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
        dim = normal_dim(site.arg("dim", 0), len(whole_inputs[0]))
        return {name: tuple(shape[dim] for shape in site.outputs)}

    return localise


def _local_size(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    """`split_size` is the size of every run but the last."""
    dim = normal_dim(site.arg("dim", 0), len(whole_inputs[0]))
    size = site.arg("split_size")
    assert isinstance(size, int)
    return {"split_size": min(size, whole_inputs[0][dim]) * site.inputs[0][dim] // whole_inputs[0][dim]}


def _unbind(site: Site) -> str:
    rank = len(site.inputs[0])
    dim = normal_dim(site.arg("dim", 0), rank)
    names = letters(rank)
    return f"{operand(hold(names, (dim,)))} -> " + ", ".join([operand(names[:dim] + names[dim + 1 :])] * len(site.outputs))


def _narrow(site: Site) -> str:
    rank = len(site.inputs[0])
    dim = normal_dim(site.arg("dim"), rank)
    is_all = site.inputs[0] == site.outputs[0]
    left = hold(letters(rank), () if is_all else (dim,))
    right = [name if is_all or k != dim else "[run]" for k, name in enumerate(left)]
    return f"{operand(left)} -> {operand(right)}"


def _local_narrow(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    return {"length": site.outputs[0][normal_dim(site.arg("dim"), len(whole_inputs[0]))]}


def _runs(sizes: list[int], name: str) -> list[str]:
    """Texts of dims that are put one after the other, and of the dim that they make: what is inside of their common chunk is free."""
    chunk = gcd(*sizes)
    if chunk == 1:
        return [f"[{name}{k}]" for k in range(len(sizes) + 1)]
    return [f"([{name}{k}:{size // chunk}] {name}:{chunk})" for k, size in enumerate((*sizes, sum(sizes)))]


def _block_diag(site: Site) -> str:
    sides = [(1,) * (2 - len(shape)) + shape for shape in site.inputs]
    rows, columns = (_runs([side[k] for side in sides], name) for k, name in enumerate(("row", "col")))
    left = [operand((row, column)[2 - len(shape) :]) for row, column, shape in zip(rows, columns, site.inputs)]
    return f"{', '.join(left)} -> {rows[-1]} {columns[-1]}"


def _as_strided_scatter(site: Site) -> str:
    x = whole_operand(len(site.inputs[0]), "x")
    return f"{x}, {whole_operand(len(site.inputs[1]), 'y')} -> {x}"


_RUN = "the runs have no common chunk"
_PLAIN = {row.op: row for row in (*views.ROWS, *slices.ROWS)}

ROWS = (
    *(replace(_PLAIN[f"aten.{name}"], op=f"aten.{copy}") for name, copy in _COPIES.items()),
    *(Rule(f"aten.{name}", _pieces, SELF, flops=0, localise=_local_size, why_whole=_RUN) for name in ("split.Tensor", "unsafe_split")),
    *(
        Rule(f"aten.{name}", _pieces, SELF, flops=0, localise=_local_sizes("split_sizes"), why_whole=_RUN)
        for name in ("split_with_sizes", "unsafe_split_with_sizes", "split_with_sizes_copy")
    ),
    *(Rule(f"aten.{name}", _unbind, SELF, flops=0, why_whole="each index is a result of its own") for name in ("unbind", "unbind_copy")),
    Rule("aten.narrow_copy", _narrow, SELF, flops=0, localise=_local_narrow, why_whole="the run lies on some ranks only"),
    Rule("aten.block_diag", _block_diag, (("tensors",),), flops=0, why_whole="the place of a block counts all blocks before it"),
    Rule("aten.as_strided_scatter", _as_strided_scatter, (("self", "src"),), flops=0, why_whole="its strides are those of all memory"),
)
