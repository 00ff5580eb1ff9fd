"""Reshards of many pairs at once: every source to every target of one shape, by the criterion of `graph.reshard`.

In: the whole shape, sources, targets, the mesh sizes. Out: for each step that some pair takes, which pairs take it and how many elements
it reads, leaves and packs: what cost turns into seconds and the solver into bytes. Invariant: a pair takes the steps that `reshard_steps`
gives for it, in floating point too: both add the same weights in the same order, and decide ties alike. Joined, they are those of `join_steps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from .reshard import (
    JOINED,
    STEP_TOKEN,
    State,
    StepKind,
    axis_moves,
    digits_fit,
    end_states,
    is_further_out,
    list_states,
    next_states,
    step_weights,
)
from .sharding import Placement, Shard, Sharding, why_illegal
from .tensor import num_elements

_CHUNK = 1 << 15  # pairs at once: their tables stay in the cache of the processor
_KINDS = tuple(StepKind)


@dataclass(frozen=True, slots=True)
class PairStep:
    """One step that many pairs take, or several of one kind as one (`join_steps`).

    Args:
        kind: as of a `Step`.
        axes: along which, in the order of the mesh.
        pairs: who takes it: number of the source x number of targets + number of the target; each once.
        elements_in, elements_out: of the local tensor before and after, per pair.
        packed_elements: that a collective rearranges locally because a split is not outermost, per pair.
        held_elements: that it holds for it: what was packed has gone when what has come is unpacked.
        first: it is the first step of its pairs: it reads the value itself.
    """

    kind: StepKind
    axes: tuple[int, ...]
    pairs: np.ndarray
    elements_in: np.ndarray
    elements_out: np.ndarray
    packed_elements: np.ndarray
    held_elements: np.ndarray
    first: bool


@dataclass(frozen=True, slots=True)
class PairPaths:
    """The ways of all pairs: `reachable` (sources x targets), and the steps, later ones before earlier ones of the same pair."""

    reachable: np.ndarray
    steps: tuple[PairStep, ...]


def reshard_pairs(
    shape: tuple[int, ...], sources: Sequence[Sharding], targets: Sequence[Sharding], sizes: tuple[int, ...], joins: bool = False
) -> PairPaths:
    """The cheapest steps from each source to each target.

    Args:
        shape: of the whole value.
        sources, targets: legal shardings of it.
        sizes: of the mesh axes.
        joins: steps of one kind along several axes are one.
    """
    reachable = np.zeros((len(sources), len(targets)), bool)
    steps: list[PairStep] = []
    wide = max(1, _CHUNK // max(1, len(targets)))
    for low in range(0, len(sources), wide):
        part = _Pairs(shape, tuple(sources[low : low + wide]), tuple(targets), sizes)
        came, ends, reachable[low : low + wide] = part.find_paths()
        steps += part.follow(came, ends, low * len(targets), joins)
    return PairPaths(reachable, tuple(steps))


@dataclass(frozen=True, slots=True)
class _Run:
    """Steps of one kind that pairs take one after the other, found from the last on, and where they end."""

    kind: StepKind
    after: State


@dataclass(frozen=True, slots=True)
class _Column:
    """One axis of many shardings: the placements that occur, and which one each sharding has."""

    placements: tuple[Placement, ...]
    index: np.ndarray


def _column(shardings: Sequence[Sharding], axis: int) -> _Column:
    number: dict[Placement, int] = {}
    index = [number.setdefault(s.placements[axis], len(number)) for s in shardings]
    return _Column(tuple(number), np.array(index, dtype=np.int64))


class _Pairs:
    """Tables of sources x targets. A state says per axis whether it is at the source (0), whole (1) or at the target (2)."""

    def __init__(self, shape: tuple[int, ...], sources: Sequence[Sharding], targets: Sequence[Sharding], sizes: tuple[int, ...]) -> None:
        self.shape, self.sizes = shape, sizes
        self.total = num_elements(shape)
        self.rows, self.width = len(sources), len(targets)
        axes = range(len(sizes))
        self.columns = {0: [_column(sources, a) for a in axes], 2: [_column(targets, a) for a in axes]}
        self.outside: dict[tuple[int, int], tuple[np.ndarray, dict[tuple[int, int], np.ndarray]]] = {}
        self.legal = np.array([not why_illegal(shape, t, sizes) for t in targets], dtype=bool)
        self.moves = [self._axis_moves(a) for a in axes]
        self.same = [self._table(a, 0, a, 2, lambda p, q: p == q) for a in axes]
        self.fits = {
            (a, b): self._table(a, 0, b, 2, lambda p, q, a=a, b=b: digits_fit(p, sizes[a], q, sizes[b]))
            for a in axes
            for b in axes
            if a != b
        }
        self.cuts = {
            at: [np.array([sizes[a] if isinstance(p, Shard) else 1 for p in columns[a].placements])[columns[a].index] for a in axes]
            for at, columns in self.columns.items()
        }
        self.padded = {at: [self._padding(columns[a]) for a in axes] for at, columns in self.columns.items()}
        self.pads = any(s.any() for sides in self.padded.values() for _, s in sides)

    def _padding(self, column: _Column) -> tuple[np.ndarray, np.ndarray]:
        """Of each sharding, the length of the dim that an axis cuts into chunks that do not divide it, and by how much they are longer; 1 and 0 of others."""
        short = np.array([(self.shape[p.dim], p.short) if isinstance(p, Shard) and p.short else (1, 0) for p in column.placements], dtype=np.int64)
        return short[column.index, 0], short[column.index, 1]

    def _table(self, a: int, at: int, b: int, bt: int, law) -> np.ndarray:
        """A law of a source's placement on axis a and a target's on axis b, for all pairs."""
        one, other = self.columns[at][a], self.columns[bt][b]
        small = np.array([[law(p, q) for q in other.placements] for p in one.placements])
        return small[one.index[:, None], other.index[None, :]]

    def _axis_moves(self, axis: int) -> dict[tuple[int, int], np.ndarray]:
        """(from stop, to stop) -> per pair the number of the step's kind, -1 where there is none; only moves that some pair has."""
        moves = {}
        for stops in ((0, 1), (0, 2), (1, 2)):
            kinds = self._table(axis, 0, axis, 2, lambda p, q, stops=stops: _number(axis_moves(p, q).get(stops))).astype(np.int8)
            if (kinds >= 0).any():
                moves[stops] = kinds
        return moves

    def _local(self, state: State) -> np.ndarray:
        """Elements of the local tensor, per pair."""
        rows, columns = np.ones(self.rows, np.int64), np.ones(self.width, np.int64)
        for axis, at in enumerate(state):
            if at == 0:
                rows = rows * self.cuts[0][axis]
            elif at == 2:
                columns = columns * self.cuts[2][axis]
        whole = self._with_padding(state, np.arange(self.rows)[:, None], np.arange(self.width)[None, :]) if self.pads else self.total
        return (whole // (rows[:, None] * columns[None, :])).astype(float)

    def _with_padding(self, state: State, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Elements of all pieces together."""
        whole = np.full(np.broadcast_shapes(rows.shape, columns.shape), self.total, np.int64)
        for axis, at in enumerate(state):
            if at != 1:
                length, short = (side[rows if at == 0 else columns] for side in self.padded[at][axis])
                whole = np.where(short > 0, whole // length * (length + short), whole)
        return whole

    def find_paths(self) -> tuple[dict[State, np.ndarray], np.ndarray, np.ndarray]:
        """For each state by which step each pair came to it, the state at which each pair ends (by number), and who has a way."""
        count = len(self.sizes)
        weights = [{stops: self._weigh(axis, kinds) for stops, kinds in moves.items()} for axis, moves in enumerate(self.moves)]
        cost = {(0,) * count: np.where(self.legal, 0.0, np.inf) * np.ones((self.rows, 1))}
        came: dict[State, np.ndarray] = {}
        local: dict[State, np.ndarray] = {}
        for state in list_states(count):
            here = cost.get(state)
            if here is None:
                continue
            for a, b in product(range(count), repeat=2):
                if state[a] == 0 and state[b] == 2:
                    here[~self.fits[a, b]] = np.inf
            if not np.isfinite(here).any():
                del cost[state]
                continue
            before = self._of(local, state)
            for number, (axis, stop, after) in enumerate(next_states(state)):
                weight = weights[axis].get((state[axis], stop))
                if weight is None:
                    continue
                moved, written, token = weight
                left = self._of(local, after)
                price = here + (moved * np.maximum(before, left) + (written * left + token))
                known = cost.get(after)
                if known is None:
                    cost[after], came[after] = price, np.full(price.shape, _pack(state, number), np.int32)
                else:
                    better = price < known
                    np.copyto(known, price, where=better)
                    np.copyto(came[after], _pack(state, number), where=better)
        best = np.full((self.rows, self.width), np.inf)
        ends = np.zeros((self.rows, self.width), np.int32)
        for end in end_states([bool(s.any()) for s in self.same]):
            if end not in cost:
                continue
            better = cost[end] < best
            for axis, at in enumerate(end):
                if at == 0:
                    better &= self.same[axis]
            np.copyto(best, cost[end], where=better)
            np.copyto(ends, _state_number(end), where=better)
        return came, ends, np.isfinite(best)

    def _of(self, local: dict[State, np.ndarray], state: State) -> np.ndarray:
        if state not in local:
            local[state] = self._local(state)
        return local[state]

    def _weigh(self, axis: int, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weight per element moved, per element written, and per step; infinity where there is no such step."""
        weights = np.array([(*step_weights(kind, axis, self.sizes), STEP_TOKEN) for kind in _KINDS] + [(0.0, 0.0, np.inf)])
        return weights[kinds, 0], weights[kinds, 1], weights[kinds, 2]

    # --- from the ends back to the sources

    def follow(self, came: dict[State, np.ndarray], ends: np.ndarray, offset: int, joins: bool) -> Iterator[PairStep]:
        """The steps of every pair that has a way; `offset` is added to the number of each pair."""
        states = list_states(len(self.sizes))
        ending = ends.ravel()
        waiting: dict[State, dict[_Run | None, list[np.ndarray]]] = {states[n]: {None: [np.flatnonzero(ending == n)]} for n in np.unique(ending).tolist() if n}
        start = states[0]
        for state in reversed(states):
            for run, parts in waiting.pop(state, {}).items():
                pairs = np.concatenate(parts)
                if state == start:
                    if run is not None:
                        yield self._step(run, state, pairs, offset)
                    continue
                steps = came[state].ravel()[pairs]
                for packed in np.unique(steps).tolist():
                    before, (axis, stop, _) = _unpack(packed, states)
                    mine = pairs[steps == packed]
                    kinds = self.moves[axis][before[axis], stop].ravel()[mine]
                    for number in np.unique(kinds).tolist():
                        kind, these = _KINDS[number], mine[kinds == number]
                        goes_on = run is not None and run.kind is kind
                        if run is not None and not goes_on:
                            yield self._step(run, state, these, offset)
                        longer = run if goes_on else _Run(kind, state)
                        if joins and kind in JOINED:
                            waiting.setdefault(before, {}).setdefault(longer, []).append(these)
                            continue
                        yield self._step(longer, before, these, offset)
                        if before != start:
                            waiting.setdefault(before, {}).setdefault(None, []).append(these)

    def _step(self, run: _Run, before: State, pairs: np.ndarray, offset: int) -> PairStep:
        kind, after = run.kind, run.after
        rows, columns = pairs // self.width, pairs % self.width
        elements_in, elements_out = self._local_of(before, rows, columns), self._local_of(after, rows, columns)
        axes = tuple(axis for axis, (one, other) in enumerate(zip(before, after)) if one != other)
        packed = unpacked = np.zeros(len(pairs), np.int64)
        if kind in (StepKind.ALL_GATHER, StepKind.ALL_TO_ALL):
            unpacked = np.where(self._lie_outermost(axes, before, after, rows, columns), 0, elements_out)
        if kind in (StepKind.REDUCE_SCATTER, StepKind.ALL_TO_ALL):
            packed = np.where(self._lie_outermost(axes, after, before, rows, columns), 0, elements_in)
        return PairStep(kind, axes, pairs + offset, elements_in, elements_out, packed + unpacked, np.maximum(packed, unpacked), not any(before))

    def _lie_outermost(self, axes: tuple[int, ...], split: State, whole: State, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """`lies_outermost`: of the digits that axes have in one state and not in the other."""
        found = np.ones(len(rows), bool)
        for number, axis in enumerate(axes):
            state = tuple(split[a] if a in axes[:number] else stop for a, stop in enumerate(whole))
            found &= self._is_outermost(axis, split[axis], state, rows, columns)
        return found

    def _local_of(self, state: State, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        pieces = np.ones(len(rows), np.int64)
        for axis, at in enumerate(state):
            if at != 1:
                pieces *= self.cuts[at][axis][rows if at == 0 else columns]
        return (self._with_padding(state, rows, columns) if self.pads else self.total) // pieces

    def _is_outermost(self, axis: int, at: int, state: State, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """True where the digit that `axis` has at the source (0) or target (2) cuts the local tensor of `state`, where it is whole for
        that digit, into contiguous chunks: what lies further out in the whole value is held by axes, all of it.
        """
        number = self.columns[at][axis].index[rows if at == 0 else columns]
        outside, further = self._outside(axis, at)
        held, blocks = np.ones(len(rows), np.int64), outside[number]
        for other, stop in enumerate(state):
            if stop != 1:
                side = rows if stop == 0 else columns
                cut = further[other, stop][number, self.columns[stop][other].index[side]]
                held *= cut
                if self.pads:
                    length, short = (of[side] for of in self.padded[stop][other])
                    held, blocks = np.where(cut > 1, held * length, held), np.where(cut > 1, blocks * (length + short), blocks)
        return blocks == held

    def _outside(self, axis: int, side: int) -> tuple[np.ndarray, dict[tuple[int, int], np.ndarray]]:
        """Of each placement of an axis: the blocks that it cuts, and (other axis, its stop) -> among how many ranks that axis divides them."""
        found = self.outside.get((axis, side))
        if found is None:
            mine = self.columns[side][axis].placements
            blocks = np.array([_count_outside(self.shape, p, self.sizes[axis]) for p in mine])
            further = {
                (other, at): np.array([[size if is_further_out(q, p) else 1 for q in columns[other].placements] for p in mine])
                for at, columns in self.columns.items()
                for other, size in enumerate(self.sizes)
            }
            found = self.outside[axis, side] = blocks, further
        return found


def _count_outside(shape: tuple[int, ...], placement: Placement, size: int) -> int:
    """How many blocks of the whole value a digit cuts, each into contiguous chunks."""
    if not isinstance(placement, Shard):
        return 1
    return prod(shape[: placement.dim]) * (shape[placement.dim] // (placement.stride * size))


def _number(kind: StepKind | None) -> int:
    return -1 if kind is None else _KINDS.index(kind)


_MOST_STEPS = 16  # that leave one state; two per axis


def _state_number(state: State) -> int:
    """Place in `list_states`."""
    number = 0
    for stop in state:
        number = 3 * number + stop
    return number


def _pack(state: State, step: int) -> int:
    return _state_number(state) * _MOST_STEPS + step


def _unpack(packed: int, states: Sequence[State]) -> tuple[State, tuple[int, int, State]]:
    state = states[packed // _MOST_STEPS]
    return state, next_states(state)[packed % _MOST_STEPS]
