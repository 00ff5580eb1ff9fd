"""Partition: a graph and an assignment become a program.

In: the whole graph, its signatures, an `Assignment`. Out: a `Program`: the same nodes on local shapes with local attributes, and a
`comm` node wherever a value is needed in another sharding than it has. Invariants:

* one reshard per (value, wanted sharding, phase): all its readers in that phase share it, and it dies with the last of them, so a
  parameter that is stored in pieces is gathered for the forward, dropped, and gathered again for the backward;
* a reshard stands right before its first reader; but a parameter's final gradient goes to the sharding that the update reads as soon as it
  is made, in the backward phase: between backward and update only that piece is held (ZeRO-2 is this and nothing else);
* in a step that takes its batch in turns (`turns`) that sum stays as it is until the update reads it: what is to be held in pieces is summed in
  pieces; what leaves the step is brought, and states are written, after the last turn;
* states leave in the sharding in which they entered: a `state.write` node puts the new version into the state's own storage right after it
  is made and the old version has been read for the last time; the loss, outputs and whatever the user gets are whole on every rank.

It chooses nothing: cost prices this program, codegen prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..errors import PlanError
from .choice import Assignment
from .cuts import CutTable
from .graph import Graph, value_table
from .liveness import storage_bases
from .mesh import axis_sizes
from .node import Node, Phase, Ref
from .program import Origin, Program
from .reshard import Step, StepKind, after_step, reshard_steps
from .rule import Signature, Site, localise_args
from .sharding import REPLICATE, Partial, Sharding, has_partial, local_shape, replicated, why_illegal
from .strategy import Strategy, build_strategy, factor_cuts
from .tensor import Kind, Value
from .turns import loop_span


def node_cuts(site: Site, signature: Signature, cuts: CutTable) -> dict[str, tuple[int, ...]]:
    """The cuts of each factor of one node."""
    node = site.node
    return factor_cuts(signature, tuple(cuts[i] for i in node.inputs), tuple(cuts[o] for o in node.outputs if o))


def assigned_strategies(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, assignment: Assignment
) -> dict[str, Strategy]:
    """Node -> its strategy, checked against the rules.

    Raises:
        PlanError: a node has no choice, or one that its rule does not allow, or a choice has no node.
    """
    choices = dict(assignment.strategies)
    sizes = axis_sizes(assignment.mesh)
    strangers = choices.keys() - {n.name for n in graph.nodes}
    if strangers:
        raise PlanError(f"{graph.name}: the plan has a strategy for {min(strangers)}, which is no node of the graph")
    found = {}
    tables: dict[tuple, dict[str, tuple[int, ...]]] = {}  # equal nodes share their cuts and their strategies
    known: dict[tuple, Strategy | str] = {}
    for node, site, signature in zip(graph.nodes, sites, signatures):
        if node.name not in choices:
            raise PlanError(f"{graph.name}: the plan has no strategy for {node.name} ({node.op})")
        near = (id(signature), tuple(cuts[n] for n in (*node.inputs, *node.outputs) if n))
        key = (near, choices[node.name])
        if key not in known:
            if near not in tables:
                tables[near] = node_cuts(site, signature, cuts)
            try:
                known[key] = build_strategy(signature, site, choices[node.name], sizes, tables[near])
            except (KeyError, ValueError) as error:
                known[key] = f"unknown factor {error}"
        made = known[key]
        if isinstance(made, str):
            raise PlanError(f"{graph.name}: {node.name} ({node.op}): strategy {' '.join(choices[node.name])} is not legal: {made}")
        found[node.name] = made
    return found


class _Builder:
    """Collects the program's nodes and values in order."""

    def __init__(self, graph: Graph, assignment: Assignment) -> None:
        self.graph, self.mesh = graph, assignment.mesh
        self.sizes = axis_sizes(assignment.mesh)
        self.whole = value_table(graph)
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.origins: list[Origin] = []
        self.shardings: list[tuple[str, str, Sharding]] = []
        self.has: dict[str, Sharding] = {}  # whole-graph value -> the sharding in which it was made
        self.copies: dict[tuple[str, Sharding, Phase], str] = {}
        self.counts: dict[str, int] = {}

    def add_value(self, whole: Value, name: str, sharding: Sharding) -> None:
        shape = local_shape(whole.shape, sharding, self.sizes)
        self.values.append(Value(name, whole.storage if name == whole.name else name, whole.version, shape, whole.dtype, whole.kind))
        self.shardings.append((name, whole.name, sharding))

    def bring(self, name: str, wanted: Sharding, reader: Node, phase: Phase | None = None) -> str:
        """The name of the local value that holds `name` in the wanted sharding, resharded if need be.

        `phase`: of the readers that will share the reshard, where that is not the phase in which it stands.
        """
        if self.has[name] == wanted:
            return name
        key = (name, wanted, phase or reader.phase)
        if key not in self.copies:
            self.copies[key] = self._reshard(name, wanted, reader)
        return self.copies[key]

    def write(self, old: str, new: str, after: Node) -> None:
        """Put the local value `new` into the storage of state `old`."""
        args = (("state", Ref(0)), ("value", Ref(1)))
        self.nodes.append(Node(f"write:{old}", "state.write", (old, new), args, (), after.phase, after.path, after.source))
        self.origins.append(Origin(after.name, "", f"{old} becomes the new version"))

    def _reshard(self, name: str, wanted: Sharding, reader: Node) -> str:
        value, source = self.whole[name], self.has[name]
        here, current = source, name
        for step in reshard_steps(value.shape, source, wanted, self.sizes):
            here = after_step(here, step, wanted)
            self.counts[name] = self.counts.get(name, 0) + 1
            made = f"{name}~{self.counts[name]}"
            axis = self.mesh.axes[step.axis].name
            node = Node(f"{step.kind.value}:{made}", f"comm.{step.kind.value}", (current,), _step_args(step, axis), (made,), reader.phase, reader.path, reader.source)
            whole = Value(made, made, value.version, value.shape, value.dtype, Kind.ACTIVATION if value.kind is not Kind.GRAD else Kind.GRAD)
            self.add_value(whole, made, here)
            self.shardings[-1] = (made, name, here)
            self.nodes.append(node)
            self.origins.append(Origin(reader.name, name, f"{source} -> {wanted} for {reader.name}"))
            current = made
        return current


