"""The integer program of one mesh.

    x[v,s]     one option per chooser                                  sum_s x[v,s] = 1
    f[e,a,b]   flow of an edge with one endpoint, from made a to wanted b; marginals tied on both sides (strong linearisation)
                                       sum_b f[e,a,b] = sum_{s: makes a} x[u,s],   sum_a f[e,a,b] = sum_{s: wants b} x[v,s]
    w[g,a,c]   a copy from a to c that several endpoints of a group share, paid once; each endpoint has its own tied flow
                                       w[g,a,c] >= f[e,a,c]     for each endpoint e of g and a != c
    minimise   sum n_v c[v,s] x[v,s] + sum n_e C[a,b] f[e,a,b] + sum n_g C[a,c] w[g,a,c] + sum_p o[p]
    overlap    in a group that hides behind the compute of phase p, C is what sticks out in any case: the seconds less the hidden ones H;
               o[p] >= sum of n H over the flows and copies of such groups - sum of n_v c[v,s] x[v,s] over the nodes of phase p
               gives back what compute cannot hide; the rows are long, so they are asked for where a solution breaks them (lazily)
    memory     for each program point t that was asked for (lazily): bytes(t) <= limit, with
               z >= m_i(c) + m_j(c) - 1   with m_i(c) = sum_{a != c} f[i,a,c]: a copy that endpoint i brought before t and j reads after t
               z >= f[i,a,a]              a value made as a is held at t where endpoint i takes it later as it is

In: a `Problem`. Out: a `LinearProgram` (columns in whatever order), and the columns of x to read the answer from. It solves nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from ..graph.node import Phase
from ..graph.tensor import Value
from ..graph.transfer import transfer_of
from .ilp import LinearProgram, Rows, join_rows
from .overlap import compute_seconds, hiding_groups
from .problem import STORAGE, WHOLE, Endpoint, Group, Life, Problem
from .tables import NONE, WHOLE_ID


@dataclass(frozen=True, slots=True)
class Port:
    """In which sharding a port has its value, as expressions that are 1 where it is so: sums of the columns of a chooser's options.

    Args:
        ids: the shardings that occur, ascending.
        place: per option of the chooser, the place of its sharding in `ids`.
        first: column of the first option.
        constant: of each expression; a port without a chooser has one sharding and no options.
    """

    ids: np.ndarray
    place: np.ndarray
    first: int
    constant: float

    def columns(self, place: int) -> np.ndarray:
        """Columns of the options with the sharding at this place."""
        return self.first + np.flatnonzero(self.place == place)


Taker = tuple[int, int, bool, tuple[tuple[int, int], ...]]  # group, endpoint, as made, via: as in a `Hold`


@dataclass(frozen=True, slots=True)
class Flow:
    """The flow of one endpoint: sharding ids as made and as wanted, and the columns."""

    made: np.ndarray
    wanted: np.ndarray
    columns: np.ndarray

    def moved_to(self, target: int) -> np.ndarray:
        """Columns whose sum is 1 where the endpoint needs a copy in this sharding."""
        return self.columns[(self.wanted == target) & self.moves]

    def taken_as(self, made: int) -> np.ndarray:
        """Columns whose sum is 1 where the endpoint takes the value as it was made."""
        return self.columns[(self.wanted == made) & (self.made == made)]

    def read_of(self, made: int) -> np.ndarray:
        """Columns whose sum is 1 where the endpoint reads the value, made like this, in whatever sharding."""
        return self.columns[(self.made == made) & (self.wanted != NONE)]

    @property
    def moves(self) -> np.ndarray:
        """Where the endpoint needs a copy."""
        return (self.made != self.wanted) & (self.made != NONE) & (self.wanted != NONE)


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
    """Collects columns and rows; memory and overlap rows can be added after a solve.

    Args:
        problem: the tables.
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
        self._ports: dict[Endpoint | tuple[int, int], Port] = {}
        self._hiding = hiding_groups(problem)
        self._hidden: dict[Phase, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)  # columns, and the seconds that each hides
        self._excess: list[tuple[int, np.ndarray, np.ndarray]] = []  # column of o[p]; columns and seconds of its row
        self._asked: set[int] = set()  # o[p] whose rows were asked for
        self._add_choices()
        for number, group in enumerate(problem.groups):
            if all(self._is_inside(group.source, e) for e in group.endpoints):
                self._inside.add(number)
        self._fill_tables()
        self._columns: list[tuple[int, int]] = []  # of each group: first, and first after them
        for number, group in enumerate(problem.groups):
            first = self.num_columns
            self._add_group(number, group)
            self._columns.append((first, self.num_columns))
        for phase, hidden in self._hidden.items():
            self._add_excess(phase, hidden)
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

    def port(self, endpoint: Endpoint | tuple[int, int]) -> Port:
        """Which sharding the port has. A tuple is (chooser, output): what is made."""
        found = self._ports.get(endpoint)
        if found is None:
            found = self._ports[endpoint] = self._make_port(endpoint)
        return found

    def _make_port(self, endpoint: Endpoint | tuple[int, int]) -> Port:
        if isinstance(endpoint, Endpoint):
            number, position = endpoint.chooser, endpoint.position
            if number == WHOLE:
                return Port(np.array([WHOLE_ID]), np.zeros(0, np.int64), 0, 1.0)
            chooser = self.problem.choosers[number]
            options = chooser.makes[0] if position == STORAGE else chooser.wants[position]
        else:
            number, position = endpoint
            options = self.problem.choosers[number].makes[position]
        ids, place = np.unique(options, return_inverse=True)
        return Port(ids, place, self.offsets[number], 0.0)

    def _fill_tables(self) -> None:
        """Price what the groups of each shape need at once."""
        asked: dict[object, list[Group]] = defaultdict(list)
        for number, group in enumerate(self.problem.groups):
            if number not in self._inside:
                asked[group.value.shape, group.value.dtype, transfer_of(group.value)].append(group)
        for groups in asked.values():
            made = np.unique(np.concatenate([self.port(g.source).ids for g in groups]))
            wanted = np.unique(np.concatenate([self.port(e).ids for g in groups for e in g.endpoints]))
            self.problem.tables.seconds_matrix(groups[0].value, made, wanted)

    def _add_group(self, number: int, group: Group) -> None:
        if number in self._inside:
            return
        made = self.port(group.source)
        wanted = [self.port(e) for e in group.endpoints]
        if len(wanted) == 1:
            self._flows[number] = [self._add_flow(number, group, group.endpoints[0], made, group.count)[0]]
        else:
            self._add_shared(number, group, made, wanted)

    def _is_inside(self, source: tuple[int, int], endpoint: Endpoint) -> bool:
        """True where the same chooser makes and wants the value, always in the same sharding."""
        if source[0] != endpoint.chooser:
            return False
        chooser = self.problem.choosers[source[0]]
        wants = chooser.makes[0] if endpoint.position == STORAGE else chooser.wants[endpoint.position]
        return bool((chooser.makes[source[1]] == wants).all())

    def _exposed(self, number: int, group: Group, made: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of every reshard of a group that stick out in any case, and those that hide behind compute as long as there is some."""
        seconds = self.problem.tables.seconds_matrix(group.value, made, wanted)
        if number not in self._hiding:
            return seconds, np.zeros(seconds.shape)
        hidden = self.problem.tables.hidden_matrix(group.value, made, wanted)
        return seconds - hidden, hidden

    def _hide(self, number: int, columns: np.ndarray, seconds: np.ndarray) -> None:
        """These columns hide so many seconds each."""
        if seconds.any():
            self._hidden[self._hiding[number]].append((columns, seconds))

    def _add_excess(self, phase: Phase, hidden: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """o[p] >= what hides - compute. The row is made in `build`, which scales it."""
        columns, seconds = [c for c, _ in hidden], [s for _, s in hidden]
        for number, chooser in enumerate(self.problem.choosers):
            compute = compute_seconds(self.problem, number, phase)
            if compute.any():
                columns.append(self.offsets[number] + np.arange(len(chooser.seconds)))
                seconds.append(-compute)
        self._excess.append((self._add_columns(np.ones(1), False, np.inf), np.concatenate(columns), np.concatenate(seconds)))

    def ask_overlap(self, values: np.ndarray) -> bool:
        """Ask for the overlap rows that a solution breaks; True where it broke one that nobody had asked for."""
        broken = {
            column
            for column, columns, seconds in self._excess
            if column not in self._asked and seconds @ values[columns] > 1e-9 * (np.abs(seconds) @ values[columns])
        }
        self._asked |= broken
        return bool(broken)

    def _add_flow(self, number: int, group: Group, endpoint: Endpoint, made: Port, count: int) -> tuple[Flow, np.ndarray, np.ndarray]:
        """Strong linearisation of one endpoint; `count` reshards are paid on the flow itself.

        Returns:
            The flow, and per column the places of what is made and wanted in their ports.
        """
        wanted = self.port(endpoint)
        seconds, hidden = self._exposed(number, group, made.ids, wanted.ids)
        possible = np.isfinite(seconds)
        if endpoint.tied:
            possible &= (made.ids == NONE)[:, None] == (wanted.ids == NONE)[None, :]
        a, b = np.nonzero(possible)
        first = self._add_columns(count * seconds[a, b], False)
        flow = Flow(made.ids[a], wanted.ids[b], np.arange(first, first + len(a)))
        self._hide(number, flow.columns, count * hidden[a, b])
        self._tie(flow.columns, a, made)
        self._tie(flow.columns, b, wanted)
        return flow, a, b

    def _tie(self, columns: np.ndarray, places: np.ndarray, port: Port) -> None:
        """For each sharding of the port: the flow through it is its indicator."""
        count = len(port.place)
        rows = np.concatenate([port.place, places])
        cols = np.concatenate([np.arange(port.first, port.first + count), columns])
        vals = np.ones(len(rows))
        vals[:count] = -1.0
        self._add_rows(port.constant, port.constant, rows, cols, vals, len(port.ids))

    def _add_shared(self, number: int, group: Group, made: Port, wanted: list[Port]) -> None:
        """w[g,a,c] >= f[e,a,c]: copies that several endpoints share."""
        targets = np.unique(np.concatenate([port.ids for port in wanted]))
        seconds, hidden = self._exposed(number, group, made.ids, targets)
        real = (made.ids != NONE)[:, None] & (targets != NONE)[None, :]
        a, c = np.nonzero(np.isfinite(seconds) & real & (made.ids[:, None] != targets[None, :]))
        copies = np.full(seconds.shape, -1)
        copies[a, c] = self._add_columns(group.count * seconds[a, c], False) + np.arange(len(a))
        self._hide(number, copies[a, c], group.count * hidden[a, c])
        flows = []
        for endpoint, port in zip(group.endpoints, wanted):
            flow, a, b = self._add_flow(number, group, endpoint, made, 0)
            flows.append(flow)
            moved = np.flatnonzero(flow.moves)
            copy = copies[a[moved], np.searchsorted(targets, port.ids)[b[moved]]]
            rows = np.tile(np.arange(len(moved)), 2)
            signs = np.repeat([1.0, -1.0], len(moved))
            self._add_rows(-np.inf, 0, rows, np.concatenate([flow.columns[moved], copy]), signs, len(moved))
        self._flows[number] = flows

    # --- memory

    def add_memory_row(self, point: int) -> None:
        """Ask for bytes(point) <= limit. Its limit is given when the program is built."""
        if point in self._memory_rows:
            return
        columns: list[np.ndarray] = []
        factors: list[np.ndarray] = []
        for owner in self.problem.owners:
            self._hold_owner(owner.value, owner.source, owner.lives, point, columns, factors)
        for number, group in enumerate(self.problem.groups):
            self._hold_transients_at(number, group, point, columns, factors)
            self._hold_copies(number, group, group.spans, point, columns, factors)
        turns = self.problem.turns
        if turns.in_flight > 1 and turns.first <= point <= turns.last:
            here = len(factors)
            self._hold_waiting(columns, factors)
            factors[here:] = [(turns.in_flight - 1) * f for f in factors[here:]]
        self._memory_rows[point] = (np.concatenate(columns), np.concatenate(factors))

    def _hold_waiting(self, columns: list[np.ndarray], factors: list[np.ndarray]) -> None:
        """What one microbatch holds between its forward and its backward."""
        turns = self.problem.turns
        for owner in self.problem.owners:
            lives = tuple(life for life in owner.lives if turns.first <= life.first <= turns.turn and life.certain <= turns.last)
            self._hold_owner(owner.value, owner.source, lives, turns.turn, columns, factors)
        for number, group in enumerate(self.problem.groups):
            spans = tuple(rows for rows in group.spans if any(turns.waits(low, high) for low, high in rows))
            self._hold_copies(number, group, spans, turns.turn, columns, factors)

    def _hold_owner(
        self, value: Value, source: tuple[int, int], lives: tuple[Life, ...], point: int, columns: list[np.ndarray], factors: list[np.ndarray]
    ) -> None:
        certain, maybe = 0, Counter()
        for life in lives:
            if max(0, life.first) <= point <= life.certain:
                certain += 1
            elif life.certain < point:
                takers = tuple((hold.group, hold.endpoint, hold.as_made, hold.via) for hold in life.longer if hold.last >= point)
                maybe[takers] += bool(takers)
        maybe = {takers: count for takers, count in maybe.items() if count}
        if not certain and not maybe:
            return
        port = self.port(source)
        copies = {viewed for takers in maybe for *_, via in takers for viewed, _ in via} - set(port.ids.tolist())
        for copy in sorted(copies):  # never made like this, but a view of a copy may be read in the backward pass
            size = self.problem.tables.local_bytes(value, copy)
            for takers, count in maybe.items():
                columns.append(self._taken_columns(tuple(t for t in takers if t[3]), copy, np.zeros(0, np.int64)))
                factors.append(np.full(len(columns[-1]), float(count * size)))
        for place, made in enumerate(port.ids.tolist()):
            size = self.problem.tables.local_bytes(value, made)
            if certain:
                columns.append(port.columns(place))
                factors.append(np.full(len(columns[-1]), float(certain * size)))
            for takers, count in maybe.items():
                columns.append(self._taken_columns(takers, made, port.columns(place)))
                factors.append(np.full(len(columns[-1]), float(count * size)))

    def _taken_columns(self, takers: tuple[Taker, ...], made: int, options: np.ndarray) -> np.ndarray:
        """Columns whose sum is at least 1 where one of the takers reads the value as it was made (or at all); `options` make it so."""
        if any(g in self._inside for g, *_ in takers):
            return options
        taken = []
        for g, e, as_made, via in takers:
            flow, ids = self._flows[g][e], [view for viewed, view in via if viewed == made] if via else [made]
            taken += [flow.taken_as(i) if as_made else flow.read_of(i) for i in ids]
        taken = [columns for columns in taken if len(columns)]
        if len(taken) <= 1:
            return taken[0] if taken else np.zeros(0, np.int64)
        return self._at_least(("taken", takers, made), [(columns,) for columns in taken])

    def _hold_transients_at(self, number: int, group: Group, point: int, columns: list[np.ndarray], factors: list[np.ndarray]) -> None:
        if number not in self._inside:
            bringing = Counter(tuple(k for k, (low, _) in enumerate(spans) if low == point) for spans in group.spans)
            for who, count in bringing.items():
                if who:
                    self._hold_transients(number, group, who, count, columns, factors)

    def _hold_copies(
        self, number: int, group: Group, rows: tuple[tuple[tuple[int, int], ...], ...], point: int, columns: list[np.ndarray], factors: list[np.ndarray]
    ) -> None:
        if number in self._inside:
            return
        shapes: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
        for spans in rows:
            before = tuple(k for k, (low, _) in enumerate(spans) if low <= point)
            after = tuple(k for k, (_, high) in enumerate(spans) if high >= point)
            if before and after:
                shapes[before, after] += 1
        flows = self._flows[number]
        for (before, after), count in shapes.items():
            if len(flows) == 1:
                moved = flows[0].moves
                columns.append(flows[0].columns[moved])
                factors.append(float(count) * self._bytes_of(group, flows[0].wanted[moved]))
                continue
            for target in sorted({int(t) for k in before for t in np.unique(flows[k].wanted)}):
                held = self._copy_columns(number, before, after, target)
                size = self.problem.tables.local_bytes(group.value, target)
                columns.append(held)
                factors.append(np.full(len(held), float(count * size)))

    def _bytes_of(self, group: Group, shardings: np.ndarray) -> np.ndarray:
        """Bytes of the group's value in each of these shardings."""
        ids, place = np.unique(shardings, return_inverse=True)
        return np.array([self.problem.tables.local_bytes(group.value, i) for i in ids.tolist()], dtype=float)[place]

    def _hold_transients(
        self, number: int, group: Group, who: tuple[int, ...], count: int, columns: list[np.ndarray], factors: list[np.ndarray]
    ) -> None:
        """What the reshards that these endpoints ask for at once hold on their way."""
        flows = [self._flows[number][k] for k in who]
        made, wanted = (np.concatenate([getattr(f, side) for f in flows]) for side in ("made", "wanted"))
        sources, a = np.unique(made, return_inverse=True)
        targets, b = np.unique(wanted, return_inverse=True)
        extra = self.problem.tables.transient_matrix(group.value, sources, targets)[a, b]
        chosen = np.flatnonzero((extra > 0) & (made != wanted))
        pairs, which = np.unique(a[chosen] * len(targets) + b[chosen], return_inverse=True)
        asked = np.concatenate([f.columns for f in flows])[chosen]
        alone = np.bincount(which, minlength=len(pairs))[which] == 1
        columns.append(asked[alone])
        factors.append(count * extra[chosen][alone])
        for pair in np.unique(which[~alone]).tolist():
            mine = which == pair
            key = (number, who, int(sources[pairs[pair] // len(targets)]), int(targets[pairs[pair] % len(targets)]))
            columns.append(self._at_least(("way", *key), [(f,) for f in asked[mine][:, None]]))
            factors.append(np.full(1, count * extra[chosen][mine][0]))

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
        costs = np.concatenate(self._costs) * scale
        for column, columns, seconds in self._excess:  # o[p] counts scaled seconds
            costs[column] = 1.0
            if column in self._asked:
                values = np.append(seconds * scale, -1.0)
                rows.append(Rows(np.full(1, -np.inf), np.zeros(1), np.zeros(len(values), np.int64), np.append(columns, column), values))
        return LinearProgram(costs, np.concatenate(self._uppers), np.concatenate(self._integer), join_rows(rows))

    def _memory(self, limit_bytes: float) -> Rows:
        unit = 1000.0 / limit_bytes
        row = np.concatenate([np.full(len(c), r) for r, (c, _) in enumerate(self._memory_rows.values())])
        column = np.concatenate([c for c, _ in self._memory_rows.values()])
        value = np.concatenate([v for _, v in self._memory_rows.values()]) * unit
        count = len(self._memory_rows)
        return Rows(np.full(count, -np.inf), np.full(count, 1000.0), row, column, value)

    def seconds_of(self, problem: Problem) -> np.ndarray:
        """What each column costs in a problem that differs in nothing but the seconds of choosers and how often groups are resharded."""
        seconds = np.concatenate(self._costs)
        for first, chooser in zip(self.offsets, problem.choosers):
            seconds[first : first + len(chooser.seconds)] = chooser.seconds
        for (first, last), mine, other in zip(self._columns, self.problem.groups, problem.groups):
            if mine.times != other.times:
                seconds[first:last] *= other.times / mine.times
        return seconds

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
