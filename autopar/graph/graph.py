"""The graph: the whole training step as a pure function of versioned tensors.

    step(param@0, buffer@0, optim@0, batch)  ->  loss, outputs, param@1, buffer@1, optim@1

In: nodes in an order in which they can run. Invariant (`check_graph`): every value is made once, before it is read; states enter at
version 0; `updates` says which value replaces each state when the step ends. The graph knows nothing of devices.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import GraphError
from .kept import kept_table
from .node import Node, Phase, list_refs
from .tensor import STATE_KINDS, Kind, Value

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, slots=True)
class Graph:
    """A step, whole.

    Args:
        name: the model's name, for people.
        values: every value, inputs first, then in the order in which nodes make them.
        nodes: in execution order.
        inputs: names of the values that enter: states (version 0), then batch tensors in the order the user passes them.
        updates: (state that entered, value that replaces it). A state that no node rewrites is not listed.
        loss: name of the scalar loss, or "" for a forward-only graph.
        outputs: names of the values that the user gets back beside the loss (forward-only: the model's outputs).
        grads: (parameter input, its final gradient) for every parameter that has one.
        sequences: paths of numbered containers (`net` of `net.0`, `net.1`) whose entries are no blocks; families of blocks that are
            numbered by their names (`layer*` of `layer0`, `layer1`; `graph.sequences`).
    """

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()
    loss: str = ""
    outputs: tuple[str, ...] = ()
    grads: tuple[tuple[str, str], ...] = ()
    sequences: tuple[str, ...] = ()

    def to_networkx(self) -> networkx.MultiDiGraph:
        """The graph for your own analyses.

        Returns:
            a `MultiDiGraph`. Nodes: each node of the graph by name, with `op phase path source flops bytes shapes` (of its outputs; `flops` is
            None where its op has no rule); each value that enters, by name, with `op="input"` and its `kind`; and one for the end of the step.
            Edges: each read, with `value storage version shape dtype bytes`.
        """
        from .opportunities.networks import build_networkx

        return build_networkx(self)


@kept_table
def value_table(graph: Graph) -> dict[str, Value]:
    """Value by name."""
    return {v.name: v for v in graph.values}


def entering_values(graph: Graph) -> tuple[Value, ...]:
    """The values that are there when the step begins, in the graph's order."""
    names = set(graph.inputs)
    return tuple(v for v in graph.values if v.name in names)


@kept_table
def producer_table(graph: Graph) -> dict[str, tuple[int, int]]:
    """For each value that a node makes: (index of the node, which of its outputs)."""
    return {out: (i, k) for i, node in enumerate(graph.nodes) for k, out in enumerate(node.outputs) if out}


@kept_table
def phase_table(graph: Graph) -> dict[str, Phase]:
    """For each value that a node makes: the phase in which it comes to be."""
    return {out: node.phase for node in graph.nodes for out in node.outputs if out}


@kept_table
def use_table(graph: Graph) -> dict[str, tuple[tuple[int, int], ...]]:
    """For each value: where it is read, as (index of the node, which of its inputs), in order."""
    uses: dict[str, list[tuple[int, int]]] = {v.name: [] for v in graph.values}
    for i, node in enumerate(graph.nodes):
        for k, name in enumerate(node.inputs):
            uses[name].append((i, k))
    return {name: tuple(places) for name, places in uses.items()}


def final_values(graph: Graph) -> tuple[str, ...]:
    """Names of the values that must still exist when the step ends."""
    tail = [*(new for _, new in graph.updates), *([graph.loss] if graph.loss else []), *graph.outputs]
    return tuple(dict.fromkeys(tail))


def live_graph(graph: Graph) -> Graph:
    """The graph without the nodes of which nobody reads anything and the step returns nothing, and without their values; nodes that make nothing stay."""
    wanted = {*final_values(graph), *(name for pair in (*graph.updates, *graph.grads) for name in pair)}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs) or not node.outputs:
            kept.append(node)
            wanted.update(node.inputs)
    values = value_table(graph)
    order = [*graph.inputs, *(out for node in reversed(kept) for out in node.outputs if out)]
    return replace(graph, nodes=tuple(reversed(kept)), values=tuple(values[name] for name in order))


