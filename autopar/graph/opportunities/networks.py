"""The graph as networkx sees it, for users' own analyses. Networkx is imported when it is asked for.

In: a graph. Out: a `networkx.MultiDiGraph`: its nodes are the graph's nodes, one per value that enters (op `input`) and one for the end of the
step (op `end`); its edges are the reads, one for each input of each node, so that a value read twice has two edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import NoRuleError
from ..graph import Graph, final_values, producer_table, value_table
from ..node import Node
from ..rule import Site, count_flops, find_rule, resolve
from ..rules import RULES
from ..tensor import Value, size_bytes
from ..work import node_bytes

if TYPE_CHECKING:
    import networkx

END = "end of the step"


def build_networkx(graph: Graph) -> networkx.MultiDiGraph:
    """See `Graph.to_networkx`."""
    import networkx

    values, makers = value_table(graph), producer_table(graph)
    net = networkx.MultiDiGraph(name=graph.name)
    for name in graph.inputs:
        net.add_node(name, op="input", phase="", path="", source="", kind=values[name].kind.value, flops=0.0, bytes=0, shapes=(values[name].shape,))
    for node in graph.nodes:
        made = tuple(values[o].shape for o in node.outputs if o)
        net.add_node(
            node.name, op=node.op, phase=node.phase.value, path=node.path, source=node.source, kind="node", flops=_flops(node, values),
            bytes=node_bytes(node, values), shapes=made,
        )  # fmt: skip
    net.add_node(END, op="end", phase="", path="", source="", kind="end", flops=0.0, bytes=0, shapes=())
    for reader, names in (*((node.name, node.inputs) for node in graph.nodes), (END, final_values(graph))):
        for name in names:
            maker = graph.nodes[makers[name][0]].name if name in makers else name
            v = values[name]
            net.add_edge(maker, reader, value=name, storage=v.storage, version=v.version, shape=v.shape, dtype=v.dtype, bytes=size_bytes(v))
    return net


def _flops(node: Node, values: dict[str, Value]) -> float | None:
    """FLOPs of the whole node, None where its op has no rule."""
    site = Site(node, tuple(values[n].shape for n in node.inputs), tuple(values[o].shape for o in node.outputs if o))
    try:
        return float(count_flops(resolve(find_rule(RULES, node), site), site))
    except NoRuleError:
        return None
