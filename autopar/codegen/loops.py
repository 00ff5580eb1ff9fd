"""Loops: in which order a program is printed, and which equal blocks become one function called in a loop.

In: a program's local graph and its sections. Out: for each section the items to print, in an order that respects every dependency: single nodes, or a
`Row` of blocks that run one after another: of one kind, or of several that take turns. Invariant: every node stands in exactly one item; a row is made only
where the blocks can run back to back. It changes nothing but the order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from ..graph.graph import Graph, producer_table, use_table
from ..graph.kernel import written_states
from ..graph.node import Phase
from ..graph.program import CUTS, STARTS, WAIT
from ..graph.repeats import Block, Repeat, find_repeats, name_by_block, place_nodes
from ..graph.sections import Section, list_sections
from ..graph.turns import ACCUMULATE
from ..graph.update_lots import group_parts
from ..graph.update_parts import Part, role_of, update_parts


@dataclass(frozen=True, slots=True)
class Loop:
    """Equal blocks in execution order: `blocks[j].nodes[k]` correspond for all j.

    Args:
        ahead: of each block the nodes that bring what it will read and need nothing but states: they run while the block before runs. Empty where there are
            none.
        lags: its nodes end what the loop of the same blocks has started, each after the next block has run (`find_lagging`).
    """

    family: str
    section: Section
    blocks: tuple[Block, ...]
    ahead: tuple[Block, ...] = ()
    lags: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Blocks that run back to back: one loop of the text, which calls a function for each kind of them.

    Args:
        loops: of one family and section, the blocks of one kind each, among which all of the row are.
        numbers: of the blocks, in the order in which they run, up or down; in equal steps where they start something ahead or end something late.
    """

    loops: tuple[Loop, ...]
    numbers: tuple[int, ...]

    @property
    def family(self) -> str:
        return self.loops[0].family

    @property
    def section(self) -> Section:
        return self.loops[0].section

    @property
    def lags(self) -> bool:
        return self.loops[0].lags

    def in_order(self) -> list[tuple[int, int]]:
        """(kind, number among its blocks) of each block, as they run."""
        places = {block.index: (k, j) for k, loop in enumerate(self.loops) for j, block in enumerate(loop.blocks)}
        return [places[number] for number in self.numbers]


Item = Union[int, Row]
Rows = tuple[Row, ...]  # a row, and the one that lags behind it, if there is one


def order_items(graph: Graph, sections: Sequence[Section], leaving: frozenset[str] = frozenset(), grads: Mapping[str, str] | None = None) -> dict[Section, list[Item]]:
    """The items of each section but the update, loops where possible.

    Args:
        sections: of each node (`graph.sections`).
        leaving: what blocks must all put into `grads`, or none of a loop.
        grads: value -> the parameter whose gradient it is.
    """
    uses, found = use_table(graph), dict[Section, list[Item]]()
    there: dict[tuple[str, Section], set[int]] = {}
    for place, section in zip(place_nodes(graph, in_step=True), sections):
        if place is not None:
            there.setdefault((place[0], section), set()).add(place[1])
    kinds = _list_kinds(graph, uses, [repeat for repeat in find_repeats(graph, in_step=True) if repeat.phase is not Phase.UPDATE], sections, leaving)

    def fits(rows: Rows | None) -> bool:
        return rows is not None and all(_can_say(graph, loop, grads or {}) for row in rows for loop in row.loops) and all(find_flows(graph, row) is not None for row in rows)

    for section in list_sections(sections):
        if section.phase is Phase.UPDATE:
            continue
        rows, plain = list[Rows](), dict[Rows, list[Rows]]()  # of rows of several kinds: what there is instead
        for stretch in (s for (family, where), members in kinds.items() if where == section for s in _stretches(members, sorted(there[family, section]))):
            mixed = _make_rows(graph, uses, stretch) if _take_turns(stretch) else None
            alone = [made for run in _runs(stretch) if fits(made := _make_rows(graph, uses, run))]
            if mixed is not None and fits(mixed):
                plain[mixed] = alone  # type: ignore[assignment]
            rows += [mixed] if mixed in plain else alone  # type: ignore[list-item]
        nodes = [i for i, s in enumerate(sections) if s == section]
        while (order := _sort(graph, nodes, [row for one in rows for row in one])) is None:
            # a row cannot be contracted: give up taking turns, or the shortest, with what lags behind it, and try again
            gone = min(rows, key=lambda one: (one not in plain, len(one[0].numbers)))
            rows = [*(one for one in rows if one is not gone), *plain.get(gone, [])]
        found[section] = order
    return found


