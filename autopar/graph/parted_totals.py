"""Parted totals: a number that is made of one of each parameter (a norm of all gradients, the largest of them, whether all are finite), of which every stage first makes what its own parameters need.

In: the graph of a step, and the stage of each node. Out: the graph in which such a total is one of totals. What crosses to the stage that has it is one number of each other stage, not one of each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .graph import Graph, producer_table, use_table, value_table
from .kernel import JOINS
from .liveness import storage_bases
from .node import Node, Phase, Ref, packet_of
from .tensor import Value
from .totals import is_total

_ALONE = ((), (1,))  # shapes of a number that is put beside others
_VIEW = "aten.view.default"


def part_totals(graph: Graph, stage: Sequence[int]) -> Graph:
    """The graph with a total of each stage that has two numbers or more of one, but for the stage where it is made; the same graph where there is none.

    Args:
        stage: of each node (`stages.stage_table`).
    """
    makers, uses, values, base = producer_table(graph), use_table(graph), value_table(graph), storage_bases(graph)
    shapes, dtypes = {name: value.shape for name, value in values.items()}, {name: value.dtype for name, value in values.items()}
    before: dict[int, list[tuple[Node, tuple[Value, ...]]]] = {}
    changed: dict[int, Node] = {}
    thinner: dict[str, Value] = {}
    for i, join in enumerate(graph.nodes):
        readers = uses[join.outputs[0]] if join.phase is Phase.UPDATE and packet_of(join.op) in JOINS else ()
        if len(readers) != 1 or {shapes[name] for name in join.inputs} - {*_ALONE} or not is_total(join, graph.nodes[readers[0][0]], base, shapes, dtypes):
            continue
        total = graph.nodes[readers[0][0]]
        there: dict[int, list[str]] = {}
        for name in join.inputs:
            there.setdefault(stage[makers[name][0]] if name in makers else stage[i], []).append(name)
        apart = {s: names for s, names in there.items() if s not in (stage[i], -1) and len(names) > 1}
        if not apart:
            continue
        parts = {s: _part(join, total, names, s, values) for s, names in apart.items()}
        left = [name for s, names in there.items() if s not in apart for name in names]
        changed[i] = _listing(join, [*left, *(nodes[-1][0].outputs[0] for nodes in parts.values())])
        thinner[join.outputs[0]] = replace(values[join.outputs[0]], shape=(len(changed[i].inputs),))
        before[i] = [row for nodes in parts.values() for row in nodes]
    if not changed:
        return graph
    nodes: list[Node] = []
    made: list[Value] = []
    for i, node in enumerate(graph.nodes):
        for more, outs in before.get(i, ()):
            nodes.append(more)
            made += outs
        nodes.append(changed.get(i, node))
    return replace(graph, nodes=tuple(nodes), values=(*(thinner.get(v.name, v) for v in graph.values), *made))


def _part(join: Node, total: Node, names: Sequence[str], s: int, values: dict[str, Value]) -> list[tuple[Node, tuple[Value, ...]]]:
    """The nodes that make the total of one stage, each with what it makes, the last of the shape in which numbers are listed."""
    number = f"stage_{s}_{total.outputs[0]}"
    listed = f"{number}_listed"
    like, shape = values[total.outputs[0]], values[names[0]].shape
    beside = _listing(replace(join, name=listed, outputs=(listed,)), names)
    made = replace(total, name=number, inputs=(listed,), outputs=(number,))
    rows = [(beside, (replace(values[join.outputs[0]], name=listed, storage=listed, shape=(len(names),)),)), (made, (replace(like, name=number, storage=number),))]
    if shape:
        alone = f"{number}_alone"
        view = Node(alone, _VIEW, (number,), (("self", Ref(0)), ("size", shape)), (alone,), total.phase, total.path, total.source)
        rows.append((view, (replace(like, name=alone, storage=number, shape=shape),)))
    return rows


def _listing(join: Node, names: Sequence[str]) -> Node:
    """The node, but of these numbers."""
    (key, _), *rest = join.args
    return replace(join, inputs=tuple(names), args=((key, tuple(Ref(k) for k in range(len(names)))), *rest))
