"""Layouts: how a program on a GPU leaves its values in memory, so that its kernels read them where they lie.

In: a program whose groups are kernels. Out: the same, each kernel with the strides of those of its arguments and results that do not lie row by row (`Kernel.layouts`), and
which of them have memory of their own behind each of their rows (`Kernel.roomy`).

* a view has strides of its own (attention reads `[batch, heads, seq, d]` of rows that hold all heads);
* attention leaves what it makes as its query (key, value) lies;
* a linear on 16-bit numbers begins its rows at multiples of 16 bytes (`row_pitch`), which matmuls that read them need to be fast: with 50257 columns in a
  row NVIDIA's take four to six times as long (H200, cuBLAS of CUDA 13.0: 17.4, 12.0 and 11.2 ms where rows of 50264 and an even part of them take 2.5 each);
* a kernel leaves a result as the first of its arguments of that shape lies, as torch's own pointwise ops do;
* all else lies row by row, and what was expanded is copied.

Invariant: this decides nothing but speed. A kernel that gets an argument in another layout copies it first (`runtime.fused`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .blocks import WIDEST_TILE
from .graph import Graph, value_table
from .kernel import Kernel, is_kernel, takes_lists
from .node import Node, get_arg, packet_of
from .tensor import num_elements
from .view_strides import VIEWS, Strides, alike, packed, view_strides

ROW_BYTES = 16
LEAST_PITCHED = 1024  # columns: for narrower rows two products may cost what they save (an assumption)
_HALVES = {"bfloat16": 2, "float16": 2}
_ATTENTION = {"autopar.attention": ("query",), "autopar.attention_backward": ("query", "key", "value")}


@dataclass(frozen=True, slots=True)
class Laid:
    """How arguments and results of a kernel lie, by their names in it: as `Kernel.layouts` and `Kernel.roomy` say."""

    layouts: tuple[tuple[str, Strides], ...] = ()
    roomy: tuple[str, ...] = ()


def row_pitch(width: int, dtype: str) -> int:
    """Elements from one row of a linear's result to the next."""
    if dtype not in _HALVES or width < LEAST_PITCHED:
        return width
    unit = ROW_BYTES // _HALVES[dtype]
    return -(-width // unit) * unit


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of the memory in which a value lies, with what is behind its last row as behind the others."""
    if not num_elements(tuple(shape)):
        return 0
    between = min((stride for size, stride in zip(shape, strides) if size > 1 and stride > 1), default=1)
    behind = max(0, between - shape[-1]) if shape and shape[-1] > 1 and strides[-1] == 1 else 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) + behind


def lay_out(graph: Graph, kernels: Mapping[str, Kernel]) -> dict[int, Laid]:
    """How each kernel's arguments and results lie, by the place of its node.

    Args:
        kernels: by the op of their nodes.
    """
    values = value_table(graph)
    strides: dict[str, Strides] = {}  # of values that do not lie row by row
    places: dict[str, tuple[int, int]] = {}  # of views and of what does not lie row by row: elements of the memory before the first, and of all that memory

    def of(name: str) -> Strides:
        return strides.get(name) or packed(values[name].shape)

    def keep(name: str, found: Strides | None) -> None:
        if found is not None and not alike(values[name].shape, found, packed(values[name].shape)):
            strides[name] = found

    def place_of(name: str) -> tuple[int, int]:
        return places.get(name) or (0, span(values[name].shape, of(name)))

    found: dict[int, Laid] = {}
    for number, node in enumerate(graph.nodes):
        if is_kernel(node.op):
            kernel = kernels[node.op]
            rows = [(own, strides[name]) for own, name in zip(kernel.graph.inputs, node.inputs) if name in strides and 0 not in strides[name]]
            rows = [] if takes_lists(kernel) or kernel.any_shape else rows
            roomy = [own for own, name in zip(kernel.graph.inputs, node.inputs) if (own, strides.get(name)) in rows and _has_room(values[name].shape, strides[name], *place_of(name))]
            into = dict(kernel.into)
            for k, (own, name) in enumerate(zip(kernel.graph.outputs, node.outputs)):
                first = next((n for n in node.inputs if values[n].shape == values[name].shape), "")
                if rows and k not in into and first in strides and _is_distinct(values[name].shape, strides[first]):
                    rows.append((own, strides[first]))
                    strides[name] = strides[first]
                    roomy += [own] * _has_room(values[name].shape, strides[name], *place_of(name))
            found[number] = Laid(tuple(rows), tuple(roomy))
            continue
        packet = packet_of(node.op)
        if packet not in VIEWS and packet not in _ATTENTION and packet != "autopar.linear":
            continue
        for out, wanted in _made_by(node, [of(name) for name in node.inputs], [values[name].shape for name in node.inputs], {o: values[o].shape for o in node.outputs if o}).items():
            keep(out, wanted)
            if packet in VIEWS and wanted is not None:
                start, whole = place_of(node.inputs[0])
                places[out] = start + _skipped(node, packet.partition(".")[2], of(node.inputs[0]), values[node.inputs[0]].shape), whole
        if packet == "autopar.linear":
            shape, dtype = values[node.outputs[0]].shape, values[node.outputs[0]].dtype
            pitch = row_pitch(shape[-1], dtype)
            keep(node.outputs[0], (*(s // shape[-1] * pitch for s in packed(shape)[:-1]), 1))
    return found


def _made_by(node: Node, inputs: Sequence[Strides], shapes: Sequence[tuple[int, ...]], outs: Mapping[str, tuple[int, ...]]) -> dict[str, Strides | None]:
    """Strides of what a node makes; of what is not here nothing is known, or it lies row by row."""
    packet = packet_of(node.op)
    if packet in _ATTENTION:
        like = [_place(node, key) for key in _ATTENTION[packet]]
        return {out: _in_order(outs[out], inputs[k]) for out, k in zip(node.outputs, like) if out and len(outs[out]) == len(inputs[k])}
    if packet not in VIEWS or not inputs or len(node.outputs) != 1 or not node.outputs[0]:
        return {}
    return {node.outputs[0]: view_strides(node, packet.partition(".")[2], inputs[0], shapes[0], outs[node.outputs[0]])}


def _place(node: Node, key: str) -> int:
    arg = get_arg(node, key)
    return getattr(arg, "index", 0)


def _skipped(node: Node, word: str, strides: Strides, base: tuple[int, ...]) -> int:
    """Elements of the memory between the first of a tensor and the first of its view."""
    key = {"slice": "start", "select": "index"}.get(word)
    if key is None or not base:
        return 0
    dim, first = int(get_arg(node, "dim", 0) or 0) % len(base), int(get_arg(node, key, 0) or 0)  # type: ignore[call-overload]
    return min(max(first + base[dim] if first < 0 else first, 0), base[dim]) * strides[dim]


def _has_room(shape: tuple[int, ...], strides: Strides, start: int, whole: int) -> bool:
    """True where rows that kernels walk along lie one after the other, the last one's memory, too, as far as the next would begin.

    Args:
        start, whole: elements of the memory before the first, and of all that memory.
    """
    if len(shape) < 2 or shape[-1] <= WIDEST_TILE or strides[-1] != 1 or strides[-2] <= shape[-1]:
        return False
    rows = packed((*shape[:-1], strides[-2]))
    return alike(shape, strides, rows) and start + num_elements(shape[:-1]) * strides[-2] <= whole


def _in_order(shape: tuple[int, ...], strides: Strides) -> Strides:
    """Packed, the dims in the order in which a tensor with these strides has them."""
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], d))
    found, inner = [0] * len(shape), 1
    for d in reversed(order):
        found[d] = inner
        inner *= max(shape[d], 1)
    return tuple(found)


def _is_distinct(shape: tuple[int, ...], strides: Strides) -> bool:
    """True where every element has a place of its own, and most of the memory between them is theirs."""
    return 0 not in strides and span(shape, strides) <= 1.25 * num_elements(shape)
