"""Repeats: which nodes are copies of each other, so that one block stands for ninety-six.

In: a graph (whole, or a program's local one), flat. Out: groups of equal blocks, and the `Fold`: for each node and value the one that
stands for it. A block is the nodes of one numbered module (`transformer.h.3`, outermost number first) in one phase, in order; of modules that are numbered by
their names (`layer3`), where `graph.sequences` says that they are a row. Two blocks are equal when their signatures are: the same ops, arguments, shapes and dtypes, reading at each place the same own node,
own state (by its name inside the block), or outside value (by order of first use). Unfolding is exact by construction: every node
keeps its own entry, the fold only says who decides for it. Entries of a container that is no row of blocks (`graph.sequences`) decide for
themselves, as modules with names would, unless `MANY` are equal: nobody gives so many a name each, and a plan of a hundred heads takes its time.

It does not cut the graph or reorder it; loops are made where the program is printed (`codegen`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .graph import Graph, entering_values, value_table
from .in_step import find_leads
from .node import Phase
from .tensor import STATE_KINDS

MANY = 16
_LEAF = frozenset(("weight", "bias"))  # of a linear, a norm, an embedding alone
_DIGITS = re.compile(r"\d+")
_NUMBER = re.compile(r"0|[1-9]\d*")  # at the end of a name; not `01`, which is no number's text
BY_HAND = "*"  # ends the family of modules that are numbered by their names: `layer*` of `layer0`, `layer1`


@dataclass(frozen=True, slots=True)
class Block:
    """The nodes (indices in order) of one numbered module in one phase."""

    index: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Equal blocks of one family (`transformer.h`) in one phase, by ascending number; `nodes[k]` of each correspond."""

    family: str
    phase: Phase
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Who decides for whom.

    Args:
        node_class: for each node the index of the node that stands for it (its own index where it stands for itself).
        value_class: for each value the name of the value that stands for it.
    """

    node_class: tuple[int, ...]
    value_class: dict[str, str]


def block_of(path: str, sequences: Collection[str] = ()) -> tuple[str, int] | None:
    """(family, number) of the outermost numbered module on a path: `h.3.attn` -> (`h`, 3); None where there is none.

    Args:
        sequences: containers whose entries are no blocks, their numbers are passed over; and families of modules numbered by their names (`layer*`), whose numbers count (`Graph.sequences`).
    """
    for place in numbers_on(path):
        if (place[0] in sequences) == place[0].endswith(BY_HAND):
            return place
    return None


def block_path(family: str, index: int | str) -> str:
    """The path of a block: `h` and 3 -> `h.3`; `layer*` and 3 -> `layer3`. An index may be a text for many."""
    return f"{family.removesuffix(BY_HAND)}{index}" if family.endswith(BY_HAND) else f"{family}.{index}" if family else f"{index}"


def only_by_hand(sequences: Collection[str]) -> tuple[str, ...]:
    """Of a graph's `sequences` the families of modules numbered by their names."""
    return tuple(family for family in sequences if family.endswith(BY_HAND))


def number_of(name: str, sequences: Collection[str] = ()) -> tuple[str, int] | None:
    """The block that a state's name is in, or its first number where it is in none."""
    lead, colon, own = name.rpartition(":")
    place = block_of(own, sequences)
    return (f"{lead}{colon}{place[0]}", place[1]) if place and (place[0] or not lead) else block_of(name)


def name_pattern(name: str, sequences: Collection[str] = ()) -> tuple[tuple[str, str], int]:
    """((family, rest), number) of a state's name: `h.3.w` -> ((`h`, `.w`), 3); the name as a family, and -1, where it has no number."""
    family, number = number_of(name, sequences) or (name, -1)
    return (family, name[len(block_path(family, number)) :] if number >= 0 else ""), number


def name_patterns(names: Sequence[str], sequences: Collection[str] = ()) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """(family, rest) -> its names with their numbers, ascending: `("h", ".w"): [(0, "h.0.w"), (1, "h.1.w")]`, in the order in which they first appear. A name without a number is a family,
    with number -1.

    Args:
        sequences: containers whose entries are no blocks (`Graph.sequences`).
    """
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for name in names:
        key, number = name_pattern(name, sequences)
        found.setdefault(key, []).append((number, name))
    return {key: sorted(rows) for key, rows in found.items()}


def blocks_in_step(graph: Graph) -> list[tuple[str, int] | None]:
    """The block of each node, as `block_of` says; of containers that are in step with others (`graph.in_step`), the one block that they are together."""
    by_hand = only_by_hand(graph.sequences)
    outermost, leads = [block_of(node.path, by_hand) for node in graph.nodes], _leads_in_step(graph, by_hand)
    return [(leads[place[0]], place[1]) if place is not None and place[0] in leads else block_of(node.path, graph.sequences) for place, node in zip(outermost, graph.nodes)]


