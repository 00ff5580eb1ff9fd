"""Clusters: elementwise nodes in a row decide together, so that the integer program sees one chooser instead of twenty.

In: a graph with its signatures, a fold. Out: for each node class the class that leads its cluster. Two classes join where one reads, in the
same phase and at full shape, what the other makes, both are elementwise, and all readers of that value in that phase are. Sums of two
tensors stay alone outside of the update: there a Partial may pass to be reduced once.

It narrows the search: inside a cluster no value changes its sharding and no Partial passes. The certificate says so.
"""

from __future__ import annotations

from ..graph.graph import Graph, use_table, value_table
from ..graph.node import Phase
from ..graph.repeats import Fold
from ..graph.rule import Signature
from ..graph.sharding import Sharding, has_partial
from ..graph.strategy import Strategy
from ..graph.tensor import num_elements


def find_clusters(graph: Graph, signatures: tuple[Signature, ...], fold: Fold) -> dict[int, int]:
    """Node class -> the least class of its cluster."""
    values, uses = value_table(graph), use_table(graph)
    leader = {root: root for root in fold.node_class}

    def find(root: int) -> int:
        while leader[root] != root:
            leader[root] = leader[leader[root]]
            root = leader[root]
        return root

    simple = [_is_elementwise(signatures[i], node.phase) for i, node in enumerate(graph.nodes)]
    for i, node in enumerate(graph.nodes):
        if not simple[i] or not node.outputs[0] or num_elements(values[node.outputs[0]].shape) == 1:
            continue
        near = [(j, k) for j, k in uses[node.outputs[0]] if graph.nodes[j].phase is node.phase]
        if near and all(simple[j] and signatures[j].inputs[k] == signatures[j].outputs[0] for j, k in near):
            for j, _ in near:
                if values[graph.nodes[j].outputs[0]].shape == values[node.outputs[0]].shape:
                    low, high = sorted((find(fold.node_class[i]), find(fold.node_class[j])))
                    leader[high] = low
    return {root: find(root) for root in leader}


def _is_elementwise(signature: Signature, phase: Phase) -> bool:
    """One output, every factor may be split and is a dim of it, and (outside of the update) no two inputs may be Partial together."""
    if len(signature.outputs) != 1 or any(f.whole for f in signature.factors):
        return False
    names = {name for dim in signature.outputs[0] for name in dim}
    if len(names) != len(signature.factors) or any(len(dim) > 1 for dim in signature.outputs[0]):
        return False
    if signature.outputs[0] not in signature.inputs:
        return False
    full = sum(1 for dims in signature.inputs if dims == signature.outputs[0])
    return phase is Phase.UPDATE or full < 2 or not any(len(together) > 1 for together in signature.rule.linear)


def align_menus(menus: list[tuple[Strategy, ...]], full: list[tuple[bool, ...]]) -> list[tuple[Strategy, ...]]:
    """The strategies of each member of a cluster, option by option: all have the same sharding, none is Partial.

    Args:
        full: for each member, which inputs have the shape of the output.
    """
    tables: list[dict[Sharding, Strategy]] = []
    for menu, wide in zip(menus, full):
        table: dict[Sharding, Strategy] = {}
        for strategy in menu:
            made = strategy.outputs[0]
            plain = not any(has_partial(s) for s in (made, *strategy.inputs))
            if plain and all(s == made for s, w in zip(strategy.inputs, wide) if w):
                table.setdefault(made, strategy)
        tables.append(table)
    shared = [made for made in tables[0] if all(made in table for table in tables)]
    return [tuple(table[made] for made in shared) for table in tables]
