"""Overlap: a program whose collectives are started as early as the law allows and waited for where their result is read.

In: a program as `graph.partition` builds it. Out: the same program in which what may hide is two nodes, several tensors may share the first one, and
everything else blocks as before:

    comm.start_all_gather(x, axis, dim, stride)    comm.start_reduce_scatter(x, axis, dim, stride, op, alone)    comm.start_all_reduce(x, axis, op)
        of several tensors, each with its own dim and stride; makes for each a value under way, of the shape that it will have
    comm.wait(x, of)                               the value itself; it shares the bytes of what was under way

The law is the one by which plans are priced (`graph.transfer`, `cost.streams`):

    prefetch   the gather of a state, in forward and backward: starts where its reader's block begins to run, or the block before if there is one;
               is waited for where it stood. So the gathered states of one block at most are held ahead.
    trailing   the reduction of what only the update reads: starts where it stands, is waited for in the update. What a reduce-scatter reads is held
               until it is done, so it goes alone: the one before is finished first.
    update     in the update of one parameter alone, the reduction of a sum over the turns, and the gather of a new state that is only written: both stand
               where they stood. As the updates of equal parameters are one function called in a loop, codegen puts the loop around them (`codegen.parcels`):
               the reductions of the next parameters start first, the gathers of these are waited for after the next.

Buckets: collectives of one kind, axis, reduction and dtype that start in one block (or in one run of nodes that are in none) go as one, up to
`BUCKET_BYTES`; what is larger goes alone, unpacked. All blocks that are equal stay equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .graph import Graph, use_table, value_table
from .node import Arg, Node, Phase, Ref, get_arg
from .program import WAIT, Origin, Program
from .repeats import block_of
from .sections import Section
from .tensor import STATE_KINDS, Value, size_bytes
from .turns import LOOP, RECEIVE, SEND
from .update_parts import update_parts

# As `cost.model`: torch's `DistributedDataParallel(bucket_cap_mb=25)`. What is larger is bound by bandwidth, and packing it costs a copy.
BUCKET_BYTES = 25 * 2**20
_REDUCES = ("comm.all_reduce", "comm.reduce_scatter")


@dataclass(frozen=True, slots=True)
class _Hiding:
    """A collective that may hide. Args: node: its index. start: the index before which it may start. wait: that before which it is waited for. group: kind
    and place; what shares both may share a bucket."""

    node: int
    start: int
    wait: int
    group: tuple


def overlap_program(program: Program, sections: Sequence[Section], prefetches: bool = True) -> tuple[Program, tuple[Section, ...]]:
    """The program with its communication overlapped.

    Args:
        sections: of each node.
        prefetches: whether to gather ahead.
    Returns:
        the program, and the section of each of its nodes.
    """
    graph = program.graph
    values = value_table(graph)
    places = _places(graph, sections)
    early = _prefetches(graph, values, sections, places) if prefetches else []
    hiding = [*early, *_trailing(graph, sections, places), *_in_updates(graph)]
    buckets = _fill_buckets(graph, values, hiding)
    return _rebuild(program, sections, values, [b for b in buckets if _gains(b)])


def _gains(bucket: Sequence[_Hiding]) -> bool:
    """False of a single gather in no block that would be waited for as soon as it is started. (In a block, too, that is so of the first, but equal blocks stay
    equal.)"""
    kind, place = bucket[0].group
    return kind == "update" or place[1] is not None or len(bucket) > 1 or bucket[0].start != bucket[0].node or bucket[0].wait != bucket[0].node


def _places(graph: Graph, sections: Sequence[Section]) -> list[tuple]:
    """For each node its section and block; where it is in no block, the run of such nodes that it is in."""
    found: list[tuple] = []
    for i, (node, section) in enumerate(zip(graph.nodes, sections)):
        block = block_of(node.path)
        if block is not None:
            found.append((section, *block))
        elif found and found[-1][0] == section and found[-1][1] is None:
            found.append(found[-1])
        else:
            found.append((section, None, i))
    return found


def _prefetches(graph: Graph, values: Mapping[str, Value], sections: Sequence[Section], places: Sequence[tuple]) -> list[_Hiding]:
    """Gathers of states that nobody rewrites before the update."""
    first: dict[tuple, int] = {}
    for i, place in enumerate(places):
        first.setdefault(place, i)
    before: dict[tuple, int] = {}  # block -> where the block before it in its section begins
    last: dict[Section, tuple] = {}
    for place, i in first.items():
        if place[1] is not None:
            before[place] = first[last[place[0]]] if place[0] in last else i
            last[place[0]] = place
    entering = {n for n in graph.inputs if values[n].kind in STATE_KINDS}
    written = {n.inputs[0] for n in graph.nodes if n.op == "state.write" and n.phase is not Phase.UPDATE}
    return [
        _Hiding(i, before.get(places[i], first[places[i]]), i, ("prefetch", places[i]))
        for i, node in enumerate(graph.nodes)
        if node.op == "comm.all_gather" and sections[i].phase in LOOP and node.inputs[0] in entering - written
    ]


def _trailing(graph: Graph, sections: Sequence[Section], places: Sequence[tuple]) -> list[_Hiding]:
    """Reductions in forward and backward of what one parameter's update alone reads."""
    uses = use_table(graph)
    leaving = {graph.loss, *graph.outputs}
    found = []
    for i, node in enumerate(graph.nodes):
        if node.op in _REDUCES and sections[i].phase in LOOP and node.outputs[0] not in leaving:
            readers = [graph.nodes[k] for k, _ in uses[node.outputs[0]]]
            if readers and all(r.phase is Phase.UPDATE for r in readers) and len({r.path for r in readers}) == 1:
                found.append(_Hiding(i, i, uses[node.outputs[0]][0][0], ("trailing", places[i])))
    return found


