"""Uneven: which nodes may work on chunks that do not divide a dim, so that states can be cut among any number of ranks.

In: a graph and its signatures. Out: the signatures, those of such nodes marked. A piece of such chunks has padding behind the dim's end
(`sharding.Shard.short`), and nobody may mistake it for values. So these nodes may take them:

    element by element    in the update (or a sum over the turns): what comes of padding is padding
    sums                  in the update, of what is zero in its padding: a norm for clipping

What is brought to such chunks from outside, a gradient, has zeros there (`runtime.digits`); ops that make zero of zeros keep them; of states nothing is
known, as an update may leave anything there. Everywhere else sizes must divide, so no value of the model's own forward and backward has padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .graph import Graph
from .node import Node, Phase, get_arg, packet_of
from .rule import Signature
from .tensor import STATE_KINDS
from .turns import ACCUMULATE

_KEEP_ZEROS = frozenset(("aten.neg", "aten.abs", "aten.sqrt", "aten.sign", "aten.square", "aten._to_copy", "aten.clone", ACCUMULATE))  # of one tensor
_SUMS = frozenset(("aten.sum",))
_ADD = frozenset(("aten.add", "aten.sub"))


def mark_uneven(graph: Graph, signatures: Sequence[Signature]) -> tuple[Signature, ...]:
    """The signatures; of nodes that may take chunks which do not divide, with `uneven`. Equal ones stay one object."""
    entering = set(graph.inputs)
    padded = {v.name for v in graph.values if v.name in entering and v.kind in STATE_KINDS}  # with anything in their padding, or not known
    marked: dict[int, Signature] = {}
    found: list[Signature] = []
    for node, signature in zip(graph.nodes, signatures):
        taken = _takes(node, signature, padded)
        if taken and not _keeps_zeros(node, signature, padded):
            padded.update(out for out in node.outputs if out)
        if taken and id(signature) not in marked:
            marked[id(signature)] = replace(signature, uneven=True)
        found.append(marked[id(signature)] if taken else signature)
    return tuple(found)


def _takes(node: Node, signature: Signature, padded: set[str]) -> bool:
    if node.phase is not Phase.UPDATE and node.op != ACCUMULATE or not signature.factors:
        return False
    dims = (*signature.inputs, *signature.outputs)
    if any(f.whole or f.runs for f in signature.factors) or any(len(names) > 1 for rows in dims for names in rows):
        return False
    every = {f.name for f in signature.factors}
    if packet_of(node.op) in _SUMS:
        return signature.rule.reduce == "sum" and not padded.intersection(node.inputs)
    return all({name for names in rows for name in names} == every for rows in signature.outputs)


def _keeps_zeros(node: Node, signature: Signature, padded: set[str]) -> bool:
    """True where zeros in the padding of what comes in are zeros in that of what goes out, and what comes in has them."""
    packet = packet_of(node.op)
    full = [name for name, rows in zip(node.inputs, signature.inputs) if any(rows)]
    if padded.intersection(full):
        return False
    numbers = [get_arg(node, name) for name in ("self", "other")]
    numbers = [number for number in numbers if isinstance(number, (int, float))]
    if packet in _KEEP_ZEROS or packet in _SUMS or packet == "aten.mul":
        return True
    if packet in _ADD:
        return len(full) == len(node.inputs) and not any(numbers)
    if packet == "aten.div":
        return node.inputs[:1] == tuple(full) and get_arg(node, "rounding_mode") is None
    return packet == "aten.clamp" and _holds_zero(get_arg(node, "min"), get_arg(node, "max"))


def _holds_zero(low: object, high: object) -> bool:
    return all(bound is None or (isinstance(bound, (int, float)) and sign * bound >= 0) for bound, sign in ((low, -1), (high, 1)))
