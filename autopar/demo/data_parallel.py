"""Plain data parallelism as an assignment: the plan that everybody knows, so that the demo can say what it would need.

In: a graph with its rules. Out: an assignment on one mesh axis: every state whole on every rank, the batch split, each op where its inputs are,
gradients summed, the update whole. No solver: its memory is estimated by the same code as that of any plan.
"""

from __future__ import annotations

from ..cost.memory import Memory, estimate_memory
from ..errors import PlanError
from ..graph.case import Case
from ..graph.choice import Assignment
from ..graph.graph import value_table
from ..graph.mesh import Mesh, MeshAxis
from ..graph.node import Phase
from ..graph.partition import node_cuts, partition
from ..graph.sharding import Shard, Sharding, replicated, why_illegal
from ..graph.strategy import Strategy, list_strategies
from ..graph.tensor import Kind


def data_parallel_memory(case: Case, num_ranks: int, reserve_bytes: int) -> Memory:
    """What one rank needs."""
    assignment = data_parallel(case, num_ranks)
    return estimate_memory(partition(case.graph, case.sites, case.signatures, case.cuts, assignment), reserve_bytes)


def data_parallel(case: Case, num_ranks: int) -> Assignment:
    """The assignment.

    Raises:
        PlanError: the batch does not divide by the number of ranks.
    """
    mesh = Mesh((MeshAxis("a", num_ranks),))
    values, whole = value_table(case.graph), replicated(1)
    has: dict[str, Sharding] = {}
    for name in case.graph.inputs:
        shape = values[name].shape
        has[name] = whole
        if values[name].kind is Kind.BATCH and shape:
            has[name] = Sharding((Shard(0, shape[0] // num_ranks),))
            reason = why_illegal(shape, has[name], (num_ranks,))
            if reason:
                raise PlanError(f"plain data parallelism over {num_ranks} ranks: {name}: {reason}")
    stored = tuple(has.items())
    picked = []
    for node, site, signature in zip(case.graph.nodes, case.sites, case.signatures):
        strategies = list_strategies(signature, site, (num_ranks,), node_cuts(site, signature, case.cuts))[0]
        if node.phase is Phase.UPDATE:
            strategies = [s for s in strategies if all(p == whole for p in (*s.inputs, *s.outputs))]

        def moves(strategy: Strategy, inputs: tuple[str, ...] = node.inputs) -> int:
            return sum(has[name] != wanted for name, wanted in zip(inputs, strategy.inputs))

        best = min(strategies, key=moves)
        has.update(zip((o for o in node.outputs if o), best.outputs))
        picked.append((node.name, best.choices))
    return Assignment(mesh, stored, tuple(picked))
