"""The integer program of one mesh.

    x[v,s]     one option per chooser                                  sum_s x[v,s] = 1
    f[e,a,b]   flow of an edge with one endpoint, from made a to wanted b; marginals tied on both sides (strong linearisation)
                                       sum_b f[e,a,b] = sum_{s: makes a} x[u,s],   sum_a f[e,a,b] = sum_{s: wants b} x[v,s]
    w[g,a,c]   a copy from a to c that several endpoints of a group share, paid once; each endpoint has its own tied flow
                                       w[g,a,c] >= f[e,a,c]     for each endpoint e of g and a != c
    minimise   sum n_v c[v,s] x[v,s] + sum n_e C[a,b] f[e,a,b] + sum n_g C[a,c] w[g,a,c]
    memory     for each program point t that was asked for (lazily): bytes(t) <= limit, with
               z >= m_i(c) + m_j(c) - 1   with m_i(c) = sum_{a != c} f[i,a,c]: a copy that endpoint i brought before t and j reads after t
               z >= f[i,a,a]              a value made as a is held at t where endpoint i takes it later as it is

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



@dataclass(frozen=True, slots=True)
class Flow:
    """The flow of one endpoint: sharding ids as made and as wanted, and the columns."""

    made: np.ndarray
    wanted: np.ndarray
    columns: np.ndarray

    def moved_to(self, target: int) -> np.ndarray:
        """Columns whose sum is 1 where the endpoint needs a copy in this sharding."""
        return self.columns[(self.wanted == target) & (self.made != target)]

    def taken_as(self, made: int) -> np.ndarray:
        """Columns whose sum is 1 where the endpoint takes the value as it was made."""
        return self.columns[(self.wanted == made) & (self.made == made)]


def count_columns(problem: Problem) -> int:
    """About how many columns the program has, counted without pricing anything."""
    total = sum(len(c.seconds) for c in problem.choosers)
    for group in problem.groups:
        made = len(np.unique(problem.choosers[group.source[0]].makes[group.source[1]]))
        wanted = [_count_wanted(problem, e) for e in group.endpoints]
        total += made * (sum(wanted) + (max(wanted) if len(wanted) > 1 else 0))
    return total


def _count_wanted(problem: Problem, endpoint: Endpoint) -> int:
    if endpoint.chooser == WHOLE:
        return 1
    chooser = problem.choosers[endpoint.chooser]
    return len(np.unique(chooser.makes[0] if endpoint.position == STORAGE else chooser.wants[endpoint.position]))


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
        self._flows: dict[int, list[Flow]] = {}  # group number -> the flow of each endpoint
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
            self._inside.add(number)  # never resharded
        elif len(group.endpoints) == 1:
            self._flows[number] = [self._add_flow(group, made, wanted[0], len(group.spans))]
        else:
            self._add_shared(number, group, made, wanted)

    def _is_inside(self, source: tuple[int, int], endpoint: Endpoint) -> bool:
        """True where the same chooser makes and wants the value, always in the same sharding."""
        if source[0] != endpoint.chooser:
            return False
        chooser = self.problem.choosers[source[0]]
        wants = chooser.makes[0] if endpoint.position == STORAGE else chooser.wants[endpoint.position]
        return bool((chooser.makes[source[1]] == wants).all())

    def _add_flow(self, group: Group, made: dict[int, Terms], wanted: dict[int, Terms], count: int) -> Flow:
        """Strong linearisation of one endpoint; `count` reshards are paid on the flow itself."""
        a, b, cost = self._prices(group, made, wanted)
        first = self._add_columns(count * cost, False)
        flow = Flow(a, b, np.arange(first, first + len(a)))
        self._tie(flow.columns, a, made)
        self._tie(flow.columns, b, wanted)
        return flow

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
        """w[g,a,c] >= f[e,a,c]: copies that several endpoints share."""
        targets = list(dict.fromkeys(c for port in wanted for c in port))
        a, c, cost = self._prices(group, made, targets)
        real = a != c
        a, c, cost = a[real], c[real], cost[real]
        first = self._add_columns(len(group.spans) * cost, False)
        width = len(self.problem.tables.shardings)
        order = np.argsort(a * width + c)
        keys = (a * width + c)[order]
        flows = []
        for port in wanted:
            flow = self._add_flow(group, made, port, 0)
            flows.append(flow)
            moved = np.flatnonzero(flow.made != flow.wanted)
            copies = first + order[np.searchsorted(keys, flow.made[moved] * width + flow.wanted[moved])]
            rows = np.tile(np.arange(len(moved)), 2)
            signs = np.repeat([1.0, -1.0], len(moved))
            self._add_rows(-np.inf, 0, rows, np.concatenate([flow.columns[moved], copies]), signs, len(moved))
        self._flows[number] = flows

    # --- memory

    def add_memory_row(self, point: int) -> None:
        """Ask for bytes(point) <= limit. Its limit is given when the program is built."""
        if point in self._memory_rows:
            return
        columns: list[np.ndarray] = []
        factors: list[np.ndarray] = []
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
                held = self._taken_columns(takers, key, term) if count else term.columns[:0]
                columns.append(held)
                factors.append(np.full(len(held), float(count * size)))

    def _taken_columns(self, takers: tuple[tuple[int, int], ...], made: int, term: Terms) -> np.ndarray:
        """Columns whose sum is at least 1 where one of the takers reads the value as it was made."""
        if any(g in self._inside for g, _ in takers):
            return term.columns
        taken = [self._flows[g][e].taken_as(made) for g, e in takers]
        taken = [columns for columns in taken if len(columns)]
        if len(taken) <= 1:
            return taken[0] if taken else np.zeros(0, np.int64)
        return self._at_least(("taken", takers, made), [(columns,) for columns in taken])

    def _hold_copies(self, number: int, group: Group, point: int, columns: list[np.ndarray], factors: list[np.ndarray]) -> None:
        if number in self._inside:
            return
        shapes: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
        for spans in group.spans:
            before = tuple(k for k, (low, _) in enumerate(spans) if low <= point)
            after = tuple(k for k, (_, high) in enumerate(spans) if high >= point)
            if before and after:
                shapes[before, after] += 1
        flows = self._flows[number]
        bringing = Counter(tuple(k for k, (low, _) in enumerate(spans) if low == point) for spans in group.spans)
        for who, count in bringing.items():
            if who:
                self._hold_transients(number, group, who, count, columns, factors)
        for (before, after), count in shapes.items():
            for target in sorted({int(t) for k in before for t in flows[k].wanted}):
                held = self._copy_columns(number, before, after, target)
                size = self.problem.tables.local_bytes(group.value, target)
                columns.append(held)
                factors.append(np.full(len(held), float(count * size)))

    def _hold_transients(
        self, number: int, group: Group, who: tuple[int, ...], count: int, columns: list[np.ndarray], factors: list[np.ndarray]
    ) -> None:
        """What the reshards that these endpoints ask for at once hold on their way."""
        flows = [self._flows[number][k] for k in who]
        pairs = sorted({(int(a), int(c)) for flow in flows for a, c in zip(flow.made, flow.wanted) if a != c})
        for a, c in pairs:
            extra = self.problem.tables.transient_bytes(group.value, a, c)
            if not extra:
                continue
            found = [flow.columns[(flow.made == a) & (flow.wanted == c)] for flow in flows]
            found = [f for f in found if len(f)]
            held = found[0] if len(found) == 1 else self._at_least(("way", number, who, a, c), [(f,) for f in found])
            columns.append(held)
            factors.append(np.full(len(held), float(count * extra)))

    def _copy_columns(self, number: int, before: tuple[int, ...], after: tuple[int, ...], target: int) -> np.ndarray:
        """Columns whose sum is at least 1 where a copy is held that one of `before` brought and one of `after` still reads."""
        moved = [flow.moved_to(target) for flow in self._flows[number]]
        both = [k for k in before if k in after]
        pairs = [(moved[k],) for k in both if len(moved[k])]
        pairs += [(moved[i], moved[j]) for i in before if i not in after for j in after if j not in before and len(moved[i]) and len(moved[j])]
        if not pairs:
            return np.zeros(0, np.int64)
        if len(pairs) == 1 and len(pairs[0]) == 1:
            return pairs[0][0]
        return self._at_least(("copy", number, before, after, target), pairs)

    def _at_least(self, key: tuple, products: list[tuple[np.ndarray, ...]]) -> np.ndarray:
        """One column z with z >= the product of each tuple's sums: z >= sum of the sums - (how many - 1)."""
        if key not in self._held:
            column = self._add_columns(np.zeros(1), False)
            for sums in products:
                cols = np.concatenate([*sums, np.array([column])])
                vals = np.ones(len(cols))
                vals[-1] = -1.0
                self._add_rows(-np.inf, len(sums) - 1, np.zeros(len(cols), np.int64), cols, vals, 1)
            self._held[key] = column
        return np.array([self._held[key]])

    @property
    def num_memory_rows(self) -> int:
        """Program points that were asked for."""
        return len(self._memory_rows)

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