def _step_args(step: Step, axis: str) -> tuple:
    args: list[tuple[str, object]] = [("x", Ref(0)), ("axis", axis)]
    if step.kind is StepKind.ALL_TO_ALL:
        args += [("from_dim", step.from_dim), ("from_stride", step.from_stride), ("to_dim", step.to_dim), ("to_stride", step.to_stride)]
    elif step.kind is StepKind.ALL_GATHER:
        args += [("dim", step.from_dim), ("stride", step.from_stride)]
        args += [("short", step.from_short)] if step.from_short else []
    elif step.kind in (StepKind.SLICE, StepKind.REDUCE_SCATTER):
        args += [("dim", step.to_dim), ("stride", step.to_stride)]
    if step.op:
        args.append(("op", step.op))
    return tuple(args)


def partition(
    graph: Graph,
    sites: tuple[Site, ...],
    signatures: tuple[Signature, ...],
    cuts: CutTable,
    assignment: Assignment,
    keep_grads: bool = False,
) -> Program:
    """Build the program of an assignment.

    Args:
        sites, signatures: of each node (`cuts.resolve_all`).
        cuts: of each dim (`find_cuts`).
        keep_grads: the program also returns every parameter's gradient in the order of `graph.grads`, reduced, each rank its piece (verification).
    Raises:
        PlanError: the assignment is not complete or not legal for this graph.
    """
    strategies = assigned_strategies(graph, sites, signatures, cuts, assignment)
    storages = dict(assignment.storages)
    strangers = storages.keys() - set(graph.inputs)
    if strangers:
        raise PlanError(f"{graph.name}: the plan has a storage sharding for {min(strangers)}, which does not enter the graph")
    build = _Builder(graph, assignment)
    for name in graph.inputs:
        if name not in storages:
            raise PlanError(f"{graph.name}: the plan has no storage sharding for {name}")
        reason = why_illegal(build.whole[name].shape, storages[name], build.sizes)
        if not reason and has_partial(storages[name]):
            reason = "a stored tensor cannot be partial"
        if reason:
            raise PlanError(f"{graph.name}: storage {storages[name]} of {name} {list(build.whole[name].shape)} is not legal: {reason}")
        build.has[name] = storages[name]
        build.add_value(build.whole[name], name, storages[name])
    grads = _reduced_grads(graph, strategies) if keep_grads else {}
    final = _final_shardings(graph, storages, len(build.sizes), grads)
    span = loop_span(graph)
    reads = _update_reads(graph, strategies) if span is None else {}
    writes = _write_places(graph)
    leaving: dict[tuple[str, Sharding], str] = {}
    later: list[int] = []  # nodes of the turns of which something leaves
    for index, (node, site, signature) in enumerate(zip(graph.nodes, sites, signatures)):
        strategy = strategies[node.name]
        inputs = tuple(build.bring(name, wanted, node) for name, wanted in zip(node.inputs, strategy.inputs))
        local = Site(
            node,
            tuple(local_shape(s, sh, build.sizes) for s, sh in zip(site.inputs, strategy.inputs)),
            tuple(local_shape(s, sh, build.sizes) for s, sh in zip(site.outputs, strategy.outputs)),
        )
        args = localise_args(signature, local, site.inputs) if build.sizes else node.args
        build.nodes.append(Node(node.name, node.op, inputs, args, node.outputs, node.phase, node.path, node.source))
        build.origins.append(Origin(node.name, "", " ".join(strategy.choices)))
        for name, sharding in zip((o for o in node.outputs if o), strategy.outputs):
            build.has[name] = sharding
            build.add_value(build.whole[name], name, sharding)
        if span is None or not span[0] <= index <= span[1]:
            _send_off(build, index, node, reads, final, writes, storages, leaving)
            continue
        later.append(index)
        if index == span[1]:
            for k in later:
                _send_off(build, k, replace(graph.nodes[k], phase=Phase.UPDATE), reads, final, writes, storages, leaving)
    last = graph.nodes[-1].phase if graph.nodes else Phase.FORWARD
    end = Node("end", "", (), (), (), last if span is None else Phase.UPDATE)
    for name, wanteds in final.items():  # what enters and leaves without a node
        for wanted in wanteds:
            if (name, wanted) not in leaving:
                leaving[name, wanted] = build.bring(name, wanted, end)
    whole = replicated(len(build.sizes))
    updates = tuple((old, leaving[new, storages[old]]) for old, new in graph.updates)
    kept = tuple(leaving[g, grads[g]] for _, g in graph.grads) if keep_grads else ()
    outputs = tuple(leaving[o, whole] for o in graph.outputs) + kept
    loss = leaving[graph.loss, whole] if graph.loss else ""
    local_graph = Graph(graph.name, tuple(build.values), tuple(build.nodes), graph.inputs, updates, loss, outputs, sequences=graph.sequences)
    return Program(local_graph, assignment.mesh, tuple(build.origins), tuple(build.shardings), tuple((v.name, v.shape) for v in graph.values))


