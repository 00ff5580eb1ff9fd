"""Messages: which tensors of a bucket travel as one.

In: the bytes of tensors that start together. Out: their places, message by message. The runtime sends them so, and the law of memory counts them so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from .mesh import Mesh
from .node import Node, get_arg
from .program import STARTS
from .tensor import Value, num_elements, size_bytes

# Torch's `DistributedDataParallel(bucket_cap_mb=25)`. What is larger is bound by bandwidth, and packing it costs a copy.
BUCKET_BYTES = 25 * 2**20
# Bytes of a tensor, whole, from which on it travels alone on a CPU: of a reduction (in an all-reduce it lies where it lay then, if nobody else reads it), and of a gather, whose pieces
# are held twice while they are unpacked.
REDUCED_ALONE_BYTES = 1 << 23
GATHERED_ALONE_BYTES = 1 << 21


def split_bucket(sizes: Sequence[int], gathers: bool, on_cpu: bool) -> list[tuple[int, ...]]:
    """The places of tensors that are one message each: on a CPU the large ones alone, then the rest, packed; elsewhere all.

    By size alone, so that all ranks send the same messages. Copying what is large costs more than another message does. Measured with gloo, 4 ranks on 2 cores, ms a step with everything alone
    from 2 and from 8 MiB on: a GPT of 13 M parameters with data parallelism 552 and 530; with ZeRO-3 751 and 679 (all packed 863 in another hour), which holds 98 and 106 MiB; an MLP with matrices
    of 8 and 16 MiB and ZeRO-3 342 with either, 411 all packed, and 97 MiB held of 129. Gathers go alone from 2 MiB on for what that saves.

    Args:
        sizes: bytes of each, whole.
        gathers: whether they are gathered; else they are reduced.
    """
    least = GATHERED_ALONE_BYTES if gathers else REDUCED_ALONE_BYTES
    return _set_apart([k for k, size in enumerate(sizes) if on_cpu and size >= least], len(sizes))


def list_in_place(sizes: Sequence[int], own: Iterable[int], on_cpu: bool) -> list[int]:
    """The places of tensors that are all-reduced where they lie, each a message of its own, while the rest is packed: on a CPU the large ones, elsewhere a single one.

    Args:
        sizes: bytes of each.
        own: places of those that may be written over (`graph.own`).
    """
    return [k for k in own if len(sizes) == 1 or (on_cpu and sizes[k] >= REDUCED_ALONE_BYTES)]


def list_ends(nodes: Iterable[Node]) -> list[tuple[Node, int]]:
    """Each tensor that these start: the collective, and the tensor's place in it."""
    return [(node, k) for node in nodes for k in range(len(node.outputs))]


def find_in_place(ends: Sequence[tuple[Node, int]], values: Mapping[str, Value], on_cpu: bool) -> list[int]:
    """`list_in_place` of tensors that start together (`list_ends`)."""
    own = [place for place, (node, k) in enumerate(ends) if k in get_arg(node, "own", ())]
    return list_in_place([size_bytes(values[node.inputs[k]]) for node, k in ends], own, on_cpu)


def split_starts(ends: Sequence[tuple[Node, int]], values: Mapping[str, Value], on_cpu: bool) -> list[tuple[int, ...]]:
    """The places of tensors that are one message each, of those that start together (`list_ends`)."""
    if ends[0][0].op == "comm.start_all_reduce":
        return _set_apart(find_in_place(ends, values, on_cpu), len(ends))
    sizes = [max(size_bytes(values[node.inputs[k]]), size_bytes(values[node.outputs[k]])) for node, k in ends]
    return split_bucket(sizes, ends[0][0].op == "comm.start_all_gather", on_cpu)


def _set_apart(alone: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Messages of so many tensors: what goes alone, then the rest."""
    rest = tuple(k for k in range(count) if k not in alone)
    return [*((k,) for k in alone), *((rest,) if rest else ())]


def is_one_piece(mesh: Mesh, node: Node, place: int, values: Mapping[str, Value]) -> bool:
    """True where the pieces of the tensor at this place of a collective are, in the order of the ranks, contiguous chunks of it: alone, it is neither packed nor unpacked."""
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