def _leads_in_step(graph: Graph, by_hand: Collection[str]) -> dict[str, str]:
    """Of each container that is in step with others, the first of them. Args: by_hand: of the graph (`only_by_hand`)."""
    leads = find_leads(place for node in graph.nodes if node.phase is Phase.FORWARD and (place := block_of(node.path, by_hand)) is not None)
    several = {lead for family, lead in leads.items() if family != lead}
    return {family: lead for family, lead in leads.items() if lead in several}


@lru_cache(maxsize=1 << 14)
def numbers_on(path: str) -> tuple[tuple[str, int], ...]:
    """(family, number) of every number that ends a name on a path, outermost first: `h.3.ln_1` -> (`h`, 3), (`h.3.ln_*`, 1)."""
    found, start = [], 0
    for part in path.split("."):
        stem = part.rstrip("0123456789")
        if _NUMBER.fullmatch(part, len(stem)):
            found.append((f"{path[:start]}{stem}{BY_HAND}" if stem else path[: max(start - 1, 0)], int(part[len(stem) :])))
        start += len(part) + 1
    return tuple(found)


def relative_name(name: str, family: str, index: int) -> str | None:
    """The name of a state inside its block (`exp_avg:h.3.w@0` -> `exp_avg:#.w@0`), None where it belongs to none or another."""
    prefix = f"{block_path(family, index)}."
    place = name.find(prefix)
    if place < 0 or (place and name[place - 1] not in ":"):
        return None
    return f"{name[:place]}#.{name[place + len(prefix) :]}"


def name_by_block(names: Sequence[str], indices: Sequence[int]) -> str | None:
    """The names of blocks' own things as one text with the block's number `i` in it: `h.0.w`, `h.1.w` -> `h.{i}.w`; also `gates.{i + 1}`, `m{3 - i}`, of things that lie beside the row. None where
    no such text has all of them, or they are the same.

    Args:
        indices: of the blocks.
    """
    texts, rows = [_DIGITS.split(name) for name in names], [[int(number) for number in _DIGITS.findall(name)] for name in names]
    plain = all("".join(part + str(number) for part, number in zip(text, [*row, ""])) == name for name, text, row in zip(names, texts, rows))  # no number begins with 0
    if len(set(names)) < 2 or any(text != texts[0] for text in texts) or not plain or any("{" in name or "}" in name for name in names):
        return None
    found = texts[0][0]
    for part, *numbers in zip(texts[0][1:], *rows):
        more, whole = numbers[0] - indices[0], numbers[0] + indices[0]
        if len(set(numbers)) == 1:
            found += str(numbers[0])
        elif all(number - i == more for number, i in zip(numbers, indices)):
            found += "{i}" if not more else f"{{i {'+' if more > 0 else '-'} {abs(more)}}}"
        elif all(number + i == whole for number, i in zip(numbers, indices)):
            found += f"{{{whole} - i}}"
        else:
            return None
        found += part
    return found


def state_blocks(graph: Graph) -> dict[str, tuple[str, int]]:
    """The block of each state that enters the graph, by the state's storage; none for a state that is in no block.

    An embedding, a norm or a head may be an entry of the row (`nn.Sequential(embed, *blocks, norm, head)`) and is no block for that: a block has more than one
    `weight` and `bias`, and in a row of several it shares names with another, at least half of those of the shorter. So the spelling of a row does not matter.
    What is in containers that are in step with each other is in the block that they are together.
    """
    rows: dict[str, dict[int, list[str]]] = {}
    by_hand = only_by_hand(graph.sequences)
    leads, together = _leads_in_step(graph, by_hand), {}
    for value in entering_values(graph):
        path = value.storage.rpartition(":")[2]
        if value.kind not in STATE_KINDS:
            continue
        if (place := block_of(path, by_hand)) is not None and place[0] in leads:
            together[value.storage] = leads[place[0]], place[1]
        elif (place := block_of(path, graph.sequences)) is not None:
            rows.setdefault(place[0], {}).setdefault(place[1], []).append(value.storage)
    found: dict[str, tuple[str, int]] = {}
    for family, entries in rows.items():
        inner = {index: {str(relative_name(storage, family, index)).rpartition("#.")[2] for storage in storages} for index, storages in entries.items()}
        kinds = Counter(map(frozenset, inner.values()))
        alike = {kind for kind in kinds if kind - _LEAF and (len(entries) == 1 or kinds[kind] > 1 or any(_share_names(kind, other) for other in kinds if other != kind))}
        found |= {storage: (family, index) for index, storages in entries.items() if inner[index] in alike for storage in storages}
    return found | together