Member = tuple[Loop, int]  # a kind and a block of it
Kinds = dict[tuple[str, Section], list[Member]]


def _list_kinds(graph: Graph, uses: Mapping[str, Sequence[tuple[int, int]]], repeats: Iterable[Repeat], sections: Sequence[Section], leaving: frozenset[str]) -> Kinds:
    """Of each family and section its blocks in the order in which they run, of kinds that have several. Of one kind are equal blocks that have the same part of themselves there, of which
    others read the same."""
    found: Kinds = {}
    for repeat in repeats:
        groups: dict[tuple, list[Block]] = {}
        for block in repeat.blocks:
            for section in dict.fromkeys(sections[i] for i in block.nodes):
                places = tuple(p for p, i in enumerate(block.nodes) if sections[i] == section)
                mine = {block.nodes[p] for p in places}
                made = {(p, k): out for p in places for k, out in enumerate(graph.nodes[block.nodes[p]].outputs) if out}
                left = tuple(place for place, out in made.items() if any(i not in mine for i, _ in uses[out]))
                gone = tuple(place for place, out in made.items() if out in leaving)
                groups.setdefault((section, places, left, gone), []).append(Block(block.index, tuple(block.nodes[p] for p in places)))
        for (section, *_), blocks in groups.items():
            if len(blocks) > 1:
                kind = Loop(repeat.family, section, tuple(sorted(blocks, key=lambda b: b.nodes[0])))
                found.setdefault((repeat.family, section), []).extend((kind, j) for j in range(len(blocks)))
    return {place: sorted(members, key=lambda m: m[0].blocks[m[1]].nodes[0]) for place, members in found.items()}


def _stretches(members: Sequence[Member], numbers: Sequence[int]) -> list[list[Member]]:
    """Maximal runs of neighbours, up or down, in the order in which they run.

    Args:
        numbers: of all blocks that have a part in the section, ascending: two are neighbours where none of these is between them.
    """
    found: list[list[Member]] = []
    places: list[int] = []  # of the last run, among `numbers`
    for member in members:
        place = numbers.index(member[0].blocks[member[1]].index)
        if places and abs(place - places[-1]) == 1 and (len(places) == 1 or place - places[-1] == places[1] - places[0]):
            found[-1].append(member)
            places.append(place)
        else:
            found.append([member])
            places = [place]
    return found


def _runs(stretch: Sequence[Member]) -> list[list[Member]]:
    """Of a stretch the neighbours of one kind, where there are several."""
    runs: list[list[Member]] = []
    for member in stretch:
        if runs and runs[-1][-1][0] is member[0]:
            runs[-1].append(member)
        else:
            runs.append([member])
    return [run for run in runs if len(run) > 1]


def _take_turns(stretch: Sequence[Member]) -> bool:
    """True where a kind comes again after another."""
    kinds = [id(kind) for kind, _ in stretch]
    return sum(a != b for a, b in zip(kinds, kinds[1:])) >= len(set(kinds))


