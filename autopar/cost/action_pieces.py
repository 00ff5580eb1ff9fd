"""Which action of a pipeline runs which node: its chunk of the model, and of a backward that is run in two parts which of them.

In: a plan with stages. Out: for each node its place, told from the plan's tables as `graph.sections` tells it of programs: where chunks start, who reads what. Of a backward node the chunk is that whose
activations it reads, or that of the gradient that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..graph.node import Phase
from ..graph.plan import NodePlan, Plan
from ..graph.schedules.known import splits_backward
from ..graph.turns import RECEIVE, SEND


class Place(NamedTuple):
    """The chunk of the model, and whether only weights need it (False in schedules that run the backward in one)."""

    chunk: int
    late: bool


def place_nodes(plan: Plan, nodes: Sequence[NodePlan], chunks: Sequence[int]) -> dict[str, Place]:
    """Of the nodes of forward and backward of one stage.

    Args:
        nodes: of the stage, in order.
        chunks: of the model, that the stage runs, ascending.
    """
    pipeline = plan.pipeline
    starts = {} if pipeline is None else {name: number + 1 for number, name in enumerate(pipeline.starts)}
    late = _weight_nodes(nodes) if pipeline is not None and splits_backward(pipeline.kind) else frozenset[str]()
    at, kept, made, found = chunks[0], dict[str, int](), dict[str, int](), dict[str, Place]()
    unknown: dict[str, NodePlan] = {}  # value -> what makes it: what comes from another stage belongs to whoever reads it, and so does what is made of it alone

    def settle(node: NodePlan, chunk: int) -> None:
        found[node.name] = Place(chunk, node.name in late)
        for name in node.outputs:
            unknown.pop(name, None)
            (kept if node.phase is Phase.FORWARD else made)[name] = chunk
        for name in node.inputs:
            if name in unknown:
                settle(unknown[name], chunk)

    for node in nodes:
        if node.phase is Phase.FORWARD and node.op != RECEIVE:
            at = starts[node.name] if starts.get(node.name) in chunks else at
            settle(node, at)
        elif node.phase in (Phase.FORWARD, Phase.BACKWARD):
            known = next((of[name] for of in (kept, made) for name in node.inputs if name in of), None)
            if known is None and any(node.outputs):
                unknown.update((name, node) for name in node.outputs)
            else:
                settle(node, chunks[-1] if known is None else known)
    for node in [*unknown.values()]:
        if node.name not in found:
            settle(node, chunks[-1])
    return found


def _weight_nodes(nodes: Sequence[NodePlan]) -> frozenset[str]:
    """As `graph.sections.weight_nodes`."""
    needed: set[str] = set()
    found = set()
    for node in reversed(nodes):
        if node.phase is Phase.BACKWARD and node.op != SEND and not needed.intersection(node.outputs):
            found.add(node.name)
        elif node.phase is Phase.BACKWARD:
            needed.update(node.inputs)
    return frozenset(found)
