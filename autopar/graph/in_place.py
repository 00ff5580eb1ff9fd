"""In place: what is added to a sum goes there as it is made, and is no tensor of its own.

In: a program, the section of each node. Out: the program in which such pairs of nodes are one.

* The gradient of a table that another op reads, too (a head that is the embedding), is added to that op's gradient row by row: nothing of the size of the table is made,
  filled with zeros and read again for the few rows that tokens name.

      autopar.embedding_backward_onto(sum [v, d], grad [..., d], indices [...], rows [v])

* What a turn adds to a sum over turns is made there: the matmul of a weight's gradient adds its product to what turns before have left, and so do the rows of a table.

      autopar.accumulate_weight_grad(grad [..., o], input [..., i])
      autopar.accumulate_embedding(grad [..., d], indices [...], rows [v])

* What several linears send back to the tensor that all of them read (queries, keys and values; a gate and what it lets through) is added up by their matmuls: each but the first
  adds its product to what the one before has left.

      autopar.linear_input_grad_onto(sum [..., i], grad [..., o], weight [o, i])

Invariant: nobody else reads what is no tensor any more, and the sum has its dtype (gradients in 16 bits are made apart, and added in float32).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .graph import Graph, producer_table, use_table, value_table
from .node import Node, Ref, get_arg
from .own import find_own
from .program import Program
from .sections import Section
from .tensor import num_elements
from .turns import ACCUMULATE, ACCUMULATE_FROM, GROWN, LOOP

ONTO, PRODUCT_ONTO = "autopar.embedding_backward_onto", "autopar.linear_input_grad_onto"
_PRODUCT = "autopar.linear_input_grad"
_ROWS, _ADD = "autopar.embedding_backward", "aten.add.Tensor"
_WIDE = ("float32", "float64")


def add_in_place(program: Program, sections: Sequence[Section]) -> tuple[Program, tuple[Section, ...]]:
    """The program with such pairs as one node.

    Returns:
        the program, and the section of each of its nodes.
    """
    program, sections = _merge(program, sections, find_rows_onto(program.graph))
    program, sections = _merge(program, sections, find_products_onto(program.graph, sections))
    return _merge(program, sections, find_added(program.graph, sections))


def find_added(graph: Graph, sections: Sequence[object]) -> dict[int, tuple[int, Node]]:
    """What is added to a sum over turns as it is made.

    Args:
        sections: of each node, or phases; a pair is in one. (What is a pair by the one is by the other: a sum stands with what it adds up.)

    Returns:
        place of the node that adds -> place of the node that makes, and the node that is both.
    """
    found: dict[int, tuple[int, Node]] = {}
    sums = [i for i, node in enumerate(graph.nodes) if node.op == ACCUMULATE]
    if not sums:
        return found
    values, makers, own = value_table(graph), producer_table(graph), find_own(graph)
    for i in sums:
        (added,), (total,) = graph.nodes[i].inputs, graph.nodes[i].outputs
        k = makers[added][0] if added in own else -1
        if k >= 0 and graph.nodes[k].op in ACCUMULATE_FROM and sections[k] == sections[i] and values[added].dtype == values[total].dtype in _WIDE:
            found[i] = k, replace(graph.nodes[k], name=graph.nodes[i].name, op=ACCUMULATE_FROM[graph.nodes[k].op], outputs=(total,))
    return found


def find_rows_onto(graph: Graph) -> dict[int, tuple[int, Node]]:
    """As `find_added`, of sums with the gradient of a table, whatever their sections: what the rows are made of goes to where they are added. The first input of what is both is the
    tensor to which the rows are added, where it lies."""
    values, makers, own = value_table(graph), producer_table(graph), find_own(graph)
    found: dict[int, tuple[int, Node]] = {}
    gone: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if node.op != _ADD or len(node.inputs) != 2 or get_arg(node, "alpha", 1) != 1 or not own.issuperset(node.inputs):
            continue
        for rows, other in (node.inputs, node.inputs[::-1]):
            k = makers[rows][0]
            alike = all((values[a].shape, values[a].dtype) == (values[node.outputs[0]].shape, values[node.outputs[0]].dtype) for a in node.inputs)
            if graph.nodes[k].op == _ROWS and alike and makers[other][0] < k and k not in gone and graph.nodes[k].phase is node.phase:
                maker = graph.nodes[k]
                args = (("sum", Ref(0)), *((name, Ref(arg.index + 1) if isinstance(arg, Ref) else arg) for name, arg in maker.args))
                found[i] = k, replace(maker, name=node.name, op=ONTO, inputs=(other, *maker.inputs), args=args, outputs=node.outputs)
                gone.add(k)
                break
    return found


def find_products_onto(graph: Graph, sections: Sequence[object] | None = None) -> dict[int, tuple[int, Node]]:
    """As `find_added`, of sums of what linears send back. What is both runs where the sum was, and reads there what the matmul reads.

    Args:
        sections: None: phases.
    """
    sections = [node.phase for node in graph.nodes] if sections is None else sections
    found: dict[int, tuple[int, Node]] = {}
    values, uses = value_table(graph), use_table(graph)
    leaving = {graph.loss, *graph.outputs, *(g for _, g in graph.grads), *(new for _, new in graph.updates)}
    made: dict[str, int] = {}  # what such a matmul or sum makes for one reader alone -> its node
    for i, node in enumerate(graph.nodes):
        if node.phase not in LOOP or len(node.outputs) != 1 or not num_elements(values[node.outputs[0]].shape):
            continue
        if node.op == _ADD and len(node.inputs) == 2 and get_arg(node, "alpha", 1) == 1 and made.keys() >= {*node.inputs} and node.inputs[0] != node.inputs[1]:
            before, added = sorted(node.inputs, key=made.__getitem__)
            k = made[added]
            alike = all((values[a].shape, values[a].dtype) == (values[node.outputs[0]].shape, values[node.outputs[0]].dtype) for a in node.inputs)
            if alike and graph.nodes[k].op == _PRODUCT and sections[made[before]] == sections[k] == sections[i]:
                maker = graph.nodes[k]
                args = (("sum", Ref(0)), *((name, Ref(arg.index + 1) if isinstance(arg, Ref) else arg) for name, arg in maker.args))
                found[i] = k, replace(maker, name=node.name, op=PRODUCT_ONTO, inputs=(before, *maker.inputs), args=args, outputs=node.outputs)
        if (node.op == _PRODUCT or i in found) and len(uses[node.outputs[0]]) == 1 and node.outputs[0] not in leaving:
            made[node.outputs[0]] = i
    return found


def _merge(program: Program, sections: Sequence[Section], pairs: Mapping[int, tuple[int, Node]]) -> tuple[Program, tuple[Section, ...]]:
    """Each pair as one node: at the place of the one that makes where it adds to a sum over turns, whose other reader comes after them; else of the one that adds."""
    if not pairs:
        return program, tuple(sections)
    graph = program.graph
    lost = {out for k, _ in pairs.values() for out in graph.nodes[k].outputs}
    merged = {k if node.op in GROWN else i: node for i, (k, node) in pairs.items()}
    gone = {place for i, (k, _) in pairs.items() for place in (i, k)} - merged.keys()
    kept = [i for i in range(len(graph.nodes)) if i not in gone]
    local = replace(graph, values=tuple(v for v in graph.values if v.name not in lost), nodes=tuple(merged.get(i, graph.nodes[i]) for i in kept))
    rows_left = tuple(row for row in program.shardings if row[0] not in lost)
    return replace(program, graph=local, origins=tuple(program.origins[i] for i in kept), shardings=rows_left), tuple(sections[i] for i in kept)
