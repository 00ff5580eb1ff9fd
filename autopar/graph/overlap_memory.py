"""What overlapping holds: the most bytes of a program whose collectives are started ahead, and as much overlap as a limit has room for.

In: a program, the section of each node. Out: its peak by the law of `graph.liveness`, with what collectives under way hold beside it:

    all_gather        what is sent, packed, until the first of its tensors is waited for; the packed result until the last is, beside those that are
                      unpacked by then. One tensor alone is not packed, and unpacked only where its split is not outermost
    reduce_scatter    what it reads until it is done: until the next one that goes alone starts, at the latest; packed, beside the tensors themselves, while it starts
    all_reduce        its result, which counts from where it starts; where it lies in what it reads (`own`), once
    update            `codegen.parcels` keeps two buckets under way beside the lot at hand
    backend           gloo works on copies of its own: of what a gather makes and of what a reduce-scatter reads, from where they start (torch 2.13, measured)

It counts no buffer that a blocking collective packs into: that is the same with and without overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from .graph import Graph, use_table, value_table
from .liveness import bytes_over_time, live_ranges
from .node import Node, Phase, get_arg
from .overlap import BUCKET_BYTES, overlap_program, write_over
from .program import STARTS, WAIT, Program
from .sections import Section
from .tensor import IN_PLACE_BYTES, Value, size_bytes

_COPIED = ("comm.all_gather", "comm.reduce_scatter")


def overlap_within(program: Program, sections: Sequence[Section], room_bytes: int | None = None) -> tuple[Program, tuple[Section, ...]]:
    """`overlap_program`, as far as it fits: where there is no room, sums over turns do not wait for the next block, then nothing is gathered ahead, and where that
    is not enough nothing overlaps.

    Args:
        room_bytes: by how much the peak may grow; None: there is no limit.
    """
    for prefetches, lags in ((True, True), (True, False), (False, False)):
        found = overlap_program(program, sections, prefetches, lags)
        if room_bytes is None or extra_bytes(program, found[0]) <= room_bytes:
            return found
    return write_over(program), tuple(sections)


def extra_bytes(program: Program, overlapped: Program) -> int:
    """By how much the peak is higher."""
    return max(held_over_time(overlapped.graph)) - max(held_over_time(program.graph))


def held_over_time(graph: Graph, backend_copies: bool = False) -> list[int]:
    """Bytes held while each node runs, with what is under way.

    Args:
        backend_copies: whether collectives run on gloo.
    """
    values = value_table(graph)
    held = bytes_over_time(graph, live_ranges(graph))
    change = [0] * (len(held) + 1)
    for first, last, size in _flights(graph, values, backend_copies):
        change[first] += size
        change[min(len(held) - 1, last) + 1] -= size
    total = 0
    for i in range(len(held)):
        total += change[i]
        held[i] += total
    return held


def _flights(graph: Graph, values: Mapping[str, Value], backend_copies: bool) -> list[tuple[int, int, int]]:
    """(first node, last node, bytes) of what collectives under way hold beside their results."""
    waited = {node.inputs[0]: i for i, node in enumerate(graph.nodes) if node.op == WAIT}
    uses = use_table(graph)
    begun = [(i, node) for i, node in enumerate(graph.nodes) if node.op in STARTS]
    late: dict[int, int] = {}  # of an update, by its size: equal ones go a lot at a time, one kind after the other
    for _, node in begun:
        if node.phase is Phase.UPDATE:
            own = _sent_bytes(node, values)
            late[own] = late.get(own, 0) + own + (_copied_bytes(node, values) if backend_copies else 0)
    found = []
    alone: dict[object, int] = {}  # axis -> the next reduction that goes alone
    if backend_copies:
        found += [(i, i, _copied_bytes(node, values)) for i, node in enumerate(graph.nodes) if node.op in _COPIED]
    for i, node in reversed(begun):
        copied = _copied_bytes(node, values) if backend_copies else 0
        sent, waits = sum(size_bytes(values[n]) for n in node.inputs), [waited[out] for out in node.outputs]
        if node.phase is Phase.UPDATE:
            own = _sent_bytes(node, values)
            found.append((i, min(waits), min(late[own], 2 * max(BUCKET_BYTES, own) * (2 if copied else 1))))
            continue
        if copied and node.op == "comm.start_all_gather":
            found.append((i, min(waits), copied))
        if node.op == "comm.start_all_gather" and len(node.inputs) > 1:
            found.append((i, min(waits), sent))
            for out, wait in zip(node.outputs, waits):
                made = graph.nodes[wait].outputs[0]
                last = max((k for k, _ in uses[made]), default=wait)
                if last < max(waits):  # its part of the packed result stays
                    found.append((last + 1, max(waits), size_bytes(values[out])))
                found.append((wait, min(last, max(waits)), size_bytes(values[out])))
        elif node.op == "comm.start_all_gather":
            found += [(waits[0], waits[0], sent * _ranks_of(node, values))] if not _is_outermost(node, values) else []
        elif node.op == "comm.start_all_reduce":
            found.append((i, i, -sum(_in_place_bytes(node, values, backend_copies))))
        elif node.op == "comm.start_reduce_scatter":
            axis = get_arg(node, "axis")
            found.append((i + 1, min(alone.get(axis, len(graph.nodes)), min(waits)), sent + copied))
            packed = len(node.inputs) > 1 or not _is_outermost(node, values)
            found.append((i, i, copied + (sent if packed else 0)))
            alone[axis] = i
    return found


def _copied_bytes(node: Node, values: Mapping[str, Value]) -> int:
    """What gloo copies of a collective's tensors while it runs."""
    copied = node.outputs if node.op.endswith("all_gather") else node.inputs if node.op.endswith("reduce_scatter") else ()
    return sum(size_bytes(values[name]) for name in copied)


def _in_place_bytes(node: Node, values: Mapping[str, Value], on_gloo: bool) -> list[int]:
    """Of the tensors of an all-reduce that are not copied (`runtime.pending.pack_around`)."""
    sizes = [size_bytes(values[node.inputs[k]]) for k in get_arg(node, "own", ())]
    return [size for size in sizes if len(node.inputs) == 1 or (on_gloo and size >= IN_PLACE_BYTES)]


def _ranks_of(node: Node, values: Mapping[str, Value]) -> int:
    """Of a gather or a reduce-scatter, the ranks along its axes."""
    small, large = sorted(size_bytes(values[name]) for name in (node.inputs[0], node.outputs[0]))
    return large // small if small else 1


def _is_outermost(node: Node, values: Mapping[str, Value]) -> bool:
    """True where the only tensor is cut along its axis into contiguous pieces: nothing is packed or unpacked. False of several axes."""
    (dim,), (stride,) = (arg if isinstance(arg, tuple) else (arg,) for arg in (get_arg(node, "dim"), get_arg(node, "stride")))
    if not isinstance(dim, int) or not isinstance(stride, int):
        return False
    whole = values[max((node.inputs[0], node.outputs[0]), key=lambda name: size_bytes(values[name]))].shape
    return prod(whole[:dim]) * (whole[dim] // (stride * _ranks_of(node, values))) == 1


def _sent_bytes(node: Node, values: Mapping[str, Value]) -> int:
    return sum(max(size_bytes(values[a]), size_bytes(values[b])) for a, b in zip(node.inputs, node.outputs))
