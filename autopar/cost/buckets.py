"""Buckets on the cores of one machine: how much of a model's states or gradients programs send there at once.

In: a cost model, a graph. Out: the model with its `bucket_bytes`. Programs send together what a block has (`graph.overlap`), and a message costs its start far more than its
bytes where ranks share cores: so the size of a block is the size of a message. Devices whose links know a bucket of their own keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

from ..graph.graph import Graph, entering_values
from ..graph.overlap import BUCKET_BYTES
from ..graph.repeats import block_of
from ..graph.tensor import IN_PLACE_BYTES, Kind, size_bytes
from .model import CostModel


def bucketed_model(model: CostModel, graph: Graph) -> CostModel:
    """The model, for programs of this graph."""
    if model.bucket_bytes or model.cluster.device.kind != "cpu":
        return model
    return replace(model, bucket_bytes=min(BUCKET_BYTES, _bytes_at_once(graph)))


def _bytes_at_once(graph: Graph) -> int:
    """Of the parameters of a block that are not sent alone, of the family that has most of them; of all where there are no two blocks. Of a model that is
    trained only those that have a gradient: what is frozen fills no message of theirs."""
    families: dict[str, dict[int, int]] = {}
    alone, trained = 0, {param for param, _ in graph.grads}
    for value in entering_values(graph):
        size = size_bytes(value)
        if value.kind is not Kind.PARAM or size >= IN_PLACE_BYTES or (trained and value.name not in trained):
            continue
        place = block_of(value.storage, graph.sequences)
        if place is None:
            alone += size
        else:
            blocks = families.setdefault(place[0], {})
            blocks[place[1]] = blocks.get(place[1], 0) + size
    several: Sequence[dict[int, int]] = [blocks for blocks in families.values() if len(blocks) > 1]
    if several:
        return median_low(max(several, key=lambda blocks: sum(blocks.values())).values())
    return alone + sum(sum(blocks.values()) for blocks in families.values())
