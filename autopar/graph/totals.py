"""Totals: one number of all parameters, made of a number of each (a norm of all gradients, the largest, whether any is not finite).

In the update such a number is made in two steps: of each parameter a sum or extreme of a whole tensor, then the sum or extreme of all these, and what follows of that number alone. Each step is a
kernel (`graph.fusion`). Programs of a device that work on a tensor leave parts, and where only the second step reads what is made of them, it takes the parts: no launch adds up those of each
parameter before it. In: a graph, the kernels that its nodes run. Out: which results are left in parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .graph import Graph, use_table
from .kernel import JOINS, KINDS, Kernel, is_kernel, joined_numbers, takes_lists
from .node import Node, packet_of
from .tensor import num_elements

_OF_NUMBERS = frozenset(("aten.sum", "aten.amax", "aten.amin", "aten.any", "aten.all"))  # what makes of numbers that are there just what it would make of all that they were made of


def is_total(join: Node, total: Node, base: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]) -> bool:
    """True where a node makes one number of all that another has put beside each other, and those are numbers, each another one.

    Args:
        base: of what the other reads, whose bytes these are.
        shapes, dtypes: of values.
    """
    [made], [listed], read = total.outputs, join.outputs, [base.get(name, name) for name in join.inputs]
    op = packet_of(total.op)
    counts = op in ("aten.any", "aten.all") and dtypes[listed] != "bool"
    whole = op in _OF_NUMBERS and total.inputs == (listed,) and shapes[made] == () and not counts and all(num_elements(shapes[name]) == 1 for name in (*join.inputs, *read))
    return whole and len({*read}) == len(read) and {dtypes[name] for name in (*read, listed)} == {dtypes[made]}


def list_in_parts(graph: Graph, kernels: Mapping[str, Kernel], ends: Collection[str]) -> dict[int, tuple[int, ...]]:
    """Place of a kernel's node -> its outputs that are left in parts.

    Args:
        kernels: by the op of their nodes.
        ends: values that leave the graph.
    """
    uses = use_table(graph)
    totals = {i: _kind_of_total(kernels[node.op]) for i, node in enumerate(graph.nodes) if is_kernel(node.op) and joined_numbers(kernels[node.op])}
    found = {}
    for place, node in enumerate(graph.nodes) if totals else ():
        if not is_kernel(node.op) or not takes_lists(kernels[node.op]):
            continue
        kinds = _kinds_of_wholes(kernels[node.op])
        left = []
        for k, out in enumerate(node.outputs):
            readers = uses[out] if k in kinds and out not in ends else ()
            if len(readers) == 1 and (reader := readers[0][0]) in totals and totals[reader] == kinds[k] and readers[0][1] < len(joined_numbers(kernels[graph.nodes[reader].op])):
                left.append(k)
        if left:
            found[place] = tuple(left)
    return found


def _kind_of_total(kernel: Kernel) -> str:
    """What a total makes of numbers: `sum`, `max` or `min`."""
    join = next(node for node in kernel.graph.nodes if packet_of(node.op) in JOINS)
    return KINDS[packet_of(next(node for node in kernel.graph.nodes if join.outputs[0] in node.inputs).op)]


def _kinds_of_wholes(kernel: Kernel) -> dict[int, str]:
    """Of a kernel's outputs that are sums or extremes of a whole tensor, what of its elements they are."""
    shapes = {v.name: v.shape for v in kernel.graph.values}
    makers = {out: node for node in kernel.graph.nodes for out in node.outputs}
    wholes = {k: makers[name] for k, name in enumerate(kernel.graph.outputs) if not shapes[name] and name in makers and any(shapes[read] for read in makers[name].inputs)}
    return {k: KINDS[packet_of(node.op)] for k, node in wholes.items() if packet_of(node.op) in KINDS}
