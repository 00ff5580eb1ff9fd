"""What overlapping holds: the most bytes of a program whose collectives are started ahead, and as much overlap as a limit has room for.

In: a program, the section of each node. Out: its peak by the law of `graph.liveness`, with what collectives under way hold beside it:

    all_gather        the packed result until the last of its tensors is waited for, beside those that are unpacked by then, and what is sent, packed, until the first is; gloo's is
                      packed into the result (`graph.cpu_exchange`). One tensor alone is not packed, and unpacked only where its split is not outermost
    reduce_scatter    what it reads until it is done: until the next one that goes alone starts, at the latest; packed, beside the tensors themselves, while it starts
    all_reduce        its result, which counts from where it starts; where it lies in what it reads (`own`), once, and so in a bucket that was opened before (`graph.open_buckets`);
                      on gloo what is large has no room in that until it is made
    update            `codegen.parcels` keeps one bucket of reductions and one of gathers under way beside the lot at hand, of one kind of parameters at a time
    gloo              beside what a reduce-scatter reads there is as much that the other ranks sent, from where it starts

It counts no buffer that a blocking collective packs into: that is the same with and without overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

from .graph import Graph, producer_table, use_table, value_table
from .liveness import bytes_over_time, live_ranges
from .mesh import Mesh
from .messages import REDUCED_ALONE_BYTES, split_bucket
from .node import Node, Phase, get_arg
from .open_buckets import open_buckets
from .overlap import BUCKET_BYTES, overlap_program, write_over
from .program import STARTS, WAIT, WRITES, Program
from .sections import Section
from .tensor import Value, num_elements, size_bytes


def overlap_within(program: Program, sections: Sequence[Section], room_bytes: int | None = None, opens: bool = True) -> tuple[Program, tuple[Section, ...]]:
    """`overlap_program`, as far as it fits: where there is no room, buckets are not opened, then sums over turns do not wait for the next block, then nothing is
    gathered ahead, and where that is not enough nothing overlaps.

    Args:
        room_bytes: by how much the peak may grow; None: there is no limit.
        opens: whether buckets are opened before what travels in them is made (`graph.open_buckets`).
    """
    for prefetches, lags in ((True, True), (True, False), (False, False)):
        plain = overlap_program(program, sections, prefetches, lags)
        opened = open_buckets(*plain) if opens else plain
        for found in (opened, plain) if opened[0] is not plain[0] else (plain,):
            if room_bytes is None or extra_bytes(program, found[0]) <= room_bytes:
                return found
    return write_over(program), tuple(sections)


def extra_bytes(program: Program, overlapped: Program) -> int:
    """By how much the peak is higher."""
    return max(held_over_time(overlapped)) - max(held_over_time(program))


def held_over_time(program: Program, on_gloo: bool = False) -> list[int]:
    """Bytes held while each node runs, with what is under way.

    Args:
        on_gloo: whether collectives run on it.
    """
    held = bytes_over_time(program.graph, live_ranges(program.graph))
    change = [0] * (len(held) + 1)
    for first, last, size in _flights(program, on_gloo):
        change[first] += size
        change[min(len(held) - 1, last) + 1] -= size
    total = 0
    for i in range(len(held)):
        total += change[i]
        held[i] += total
    return held


def _flights(program: Program, on_gloo: bool) -> list[tuple[int, int, int]]:
    """(first node, last node, bytes) of what collectives under way hold beside their results."""
    graph, values, makers = program.graph, value_table(program.graph), producer_table(program.graph)
    waited = {node.inputs[0]: i for i, node in enumerate(graph.nodes) if node.op == WAIT}
    uses = use_table(graph)
    begun = [(i, node) for i, node in enumerate(graph.nodes) if node.op in STARTS]
    late = [node for _, node in begun if node.phase is Phase.UPDATE]
    kinds: dict[object, list[Node]] = {}  # equal ones go a lot at a time, one kind after the other
    for node in late:
        kinds.setdefault(_kind(node, values), []).append(node)
    sent = {(node.op, _piece(node, values)): _sent_bytes(node, values) for node in late}
    lots = {kind: _lots(nodes, values, sent) for kind, nodes in kinds.items()}
    found = []
    alone: dict[object, int] = {}  # axis -> the next reduction that goes alone
    if on_gloo:
        found += [(i, i, size_bytes(values[node.inputs[0]])) for i, node in enumerate(graph.nodes) if node.op == "comm.reduce_scatter"]
    for i, node in reversed(begun):
        if node.phase is Phase.UPDATE:
            found.append((i, min(waited[out] for out in node.outputs), _update_flight(node, values, lots[_kind(node, values)], on_gloo)))
        elif node.op == "comm.start_all_reduce":
            found += _reduce_flight(graph, values, makers, i, on_gloo)
        else:
            until = alone.get(get_arg(node, "axis"), len(graph.nodes)) - 1  # the next one finishes it before it packs
            for places in split_bucket([max(map(size_bytes, ends)) for ends in _ends(node, values)], node.op == "comm.start_all_gather", on_gloo):
                unpacked = len(places) == 1 and _is_outermost(program.mesh, node, values, places[0])
                if node.op == "comm.start_all_gather":
                    found += _gather_flight(graph, values, i, places, unpacked, waited, uses, on_gloo)
                else:
                    found += _scatter_flight(node, values, i, places, unpacked, min(until, *(waited[out] for out in node.outputs)), on_gloo)
            if node.op == "comm.start_reduce_scatter":
                alone[get_arg(node, "axis")] = i
    return found


def _kind(node: Node, values: Mapping[str, Value]) -> object:
    """What parameters have in common that go together, of whatever shapes."""
    return node.op, node.args, tuple((a.dtype, b.dtype) for a, b in _ends(node, values))


def _piece(node: Node, values: Mapping[str, Value]) -> object:
    """The part of a parameter that one rank updates: what a gather sends, what a reduction brings."""
    piece = values[(node.inputs if node.op == "comm.start_all_gather" else node.outputs)[0]]
    return piece.shape, piece.dtype


@dataclass(frozen=True, slots=True)
class _Lots:
    """The collectives of one kind in an update: `codegen.parcels` sends so many at a time as fill a bucket.

    Args:
        read, brought, sent: bytes that go in, that come out, and the larger of them, of all together.
        share: of them in a lot; 1.0: there is one lot.
        first: names of the nodes in the first lot.
    """

    read: int
    brought: int
    sent: int
    share: float
    first: frozenset[str]


def _lots(nodes: Sequence[Node], values: Mapping[str, Value], sent: Mapping[tuple[str, object], int]) -> _Lots:
    """Args:
        sent: (op, `_piece`) -> bytes that travel for one parameter: of a lot all of them fill a bucket.
    """
    travels: dict[object, int] = {}
    for (_, piece), size in sent.items():
        travels[piece] = travels.get(piece, 0) + size
    each = [travels[_piece(node, values)] for node in nodes]
    share, begun = min(1.0, BUCKET_BYTES / max(1, sum(each))), accumulate(each, initial=0)
    first = frozenset(node.name for node, before in zip(nodes, begun) if before < share * sum(each))
    read, brought = (sum(size_bytes(values[name]) for node in nodes for name in names(node)) for names in (lambda n: n.inputs, lambda n: n.outputs))
    return _Lots(read, brought, sum(_sent_bytes(node, values) for node in nodes), share, first)


def _update_flight(node: Node, values: Mapping[str, Value], lots: _Lots, on_gloo: bool) -> int:
    """What the lots of one kind hold beside a parameter that is updated alone. Of gathers: all results of a lot, for which its gradients are gone by then; the new
    pieces of the next lot, while the one before is under way. Of reductions: what they read, packed, and what they bring, which of an all-reduce lies in that; from the second
    lot on as much for the one that is updated meanwhile.
    """
    own = _sent_bytes(node, values)
    read, brought = (sum(size_bytes(values[name]) for name in names) for names in (node.inputs, node.outputs))

    def lot(of_all: int, of_one: int) -> int:
        return max(of_one, int(lots.share * of_all))

    sent, several, follows = lot(lots.sent, own), lots.share < 1.0, node.name not in lots.first
    if node.op == "comm.start_all_gather":
        return sent - own + several * lot(lots.read, read)
    if node.op == "comm.start_all_reduce":
        return sent - brought + follows * sent
    return sent + on_gloo * lot(lots.read, read) + lot(lots.brought, brought) - brought + follows * lot(lots.brought, brought)


def _ends(node: Node, values: Mapping[str, Value]) -> list[tuple[Value, Value]]:
    """Of each tensor of a collective, what goes in and what comes out."""
    return [(values[a], values[b]) for a, b in zip(node.inputs, node.outputs)]


def _gather_flight(
    graph: Graph, values: Mapping[str, Value], start: int, places: Sequence[int], unpacked: bool, waited: Mapping[str, int], uses: Mapping[str, Sequence[tuple[int, int]]], on_gloo: bool
) -> list[tuple[int, int, int]]:
    """Of the tensors at these places, which are one message.

    Args:
        unpacked: whether it is one tensor that comes as it lies.
    """
    node = graph.nodes[start]
    outs = [node.outputs[k] for k in places]
    waits, sizes = [waited[out] for out in outs], [size_bytes(values[out]) for out in outs]
    if len(places) == 1:
        return [] if unpacked else [(waits[0], waits[0], sizes[0])]
    found = [] if on_gloo else [(start, min(waits), sum(size_bytes(values[node.inputs[k]]) for k in places))]
    for wait, size in zip(waits, sizes):
        made = graph.nodes[wait].outputs[0]
        last = max((k for k, _ in uses[made]), default=wait)
        if last < max(waits):  # its part of the packed result stays
            found.append((last + 1, max(waits), size))
        found.append((wait, min(last, max(waits)), size))
    return found


def _scatter_flight(node: Node, values: Mapping[str, Value], start: int, places: Sequence[int], unpacked: bool, done: int, on_gloo: bool) -> list[tuple[int, int, int]]:
    """Of the tensors at these places, which are one message, done at that node at the latest."""
    sent = sum(size_bytes(values[node.inputs[k]]) for k in places)
    copied = sent if on_gloo else 0
    return [(start + 1, done, sent + copied), (start, start, copied + (0 if unpacked else sent))]


def _reduce_flight(graph: Graph, values: Mapping[str, Value], makers: Mapping[str, tuple[int, int]], start: int, on_gloo: bool) -> list[tuple[int, int, int]]:
    """Of an all-reduce: what is less than its results, or its bucket, beside what it reads."""
    node = graph.nodes[start]
    bucket = get_arg(node, "bucket")
    if bucket is None:
        return [(start, start, -sum(_in_place_bytes(node, values, on_gloo)))]
    found, opened = [], makers[node.inputs[bucket.index]][0]
    for k in get_arg(node, "own") if on_gloo else ():
        size, made = size_bytes(values[node.inputs[k]]), makers[node.inputs[k]][0]
        if size >= REDUCED_ALONE_BYTES:
            found.append((opened, made - 1 if graph.nodes[made].op == WRITES else start, -size))  # another op's result lies where that op made it
    return found


def _in_place_bytes(node: Node, values: Mapping[str, Value], on_gloo: bool) -> list[int]:
    """Of the tensors of an all-reduce that are not copied (`runtime.pending.pack_around`)."""
    sizes = [size_bytes(values[node.inputs[k]]) for k in get_arg(node, "own", ())]
    return [size for size in sizes if len(node.inputs) == 1 or (on_gloo and size >= REDUCED_ALONE_BYTES)]


def _is_outermost(mesh: Mesh, node: Node, values: Mapping[str, Value], place: int) -> bool:
    """True where the pieces of the tensor at this place are, in the order of the ranks, contiguous chunks of it: alone, it is neither packed nor unpacked."""
    whole = max((values[node.inputs[place]], values[node.outputs[place]]), key=size_bytes).shape
    axes, dims, strides = (_each(get_arg(node, name), place if node.op in STARTS else None) for name in ("axis", "dim", "stride"))
    sizes = {axis.name: axis.size for axis in mesh.axes}
    taken: dict[str, tuple[int, int]] = {}  # axis -> dim, stride in the whole tensor: what is gathered later moves those apart that lie further out
    for axis, dim, stride in list(zip(axes, dims, strides))[:: 1 if node.op.endswith("all_gather") else -1]:
        taken = {name: (at, step * (sizes[axis] if at == dim and step >= stride else 1)) for name, (at, step) in taken.items()} | {axis: (dim, stride)}
    chunk = num_elements(whole)
    for axis in (axis for axis in mesh.axes if axis.name in taken):
        (dim, stride), chunk = taken[axis.name], chunk // axis.size
        if stride * prod(whole[dim + 1 :]) != chunk:
            return False
    return True


def _each(arg: Any, place: int | None) -> tuple:
    """Of a collective's argument, what is said for each of its axes; of one of several tensors at this place, but for the axes themselves."""
    found = arg[place] if place is not None and isinstance(arg, tuple) and not isinstance(arg[0], str) else arg
    return found if isinstance(found, tuple) else (found,)


def _sent_bytes(node: Node, values: Mapping[str, Value]) -> int:
    return sum(max(map(size_bytes, ends)) for ends in _ends(node, values))
