"""Open buckets: gradients that a matmul writes where they travel, so that nothing is copied into the message.

In: a program whose collectives are started ahead (`graph.overlap`), the section of each node. Out: the program in which the bucket of
an all-reduce is opened before the first matmul of its place that makes one of its tensors:

    comm.open_bucket(shapes, dtype, own)                              the bucket: room for all of them
    autopar.linear_weight_grad_into(grad, input, bucket, place)       the result lies in the bucket, at this place of it
    comm.start_all_reduce(x, axis, op, own, bucket)                   the rest is copied to its place; the sums lie there, too

All of it shares the bytes of the bucket (`liveness.storage_bases`). What is large travels by itself on a CPU (`graph.messages`): its room is taken
only when it is made. Invariant: nobody but the start reads such a gradient (`own`), and the matmul stands in the same section and block (or run of
nodes in none). The pieces that a reduce-scatter sends do not lie together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .graph import producer_table, value_table
from .node import Node, Ref, get_arg
from .overlap import list_places
from .program import MAKES, OPEN, WRITES, Origin, Program
from .sections import Section
from .tensor import Value, num_elements


def open_buckets(program: Program, sections: Sequence[Section]) -> tuple[Program, tuple[Section, ...]]:
    """The program with such buckets, and the section of each of its nodes."""
    graph = program.graph
    values, makers, places = value_table(graph), producer_table(graph), list_places(graph, sections)
    nodes = list(graph.nodes)
    opened: dict[int, tuple[Node, Value, str]] = {}  # place before which it is opened -> what opens it, the bucket, a tensor in it
    for i, start in enumerate(graph.nodes):
        if start.op != "comm.start_all_reduce" or len(start.inputs) < 2:
            continue
        own = get_arg(start, "own", ())
        made = {k: makers[start.inputs[k]][0] for k in own if start.inputs[k] in makers}
        made = {k: at for k, at in made.items() if graph.nodes[at].op == MAKES and places[at] == places[i]}
        if not made:
            continue
        first, inside = min(made.values()), [values[name] for name in start.inputs]
        name = f"{start.outputs[0]}~bucket"
        bucket = replace(inside[0], name=name, storage=name, shape=(sum(num_elements(v.shape) for v in inside),))
        args = (("shapes", tuple(v.shape for v in inside)), ("dtype", bucket.dtype), ("own", tuple(own)))
        opened[first] = Node(f"open:{name}", OPEN, (), args, (name,), graph.nodes[first].phase, graph.nodes[first].path, graph.nodes[first].source), bucket, start.inputs[0]
        for k, at in made.items():
            maker = nodes[at]
            nodes[at] = replace(maker, op=WRITES, inputs=(*maker.inputs, name), args=(*maker.args, ("bucket", Ref(len(maker.inputs))), ("place", k)))
        nodes[i] = replace(start, inputs=(*start.inputs, name), args=(*start.args, ("bucket", Ref(len(start.inputs)))))
    if not opened:
        return program, tuple(sections)
    rows: list[tuple[Node, Origin, Section]] = []
    for i, row in enumerate(zip(nodes, program.origins, sections)):
        if i in opened:
            rows.append((opened[i][0], replace(row[1], value="", reason="gradients are written where they travel"), row[2]))
        rows.append(row)
    held = {name: (whole, sharding) for name, whole, sharding in program.shardings}
    more = tuple((bucket.name, *held[inner]) for _, bucket, inner in opened.values())
    known = {**values, **{bucket.name: bucket for _, bucket, _ in opened.values()}}
    order = [*graph.inputs, *(name for node, _, _ in rows for name in node.outputs if name)]
    local = replace(graph, values=tuple(known[name] for name in order), nodes=tuple(node for node, _, _ in rows))
    return replace(program, graph=local, origins=tuple(o for _, o, _ in rows), shardings=(*program.shardings, *more)), tuple(s for _, _, s in rows)