def _in_updates(graph: Graph) -> list[_Hiding]:
    """Reductions of what earlier phases made, and gathers of what is only written, each of one parameter's own update."""
    uses, leaving = use_table(graph), {graph.loss, *graph.outputs}
    apart = set(leaving)  # what the user gets comes first
    late = [i for i, node in enumerate(graph.nodes) if node.phase is Phase.UPDATE]
    for i in reversed(late):
        if apart.intersection(graph.nodes[i].outputs):
            apart.update(graph.nodes[i].inputs)
    made = {out for i in late for out in graph.nodes[i].outputs}
    parts, _ = update_parts(graph, frozenset(i for i in late if apart.intersection(graph.nodes[i].outputs)))
    found = []
    for part in parts:
        nodes = [graph.nodes[i] for i in part.nodes]
        if any(node.op in (SEND, RECEIVE) for node in nodes):
            continue
        for i, node in zip(part.nodes, nodes):
            if node.op in _REDUCES and node.inputs[0] not in made:
                found.append(_Hiding(i, i, i, ("update", i)))
            elif node.op == "comm.all_gather" and node.inputs[0] in made:
                if [graph.nodes[k].op for k, _ in uses[node.outputs[0]]] == ["state.write"] and node.outputs[0] not in leaving:
                    found.append(_Hiding(i, i, i, ("update", i)))
    return sorted(found, key=lambda one: one.node)


def _fill_buckets(graph: Graph, values: Mapping[str, Value], hiding: Sequence[_Hiding]) -> list[tuple[_Hiding, ...]]:
    """What goes together, in order."""
    full: list[list[_Hiding]] = []
    filling: dict[tuple, list[_Hiding]] = {}
    held: dict[tuple, int] = {}
    for one in hiding:
        node = graph.nodes[one.node]
        value = values[node.inputs[0]]
        size = max(size_bytes(value), size_bytes(values[node.outputs[0]]))
        key = (one.group, node.op, get_arg(node, "axis"), get_arg(node, "op", ""), value.dtype)
        if size >= BUCKET_BYTES:
            full.append([one])
        elif key in filling and held[key] + size <= BUCKET_BYTES:
            filling[key].append(one)
            held[key] += size
        else:
            filling[key] = [one]
            full.append(filling[key])
            held[key] = size
    return [tuple(bucket) for bucket in full]


def _rebuild(
    program: Program, sections: Sequence[Section], values: Mapping[str, Value], buckets: Sequence[tuple[_Hiding, ...]]
) -> tuple[Program, tuple[Section, ...]]:
    graph = program.graph
    sharding = {local: (whole, held) for local, whole, held in program.shardings}
    before: dict[int, list[tuple[Node, Origin, Section]]] = {}
    gone: set[int] = set()
    more: dict[str, Value] = {}
    rows = list(program.shardings)
    waits: dict[int, list[tuple[Node, Origin, Section]]] = {}
    for bucket in buckets:
        nodes = [graph.nodes[one.node] for one in bucket]
        start = _start_node(nodes, bucket)
        origin = program.origins[bucket[0].node]
        reason = origin.reason if len(bucket) == 1 else f"{len(bucket)} tensors as one"
        before.setdefault(max(one.start for one in bucket), []).append((start, replace(origin, reason=reason), sections[bucket[0].node]))
        for one, node, pending in zip(bucket, nodes, start.outputs):
            value = values[node.outputs[0]]
            more[pending] = replace(value, name=pending, storage=pending)
            rows.append((pending, *sharding[value.name]))
            gone.add(one.node)
            reader = graph.nodes[one.wait]
            args: tuple[tuple[str, Arg], ...] = (("x", Ref(0)), ("of", node.op.removeprefix("comm.")))
            wait = Node(f"wait:{value.name}", WAIT, (pending,), args, node.outputs, reader.phase, reader.path, reader.source)
            waits.setdefault(one.wait, []).append((wait, program.origins[one.node], sections[one.wait]))
    made: list[tuple[Node, Origin, Section]] = []
    for i, row in enumerate(zip(graph.nodes, program.origins, sections)):
        made += [*before.get(i, ()), *waits.get(i, ()), *([] if i in gone else [row])]
    known = {**values, **more}
    order = [*graph.inputs, *(name for node, _, _ in made for name in node.outputs if name)]
    local = replace(graph, values=tuple(known[name] for name in order), nodes=tuple(node for node, _, _ in made))
    return replace(program, graph=local, origins=tuple(o for _, o, _ in made), shardings=tuple(rows)), tuple(s for _, _, s in made)


def _start_node(nodes: Sequence[Node], bucket: Sequence[_Hiding]) -> Node:
    """One collective in place of several."""
    own = nodes[-1] if bucket[0].group[0] == "trailing" else nodes[0]
    args: list[tuple[str, Arg]] = [("x", tuple(Ref(k) for k in range(len(nodes)))), ("axis", get_arg(own, "axis"))]
    args += [(name, tuple(get_arg(n, name) for n in nodes)) for name in ("dim", "stride") if get_arg(own, name) is not None]
    args += [("op", op) for op in [get_arg(own, "op")] if op is not None]
    args += [("alone", True)] if own.op == "comm.reduce_scatter" and own.phase in LOOP else []
    outputs = tuple(f"{n.outputs[0]}~started" for n in nodes)
    name = own.op.replace("comm.", "comm.start_")
    return Node(f"start:{nodes[0].outputs[0]}", name, tuple(n.inputs[0] for n in nodes), tuple(args), outputs, own.phase, own.path, own.source)