def _send_off(
    build: _Builder,
    index: int,
    node: Node,
    reads: Mapping[str, list[Sharding]],
    final: Mapping[str, list[Sharding]],
    writes: Mapping[int, list[tuple[str, str]]],
    storages: Mapping[str, Sharding],
    leaving: dict[tuple[str, Sharding], str],
) -> None:
    """Bring what a node made to where the update or the end of the step wants it, and write the states that may be written now."""
    for name in node.outputs:
        for wanted in reads.get(name, ()):
            build.bring(name, wanted, node, Phase.UPDATE)
        for wanted in final.get(name, ()):
            leaving[name, wanted] = build.bring(name, wanted, node, Phase.UPDATE)
    for old, new in writes.get(index, ()):
        build.write(old, leaving[new, storages[old]], node)


def _reduced_grads(graph: Graph, strategies: Mapping[str, Strategy]) -> dict[str, Sharding]:
    """Final gradient -> the sharding in which it is made, with what is still owed reduced."""
    made = {out: s for node in graph.nodes for out, s in zip((o for o in node.outputs if o), strategies[node.name].outputs)}
    return {g: Sharding(tuple(REPLICATE if isinstance(p, Partial) else p for p in made[g].placements)) for _, g in graph.grads}


def _update_reads(graph: Graph, strategies: Mapping[str, Strategy]) -> dict[str, list[Sharding]]:
    """Final gradient -> the shardings in which the update phase reads it."""
    grads = {g for _, g in graph.grads}
    reads: dict[str, list[Sharding]] = {}
    for node in graph.nodes:
        if node.phase is Phase.UPDATE:
            for name, wanted in zip(node.inputs, strategies[node.name].inputs):
                if name in grads and wanted not in reads.setdefault(name, []):
                    reads[name].append(wanted)
    return reads


def _write_places(graph: Graph) -> dict[int, list[tuple[str, str]]]:
    """Node index -> the (state, new version) pairs to write right after it: the new one is made, the old one is read no more."""
    base = storage_bases(graph)
    last_read: dict[str, int] = {}
    made = {out: i for i, node in enumerate(graph.nodes) for out in node.outputs if out}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            last_read[base[name]] = i
    places: dict[int, list[tuple[str, str]]] = {}
    for old, new in graph.updates:
        if new == old:
            continue
        if base[new] in graph.inputs:
            raise PlanError(f"{graph.name}: the new version of {old} is a view of {base[new]}; the trace must copy it")
        seen = [name for name in (*graph.outputs, graph.loss) if base.get(name) == old]
        if seen:
            raise PlanError(f"{graph.name}: the step returns {seen[0]}, a view of {old}, which it rewrites; the trace must copy it")
        places.setdefault(max(made[new], last_read.get(old, -1)), []).append((old, new))
    return places


def _final_shardings(graph: Graph, storages: Mapping[str, Sharding], num_axes: int, grads: Mapping[str, Sharding]) -> dict[str, list[Sharding]]:
    """Value -> the shardings in which it must leave the step."""
    final: dict[str, list[Sharding]] = {}
    whole = replicated(num_axes)
    wanted = [(new, storages[old]) for old, new in graph.updates]  # written right after it is made
    wanted += [(name, whole) for name in (*graph.outputs, *([graph.loss] if graph.loss else []))]
    wanted += list(grads.items())
    for name, sharding in wanted:
        if sharding not in final.setdefault(name, []):
            final[name].append(sharding)
    return final
