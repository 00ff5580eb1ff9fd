"""Rows: which equal blocks become one function that is called in a loop.

In: a program's local graph and its sections. Out: for each section the rows of blocks that one loop may run: of one kind, or of several that take turns, with what there is instead where those
cannot be. A kind is equal blocks with the same part of themselves in the section; its function is the text for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph.graph import Graph, producer_table, use_table
from ..graph.kernel import written_states
from ..graph.node import Phase
from ..graph.program import CUTS, STARTS, WAIT
from ..graph.repeats import Block, Repeat, block_of, blocks_in_step, find_repeats, name_by_block
from ..graph.sections import Section
from ..graph.turns import ACCUMULATE


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


Flow = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """Blocks that run back to back: one loop of the text, which calls a function for each kind of them.

    Args:
        loops: of one family and section, the blocks of one kind each, among which all of the row are.
        numbers: of the blocks, in the order in which they run, up or down; in equal steps where they start something ahead or end something late.
        flows: what the blocks of each kind get from the block before, and pass on (`find_flows`).
    """

    loops: tuple[Loop, ...]
    numbers: tuple[int, ...]
    flows: tuple[Flow, ...] = ()

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


@dataclass(frozen=True, slots=True)
class Choice:
    """A row, and the one that lags behind it, if there is one; of a row of several kinds the rows that there are instead (None of others)."""

    rows: tuple[Row, ...]
    plain: tuple[Choice, ...] | None = None


def find_rows(graph: Graph, sections: Sequence[Section], leaving: frozenset[str], grads: Mapping[str, str]) -> dict[Section, list[Choice]]:
    """The rows of each section but the update. Arguments as of `loops.order_items`."""
    uses, there, found = use_table(graph), dict[tuple[str, Section], set[int]](), dict[Section, list[Choice]]()
    places = [place or block_of(node.path) for place, node in zip(blocks_in_step(graph), graph.nodes)]
    for place, section in zip(places, sections):
        if place is not None:
            there.setdefault((place[0], section), set()).add(place[1])

    def make(members: Sequence[Member]) -> tuple[Row, ...]:
        rows = _make_rows(graph, uses, members)
        passed = [find_flows(graph, row) for row in rows]
        if None in passed or not all(_can_say(graph, loop, grads) for row in rows for loop in row.loops):
            return ()
        return tuple(replace(row, flows=flows) for row, flows in zip(rows, passed) if flows is not None)

    repeats = [repeat for repeat in find_repeats(graph, places) if repeat.phase is not Phase.UPDATE]
    for (family, section), members in _list_kinds(graph, uses, repeats, sections, leaving).items():
        for stretch in _stretches(members, sorted(there[family, section])):
            plain = tuple(Choice(rows) for run in _runs(stretch) if (rows := make(run)))
            turning = make(stretch) if _take_turns(stretch) else ()
            found.setdefault(section, []).extend([Choice(turning, plain)] if turning else plain)
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


def _make_rows(graph: Graph, uses: Mapping[str, Sequence[tuple[int, int]]], members: Sequence[Member]) -> tuple[Row, ...]:
    """The row of these blocks, and the one that lags behind it; none where its kinds are not alike in that, or in what they start ahead, or have one block alone."""
    entering, numbers = frozenset(graph.inputs), tuple(kind.blocks[j].index for kind, j in members)
    firsts = [kind.blocks[j].nodes[0] for kind, j in members]
    following = dict(zip(numbers, firsts[1:]))
    whole: dict[int, tuple[Loop, list[Block]]] = {}
    for kind, j in members:
        whole.setdefault(id(kind), (kind, []))[1].append(kind.blocks[j])
    parted = [_part_lagging(graph, uses, Loop(kind.family, kind.section, tuple(blocks)), following) for kind, blocks in whole.values()]
    looped = [tuple(_look_ahead(graph, entering, uses, part) for part in parts) for parts in parted]
    if len({len(parts) for parts in looped}) > 1 or len({bool(parts[0].ahead) for parts in looped}) > 1 or (len(looped) > 1 and any(len(parts[0].blocks) < 2 for parts in looped)):
        return ()
    rows = tuple(Row(loops, numbers) for loops in zip(*looped))
    if (len(rows) > 1 or rows[0].loops[0].ahead) and len({b - a for a, b in zip(numbers, numbers[1:])}) > 1:
        return ()
    return rows if all(_runs_in_order(graph, row) for row in rows) else ()


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
