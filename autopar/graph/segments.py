"""Segments: the longest stretches of a program's nodes that a compiler of plain torch may have as a whole.

In: a program's local graph, the section of each node. Out: groups of nodes, matmuls and all, between collectives. The law is that of `graph.fusion` as far as it
is about order: one phase, one block, one section, and nothing outside lies on a way from one node to another. The update is left to `fusion`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from .graph import Graph
from .liveness import is_view
from .node import Node, Phase, is_known
from .repeats import block_of
from .turns import GROWN, RECEIVE, SEND, TAKE

_APART = frozenset((TAKE, SEND, RECEIVE, *GROWN, "state.write"))


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


def segment_name(node: Node, sequences: Collection[str] = ()) -> str:
    """`forward_blocks`: the phase, and the family of blocks or the module. `sequences`: of the graph."""
    block = block_of(node.path, sequences)
    family = block[0] if block is not None else node.path.partition(".")[0]
    return "_".join(filter(None, [node.phase.value, re.sub(r"\W+", "_", family.rpartition(".")[2])]))