def _make_rows(graph: Graph, uses: Mapping[str, Sequence[tuple[int, int]]], members: Sequence[Member]) -> Rows | None:
    """The row of these blocks, and the one that lags behind it; None where its kinds are not alike in that, or in what they start ahead, or have one block alone."""
    entering, numbers = frozenset(graph.inputs), tuple(kind.blocks[j].index for kind, j in members)
    firsts = [kind.blocks[j].nodes[0] for kind, j in members]
    following = dict(zip(numbers, firsts[1:]))
    whole: dict[int, tuple[Loop, list[Block]]] = {}
    for kind, j in members:
        whole.setdefault(id(kind), (kind, []))[1].append(kind.blocks[j])
    parted = [_part_lagging(graph, uses, Loop(kind.family, kind.section, tuple(blocks)), following) for kind, blocks in whole.values()]
    looped = [tuple(_look_ahead(graph, entering, uses, part) for part in parts) for parts in parted]
    if len({len(parts) for parts in looped}) > 1 or len({bool(parts[0].ahead) for parts in looped}) > 1 or (len(looped) > 1 and any(len(parts[0].blocks) < 2 for parts in looped)):
        return None
    rows = tuple(Row(loops, numbers) for loops in zip(*looped))
    if (len(rows) > 1 or rows[0].loops[0].ahead) and len({b - a for a, b in zip(numbers, numbers[1:])}) > 1:
        return None
    return rows if all(_runs_in_order(graph, row) for row in rows) else None


def outside_names(graph: Graph, nodes: Iterable[int]) -> list[str]:
    """What these nodes read and do not make, in the order of first use."""
    made: set[str] = set()
    names: dict[str, None] = {}
    for i in nodes:
        for name in graph.nodes[i].inputs:
            if name not in made:
                names.setdefault(name)
        made.update(graph.nodes[i].outputs)
    return list(names)


Flow = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


def find_flows(graph: Graph, row: Row) -> tuple[Flow, ...] | None:
    """Of each kind: which of its outside names the block before has made (by place among them), and what of its own (node, output) is the next block's in that place. None where a block reads
    something of the row that is not of the block before, or the kinds do not pass the same on."""
    order = row.in_order()
    blocks = [row.loops[k].blocks[j].nodes for k, j in order]
    outside = [outside_names(graph, nodes) for nodes in blocks]
    made = [{out: (p, n) for p, i in enumerate(nodes) for n, out in enumerate(graph.nodes[i].outputs) if out} for nodes in blocks]
    there: set[str] = set()
    carried: list[set[int] | None] = [None] * len(row.loops)
    sources: dict[tuple[int, int, int], set[tuple[int, int]]] = {}  # kind before, kind, place -> of what it is
    for t, (kind, _) in enumerate(order):
        mine = {e for e, name in enumerate(outside[t]) if name in there}
        if any(outside[t][e] not in made[t - 1] for e in mine) or (t and carried[kind] not in (None, mine)):
            return None
        if t:
            carried[kind] = mine
            for e in mine:
                sources.setdefault((order[t - 1][0], kind, e), set()).add(made[t - 1][outside[t][e]])
        there.update(made[t])
    places = [tuple(sorted(mine or ())) for mine in carried]
    if len({len(mine) for mine in places}) > 1 or any(len(found) > 1 for found in sources.values()):
        return None
    flows = []
    for before in range(len(row.loops)):
        passed = {tuple(min(sources[before, kind, e]) for e in places[kind]) for kind in range(len(row.loops)) if all((before, kind, e) in sources for e in places[kind])}
        if len(passed) != 1:
            return None
        flows.append((places[before], passed.pop()))
    return tuple(flows)


