"""Totals: what a loop over the parameters adds up, number by number, is one sum of them all; constants of a tensor's shape are numbers.

In: the live nodes of a draft. Out: nodes of the update in the form in which optimizers that stack their numbers have them: `total = total + p.grad.square().sum()` is `cat` and `sum`
(so with `|`, `&`, `maximum` and `minimum`), so that however many parameters there are, each does the same, and one op what is of all of them. `zeros_like(p)` beside a tensor of that shape is a
number that all parameters share. Sums are added in another order than the loop's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from ...graph.node import Phase
from .draft import DraftNode, Val, const, node_inputs

_ANY = ("aten.any.default", (), False)
_ALL = ("aten.all.default", (), True)
# op of two numbers -> the op of a list of them, its arguments, and the number that changes nothing
_TOTALS: Mapping[str, tuple[str, tuple[tuple[str, object], ...], object]] = {
    "aten.add.Tensor": ("aten.sum.dim_IntList", (("dim", (0,)),), 0),
    "aten.bitwise_or.Tensor": _ANY, "aten.logical_or.default": _ANY, "aten.bitwise_and.Tensor": _ALL, "aten.logical_and.default": _ALL,
    "aten.maximum.default": ("aten.amax.default", (("dim", (0,)),), None), "aten.minimum.default": ("aten.amin.default", (("dim", (0,)),), None),
}  # fmt: skip
_LEAST = 3  # numbers; two are one op as they are
_POINTWISE = frozenset((
    "aten.where.self", "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.maximum.default", "aten.minimum.default",
))  # fmt: skip


def join_totals(nodes: Sequence[DraftNode], roots: Sequence[Val]) -> list[DraftNode]:
    """The nodes with each total of the update as one op; the steps towards it are left for dead.

    Args:
        roots: what the step returns.
    """
    uses = Counter(id(value) for value in [*roots, *(v for node in nodes for v in node_inputs(node))])
    kept: list[DraftNode] = []
    steps = {id(node.outs[0]): node for node in nodes if _is_step(node)}
    inner = {id(v) for node in steps.values() for v in node_inputs(node) if id(v) in steps and uses[id(v)] == 1 and v.node.op == node.op and v.dtype == node.outs[0].dtype}
    for node in nodes:
        total = next((v for v in node.outs if id(v) in steps and id(v) not in inner), None)
        numbers = _numbers(node, inner) if total is not None else []
        if total is None or len(numbers) < _LEAST or len({v.dtype for v in numbers}) > 1:
            kept.append(node)
            continue
        views = [_new(node, "aten.view.default", (("self", v), ("size", (1,))), (1,), v.dtype, v.node.path if v.node is not None else "") for v in numbers]
        listed = _new(node, "aten.cat.default", (("tensors", tuple(view.outs[0] for view in views)),), (len(views),), total.dtype, "")
        op, args, _ = _TOTALS[node.op]
        made = DraftNode(op, (("self", listed.outs[0]), *args), node.phase, "", node.source, [total])
        total.node = made
        kept += [*views, listed, made]
    return kept


def _is_step(node: DraftNode) -> bool:
    """True for a number made of two, in the update."""
    if node.phase is not Phase.UPDATE or node.op not in _TOTALS or node.outs[0] is None or node.outs[0].shape or any(key not in ("self", "other") for key, _ in node.args):
        return False
    made = node.outs[0].dtype
    return (made == torch.bool if _TOTALS[node.op] in (_ANY, _ALL) else made.is_floating_point) and all(isinstance(v, Val) or v == _TOTALS[node.op][2] for _, v in node.args)


def _numbers(node: DraftNode, inner: set[int]) -> list[Val]:
    """What a total is of, in order, without what changes nothing."""
    found: list[Val] = []
    todo = [value for _, value in reversed(node.args)]
    while todo:
        value = todo.pop()
        if isinstance(value, Val) and id(value) in inner:
            todo += [v for _, v in reversed(value.node.args)]
        elif isinstance(value, Val) and not _is_number(value, _TOTALS[node.op][2]):
            found.append(value)
    return found


def _is_number(value: Val, number: object) -> bool:
    return number is not None and value.node is not None and value.node.op == "aten.full.default" and dict(value.node.args)["fill_value"] == number


def thin_constants(nodes: Sequence[DraftNode]) -> list[DraftNode]:
    """The nodes with constants of the update as numbers where another operand has their shape and dtype; the large ones are left for dead."""
    kept: list[DraftNode] = []
    numbers: dict[tuple[object, torch.dtype], Val] = {}
    for node in nodes:
        out = node.outs[0] if len(node.outs) == 1 else None
        if node.phase is Phase.UPDATE and node.op in _POINTWISE and out is not None and out.shape:
            for value in [v for v in node_inputs(node) if v.shape and v.node is not None and v.node.op == "aten.full.default"]:
                others = [v for v in node_inputs(node) if v is not value]
                if value.dtype != out.dtype or not any(v.shape == out.shape and v.dtype == out.dtype and v.node is not value.node for v in others):
                    continue
                fill = dict(value.node.args)["fill_value"]
                if (repr(fill), value.dtype) not in numbers:
                    made = _new(node, "aten.full.default", (("size", ()), ("fill_value", fill), ("dtype", const(value.dtype))), (), value.dtype, "")
                    numbers[repr(fill), value.dtype] = made.outs[0]
                    kept.append(made)
                node.args = tuple((key, numbers[repr(fill), value.dtype] if v is value else v) for key, v in node.args)
        kept.append(node)
    return kept


def _new(like: DraftNode, op: str, args: tuple[tuple[str, object], ...], shape: tuple[int, ...], dtype: torch.dtype, path: str) -> DraftNode:
    node = DraftNode(op, args, like.phase, path, like.source)
    node.outs = [Val(shape, dtype, node)]
    return node
