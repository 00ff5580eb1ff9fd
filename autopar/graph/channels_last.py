"""Pictures whose channels lie last: what a convolution of such makes lies so, too, and what is computed of it element by element.

In: a graph whose ops run one after the other, as on a CPU. Out: strides. Source: `determine_backend_memory_format` in torch's aten/src/ATen/native/Convolution.cpp: where x lies channels last (what was turned for a norm and back), y
does, and of the gradients that of x and of windows with several channels; what is computed of pictures that lie so is left so (torch 2.13.0, CPU). Nothing is said of volumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .graph import Graph
from .kept import kept_table
from .node import Node, Ref, get_arg, packet_of
from .tensor import Value
from .view_strides import Strides, follow_strides, packed

_PICTURE = 4  # dims: samples, channels, rows, columns
_CONVOLUTIONS = ("aten.convolution", "aten.convolution_backward")
_OWN = ("aten.clone", "aten.contiguous")  # lie as they are asked to


def channels_last(shape: Sequence[int]) -> Strides:
    """The strides of a picture whose channels lie last."""
    samples, rows, columns, channels = packed([shape[k] for k in (0, 2, 3, 1)])
    return samples, channels, rows, columns


def lies_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether torch takes a picture's channels to lie last (`is_channels_last_strides_2d` in its c10/core/MemoryFormat.h), which also says so of some with one pixel, or one channel."""
    if len(shape) != _PICTURE or strides[1] == 0:
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        if shape[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * shape[dim]
    return True


@kept_table
def list_lying(graph: Graph) -> dict[str, Strides]:
    """The strides of views, and of pictures whose channels lie last."""
    return follow_strides(graph, _left_last)


def _left_last(node: Node, values: Mapping[str, Value], strides: Callable[[str], Strides]) -> dict[str, Strides]:
    packet, shapes = packet_of(node.op), {name: values[name].shape for name in (*node.inputs, *node.outputs) if name}
    if packet in _CONVOLUTIONS:
        place = get_arg(node, "input")
        x = node.inputs[place.index if isinstance(place, Ref) else 0]
        if not lies_last(shapes[x], strides(x)):
            return {}
        return {out: channels_last(shapes[out]) for out in node.outputs if out and len(shapes[out]) == _PICTURE}
    if not packet.startswith("aten.") or packet in _OWN or len(node.outputs) != 1:
        return {}
    out = node.outputs[0]
    same = [name for name in node.inputs if name and shapes[name] == shapes[out]]
    return {out: channels_last(shapes[out])} if same and all(lies_last(shapes[out], strides(name)) for name in same) else {}
