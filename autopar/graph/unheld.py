"""Unheld: what an update makes that needs no storage of its own, as its kernels make it piece by piece, or where the old version of a state is.

In: a graph whose `state.write` nodes say where new versions go. Out: names. Adam's steps are torch's own (`graph.adam`); other updates are kernels that work element by element (`graph.fusion`),
on a GPU in registers, on a CPU in pieces (`runtime.fused.in_pieces`). Told by the text of the graph alone, and rather too little: the nodes of a module that work element by element on tensors of one
shape, as far as no way leads from one to another through anything else (a norm of all gradients), and nothing is summed up of what they make (such kernels run whole: there the place of what the next op
alone reads is its result's, `list_written_over`).
"""

from __future__ import annotations

from collections.abc import Mapping

from .adam import list_unheld_adam
from .graph import Graph, producer_table, use_table, value_table
from .kept import kept
from .node import Node, Phase, Ref, get_arg, packet_of
from .tensor import Value
from .written_over import list_replaceable, reads_once

ELEMENTWISE = frozenset(
    f"aten.{packet}"
    for packet in (
        "_to_copy", "abs", "add", "addcdiv", "addcmul", "bitwise_and", "bitwise_not", "bitwise_or", "ceil", "clamp", "clamp_max", "clamp_min", "cos", "div", "eq", "exp", "floor", "ge", "gt",
        "isfinite", "isinf", "isnan", "le", "lerp", "log", "logical_and", "logical_not", "logical_or", "lt", "maximum", "minimum", "mul", "ne", "neg", "pow", "reciprocal", "round", "rsqrt",
        "sgn", "sigmoid", "sign", "sin", "sqrt", "sub", "tanh", "where",
    )
)  # fmt: skip


@kept
def list_unheld(graph: Graph) -> frozenset[str]:
    """What of an update's values is never held whole."""
    values, uses, part = value_table(graph), use_table(graph), _parts(graph)
    ends = {graph.loss, *graph.outputs, *(name for _, name in graph.grads), *(new for _, new in graph.updates)}
    into = {node.inputs[1]: node.inputs[0] for node in graph.nodes if node.op == "state.write" and node.phase is Phase.UPDATE}

    def readers(name: str) -> list[int]:
        return [k for k, _ in uses[name] if graph.nodes[k].phase is Phase.UPDATE and graph.nodes[k].op != "state.write"]

    def runs_with(i: int, k: int) -> bool:
        return k in part and part[i] == part[k]

    summed = {part[i] for i in part for k in readers(graph.nodes[i].outputs[0]) if k not in part and not graph.nodes[k].op.startswith("comm.")}
    found = set(list_unheld_adam(graph))
    for i in part:
        (out,) = graph.nodes[i].outputs
        old = into.get(out)
        alone = uses[out] and all(runs_with(i, k) for k in readers(out)) and part[i] not in summed  # what nobody reads is no kernel's
        there = old is None or ((values[old].shape, values[old].dtype) == (values[out].shape, values[out].dtype) and all(runs_with(i, k) for k in readers(old)))
        if alone and there and (old is not None or out not in ends):
            found.add(out)
    return frozenset(found)


@kept
def list_written_over(graph: Graph) -> frozenset[str]:
    """What the next op of a kernel of the update alone reads, and writes its own result over: the result has the bytes of both."""
    values, uses, makers, part = value_table(graph), use_table(graph), producer_table(graph), _parts(graph)
    ends = {graph.loss, *graph.outputs, *(name for _, name in graph.grads), *(new for _, new in graph.updates)}
    found: set[str] = set()
    for i in part:
        (out,) = graph.nodes[i].outputs
        together = {k for k, _ in uses[out]} == {i + 1} and part.get(i + 1) == part[i]
        if together and out not in ends and _goes_there(graph.nodes[i + 1], out, values):
            if not any(makers[name][0] in part and name not in found for name in graph.nodes[i].inputs if name in makers):  # nothing else goes when it comes
                found.add(out)
    return frozenset(found)


@kept
def _parts(graph: Graph) -> dict[int, tuple]:
    """Of each node of the update that works element by element the part that it is in: a module's, on one shape, before or after what leads from one to another through anything else."""
    values = value_table(graph)
    part = {i: (node.path, shape) for i, node in enumerate(graph.nodes) if (shape := _one_shape(node, values)) is not None}
    when = _latest(graph, part)
    return {i: (*own, when[i]) for i, own in part.items()}


def _goes_there(node: Node, name: str, values: Mapping[str, Value]) -> bool:
    """True where what a node makes may take the place of what it reads."""
    given = [node.inputs[arg.index] for key in list_replaceable(node) if isinstance(arg := get_arg(node, key), Ref)]
    alike = (values[name].shape, values[name].dtype) == (values[node.outputs[0]].shape, values[node.outputs[0]].dtype)
    return name in given and reads_once(node, name) and alike


def _one_shape(node: Node, values: Mapping[str, Value]) -> tuple[int, ...] | None:
    """The shape on which a node of the update works element by element, beside numbers; None of another node."""
    if node.phase is not Phase.UPDATE or packet_of(node.op) not in ELEMENTWISE or len(node.outputs) != 1:
        return None
    shape = values[node.outputs[0]].shape
    return shape if shape and all(values[name].shape in ((), shape) for name in node.inputs) else None


def _latest(graph: Graph, part: Mapping[int, object]) -> dict[int, int]:
    """Of each node of the update, how often a way to it goes on in another part, as late as those that read it allow: what is on a way that leaves a part and comes back has another number.
    A node that is in none is a part by itself."""
    makers = producer_table(graph)
    reads = {i: {makers[name][0] for name in node.inputs if name in makers} for i, node in enumerate(graph.nodes) if node.phase is Phase.UPDATE and node.op != "state.write"}
    level: dict[int, int] = {}
    for i, before in reads.items():
        level[i] = max((level[k] + (part.get(k, k) != part.get(i, i)) for k in before if k in level), default=0)
    latest: dict[int, int] = {}
    for i in reversed(reads):
        here = latest.setdefault(i, level[i])
        for k in reads[i] & level.keys():
            latest[k] = min(latest.get(k, here), here - (part.get(k, k) != part.get(i, i)))
    return latest
