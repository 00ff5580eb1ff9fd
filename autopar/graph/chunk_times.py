"""Chunks: how long each chunk of a stage takes, and from it what a schedule is simulated with.

In: stages with their seconds, and where they run several chunks those of each. Out: `Durations`. A chunk takes what its own units take: where the head of a model
is in the last chunk of a stage, that chunk is longer than the others, and they wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from .schedules.schedule import numbers_on_ranks
from .schedules.timeline import Durations

NO_CHUNKS: Mapping[str, int] = MappingProxyType({})  # node -> its chunk, of a stage that runs one


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """One chunk for one microbatch: seconds of forward, backward, and of the backward what only the weights need; bytes that it keeps from forward to backward."""

    forward_s: float
    backward_s: float
    weight_s: float
    kept_bytes: int = 0


class Timed(Protocol):
    """A stage: seconds of one microbatch, all chunks; and of each where there are several (() where nobody told: then they take equal parts)."""

    @property
    def forward_s(self) -> float: ...
    @property
    def backward_s(self) -> float: ...
    @property
    def weight_s(self) -> float: ...
    @property
    def chunks(self) -> tuple[ChunkTimes, ...]: ...


def chunk_durations(stages: Sequence[Timed], ranks: Sequence[int], splits_backward: bool) -> Durations:
    """Seconds of each chunk of the model.

    Args:
        ranks: the stage of each chunk (`schedules.known.chunk_ranks`).
        splits_backward: the schedule runs what only the weights need apart.
    """
    each = [_of_chunk(stages[rank], number, list(ranks).count(rank)) for rank, number in zip(ranks, numbers_on_ranks(tuple(ranks)))]
    return Durations(tuple(c.forward_s for c in each), tuple(c.backward_s for c in each), tuple(c.weight_s for c in each) if splits_backward else ())


def _of_chunk(stage: Timed, number: int, count: int) -> ChunkTimes:
    if stage.chunks:
        return stage.chunks[number]
    return ChunkTimes(stage.forward_s / count, stage.backward_s / count, stage.weight_s / count)
