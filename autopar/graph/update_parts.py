"""Update parts: which nodes of the update belong to one parameter alone.

In: a program's local graph. Out: a `Part` for each parameter whose update needs nothing that another's does, and the rest of the update's nodes. It
changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from .graph import Graph, entering_values, producer_table
from .node import Phase


@dataclass(frozen=True, slots=True)
class Part:
    """Update nodes that belong to one parameter alone: its update. `param` is the parameter's own name."""

    param: str
    nodes: tuple[int, ...]


def update_parts(graph: Graph, apart: frozenset[int] = frozenset()) -> tuple[list[Part], list[int]]:
    """The parts, and the nodes that are not one parameter's alone.

    Args:
        apart: nodes of the update phase that run elsewhere.
    """
    nodes = [i for i, node in enumerate(graph.nodes) if node.phase is Phase.UPDATE and i not in apart]
    parent = {i: i for i in nodes}

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    maker = {name: i for name, (i, _) in producer_table(graph).items()}
    entering = {v.name: v for v in entering_values(graph)}
    touched: dict[str, int] = {}
    for i in nodes:
        for name in graph.nodes[i].inputs:
            if name in maker and maker[name] in parent:
                parent[root(i)] = root(maker[name])
            elif name in entering:
                parent[root(i)] = root(touched.setdefault(name, i))
    members: dict[int, list[int]] = {}
    for i in nodes:
        members.setdefault(root(i), []).append(i)
    parts: list[Part] = []
    rest: list[int] = []
    for mine in members.values():
        storages = {entering[n].storage for i in mine for n in graph.nodes[i].inputs if n in entering}
        params = {s.partition(":")[2] or s for s in storages}
        if len(params) != 1 or all(graph.nodes[i].op == "state.write" for i in mine):
            rest += mine
        else:
            parts.append(Part(params.pop(), tuple(mine)))
    return parts, sorted(rest)
