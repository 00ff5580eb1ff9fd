"""Finish: from a draft to a checked `Graph`.

In: draft nodes in order, and which of their values the step returns. Out: a graph without dead code, with stable short names, in which
each state that was written has exactly one final value `NAME@1`, and each parameter's gradient is its own value of kind GRAD.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from ...graph.graph import Graph, check_graph
from ...graph.node import Arg, Node, Phase, Ref
from ...graph.rules.random_numbers import STATE as RANDOM_STATE
from ...graph.sequences import find_sequences
from ...graph.tensor import Kind, Value
from ...graph.update_parts import is_shared
from .draft import Draft, DraftNode, Val, node_inputs, stand_in
from .made_again import make_again
from .totals import join_totals, thin_constants
from .unturned import unturn_sums


def finish_graph(
    name: str,
    draft: Draft,
    inputs: dict[str, Val],
    updates: dict[str, Val],
    loss: Val | None,
    outputs: list[Val],
    grads: dict[str, Val],
    owners: dict[str, str],
) -> Graph:
    """Name everything, drop what nobody needs, check.

    Args:
        name: of the model.
        draft: the nodes.
        inputs: values that enter, by storage, in order.
        updates: (storage, final value) of each state that changes.
        loss, outputs, grads: what else the step returns.
        owners: module path of the parameter to which a state belongs.
    """
    updates, grads = _own_values(draft, updates, grads, loss, outputs)
    inputs, updates = _drop_idle_counter(draft, inputs, updates, [*grads.values(), *outputs, *([loss] if loss is not None else [])])
    roots = [*updates.values(), *grads.values(), *outputs, *([loss] if loss is not None else [])]
    nodes = thin_constants(join_totals(_live_nodes([*draft.preamble, *draft.nodes], roots), roots))
    nodes = make_again(_share_numbers(_turn_weight_grads(_live_nodes(unturn_sums(nodes, roots), roots), roots), roots), updates, roots)
    if _collapse_views(nodes, roots):
        nodes = _live_nodes(nodes, roots)
    _place_updates(nodes, owners, grads)
    names = _Names(inputs, updates, grads, loss)
    values = [names.value(v) for v in inputs.values()]
    written: list[Node] = []
    for node in nodes:
        written.append(names.node(node))
        values += [names.value(v) for v in node.outs if v is not None]
    graph = Graph(
        name,
        tuple(values),
        tuple(written),
        tuple(names.name(v) for v in inputs.values()),
        tuple((names.name(inputs[s]), names.name(v)) for s, v in updates.items()),
        names.name(loss) if loss is not None else "",
        tuple(names.name(v) for v in outputs),
        tuple((names.name(inputs[p]), names.name(g)) for p, g in grads.items()),
    )
    graph = replace(graph, sequences=find_sequences(graph))
    check_graph(graph)
    return graph


def _clone(draft: Draft, value: Val, phase: Phase, path: str) -> Val:
    draft.phase, draft.path = phase, path
    if value.node is not None:
        draft.source = value.node.source
    return draft.emit_one("aten.clone.default", {"self": value}, value.shape, value.dtype)


def _own_values(draft, updates, grads, loss, outputs) -> tuple[dict[str, Val], dict[str, Val]]:
    """Copy where one value would have to be two: two states with the same final value, a gradient that is an activation twice."""
    taken = {id(v) for v in outputs} | ({id(loss)} if loss is not None else set())
    own_grads, own_updates = {}, {}
    for name, value in grads.items():
        if id(value) in taken or value.node is None:
            position = len(draft.nodes)
            value = _clone(draft, value, Phase.BACKWARD, name.rpartition(".")[0])
            clone = draft.nodes.pop(position)
            at = next((k for k, n in enumerate(draft.nodes) if n.phase is Phase.UPDATE), len(draft.nodes))
            draft.nodes.insert(at, clone)
        taken.add(id(value))
        own_grads[name] = value
    for name, value in updates.items():
        if id(value) in taken or value.node is None:
            value = _clone(draft, value, draft.nodes[-1].phase if draft.nodes else Phase.FORWARD, "")
        taken.add(id(value))
        own_updates[name] = value
    return own_updates, own_grads


def _drop_idle_counter(draft, inputs, updates, others: list[Val]) -> tuple[dict[str, Val], dict[str, Val]]:
    """Without the state of random draws where none of them reaches what the step returns."""
    if RANDOM_STATE not in updates:
        return inputs, updates
    rest = {s: v for s, v in updates.items() if s != RANDOM_STATE}
    if any(n.op == "autopar.uniform" for n in _live_nodes(draft.nodes, [*rest.values(), *others])):
        return inputs, updates
    return {s: v for s, v in inputs.items() if s != RANDOM_STATE}, rest


def _live_nodes(nodes: list[DraftNode], roots: list[Val]) -> list[DraftNode]:
    needed = {id(v.node) for v in roots if v.node is not None}
    live = []
    for node in reversed(nodes):
        if id(node) in needed:
            live.append(node)
            needed |= {id(v.node) for v in node_inputs(node) if v.node is not None}
    return live[::-1]


def _turn_weight_grads(nodes: list[DraftNode], roots: list[Val]) -> list[DraftNode]:
    """The gradient of a weight of which only the turned form is read comes turned."""
    uses = Counter(id(value) for value in [*roots, *(v for n in nodes for v in node_inputs(n))])
    gone = set()
    for node in nodes:
        args = dict(node.args)
        made = args["self"].node if node.op == "aten.permute.default" and args["dims"] == (1, 0) else None
        if made is not None and made.op == "autopar.linear_weight_grad" and uses[id(args["self"])] == 1:
            kept = tuple((key, value) for key, value in made.args if key != "transposed")
            made.args = kept if len(kept) < len(made.args) else (*kept, ("transposed", True))
            made.outs = list(node.outs)
            for value in node.outs:
                value.node = made
            gone.add(id(node))
    return [node for node in nodes if id(node) not in gone]


def _share_numbers(nodes: list[DraftNode], roots: list[Val]) -> list[DraftNode]:
    """A number that the update makes again for each parameter, by the same op of the same numbers (1 minus a learning rate that is a tensor), or of none (the 0 of a step that is skipped), is made once."""
    taken = {id(v) for v in roots}
    known: dict[object, Val] = {}
    stands: dict[int, Val] = {}
    kept = []
    for node in nodes:
        if node.phase is not Phase.UPDATE:
            kept.append(node)
            continue
        node.args = tuple((key, stand_in(value, stands)) for key, value in node.args)
        read = node_inputs(node)
        [out] = node.outs if len(node.outs) == 1 else [None]
        numbers = bool(read) and not any(v.shape for v in read) or node.op == "aten.full.default"
        if out is not None and numbers and not out.shape and node.op.startswith("aten.") and id(out) not in taken:
            same = known.setdefault((node.op, out.dtype, repr([(key, _by_place(value)) for key, value in node.args])), out)
            if same is not out:
                stands[id(out)] = same
                continue
        kept.append(node)
    return kept


def _by_place(value: object) -> object:
    """An argument as text that is equal for equal ones alone."""
    if isinstance(value, Val):
        return f"value {id(value)}"
    return tuple(map(_by_place, value)) if isinstance(value, tuple) else value


def _collapse_views(nodes: list[DraftNode], roots: list[Val]) -> bool:
    """A view that only feeds another view goes."""
    uses: dict[int, int] = {}
    for value in [*roots, *(v for n in nodes for v in node_inputs(n))]:
        uses[id(value)] = uses.get(id(value), 0) + 1
    changed = False
    for node in nodes:
        if node.op != "aten.view.default":
            continue
        args = dict(node.args)
        base = args["self"]
        while base.node is not None and base.node.op == "aten.view.default" and uses[id(base)] == 1 and base.node.phase is node.phase:
            base = dict(base.node.args)["self"]
            changed = True
        node.args = (("self", base), ("size", args["size"]))
    return changed


def _place_updates(nodes: list[DraftNode], owners: dict[str, str], grads: dict[str, Val]) -> None:
    """The path of an update node is that of its parameter's module; "" where it serves several parameters."""
    owner: dict[int, str | None] = {id(v): name.rpartition('.')[0] for name, v in grads.items()}
    for node in nodes:
        found = set()
        for value in node_inputs(node):
            if value.entry and value.kind in (Kind.PARAM, Kind.OPTIM):
                found |= set() if is_shared(value.entry, value.shape) else {owners[value.entry]}
            elif id(value) in owner:
                mine = owner[id(value)]
                if mine is not None:
                    found.add(mine)
        if node.phase is Phase.UPDATE:
            path = found.pop() if len(found) == 1 else None
            node.path = path or ""
            for out in node.outs:
                if out is not None:
                    owner[id(out)] = path


