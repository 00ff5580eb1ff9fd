"""Work: the FLOPs and the bytes of whole nodes, as cost prices them and reports count them.

In: a node with its signature and the bytes around it. Out: numbers for one device that does it alone. A view does nothing; a lookup
reads no more of its table than it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .graph import Graph, value_table
from .liveness import is_view
from .node import Node, packet_of
from .rule import Signature, Site, count_flops
from .tensor import Value, size_bytes

# read of input 0 no more than they write
_GATHERS = frozenset(("autopar.embedding", "autopar.pick", "aten.embedding", "aten.index", "aten.index_select", "aten.gather"))
# int64 passes of the hash for each byte of float32 that it writes: about 310 bytes an element (counted in runtime/random.py), not fused;
# 16.8 M elements took 0.75 s on one CPU core at 10 GB/s
_HASH_PASSES = 78


@dataclass(frozen=True, slots=True)
class Work:
    """What nodes do: floating point operations, and bytes read and written."""

    flops: float = 0.0
    bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)


def moved_bytes(op: str, inputs: Sequence[int], outputs: Sequence[int]) -> int:
    """Bytes that an op reads and writes, from the bytes of its inputs and of its outputs that somebody sees."""
    if is_view(op):
        return 0
    written = sum(outputs)
    if op == "autopar.uniform":
        return _HASH_PASSES * written
    if inputs and packet_of(op) in _GATHERS:
        return min(inputs[0], written) + sum(inputs[1:]) + written
    return sum(inputs) + written


def node_bytes(node: Node, values: Mapping[str, Value]) -> int:
    """Bytes that a whole node reads and writes."""
    return moved_bytes(node.op, [size_bytes(values[n]) for n in node.inputs], [size_bytes(values[o]) for o in node.outputs if o])


def count_work(graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...]) -> tuple[Work, ...]:
    """The work of every node of a graph, in order."""
    values = value_table(graph)
    return tuple(Work(float(count_flops(s, site)), node_bytes(site.node, values)) for site, s in zip(sites, signatures))


def total_work(work: Sequence[Work]) -> Work:
    """Of several nodes together."""
    return Work(sum(w.flops for w in work), sum(w.bytes for w in work))
