"""Sequences: numbered containers whose entries are no blocks, so that `nn.Sequential(Linear, GELU, Linear)` is planned as the same model with names is.

In: the graph of a step. Out: paths of containers. A container of numbered modules is a row of blocks (`h.0`, `h.1`, ...) where entries that are like another one
make up most of its forward pass; else it is a sequence, and what is inside of it is in the blocks that its entries have (`net.1.h.3`), or in none.

    an entry may be a block     it works with a matrix of its own (a parameter of two dims or more) and does something else beside that: a single linear does not
    two entries are alike       at least half of what the larger one does, the other does, too, by names of ops: widths and rates differ, a first block has an op more;
                                the only entry of a container needs no other

Views and casts do not count. It decides for nobody: `repeats.block_of` passes over the numbers of sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .graph import Graph, value_table
from .liveness import is_view
from .node import Node, Phase, packet_of
from .repeats import block_of
from .tensor import Kind

_CASTS = frozenset(("aten._to_copy", "aten.clone"))


def find_sequences(graph: Graph) -> tuple[str, ...]:
    """Paths of the containers, of those with entries that run in the forward pass; "" is the model itself."""
    values = value_table(graph)
    matrices = frozenset(name for name in graph.inputs if values[name].kind is Kind.PARAM and len(values[name].shape) > 1)
    forward = [node for node in graph.nodes if node.phase is Phase.FORWARD]
    found: set[str] = set()
    while True:
        entries: dict[str, dict[int, list[Node]]] = {}
        for node in forward:
            place = block_of(node.path, found)
            if place is not None:
                entries.setdefault(place[0], {}).setdefault(place[1], []).append(node)
        fresh = {family for family, rows in entries.items() if not _has_blocks(list(rows.values()), matrices)}
        if not fresh:
            return tuple(sorted(found))
        found |= fresh


def _has_blocks(entries: list[list[Node]], matrices: frozenset[str]) -> bool:
    works = [Counter(packet_of(n.op) for n in nodes if not (is_view(n.op) or packet_of(n.op) in _CASTS)) for nodes in entries]
    may = [work.total() > 1 and any(matrices.intersection(n.inputs) for n in nodes) for work, nodes in zip(works, entries)]
    return are_blocks(works, may)


def are_blocks(works: Sequence[Counter[str]], may: Sequence[bool]) -> bool:
    """Whether entries that are alike make up most of a container.

    Args:
        works: what each entry does, by names of ops.
        may: whether it may be a block.
    """
    if len(works) == 1:  # a row of one
        return may[0]
    kinds = Counter(frozenset(work.items()) for work, fit in zip(works, may) if fit)
    alike = {kind for kind, count in kinds.items() if count > 1 or any(_are_alike(Counter(dict(kind)), Counter(dict(other))) for other in kinds if other != kind)}
    held = sum(work.total() for work, fit in zip(works, may) if fit and frozenset(work.items()) in alike)
    return 2 * held > sum(work.total() for work in works)


def _are_alike(a: Counter[str], b: Counter[str]) -> bool:
    return 2 * (a & b).total() >= max(a.total(), b.total())
