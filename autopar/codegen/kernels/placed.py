"""Values made of pieces: concatenations, paddings, the gradients of slices and of selected entries.

In: a printer, a node, the index of an element of its result. Out: the element's text: which piece it lies in, and there the piece's element, or what lies around the pieces.
Each piece has a window in some dims (`_Window`); its operand is asked for at the place in the window, and read there only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...graph.node import Node, get_arg
from ...graph.tensor import num_elements
from .index import Index, coordinates, flatten, variable

if TYPE_CHECKING:
    from .triton_text import Printer

_DEEPEST = 16  # expressions within one another: Python parses no more than some 200


@dataclass(frozen=True, slots=True)
class _Window:
    """Places `start`, `start + step`, ... of a dim: `count` of them. Those before 0 and behind the dim's end are cut off."""

    dim: int
    start: int
    count: int
    step: int = 1


def placed_text(printer: Printer, node: Node, index: Index, mask: str) -> str | None:
    """The text of an element; None for other nodes."""
    packet, shape = node.op.split(".")[1], printer.values[node.outputs[0]].shape
    if packet == "cat":
        return _cat(printer, node, index, mask, shape)
    if packet == "constant_pad_nd":
        windows, around = _padding(printer, node), printer.number(get_arg(node, "value", 0) or 0, node.outputs[0])
    elif packet == "slice_backward":
        windows, around = (_slice(printer, node, shape),), printer.number(0, node.outputs[0])
    elif packet == "select_backward":
        dim = int(get_arg(node, "dim")) % len(shape)  # type: ignore[arg-type]
        windows, around = (_Window(dim, int(get_arg(node, "index")) % shape[dim], 1),), printer.number(0, node.outputs[0])  # type: ignore[arg-type]
    else:
        return None
    test, places = _enter(printer, index, coordinates(index, shape), windows, shape, mask)
    piece = printer.values[node.inputs[0]].shape
    inner = places if packet != "select_backward" else [p for dim, p in enumerate(places) if dim != windows[0].dim]
    text = printer.at(node.inputs[0], flatten(inner, piece), test)
    return text if test == mask else f"tl.where({test}, {text}, {around})"


def _cat(printer: Printer, node: Node, index: Index, mask: str, shape: Sequence[int]) -> str:
    dim, start, pieces = int(get_arg(node, "dim", 0)) % len(shape), 0, []  # type: ignore[arg-type]
    for name in node.inputs:
        piece = printer.values[name].shape
        if num_elements(piece):
            test, places = _enter(printer, index, coordinates(index, shape), (_Window(dim, start, piece[dim]),), shape, mask)
            pieces.append((test, printer.at(name, flatten(places, piece), test)))
            start += piece[dim]
    text = pieces[-1][1]
    for number, (test, piece_text) in enumerate(reversed(pieces[:-1]), 1):
        text = f"tl.where({test}, {piece_text}, {text})"
        if number % _DEEPEST == 0:
            text = printer.named(printer.scope_of(index, test), ("joined", node.name, index, mask, number), node.outputs[0], text)
    return text


def _padding(printer: Printer, node: Node) -> tuple[_Window, ...]:
    """Of the last dim first: (before, behind) of each dim; negative numbers cut off."""
    piece, pad = printer.values[node.inputs[0]].shape, get_arg(node, "pad")
    dims = range(len(piece) - 1, len(piece) - 1 - len(pad) // 2, -1)  # type: ignore[arg-type]
    return tuple(_Window(dim, int(before), piece[dim]) for dim, before in zip(dims, pad[::2]))  # type: ignore[index, call-overload]


def _slice(printer: Printer, node: Node, shape: Sequence[int]) -> _Window:
    dim = int(get_arg(node, "dim", 0)) % len(shape)  # type: ignore[arg-type]
    start = int(get_arg(node, "start", 0) or 0)  # type: ignore[arg-type]
    start = min(max(start + (shape[dim] if start < 0 else 0), 0), shape[dim])
    return _Window(dim, start, printer.values[node.inputs[0]].shape[dim], int(get_arg(node, "step", 1) or 1))  # type: ignore[arg-type]


def _enter(
    printer: Printer, index: Index, places: Sequence[Index], windows: Sequence[_Window], shape: Sequence[int], mask: str
) -> tuple[str, list[Index]]:
    """(what holds where an element lies in all windows, its place there)."""
    found, scope = list(places), printer.scope_of(index)
    for w in windows:
        at, end = places[w.dim], w.start + (w.count - 1) * w.step + 1
        tests = [f"({at.text()} >= {w.start})"] if w.start > 0 else []
        tests += [f"({at.text()} < {end})"] if end < shape[w.dim] else []
        if w.count == 1 and tests:
            tests = [f"({at.text()} == {w.start})"]
        elif w.step > 1 and w.count > 1:
            tests.append(f"(({at.text()} - {w.start}) % {w.step} == 0)")
        if not tests:
            found[w.dim] = at + -w.start
            continue
        mask = printer.named(scope, ("inside", index, w, mask), "inside", " & ".join([*tests, *([mask] if mask else [])]))
        if w.count == 1:
            found[w.dim] = Index()
            continue
        text = (at + -w.start).text()
        place = printer.named(scope, ("place", at, w), "place", f"({text}) // {w.step}" if w.step > 1 else text)
        printer.base[place] = frozenset(b for n in at.variables() for b in printer.base.get(n, frozenset({n})))
        found[w.dim] = variable(place, w.count)
    return mask, found
