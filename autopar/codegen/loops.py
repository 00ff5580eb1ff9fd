"""Loops: in which order a program is printed, and which equal blocks become one function called in a loop.

In: a program's local graph and its sections. Out: for each section the items to print, in an order that respects every dependency: single nodes, or a
`Loop` over equal blocks that run one after another. Invariant: every node stands in exactly one item; a loop is made only where the blocks
can run back to back. It changes nothing but the order.
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
from ..graph.repeats import Block, Repeat, find_repeats, name_by_block
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


Item = Union[int, Loop]


def order_items(graph: Graph, sections: Sequence[Section], leaving: frozenset[str] = frozenset(), grads: Mapping[str, str] | None = None) -> dict[Section, list[Item]]:
    """The items of each section but the update, loops where possible.

    Args:
        sections: of each node (`graph.sections`).
        leaving: what blocks must all put into `grads`, or none of a loop.
        grads: value -> the parameter whose gradient it is.
    """
    candidates = [parts for repeat in find_repeats(graph, in_step=True) if repeat.phase is not Phase.UPDATE for parts in _loops(graph, repeat, sections, leaving)]
    candidates = [parts for parts in candidates if all(_can_say(graph, loop, grads or {}) for loop in parts)]
    found: dict[Section, list[Item]] = {}
    for section in list_sections(sections):
        if section.phase is Phase.UPDATE:
            continue
        loops = [parts for parts in candidates if parts[0].section == section and all(_runs_in_order(graph, loop) for loop in parts)]
        nodes = [i for i, s in enumerate(sections) if s == section]
        order = _sort(graph, nodes, [loop for parts in loops for loop in parts])
        while order is None:  # a loop cannot be contracted: give up the shortest, and what lags behind it, and try again
            loops.remove(min(loops, key=lambda parts: len(parts[0].blocks)))
            order = _sort(graph, nodes, [loop for parts in loops for loop in parts])
        found[section] = order
    return found


def _loops(graph: Graph, repeat: Repeat, sections: Sequence[Section], leaving: frozenset[str]) -> list[tuple[Loop, ...]]:
    """The loops of equal blocks: of each section those that have the same part of themselves there, of which others read the same; with each the one that lags
    behind it, if there is one."""
    groups: dict[tuple, list[Block]] = {}
    uses = use_table(graph)
    for block in repeat.blocks:
        for section in dict.fromkeys(sections[i] for i in block.nodes):
            places = tuple(p for p, i in enumerate(block.nodes) if sections[i] == section)
            mine = {block.nodes[p] for p in places}
            made = {(p, k): out for p in places for k, out in enumerate(graph.nodes[block.nodes[p]].outputs) if out}
            left = tuple(place for place, out in made.items() if any(i not in mine for i, _ in uses[out]))
            gone = tuple(place for place, out in made.items() if out in leaving)
            groups.setdefault((section, places, left, gone), []).append(Block(block.index, tuple(block.nodes[p] for p in places)))
    entering = frozenset(graph.inputs)
    whole = [Loop(repeat.family, section, run) for (section, *_), blocks in groups.items() for run in _runs(blocks)]
    return [tuple(_look_ahead(graph, entering, uses, part) for part in _part_lagging(graph, uses, loop)) for loop in whole]


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


def _part_lagging(graph: Graph, uses: Mapping[str, Sequence[tuple[int, int]]], loop: Loop) -> tuple[Loop, ...]:
    """The loop, and apart the waits that stand after the next block in all of its blocks but the last, with the sums that they are for (`graph.overlap`)."""
    firsts = [block.nodes[0] for block in loop.blocks]
    late: set[int] = set()
    for p, i in enumerate(loop.blocks[0].nodes):
        after = [k for k, _ in uses[graph.nodes[i].outputs[0]]] if graph.nodes[i].op == WAIT else []
        if [graph.nodes[k].op for k in after] == [ACCUMULATE] and all(block.nodes[p] > first for block, first in zip(loop.blocks, firsts[1:])):
            late.update((p, loop.blocks[0].nodes.index(after[0])))
    if not late:
        return (loop,)
    rest = [p for p in range(len(loop.blocks[0].nodes)) if p not in late]

    def taken(places: Iterable[int]) -> tuple[Block, ...]:
        return tuple(Block(block.index, tuple(block.nodes[p] for p in places)) for block in loop.blocks)

    return Loop(loop.family, loop.section, taken(rest)), Loop(loop.family, loop.section, taken(sorted(late)), lags=True)


def find_lagging(loop: Loop, items: Iterable[Item]) -> Loop | None:
    """Of the items of its section, the loop that ends what this one starts."""
    numbers = [block.index for block in loop.blocks]
    apart = (item for item in items if isinstance(item, Loop) and item.lags and not loop.lags)
    return next((item for item in apart if item.family == loop.family and [block.index for block in item.blocks] == numbers), None)


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


def _runs(blocks: Sequence[Block]) -> list[tuple[Block, ...]]:
    """Maximal runs of neighbours (…, 2, 3, 4, … or downwards) in the order in which they execute."""
    blocks = sorted(blocks, key=lambda b: b.nodes[0])
    runs: list[list[Block]] = [[blocks[0]]]
    for before, block in zip(blocks, blocks[1:]):
        run = runs[-1]
        step = block.index - before.index
        if abs(step) == 1 and (len(run) == 1 or run[1].index - run[0].index == step):
            run.append(block)
        else:
            runs.append([block])
    return [tuple(run) for run in runs if len(run) > 1]


def _runs_in_order(graph: Graph, loop: Loop) -> bool:
    """True where each block reads nothing of a later block of the same loop."""
    maker = producer_table(graph)
    place = {i: j for j, block in enumerate(loop.blocks) for i in block.nodes}
    for j, block in enumerate(loop.blocks):
        for i in block.nodes:
            for name in graph.nodes[i].inputs:
                source = maker.get(name)
                if source and place.get(source[0], j) > j:
                    return False
    return True


def _sort(graph: Graph, nodes: list[int], loops: list[Loop]) -> list[Item] | None:
    """The section's items sorted by dependency, earliest first node first; None where contracting the loops makes a circle."""
    owner: dict[int, int] = {}
    for k, loop in enumerate(loops):
        for block in (*loop.blocks, *loop.ahead):
            for i in block.nodes:
                owner[i] = -1 - k
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
    first = {key: key if key >= 0 else min(loops[-1 - key].blocks[0].nodes) for key in needs}
    heap = [(first[key], key) for key, count in waiting.items() if not count]
    heapq.heapify(heap)
    order: list[Item] = []
    while heap:
        _, key = heapq.heappop(heap)
        order.append(key if key >= 0 else loops[-1 - key])
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
