"""Turns: how a graph, whole or local, says that its forward and backward run once per microbatch (`graph.microbatch` makes such graphs).

The phases of the loop stand together, so that everything before them runs once before the turns and everything after them once after.
"""

from __future__ import annotations

from .graph import Graph
from .node import Phase, get_arg

TAKE, ACCUMULATE, COLLECT = "autopar.microbatch", "autopar.accumulate", "autopar.collect"
ACCUMULATE_FROM = {  # op -> the op that adds its result to a sum where that lies (`graph.in_place`)
    "autopar.linear_weight_grad": "autopar.accumulate_weight_grad", "autopar.embedding_backward": "autopar.accumulate_embedding",
}  # fmt: skip
GROWN = (ACCUMULATE, COLLECT, *ACCUMULATE_FROM.values())  # each turn adds to what they make: it exists from the first turn on and is read after the last
SEND, RECEIVE = "pipe.send", "pipe.receive"  # of a stage (`graph.stages`); a receive knows the number of turns, too
LOOP = (Phase.FORWARD, Phase.BACKWARD)


def count_microbatches(graph: Graph) -> int:
    """The number of turns of a graph, whole or local; 1 where there is no loop."""
    for node in graph.nodes:
        if node.op in (TAKE, RECEIVE):
            count = get_arg(node, "count", 0)
            if isinstance(count, int) and count:
                return count
    return 1


def has_backward(graph: Graph) -> bool:
    """False of a step that only goes forward (inference)."""
    return any(node.phase is Phase.BACKWARD for node in graph.nodes)


def times_of(phase: Phase, count: float) -> float:
    """How often a node of this phase runs in a step of so many turns (or what it counts, where a turn counts so much)."""
    return count if phase in LOOP else 1


def list_sent_before(graph: Graph) -> dict[int, frozenset[int]]:
    """Receive of the update -> the sends of it that stand before: what another stage sends may be made of what was sent to it (a norm of all gradients, whether all are finite)."""
    sent: list[int] = []
    found = {}
    for i, node in enumerate(graph.nodes):
        if node.phase is Phase.UPDATE and node.op == SEND:
            sent.append(i)
        elif node.phase is Phase.UPDATE and node.op == RECEIVE and sent:
            found[i] = frozenset(sent)
    return found


def loop_span(graph: Graph) -> tuple[int, int] | None:
    """(first, last) index of the nodes that run once per turn; None where there are no turns."""
    if count_microbatches(graph) == 1:
        return None
    inside = [i for i, node in enumerate(graph.nodes) if node.phase in LOOP]
    return inside[0], inside[-1]
