"""What a CUDA graph cannot hold.

In: the programs of a plan. Out: nothing, or an error that says which node stands in the way. A graph has fixed shapes and addresses and runs without the host: so no op
whose result has as many elements as its values say, none that brings a number to the host, none of the user's own (nobody knows what it does), and no messages between pipeline
stages, whose order the host keeps. Random numbers are no obstacle: they follow from a seed that is a state (`autopar.uniform`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import OptionsError
from ..graph.graph import Graph, value_table
from ..graph.kernel import is_kernel
from ..graph.node import Node, packet_of
from ..graph.turns import RECEIVE, SEND

_COUNTS = frozenset((
    "aten.nonzero", "aten.masked_select", "aten._unique", "aten._unique2", "aten.unique_dim", "aten.unique_consecutive", "aten.bincount", "aten._local_scalar_dense",
    "aten.equal", "aten.repeat_interleave", "aten.histc", "autopar.poisson",
))  # fmt: skip  # results of unknown size, or numbers that go to the host
_INDEXED = frozenset(("aten.index", "aten.index_put", "aten._unsafe_index", "aten._unsafe_index_put"))
_OURS = ("aten", "autopar", "comm", "state")


def check_capturable(graphs: Sequence[Graph], device_kind: str, local: str) -> None:
    """Check that a step can be captured.

    Args:
        graphs: of the programs, one per pipeline stage.
        device_kind: `cuda` or `cpu`.
        local: as of `Options`.
    Raises:
        OptionsError: it cannot; says why.
    """
    if device_kind != "cuda":
        raise OptionsError(f"cuda_graph: the cluster's devices are of kind {device_kind}, and a CUDA graph needs cuda: leave it out, or name a cluster of GPUs")
    if local == "inductor":
        raise OptionsError("cuda_graph: what torch.compile makes may compile again within a step: leave it out, or say local=kernels")
    for graph in graphs:
        values = value_table(graph)
        for node in graph.nodes:
            why = _find_obstacle(node, [values[name].dtype for name in node.inputs])
            if why:
                where = ", ".join(part for part in (node.path, node.source) if part)
                cure = "leave cuda_graph out" + (", or plan for one stage (--fix pp=1), which has none" if node.op in (SEND, RECEIVE) else "")
                raise OptionsError(f"cuda_graph: {node.name}{f' ({where})' if where else ''}: {why}; {cure}")


def _find_obstacle(node: Node, dtypes: Sequence[str]) -> str:
    packet = packet_of(node.op)
    if node.op in (SEND, RECEIVE):
        return "a message between pipeline stages waits for the host"
    if packet in _COUNTS:
        return f"{node.op} needs the host to see a number"
    if packet in _INDEXED and "bool" in dtypes[1:]:
        return f"{node.op} with a mask makes as many elements as the mask has true ones"
    if not is_kernel(node.op) and packet.partition(".")[0] not in _OURS:
        return f"{node.op} is not torch's, and nobody knows whether a graph can hold it"
    return ""
