"""The peak, tensor by tensor: which pieces one device holds at the node where it holds most, who made each and who reads it last.

In: a `Program` and the name of that node (`memory.estimate_memory` finds it). Out: a `Peak`. Invariant: the rows of a holder sum to what
`estimate_memory` says that it holds there; the reserve is of no tensor and has no row.
"""

from __future__ import annotations

from ..graph.liveness import live_ranges
from ..graph.plan import Peak, PeakTensor
from ..graph.program import Program
from ..graph.turns import loop_span
from .memory import ALONE, Among, beside_bytes, ends_higher, list_lives, waiting_bytes


def list_peak(program: Program, node: str, in_flight: float = 1.0, among: Among = ALONE) -> Peak:
    """What is held while a node runs.

    Args:
        node: name of a node of the program.
        in_flight, among: as of `estimate_memory`.
    """
    graph = program.graph
    at = next(i for i, n in enumerate(graph.nodes) if n.name == node)
    known = {name: (whole, sharding) for name, whole, sharding in program.shardings}
    until, span = live_ranges(graph), loop_span(graph)
    inside = span is not None and span[0] <= at <= span[1]
    ends = at == len(graph.nodes) - 1 and ends_higher(program, among)
    others = waiting_bytes(program, in_flight) if inside and not ends else {}
    rows = []
    for life in list_lives(program):
        held = life.leaves if ends else life.first <= at <= life.last
        waiting, own = others.get(life.name, 0), life.bytes if held else 0
        if own or waiting:
            whole, sharding = known[life.name]
            made_by = graph.nodes[life.first].name if life.first >= 0 else ""
            last_read = graph.nodes[life.last].name if until[life.name][1] < len(graph.nodes) else ""
            rows.append(PeakTensor(whole, sharding, life.holder, own + waiting, made_by, last_read, waiting))
    there = graph.nodes[at]
    beside = among.given_bytes if ends else beside_bytes(program, at, in_flight, among)
    if beside:
        rows.append(PeakTensor("", None, "temporaries", beside, node, node))
    return Peak(node, there.phase, there.path, there.source, tuple(rows))
