"""Microbatches in flight: what a stage keeps of those that are between their forward and their backward.

In: how many of each chunk it holds in its actions (`stage_wires.TurnHeld`), what each chunk keeps of one microbatch. Out: that many microbatches, of all chunks. A
chunk that keeps more counts more: the head's logits are there for one microbatch at most, the first blocks' inputs for many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .graph import Graph, value_table
from .liveness import live_ranges
from .node import Phase
from .stage_wires import TurnHeld
from .tensor import size_bytes
from .turns import LOOP, loop_span


def list_kept(graph: Graph) -> dict[str, int]:
    """Bytes of each value that one microbatch keeps from its forward to its backward, of a graph in turns; made by the node whose output it is."""
    span = loop_span(graph)
    if span is None:
        return {}
    values, turn = value_table(graph), next((i for i, node in enumerate(graph.nodes) if node.phase is Phase.BACKWARD), len(graph.nodes))
    return {name: size_bytes(values[name]) for name, (first, last) in live_ranges(graph).items() if span[0] <= first < turn <= last <= span[1]}


def kept_by_chunk(graph: Graph, chunk_of: Mapping[str, int]) -> tuple[int, ...]:
    """What each chunk keeps of one microbatch.

    Args:
        graph: of a stage, or of its program.
        chunk_of: its nodes' chunks; nothing: there is one.
    """
    kept = list_kept(graph)
    found = [0] * (1 + max(chunk_of.values(), default=0))
    for node in graph.nodes:
        found[chunk_of.get(node.name, 0)] += sum(kept.get(name, 0) for name in node.outputs)
    return tuple(found)


def weigh_flying(counts: Sequence[int], kept: Sequence[float]) -> float:
    """Microbatches in flight of all chunks.

    Args:
        counts: of each chunk.
        kept: by each chunk; nothing by any: they count alike.
    """
    weights = kept if sum(kept) else [1] * len(counts)
    return sum(n * weight for n, weight in zip(counts, weights, strict=True)) / sum(weights)


def most_flying(held: Sequence[TurnHeld], kept: Sequence[float]) -> float:
    """Microbatches in flight, at most; the one at hand is."""
    return max([1.0, *(weigh_flying(row.in_flight, kept) for row in held if row.phase in LOOP)])


def least_flying(held: Sequence[TurnHeld]) -> float:
    """`most_flying` is no less, whatever the chunks keep."""
    return max([1.0, *(float(min(row.in_flight)) for row in held if row.phase in LOOP)])
