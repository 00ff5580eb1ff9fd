"""Shorten: the graph of the same model with fewer equal blocks.

In: a graph, its units (`stages.list_units`), which run of equal units to leave out. Out: the graph without them, in which what the next unit read
of them it reads of what they themselves read, or None where something else reads them, too (the norm of all gradients). A search that asks about
one block, or about a stage of so many, asks it of a graph of that size; the answer for all blocks is always built from the whole graph.
"""

from __future__ import annotations

from dataclasses import replace

from .graph import Graph
from .stages import stage_table


def unit_members(graph: Graph, units: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """For each unit its nodes of all phases, in order."""
    table = stage_table(graph, [graph.nodes[unit[0]].name for unit in units[1:]])
    found: list[list[int]] = [[] for _ in units]
    for i, unit in enumerate(table):
        if unit >= 0:
            found[unit].append(i)
    return tuple(map(tuple, found))


def drop_units(graph: Graph, members: tuple[tuple[int, ...], ...], first: int, last: int) -> Graph | None:
    """The graph without the units `first` to `last`; the unit before and the one after must be like them.

    Args:
        members: of each unit (`unit_members`).
    """
    gone = {i for unit in range(first, last + 1) for i in members[unit]}
    made = {out for i in gone for out in graph.nodes[i].outputs if out}
    instead: dict[int, dict[str, str]] = {}
    for near, like in ((first - 1, last), (last + 1, first)):
        if not 0 <= near < len(members) or len(members[near]) != len(members[like]):
            return None
        for a, b in zip(members[near], members[like]):
            mine, theirs = graph.nodes[a], graph.nodes[b]
            if mine.op != theirs.op or len(mine.inputs) != len(theirs.inputs):
                return None
            swaps = {x: y for x, y in zip(mine.inputs, theirs.inputs) if x in made}
            if any(y in made for y in swaps.values()):
                return None
            instead[a] = swaps
    nodes = []
    for i, node in enumerate(graph.nodes):
        if i in gone:
            continue
        swaps = instead.get(i, {})
        if any(name in made and name not in swaps for name in node.inputs):
            return None
        nodes.append(replace(node, inputs=tuple(swaps.get(name, name) for name in node.inputs)) if swaps else node)
    leaving = {graph.loss, *graph.outputs}
    if leaving & made:
        return None
    read = {name for node in nodes for name in node.inputs}
    was_read = {name for node in graph.nodes for name in node.inputs}
    inputs = tuple(name for name in graph.inputs if name in read or name not in was_read)
    known = {*inputs, *(out for node in nodes for out in node.outputs)}
    return replace(
        graph,
        values=tuple(v for v in graph.values if v.name in known),
        nodes=tuple(nodes),
        inputs=inputs,
        updates=tuple((old, new) for old, new in graph.updates if old in known and new in known),
        grads=tuple((p, g) for p, g in graph.grads if p in known and g in known),
    )