def _share_names(a: Collection[str], b: Collection[str]) -> bool:
    return 2 * len(set(a).intersection(b)) >= min(len(a), len(b))


def shift_name(name: str, shift: Mapping[str, int]) -> str:
    """A state's name (`exp_avg:h.3.w`) or a path, its block's number moved on by what its family says; as it is where none is named."""
    lead, colon, own = name.rpartition(":")
    for family, number in numbers_on(own):
        if family in shift:
            return f"{lead}{colon}{block_path(family, number + shift[family])}{own[len(block_path(family, number)) :]}"
    return name


def find_repeats(graph: Graph, places: Sequence[tuple[str, int] | None] | None = None) -> tuple[Repeat, ...]:
    """Groups of at least two equal blocks, in order of their first node. Entries of containers that are no row of blocks are such, too.

    Args:
        places: the block of each node, where it is another than its path says (`blocks_in_step`).
    """
    members: dict[tuple[Phase, str, int], list[int]] = {}
    for i, (node, place) in enumerate(zip(graph.nodes, places or [block_of(node.path, graph.sequences) for node in graph.nodes])):
        place = place or block_of(node.path)
        if place is not None:
            members.setdefault((node.phase, *place), []).append(i)
    values = value_table(graph)
    entering = frozenset(graph.inputs)
    groups: dict[tuple[Phase, str, tuple], list[Block]] = {}
    for (phase, family, index), nodes in members.items():
        signature = _signature(graph, values, entering, family, index, nodes)
        groups.setdefault((phase, family, signature), []).append(Block(index, tuple(nodes)))
    found = [
        Repeat(family, phase, tuple(sorted(blocks, key=lambda b: b.index)))
        for (phase, family, _), blocks in groups.items()
        if len(blocks) >= (MANY if family in graph.sequences and not family.endswith(BY_HAND) else 2)
    ]
    return tuple(sorted(found, key=lambda r: min(b.nodes[0] for b in r.blocks)))


def _signature(graph: Graph, values: dict, entering: frozenset[str], family: str, index: int, nodes: list[int]) -> tuple:
    own: dict[str, tuple] = {}
    outside: dict[str, tuple] = {}
    rows = []
    for position, i in enumerate(nodes):
        node = graph.nodes[i]
        refs = []
        for name in node.inputs:
            ref = own.get(name) or outside.get(name)
            if ref is None:
                inner = relative_name(name, family, index) if name in entering else None
                ref = ("state", inner) if inner else ("outside", len(outside))
                outside[name] = ref
            refs.append(ref)
        kinds = []
        for k, name in enumerate(node.outputs):
            if name:
                own[name] = ("own", position, k)
                value = values[name]
                kinds.append((value.shape, value.dtype, value.kind))
            else:
                kinds.append(None)
        rows.append((node.op, node.args, tuple(refs), tuple(values[n].shape for n in node.inputs), tuple(kinds)))
    return tuple(rows)


def fold_graph(graph: Graph, repeats: tuple[Repeat, ...] | None = None) -> Fold:
    """The fold of a graph: nodes, their outputs and the states they read are decided by the lowest-numbered equal block."""
    repeats = find_repeats(graph) if repeats is None else repeats
    node_class = list(range(len(graph.nodes)))
    parent = {v.name: v.name for v in graph.values}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    entering = {name: k for k, name in enumerate(graph.inputs)}
    for repeat in repeats:
        first = repeat.blocks[0]
        for block in repeat.blocks[1:]:
            for mine, theirs in zip(block.nodes, first.nodes):
                node_class[mine] = theirs
                for a, b in zip(graph.nodes[mine].outputs, graph.nodes[theirs].outputs):
                    if a:
                        parent[a] = root(b)
                for a, b in zip(graph.nodes[mine].inputs, graph.nodes[theirs].inputs):
                    if a in entering and b in entering and relative_name(a, repeat.family, block.index):
                        low, high = sorted((root(a), root(b)), key=entering.__getitem__)
                        parent[high] = low
    return Fold(tuple(node_class), {name: root(name) for name in parent})


def identity_fold(graph: Graph) -> Fold:
    """Every node decides for itself."""
    return Fold(tuple(range(len(graph.nodes))), {v.name: v.name for v in graph.values})


def class_counts(fold: Fold) -> dict[int, int]:
    """For each deciding node: for how many nodes it stands."""
    return dict(Counter(fold.node_class))
