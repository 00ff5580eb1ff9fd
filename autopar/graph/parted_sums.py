"""Parted sums: a sum over turns of an addition whose parts are made on different stages, as the addition of two such sums.

In: the graph of a step in turns, and the stage of each node. Out: where such a sum is; the graph without it. It is what lets the gradient of a parameter
that several stages read (tied embeddings) cross once a step instead of once a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .graph import Graph, producer_table, use_table, value_table
from .node import Node, Phase, get_arg
from .turns import ACCUMULATE, LOOP


def parted_sum(graph: Graph, stage: Sequence[int], starts: Sequence[str] = ()) -> tuple[int, int] | None:
    """(the addition, the sum over turns of what it makes) of which the two parts are made on different stages, and nobody else reads it.

    Args:
        starts: nodes that stay where they are, for a stage begins with them.
    """
    makers, uses = producer_table(graph), use_table(graph)
    for k, node in enumerate(graph.nodes):
        if node.op != ACCUMULATE or node.name in starts or node.inputs[0] not in makers or len(uses[node.inputs[0]]) != 1:
            continue
        i = makers[node.inputs[0]][0]
        add = graph.nodes[i]
        if add.op != "aten.add.Tensor" or add.name in starts or get_arg(add, "alpha", 1) != 1:
            continue
        if len(add.inputs) == 2 and all(name in makers for name in add.inputs):
            if len({stage[makers[name][0]] for name in add.inputs}) > 1 and all(graph.nodes[makers[name][0]].phase in LOOP for name in add.inputs):
                return i, k
    return None


def sum_parts(graph: Graph, add_at: int, sum_at: int) -> Graph:
    """The graph in which a sum over turns of an addition is the addition of two such sums."""
    values, makers = value_table(graph), producer_table(graph)
    add, total = graph.nodes[add_at], graph.nodes[sum_at]
    whole = values[total.outputs[0]]
    names = [f"{total.outputs[0]}_{name}" for name in add.inputs]
    parts = [replace(whole, name=name, storage=name) for name in names]
    sums = {
        makers[part][0]: Node(f"sum_{name}", ACCUMULATE, (part,), total.args, (name,), graph.nodes[makers[part][0]].phase, graph.nodes[makers[part][0]].path, add.source)
        for part, name in zip(add.inputs, names)
    }
    joined = Node(add.name, add.op, tuple(names), add.args, total.outputs, Phase.UPDATE, add.path, add.source)
    nodes: list[Node] = []
    first = next((i for i, node in enumerate(graph.nodes) if node.phase is Phase.UPDATE), len(graph.nodes))
    for i, node in enumerate(graph.nodes):
        if i == first:
            nodes.append(joined)
        if i not in (add_at, sum_at):
            nodes.append(node)
        if i in sums:
            nodes.append(sums[i])
    if first == len(graph.nodes):
        nodes.append(joined)
    gone = {add.outputs[0], whole.name}
    by_name = {v.name: v for v in (*(v for v in graph.values if v.name not in gone), *parts, whole)}
    made = [out for node in nodes for out in node.outputs if out]
    return replace(graph, values=tuple(by_name[name] for name in (*graph.inputs, *made)), nodes=tuple(nodes))
