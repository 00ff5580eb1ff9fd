"""Own: values whose bytes are nobody else's, so that their one reader may write over them: a sum over turns takes them over, an all-reduce puts its result there.

In: a graph. Out: names. Only ops that make large gradients are looked at: each makes new bytes for its results whatever it is given, or writes over an input that was own itself.
"""

from __future__ import annotations

from .graph import Graph, producer_table, use_table, value_table
from .kept import kept
from .tensor import size_bytes
from .turns import LOOP

IN_PLACE_BYTES = 1 << 21  # of a tensor: from here on an all-reduce that blocks writes over it
_PACKED = frozenset(("autopar.linear_weight_grad", "autopar.embedding_backward", "autopar.embedding_backward_onto", "aten.mm.default"))  # whatever the strides of what they read
MAKES_ANEW = _PACKED | {"aten.add.Tensor", "aten.convolution_backward.default"}


@kept
def find_own(graph: Graph) -> frozenset[str]:
    """What an op makes anew, one node alone reads, and nobody gets from the step."""
    uses, leaving = use_table(graph), {graph.loss, *graph.outputs, *(new for _, new in graph.updates)}
    made = (out for node in graph.nodes if node.op in MAKES_ANEW and node.phase in LOOP for out in node.outputs if out)  # what is made once serves every turn
    return frozenset(name for name in made if len(uses[name]) == 1 and name not in leaving)


@kept
def find_overwritten(graph: Graph) -> frozenset[str]:
    """What an all-reduce that blocks puts its result over: large, packed, and nobody else's. Along a second axis it is what the first one has left there."""
    reduced = [node.inputs[0] for node in graph.nodes if node.op == "comm.all_reduce"]
    if not reduced:
        return frozenset()
    own, values, makers, uses = find_own(graph), value_table(graph), producer_table(graph), use_table(graph)
    leaving, found = {graph.loss, *graph.outputs}, set()
    for name in reduced:
        maker = graph.nodes[makers[name][0]] if name in makers else None
        packed = name in own and maker is not None and maker.op in _PACKED and size_bytes(values[name]) >= IN_PLACE_BYTES
        again = maker is not None and maker.op == "comm.all_reduce" and maker.inputs[0] in found and len(uses[name]) == 1 and name not in leaving
        if packed or again:
            found.add(name)
    return frozenset(found)
