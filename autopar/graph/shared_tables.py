"""Shared tables: what a model makes of constants or of its batch alone, again and again, is made once: the cosines and sines of rotary positions for queries and keys, a causal mask in every block.

In: a traced graph. Out: the graph in which of equal chains of such ops one is left.

    in a block        of equal ones the first is read by all; so it is of what is in no block
    in several        where the backward pass of blocks reads it, so that each block would keep its own: made once before the first of these blocks, as a model would that makes it in its own forward;
                      not what is made of a buffer, which is on one stage of a pipeline, where it is in a block alone

What is only a number or a filled tensor is no table. Numbers stay those of the model: the same ops on the same values. `remade` comes after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .graph import Graph, live_graph, use_table, value_table
from .node import Node, Phase, is_known, packet_of
from .repeats import blocks_in_step
from .tensor import Kind, Value, num_elements

_FILLED = frozenset(f"aten.{name}" for name in ("full", "zeros", "ones", "arange", "scalar_tensor", "eye", "linspace", "new_full", "new_zeros", "new_ones"))
_WITHOUT_CONTENTS = frozenset(f"aten.{name}" for name in ("empty", "empty_strided", "new_empty", "empty_like"))


class _Kinds:
    """Numbers of ways in which a value may be made: two values of one number are the same. Filled once, by `_find_kinds`."""

    __slots__ = ("of", "parts", "nodes", "on_a_stage", "_known")

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self.parts: list[tuple[int, ...]] = []  # of each number those of what it is made of
        self.nodes: list[list[int]] = []  # of each number the nodes that make it so, in order
        self.on_a_stage: set[int] = set()  # of what is made of a buffer
        self._known: dict[tuple, int] = {}

    def add(self, value: str, how: tuple, parts: tuple[int, ...], node: int | None) -> int:
        """The number of a value."""
        number = self.of[value] = self._known.setdefault((*how, *parts), len(self.parts))
        if number == len(self.parts):
            self.parts.append(parts)
            self.nodes.append([])
            if self.on_a_stage.intersection(parts):
                self.on_a_stage.add(number)
        if node is not None:
            self.nodes[number].append(node)
        return number


def share_tables(graph: Graph) -> Graph:
    """The graph with equal tables made once; itself where there are none."""
    blocks, uses, values, kinds = blocks_in_step(graph), use_table(graph), value_table(graph), _find_kinds(graph)
    leaving = {graph.loss, *graph.outputs, *(new for _, new in graph.updates)}
    tables = {
        kind for kind, nodes in enumerate(kinds.nodes)
        if len(nodes) > 1 and _is_table(graph.nodes[nodes[0]], values) and not any(graph.nodes[i].outputs[0] in leaving for i in nodes)
    }  # fmt: skip
    starts: dict[object, int] = {}
    for i, place in enumerate(blocks):
        starts.setdefault(place, i)
    before: dict[int, int] = {}  # what is made once for several blocks -> the node in front of which

    def lead(kind: int, first: int) -> None:
        front = min([first, before.get(kind, first), *(starts[blocks[i]] for i in kinds.nodes[kind] if blocks[i] is not None)])
        if kinds.nodes[kind] and before.get(kind) != front:
            before[kind] = front
            for part in kinds.parts[kind]:
                lead(part, front)

    def is_kept(i: int) -> bool:
        return any(graph.nodes[k].phase is Phase.BACKWARD for k, _ in uses[graph.nodes[i].outputs[0]])

    for kind in sorted(tables - kinds.on_a_stage):
        where = {blocks[i] for i in kinds.nodes[kind]}
        if len(where) > 1 and None not in where and sum(map(is_kept, kinds.nodes[kind])) > 1:
            lead(kind, len(blocks))
    same: dict[str, str] = {}  # output -> that of the one that is left
    ahead: dict[int, list[int]] = defaultdict(list)  # node -> those that are moved before it
    for kind, nodes in enumerate(kinds.nodes):
        firsts: dict[object, int] = {}
        for i in nodes if kind in before or kind in tables else ():
            if kind in kinds.on_a_stage and blocks[i] is None:
                continue
            left = firsts.setdefault(None if kind in before else blocks[i], i)
            if left != i:
                same[graph.nodes[i].outputs[0]] = graph.nodes[left].outputs[0]
        if kind in before and nodes[0] >= before[kind]:  # else the first is made in front of them anyway
            ahead[before[kind]].append(nodes[0])
    return _rewrite(graph, same, ahead) if same else graph


def _find_kinds(graph: Graph) -> _Kinds:
    values, kinds, rewritten = value_table(graph), _Kinds(), {old for old, _ in graph.updates}
    for name in graph.inputs:
        if values[name].kind is Kind.BATCH or values[name].kind is Kind.BUFFER and name not in rewritten:
            number = kinds.add(name, ("enters", name), (), None)
            if values[name].kind is Kind.BUFFER:
                kinds.on_a_stage.add(number)
    for i, node in enumerate(graph.nodes):
        known = node.phase is Phase.FORWARD and is_known(node.op) and packet_of(node.op) not in _WITHOUT_CONTENTS
        if known and len(node.outputs) == 1 and all(name in kinds.of for name in node.inputs):
            [out] = node.outputs
            kinds.add(out, (node.op, repr(node.args), values[out].dtype, values[out].shape), tuple(kinds.of[name] for name in node.inputs), i)
    return kinds


def _is_table(node: Node, values: Mapping[str, Value]) -> bool:
    return packet_of(node.op) not in _FILLED and num_elements(values[node.outputs[0]].shape) > 1


def _rewrite(graph: Graph, same: Mapping[str, str], ahead: Mapping[int, Sequence[int]]) -> Graph:
    moved = {i for row in ahead.values() for i in row}

    def own(i: int, path: str) -> Node:
        return replace(graph.nodes[i], path=path, inputs=tuple(same.get(name, name) for name in graph.nodes[i].inputs))

    nodes: list[Node] = []
    for i, node in enumerate(graph.nodes):
        nodes += [own(k, "") for k in ahead.get(i, ())]
        if i not in moved and not (len(node.outputs) == 1 and node.outputs[0] in same):
            nodes.append(own(i, node.path))
    return live_graph(replace(graph, nodes=tuple(nodes)))
