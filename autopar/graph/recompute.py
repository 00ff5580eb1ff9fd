"""Recompute: a value is made again for the backward pass instead of kept (activation checkpointing, value by value).

In: a graph, and the names of forward nodes to run again. Out: the graph in which each of them has a copy in the backward phase, right before
the first node that reads what it makes, and in which the backward phase reads the copies. A copy reads copies where there are any, and
otherwise what the forward pass left, which is then held until the copy has run. Views are not kept or recomputed by themselves: those of a
recomputed value are taken again of its copy, those of a parameter are there (`remade`).

    recomputable   a node of the forward pass that makes bytes of its own by a deterministic op, and something of which the backward pass, or
                   another recomputed node, reads; all those readers are of its own block (`h.3`; `in_step`), so that loops over blocks stay loops and
                   no chain reaches further back than a block. Outside of blocks a contraction (a matmul, a convolution) ends the chain.

Random numbers are functions of where an element is and of a counter that is state, so a copy draws the same. It decides nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import PlanError
from .cuts import CutTable
from .graph import Graph, producer_table, use_table, value_table
from .liveness import is_view, storage_bases
from .node import Node, Phase, is_known
from .repeats import blocks_in_step
from .rule import Signature, Site
from .tensor import Kind, Value

AGAIN = "_again"
REMADE = "_remade"  # of copies that every plan has (`remade`)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A graph with copies.

    Args:
        original: (copy, what it is a copy of), of nodes.
        original_values: the same of values.
    """

    graph: Graph
    original: dict[str, str]
    original_values: dict[str, str]


def list_recomputable(graph: Graph, signatures: Sequence[Signature]) -> tuple[str, ...]:
    """Names of the nodes that may be recomputed, in graph order.

    Args:
        signatures: of each node (`cuts.resolve_all`).
    """
    base, uses = storage_bases(graph), use_table(graph)
    blocks = blocks_in_step(graph)
    readers: dict[str, list[int]] = defaultdict(list)  # base value -> nodes that read it, itself or as a view
    for name, places in uses.items():
        readers[base[name]] += [i for i, _ in places if not (is_view(graph.nodes[i].op) and graph.nodes[i].phase is Phase.FORWARD)]
    leaving = {base[name] for name in (*graph.outputs, graph.loss, *(new for _, new in graph.updates)) if name}
    chosen: set[int] = set()
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        if node.phase is not Phase.FORWARD or is_view(node.op) or not is_known(node.op):
            continue
        if blocks[i] is None and signatures[i].rule.flops == 2 or any(out in leaving for out in node.outputs):
            continue
        later = [j for out in node.outputs if out for j in readers[out] if graph.nodes[j].phase is not Phase.FORWARD or j in chosen]
        if later and all(blocks[j] == blocks[i] and graph.nodes[j].phase is not Phase.UPDATE for j in later):
            chosen.add(i)
    return tuple(graph.nodes[i].name for i in sorted(chosen))


def recompute_graph(graph: Graph, names: Collection[str]) -> Recomputed:
    """The graph in which these nodes are run again for the backward pass.

    Args:
        names: of forward nodes that make bytes of their own. One of which neither the backward pass nor another copy reads gets no copy.
    Raises:
        PlanError: a name is not of such a node.
    """
    if not names:
        return Recomputed(graph, {}, {})
    nodes = {node.name: i for i, node in enumerate(graph.nodes)}
    for name in names:
        if name not in nodes:
            raise PlanError(f"{graph.name}: the plan recomputes {name}, which is no node of the graph")
        node = graph.nodes[nodes[name]]
        if node.phase is not Phase.FORWARD or is_view(node.op) or not is_known(node.op):
            raise PlanError(f"{graph.name}: the plan recomputes {name} ({node.op}, {node.phase.value}); expected a node of the forward pass that is no view")
    return _Builder(graph, {nodes[name] for name in names}).build()


def copy_for_backward(graph: Graph, chosen: set[int], early: Mapping[int, Sequence[int]]) -> Graph:
    """The graph in which the backward pass has copies of these nodes that are no choice of a plan.

    Args:
        early: node of the backward pass -> those of them whose copies come right before it, though nobody reads them yet.
    """
    return _Builder(graph, chosen, REMADE, early).build().graph


def is_copy(node: Node) -> bool:
    """Whether a node is what a plan has run again."""
    return node.phase is Phase.BACKWARD and node.name.endswith(AGAIN)


def recomputed_names(found: Recomputed) -> tuple[str, ...]:
    """The nodes that got a copy, views aside, in graph order."""
    copied = set(found.original.values())
    return tuple(node.name for node in found.graph.nodes if node.name in copied and not is_view(node.op))