def _can_say(graph: Graph, loop: Loop, grads: Mapping[str, str]) -> bool:
    """True where one text says, for every block, which states it writes or has brought ahead, and whose gradients it makes: they may lie outside of the row of blocks."""
    indices, states = [block.index for block in loop.blocks], {*graph.inputs}
    for row in zip(*(block.nodes for block in loop.ahead)):
        for names in zip(*(graph.nodes[i].inputs for i in row)):
            if states.issuperset(names) and len(set(names)) > 1 and name_by_block(names, indices) is None:
                return False
    for row in zip(*(block.nodes for block in loop.blocks)):
        nodes = [graph.nodes[i] for i in row]
        written = [[node.inputs[0]] if node.op == "state.write" else [state for state, _ in written_states(node)] for node in nodes]
        if any(name_by_block(states, indices) is None for states in zip(*written)):
            return False
        for outs in zip(*(node.outputs for node in nodes)):
            whose = [grads.get(out) for out in outs]
            if any(whose) and (None in whose or name_by_block(whose, indices) is None):  # type: ignore[arg-type]
                return False
    return True


def _part_lagging(graph: Graph, uses: Mapping[str, Sequence[tuple[int, int]]], loop: Loop, following: Mapping[int, int]) -> tuple[Loop, ...]:
    """The loop, and apart the waits that stand after the next block in all of its blocks but the last of the row, with the sums that they are for (`graph.overlap`).

    Args:
        following: number of a block -> the first node of the next.
    """
    late: set[int] = set()
    for p, i in enumerate(loop.blocks[0].nodes):
        after = [k for k, _ in uses[graph.nodes[i].outputs[0]]] if graph.nodes[i].op == WAIT else []
        if [graph.nodes[k].op for k in after] == [ACCUMULATE] and all(block.nodes[p] > following[block.index] for block in loop.blocks if block.index in following):
            late.update((p, loop.blocks[0].nodes.index(after[0])))
    if not late:
        return (loop,)
    rest = [p for p in range(len(loop.blocks[0].nodes)) if p not in late]

    def taken(places: Iterable[int]) -> tuple[Block, ...]:
        return tuple(Block(block.index, tuple(block.nodes[p] for p in places)) for block in loop.blocks)

    return Loop(loop.family, loop.section, taken(rest)), Loop(loop.family, loop.section, taken(sorted(late)), lags=True)


def find_lagging(row: Row, items: Iterable[Item]) -> Row | None:
    """Of the items of its section, the row that ends what this one starts."""
    apart = (item for item in items if isinstance(item, Row) and item.lags and not row.lags)
    return next((item for item in apart if item.family == row.family and item.numbers == row.numbers), None)


def _look_ahead(graph: Graph, entering: frozenset[str], uses: Mapping[str, Sequence[tuple[int, int]]], loop: Loop) -> Loop:
    """The loop, with what is started of states alone apart, local cuts before it included."""
    own = loop.blocks[0].nodes
    there = set(entering)
    early: list[int] = []
    for p, i in enumerate(own):
        node = graph.nodes[i]
        cut = node.op in CUTS and all(graph.nodes[k].op in STARTS for k, _ in uses[node.outputs[0]])
        if (node.op in STARTS or cut) and there.issuperset(node.inputs):
            early.append(p)
            there.update(node.outputs if cut else ())
    if not any(graph.nodes[own[p]].op in STARTS for p in early):
        return loop
    rest = [p for p in range(len(own)) if p not in early]
    ahead = tuple(Block(b.index, tuple(b.nodes[p] for p in early)) for b in loop.blocks)
    return Loop(loop.family, loop.section, tuple(Block(b.index, tuple(b.nodes[p] for p in rest)) for b in loop.blocks), ahead)


def _runs_in_order(graph: Graph, row: Row) -> bool:
    """True where each block reads nothing of a later block of the same row."""
    maker = producer_table(graph)
    order = row.in_order()
    place = {i: t for t, (k, j) in enumerate(order) for i in row.loops[k].blocks[j].nodes}
    return not any(
        place.get(maker[name][0], t) > t
        for t, (k, j) in enumerate(order) for i in row.loops[k].blocks[j].nodes for name in graph.nodes[i].inputs if name in maker
    )  # fmt: skip


