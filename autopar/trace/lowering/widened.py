"""Widened: what an update reads in float32 before and after a number that is made of all gradients is widened twice.

Clipping by one norm reads every gradient for the norm, and again when it is known. In 16 bits both read the gradient in float32: one cast for both would be written, held until the norm is there (4 bytes
a parameter), and read. A cast costs nothing where its reader does it. In: nodes in order. Out: the same nodes, where such a cast stands once before those readers, and once before these.
"""

from __future__ import annotations

from ...graph.node import Phase
from .draft import DraftNode, Val, node_inputs, stand_in

_CAST = "aten._to_copy.default"


def widen_again(nodes: list[DraftNode]) -> list[DraftNode]:
    """The nodes with their casts, in an order in which they can run."""
    late = _list_late(nodes)
    casts = {id(node.outs[0]): node for node in nodes if _is_widening(node)}
    early = {id(v) for node in nodes if id(node) not in late for v in node_inputs(node) if id(v) in casts}
    again: dict[int, Val] = {}
    found = []
    for node in nodes:
        for v in node_inputs(node) if id(node) in late else ():
            if id(v) in early and id(v) not in again:
                first = casts[id(v)]
                second = DraftNode(first.op, first.args, first.phase, first.path, first.source)
                second.outs = [again.setdefault(id(v), Val(v.shape, v.dtype, second, 0, v.entry, v.kind))]
                found.append(second)
        if id(node) in late and again:
            node.args = tuple((key, stand_in(value, again)) for key, value in node.args)
        found.append(node)
    return found


def _is_widening(node: DraftNode) -> bool:
    if node.phase is not Phase.UPDATE or node.op != _CAST or not node.outs or node.outs[0] is None or not node.outs[0].shape:
        return False
    read, made = node_inputs(node)[0].dtype, node.outs[0].dtype
    return read.is_floating_point and made.is_floating_point and read.itemsize < made.itemsize


def _list_late(nodes: list[DraftNode]) -> set[int]:
    """The update's nodes that wait for a number which the update makes of something larger."""
    waiting: set[int] = set()  # values
    found = set()
    for node in nodes:
        if node.phase is not Phase.UPDATE:
            continue
        read = node_inputs(node)
        if any(id(v) in waiting for v in read):
            found.add(id(node))
            waiting.update(id(v) for v in node.outs if v is not None)
        elif any(v.shape for v in read):
            waiting.update(id(v) for v in node.outs if v is not None and not v.shape)
    return found
