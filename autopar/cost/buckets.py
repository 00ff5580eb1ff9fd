"""Buckets: how much of a model's states or gradients programs send at once.

In: a cost model, a graph. Out: the model with what a block has. Programs send together what a block has (`graph.overlap`), so no message is larger than that, but for a tensor that is. What is in no block goes in pieces
(`graph.run_pieces`).
On the cores of one machine a message costs its start far more than its bytes: there the size of a block, without what goes alone, is the size of a message. Devices whose links know a bucket
of their own keep it, as far as a block fills it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from ..graph.graph import Graph, entering_values
from ..graph.messages import BUCKET_BYTES, GATHERED_ALONE_BYTES, REDUCED_ALONE_BYTES
from ..graph.repeats import state_blocks
from ..graph.run_pieces import piece_bytes
from ..graph.tensor import Kind, Value, num_elements, size_bytes
from .model import CostModel


def bucketed_model(model: CostModel, graph: Graph, zero: int | None = None) -> CostModel:
    """The model, for programs of this graph.

    Args:
        zero: the stage that plans must have. With ZeRO-3 all states of a block are in pieces, and travel together on a CPU, too; what is in no block is gathered and reduced a few at a time.
    """
    trained = frozenset(param for param, _ in graph.grads)
    params = [value for value in entering_values(graph) if value.kind is Kind.PARAM]
    places = state_blocks(graph)
    with_grads = [value for value in params if not trained or value.name in trained]
    vectors = [value for value in with_grads if len(value.shape) < 2]
    share = _run_share(params) if zero == 3 else 1.0
    states, grads, thin = (_sum_at_once(places, [(v, num_elements(v.shape)) for v in some], share) for some in (params, with_grads, vectors))
    model = replace(model, block_elements=(states, grads), vector_elements=thin)
    if model.bucket_bytes or model.cluster.device.kind != "cpu":
        return model
    states, grads = (
        min(BUCKET_BYTES, _sum_at_once(places, [(v, size) for v in some if (size := size_bytes(v)) < least], share))
        for some, least in ((params, GATHERED_ALONE_BYTES), (with_grads, REDUCED_ALONE_BYTES))
    )
    return replace(model, bucket_bytes=grads, state_bucket_bytes=states if zero == 3 else 0)


def _run_share(params: Sequence[Value]) -> float:
    """What part of a model without blocks is gathered at once (`graph.run_pieces`)."""
    total = sum(map(size_bytes, params))
    return min(1.0, piece_bytes(total) / total) if total else 1.0


def _sum_at_once(places: Mapping[str, tuple[str, int]], sizes: Sequence[tuple[Value, int]], share: float) -> int:
    """Of the parameters of a block, of the family that has most; of all where there are no two blocks.

    Args:
        places: the blocks (`state_blocks`).
        share: of all, what goes together where there are no two blocks.
    """
    families: dict[str, dict[int, int]] = {}
    alone = 0
    for value, size in sizes:
        place = places.get(value.storage)
        if place is None:
            alone += size
        else:
            blocks = families.setdefault(place[0], {})
            blocks[place[1]] = blocks.get(place[1], 0) + size
    several: Sequence[dict[int, int]] = [blocks for blocks in families.values() if len(blocks) > 1]
    if several:
        return median_low(max(several, key=lambda blocks: sum(blocks.values())).values())
    return int(share * (alone + sum(sum(blocks.values()) for blocks in families.values())))