def _sort(graph: Graph, nodes: list[int], rows: list[Row]) -> list[Item] | None:
    """The section's items sorted by dependency, earliest first node first; None where contracting the rows makes a circle."""
    owner = {i: -1 - k for k, row in enumerate(rows) for loop in row.loops for block in (*loop.blocks, *loop.ahead) for i in block.nodes}
    maker = {name: i for name, (i, _) in producer_table(graph).items()}
    inside = set(nodes)
    needs: dict[int, set[int]] = {}
    for i in nodes:
        mine = owner.get(i, i)
        sources = {owner.get(maker[n], maker[n]) for n in graph.nodes[i].inputs if n in maker and maker[n] in inside}
        needs.setdefault(mine, set()).update(sources - {mine})
    for before, after in _write_order(graph, nodes):
        mine, source = owner.get(after, after), owner.get(before, before)
        if mine != source:
            needs[mine].add(source)
    waiting = {key: len(sources) for key, sources in needs.items()}
    readers: dict[int, list[int]] = {}
    for key, sources in needs.items():
        for source in sources:
            readers.setdefault(source, []).append(key)
    first = {key: key if key >= 0 else min(loop.blocks[0].nodes[0] for loop in rows[-1 - key].loops) for key in needs}
    heap = [(first[key], key) for key, count in waiting.items() if not count]
    heapq.heapify(heap)
    order: list[Item] = []
    while heap:
        _, key = heapq.heappop(heap)
        order.append(key if key >= 0 else rows[-1 - key])
        for reader in readers.get(key, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(heap, (first[reader], reader))
    return order if len(order) == len(needs) else None


def _write_order(graph: Graph, nodes: list[int]) -> list[tuple[int, int]]:
    """(before, after): a state is written only after everything that reads the old version, in this phase, has run."""
    writes = {graph.nodes[i].inputs[0]: i for i in nodes if graph.nodes[i].op == "state.write"}
    return [(i, writes[name]) for i in nodes for name in graph.nodes[i].inputs if name in writes and writes[name] != i]


def split_update(graph: Graph, keys: Mapping[str, str], apart: frozenset[int]) -> tuple[list[tuple[Part, ...]], list[int]]:
    """The update phase as groups of parameters with the same update, and the nodes that are not one parameter's alone.

    A group's parts correspond node for node: same ops, arguments and references (states and gradients by their name beside the parameter's).

    Args:
        keys: value that an earlier phase makes and the update reads -> its key in `grads`.
        apart: nodes of the update phase that are printed elsewhere.
    """
    parts, rest = update_parts(graph, apart)
    return one_text_parts(graph, parts, keys), rest


def one_text_parts(graph: Graph, parts: Sequence[Part], keys: Mapping[str, str], shared: frozenset[str] = frozenset()) -> list[tuple[Part, ...]]:
    """Parts that one text can serve: it has their arguments in it, shapes and dims, too, and the names of what they take out of `grads` and leave there. The laws, which have no text
    (`graph.update_lots.alike_parts`), ask less.

    Args:
        keys: as of `split_update`.
        shared: what stays in `grads` when it was read.
    """

    def left(part: Part, name: str) -> str:
        return grad_text(keys[name], part.param) if name in keys else ""

    return [tuple(group) for group in group_parts(graph, parts, lambda node: node.args, lambda part, name: (grad_text(keys[name], part.param), name in shared), left)]


def beside_param(storage: str, param: str) -> str:
    """A state's name with its parameter's name as `{name}` (`exp_avg:{name}`), "" where it is of another parameter."""
    role = role_of(storage, param)
    return "" if role is None else f"{role}:{{name}}" if role else "{name}"


def grad_text(key: str, param: str) -> str:
    """The text that names an entry of `grads` in a function that has the parameter's name as `name`."""
    if key == param:
        return "name"
    return f'f"{{name}}{key[len(param) :]}"' if key.startswith(f"{param}~") else repr(key)
