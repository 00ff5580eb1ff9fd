"""Reshards: how a value goes from one sharding to another, as a list of steps of one mesh axis each.

In: the whole shape, two shardings, the mesh sizes. Out: steps, each one collective or one local cut. Invariant: after the steps
every rank holds exactly its piece of the target. On the way each axis goes from its source to its target, directly or over whole; of
all orders of the axes the one is taken that moves the fewest elements per rank (the at most 3^axes shardings in between, in order), so
the solver that prices it and the program that runs it agree without talking. It needs no cost model: of equal ones an outer axis, the
slower link, is crossed with the smaller piece, and the one that writes less is better.

Bytes moved per rank along an axis of N ranks, ring algorithms (Thakur et al. 2005, table 1): all_gather and reduce_scatter (N-1)/N of
the gathered bytes, all_reduce twice that, all_to_all (N-1)/N of the local bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf, prod

from ..errors import GraphError
from .sharding import REPLICATE, Partial, Placement, Replicate, Shard, Sharding, local_shape, why_illegal
from .tensor import num_elements


class StepKind(enum.Enum):
    """One collective, or one local cut."""

    __hash__ = object.__hash__  # enum's own is Python's, and these are in most keys

    ALL_GATHER = "all_gather"  # S -> R
    REDUCE_SCATTER = "reduce_scatter"  # P -> S
    ALL_REDUCE = "all_reduce"  # P -> R
    ALL_TO_ALL = "all_to_all"  # S -> S
    SLICE = "slice"  # R -> S, local
    KEEP = "keep"  # R -> P, local: one rank keeps the value, the others hold zeros


COLLECTIVES = frozenset({StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE, StepKind.ALL_TO_ALL})
JOINED = frozenset({StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE})  # along several axes one after the other these are one collective of all their ranks


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
        from_short: elements of padding that the pieces of the input have together along their dim.
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
    from_short: int = 0


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


# The criterion, in elements. An axis further out is a slower link, so pieces cross it while they are small: it weighs a hundredth more for
# each axis inside of it. What a local cut writes, and every step, pays a token: ties go to the path that writes less, then to the shortest.
_OUTER_WEIGHT = 0.01
_WRITTEN_WEIGHT = 1e-5
STEP_TOKEN = 1e-3
_MOVES = {StepKind.ALL_GATHER: 1, StepKind.REDUCE_SCATTER: 1, StepKind.ALL_REDUCE: 2, StepKind.ALL_TO_ALL: 1}


def step_weights(kind: StepKind, axis: int, sizes: tuple[int, ...]) -> tuple[float, float]:
    """What a step weighs per element of the larger of its two local tensors, and per element that it leaves; beside `STEP_TOKEN`."""
    if kind not in COLLECTIVES:
        return 0.0, _WRITTEN_WEIGHT
    share = (sizes[axis] - 1) / sizes[axis]
    return _MOVES[kind] * share * (1 + _OUTER_WEIGHT * (len(sizes) - 1 - axis)), 0.0


def step_kind(now: Placement, wanted: Placement) -> StepKind | None:
    """The one step that takes an axis from one placement to another; None where there is none."""
    if now == wanted:
        return None
    if isinstance(now, Partial):
        if isinstance(wanted, Partial):
            return None
        return StepKind.REDUCE_SCATTER if isinstance(wanted, Shard) else StepKind.ALL_REDUCE
    if isinstance(now, Replicate):
        if isinstance(wanted, Partial):
            return StepKind.KEEP if wanted.op == "sum" else None
        return StepKind.SLICE
    if isinstance(wanted, Partial):
        return None
    if isinstance(wanted, Replicate):
        return StepKind.ALL_GATHER
    return None if now.dim == wanted.dim or now.short or wanted.short else StepKind.ALL_TO_ALL  # two splits of one dim by the same axis, or one with padding: gather, then cut


def axis_moves(source: Placement, target: Placement) -> dict[tuple[int, int], StepKind]:
    """The steps that one axis may take: from stop to stop, where the stops are 0 the source, 1 whole, 2 the target.

    An axis whose source is its target may stay at 0, or leave it for the sake of the others and come back.
    """
    found = {(0, 2): step_kind(source, target)}
    if REPLICATE not in (source, target):
        found |= {(0, 1): step_kind(source, REPLICATE), (1, 2): step_kind(REPLICATE, target)}
    return {stops: kind for stops, kind in found.items() if kind is not None}


def digits_fit(one: Placement, one_size: int, other: Placement, other_size: int) -> bool:
    """True where two axes can have these placements at once: their digits of a dim do not overlap."""
    if not isinstance(one, Shard) or not isinstance(other, Shard) or one.dim != other.dim:
        return True
    if one.short or other.short:
        return False
    (low, size), (high, _) = sorted(((one.stride, one_size), (other.stride, other_size)))
    return high % (low * size) == 0


def after_step(here: Sharding, step: Step, target: Sharding) -> Sharding:
    """The sharding after a step on the way to the target."""
    to_target = step.to_dim >= 0 or step.kind is StepKind.KEEP
    return _place(here, step.axis, target.placements[step.axis] if to_target else REPLICATE)


def join_steps(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """The steps of a reshard, those together that programs run as one collective of the ranks of all their axes (`graph.overlap`, of states and gradients)."""
    runs: list[tuple[Step, ...]] = []
    for step in steps:
        if runs and step.kind in JOINED and runs[-1][0].kind is step.kind:
            runs[-1] = (*runs[-1], step)
        else:
            runs.append((step,))
    return runs


def lies_outermost(shape: tuple[int, ...], sharding: Sharding, axes: Sequence[int], sizes: tuple[int, ...]) -> bool:
    """True where the pieces along these axes, in the order of the ranks, are contiguous chunks one after the other of the tensor that is whole along all of them.

    Args:
        shape: of the whole value.
        sharding: of a piece.
        axes: in the order of the mesh.
    """
    for number, axis in enumerate(axes):
        mine = sharding.placements[axis]
        if not isinstance(mine, Shard):
            continue
        blocks, held = prod(shape[: mine.dim]) * (shape[mine.dim] // (mine.stride * sizes[axis])), 1
        for other, (placement, size) in enumerate(zip(sharding.placements, sizes)):
            if other not in axes[number:] and isinstance(placement, Shard) and is_further_out(placement, mine):
                length = shape[placement.dim]
                held *= size * (length if placement.short else 1)
                blocks *= length + placement.short if placement.short else 1
        if blocks != held:
            return False
    return True


def is_further_out(other: Placement, mine: Placement) -> bool:
    """Two splits of which one cuts a dim, or a part of it, that lies further out in memory."""
    if not isinstance(other, Shard) or not isinstance(mine, Shard):
        return False
    return other.dim < mine.dim or (other.dim == mine.dim and other.stride > mine.stride)


@lru_cache(maxsize=1 << 16)
def reshard_steps(shape: tuple[int, ...], source: Sharding, target: Sharding, sizes: tuple[int, ...]) -> tuple[Step, ...]:
    """The cheapest steps from one sharding to another. `graph.reshard_pairs` finds the same for many pairs at once.

    Args:
        shape: of the whole value.
        source, target: legal shardings of it. A target may be Partial only where the source replicates or is the same Partial.
        sizes: of the mesh axes.
    Raises:
        GraphError: no path exists (a Partial is asked of a value that is split there and cannot be gathered first).
    """
    if source == target:
        return ()
    steps: list[Step] = []
    here = source
    for axis, kind, wanted in _find_path(shape, source, target, sizes):
        steps.append(_make_step(shape, here, axis, kind, wanted, sizes))
        here = _place(here, axis, wanted)
    return tuple(steps)


def _find_path(
    shape: tuple[int, ...], source: Sharding, target: Sharding, sizes: tuple[int, ...]
) -> list[tuple[int, StepKind, Placement]]:
    """(axis, kind, placement after) of each step. Stops only grow along a path: one sweep over the states in order finds the cheapest."""
    stops = [(a, REPLICATE, b) for a, b in zip(source.placements, target.placements)]
    moves = [axis_moves(a, b) for a, _, b in stops]
    start = (0,) * len(sizes)
    cost: dict[State, float] = {} if why_illegal(shape, target, sizes) else {start: 0.0}
    came: dict[State, tuple[State, int, StepKind]] = {}
    for state in list_states(len(sizes)):
        here = [stop[at] for stop, at in zip(stops, state)]
        if state not in cost:
            continue
        if not _all_fit(here, sizes):
            del cost[state]
            continue
        before = _count_local(shape, here, sizes)
        for axis, next_stop, after in next_states(state):
            kind = moves[axis].get((state[axis], next_stop))
            if kind is None:
                continue
            left = _count_local(shape, [*here[:axis], stops[axis][next_stop], *here[axis + 1 :]], sizes)
            moved, written = step_weights(kind, axis, sizes)
            price = cost[state] + (moved * max(before, left) + (written * left + STEP_TOKEN))
            if price < cost.get(after, inf):
                cost[after], came[after] = price, (state, axis, kind)
    state = min((s for s in end_states([a == b for a, _, b in stops]) if s in cost), key=cost.__getitem__, default=None)
    if state is None:
        raise GraphError(f"no reshard from {source} to {target} for shape {list(shape)} on a mesh of {sizes}")
    path = []
    while state != start:
        before_state, axis, kind = came[state]
        path.append((axis, kind, stops[axis][state[axis]]))
        state = before_state
    return path[::-1]


State = tuple[int, ...]  # per axis the stop at which it is


@lru_cache(maxsize=8)
def list_states(num_axes: int) -> tuple[State, ...]:
    """All states, every one after those from which a step leads to it."""
    return tuple(product(range(3), repeat=num_axes))


@lru_cache(maxsize=1 << 10)
def next_states(state: State) -> tuple[tuple[int, int, State], ...]:
    """(axis, its next stop, the state then) of each step that may leave a state, in the order in which ties are decided."""
    return tuple((a, stop, (*state[:a], stop, *state[a + 1 :])) for a, at in enumerate(state) for stop in range(at + 1, 3))


def end_states(same: Sequence[bool]) -> Iterator[State]:
    """The states that are the target, where `same` says which axes have it from the start; in the order in which ties are decided."""
    return product(*((0, 2) if s else (2,) for s in same))


def _all_fit(placements: list[Placement], sizes: tuple[int, ...]) -> bool:
    digits = [(p, n) for p, n in zip(placements, sizes) if isinstance(p, Shard)]
    return all(digits_fit(*one, *other) for k, one in enumerate(digits) for other in digits[:k])


def _count_local(shape: tuple[int, ...], placements: list[Placement], sizes: tuple[int, ...]) -> int:
    total = num_elements(shape)
    for p in placements:
        if isinstance(p, Shard) and p.short:
            total = total // shape[p.dim] * (shape[p.dim] + p.short)
    return total // prod(n for p, n in zip(placements, sizes) if isinstance(p, Shard))


def _place(sharding: Sharding, axis: int, placement: Placement) -> Sharding:
    return Sharding(sharding.placements[:axis] + (placement,) + sharding.placements[axis + 1 :])


def _make_step(shape: tuple[int, ...], here: Sharding, axis: int, kind: StepKind, wanted: Placement, sizes: tuple[int, ...]) -> Step:
    now, after = here.placements[axis], _place(here, axis, wanted)
    op = now.op if isinstance(now, Partial) else ""
    from_dim, from_stride = (now.dim, _local_stride(now, here, axis, sizes)) if isinstance(now, Shard) else (-1, -1)
    to_dim, to_stride = (wanted.dim, _local_stride(wanted, after, axis, sizes)) if isinstance(wanted, Shard) else (-1, -1)
    short = now.short if isinstance(now, Shard) else 0
    return Step(kind, axis, op, from_dim, from_stride, to_dim, to_stride, local_shape(shape, here, sizes), local_shape(shape, after, sizes), short)


def _local_stride(split: Shard, sharding: Sharding, axis: int, sizes: tuple[int, ...]) -> int:
    """The stride of `axis`'s digit in the tensor that is local for all other axes and whole for this one."""
    stride = split.stride
    for other, (placement, size) in enumerate(zip(sharding.placements, sizes)):
        if other != axis and isinstance(placement, Shard) and placement.dim == split.dim and placement.stride < split.stride:
            stride //= size
    return stride
