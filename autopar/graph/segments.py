"""Segments: the longest stretches of a program's nodes that a compiler of plain torch may have as a whole.

In: a program's local graph, the section of each node. Out: groups of nodes, matmuls and all, between collectives. The law is that of `graph.fusion` as far as it
is about order: one phase, one block, one section, and nothing outside lies on a way from one node to another. The update is left to `fusion`.

`scale_apart` has a program ready for such a compiler: Inductor makes one matmul of a product of matrices and a sum, and forgets the factor of the sum (`torch.add(x, a @ b, alpha=0.1)`, torch 2.13 on a CPU).
So the factor is an op of its own there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from .graph import Graph, value_table
from .liveness import is_view
from .node import Node, Phase, Ref, get_arg, is_known
from .program import Program
from .repeats import block_of
from .sections import Section
from .turns import GROWN, RECEIVE, SEND, TAKE

_APART = frozenset((TAKE, SEND, RECEIVE, *GROWN, "state.write"))
_ADD, _MUL = "aten.add.Tensor", "aten.mul.Tensor"


def find_segments(graph: Graph, sections: Sequence[object]) -> tuple[tuple[int, ...], ...]:
    """The segments that do some work, each in graph order, views included.

    Args:
        sections: of each node.
    """
    found: list[list[int]] = []
    key: object = None
    mine: set[str] = set()  # what the segment at hand makes
    after: set[str] = set()  # what others have made of it
    for i, node in enumerate(graph.nodes):
        if node.phase is Phase.UPDATE:
            continue
        here = (sections[i], block_of(node.path, graph.sequences) or node.path.partition(".")[0])
        joins = is_known(node.op) and node.op not in _APART and bool(node.inputs)
        if joins and (here != key or after.intersection(node.inputs)):
            key, mine, after = here, set(), set()
            found.append([])
        if joins:
            found[-1].append(i)
            mine.update(out for out in node.outputs if out)
        elif (mine | after).intersection(node.inputs):
            after.update(out for out in node.outputs if out)
    return tuple(tuple(nodes) for nodes in found if sum(not is_view(graph.nodes[i].op) for i in nodes) > 1)


def scale_apart(program: Program, sections: Sequence[Section]) -> tuple[Program, tuple[Section, ...]]:
    """The program with factors of sums as ops of their own, outside of the update, and the section of each of its nodes."""
    values, held = value_table(program.graph), {name: row for name, *row in program.shardings}
    rows, more, fresh = [], [], []
    for node, origin, section in zip(program.graph.nodes, program.origins, sections):
        factor, other = get_arg(node, "alpha", 1), get_arg(node, "other")
        if node.op == _ADD and factor != 1 and isinstance(other, Ref) and node.phase is not Phase.UPDATE:
            read = node.inputs[other.index]
            name = f"{node.outputs[0]}~scaled"
            fresh.append(replace(values[read], name=name, storage=name, version=0))
            more.append((name, *held[read]))
            rows.append((replace(node, name=f"scale:{node.name}", op=_MUL, inputs=(read,), args=(("self", Ref(0)), ("other", factor)), outputs=(name,)), origin, section))
            inputs = tuple(name if k == other.index else old for k, old in enumerate(node.inputs))
            node = replace(node, inputs=inputs, args=tuple(arg for arg in node.args if arg[0] != "alpha"))
        rows.append((node, origin, section))
    if not fresh:
        return program, tuple(sections)
    known = values | {value.name: value for value in fresh}
    order = [*program.graph.inputs, *(name for node, _, _ in rows for name in node.outputs if name)]
    local = replace(program.graph, values=tuple(known[name] for name in order), nodes=tuple(node for node, _, _ in rows))
    return replace(program, graph=local, origins=tuple(o for _, o, _ in rows), shardings=(*program.shardings, *more)), tuple(s for _, _, s in rows)


def segment_name(node: Node, sequences: Collection[str] = ()) -> str:
    """`forward_blocks`: the phase, and the family of blocks or the module. `sequences`: of the graph."""
    block = block_of(node.path, sequences)
    family = block[0] if block is not None else node.path.partition(".")[0]
    return "_".join(filter(None, [node.phase.value, re.sub(r"\W+", "_", family.rpartition(".")[2])]))
