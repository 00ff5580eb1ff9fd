"""Where to cut: an exact dynamic program over units and stages.

In: a table of what each segment of units costs as one stage or chunk, per unit the seconds of one forward, and what crosses where one cuts. Out: the cuts
whose slowest stage is fastest, and bounds that hold wherever one cuts.

    end of stage s >= the seconds of its segment + sum of the forward seconds of all units before it, and of what they receive at the cuts between them

(its microbatches and its update, after the fill; the drain of the stages before it may run beside its update). `bound_drain` adds

    end of stage i >= the loop seconds of the segment of any later stage s + sum of the forward seconds of all units before s
                      + sum of the backward seconds of all units from stage i to before s, and of what these receive of the stage after + the update of stage i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np

_WIDER = 1.02  # ways to cut are looked at up to so many times the bound of a good one
_MOST_WAYS = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """What a stage or chunk of the units from `a` to before `b` receives, in seconds at least, at [a, b].

    Args:
        before_s, after_s: of the units before and of those after, in all turns together.
        forward_s, backward_s: of that what one forward waits for, and one backward.
    """

    before_s: np.ndarray
    after_s: np.ndarray
    forward_s: np.ndarray
    backward_s: np.ndarray

    @property
    def step_s(self) -> np.ndarray:
        """In all turns together."""
        return self.before_s + self.after_s


NOTHING = Crossings(*(np.zeros((1, 1)),) * 4)


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Seconds at least of the units from `a` to before `b` as one stage or chunk, at [a, b], with what they receive.

    Args:
        step_s: of a step.
        forward_s, backward_s: of one forward and of one backward.
        prepare_s, loop_s, update_s: before the turns, of all turns, after them. Each but the first as if only it counted.
    """

    step_s: np.ndarray
    forward_s: np.ndarray
    prepare_s: np.ndarray
    loop_s: np.ndarray
    backward_s: np.ndarray
    update_s: np.ndarray


@dataclass(frozen=True, slots=True)
class Piece:
    """The units from `first` to before `last` priced as one stage: the fields of `Segments` there."""

    first: int
    last: int
    step_s: float
    forward_s: float
    prepare_s: float
    loop_s: float
    backward_s: float
    update_s: float


PIECE_FIELDS = ("step_s", "forward_s", "prepare_s", "loop_s", "backward_s", "update_s")


def raise_segments(segments: Segments, pieces: Sequence[Piece]) -> Segments:
    """The segments where some of them were priced as one piece, which says more than their units one by one."""
    return replace(segments, **{name: raise_table(getattr(segments, name), pieces, name) for name in PIECE_FIELDS})


def raise_table(table: np.ndarray, pieces: Sequence[Piece], name: str) -> np.ndarray:
    """One field of the segments, raised."""
    found = table.copy()
    for piece in pieces:
        found[piece.first, piece.last] = max(found[piece.first, piece.last], getattr(piece, name))
    return found


def least_crossings(rows: Sequence[Crossings]) -> Crossings:
    """Of each figure the least."""
    return Crossings(*(np.minimum.reduce([getattr(row, name) for row in rows]) for name in ("before_s", "after_s", "forward_s", "backward_s")))


def receive_table(num_units: int, source: int, targets: Sequence[int], seconds: float) -> np.ndarray:
    """At [a, b] `seconds` where units from `a` to before `b` receive a value: its source is not one of them, one of its targets is."""
    first, last = np.arange(num_units + 1)[:, None], np.arange(num_units + 1)[None, :]
    reads = np.zeros((num_units + 1, num_units + 1), dtype=bool)
    for target in targets:
        reads |= (first <= target) & (target < last)
    return np.where(reads & ~((first <= source) & (source < last)), seconds, 0.0)


def _least_fills(forward: np.ndarray, num_stages: int) -> list[np.ndarray]:
    """Of each stage: seconds until the first forward has come to unit `a`, at [a], at least, if the stage begins there; infinite where it cannot.

    Args:
        forward: of one microbatch through the units from `a` to before `b` as one stage, at [a, b].
    """
    forward = np.where(some_units(len(forward) - 1), forward, np.inf)
    found = [np.where(np.arange(len(forward)) == 0, 0.0, np.inf)]
    while len(found) < num_stages:
        found.append((found[-1][:, None] + forward).min(axis=0))
    return found


def sum_segments(row: Sequence[float]) -> np.ndarray:
    """Seconds of the units from `a` to before `b`, at [a, b]."""
    total = np.concatenate([[0.0], np.cumsum(row)])
    return total[None, :] - total[:, None]


def some_units(num_units: int) -> np.ndarray:
    """True at [a, b] where there are units from `a` to before `b`."""
    return np.arange(num_units + 1)[:, None] < np.arange(num_units + 1)[None, :]


