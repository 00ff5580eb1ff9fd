"""Update parts: which nodes of the update belong to one parameter alone.

In: a program's local graph. Out: a `Part` for each parameter whose update needs nothing that another's does, and the rest of the update's nodes; of the rest, where something
is made of all parameters (a norm of all gradients) that their updates then read, layers: parts that come before it, what it is, parts that come after it. It changes nothing.
What sends to another stage or receives is never a part: parts run after the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .fuse import rewritten_states
from .graph import Graph, entering_values, producer_table
from .liveness import storage_bases
from .node import Phase
from .program import STARTS
from .tensor import Kind, num_elements
from .turns import RECEIVE, SEND, list_sent_before


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
class Layer:
    """What each parameter does for itself, and then what is made of several or is nobody's own."""

    parts: tuple[Part, ...]
    rest: tuple[int, ...]


def update_layers(graph: Graph, rest: Sequence[int], owners: Mapping[str, str]) -> list[Layer]:
    """The rest of the update in layers, which run one after the other.

    A node is a parameter's own if all that it reads is, or was made of several and so is nobody's; so is a number that the optimizer itself carries (`is_shared`); a state is rewritten after all that read it, itself or through views.
    What a stage receives comes after all that it sent before, so messages arrive in the order of layers, too: where a stage waits, what others wait for to send it was sent.

    Args:
        rest: as of `update_parts`.
        owners: value that an earlier phase made -> the parameter whose it is.
    """
    maker = {name: i for name, (i, _) in producer_table(graph).items()}
    params = {v.storage for v in graph.values if v.kind is Kind.PARAM}
    owner = {v.name: v.storage.partition(":")[2] or v.storage for v in entering_values(graph) if not is_shared(v.storage, v.shape)}
    owner = {**{name: param for name, param in owner.items() if param in params}, **owners}
    whose = _find_owners(graph, rest, owner, maker)
    level: dict[int, int] = {}
    after: dict[int, list[int]] = {}  # node -> those that wait for it
    readers: dict[str, list[int]] = {}
    base, sent = storage_bases(graph), list_sent_before(graph)
    for i in rest:
        node = graph.nodes[i]
        states = rewritten_states(node)
        before = [maker[name] for name in node.inputs if maker.get(name) in level] + [k for state in states for k in readers.get(base[state], ())]
        before += [k for k in sent.get(i, ()) if k in level]
        level[i] = max((level[k] + (whose[k] is None and whose[i] is not None) for k in before), default=0)
        for k in before:
            after.setdefault(k, []).append(i)
        for name in node.inputs:
            readers.setdefault(base[name], []).append(i)
    for i in reversed(rest):  # what is a parameter's own is as late as what waits for it
        if whose[i] is not None:
            level[i] = min((level[k] for k in after.get(i, ())), default=level[i])
    layers = []
    for number in range(1 + max(level.values(), default=-1)):
        own: dict[str, list[int]] = {}
        for i in rest:
            param = whose[i]
            if level[i] == number and param is not None:
                own.setdefault(param, []).append(i)
        parts = tuple(Part(param, tuple(nodes)) for param, nodes in own.items())
        layers.append(Layer(parts, tuple(i for i in rest if level[i] == number and whose[i] is None)))
    return layers


def _find_owners(graph: Graph, rest: Sequence[int], owner: Mapping[str, str], maker: Mapping[str, int]) -> dict[int, str | None]:
    """The parameter whose own each node is; a constant is of those that read it, a message nobody's."""
    whose: dict[int, str | None] = {}
    readers: dict[int, list[int]] = {}
    constant: set[int] = set()
    for i in rest:
        before = [maker[name] for name in graph.nodes[i].inputs if maker.get(name) in whose]
        mine = {whose[k] for k in before} | {owner.get(name) for name in graph.nodes[i].inputs if maker.get(name) not in whose}
        mine.discard(None)
        whose[i] = mine.pop() if len(mine) == 1 and graph.nodes[i].op != SEND else None
        if len(before) == len(graph.nodes[i].inputs) and constant.issuperset(before) and graph.nodes[i].op not in (SEND, RECEIVE):
            constant.add(i)
        for k in before:
            readers.setdefault(k, []).append(i)
    for i in reversed(rest):
        if i in constant:
            theirs = {whose[k] for k in readers.get(i, ())}
            whose[i] = theirs.pop() if len(theirs) == 1 else None
    return whose


def is_shared(storage: str, shape: tuple[int, ...]) -> bool:
    """True for a number that the optimizer or a group of it carries (a loss scale, a learning rate): nobody's, though it is kept with a parameter (`trace.updating`)."""
    return storage.startswith(("self.", "group.")) and ":" in storage and num_elements(shape) == 1


def role_of(storage: str, param: str) -> str | None:
    """What a state is to its parameter (`exp_avg`), "" for the parameter itself; None where it is of another."""
    role, _, owner = storage.partition(":")
    return "" if storage == param else role if owner == param else None


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
