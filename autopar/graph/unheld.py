"""Unheld: what an update makes that needs no storage of its own, as its kernels make it piece by piece, or where the old version of a state is.

In: a graph whose `state.write` nodes say where new versions go. Out: names. Adam's steps are torch's own (`graph.adam`); other updates are kernels that work element by element (`graph.fusion`),
on a GPU in registers, on a CPU in pieces (`runtime.fused.in_pieces`). Told by the text of the graph alone, and rather too little: the nodes of a module that work element by element on tensors of one
shape, as far as no way leads from one to another through anything else (a norm of all gradients), and nothing is summed up of what they make (such kernels run whole).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from .adam import list_unheld_adam
from .graph import Graph, producer_table, use_table, value_table
from .node import Node, Phase, packet_of
from .tensor import Value

_ELEMENTWISE = frozenset(
    f"aten.{packet}"
    for packet in (
        "_to_copy", "abs", "add", "addcdiv", "addcmul", "bitwise_and", "bitwise_not", "bitwise_or", "ceil", "clamp", "clamp_max", "clamp_min", "cos", "div", "eq", "exp", "floor", "ge", "gt",
        "isfinite", "isinf", "isnan", "le", "lerp", "log", "logical_and", "logical_not", "logical_or", "lt", "maximum", "minimum", "mul", "ne", "neg", "pow", "reciprocal", "round", "rsqrt",
        "sgn", "sigmoid", "sign", "sin", "sqrt", "sub", "tanh", "where",
    )
)  # fmt: skip


def list_unheld(graph: Graph) -> frozenset[str]:
    """What of an update's values is never held whole."""
    values, makers = value_table(graph), producer_table(graph)
    parts: dict[object, set[int]] = {}
    for i, node in enumerate(graph.nodes):
        if (shape := _one_shape(node, values)) is not None:
            parts.setdefault((node.path, shape), set()).add(i)
    found = set(list_unheld_adam(graph))
    uses = use_table(graph)
    ends = {graph.loss, *graph.outputs, *(name for _, name in graph.grads), *(new for _, new in graph.updates)}
    into = {node.inputs[1]: node.inputs[0] for node in graph.nodes if node.op == "state.write" and node.phase is Phase.UPDATE}
    for nodes in parts.values():
        level = _levels(graph, makers, nodes)
        whole = {level[i] for i in nodes for out in graph.nodes[i].outputs for k, _ in uses[out] if k not in nodes and graph.nodes[k].op != "state.write" and graph.nodes[k].phase is Phase.UPDATE}
        for i in nodes:
            here = level[i]
            if here in whole:
                continue
            for out in graph.nodes[i].outputs:
                inside = all(level.get(k) == here or graph.nodes[k].op == "state.write" for k, _ in uses[out])
                if not inside or not uses[out] or out in ends and out not in into:  # what nobody reads is no kernel's
                    continue
                if out not in into or _goes_there(graph, uses, level, here, into[out], values[out], values):
                    found.add(out)
    return frozenset(found)


def _one_shape(node: Node, values: Mapping[str, Value]) -> tuple[int, ...] | None:
    """The shape on which a node of the update works element by element, beside numbers; None of another node."""
    if node.phase is not Phase.UPDATE or packet_of(node.op) not in _ELEMENTWISE or len(node.outputs) != 1:
        return None
    shape = values[node.outputs[0]].shape
    return shape if shape and all(values[name].shape in ((), shape) for name in node.inputs) else None


def _levels(graph: Graph, makers: Mapping[str, tuple[int, int]], nodes: Collection[int]) -> dict[int, int]:
    """Of each of these nodes, how often a way to it has left them and come back."""
    own: dict[int, int] = {}
    outside: dict[int, int] = {}  # nodes that are none of them -> the level at which such a way came to them
    for i, node in enumerate(graph.nodes):
        if node.phase is not Phase.UPDATE:
            continue
        before = [makers[name][0] for name in node.inputs if name in makers]
        if i in nodes:
            own[i] = max([0, *(own[k] for k in before if k in own), *(outside[k] + 1 for k in before if k in outside)])
        elif reached := [*(own[k] for k in before if k in own), *(outside[k] for k in before if k in outside)]:
            outside[i] = max(reached)
    return own


def _goes_there(
    graph: Graph, uses: Mapping[str, Sequence[tuple[int, int]]], level: Mapping[int, int], here: int, old: str, new: Value, values: Mapping[str, Value]
) -> bool:
    """True where a new version is written over the old one as it is made: nobody else of the update reads that."""
    return (values[old].shape, values[old].dtype) == (new.shape, new.dtype) and all(level.get(k) == here for k in _late(graph, uses, old))


def _late(graph: Graph, uses: Mapping[str, Sequence[tuple[int, int]]], old: str) -> Iterator[int]:
    return (k for k, _ in uses[old] if graph.nodes[k].phase is Phase.UPDATE and graph.nodes[k].op != "state.write")
