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
from ..graph.sections import weight_nodes
from ..graph.turns import RECEIVE


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
    late = weight_nodes(nodes) if pipeline is not None and splits_backward(pipeline.kind) else frozenset[str]()
    at, kept, made, found = chunks[0], dict[str, int](), dict[str, int](), dict[str, Place]()
    unknown: dict[str, NodePlan] = {}  # value -> what makes it: what comes from another stage belongs to whoever reads it, and so does what is made of it alone

    def settle(node: NodePlan, chunk: int) -> None:
        todo = [node]
        while todo:
            one = todo.pop()
            found[one.name] = Place(chunk, one.name in late)
            for name in one.outputs:
                unknown.pop(name, None)
                (kept if one.phase is Phase.FORWARD else made)[name] = chunk
            todo += [unknown[name] for name in one.inputs if name in unknown]

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
    for node in list(unknown.values()):
        if node.name not in found:
            settle(node, chunks[-1])
    return found

