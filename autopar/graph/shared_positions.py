"""Shared positions: `arange`s that are equal on a rank are made once.

In: a program and the section of each node. Out: the program in which of such nodes of one section the first is left. In the traced graph uses are apart (`trace.lowering.draft`): the positions of a batch's
samples are cut as the samples are, and sizes that are equal by chance are not tied. Once a plan has cut them, what is the same in every number and lies on the ranks in the same way is one.
Nothing else is shared: what is larger than a list would be held for longer than its own readers need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .graph import final_values
from .node import Node, packet_of
from .program import Program
from .sections import Section
from .turns import SEND


def share_positions(program: Program, sections: Sequence[Section]) -> tuple[Program, tuple[Section, ...]]:
    """The program, and the section of each of its nodes."""
    graph = program.graph
    shardings = {name: sharding for name, _, sharding in program.shardings}
    leaving = {*final_values(graph), *(grad for _, grad in graph.grads), *(name for node in graph.nodes if node.op == SEND for name in node.inputs)}
    firsts: dict[object, str] = {}
    same: dict[str, str] = {}
    kept: list[int] = []
    for i, node in enumerate(graph.nodes):
        if packet_of(node.op) == "aten.arange" and not node.inputs and leaving.isdisjoint(node.outputs):
            [out] = node.outputs
            first = firsts.setdefault((node.args, node.phase, node.path, sections[i], shardings[out]), out)
            if first != out:
                same[out] = first
                continue
        kept.append(i)
    if not same:
        return program, tuple(sections)

    def reads(node: Node) -> Node:
        return replace(node, inputs=tuple(same.get(name, name) for name in node.inputs)) if not same.keys().isdisjoint(node.inputs) else node

    rows = tuple(row for row in program.shardings if row[0] not in same)
    wanted = {whole for _, whole, _ in rows}
    left = replace(graph, nodes=tuple(reads(graph.nodes[i]) for i in kept), values=tuple(v for v in graph.values if v.name not in same))
    whole = tuple(row for row in program.whole if row[0] in wanted)
    return replace(program, graph=left, origins=tuple(program.origins[i] for i in kept), shardings=rows, whole=whole), tuple(sections[i] for i in kept)
