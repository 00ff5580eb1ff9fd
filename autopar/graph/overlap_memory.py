"""What overlapping holds: the most bytes of a program whose collectives are started ahead, and as much overlap as a limit has room for.

In: a program, the section of each node. Out: its peak by the law of `graph.liveness`, with what collectives under way hold beside it:

    all_gather        the packed result until the last of its tensors is waited for, beside those that are unpacked by then, and what is sent, packed, until the first is; gloo's is
                      packed into the result (`graph.cpu_exchange`). One tensor alone is not packed, and unpacked only where its split is not outermost
    reduce_scatter    what it reads until it is done: until the next one that goes alone starts, at the latest; packed, beside the tensors themselves, while it starts
    all_reduce        its result, which counts from where it starts; where it lies in what it reads (`own`), once, and so in a bucket that was opened before (`graph.open_buckets`);
                      on gloo what is large has no room in that until it is made
    update            lot by lot (`graph.update_memory`)
    gloo              beside what a reduce-scatter reads there is as much that the other ranks sent, from where it starts

It counts no buffer that a blocking collective packs into: that is the same with and without overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from .graph import Graph, producer_table, use_table, value_table
from .liveness import bytes_over_time, live_ranges
from .messages import find_in_place, is_one_piece, list_ends, split_starts
from .node import Phase, get_arg
from .open_buckets import open_buckets
from .overlap import overlap_program, write_over
from .program import STARTS, WAIT, WRITES, Program
from .sections import Section
from .tensor import Value, size_bytes
from .update_memory import Flight, held_in_update


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
    flights, later = _flights(program, on_gloo)
    for first, last, size in flights:
        change[first] += size
        change[min(len(held) - 1, last) + 1] -= size
    by_lots, values, total = held_in_update(program, on_gloo, later), value_table(program.graph), 0
    for i, node in enumerate(program.graph.nodes):
        total += change[i]
        held[i] = by_lots.get(i, held[i] + total) + (size_bytes(values[node.inputs[0]]) if on_gloo and node.op == "comm.reduce_scatter" else 0)
    return held


def _flights(program: Program, on_gloo: bool) -> tuple[list[tuple[int, int, int]], dict[str, Flight]]:
    """(first node, last node, bytes) of what collectives of forward and backward hold beside their results while they are under way; and value that the update waits for -> what such a one still holds then."""
    graph, values, makers = program.graph, value_table(program.graph), producer_table(program.graph)
    waited = {node.inputs[0]: i for i, node in enumerate(graph.nodes) if node.op == WAIT}
    uses = use_table(graph)
    found: list[tuple[int, int, int]] = []
    later: dict[str, Flight] = {}
    alone: dict[object, int] = {}  # axis -> the next reduction that goes alone
    update = next((i for i, node in enumerate(graph.nodes) if node.phase is Phase.UPDATE), len(graph.nodes))
    for i, node in reversed([(i, node) for i, node in enumerate(graph.nodes) if node.phase is not Phase.UPDATE]):
        if node.op == "comm.start_all_reduce":
            found += _reduce_flight(graph, values, makers, i, on_gloo)
        elif node.op in STARTS:
            gathers = node.op == "comm.start_all_gather"
            done = min(alone.get(get_arg(node, "axis"), len(graph.nodes)) - 1, *(waited[out] for out in node.outputs))  # the next one finishes it before it packs
            flight = Flight()
            for places in split_starts(list_ends([node]), values, on_gloo):
                lies_right = len(places) == 1 and is_one_piece(program.mesh, node, places[0], values)
                if gathers:
                    found += _gather_flight(graph, values, i, places, lies_right, waited, uses, on_gloo)
                else:
                    sent = sum(size_bytes(values[node.inputs[k]]) for k in places)
                    copied = sent if on_gloo else 0
                    found += [(i + 1, min(done, update - 1), sent + copied), (i, i, copied + (0 if lies_right else sent))]
                    flight.held += sent + copied
            if get_arg(node, "alone"):
                alone[get_arg(node, "axis")] = i
            if not gathers:
                if done >= update:
                    later.update(dict.fromkeys(node.outputs, flight))
    return found, later


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


def _reduce_flight(graph: Graph, values: Mapping[str, Value], makers: Mapping[str, tuple[int, int]], start: int, on_gloo: bool) -> list[tuple[int, int, int]]:
    """Of an all-reduce: what is less than its results, or its bucket, beside what it reads."""
    node = graph.nodes[start]
    bucket, in_place = get_arg(node, "bucket"), find_in_place(list_ends([node]), values, on_gloo)
    if bucket is None:
        return [(start, start, -sum(size_bytes(values[node.inputs[k]]) for k in in_place))]
    found, opened = [], makers[node.inputs[bucket.index]][0]
    for k in in_place:
        size, made = size_bytes(values[node.inputs[k]]), makers[node.inputs[k]][0]
        found.append((opened, made - 1 if graph.nodes[made].op == WRITES else start, -size))  # another op's result lies where that op made it
    return found
