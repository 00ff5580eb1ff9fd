"""Sequences: numbered containers whose entries are no blocks, so that `nn.Sequential(Linear, GELU, Linear)` is planned as the same model with names is.

In: the graph of a step. Out: paths of containers. A container of numbered modules is a row of blocks (`h.0`, `h.1`, ...) where entries that are like another one
make up most of its forward pass; else it is a sequence, and what is inside of it is in the blocks that its entries have (`net.1.h.3`), or in none.

    an entry may be a block     it works with a matrix of its own (a parameter of two dims or more) and does something else beside that: a single linear does not
    two entries are alike       at least half of what the larger one does, the other does, too, by names of ops: widths and rates differ, a first block has an op more;
                                the only entry of a container needs no other

Containers whose entries take turns (`self.norm[i]`, `self.attn[i]`; `graph.in_step`) are judged together, as the one row of blocks that is spelled in lists side by side: a list of norms alone would be none.

Views and casts do not count. It decides for nobody: `repeats.block_of` passes over the numbers of sequences.

Modules may be numbered by their names alone, `layer0`, `layer1`, ... (a `setattr` in a loop, an `OrderedDict`). They are a row of blocks, `layer*`, where a few or more of them may be
blocks and do just what another does, on the same shapes, and that is most of what all of them do; not where there is a row inside of one (`layer1.0`, `layer1.1`). So `down1` to `down4` of a
U-Net, `fc1` and `fc2` are names like others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence

from .graph import Graph, value_table
from .in_step import find_leads
from .liveness import is_view
from .node import Node, Phase, packet_of
from .repeats import BY_HAND, block_of, numbers_on
from .tensor import Kind

FEWEST_BY_HAND = 4  # modules numbered by their names
_CASTS = frozenset(("aten._to_copy", "aten.clone"))


def find_sequences(graph: Graph) -> tuple[str, ...]:
    """Paths of the containers, of those with entries that run in the forward pass; "" is the model itself. And the families of blocks that are numbered by their names (`layer*`)."""
    values = value_table(graph)
    matrices = frozenset(name for name in graph.inputs if values[name].kind is Kind.PARAM and len(values[name].shape) > 1)
    forward = [node for node in graph.nodes if node.phase is Phase.FORWARD]
    found: set[str] = set()
    while True:
        places = [block_of(node.path, found) for node in forward]
        leads = find_leads(place for place in places if place is not None)
        entries: dict[str, dict[int, list[Node]]] = {}
        for node, place in zip(forward, places):
            if place is not None:
                entries.setdefault(leads[place[0]], {}).setdefault(place[1], []).append(node)
        rows = {family: _has_blocks(list(row.values()), matrices) for family, row in entries.items()}
        fresh = {family for family, lead in leads.items() if not rows[lead]}
        if not fresh:
            break
        found |= fresh

    def is_row(entries: list[list[int]]) -> bool:
        works = [Counter((forward[i].op, tuple(values[out].shape for out in forward[i].outputs if out)) for i in at if _counts(forward[i])) for at in entries]
        return are_by_hand(works, [work.total() > 1 and any(matrices.intersection(forward[i].inputs) for i in at) for work, at in zip(works, entries)])

    return tuple(sorted(found.union(find_by_hand([node.path for node in forward], found, is_row))))


def _has_blocks(entries: list[list[Node]], matrices: frozenset[str]) -> bool:
    works = [Counter(packet_of(n.op) for n in nodes if _counts(n)) for nodes in entries]
    may = [work.total() > 1 and any(matrices.intersection(n.inputs) for n in nodes) for work, nodes in zip(works, entries)]
    return are_blocks(works, may)


def _counts(node: Node) -> bool:
    return not (is_view(node.op) or packet_of(node.op) in _CASTS)


def find_by_hand(paths: Sequence[str], sequences: Collection[str], is_row: Callable[[list[list[int]]], bool]) -> frozenset[str]:
    """Families of blocks that are numbered by their names.

    Args:
        paths: of what runs in the forward pass, in order.
        sequences: containers whose entries are no blocks.
        is_row: whether such modules, each the places in `paths` of what it runs, are a row.
    """
    passed: set[str] = set()
    inside: dict[str, tuple[tuple[str, int], ...]] = {}  # path -> the modules that it is in and that may be such blocks, outermost first
    for path in dict.fromkeys(paths):
        places, own = numbers_on(path), block_of(path, sequences)
        inside[path] = tuple(place for place in (places if own is None else places[: places.index(own)]) if place[0].endswith(BY_HAND))
        passed.update(family for family, _ in inside[path] if own is not None)
    while True:
        entries: dict[str, dict[int, list[int]]] = {}
        for i, path in enumerate(paths):
            place = next((place for place in inside[path] if place[0] not in passed), None)
            if place is not None:
                entries.setdefault(place[0], {}).setdefault(place[1], []).append(i)
        fresh = {family for family, row in entries.items() if len(row) < FEWEST_BY_HAND or not is_row(list(row.values()))}
        if not fresh:
            return frozenset(entries)
        passed |= fresh


def are_by_hand(works: Sequence[Counter[Hashable]], may: Sequence[bool]) -> bool:
    """Whether modules that are numbered by their names are a row of blocks.

    Args:
        works: what each does, by names of ops and shapes.
        may: whether it may be a block.
    """
    kinds = Counter(frozenset(work.items()) for work, fit in zip(works, may) if fit)
    equal = [work for work, fit in zip(works, may) if fit and kinds[frozenset(work.items())] > 1]
    return len(equal) >= FEWEST_BY_HAND and 2 * sum(work.total() for work in equal) > sum(work.total() for work in works)


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
