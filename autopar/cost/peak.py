"""The peak, tensor by tensor: which pieces one device holds at the node where it holds most, who made each and who reads it last.

In: a `Program` and the name of that node (`memory.estimate_memory` finds it). Out: a `Peak`. Invariant: the rows of a holder sum to what
`estimate_memory` says that it holds there; the reserve is of no tensor and has no row.
"""

from __future__ import annotations

from ..graph.graph import value_table
from ..graph.liveness import live_ranges
from ..graph.plan import Peak, PeakTensor
from ..graph.program import Program
from .memory import list_lives, scratch_bytes


def list_peak(program: Program, node: str) -> Peak:
    """What is held while a node runs.

    Args:
        node: name of a node of the program.
    """
    graph = program.graph
    at = next(i for i, n in enumerate(graph.nodes) if n.name == node)
    known = {name: (whole, sharding) for name, whole, sharding in program.shardings}
    until = live_ranges(graph)
    rows = []
    for life in list_lives(program):
        if life.first <= at <= life.last and life.bytes:
            whole, sharding = known[life.name]
            made_by = graph.nodes[life.first].name if life.first >= 0 else ""
            last_read = graph.nodes[life.last].name if until[life.name][1] < len(graph.nodes) else ""
            rows.append(PeakTensor(whole, sharding, life.holder, life.bytes, made_by, last_read))
    there = graph.nodes[at]
    scratch = scratch_bytes(program, there, value_table(graph))
    if scratch:
        rows.append(PeakTensor("", None, "temporaries", scratch, node, node))
    return Peak(node, there.phase, there.path, there.source, tuple(rows))
