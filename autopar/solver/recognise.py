"""Recognise: what a plan amounts to, in the names that the field uses.

In: a graph and an assignment. Out: labels per mesh axis (`data`, `sequence`, `tensor`, `zero-1` ...) and a paragraph that an expert would
write. The solver never picks a strategy by name; a name is given here when most of the work (forward matmul FLOPs) or most of the
bytes (of parameters) do what the name says. It decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ..constraints import DATA, SEQUENCE, TENSOR, axis_role
from ..cost.ops import node_flops
from ..errors import ConstraintError
from ..graph.choice import Assignment
from ..graph.cuts import CutTable
from ..graph.graph import Graph, use_table, value_table
from ..graph.mesh import axis_sizes
from ..graph.node import Phase
from ..graph.partition import assigned_strategies
from ..graph.roles import Roles, role_of_choice
from ..graph.rule import Signature, Site, is_contraction
from ..graph.sharding import Replicate, Shard
from ..graph.strategy import Strategy
from ..graph.tensor import Kind, Value, size_bytes
from ..graph.turns import ACCUMULATE

_MOST = 0.5  # a name is given to what does at least this share
_ALIKE = "replicated"
_WORTH_PADDING = 0.01  # of the bytes of parameters, from which on a length that does not divide is mentioned
_SOME = 0.15  # and mentioned beside the main one from this share on


@dataclass(frozen=True, slots=True)
class AxisUse:
    """What one axis does.

    Args:
        work: role (`data`, `sequence`, `tensor`, `spatial`, `alike`) -> share of the forward matmul FLOPs.
        param_share, grad_share, optim_share: of the bytes of parameters that compute does not split along the axis, the share that is
            stored in pieces along it nevertheless.
        split_share: of the bytes of all parameters, the share that compute splits along the axis.
    """

    work: dict[str, float]
    param_share: float
    grad_share: float
    optim_share: float
    split_share: float


def recognise(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, assignment: Assignment, roles: Roles | None = None
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], str]:
    """Labels per axis, and one paragraph.

    Args:
        sites, signatures, cuts: of the graph (`cuts.resolve_all`, `cuts.find_cuts`).
        roles: of the graph; None: batch and sequence are told apart by their place, which a turn of one sample misleads.
    """
    strategies = assigned_strategies(graph, sites, signatures, cuts, assignment)
    axes = assignment.mesh.axes
    again = _recompute_sentence(graph, sites, signatures, assignment)
    if not axes:
        return (), " ".join(["One device: nothing is split.", *again])
    uses = [measure_axis(graph, sites, signatures, strategies, assignment, k, roles) for k in range(len(axes))]
    labels = tuple((axis.name, _labels(use)) for axis, use in zip(axes, uses))
    sentences = [_sentence(axis.name, axis.size, use, names) for axis, use, (_, names) in zip(axes, uses, labels)]
    undivided = _undivided(graph, prod(axis.size for axis, (_, names) in zip(axes, labels) if "tensor" in names))
    return labels, " ".join([*sentences, *undivided, *again])


def require_split(labels: tuple[tuple[str, tuple[str, ...]], ...], degrees: Mapping[str, int]) -> None:
    """Refuse a degree along which nothing could be split: all its ranks would do the same work.

    Args:
        labels: per axis, as found.
        degrees: that were demanded, by role.
    Raises:
        ConstraintError: names the degree.
    """
    for role in (SEQUENCE, TENSOR):
        mine = [names for axis, names in labels if axis_role(axis) == role]
        if degrees.get(role, 1) > 1 and mine and all(names == (_ALIKE,) for names in mine):
            what = "the sequence, as its ops see it, does not divide" if role == SEQUENCE else "their weights or heads do not divide"
            raise ConstraintError(
                f"{role}={degrees[role]}: no matmul of this model can be split by it, as {what} by {degrees[role]}, or what reads them needs them whole (`autopar trace` says which): "
                f"its {degrees[role]} ranks would all do the same work. Expected a degree that divides it (a class token beside 64 patches makes 65); leave it out, or change the size."
            )


def _recompute_sentence(graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], assignment: Assignment) -> list[str]:
    """What is made again for the backward pass (activation checkpointing), where anything is."""
    if not assignment.again:
        return []
    names, work, again = set(assignment.again), 0.0, 0.0
    for node, site, signature in zip(graph.nodes, sites, signatures):
        if node.phase is Phase.FORWARD and is_contraction(signature):
            flops = node_flops(signature, site)
            work, again = work + flops, again + flops * (node.name in names)
    share = f"{again / work:.0%} of the forward matmul work" if work else "no matmul"
    return [f"Recompute: {len(names)} of the forward ops, with {share}, run again for the backward pass instead of keeping what they make."]


def measure_axis(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], strategies: Mapping[str, Strategy], assignment: Assignment, axis: int,
    roles: Roles | None = None,
) -> AxisUse:
    """Count what an axis does with work and bytes."""
    work: Counter[str] = Counter()
    for node, site, signature in zip(graph.nodes, sites, signatures):
        if node.phase is Phase.FORWARD and is_contraction(signature):
            found = _role(graph, site, signature, strategies[node.name], axis, assignment)
            known = role_of_choice(roles, node, strategies[node.name], axis, assignment.mesh.axes[axis].size) if roles is not None else ""
            if found == "data" and known == SEQUENCE:
                found = "sequence"
            work["data" if found == "sequence" and known == DATA else found] += node_flops(signature, site)
    total = sum(work.values()) or 1.0
    storages = dict(assignment.storages)
    values, readers = value_table(graph), use_table(graph)
    grads = dict(graph.grads)
    sums = {node.outputs[0]: node.name for node in graph.nodes if node.op == ACCUMULATE}
    optim: dict[str, list[str]] = {}
    for name in graph.inputs:
        if values[name].kind is Kind.OPTIM and values[name].shape:
            optim.setdefault(values[name].storage.partition(":")[2], []).append(name)
    bytes_: Counter[str] = Counter()
    for name in graph.inputs:
        value = values[name]
        if value.kind is not Kind.PARAM:
            continue
        size = size_bytes(value)
        bytes_["all"] += size
        forward = [strategies[graph.nodes[i].name].inputs[k] for i, k in readers[name] if graph.nodes[i].phase is Phase.FORWARD]
        if forward and all(isinstance(s.placements[axis], Shard) for s in forward):
            bytes_["split"] += size
            continue
        bytes_["whole"] += size
        bytes_["param"] += size * isinstance(storages[name].placements[axis], Shard)
        held = [strategies[graph.nodes[i].name].inputs[k] for i, k in readers.get(grads.get(name, ""), ()) if graph.nodes[i].phase is Phase.UPDATE]
        if grads.get(name) in sums:  # in turns it is held while they add it up
            held = [strategies[sums[grads[name]]].outputs[0]]
        bytes_["grad"] += size * any(isinstance(s.placements[axis], Shard) for s in held)
        states = optim.get(value.storage, [])
        bytes_["optim"] += size * bool(states and all(isinstance(storages[s].placements[axis], Shard) for s in states if values[s].shape == value.shape))
    whole = bytes_["whole"] or 1
    return AxisUse(
        {role: flops / total for role, flops in work.items()},
        bytes_["param"] / whole, bytes_["grad"] / whole, bytes_["optim"] / whole, bytes_["split"] / (bytes_["all"] or 1),
    )  # fmt: skip


def _role(graph: Graph, site: Site, signature: Signature, strategy: Strategy, axis: int, assignment: Assignment) -> str:
    choice = strategy.choices[axis]
    if choice == "R" or choice.startswith("P("):
        return "alike"
    factor = choice.partition("@")[0]
    states = {n for n in graph.inputs if n.partition("@")[2] == "0"}
    weights = [k for k, name in enumerate(site.node.inputs) if name in states]
    if any(factor in names for k in weights for names in signature.inputs[k]):
        return "tensor"
    size = axis_sizes(assignment.mesh)[axis]
    for k, shape in enumerate(site.inputs):
        placement = strategy.inputs[k].placements[axis]
        if k in weights or isinstance(placement, Replicate) or not isinstance(placement, Shard):
            continue
        if placement.dim == 0:
            return "data" if placement.stride * size * _outer_splits(strategy, k, axis, assignment) == shape[0] else "sequence"
        if "attention" in site.node.op:
            return "tensor" if placement.dim == 1 else "sequence"
        if "convolution" in site.node.op:
            return "tensor" if placement.dim == 1 else "spatial"
        return "sequence"
    return "tensor"


def _outer_splits(strategy: Strategy, k: int, axis: int, assignment: Assignment) -> int:
    """Among how many ranks the same dim is split by digits further out."""
    own = strategy.inputs[k].placements[axis]
    found = 1
    for other, size in zip(strategy.inputs[k].placements, axis_sizes(assignment.mesh)):
        if isinstance(other, Shard) and isinstance(own, Shard) and other.dim == own.dim and other.stride > own.stride:
            found *= size
    return found


def _labels(use: AxisUse) -> tuple[str, ...]:
    names = [role for role, share in sorted(use.work.items(), key=lambda item: -item[1]) if role != "alike" and share >= _SOME]
    zero = 3 if use.param_share >= _MOST else 2 if use.grad_share >= _MOST and use.optim_share >= _MOST else 1 if use.optim_share >= _MOST else 0
    if zero and use.split_share < _MOST:  # where compute splits most parameters, the rest does not make a ZeRO
        names.append(f"zero-{zero}")
    return tuple(names) or (_ALIKE,)


_WORDS = {
    "data": "data parallel (the batch is split)", "sequence": "sequence parallel (activations are split along the sequence)",
    "tensor": "tensor parallel (weights and heads are split, Megatron's column and row)", "spatial": "spatial parallel",
}  # fmt: skip
_ZERO = {
    "zero-1": "ZeRO-1: optimizer states live in pieces, the updated parameters are gathered",
    "zero-2": "ZeRO-2: gradients are reduce-scattered, optimizer states live in pieces",
    "zero-3": "ZeRO-3 (fully sharded): parameters, too, live in pieces and are gathered at use",
}  # fmt: skip


def _sentence(name: str, size: int, use: AxisUse, labels: tuple[str, ...]) -> str:
    parts = []
    for label in labels:
        if label in _WORDS:
            parts.append(f"{size}-way {_WORDS[label]} for {use.work[label]:.0%} of the forward matmul work")
        elif label in _ZERO:
            share = {"zero-1": use.optim_share, "zero-2": use.grad_share, "zero-3": use.param_share}[label]
            parts.append(f"with {_ZERO[label]} ({share:.0%} of the bytes that compute does not split)")
    stored = max(use.param_share, use.optim_share)
    if not any(label in _ZERO for label in labels) and use.split_share < _MOST and stored >= _SOME:
        parts.append(f"with {stored:.0%} of the states that compute does not split stored in pieces")
    alike = use.work.get("alike", 0.0)
    if alike >= _SOME:
        parts.append(f"{alike:.0%} of the forward matmul work is repeated on every rank")
    return f"Axis {name}: {', '.join(parts) or f'the {size} ranks do the same work'}."


def _undivided(graph: Graph, size: int) -> list[str]:
    """Which parameters are longest in a dim that `size` ranks do not divide: a vocabulary of 50257, which an expert pads."""
    values = value_table(graph)
    params = [values[name] for name in graph.inputs if values[name].kind is Kind.PARAM and values[name].shape]
    total = sum(map(size_bytes, params)) or 1
    held: dict[int, list[Value]] = {}
    for value in params:
        if max(value.shape) % size:
            held.setdefault(max(value.shape), []).append(value)
    sentences = []
    for length, mine in held.items():
        share = sum(map(size_bytes, mine)) / total
        if share >= _WORTH_PADDING:
            first, more = mine[0], f" and {len(mine) - 1} more" if len(mine) > 1 else ""
            whose = f"dim {first.shape.index(length)} of {first.storage}{more}, {share:.0%} of the bytes of parameters"
            sentences.append(f"{size} ranks do not divide {length} ({whose}), so no op is split along it by all of them; padded to {-(-length // size) * size}, it could be.")
    return sentences


__all__ = ["AxisUse", "measure_axis", "recognise", "require_split"]
