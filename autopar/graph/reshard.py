"""Reshards: how a value goes from one sharding to another, as a list of steps of one mesh axis each.

In: the whole shape, two shardings, the mesh sizes. Out: steps, each one collective or one local cut. Invariant: after the steps
every rank holds exactly its piece of the target. The path is the one that moves the fewest bytes per rank (Dijkstra over the at
most 3^axes shardings in between), so the solver that prices it and the program that runs it agree without talking.

Bytes moved per rank along an axis of N ranks, ring algorithms (Thakur et al. 2005, table 1): all_gather and reduce_scatter (N-1)/N of
the gathered bytes, all_reduce twice that, all_to_all (N-1)/N of the local bytes.
"""

from __future__ import annotations

import enum
import heapq
from dataclasses import dataclass
from functools import lru_cache

from ..errors import GraphError
from .sharding import REPLICATE, Partial, Placement, Replicate, Shard, Sharding, local_shape, why_illegal
from .tensor import num_elements


class StepKind(enum.Enum):
    """One collective, or one local cut."""

    ALL_GATHER = "all_gather"  # S -> R
    REDUCE_SCATTER = "reduce_scatter"  # P -> S
    ALL_REDUCE = "all_reduce"  # P -> R
    ALL_TO_ALL = "all_to_all"  # S -> S
    SLICE = "slice"  # R -> S, local
    KEEP = "keep"  # R -> P, local: one rank keeps the value, the others hold zeros


COLLECTIVES = frozenset({StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE, StepKind.ALL_TO_ALL})


@dataclass(frozen=True, slots=True)
class Step:
    """One step along one mesh axis.

    Args:
        kind: see `StepKind`.
        axis: index of the mesh axis.
        op: `sum`, `max` or `min` for reductions, else "".
        from_dim, from_stride: the split that the input has, -1 where it has none. The stride is in elements of the LOCAL tensor
            that is whole along this axis, so that the digit is `(i // stride) % N` there.
        to_dim, to_stride: the split that the output has, in the same sense.
        local_in, local_out: local shapes before and after.
    """

    kind: StepKind
    axis: int
    op: str
    from_dim: int
    from_stride: int
    to_dim: int
    to_stride: int
    local_in: tuple[int, ...]
    local_out: tuple[int, ...]


def moved_elements(step: Step, axis_size: int) -> float:
    """Elements that each rank sends in this step."""
    share = (axis_size - 1) / axis_size
    if step.kind is StepKind.ALL_GATHER:
        return num_elements(step.local_out) * share
    if step.kind is StepKind.REDUCE_SCATTER:
        return num_elements(step.local_in) * share
    if step.kind is StepKind.ALL_REDUCE:
        return 2 * num_elements(step.local_in) * share
    if step.kind is StepKind.ALL_TO_ALL:
        return num_elements(step.local_in) * share
    return 0.0


@lru_cache(maxsize=1 << 18)
def reshard_steps(shape: tuple[int, ...], source: Sharding, target: Sharding, sizes: tuple[int, ...]) -> tuple[Step, ...]:
    """The cheapest steps from one sharding to another.

    Args:
        shape: of the whole value.
        source, target: legal shardings of it. A target may be Partial only where the source replicates or is the same Partial.
        sizes: of the mesh axes.
    Raises:
        GraphError: no path exists (a Partial is asked of a value that is split there and cannot be gathered first).
    """
    if source == target:
        return ()
    counter = 0
    heap: list[tuple[float, int, int, Sharding, tuple[Step, ...]]] = [(0.0, 0, 0, source, ())]
    done: set[Sharding] = set()
    while heap:
        cost, length, _, here, steps = heapq.heappop(heap)
        if here == target:
            return steps
        if here in done:
            continue
        done.add(here)
        for axis in range(len(sizes)):
            for wanted in (target.placements[axis], REPLICATE):
                step = _make_step(shape, here, axis, wanted, sizes)
                if step is None:
                    continue
                after = Sharding(here.placements[:axis] + (wanted,) + here.placements[axis + 1 :])
                counter += 1
                # local cuts and longer paths pay a token, so that ties go to the shortest
                price = cost + moved_elements(step, sizes[axis]) + 1e-3
                heapq.heappush(heap, (price, length + 1, counter, after, (*steps, step)))
    raise GraphError(f"no reshard from {source} to {target} for shape {list(shape)} on a mesh of {sizes}")


def _make_step(shape: tuple[int, ...], here: Sharding, axis: int, wanted: Placement, sizes: tuple[int, ...]) -> Step | None:
    now = here.placements[axis]
    if now == wanted:
        return None
    after = Sharding(here.placements[:axis] + (wanted,) + here.placements[axis + 1 :])
    if why_illegal(shape, after, sizes):
        return None
    kind: StepKind
    op = ""
    if isinstance(now, Partial):
        if isinstance(wanted, Partial):
            return None
        kind, op = (StepKind.REDUCE_SCATTER if isinstance(wanted, Shard) else StepKind.ALL_REDUCE), now.op
    elif isinstance(now, Replicate):
        kind = StepKind.SLICE if isinstance(wanted, Shard) else StepKind.KEEP
        if isinstance(wanted, Partial) and wanted.op != "sum":
            return None
    elif isinstance(wanted, Partial):
        return None
    else:
        kind = StepKind.ALL_TO_ALL if isinstance(wanted, Shard) else StepKind.ALL_GATHER
    if kind is StepKind.ALL_TO_ALL and now.dim == wanted.dim:
        return None  # two splits of one dim by the same axis: gather, then cut
    from_dim, from_stride = (now.dim, _local_stride(now, here, axis, sizes)) if isinstance(now, Shard) else (-1, -1)
    to_dim, to_stride = (wanted.dim, _local_stride(wanted, after, axis, sizes)) if isinstance(wanted, Shard) else (-1, -1)
    return Step(kind, axis, op, from_dim, from_stride, to_dim, to_stride, local_shape(shape, here, sizes), local_shape(shape, after, sizes))


def _local_stride(split: Shard, sharding: Sharding, axis: int, sizes: tuple[int, ...]) -> int:
    """The stride of `axis`'s digit in the tensor that is local for all other axes and whole for this one."""
    stride = split.stride
    for other, (placement, size) in enumerate(zip(sharding.placements, sizes)):
        if other != axis and isinstance(placement, Shard) and placement.dim == split.dim and placement.stride < split.stride:
            stride //= size
    return stride
