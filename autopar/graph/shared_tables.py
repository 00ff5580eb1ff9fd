"""Shared tables: what a model makes of constants alone, again and again, is made once: the cosines and sines of rotary positions for queries and keys, a causal mask in every block.

In: a traced graph. Out: the graph in which of equal chains of such ops one is left.

    in a block        of equal ones the first is read by all
    in several        where the backward pass of blocks reads it, so that each block would keep its own: made once before the first of these blocks, as a model would that makes it in its own forward

What is only a number or a filled tensor is no table. Numbers stay those of the model: the same ops on the same values. `remade` comes after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .graph import Graph, use_table, value_table
from .node import Node, Phase, packet_of
from .repeats import blocks_in_step
from .tensor import Value, num_elements

_NAMESPACES = ("aten.", "autopar.")  # ops that we know to be deterministic
_FILLED = frozenset(f"aten.{name}" for name in ("full", "zeros", "ones", "arange", "scalar_tensor", "eye", "linspace", "empty", "empty_strided", "new_empty", "new_full", "new_zeros", "new_ones"))
_WITHOUT_CONTENTS = frozenset(f"aten.{name}" for name in ("empty", "empty_strided", "new_empty", "empty_like"))

_Kind = tuple  # op, arguments, dtype, and the kinds of its inputs


def share_tables(graph: Graph) -> Graph:
    """The graph with equal tables made once; itself where there are none."""
    blocks, uses, values = blocks_in_step(graph), use_table(graph), value_table(graph)
    kind_of: dict[str, _Kind] = {}  # what is made of constants -> how
    equal: dict[_Kind, list[int]] = defaultdict(list)  # the nodes that make it so
    for i, node in enumerate(graph.nodes):
        if node.phase is Phase.FORWARD and node.op.startswith(_NAMESPACES) and packet_of(node.op) not in _WITHOUT_CONTENTS and len(node.outputs) == 1 and all(name in kind_of for name in node.inputs):
            [out] = node.outputs
            kind_of[out] = (node.op, node.args, values[out].dtype, *(kind_of[name] for name in node.inputs))
            equal[kind_of[out]].append(i)
    leaving = {graph.loss, *graph.outputs, *(new for _, new in graph.updates)}
    tables = {kind: nodes for kind, nodes in equal.items() if len(nodes) > 1 and _is_table(graph.nodes[nodes[0]], values) and not any(graph.nodes[i].outputs[0] in leaving for i in nodes)}

    def is_kept(i: int) -> bool:
        return any(graph.nodes[k].phase is Phase.BACKWARD for k, _ in uses[graph.nodes[i].outputs[0]])

    starts: dict[object, int] = {}
    for i, place in enumerate(blocks):
        starts.setdefault(place, i)
    before: dict[_Kind, int] = {}  # what is made once for several blocks -> the node in front of which

    def lead(kind: _Kind, first: int) -> None:
        before[kind] = min([first, before.get(kind, first), *(starts[blocks[i]] for i in equal[kind] if blocks[i] is not None)])
        for part in kind[3:]:
            lead(part, before[kind])

    for kind, nodes in tables.items():
        where = {blocks[i] for i in nodes}
        if len(where) > 1 and None not in where and sum(map(is_kept, nodes)) > 1:
            lead(kind, len(blocks))
    same: dict[str, str] = {}  # output -> that of the one that is left
    ahead: dict[int, list[int]] = defaultdict(list)  # node -> those that are moved before it
    for kind in equal:
        there = [i for i in equal[kind] if blocks[i] is None and i < before[kind]][:1] if kind in before else []  # made in front of them anyway
        nodes = [*there, *(i for i in equal[kind] if blocks[i] is not None)] if kind in before else tables.get(kind, [])
        firsts: dict[object, int] = {}
        for i in nodes:
            left = firsts.setdefault(None if kind in before else blocks[i], i)
            if left != i:
                same[graph.nodes[i].outputs[0]] = graph.nodes[left].outputs[0]
        if kind in before and not there:
            ahead[before[kind]].append(nodes[0])
    return _rewrite(graph, same, ahead) if same else graph


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
    return _live(replace(graph, nodes=tuple(nodes)))


def _live(graph: Graph) -> Graph:
    """Without what nobody reads any more, and its values."""
    wanted = {graph.loss, *graph.outputs, *(name for pair in (*graph.updates, *graph.grads) for name in pair)}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs) or not node.outputs:
            kept.append(node)
            wanted.update(node.inputs)
    there = {*graph.inputs, *(out for node in kept for out in node.outputs)}
    values = value_table(graph)
    order = [*graph.inputs, *(out for node in reversed(kept) for out in node.outputs if out)]
    return replace(graph, nodes=tuple(reversed(kept)), values=tuple(values[name] for name in order if name in there))
