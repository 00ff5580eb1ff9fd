"""Loops: in which order a program is printed.

In: a program's local graph and its sections. Out: for each section the items to print, in an order that respects every dependency: single nodes, or a
`Row` of blocks that run one after another (`codegen.rows`). Invariant: every node stands in exactly one item; a row is one only
where its blocks can run back to back. It changes nothing but the order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Union

from ..graph.fuse import rewritten_states
from ..graph.graph import Graph, producer_table
from ..graph.liveness import storage_bases
from ..graph.node import Phase
from ..graph.sections import Section, list_sections
from ..graph.update_lots import group_parts
from ..graph.update_parts import Part, role_of, update_parts
from .rows import Row, find_rows

Item = Union[int, Row]


def order_items(graph: Graph, sections: Sequence[Section], leaving: frozenset[str] = frozenset(), grads: Mapping[str, str] | None = None) -> dict[Section, list[Item]]:
    """The items of each section but the update, rows where possible.

    Args:
        sections: of each node (`graph.sections`).
        leaving: what blocks must all put into `grads`, or none of a row.
        grads: value -> the parameter whose gradient it is.
    """
    choices, found = find_rows(graph, sections, leaving, grads or {}), dict[Section, list[Item]]()
    for section in list_sections(sections):
        if section.phase is Phase.UPDATE:
            continue
        taken, nodes = choices.get(section, []), [i for i, s in enumerate(sections) if s == section]
        while (order := _sort(graph, nodes, [row for choice in taken for row in choice.rows])) is None:
            # a row cannot be contracted: give up taking turns, or the shortest, with what lags behind it, and try again
            gone = min(taken, key=lambda choice: (choice.plain is None, len(choice.rows[0].numbers)))
            taken = [*(choice for choice in taken if choice is not gone), *(gone.plain or ())]
        found[section] = order
    return found


def find_lagging(row: Row, items: Iterable[Item]) -> Row | None:
    """Of the items of its section, the row that ends what this one starts."""
    apart = (item for item in items if isinstance(item, Row) and item.lags and not row.lags)
    return next((item for item in apart if item.family == row.family and item.numbers == row.numbers), None)


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
    """(before, after): a state is written only after everything that reads the old version, itself or through views, in this phase, has run."""
    writes = {state: i for i in nodes for state in rewritten_states(graph.nodes[i])}
    base = storage_bases(graph) if writes else {}
    return [(i, writes[base[name]]) for i in nodes for name in graph.nodes[i].inputs if writes.get(base.get(name, ""), i) != i]


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
