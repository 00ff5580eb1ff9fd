"""Liveness: which values own bytes, and while which nodes they hold them.

In: a graph, whole or a program's local one. Out: for each value that owns bytes the first and last node at which they are held. The
law of memory that cost and emitted code share (the solver's own counts what is written or added in place as tensors of their own: what fits by it fits):

* states and the batch are held the whole step; a view owns nothing and keeps its base, but for what must be a copy (`graph.view_strides`);
* the new version of a state is written into the state's own storage as soon as the old version has been read for the last time, so
  it owns bytes only from where it is made until then;
* everything else is held from the node that makes it until the last node that reads it; the loss and outputs until the end;
* in a step that takes its batch in turns, what comes from before the turns and is read in them is held to the end of the last turn, and a sum
  over the turns, or what they put together, is held from the start of the first;
* what a matmul writes into a bucket (`graph.open_buckets`), and all sums of it, lie there and own nothing;
* an all-reduce puts the sum of a large gradient that nobody else reads where that lies (`graph.own`);
* the rows of a table that are added to another gradient of it (`graph.in_place`) go where that lies; rows by themselves are counted, but on a CPU none are made;
* what a matmul adds to a sum over turns (`graph.in_place`) owns nothing;
* of a program, what Adam's step makes on its way owns nothing (`graph.adam`), nor do the new states that it puts where the old ones are.

It counts no workspace of a kernel and no reserve of the allocator: that is for `cost` to add.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .graph import Graph, value_table
from .in_place import find_added, find_products_onto, find_rows_onto
from .kept import kept_table
from .node import Node, Ref, get_arg
from .own import find_overwritten
from .program import MAKES, WAIT, WRITES
from .tensor import size_bytes
from .turns import GROWN, TAKE, loop_span
from .unheld import list_unheld, list_written_over
from .view_strides import find_copied

VIEW_OPS = frozenset(
    f"aten.{packet}"
    for packet in (
        "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "expand_as", "movedim", "narrow", "permute", "reshape", "select",
        "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view", "view_as",
        "view_as_complex", "view_as_real", "_unsafe_view",
    )
)  # fmt: skip


_BUCKETED = (WRITES, "comm.start_all_reduce")


def is_view(op: str) -> bool:
    """True where the op's outputs share the storage of its first input (`aten.view.default`, any overload)."""
    packet = op.rpartition(".")[0] if op.count(".") > 1 else op
    return packet in VIEW_OPS or op in (TAKE, WAIT)


def storage_bases(graph: Graph, overwritten: Collection[str] = (), copied: Collection[str] = ()) -> dict[str, str]:
    """For each value the value that owns its bytes: itself, or the base of the views that lead to it.

    Args:
        overwritten: values over which their one reader puts its result.
        copied: results of views that are copies, which own theirs.
    """
    base = {name: name for name in graph.inputs}
    for node in graph.nodes:
        shared = _shared_input(node, overwritten)
        for out in node.outputs:
            if out:
                base[out] = out if shared is None or out in copied else base[shared]
    return base


def list_readers(graph: Graph, base: Mapping[str, str]) -> dict[str, list[int]]:
    """Value that owns bytes -> the nodes that read it, themselves or through views, in order; views are no readers unless they are copies.

    Args:
        base: `storage_bases`.
    """
    found: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        copies = any(base.get(out) == out for out in node.outputs)
        for name in dict.fromkeys(base[n] for n in node.inputs) if copies or not is_view(node.op) else ():
            found.setdefault(name, []).append(i)
    return found


@kept_table
def held_bases(graph: Graph) -> dict[str, str]:
    """`storage_bases` by the law of this module: the owner of each value is in `live_ranges`, or owns nothing there either."""
    onto = {both.inputs[0] for pairs in (find_rows_onto(graph), find_products_onto(graph)) for _, both in pairs.values()}
    return storage_bases(graph, find_overwritten(graph) | onto, find_copied(graph))


def _shared_input(node: Node, overwritten: Collection[str]) -> str | None:
    """The input in whose bytes the node's results lie."""
    bucket = get_arg(node, "bucket") if node.op in _BUCKETED else None
    if isinstance(bucket, Ref):
        return node.inputs[bucket.index]
    if node.inputs and is_view(node.op):
        return node.inputs[0]
    return next((name for name in node.inputs if name in overwritten), None)


@kept_table
def live_ranges(graph: Graph) -> dict[str, tuple[int, int]]:
    """(first, last) node index, both inclusive, at which each value that owns bytes holds them.

    Inputs are (-1, number of nodes); the loss and outputs end at the number of nodes. Views are left out, and what owns nothing.
    """
    end = len(graph.nodes)
    entering = frozenset(graph.inputs)
    base = held_bases(graph)
    made = {name: -1 for name in graph.inputs}
    read: dict[str, int] = {}  # by value, through views
    replaced = {new: old for old, new in graph.updates}
    products = {k: i for i, (k, _) in find_products_onto(graph).items()}  # matmuls that run where their products are added, and leave none
    for i, node in enumerate(graph.nodes):
        for out in node.outputs:
            if out:
                made[out] = i
        for name in node.inputs:
            read[name] = max(read.get(name, -1), products.get(i, i))
    span = loop_span(graph)
    last = {name: end for name in graph.inputs}
    last_read: dict[str, int] = {}
    for name, i in read.items():
        last_read[base[name]] = max(last_read.get(base[name], -1), i)
    for name in made:
        owner = base[name]
        if owner in entering:
            continue
        until = made[name]
        if name in replaced:
            until = max(until, last_read.get(replaced[name], -1))
        else:
            until = max(until, read.get(name, -1))
        if span is not None and made[owner] < span[0] <= until <= span[1]:
            until = span[1]
        last[owner] = max(last.get(owner, -1), until)
    for name in (*([graph.loss] if graph.loss else []), *graph.outputs):
        last[base[name]] = end
    if span is not None:
        made.update((node.outputs[0], span[0]) for node in graph.nodes if node.op in GROWN)
    added = find_added(graph, [node.phase for node in graph.nodes])
    unheld = list_unheld(graph) | {graph.nodes[k].outputs[0] for k, _ in added.values() if graph.nodes[k].op == MAKES}  # rows of a table are made apart, but on a CPU
    unheld |= {graph.nodes[k].outputs[0] for k in products} | list_written_over(graph)
    return {name: (made[name], until) for name, until in last.items() if name not in unheld}


def bytes_over_time(graph: Graph, ranges: Mapping[str, tuple[int, int]] | None = None) -> list[int]:
    """Bytes held while each node runs, one entry per node (one for a graph without nodes)."""
    values = value_table(graph)
    count = max(1, len(graph.nodes))
    change = [0] * (count + 1)
    for name, (first, last) in (live_ranges(graph) if ranges is None else ranges).items():
        size = size_bytes(values[name])
        change[max(0, first)] += size
        change[min(count - 1, last) + 1] -= size
    held, total = [], 0
    for delta in change[:count]:
        total += delta
        held.append(total)
    return held
