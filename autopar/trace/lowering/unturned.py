"""Unturned: what an update adds up of a whole tensor it adds up as the tensor lies.

Muon turns what it makes of a tall matrix's gradient, and divides it by its norm: a sum of the squares of what was turned. Such a sum is of all elements, whatever their order. In one shape with the momentum
that it is made of it is one kernel with it, which rewrites the momentum where it is; in another shape the kernel would leave the new momentum in memory of its own, to be copied. In: nodes in order. Out: the
same nodes, where a reduction of everything reads element by element what was turned before, and nobody else reads what lies between, without turning. Added up in another order than the model's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from ...graph.node import Phase, packet_of
from .draft import DraftNode, Val, node_inputs, resolve_op, stand_in

_PERMUTE, _CAST = "aten.permute.default", "aten._to_copy"
_REDUCTIONS = frozenset(f"aten.{name}" for name in ("sum", "mean", "amax", "amin", "any", "all", "count_nonzero"))


def unturn_sums(nodes: Sequence[DraftNode], roots: Sequence[Val]) -> list[DraftNode]:
    """The nodes with such reductions unturned; what only they read is left for dead.

    Args:
        roots: what the step returns.
    """
    uses = Counter(id(v) for v in [*roots, *(v for node in nodes for v in dict.fromkeys(node_inputs(node)))])
    found: list[DraftNode] = []
    for node in nodes:
        if _is_of_everything(node):
            [turned] = node_inputs(node)
            if (dims := _dims_of(turned, uses)) is not None:
                found += (again := _unturn(turned, dims))[1]
                node.args = tuple((key, stand_in(value, {id(turned): again[0]})) for key, value in node.args)
        found.append(node)
    return found


def _is_of_everything(node: DraftNode) -> bool:
    """True for a node of the update that reduces all dims of what it reads."""
    read = node_inputs(node)
    if node.phase is not Phase.UPDATE or packet_of(node.op) not in _REDUCTIONS or len(read) != 1 or len(node.outs) != 1 or len(read[0].shape) < 2:
        return False
    dims = dict(node.args).get("dim")
    over = dims if isinstance(dims, tuple) else () if dims is None else (dims,)
    return not over or {int(d) % len(read[0].shape) for d in over} == {*range(len(read[0].shape))}


def _dims_of(value: Val, uses: Mapping[int, int]) -> tuple[int, ...] | None:
    """How all that a value is made of element by element was turned; None where nothing was, or not all alike, or somebody else reads what lies between."""
    node = value.node
    if node is None or node.phase is not Phase.UPDATE or len(node.outs) != 1:
        return None
    if node.op == _PERMUTE:
        return tuple(dict(node.args)["dims"])
    pointwise = packet_of(node.op) == _CAST or node.op.startswith("aten.") and torch.Tag.pointwise in resolve_op(node.op).tags
    wide = [v for v in node_inputs(node) if v.shape]
    if not pointwise or uses[id(value)] != 1 or not wide or any(v.shape != value.shape for v in wide):
        return None
    ways = {_dims_of(v, uses) for v in wide}
    return ways.pop() if len(ways) == 1 else None


def _unturn(value: Val, dims: tuple[int, ...]) -> tuple[Val, list[DraftNode]]:
    """A value as it was before it was turned so, and the nodes that make it."""
    node = value.node
    assert node is not None
    if node.op == _PERMUTE:
        return dict(node.args)["self"], []
    made: dict[int, Val] = {}
    nodes: list[DraftNode] = []
    for v in node_inputs(node):
        if v.shape and id(v) not in made:
            made[id(v)], before = _unturn(v, dims)
            nodes += before
    again = DraftNode(node.op, tuple((key, stand_in(arg, made)) for key, arg in node.args), node.phase, node.path, node.source)
    shape = next(made[id(v)].shape for v in node_inputs(node) if v.shape)
    again.outs = [Val(shape, value.dtype, again, 0, value.entry, value.kind)]
    return again.outs[0], [*nodes, again]
