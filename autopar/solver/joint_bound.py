"""What the stages of given cuts take at least, each stage with one plan for all of its phases.

In: the problem of each kind of stage, the order of the schedule. Out: seconds that no plan of these cuts beats, memory aside. The step is the longest of its
paths: some stage prepares, forwards and backwards follow each other, some stage updates. So for any mix of paths

    step >= sum over stages of the least that a stage takes if it prepares, runs forwards and backwards of its chunks and updates as often as the mix says

`stage_cuts.bound_turns` takes each phase at its least, whatever that costs in another: states that are split make the update short, and gathers of them
everything else long. Which mix tells most is found as Dantzig and Wolfe (1960) do: plans of each stage and paths through mixes of these plans are gathered in turn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import floor, inf
from typing import Protocol

import numpy as np

from ..graph.chunk_times import NO_CHUNKS
from ..graph.node import Phase
from ..graph.schedules.order import Order
from ..graph.schedules.schedule import numbers_on_ranks
from ..graph.schedules.timeline import Durations, critical_path, simulate
from .ilp import LinearProgram, Rows, solve_program
from .judge import evaluate_seconds
from .problem import Problem
from .relaxation import Relaxation
from .unit_costs import weigh_problem

_ROUNDS, _GAP, _SCALE = 16, 1e-3, 1e3
_NEAR = 1e-6  # rows that differ by no more are one
_FINE = 1e9  # so many parts of one are told apart

Row = tuple[float, ...]  # seconds before the turns, of one forward of each chunk, of one backward of each, after the turns; or how often each counts


class Plans(Protocol):
    """A kind of stage: the plans of it that were found so far, and whoever finds more."""

    plans: list[Row]

    def least(self, times: Row) -> float:
        """Seconds at least where the phases count so often; a plan that takes about that is kept. 0 where none was found in time."""


class StagePlans:
    """The plans of a stage by its problem.

    Args:
        weight: what one turn counts in the problem.
        time_limit_s: of a linear program.
        chunks: that it runs. chunk_of: node -> its chunk, where there are several.
    """

    def __init__(self, problem: Problem, weight: float, time_limit_s: float, chunks: int = 1, chunk_of: Mapping[str, int] = NO_CHUNKS) -> None:
        self.problem, self.weight, self.chunks = problem, weight, chunks
        self.chunk_of, self.readers = chunk_of, _reading_chunks(problem, chunk_of)
        self.relaxation = Relaxation(problem, time_limit_s)
        self.plans: list[Row] = []
        self.known: dict[Row, float] = {}

    def least(self, times: Row) -> float:
        """As of `Plans`."""
        times = tuple(floor(t * _FINE) / _FINE for t in times)  # a little less often: it stays a bound
        if times not in self.known:
            seconds, decisions = self.relaxation.find(self._weighed(times))
            self.known[times] = seconds * (1 - self.relaxation.error)
            if decisions is not None:
                self._keep(decisions)
        return self.known[times]

    def _weighed(self, times: Row) -> Problem:
        """The problem in which each phase of each chunk counts so often; what several chunks have, as often as in the one where it counts least."""
        turns = {Phase.FORWARD: times[1 : 1 + self.chunks], Phase.BACKWARD: times[1 + self.chunks : -1]}
        once = {Phase.PREPARE: times[0], Phase.UPDATE: times[-1]}

        def weigh_nodes(phase: Phase, names: Sequence[str]) -> float:
            if phase in once:
                return once[phase]
            counts = turns[phase]
            return sum(counts[self.chunk_of[n]] if n in self.chunk_of else min(counts) for n in names) / len(names) / self.weight

        def weigh_values(phase: Phase, names: Sequence[str]) -> float:
            if phase in once:
                return once[phase]
            return sum(min(turns[phase][k] for k in self.readers.get((n, phase), range(self.chunks))) for n in names) / len(names) / self.weight

        return weigh_problem(self.problem, weigh_nodes, weigh_values)

    def _keep(self, decisions: Sequence[int]) -> None:
        size = 2 + 2 * self.chunks
        row = tuple(evaluate_seconds(self._weighed(tuple(float(k == at) for k in range(size))), decisions) for at in range(size))
        if all(map(np.isfinite, row)) and not any(np.allclose(row, plan, rtol=_NEAR) for plan in self.plans):
            self.plans.append(row)


def _reading_chunks(problem: Problem, chunk_of: Mapping[str, int]) -> dict[tuple[str, Phase], set[int]]:
    """(value, phase) -> the chunks that read it then; those are left out of which a reader has none of its own."""
    found: dict[tuple[str, Phase], set[int]] = {}
    unknown: set[tuple[str, Phase]] = set()
    for node in problem.graph.nodes:
        for name in node.inputs:
            if node.name in chunk_of:
                found.setdefault((name, node.phase), set()).add(chunk_of[node.name])
            else:
                unknown.add((name, node.phase))
    return {key: chunks for key, chunks in found.items() if key not in unknown}


def bound_jointly(order: Order, chunks: int, kinds: Sequence[Plans], enough_s: float, deadline: float) -> float:
    """Seconds that no step of these stages beats.

    Args:
        order: of a schedule that does not split the backward.
        chunks: of each rank.
        kinds: of each rank; the same object where stages are alike.
        enough_s: more need not be shown.
        deadline: of `time.monotonic`.
    """
    for kind in {id(kind): kind for kind in kinds}.values():
        kind.least((1.0, *[float(order.num_microbatches)] * 2 * chunks, 1.0))
    if not all(kind.plans for kind in kinds):
        return 0.0
    paths: list[tuple[Row, ...]] = []
    mix: list[Row] = [kind.plans[0] for kind in kinds]
    best = 0.0
    for _ in range(_ROUNDS):
        path, step = _longest_path(order, chunks, mix)
        if step <= best * (1 + _GAP):
            break
        fresh, count = path not in paths, sum(len(kind.plans) for kind in kinds)
        paths += [path] * fresh
        shares = _best_shares(paths, kinds)
        if shares is None:
            break
        total = 0.0
        for s, kind in enumerate(kinds):
            if time.monotonic() > deadline:
                return best
            total += kind.least(_mixed(shares, [p[s] for p in paths]))
        best = max(best, total)
        if best >= enough_s or not (fresh or sum(len(kind.plans) for kind in kinds) > count):
            break
        found = _best_mix(paths, kinds)
        if found is None:
            break
        mix = found
    return best


def _longest_path(order: Order, chunks: int, stages: Sequence[Row]) -> tuple[tuple[Row, ...], float]:
    """How often each phase of each rank is on the longest path of a step, and its seconds."""
    places = list(zip(order.rank_of, numbers_on_ranks(order.rank_of)))
    durations = Durations(tuple(stages[r][1 + n] for r, n in places), tuple(stages[r][1 + chunks + n] for r, n in places))
    line = simulate(order, durations)
    first = max(range(len(stages)), key=lambda s: stages[s][0])
    last = max(range(len(stages)), key=lambda s: line.end_s[s] + stages[s][-1])
    rows = [[float(s == first), *[0.0] * 2 * chunks, float(s == last)] for s in range(len(stages))]
    for (rank, number), (forwards, backwards) in zip(places, critical_path(order, durations, last)):
        rows[rank][1 + number] += forwards
        rows[rank][1 + chunks + number] += backwards
    return tuple(map(tuple, rows)), stages[first][0] + line.end_s[last] + stages[last][-1]


def _mixed(shares: Sequence[float], rows: Sequence[Row]) -> Row:
    return tuple((np.asarray(shares)[:, None] * np.asarray(rows)).sum(axis=0).tolist())


def _best_shares(paths: Sequence[tuple[Row, ...]], kinds: Sequence[Plans]) -> list[float] | None:
    """The mix of paths that tells most of the plans so far: maximise the sum over stages of the least of its plans."""
    entries, upper = [], []
    for s, kind in enumerate(kinds):
        for plan in kind.plans:  # what stage s takes <= what the plan takes by the mix
            at = len(upper)
            entries.append((at, len(paths) + s, 1.0))
            entries += [(at, k, -_SCALE * float(np.dot(path[s], plan))) for k, path in enumerate(paths)]
            upper.append(0.0)
    entries += [(len(upper), k, 1.0) for k in range(len(paths))]
    lower = [-inf] * len(upper) + [1.0]
    values = _solve([0.0] * len(paths) + [-1.0] * len(kinds), [1.0] * len(paths) + [inf] * len(kinds), lower, [*upper, 1.0], entries)
    if values is None:
        return None
    return _whole(values[: len(paths)])


def _best_mix(paths: Sequence[tuple[Row, ...]], kinds: Sequence[Plans]) -> list[Row] | None:
    """The mix of plans of each stage that makes the longest of the paths shortest."""
    columns = [(s, plan) for s, kind in enumerate(kinds) for plan in kind.plans]
    entries = [(k, 0, 1.0) for k in range(len(paths))]
    entries += [(k, 1 + at, -_SCALE * float(np.dot(path[s], plan))) for k, path in enumerate(paths) for at, (s, plan) in enumerate(columns)]
    entries += [(len(paths) + s, 1 + at, 1.0) for at, (s, _) in enumerate(columns)]
    lower = [0.0] * len(paths) + [1.0] * len(kinds)
    values = _solve([1.0] + [0.0] * len(columns), [inf] + [1.0] * len(columns), lower, [inf] * len(paths) + [1.0] * len(kinds), entries)
    if values is None:
        return None
    mine = [[(share, plan) for share, (s, plan) in zip(values[1:], columns) if s == at] for at in range(len(kinds))]
    return [_mixed(_whole([share for share, _ in rows]), [plan for _, plan in rows]) for rows in mine]


def _whole(shares: Sequence[float]) -> list[float]:
    """Shares that a solver gave, within its tolerance, as what they are: of a whole."""
    found = np.maximum(shares, 0.0)
    return (found / found.sum()).tolist()


def _solve(cost: list[float], most: list[float], lower: list[float], upper: list[float], entries: list[tuple[int, int, float]]) -> np.ndarray | None:
    row, column, value = zip(*entries)
    rows = Rows(np.array(lower), np.array(upper), np.array(row), np.array(column), np.array(value))
    found = solve_program(LinearProgram(np.array(cost), np.array(most), np.zeros(len(cost), dtype=bool), rows), relaxed=True, time_limit_s=1.0)
    return found.values if found.status == "optimal" else None
