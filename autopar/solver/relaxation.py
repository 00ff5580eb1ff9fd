"""The least seconds of a problem, memory and the limits of overlap aside, for one objective after another: what is the same for all of them is made once.

In: a `Problem`, and problems like it that differ in what choosers take and how often groups are resharded. Out: seconds that no plan beats: choosers are
decided away (`eliminate`), which is exact; of those that are left, if any, the linear program is solved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Generic, TypeVar

import numpy as np

from .eliminate import Elimination, Reduced
from .formulate import Formulation
from .ilp import LinearProgram, Rows, join_rows, solve_program
from .problem import WHOLE, Group, Problem

_TIME_LIMIT_S = 20.0
_SOON_COLUMNS = 60_000  # a linear program of so many takes seconds where few of its columns cost anything
_EXACT, _TOLERANCE = 1e-12, 1e-7  # of sums of floats, and of HiGHS


class Relaxation:
    """A problem without memory and overlap rows.

    Args:
        time_limit_s: of a linear program, where there is one.
    """

    def __init__(self, problem: Problem, time_limit_s: float = _TIME_LIMIT_S) -> None:
        self.problem = problem
        self.elimination = Elimination(problem)
        self.rest = _Rest(self.elimination, time_limit_s) if self.elimination.left else None

    def limit_time(self, seconds: float) -> None:
        """What a linear program may take from now on, where there is one."""
        if self.rest is not None:
            self.rest.time_limit_s = seconds

    @property
    def error(self) -> float:
        """Of seconds, as a share: by how much a bound may be too high."""
        return _EXACT if self.rest is None else _TOLERANCE

    def solve(self, problem: Problem | None = None, enough_s: float = inf, soon: bool = False) -> float:
        """Seconds that no plan beats.

        Args:
            problem: with other seconds; None: the relaxation's own.
            enough_s: more need not be shown.
            soon: a large linear program is not solved: what is left counts with its least.
        """
        return self._run(problem or self.problem, False, enough_s, soon)[0]

    def find(self, problem: Problem | None = None, enough_s: float = inf) -> tuple[float, list[int] | None]:
        """Seconds that no plan beats, and the option of each chooser that the fastest plan (or mix of plans: the most of it) has; None where it was not
        found in time, or is not needed. Args: as of `solve`."""
        return self._run(problem or self.problem, True, enough_s, False)

    def _run(self, problem: Problem, decides: bool, enough_s: float, soon: bool) -> tuple[float, list[int] | None]:
        reduced = self.elimination.run(problem, decides)
        rest_s, chosen = self.rest.solve(problem, reduced, enough_s - reduced.constant_s, soon) if self.rest is not None else (0.0, [])
        decisions = self.elimination.decide(reduced, chosen) if decides and chosen is not None else None
        return max(reduced.constant_s + rest_s, 0.0), decisions


class _Rest:
    """The linear program of the choosers that are left: those of their groups that no table has, and a flow through each table."""

    def __init__(self, elimination: Elimination, time_limit_s: float) -> None:
        self.elimination, self.time_limit_s = elimination, time_limit_s
        problem, left = elimination.problem, elimination.left
        self.place = {v: k for k, v in enumerate(left)}
        self.form = Formulation(self._rest_of(problem))
        self.sizes = [len(problem.choosers[v].seconds) for v in left]
        self.program = self.form.build(None, 1.0)

    def _rest_of(self, problem: Problem) -> Problem:
        """The choosers that are left, and the groups between them."""
        groups = tuple(self._renumbered(problem.groups[g]) for g in self.elimination.groups)
        return replace(problem, choosers=tuple(problem.choosers[v] for v in self.elimination.left), groups=groups, owners=())

    def _renumbered(self, group: Group) -> Group:
        endpoints = tuple(e if e.chooser == WHOLE else replace(e, chooser=self.place[e.chooser]) for e in group.endpoints)
        return replace(group, source=(self.place[group.source[0]], group.source[1]), endpoints=endpoints)

    def solve(self, problem: Problem, reduced: Reduced, enough_s: float, soon: bool) -> tuple[float, list[int] | None]:
        """(seconds at least, the option of each that a mix of plans has most of).

        Args:
            problem, reduced: of the objective.
            enough_s: more need not be shown.
            soon: as of `Relaxation.solve`.
        """
        seconds = [row.copy() for row in reduced.seconds]
        tables: list[tuple[tuple[int, ...], np.ndarray]] = []
        for scope, table in zip(self.elimination.scopes, reduced.tables):
            if len(scope) == 1:
                seconds[self.place[scope[0]]] += table
            else:
                tables.append((scope, table))
        low = sum(float(row.min()) for row in seconds) + sum(float(table.min()) for _, table in tables)
        if not np.isfinite(low):
            return inf, None
        if low >= enough_s or (soon and len(self.program.cost) > _SOON_COLUMNS):
            return low, None
        uppers = [np.isfinite(row) for row in seconds]
        rest = self._rest_of(problem)
        cost = self.form.seconds_of(replace(rest, choosers=tuple(replace(c, seconds=np.where(u, s, 0.0)) for c, s, u in zip(rest.choosers, seconds, uppers))))
        program = self._with_tables(replace(self.program, cost=cost), tables, uppers)
        scale = 1000.0 / low if low > 0 else 1.0
        scaled = replace(program, cost=program.cost * scale)
        found = solve_program(scaled, relaxed=True, time_limit_s=self.time_limit_s, presolved=False, enough=enough_s * scale)
        if found.status == "infeasible":
            return inf, None
        if found.status != "optimal" or found.values is None:
            return max(low, (found.bound or 0.0) / scale), None
        chosen = [int(np.argmax(found.values[o : o + n])) for o, n in zip(self.form.offsets, self.sizes)]
        return found.objective / scale, chosen

    def _with_tables(self, program: LinearProgram, tables: Sequence[tuple[tuple[int, ...], np.ndarray]], uppers: Sequence[np.ndarray]) -> LinearProgram:
        """The program with a column for each entry of each table: for each option of its choosers, the columns with it are its indicator."""
        upper = program.upper.copy()
        for offset, allowed in zip(self.form.offsets, uppers):
            upper[offset : offset + len(allowed)] *= allowed
        costs, rows, first = [program.cost], [program.rows], len(program.cost)
        for scope, table in tables:
            entries = np.argwhere(np.isfinite(table))
            columns = first + np.arange(len(entries))
            first += len(entries)
            costs.append(table[tuple(entries.T)])
            for axis, v in enumerate(scope):
                offset, count = self.form.offsets[self.place[v]], self.sizes[self.place[v]]
                row = np.concatenate([entries[:, axis], np.arange(count)])
                column = np.concatenate([columns, offset + np.arange(count)])
                value = np.concatenate([np.ones(len(entries)), -np.ones(count)])
                rows.append(Rows(np.zeros(count), np.zeros(count), row, column, value))
        more = first - len(program.cost)
        return LinearProgram(np.concatenate(costs), np.concatenate([upper, np.ones(more)]), np.concatenate([program.integer, np.zeros(more, bool)]), join_rows(rows))


Kept = TypeVar("Kept")


@dataclass(slots=True)
class Latest(Generic[Kept]):
    """What was used last, and no more: a relaxation holds some megabytes."""

    most: int
    _known: OrderedDict[Hashable, Kept] = field(default_factory=OrderedDict)

    def get(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """The one with this key, made where it is not known (any more)."""
        found = self._known.pop(key) if key in self._known else make()
        self._known[key] = found
        while len(self._known) > self.most:
            self._known.popitem(last=False)
        return found