def graph_hash(graph: Graph) -> str:
    """16 hex digits that change with anything that the numbers or the plan depend on (not with source lines)."""
    digest = hashlib.sha256()
    for v in graph.values:
        digest.update(f"{v.name}|{v.shape}|{v.dtype}|{v.kind.value}\n".encode())
    for n in graph.nodes:
        digest.update(f"{n.op}|{n.inputs}|{n.args}|{n.outputs}|{n.phase.value}\n".encode())
    digest.update(repr((graph.inputs, graph.updates, graph.loss, graph.outputs, *graph.sequences)).encode())
    return digest.hexdigest()[:16]


def check_graph(graph: Graph) -> None:
    """Raise `GraphError` at the first place where the graph breaks its law, with the node and its neighbours."""
    repeated = [name for name, count in Counter(v.name for v in graph.values).items() if count > 1]
    if repeated:
        raise GraphError(f"{graph.name}: value {repeated[0]} is listed twice; names are unique in a graph")
    values = value_table(graph)
    made = set(graph.inputs)
    for name in graph.inputs:
        if name not in values:
            raise GraphError(f"{graph.name}: input {name} has no value entry")
        if values[name].kind in STATE_KINDS and values[name].version != 0:
            raise GraphError(f"{graph.name}: state {name} enters at version {values[name].version}, expected 0")
    names: set[str] = set()
    last = Phase.PREPARE
    order = list(Phase)
    for i, node in enumerate(graph.nodes):
        where = f"{graph.name}: node {i} {node.name} = {node.op} ({node.path or 'root'}, {node.source or 'no source'})"
        if node.name in names:
            raise GraphError(f"{where}: a second node of this name")
        names.add(node.name)
        if order.index(node.phase) < order.index(last):
            raise GraphError(f"{where}: {node.phase.value} after {last.value}; phases come in order")
        last = node.phase
        for name in node.inputs:
            if name not in made:
                around = "\n  ".join(f"{n.name} = {n.op}{n.inputs}" for n in graph.nodes[max(0, i - 2) : i + 2])
                raise GraphError(f"{where}: reads {name}, which nothing has made yet\n  {around}")
        held = sorted({index for _, arg in node.args for index in list_refs(arg)})
        if held != list(range(len(node.inputs))):
            found = f"inputs {', '.join(map(str, held))}" if held else "no inputs"
            raise GraphError(f"{where}: its arguments hold {found}, expected each of its {len(node.inputs)} inputs")
        for name in node.outputs:
            if name in made:
                raise GraphError(f"{where}: makes {name} a second time; a write makes a new version")
            if name and name not in values:
                raise GraphError(f"{where}: makes {name}, which has no value entry")
            if name:
                made.add(name)
    if len(made) != len(values):
        lost = next(name for name in values if name not in made)
        raise GraphError(f"{graph.name}: value {lost} is neither an input nor made by a node")
    twice = [old for old, count in Counter(old for old, _ in graph.updates).items() if count > 1]
    if twice:
        raise GraphError(f"{graph.name}: update of {twice[0]}: a second one")
    for old, new in graph.updates:
        if old not in graph.inputs or values[old].kind not in STATE_KINDS:
            raise GraphError(f"{graph.name}: update of {old}: not a state that enters")
        if new not in made:
            raise GraphError(f"{graph.name}: update of {old} by {new}: nothing makes it")
        if values[new].shape != values[old].shape or values[new].dtype != values[old].dtype:
            raise GraphError(
                f"{graph.name}: update of {old} {values[old].dtype}{list(values[old].shape)} by {new} "
                f"{values[new].dtype}{list(values[new].shape)}: expected the same shape and dtype"
            )
    for name in (*final_values(graph), *(g for _, g in graph.grads)):
        if name not in made:
            raise GraphError(f"{graph.name}: the step returns {name}, which nothing makes")
    if graph.loss and values[graph.loss].shape != ():
        raise GraphError(f"{graph.name}: loss {graph.loss} has shape {list(values[graph.loss].shape)}, expected a scalar")


def count_params(graph: Graph) -> int:
    """Number of elements of all parameters that enter."""
    from math import prod

    values = value_table(graph)
    return sum(prod(values[n].shape) for n in graph.inputs if values[n].kind is Kind.PARAM)
