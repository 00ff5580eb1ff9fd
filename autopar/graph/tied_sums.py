"""Tied sums: the gradient of a table that another op reads, too (a head that is the embedding), is added to that op's gradient row by row.

In: a program, the section of each node. Out: the program in which `w + embedding_backward(...)`, where nobody else reads either, is one node that adds the rows to `w`
where it lies: nothing of the size of the table is made, filled with zeros and read again for the few rows that tokens name.

    autopar.embedding_backward_onto(sum [v, d], grad [..., d], indices [...], rows [v])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .graph import producer_table, value_table
from .node import Node, Ref, get_arg
from .own import find_own
from .program import Program
from .sections import Section

ONTO = "autopar.embedding_backward_onto"
_ROWS, _ADD = "autopar.embedding_backward", "aten.add.Tensor"


def add_rows_in_place(program: Program, sections: Sequence[Section]) -> tuple[Program, tuple[Section, ...]]:
    """The program with such sums as one node.

    Returns:
        the program, and the section of each of its nodes.
    """
    graph = program.graph
    values, makers, own = value_table(graph), producer_table(graph), find_own(graph)
    new: dict[int, Node] = {}
    gone: dict[int, str] = {}
    for i, node in enumerate(graph.nodes):
        if node.op != _ADD or len(node.inputs) != 2 or get_arg(node, "alpha", 1) != 1 or not own.issuperset(node.inputs):
            continue
        for rows, other in (node.inputs, node.inputs[::-1]):
            k = makers[rows][0]
            alike = all((values[a].shape, values[a].dtype) == (values[node.outputs[0]].shape, values[node.outputs[0]].dtype) for a in node.inputs)
            if graph.nodes[k].op == _ROWS and alike and makers[other][0] < k and k not in gone and sections[k] == sections[i] == sections[makers[other][0]]:
                maker = graph.nodes[k]
                args = (("sum", Ref(0)), *((name, Ref(arg.index + 1) if isinstance(arg, Ref) else arg) for name, arg in maker.args))
                new[i] = replace(maker, name=node.name, op=ONTO, inputs=(other, *maker.inputs), args=args, outputs=node.outputs)
                gone[k] = rows
                break
    if not gone:
        return program, tuple(sections)
    kept = [i for i in range(len(graph.nodes)) if i not in gone]
    lost = set(gone.values())
    local = replace(graph, values=tuple(v for v in graph.values if v.name not in lost), nodes=tuple(new.get(i, graph.nodes[i]) for i in kept))
    rows_left = tuple(row for row in program.shardings if row[0] not in lost)
    return replace(program, graph=local, origins=tuple(program.origins[i] for i in kept), shardings=rows_left), tuple(sections[i] for i in kept)