class _Builder:
    """One rewrite; lives for one call of `recompute_graph`."""

    def __init__(self, graph: Graph, chosen: set[int], suffix: str = AGAIN, early: Mapping[int, Sequence[int]] | None = None) -> None:
        self.graph, self.chosen, self.suffix, self.early = graph, chosen, suffix, early or {}
        self.values, self.makers = value_table(graph), producer_table(graph)
        base = storage_bases(graph)
        self.there = {name: name + REMADE for name in self.values if name + REMADE in self.values and base[name] in graph.inputs}  # views of parameters that the backward pass has
        made = {out for i in chosen for out in graph.nodes[i].outputs if out}
        views = {i for i, n in enumerate(graph.nodes) if n.phase is Phase.FORWARD and is_view(n.op) and base[n.inputs[0]] in made}
        own = {i for i, n in enumerate(graph.nodes) if n.phase is Phase.FORWARD and is_view(n.op) and self.values[base[n.inputs[0]]].kind is Kind.PARAM}
        self.again = chosen | views | {i for i in own if not any(out in self.there for out in graph.nodes[i].outputs)}  # nodes that a copy may be made of
        self.copies: dict[str, str] = {}  # value -> its copy

    def build(self) -> Recomputed:
        """Walk the graph; copies come right before the first backward node that needs them."""
        original: dict[str, str] = {}
        before: dict[int, list[int]] = defaultdict(list)
        done: set[int] = set()
        for i, node in enumerate(self.graph.nodes):
            if node.phase is Phase.BACKWARD:
                before[i] = sorted({*self._needed(node, done), *(k for k in self.early.get(i, ()) if k not in done)})
                done.update(before[i])
        values: list[Value] = [self.values[name] for name in self.graph.inputs]
        nodes: list[Node] = []
        for i, node in enumerate(self.graph.nodes):
            for k in before.get(i, ()):
                copy = self._copy(self.graph.nodes[k], i)
                original[copy.name] = self.graph.nodes[k].name
                nodes.append(copy)
                values += [self._copy_value(out) for out in self.graph.nodes[k].outputs if out]
                self.copies.update((out, out + self.suffix) for out in self.graph.nodes[k].outputs if out)
            if node.phase is Phase.BACKWARD:
                node = replace(node, inputs=tuple(self.copies.get(name, name) for name in node.inputs))
            nodes.append(node)
            values += [self.values[out] for out in node.outputs if out]
        graph = replace(self.graph, values=tuple(values), nodes=tuple(nodes))
        return Recomputed(graph, original, {copy: name for name, copy in self.copies.items()})

    def _needed(self, node: Node, done: set[int]) -> list[int]:
        """Nodes to copy before this one, in order; those of earlier calls are there already."""
        found: set[int] = set()
        todo = list(node.inputs)
        while todo:
            made = self.makers.get(todo.pop())
            if made is not None and made[0] in self.again and made[0] not in done:
                done.add(made[0])
                found.add(made[0])
                todo += self.graph.nodes[made[0]].inputs
        return sorted(found)

    def _copy(self, node: Node, place: int) -> Node:
        """The copy of a node that comes before the node at `place`: what has a twin there already is read from it."""
        there = {name: twin for name in node.inputs if (twin := self.there.get(name)) is not None and self.makers[twin][0] < place}
        inputs = tuple(self.copies.get(name) or there.get(name, name) for name in node.inputs)
        return replace(node, name=node.name + self.suffix, inputs=inputs, outputs=tuple(out and out + self.suffix for out in node.outputs), phase=Phase.BACKWARD)

    def _copy_value(self, name: str) -> Value:
        value = self.values[name]
        return Value(name + self.suffix, name + self.suffix, value.version, value.shape, value.dtype, Kind.ACTIVATION)


def recompute_all(
    graph: Graph, sites: Sequence[Site], signatures: Sequence[Signature], cuts: CutTable, names: Collection[str]
) -> tuple[Graph, tuple[Site, ...], tuple[Signature, ...], CutTable]:
    """The graph with the copies of these nodes, and its sites, signatures and cuts: what `partition` takes.

    Raises:
        PlanError: as in `recompute_graph`.
    """
    found = recompute_graph(graph, names)
    return found.graph, *_add_sites(found, sites, signatures, cuts)


def _add_sites(
    found: Recomputed, sites: Sequence[Site], signatures: Sequence[Signature], cuts: CutTable
) -> tuple[tuple[Site, ...], tuple[Signature, ...], CutTable]:
    if not found.original:
        return tuple(sites), tuple(signatures), cuts
    by_name = {site.node.name: (site, signature) for site, signature in zip(sites, signatures)}
    rows = [(replace(by_name[found.original.get(node.name, node.name)][0], node=node), by_name[found.original.get(node.name, node.name)][1]) for node in found.graph.nodes]
    more = {copy: cuts[name] for copy, name in found.original_values.items()}
    return tuple(site for site, _ in rows), tuple(signature for _, signature in rows), {**cuts, **more}
