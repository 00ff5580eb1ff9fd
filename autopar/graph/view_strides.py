"""Strides of views: how a view lies where that which it views lies row by row or otherwise, and which views must be copies.

In: nodes of a graph and the strides of what they read. Out: strides, and names of values. A tensor in another shape is a view as long as its strides say so; what was expanded (keys that several
heads share, weights that meet each sample of a batch) has one element in many places, so in another shape it is as many elements, which a library's op reads and the backward pass keeps. Of what is turned
(`permute`) that is known where what it turns surely lies row by row: a weight, the batch, what a matmul or a lookup makes. A pointwise op leaves its result as its operands lie, and attention as its library wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .graph import Graph, value_table
from .kept import kept, kept_table
from .node import Node, get_arg, packet_of
from .tensor import Value

Strides = tuple[int, ...]

_SAME = ("reshape", "view", "_unsafe_view", "unsqueeze", "squeeze", "view_as")
VIEWS = frozenset(f"aten.{word}" for word in (*_SAME, "alias", "detach", "permute", "transpose", "t", "expand", "slice", "select"))
_LIBRARIES = ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.convolution", "autopar.linear", "autopar.attention")  # with their gradients; kernels of ours read what is there
_PACKED = frozenset(("aten.mm", "aten.bmm", "autopar.linear", "autopar.linear_input_grad", "autopar.linear_weight_grad", "autopar.embedding"))  # leave their results row by row


@kept
def find_copied(graph: Graph) -> frozenset[str]:
    """Views of what was expanded, or of what surely lies row by row, that must be copies, and that a matmul, a convolution or attention reads, itself or through further views."""
    strides = list_strides(graph)
    sure = {*graph.inputs}  # lies row by row, or is a view of what does
    copied: dict[str, str] = {}  # a copy, or a view of it -> the copy
    read: set[str] = set()
    for node in graph.nodes:
        packet = packet_of(node.op)
        if packet not in VIEWS:
            read |= {copied[name] for name in node.inputs if name in copied} if packet.startswith(_LIBRARIES) else set()
            sure.update(node.outputs if packet in _PACKED else ())
            continue
        (first, *_), (out,) = node.inputs, node.outputs
        if out not in strides and (first in sure or 0 in strides.get(first, ())):
            copied[out] = out
        elif first in copied:
            copied[out] = copied[first]
        if first in sure:
            sure.add(out)
    return frozenset(read)


@kept_table
def list_strides(graph: Graph) -> dict[str, Strides]:
    """The strides of views, where they need no copy and what they view lies row by row, or is such a view."""
    return follow_strides(graph, lambda *_: {})


def follow_strides(graph: Graph, made: Callable[[Node, Mapping[str, Value], Callable[[str], Strides]], Mapping[str, Strides]]) -> dict[str, Strides]:
    """The strides of views, where they need no copy.

    Args:
        made: (a node that is no view, all values, the strides of what it reads) -> the strides of what it leaves otherwise than row by row.
    """
    values = value_table(graph)
    found: dict[str, Strides] = {}

    def of(name: str) -> Strides:
        return found.get(name) or packed(values[name].shape)

    for node in graph.nodes:
        packet = packet_of(node.op)
        if packet not in VIEWS:
            found |= made(node, values, of)
            continue
        (first, *_), (out,) = node.inputs, node.outputs
        strides = view_strides(node, packet.partition(".")[2], of(first), values[first].shape, values[out].shape)
        if strides is not None:
            found[out] = strides
    return found


def alike(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """True where tensors of this shape with either strides lie in one way."""
    return all(size == 1 or a == b for size, a, b in zip(shape, one, other))


def packed(shape: Sequence[int]) -> Strides:
    """Row by row."""
    found, inner = [], 1
    for size in reversed(shape):
        found.append(inner)
        inner *= max(size, 1)
    return tuple(reversed(found))


def view_strides(node: Node, word: str, strides: Strides, base: tuple[int, ...], shape: tuple[int, ...]) -> Strides | None:
    """The strides of a view; None where it is none, or must copy."""
    if word in ("alias", "detach"):
        return strides
    if word in _SAME:
        return _reshaped(base, strides, shape)
    if word == "permute":
        return tuple(strides[int(d) % len(base)] for d in get_arg(node, "dims", ()))  # type: ignore[union-attr, arg-type]
    if word in ("transpose", "t"):
        a, b = (0, len(base) - 1) if word == "t" else (int(get_arg(node, k, d)) % len(base) for k, d in (("dim0", 0), ("dim1", 1)))  # type: ignore[call-overload]
        swapped = list(strides)
        swapped[a], swapped[b] = strides[b], strides[a]
        return tuple(swapped)
    if word == "expand":
        return expanded(base, strides, shape)
    if word == "slice" and base:
        dim, step = int(get_arg(node, "dim", 0) or 0) % len(base), int(get_arg(node, "step", 1) or 1)  # type: ignore[call-overload]
        return (*strides[:dim], strides[dim] * step, *strides[dim + 1 :])
    if word == "select" and base:
        dim = int(get_arg(node, "dim", 0) or 0) % len(base)  # type: ignore[call-overload]
        return (*strides[:dim], *strides[dim + 1 :])
    return None


def _reshaped(base: tuple[int, ...], strides: Strides, shape: tuple[int, ...]) -> Strides | None:
    """The strides of a tensor in another shape; None where it must be copied."""
    if 0 in base:
        return None
    found: list[int] = []
    sizes, steps = [s for s in base if s > 1], [t for s, t in zip(base, strides) if s > 1]
    wanted = list(shape)
    while sizes or wanted:  # the last dims of both that hold equally many elements, each time
        size, k, step = 1, len(sizes), steps[-1] if steps else 1
        taken: list[int] = []
        room = 1
        while wanted and (not taken or size != room or wanted[-1] == 1):
            taken.append(wanted.pop())
            room *= taken[-1]
            while size < room and k:
                k -= 1
                if size > 1 and steps[k] != size * step:
                    return None
                size *= sizes[k]
        if size != room:
            return None
        sizes, steps = sizes[:k], steps[:k]
        for one in taken:
            found.append(step)
            step *= one
    return tuple(reversed(found))


def expanded(base: tuple[int, ...], strides: Strides, shape: tuple[int, ...]) -> Strides:
    """The strides of a tensor that is expanded to a shape."""
    new = len(shape) - len(base)
    return tuple(0 if k < new or base[k - new] != size else strides[k - new] for k, size in enumerate(shape))


def is_copied(base: tuple[int, ...], strides: Strides, shape: tuple[int, ...]) -> bool:
    """True where a tensor in another shape must be a copy."""
    return _reshaped(base, strides, shape) is None
