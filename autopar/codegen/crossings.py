"""Crossings: how values get from the function that makes them to the functions that read them.

In: a program's local graph and its items (`loops.order_items`). Out: for every loop how each outside value of its block reaches it, and
for every value that crosses functions the place where it is kept meanwhile. Six ways into a block:

    state    the block's own parameter, buffer or optimizer state: `state[f"h.{i}.w"]`
    shared   the same value for all blocks (a mask): an argument
    carried  made by the block before in the loop (the residual stream): argument in, return value out
    ahead    started for it while the block before ran: argument
    kept     what this block's earlier function left for it (saved activations): `h[i]["name"]`
    listed   anything else: one entry per block in a list made before the loop

Invariant: the last reader of a kept value takes it out, so memory is held as long as the graph says and no longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..graph.graph import Graph
from ..graph.kernel import rewritten_early
from ..graph.node import Phase
from ..graph.repeats import name_by_block
from ..graph.sections import Section
from .expression import identifier
from .loops import Item
from .rows import Loop, Row, outside_names


@dataclass(frozen=True, slots=True)
class Entry:
    """How one outside value of a block (by order of first use) comes in. `names[j]` is the value for block j."""

    way: str  # state | shared | carried | ahead | kept | listed
    names: tuple[str, ...]
    key: str = ""  # kept: the name under which the block left it


@dataclass(slots=True)
class LoopTable:
    """A loop's entries, and what its function leaves: own outputs (position, output) or entries, by key; what it returns for the next block of its row, which may be of another kind."""

    row: Row
    loop: Loop
    entries: list[Entry]
    returns: tuple[tuple[int, int], ...] = ()
    keeps: dict[str, tuple[str, ...]] = field(default_factory=dict)  # key -> value per block
    own_keys: dict[tuple[int, int], str] = field(default_factory=dict)
    entry_keys: dict[int, str] = field(default_factory=dict)

    @property
    def begins(self) -> bool:
        """Whether the first block of the row is of this kind."""
        return self.loop.blocks[0].index == self.row.numbers[0]

    def go_on(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Of a value per block, those of blocks that another of the row comes after."""
        return values[:-1] if self.loop.blocks[-1].index == self.row.numbers[-1] else values


@dataclass(slots=True)
class Crossings:
    """All of it, for one program.

    Args:
        loops: one table per loop, by id of the loop.
        function_of: node index -> ("section",) or ("loop", loop index, block number in the loop).
        kept_at: value -> where blocks keep it for readers outside of loops, as (family, block index, key); the first is its maker's.
    """

    loops: list[LoopTable]
    function_of: dict[int, tuple]
    kept_at: dict[str, list[tuple[str, int, str]]]


def find_crossings(graph: Graph, items: dict[Section, list[Item]], in_turns: bool) -> Crossings:
    """Decide the way of every value that crosses functions.

    Args:
        in_turns: what leaves the step goes through `grads`, as all that outlives a turn.
    """
    function_of: dict[int, tuple] = {i: ("section",) for i in range(len(graph.nodes))}
    loops = [(row, kind) for section in items for row in items[section] if isinstance(row, Row) for kind in range(len(row.loops))]
    for k, loop in enumerate(row.loops[kind] for row, kind in loops):
        for j, block in enumerate(loop.blocks):
            for i in block.nodes:
                function_of[i] = ("loop", k, j)
    rewritten = frozenset(new for _, new in rewritten_early(graph))  # which everybody reads from the state
    entering = rewritten.union(graph.inputs)
    tables: list[LoopTable] = []
    taken: dict[str, set[str]] = {}
    for row, kind in loops:
        loop, (carried, returns) = row.loops[kind], row.flows[kind]
        table = LoopTable(row, loop, [], returns)
        tables.append(table)
        outside = [outside_names(graph, block.nodes) for block in loop.blocks]
        names_here = taken.setdefault(loop.family, set())
        for place, names in enumerate(zip(*outside)):
            table.entries.append(Entry("carried", names) if place in carried else _find_way(graph, table, names, entering, tables, names_here))
    crossings = Crossings(tables, function_of, {})
    _keep_for_outsiders(graph, crossings, taken, in_turns)
    return crossings


def _positions(graph: Graph, loop: Loop, j: int) -> dict[str, tuple[int, int]]:
    return {out: (p, k) for p, i in enumerate(loop.blocks[j].nodes) for k, out in enumerate(graph.nodes[i].outputs) if out}


def _find_way(
    graph: Graph, table: LoopTable, names: tuple[str, ...], entering: frozenset[str], tables: list[LoopTable], taken: set[str]
) -> Entry:
    loop = table.loop
    if all(n in entering for n in names):
        if all("@" in n for n in names) and name_by_block(names, [b.index for b in loop.blocks]) is not None:
            return Entry("state", names)
    if len(set(names)) == 1:
        return Entry("shared", names)
    if any(n in entering and n not in graph.inputs for n in names):  # nobody has kept what is read from a state
        return Entry("listed", names)
    if loop.ahead and all(any(name in graph.nodes[i].outputs for i in block.nodes) for name, block in zip(names, loop.ahead)):
        return Entry("ahead", names)
    for other in tables[:-1]:
        key = _kept_key(graph, other, loop, names, taken)
        if key:
            return Entry("kept", names, key=key)
    return Entry("listed", names)


def _kept_key(graph: Graph, other: LoopTable, loop: Loop, names: tuple[str, ...], taken: set[str]) -> str:
    """The key under which `other`'s block of the same number has each of these values, "" where it has not."""
    if other.loop.family != loop.family:
        return ""
    number = {block.index: j for j, block in enumerate(other.loop.blocks)}
    if not all(block.index in number for block in loop.blocks):
        return ""
    places = [number[block.index] for block in loop.blocks]
    own = {_positions(graph, other.loop, j).get(name) for j, name in zip(places, names)}
    if len(own) == 1 and None not in own:
        position = own.pop()
        per_block = tuple(graph.nodes[b.nodes[position[0]]].outputs[position[1]] for b in other.loop.blocks)
        if position not in other.own_keys:
            other.own_keys[position] = _fresh_key(per_block[0], taken)
            other.keeps[other.own_keys[position]] = per_block
        return other.own_keys[position]
    for p, entry in enumerate(other.entries):
        if entry.way in ("carried", "listed", "kept") and all(entry.names[j] == name for j, name in zip(places, names)):
            if entry.way == "kept":
                return entry.key
            if p not in other.entry_keys:
                other.entry_keys[p] = _fresh_key(entry.names[-1] + "_in", taken)
                other.keeps[other.entry_keys[p]] = entry.names
            return other.entry_keys[p]
    return ""


def _fresh_key(name: str, taken: set[str]) -> str:
    key = base = identifier(name)
    count = 1
    while key in taken:
        count += 1
        key = f"{base}_{count}"
    taken.add(key)
    return key


def _keep_for_outsiders(graph: Graph, crossings: Crossings, taken: dict[str, set[str]], in_turns: bool) -> None:
    """Values that blocks make and readers outside of the loop need (not the last one's carried value): kept by the block.

    What the update reads goes through the dict of gradients instead, and so does what leaves a step that takes its batch in turns.
    """
    readers = {
        name
        for i, node in enumerate(graph.nodes)
        if crossings.function_of[i][0] == "section" and node.phase is not Phase.UPDATE
        for name in node.inputs
    }
    if not in_turns:
        readers |= {graph.loss, *graph.outputs}
    readers |= {name for t in crossings.loops for e in t.entries if e.way in ("listed", "shared") for name in e.names}
    readers |= {e.names[0] for t in crossings.loops if t.begins for e in t.entries if e.way == "carried"}
    readers -= {new for _, new in rewritten_early(graph)}
    for table in crossings.loops:
        carried = set(table.returns)
        for p, i in enumerate(table.loop.blocks[0].nodes):
            for k in range(len(graph.nodes[i].outputs)):
                values = tuple(graph.nodes[b.nodes[p]].outputs[k] for b in table.loop.blocks)
                wanted = [v for v in (table.go_on(values) if (p, k) in carried else values) if v in readers]
                if wanted and (p, k) not in table.own_keys:
                    key = _fresh_key(values[0], taken[table.loop.family])
                    table.own_keys[(p, k)] = key
                    table.keeps[key] = values
        for position, key in table.own_keys.items():
            # what the last block of the row returns has a name where the loop stands
            held = table.go_on(table.keeps[key]) if position in carried else table.keeps[key]
            for block, value in zip(table.loop.blocks, held):
                crossings.kept_at.setdefault(value, []).append((table.loop.family, block.index, key))
    for table in crossings.loops:
        for key in table.entry_keys.values():  # left by a block for a later function of its own that is not in a loop
            takers = {b.index for t in crossings.loops if t.loop.family == table.loop.family for e in t.entries if e.key == key for b in t.loop.blocks}
            for block, value in zip(table.loop.blocks, table.keeps[key]):
                if block.index not in takers:
                    crossings.kept_at.setdefault(value, []).append((table.loop.family, block.index, key))
