"""Random numbers in kernels.

In: a draw of a kernel's graph, and an element of it. Out: its text: `runtime.random` at the element's place in the whole tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.node import Node, get_arg
from ...graph.tensor import num_elements
from .index import Index, coordinates

if TYPE_CHECKING:
    from .triton_text import Printer

_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # of a mantissa, as `runtime.random` draws them


def draw_text(printer: Printer, node: Node, index: Index, mask: str) -> str:
    """The text of a random number: its place follows from the places of this rank's elements in each dim."""
    out, size = printer.values[node.outputs[0]], get_arg(node, "size")
    places = []
    for dim, (at, ref) in enumerate(zip(coordinates(index, out.shape), get_arg(node, "coords"))):  # type: ignore[call-overload, arg-type]
        inner = num_elements(tuple(size)[dim + 1 :])  # type: ignore[arg-type]
        text = printer.at(node.inputs[ref.index], at, mask)
        places.append(text if inner == 1 else f"{text} * {inner}")
    seed = printer.at(node.inputs[get_arg(node, "seed").index], Index())  # type: ignore[union-attr]
    return f"uniform({seed}, {' + '.join(places) or '0'}, {_BITS[out.dtype]})"
