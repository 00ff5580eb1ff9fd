"""The integer program of one mesh.

    x[v,s]     one option per chooser                                  sum_s x[v,s] = 1
    f[e,a,b]   flow of an edge with one endpoint, from made a to wanted b; marginals tied on both sides (strong linearisation)
                                       sum_b f[e,a,b] = sum_{s: makes a} x[u,s],   sum_a f[e,a,b] = sum_{s: wants b} x[v,s]
    w[g,a,c]   a copy from a to c that several endpoints of a group share, paid once
                                       w[g,a,c] <= sum_{s: makes a} x[u,s]
                                       sum_{s: wants c} x[v,s] <= sum_{s: makes c} x[u,s] + sum_a w[g,a,c]     for each endpoint v
    minimise   sum n_v c[v,s] x[v,s] + sum n_e C[a,b] f[e,a,b] + sum n_g C[a,c] w[g,a,c]
    memory     for each program point t that was asked for (lazily): bytes(t) <= limit, with
               z >= x_i(c) + x_j(c) - 1 - made(c)   a copy c that endpoint i brought before t and endpoint j reads after t is held at t
               z >= x_i(a) + made(a) - 1            a value made as a is held at t where endpoint i takes it later as it is

In: a `Problem`. Out: a `LinearProgram` (columns in whatever order), and the columns of x to read the answer from. It solves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .ilp import LinearProgram, Rows, join_rows
from .judge import WHOLE_ID
from .problem import STORAGE, WHOLE, Endpoint, Group, Owner, Problem


@dataclass(frozen=True, slots=True)
class Terms:
    """A linear expression: columns, their factors, and a constant."""

    columns: np.ndarray
    factors: np.ndarray
    constant: float = 0.0


_NOTHING = Terms(np.zeros(0, np.int64), np.zeros(0))


class Formulation:
    """Collects columns and rows; memory rows can be added after a solve.

    Args:
        problem: the tables.
        scale: seconds are multiplied by it.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.offsets: list[int] = []
        self.num_columns = 0
        self._costs: list[np.ndarray] = []
        self._uppers: list[np.ndarray] = []
        self._integer: list[np.ndarray] = []
        self._rows: list[Rows] = []
        self._flow: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}  # group number -> (made, wanted, first column)
        self._inside: set[int] = set()  # groups that never reshard
        self._held: dict[tuple, int] = {}
        self._memory_rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._add_choices()
        for number, group in enumerate(problem.groups):
            self._add_group(number, group)
        self.num_structural = self.num_columns

    # --- columns and rows

    def _add_columns(self, cost: np.ndarray, integer: bool, upper: float = 1.0) -> int:
        first = self.num_columns
        self._costs.append(np.asarray(cost, dtype=float))
        self._uppers.append(np.full(len(cost), upper))
        self._integer.append(np.full(len(cost), integer))
        self.num_columns += len(cost)
        return first

    def _add_rows(self, lower: float, upper: float, row: np.ndarray, column: np.ndarray, value: np.ndarray, count: int) -> None:
        self._rows.append(Rows(np.full(count, lower), np.full(count, upper), row, column, value))

    def _add_choices(self) -> None:
        """sum_s x[v,s] = 1."""
        for chooser in self.problem.choosers:
            n = len(chooser.seconds)
            first = self._add_columns(chooser.seconds, True)
            self.offsets.append(first)
            self._add_rows(1, 1, np.zeros(n, np.int64), np.arange(first, first + n), np.ones(n), 1)

    def port(self, endpoint: Endpoint | tuple[int, int]) -> dict[int, Terms]:
        """Sharding id -> the expression that is 1 where the port has it. A tuple is (chooser, output): what is made."""
        if isinstance(endpoint, Endpoint):
            if endpoint.chooser == WHOLE:
                return {WHOLE_ID: Terms(np.zeros(0, np.int64), np.zeros(0), 1.0)}
            chooser = self.problem.choosers[endpoint.chooser]
            ids = chooser.makes[0] if endpoint.position == STORAGE else chooser.wants[endpoint.position]
            first = self.offsets[endpoint.chooser]
        else:
            ids = self.problem.choosers[endpoint[0]].makes[endpoint[1]]
            first = self.offsets[endpoint[0]]
        order = np.argsort(ids, kind="stable")
        unique, starts = np.unique(ids[order], return_index=True)
        return {int(u): Terms(first + part, np.ones(len(part))) for u, part in zip(unique, np.split(order, starts[1:]))}

    def _prices(self, group: Group, made: Iterable[int], wanted: Iterable[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All possible (made, wanted) pairs and their seconds."""
        table = self.problem.tables
        pairs = [(a, b, table.reshard_seconds(group.value, a, b)) for a in made for b in wanted]
        kept = [(a, b, c) for a, b, c in pairs if c < np.inf]
        if not kept:
            kept = []
        a, b, c = (np.array(col) for col in zip(*kept)) if kept else (np.zeros(0, int), np.zeros(0, int), np.zeros(0))
        return a, b, c

    def _add_group(self, number: int, group: Group) -> None:
        made = self.port(group.source)
        wanted = [self.port(e) for e in group.endpoints]
        if all(self._is_inside(group.source, e) for e in group.endpoints):
            self._flow[number] = (np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
            self._inside.add(number)
        elif len(group.endpoints) == 1:
            self._add_flow(number, group, made, wanted[0])
        else:
            self._add_shared(number, group, made, wanted)

    def _is_inside(self, source: tuple[int, int], endpoint: Endpoint) -> bool:
        """True where the same chooser makes and wants the value, always in the same sharding."""
        if source[0] != endpoint.chooser:
            return False
        chooser = self.problem.choosers[source[0]]
        wants = chooser.makes[0] if endpoint.position == STORAGE else chooser.wants[endpoint.position]
        return bool((chooser.makes[source[1]] == wants).all())

    def _add_flow(self, number: int, group: Group, made: dict[int, Terms], wanted: dict[int, Terms]) -> None:
        """Strong linearisation of an edge with one endpoint."""
        a, b, cost = self._prices(group, made, wanted)
        first = self._add_columns(len(group.spans) * cost, False)
        self._flow[number] = (a, b, first)
        columns = np.arange(first, first + len(a))
        for ids, terms in ((a, made), (b, wanted)):
            self._tie(columns, ids, terms)

    def _tie(self, columns: np.ndarray, ids: np.ndarray, terms: dict[int, Terms]) -> None:
        """For each id: the flow through it is its indicator."""
        rows, cols, vals, right = [], [], [], []
        for r, (key, term) in enumerate(terms.items()):
            flow = columns[ids == key]
            rows.append(np.full(len(flow) + len(term.columns), r))
            cols += [flow, term.columns]
            vals += [np.ones(len(flow)), -term.factors]
            right.append(term.constant)
        bounds = np.array(right)
        self._rows.append(Rows(bounds, bounds, np.concatenate(rows), np.concatenate(cols), np.concatenate(vals)))

    def _add_shared(self, number: int, group: Group, made: dict[int, Terms], wanted: list[dict[int, Terms]]) -> None:
        """Copies that several endpoints share."""
        targets = list(dict.fromkeys(c for port in wanted for c in port))
        a, c, cost = self._prices(group, made, targets)
        real = a != c
        a, c, cost = a[real], c[real], cost[real]
        first = self._add_columns(len(group.spans) * cost, False)
        self._flow[number] = (a, c, first)
        columns = np.arange(first, first + len(a))
        rows, cols, vals = [], [], []
        for r, (source, column) in enumerate(zip(a, columns)):  # w[g,a,c] <= made(a)
            term = made[int(source)]
            rows.append(np.full(1 + len(term.columns), r))
            cols += [np.array([column]), term.columns]
            vals += [np.ones(1), -term.factors]
        if rows:
            self._add_rows(-np.inf, 0, np.concatenate(rows), np.concatenate(cols), np.concatenate(vals), len(a))
        rows, cols, vals, right = [], [], [], []
        for port in wanted:
            for target, term in port.items():  # wants(c) <= made(c) + copies to c
                r = len(right)
                plus = made.get(target, _NOTHING)
                copies = columns[c == target]
                rows.append(np.full(len(term.columns) + len(plus.columns) + len(copies), r))
                cols += [term.columns, plus.columns, copies]
                vals += [term.factors, -plus.factors, -np.ones(len(copies))]
                right.append(-term.constant)
        self._rows.append(
            Rows(np.full(len(right), -np.inf), np.array(right), np.concatenate(rows), np.concatenate(cols), np.concatenate(vals))
        )

    # --- memory

    def add_memory_row(self, point: int) -> None:
        """Ask for bytes(point) <= limit. Its limit is given when the program is built."""
        if point in self._memory_rows:
            return
        columns: list[np.ndarray] = []
        factors: list[np.ndarray] = []
        table = self.problem.tables
        for owner in self.problem.owners:
            self._hold_owner(owner, point, columns, factors)
        for number, group in enumerate(self.problem.groups):
            self._hold_copies(number, group, point, columns, factors)
        self._memory_rows[point] = (np.concatenate(columns), np.concatenate(factors))

    def _hold_owner(self, owner: Owner, point: int, columns: list[np.ndarray], factors: list[np.ndarray]) -> None:
        certain, maybe = 0, Counter()
        for life in owner.lives:
            if max(0, life.first) <= point <= life.certain:
                certain += 1
            elif life.certain < point:
                takers = tuple((g, e) for g, e, last in life.longer if last >= point)
                maybe[takers] += bool(takers)
        table = self.problem.tables
        for key, term in self.port(owner.source).items():
            size = table.local_bytes(owner.value, key)
            if certain:
                columns.append(term.columns)
                factors.append(certain * size * term.factors)
            for takers, count in maybe.items():
                column = self._taken_column(takers, key, term) if count else None
                if column is not None:
                    columns.append(np.array([column]))
                    factors.append(np.array([float(count * size)]))

    def _taken_column(self, takers: tuple[tuple[int, int], ...], made: int, term: Terms) -> int | None:
        """The column that is at least 1 where one of the takers reads the value as it was made."""
        key = (takers, made)
        if key in self._held:
            return self._held[key]
        ports = [self.port(self.problem.groups[g].endpoints[e]).get(made) for g, e in takers]
        found = [port for port in ports if port is not None]
        if not found:
            return None
        if len(takers) == 1 and len(self.problem.groups[takers[0][0]].endpoints) == 1 and takers[0][0] not in self._inside:
            a, b, first = self._flow[takers[0][0]]
            return first + int(np.flatnonzero((a == made) & (b == made))[0])
        column = self._add_columns(np.zeros(1), False)
        for port in found:  # z >= taken + made - 1
            cols = np.concatenate([port.columns, term.columns, np.array([column])])
            vals = np.concatenate([port.factors, term.factors, -np.ones(1)])
            self._add_rows(-np.inf, 1 - port.constant, np.zeros(len(cols), np.int64), cols, vals, 1)
        self._held[key] = column
        return column

    def _hold_copies(self, number: int, group: Group, point: int, columns: list[np.ndarray], factors: list[np.ndarray]) -> None:
        table = self.problem.tables
        if number in self._inside:
            return
        a, b, first = self._flow[number]
        shapes: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
        for spans in group.spans:
            before = tuple(k for k, (low, _) in enumerate(spans) if low <= point)
            after = tuple(k for k, (_, high) in enumerate(spans) if high >= point)
            if before and after:
                shapes[before, after] += 1
        if not shapes:
            return
        if len(group.endpoints) == 1:
            moved = np.flatnonzero(a != b)
            sizes = np.array([table.local_bytes(group.value, int(t)) for t in b[moved]], dtype=float)
            columns.append(first + moved)
            factors.append(sum(shapes.values()) * sizes)
            return
        for (before, after), count in shapes.items():
            for target in sorted({int(t) for t in b}):
                column = self._held_column(number, group, before, after, target)
                if column is not None:
                    columns.append(np.array([column]))
                    factors.append(np.array([float(count * table.local_bytes(group.value, target))]))

    def _held_column(self, number: int, group: Group, before: tuple[int, ...], after: tuple[int, ...], target: int) -> int | None:
        """The column that is at least 1 where a copy to `target` is held between `before` and `after`; None where none can be."""
        key = (number, before, after, target)
        if key in self._held:
            return self._held[key]
        ports = [self.port(e) for e in group.endpoints]
        both = [k for k in before if k in after]
        pairs = [(k, k) for k in both] + [(i, j) for i in before if i not in after for j in after if j not in before]
        pairs = [(i, j) for i, j in pairs if target in ports[i] and target in ports[j]]
        if not pairs:
            return None
        made = self.port(group.source).get(target, _NOTHING)
        column = self._add_columns(np.zeros(1), False)
        rows, cols, vals, right = [], [], [], []
        for r, (i, j) in enumerate(pairs):
            terms = [ports[i][target]] if i == j else [ports[i][target], ports[j][target]]
            cols += [*(t.columns for t in terms), made.columns, np.array([column])]
            vals += [*(t.factors for t in terms), -made.factors, -np.ones(1)]
            rows.append(np.full(sum(len(t.columns) for t in terms) + len(made.columns) + 1, r))
            right.append(len(terms) - 1 - sum(t.constant for t in terms))
        self._rows.append(
            Rows(np.full(len(right), -np.inf), np.array(right, dtype=float), np.concatenate(rows), np.concatenate(cols), np.concatenate(vals))
        )
        self._held[key] = column
        return column

    # --- the whole

    def build(self, limit_bytes: float | None, scale: float) -> LinearProgram:
        """The program: fewest seconds (times `scale`) within the limit, or, with no limit, without memory rows."""
        rows = list(self._rows)
        if limit_bytes is not None and self._memory_rows:
            rows.append(self._memory(limit_bytes))
        return LinearProgram(
            np.concatenate(self._costs) * scale, np.concatenate(self._uppers), np.concatenate(self._integer), join_rows(rows)
        )

    def _memory(self, limit_bytes: float) -> Rows:
        unit = 1000.0 / limit_bytes
        row = np.concatenate([np.full(len(c), r) for r, (c, _) in enumerate(self._memory_rows.values())])
        column = np.concatenate([c for c, _ in self._memory_rows.values()])
        value = np.concatenate([v for _, v in self._memory_rows.values()]) * unit
        count = len(self._memory_rows)
        return Rows(np.full(count, -np.inf), np.full(count, 1000.0), row, column, value)

    def build_smallest(self, unit_bytes: float) -> LinearProgram:
        """The program that minimises the highest of the memory rows (in units) instead of the seconds."""
        count = len(self._memory_rows)
        memory = self._memory(unit_bytes)
        peak = self.num_columns
        row = np.concatenate([memory.row, np.arange(count)])
        column = np.concatenate([memory.column, np.full(count, peak)])
        value = np.concatenate([memory.value, -np.ones(count)])
        rows = join_rows([*self._rows, Rows(np.full(count, -np.inf), np.zeros(count), row, column, value)])
        return LinearProgram(
            np.concatenate([np.zeros(peak), np.ones(1)]),
            np.concatenate([*self._uppers, np.full(1, np.inf)]),
            np.concatenate([*self._integer, np.zeros(1, bool)]),
            rows,
        )
