"""Choosers decided away, one after another: the fastest option of each for whatever its neighbours choose. Exact.

In: a `Problem` whose memory is of no interest, and problems like it that differ in what options take and how often groups are resharded. Out: the
seconds of its fastest decisions, hidden seconds free of charge, and these decisions; or, where that would take tables too large, tables over the
choosers that are left. The states of an optimizer are read and written by their update alone: they go first, and with them most of a linear program.

    table(U) = min over the options of v of   seconds of v + every table that has v        (U: the other choosers of these tables)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from ..graph.transfer import transfer_of
from .overlap import hiding_groups
from .problem import STORAGE, WHOLE, Endpoint, Group, Problem
from .tables import NONE, WHOLE_ID

_MOST_ENTRIES = 1 << 12  # of a table with one more chooser
_MOST_WORK = 1 << 25  # of all of them together

Scope = tuple[int, ...]  # choosers, ascending: the axes of a table


@dataclass(frozen=True, slots=True)
class _Factor:
    """What one reshard of a group takes, by the options of the choosers that it is between; `barred`: where there is no way."""

    group: int
    scope: Scope
    seconds: np.ndarray
    barred: np.ndarray | None


@dataclass(frozen=True, slots=True)
class _Step:
    """One chooser decided away.

    Args:
        scope: of the table that is left.
        used: (number of a table, its shape over chooser and scope).
        turned: the axis of the chooser in each of these tables.
    """

    chooser: int
    scope: Scope
    used: tuple[tuple[int, tuple[int, ...]], ...]
    turned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """A problem after the steps, for one objective.

    Args:
        constant_s: of what does not depend on those that are left.
        seconds: per chooser that is left (`Elimination.left`).
        tables: over several of them each (`Elimination.scopes`).
        picks: per step the best option for each choice of its scope.
    """

    constant_s: float
    seconds: tuple[np.ndarray, ...]
    tables: tuple[np.ndarray, ...]
    picks: tuple[np.ndarray, ...]


@dataclass(slots=True)
class Elimination:
    """The steps of a problem, in the order that keeps tables small.

    Args:
        most_entries, most_work: of a table, and of all: where it would take more, choosers are left.
        left: choosers that are left, ascending; none as a rule.
        groups: number of each group between them that no table has.
        scopes: of the tables that are left, each of several choosers.
    """

    problem: Problem
    most_entries: int = _MOST_ENTRIES
    most_work: int = _MOST_WORK
    left: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    scopes: tuple[Scope, ...] = ()
    _factors: list[_Factor] = field(default_factory=list)
    _steps: list[_Step] = field(default_factory=list)
    _ends: tuple[int, ...] = ()  # numbers of the tables of `scopes`

    def __post_init__(self) -> None:
        sizes = [len(c.seconds) for c in self.problem.choosers]
        among = [tuple(sorted({g.source[0], *(e.chooser for e in g.endpoints if e.chooser != WHOLE)})) for g in self.problem.groups]
        scopes = [tuple(v for v in row if sizes[v] > 1) for row in among]  # who has no choice is no axis: a table has few
        self.groups = tuple(number for number, scope in enumerate(scopes) if prod(sizes[v] for v in scope) > self.most_entries)
        kept, ports = set(self.groups), _Ports(self.problem)
        ports.price(number for number in range(len(scopes)) if number not in kept)
        for number, scope in enumerate(scopes):
            if number not in kept and (factor := ports.factor(number, scope)) is not None:
                self._factors.append(factor)
        self._plan(sizes, {v for number in kept for v in among[number]})

    def _plan(self, sizes: Sequence[int], fixed: set[int]) -> None:
        """Decide the order: whoever leaves the smallest table first.

        Args:
            fixed: choosers that must be left.
        """
        scopes: list[Scope] = [factor.scope for factor in self._factors]
        tables: list[set[int]] = [set() for _ in sizes]  # of each chooser
        near: list[set[int]] = [set() for _ in sizes]
        for number, scope in enumerate(scopes):
            for v in scope:
                tables[v].add(number)
                near[v].update(scope)

        def entries(v: int) -> int:
            return prod(sizes[u] for u in near[v])

        for v in range(len(sizes)):
            near[v].add(v)
        heap = [(entries(v), v) for v in range(len(sizes)) if v not in fixed]
        heapify(heap)
        gone, work = [False] * len(sizes), 0
        while heap:
            size, v = heappop(heap)
            if gone[v] or size != entries(v):
                continue
            if size > self.most_entries or work + size > self.most_work:
                break
            work += size
            gone[v] = True
            scope = tuple(sorted(near[v] - {v}))
            used = sorted(tables[v])
            shapes = [tuple(sizes[u] if u in scopes[t] else 1 for u in (v, *scope)) for t in used]
            self._steps.append(_Step(v, scope, tuple(zip(used, shapes)), tuple(scopes[t].index(v) for t in used)))
            made = len(scopes)
            scopes.append(scope)
            for u in scope:
                tables[u].difference_update(used)
                tables[u].add(made)
                near[u].update(scope)
                near[u].discard(v)
                if u not in fixed:
                    heappush(heap, (entries(u), u))
            tables[v] = set()
        self.left = tuple(v for v in range(len(sizes)) if not gone[v])
        alive = sorted({t for v in self.left for t in tables[v]})
        self._ends = tuple(t for t in alive)
        self.scopes = tuple(scopes[t] for t in alive)

    def run(self, problem: Problem, decides: bool = False) -> Reduced:
        """The steps with the seconds of a problem.

        Args:
            problem: the elimination's own, or one like it.
            decides: note what is picked.
        """
        tables: list[np.ndarray | None] = [_scaled(factor, problem.groups[factor.group].count) for factor in self._factors]
        constant, picks = sum(float(table) for table in tables if table is not None and not table.ndim), []
        for step in self._steps:
            total = problem.choosers[step.chooser].seconds.reshape(-1, *(1,) * len(step.scope))
            for (number, shape), axis in zip(step.used, step.turned):
                table = tables[number]
                assert table is not None, "a table is used once"
                total = total + (np.moveaxis(table, axis, 0) if axis else table).reshape(shape)
                tables[number] = None
            if decides:
                picks.append(total.argmin(axis=0))
            least = total.min(axis=0)
            if not step.scope:
                constant += float(least)
            tables.append(least)
        ends = [tables[number] for number in self._ends]
        return Reduced(constant, tuple(problem.choosers[v].seconds for v in self.left), tuple(t for t in ends if t is not None), tuple(picks))

    def decide(self, reduced: Reduced, chosen: Sequence[int]) -> list[int]:
        """The option of every chooser.

        Args:
            chosen: of those that are left.
        """
        found = dict(zip(self.left, chosen))
        for step, picks in zip(reversed(self._steps), reversed(reduced.picks)):
            found[step.chooser] = int(picks[tuple(found[u] for u in step.scope)])
        return [found[v] for v in range(len(self.problem.choosers))]


def _scaled(factor: _Factor, count: float) -> np.ndarray:
    seconds = factor.seconds * count
    return seconds if factor.barred is None else np.where(factor.barred, np.inf, seconds)


class _Ports:
    """What each group is between: sharding ids without repeats, and the place of each option's among them."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.hiding = problem, hiding_groups(problem)
        self.known: dict[tuple[int, int] | Endpoint, tuple[np.ndarray, np.ndarray]] = {}

    def port(self, key: tuple[int, int] | Endpoint) -> tuple[np.ndarray, np.ndarray]:
        """Ids, and places. A tuple is (chooser, output): what is made."""
        found = self.known.get(key)
        if found is None:
            ids = self.problem.choosers[key[0]].makes[key[1]] if isinstance(key, tuple) else _wanted_ids(self.problem, key)
            found = self.known[key] = self.problem.tables.places_of(ids)
        return found

    def price(self, numbers: Iterable[int]) -> None:
        """Price what these groups need of each shape at once."""
        asked: dict[object, list[Group]] = {}
        for number in numbers:
            group = self.problem.groups[number]
            asked.setdefault((group.value.shape, group.value.dtype, transfer_of(group.value)), []).append(group)
        for groups in asked.values():
            made = np.unique(np.concatenate([self.port(g.source)[0] for g in groups]))
            wanted = np.unique(np.concatenate([self.port(e)[0] for g in groups for e in g.endpoints]))
            self.problem.tables.seconds_matrix(groups[0].value, made, wanted)

    def factor(self, number: int, scope: Scope) -> _Factor | None:
        """The table of a group; None where it costs nothing."""
        group, shape = self.problem.groups[number], tuple(len(self.problem.choosers[v].seconds) for v in scope)
        made, made_at = self.port(group.source)
        source = _along(scope, group.source[0], made_at)
        seconds, barred = np.zeros((1,) * len(scope)), None
        before: list[np.ndarray] = []
        for endpoint in group.endpoints:
            wanted, wanted_at = self.port(endpoint)
            once, free = self._seconds(number, made, wanted, endpoint.tied)
            target = wanted_at.reshape((1,) * len(scope)) if endpoint.chooser == WHOLE else _along(scope, endpoint.chooser, wanted_at)
            if free is not None:
                barred = free[source, target] if barred is None else barred | free[source, target]
            if once is not None:
                costs, ids = once[source, target], wanted[target]
                for other in before:  # a copy that is there already
                    costs = np.where(ids == other, 0.0, costs)
                seconds = seconds + costs
            before.append(wanted[target])
        if barred is None and not seconds.any():
            return None
        return _Factor(number, scope, np.broadcast_to(seconds, shape), None if barred is None else np.broadcast_to(barred, shape))

    def _seconds(self, number: int, made: np.ndarray, wanted: np.ndarray, tied: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Of one reshard, what sticks out (None: nothing ever), and where there is no way (None: nowhere)."""
        group, tables = self.problem.groups[number], self.problem.tables
        once = tables.seconds_matrix(group.value, made, wanted)
        free = ~np.isfinite(once)
        if free.any():
            once[free] = 0.0
        if number in self.hiding:
            hidden = tables.hidden_matrix(group.value, made, wanted)
            once -= np.where(free, 0.0, hidden)
        once[made[:, None] == wanted[None, :]] = 0.0
        if tied:
            free |= (made == NONE)[:, None] != (wanted == NONE)[None, :]
        return once if once.any() else None, free if free.any() else None


def _along(scope: Scope, chooser: int, row: np.ndarray) -> np.ndarray:
    return row.reshape(tuple(-1 if v == chooser else 1 for v in scope))


def _wanted_ids(problem: Problem, endpoint: Endpoint) -> np.ndarray:
    if endpoint.chooser == WHOLE:
        return np.array([WHOLE_ID])
    chooser = problem.choosers[endpoint.chooser]
    return chooser.makes[0] if endpoint.position == STORAGE else chooser.wants[endpoint.position]