def _of_some(tables: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The tables with infinity where there are no units; those that are one are one again."""
    some = some_units(len(tables[0]) - 1)
    known = {id(table): np.where(some, table, np.inf) for table in tables}
    return [known[id(table)] for table in tables]


def choose_cuts(tables: Sequence[np.ndarray]) -> tuple[int, ...] | None:
    """The first unit of the second and every later stage, such that the slowest segment is fastest; of equal ones the most even. None: there are none.

    Args:
        tables: of each stage the seconds of the units from `a` to before `b`, at [a, b]; infinite where these may not be its units.
    """
    count = len(tables[0]) - 1
    rows = _of_some(tables)
    best, squares = rows[0][0], rows[0][0] ** 2  # best[k]: of the first k units on the stages so far, each with one at least
    chosen: list[np.ndarray] = []
    for cost in rows[1:]:
        worst = np.maximum(best[:, None], cost)
        low = worst.min(axis=0)
        ties = np.where(worst <= low * (1 + 1e-9), squares[:, None] + cost**2, np.inf)
        pick = ties.argmin(axis=0)
        chosen.append(pick)
        best, squares = low, ties.min(axis=0)
    if not np.isfinite(best[count]):
        return None
    return trace_cuts(chosen, count)


def bound_chunks(tables: Sequence[np.ndarray], forward: np.ndarray, num_stages: int) -> float:
    """No cuts into chunks, of which each stage runs several in turn, give a step that is faster.

    A stage runs all its chunks, after as many chunks as there are stages before it have run their first forward; a chunk has at least one unit. The
    slowest stage takes at least the average of all, and at least the largest unit.

    Args:
        tables: of each chunk, as in `choose_cuts`, at least.
        forward: as in `Segments`.
    """
    count = len(forward) - 1
    if len(tables) > count:
        return float(np.inf)
    rows = _of_some(tables)
    least = rows[0][0]  # least[k]: the sum over all chunks so far, of the first k units
    for cost in rows[1:]:
        least = (least[:, None] + cost).min(axis=0)
    fill = [float(row.min()) for row in _least_fills(forward, num_stages)]
    alone = np.min([np.diagonal(table, 1) for table in tables], axis=0)
    return max((float(least[count]) + float(np.sum(fill))) / num_stages, float(np.max(alone, initial=0.0)))


def bound_turns(segments: Segments, cuts: Sequence[int], num_stages: int) -> float:
    """No step of these cuts into chunks is faster: stage s runs the chunks s, s + num_stages, ... in turn, each as long as its units.

    All prepare; then it begins when its first chunk's first input has come through the chunks before, and its last backward goes back through them;
    then they update.
    """
    ends = list(zip((0, *cuts), (*cuts, len(segments.step_s) - 1)))
    fill, before, loop, drain, after = ([float(getattr(segments, name)[a, b]) for a, b in ends] for name in PIECE_FIELDS[1:])
    before, after = ([sum(row[s::num_stages]) for s in range(num_stages)] for row in (before, after))
    found, prepared = 0.0, max(before)
    for s in range(num_stages):
        own, turns, back = sum(float(segments.step_s[a, b]) for a, b in ends[s::num_stages]), sum(loop[s::num_stages]), 0.0
        own = max(own, prepared + turns + after[s])
        for earlier in reversed(range(s)):
            back += drain[earlier]
            own = max(own, prepared + turns + back + after[earlier])
        found = max(found, sum(fill[:s]) + own)
    return found


def bound_cuts(tables: Sequence[np.ndarray], forward: np.ndarray) -> float:
    """No cuts give a step that is faster.

    Args:
        tables: of each stage, as in `choose_cuts`: seconds of a step, at least.
        forward: as in `Segments`.
    """
    count = len(forward) - 1
    before = _least_fills(forward, len(tables))
    rows = [np.where(some_units(count), table + fill[:, None], np.inf) for table, fill in zip(tables, before)]
    best = rows[0][0]
    for cost in rows[1:]:
        best = np.maximum(best[:, None], cost).min(axis=0)
    return float(best[count])


def bound_drain(tables: Sequence[np.ndarray], segments: Segments) -> tuple[float, tuple[int, ...] | None]:
    """`bound_cuts`, with the drain: what a stage does once begins when its own last backward is over, which waits for those of all later stages.

    Not for schedules that split the backward.

    Args:
        tables: of each stage, as in `choose_cuts`: seconds of a step, at least.
    Returns:
        Seconds, and cuts of which the bound is about that; None where there are none.
    """
    count, steps = len(segments.step_s) - 1, 14
    fills = _least_fills(segments.forward_s, len(tables))
    own = [np.where(some_units(count), table + fill[:, None], np.inf) for table, fill in zip(tables, fills)]
    loop, tail, back = segments.loop_s, segments.prepare_s + segments.update_s, segments.backward_s

    def reach(most: float) -> tuple[int, ...] | None:
        """Cuts that may give a step of so many seconds: `owed` is the least that is still to run when the turns of the last stage so far are over."""
        owed = np.where(own[0][0] <= most, tail[0] + back[0], np.inf)
        picks = []
        for seconds, fill in zip(own[1:], fills[1:]):
            waits = np.maximum(tail, owed[:, None])
            rows = np.where((seconds <= most) & (loop + fill[:, None] + waits <= most), waits + back, np.inf)
            picks.append(rows.argmin(axis=0))
            owed = rows.min(axis=0)
        return trace_cuts(picks, count) if np.isfinite(owed[count]) else None

    low = bound_cuts(tables, segments.forward_s)
    if not np.isfinite(low) or (found := reach(low * (1 + 1e-12))) is not None:
        return low, found if np.isfinite(low) else None
    high = max(low + float(loop[0, -1] + tail[0, -1]), 1e-12)
    while (found := reach(high)) is None:
        high *= 2
    for _ in range(steps):
        middle = (low + high) / 2
        reached = reach(middle)
        low, high, found = (middle, high, found) if reached is None else (low, middle, reached)
    return low, found


def bound_every_cut(
    tables: Sequence[np.ndarray], segments: Segments, known: Mapping[tuple[int, ...], float]
) -> tuple[float, tuple[int, ...] | None]:
    """`bound_drain`, one way to cut after another (`bound_turns`, one chunk per stage): what it says of each is not mixed with what it says of others.

    Args:
        tables: of each stage, as in `choose_cuts`: which units may be its own.
        known: cuts -> seconds that no plan with these cuts beats.
    """
    low, first = bound_drain(tables, segments)
    if first is None:
        return low, None
    most = min(bound_turns(segments, cuts, len(tables)) for cuts in {first, choose_cuts(tables) or first})
    while True:
        most *= _WIDER
        ways = _ways_below(tables, segments, most)
        if ways is None:
            return low, first
        cuts, bounds = ways
        for mine, seconds in known.items():
            at = (cuts == mine).all(axis=1)
            bounds[at] = np.maximum(bounds[at], seconds)
        least = int(bounds.argmin())
        if bounds[least] <= most or len(cuts) == comb(len(segments.step_s) - 2, len(tables) - 1):
            return float(bounds[least]), tuple(cuts[least].tolist())


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """Ways to cut the first units into the stages so far, one row each.

    Args:
        cuts: the first unit of each stage but the first, and last of the next one.
        filled: seconds until the next stage begins.
        owed: of what is still to run of a stage before when the turns of the next one are over, the most.
        prepared: the most that one of them prepares.
        turned, whole: the most that one of them takes: from when all are prepared; and all in all.
    """

    cuts: np.ndarray
    filled: np.ndarray
    owed: np.ndarray
    prepared: np.ndarray
    turned: np.ndarray
    whole: np.ndarray


def _ways_below(tables: Sequence[np.ndarray], segments: Segments, most: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Every way to cut whose `bound_turns` is at most so much, a row each, and its bound; None where these are too many to be looked at."""
    count, rows = len(segments.step_s) - 1, _of_some(tables)
    rest = [np.where(np.arange(count + 1) == count, 0.0, np.inf)]  # least that the slowest of the stages that follow takes, from when the first of them begins
    for table in reversed(rows):
        rest.append(np.maximum(table, segments.forward_s + rest[-1][None, :]).min(axis=1))
    nothing = np.zeros(1)
    ways = _Ways(np.zeros((1, 1), dtype=int), nothing, nothing, nothing, nothing, nothing)
    for table, after in zip(rows, rest[-2::-1]):
        parts = [_extend(ways, table, segments, last, after[last], most) for last in range(1, count + 1)]
        ways = _Ways(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Ways.__slots__))
        if len(ways.cuts) > _MOST_WAYS:
            return None
    return ways.cuts[:, 1:-1], np.maximum(ways.whole, ways.prepared + ways.turned)