class _Names:
    """Names of values and nodes."""

    def __init__(self, inputs: dict[str, Val], updates: dict[str, Val], grads: dict[str, Val], loss: Val | None) -> None:
        self._counts: dict[str, int] = {}
        self._node_names: dict[int, str] = {}
        self._states = {id(v): (storage, 1, inputs[storage].kind) for storage, v in updates.items()}
        self._grads = {id(v): f"grad:{p}" for p, v in grads.items()}
        self._loss = loss

    def name(self, value: Val) -> str:
        if value.entry:
            return value.entry if value.kind is Kind.BATCH else f"{value.entry}@0"
        if id(value) in self._states:
            storage, version, _ = self._states[id(value)]
            return f"{storage}@{version}"
        base = self._node_name(value.node)
        return base if value.out == 0 else f"{base}.{value.out}"

    def _node_name(self, node: DraftNode) -> str:
        if id(node) not in self._node_names:
            packet = node.op.split(".")[1].strip("_")
            count = self._counts[packet] = self._counts.get(packet, -1) + 1
            self._node_names[id(node)] = f"{packet}_{count}"
        return self._node_names[id(node)]

    def value(self, value: Val) -> Value:
        name = self.name(value)
        dtype = str(value.dtype).removeprefix("torch.")
        if value.entry:
            return Value(name, value.entry, 0, value.shape, dtype, value.kind)
        if id(value) in self._states:
            storage, version, kind = self._states[id(value)]
            return Value(name, storage, version, value.shape, dtype, kind)
        if id(value) in self._grads:
            return Value(name, self._grads[id(value)], 1, value.shape, dtype, Kind.GRAD)
        kind = Kind.LOSS if value is self._loss else Kind.ACTIVATION
        return Value(name, name, 0, value.shape, dtype, kind)

    def node(self, node: DraftNode) -> Node:
        inputs: list[str] = []

        def freeze(value: object) -> Arg:
            if isinstance(value, Val):
                inputs.append(self.name(value))
                return Ref(len(inputs) - 1)
            if isinstance(value, tuple):
                return tuple(freeze(v) for v in value)
            return value  # type: ignore[return-value]

        args = tuple((key, freeze(value)) for key, value in node.args)
        outputs = tuple("" if v is None else self.name(v) for v in node.outs)
        return Node(self._node_name(node), node.op, tuple(inputs), args, outputs, node.phase, node.path, node.source)


def torch_dtype(name: str) -> torch.dtype:
    """`float32` -> torch.float32."""
    return getattr(torch, name)
