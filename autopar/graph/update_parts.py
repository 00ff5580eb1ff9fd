"""Update parts: which nodes of the update belong to one parameter alone.

In: a program's local graph. Out: a `Part` for each parameter whose update needs nothing that another's does, and the rest of the update's nodes. It
changes nothing. What sends to another stage or receives is never a part: parts run after the rest, and messages must keep the order that all stages share.
"""

from __future__ import annotations

from dataclasses import dataclass

from .graph import Graph, entering_values, producer_table
from .node import Phase
from .program import STARTS
from .turns import RECEIVE, SEND


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
        if len(params) != 1 or all(graph.nodes[i].op == "state.write" for i in mine) or any(graph.nodes[i].op in (SEND, RECEIVE) for i in mine):
            rest += mine
        else:
            parts.append(Part(params.pop(), tuple(mine)))
    return parts, sorted(rest)


@dataclass(frozen=True, slots=True)
class Parcels:
    """A parameter's update in the order in which it runs: what is started before, what is done then, what is started after that, and what waits for it."""

    starts: tuple[int, ...]
    update: tuple[int, ...]
    gathers: tuple[int, ...]
    finish: tuple[int, ...]


def split_part(graph: Graph, part: Part) -> Parcels:
    """The nodes of one part of a program that was overlapped."""
    made = {out for i in part.nodes for out in graph.nodes[i].outputs}
    begun = [i for i in part.nodes if graph.nodes[i].op in STARTS]
    starts = tuple(i for i in begun if graph.nodes[i].inputs[0] not in made)
    gathers = tuple(i for i in begun if graph.nodes[i].inputs[0] in made)
    coming = {out for i in gathers for out in graph.nodes[i].outputs}
    finish = []
    for i in part.nodes:
        if coming.intersection(graph.nodes[i].inputs):
            finish.append(i)
            coming.update(graph.nodes[i].outputs)
    rest = tuple(i for i in part.nodes if i not in {*starts, *gathers, *finish})
    return Parcels(starts, rest, gathers, tuple(finish))