def _extend(ways: _Ways, table: np.ndarray, segments: Segments, last: int, after_s: float, most: float) -> _Ways:
    """One more stage, of the units up to `last`: those ways that may stay below `most`. `after_s`: of the stages that follow, at least."""
    own = table[ways.cuts[:, -1], last]
    at = np.flatnonzero(np.maximum(ways.filled + own, ways.whole) <= most)
    first, own, filled, owed = ways.cuts[at, -1], own[at], ways.filled[at], ways.owed[at]
    update = np.maximum(segments.update_s[first, last], owed)
    turned = np.maximum(ways.turned[at], filled + segments.loop_s[first, last] + update)
    prepared, whole = np.maximum(ways.prepared[at], segments.prepare_s[first, last]), np.maximum(ways.whole[at], filled + segments.step_s[first, last])
    filled = filled + segments.forward_s[first, last]
    kept = np.flatnonzero(np.maximum(np.maximum(whole, prepared + turned), filled + after_s) <= most)
    cuts = np.hstack([ways.cuts[at], np.full((len(at), 1), last)])
    return _Ways(cuts[kept], filled[kept], (update + segments.backward_s[first, last])[kept], prepared[kept], turned[kept], whole[kept])


def trace_cuts(picks: Sequence[np.ndarray], count: int) -> tuple[int, ...]:
    """The cuts of `count` units, from where each stage begins that ends at a unit: of the second and every later stage."""
    cuts: list[int] = []
    end = count
    for pick in reversed(picks):
        end = int(pick[end])
        cuts.append(end)
    return tuple(reversed(cuts))
