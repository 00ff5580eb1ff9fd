"""Remade: what the backward pass reads and makes again at no cost is not kept for it.

In: a traced graph. Out: the graph in which the backward pass has its own copy of a forward node where that node is cheap arithmetic element by element, all who read its result there are such ops or sums
along rows, which run as one kernel with the copy, and keeping what the copy reads instead takes fewer bytes: a norm in float32 of bfloat16 keeps its input and a number per row, not three tensors in
float32; a gated activation keeps its gate, not what was made of it. Views of parameters are taken again of the parameter: what is gathered for the forward pass
is not held for them. What only the backward pass read is not made in the forward pass at all. As eager PyTorch's own fused norms and `torch.compile` do, and whatever the plan recomputes beside it (`recompute`).

Numbers stay those of the forward pass: the same ops on the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .cuts import resolve_known
from .fusion import work_rows
from .graph import Graph, live_graph, producer_table, use_table, value_table
from .liveness import is_view, list_readers, storage_bases
from .node import Node, Phase, get_arg, packet_of
from .recompute import copy_for_backward
from .repeats import block_of
from .rule import Rule
from .rules import RULES
from .tensor import Kind, num_elements, size_bytes

_CHEAP = frozenset(f"aten.{name}" for name in """
_to_copy add sub mul div neg rsub abs square where masked_fill maximum minimum clamp clamp_min clamp_max
relu silu sigmoid gelu leaky_relu hardtanh hardswish hardsigmoid
""".split())  # at most one exponential: on a CPU, where each is a pass of its own, a few percent of the matmul beside it
_COMPARISONS = frozenset(f"aten.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
_POWERS = (2, 3)
_DEEPEST = 6  # nodes after one another


def remake_graph(graph: Graph, rules: Mapping[str, Rule] = RULES) -> Graph:
    """The graph with the copies; itself where there are none."""
    sites, signatures = resolve_known(graph, rules)
    base, values, makers = storage_bases(graph), value_table(graph), producer_table(graph)
    blocks = [block_of(node.path, graph.sequences) for node in graph.nodes]
    readers = list_readers(graph, base)
    leaving = {base[name] for name in (*graph.outputs, graph.loss, *(new for _, new in graph.updates), *(grad for _, grad in graph.grads)) if name}
    free = {name for name in graph.inputs if values[name].kind in (Kind.PARAM, Kind.BATCH)}
    free |= {name for name, found in readers.items() if any(graph.nodes[i].phase is Phase.BACKWARD for i in found)}

    def ways(name: str, block: object, depth: int = 0) -> tuple[set[str], set[int]]:
        """(what is held for a value in the backward pass, the nodes that are run again): the value itself, or less of which cheap nodes of its block make it."""
        owner = base[name]
        if owner in free:
            return set(), set()
        itself = {owner}, set[int]()
        if owner not in makers or depth == _DEEPEST or not _is_cheap(node := graph.nodes[i := makers[owner][0]]) or blocks[i] != block or node.phase is not Phase.FORWARD:
            return itself
        found = [ways(read, block, depth + 1) for read in node.inputs]
        held = set[str]().union(*(h for h, _ in found))
        return (held, {i}.union(*(again for _, again in found))) if weigh(held) < size_bytes(values[owner]) else itself

    def weigh(held: set[str]) -> int:
        return sum(size_bytes(values[name]) for name in held)

    def is_compared(name: str) -> bool:
        """True for what an op of the backward pass compares, itself or cast: with its own largest element, it may be, to which another kernel's rounding would make nothing equal."""
        later = [graph.nodes[k] for k in readers.get(name, ()) if graph.nodes[k].phase is not Phase.FORWARD]
        return any(packet_of(reader.op) in _COMPARISONS or packet_of(reader.op) == "aten._to_copy" and is_compared(reader.outputs[0]) for reader in later)

    early = _views_of_parameters(graph, base, blocks)
    chosen = {i for views in early.values() for i in views}
    for i, node in enumerate(graph.nodes):
        if node.phase is not Phase.FORWARD or not _is_cheap(node) or base[node.outputs[0]] in leaving:
            continue
        out = node.outputs[0]
        later = [k for k in readers.get(out, ()) if graph.nodes[k].phase is not Phase.FORWARD]
        if not later or any(graph.nodes[k].phase is not Phase.BACKWARD or blocks[k] != blocks[i] for k in later) or is_compared(out):
            continue
        if any(signatures[k] is None or work_rows(sites[k], signatures[k]) is None for k in later):  # type: ignore[arg-type]
            continue
        if any(num_elements(read) > num_elements(values[out].shape) for k in later for read in sites[k].inputs):  # what has a number per row of others is not worth it
            continue
        found = [ways(name, blocks[i]) for name in node.inputs]
        held = set[str]().union(*(h for h, _ in found))
        if weigh(held) < size_bytes(values[out]):
            free |= held
            chosen |= {i}.union(*(again for _, again in found))
    return live_graph(copy_for_backward(graph, chosen, early)) if chosen else graph


def _views_of_parameters(graph: Graph, base: Mapping[str, str], blocks: Sequence[object]) -> dict[int, list[int]]:
    """Views of parameters that the backward pass of their own block reads, by the node where that begins: there they are taken again, and whatever the block runs again has them, too."""
    values, uses, makers = value_table(graph), use_table(graph), producer_table(graph)
    begins: dict[object, int] = {}
    for i, node in enumerate(graph.nodes):
        if node.phase is Phase.BACKWARD:
            begins.setdefault(blocks[i], i)
    found: dict[int, set[int]] = {}
    for i, node in enumerate(graph.nodes):
        if node.phase is not Phase.FORWARD or blocks[i] is None or not is_view(node.op) or values[base[node.inputs[0]]].kind is not Kind.PARAM:
            continue
        later = [k for out in node.outputs if out for k, _ in uses[out] if graph.nodes[k].phase is Phase.BACKWARD]
        if later and all(blocks[k] == blocks[i] for k in later):
            here, at = found.setdefault(begins[blocks[i]], set()), i
            while at is not None and blocks[at] == blocks[i]:
                here.add(at)
                at = makers[graph.nodes[at].inputs[0]][0] if graph.nodes[at].inputs[0] in makers else None
    return {begin: sorted(views) for begin, views in found.items()}


def _is_cheap(node: Node) -> bool:
    if len(node.outputs) != 1 or not node.inputs:
        return False
    return packet_of(node.op) in _CHEAP or node.op == "aten.pow.Tensor_Scalar" and get_arg(node, "exponent") in _POWERS
