"""The best plan on one mesh: relax, round, prove; memory rows as they are needed.

    repeat  LP relaxation; its value is a lower bound, since rows are only ever added
            if it is not integral: the MIP over the options that the LP used; if that leaves a gap: the whole MIP
            judge every program point; where the answer breaks the limit, ask for those rows and solve again
    then    build the program and measure its own peak; where inner steps of reshards break the limit, tighten it by what is over

Invariant: an answer with status "solved" fits the limit at every point of its program; `bound_s` holds for every plan of the search
space that fits by the judge.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..graph.choice import Assignment
from ..graph.sharding import Sharding
from ..graph.strategy import Strategy
from .formulate import Formulation
from .ilp import LinearProgram, Solution, solve_program
from .judge import evaluate_seconds, held_bytes
from .problem import Problem

_INTEGRAL = 1e-6
_ROWS_PER_ROUND = 4
_MAX_ROUNDS = 12
Decisions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeshAnswer:
    """What one mesh gives.

    Args:
        status: "solved", "infeasible" (proven), "dominated" (its bound is not below the cutoff), "unknown" (out of time, no plan).
        decisions: option per chooser; () where there is none.
        bound_s: no plan on this mesh is faster; infinity where none fits.
        peak_bytes: by the judge.
    """

    status: str
    decisions: Decisions
    objective_s: float
    bound_s: float
    peak_bytes: int
    num_variables: int
    num_rounds: int
    memory_rows: int
    how: str


def solve_mesh(
    problem: Problem,
    limit_bytes: float | None,
    *,
    time_limit_s: float,
    gap: float = 1e-3,
    cutoff_s: float = float("inf"),
    measure: Callable[[Assignment], int] | None = None,
) -> MeshAnswer:
    """Solve one mesh.

    Args:
        limit_bytes: per device; None: no limit.
        gap: good enough; smaller where it costs nothing.
        cutoff_s: stop as soon as the bound reaches this (a faster plan is known).
        measure: bytes at the peak of the program of an assignment; None: the judge's own figure is trusted.
    """
    work = _Work(problem, limit_bytes, time.monotonic() + time_limit_s, gap, cutoff_s)
    for _ in range(_MAX_ROUNDS):
        status = work.solve_once()
        if status:
            return work.answer(status)
        held = held_bytes(problem, work.decisions)
        work.peak = int(held.max())
        if limit_bytes is None:
            return work.answer("solved")
        if work.peak > work.limit:
            work.ask_rows(held)
            continue
        over = (measure(build_assignment(problem, work.decisions)) if measure else work.peak) - limit_bytes
        if over <= 0:
            return work.answer("solved")
        work.tighten(over, held)
    return work.answer("unknown", forget=True)


class _Work:
    """The state of one solve: the formulation grows, the bound rises."""

    def __init__(self, problem: Problem, limit_bytes: float | None, deadline: float, gap: float, cutoff_s: float) -> None:
        self.problem, self.deadline, self.gap, self.cutoff_s = problem, deadline, gap, cutoff_s
        self.limit = limit_bytes
        self.form = Formulation(problem)
        fastest = sum(float(c.seconds.min()) for c in problem.choosers)
        self.scale = 1000.0 / fastest if fastest > 0 else 1e6
        self.decisions: Decisions = ()
        self.objective = self.peak = 0
        self.bound, self.rounds, self.how, self.tightened = 0.0, 0, "", False
        if limit_bytes is not None:
            self.ask_rows(held_bytes(problem, tuple(0 for _ in problem.choosers)))

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def ask_rows(self, held: np.ndarray) -> None:
        """Rows for the highest points over the limit, far from one another."""
        height = held.astype(float).copy()
        reach = max(1, len(height) // 50)
        for _ in range(_ROWS_PER_ROUND):
            point = int(np.argmax(height))
            if height[point] <= self.limit:
                break
            self.form.add_memory_row(point)
            height[max(0, point - reach) : point + reach + 1] = -1
        self.form.add_memory_row(int(np.argmax(held)))

    def tighten(self, over: float, held: np.ndarray) -> None:
        """The program holds more than the judge saw: leave that much room."""
        self.limit -= over
        self.tightened = True
        self.form.add_memory_row(int(np.argmax(held)))

    def solve_once(self) -> str:
        """Find decisions for the rows so far; "" where there are some, else the status that ends the work."""
        self.rounds += 1
        program = self.form.build(self.limit, self.scale)
        relaxed = solve_program(program, relaxed=True, time_limit_s=self.left_s())
        if relaxed.status == "infeasible":
            return "unknown" if self.tightened else "infeasible"
        if relaxed.values is None:
            return "unknown"
        self._raise_bound(relaxed.objective if relaxed.status == "optimal" else relaxed.bound)
        if self.bound >= self.cutoff_s:
            return "dominated"
        if self._is_integral(relaxed.values):
            return self._take(relaxed.values, "the relaxation was integral")
        return self._round(program, relaxed)

    def _round(self, program: LinearProgram, relaxed: Solution) -> str:
        used = _restrict(program, relaxed.values)
        small = solve_program(used, relaxed=False, time_limit_s=self.left_s(), relative_gap=self.gap / 10)
        if small.values is not None and small.objective <= relaxed.objective * (1 + self.gap / 10) + 1e-9:
            return self._take(small.values, "a MIP over the options that the relaxation used")
        full = solve_program(program, relaxed=False, time_limit_s=self.left_s(), relative_gap=self.gap / 10, hint=small.values)
        if full.status == "infeasible":
            return "unknown" if self.tightened else "infeasible"
        self._raise_bound(full.bound)
        best = min((s for s in (small, full) if s.values is not None), key=lambda s: s.objective, default=None)
        if best is None:
            return "unknown"
        return self._take(best.values, "the whole MIP")

    def _raise_bound(self, scaled: float) -> None:
        if not self.tightened and np.isfinite(scaled):
            self.bound = max(self.bound, scaled / self.scale)

    def _is_integral(self, values: np.ndarray) -> bool:
        return all(
            values[o : o + len(c.seconds)].max() > 1 - _INTEGRAL for o, c in zip(self.form.offsets, self.problem.choosers)
        )

    def _take(self, values: np.ndarray, how: str) -> str:
        self.decisions = tuple(
            int(np.argmax(values[o : o + len(c.seconds)])) for o, c in zip(self.form.offsets, self.problem.choosers)
        )
        self.objective, self.how = evaluate_seconds(self.problem, self.decisions), how
        return ""

    def answer(self, status: str, forget: bool = False) -> MeshAnswer:
        solved = status == "solved"
        bound = float("inf") if status == "infeasible" else min(self.bound, self.objective) if solved else self.bound
        return MeshAnswer(
            status, self.decisions if solved and not forget else (), self.objective if solved else float("inf"), bound, self.peak,
            self.form.num_columns, self.rounds, len(self.form._memory_rows), self.how,
        )  # fmt: skip


def _restrict(program: LinearProgram, values: np.ndarray) -> LinearProgram:
    """Only what the relaxation used."""
    upper = np.where(program.integer & (values < _INTEGRAL), 0.0, program.upper)
    return LinearProgram(program.cost, upper, program.integer, program.rows)


def build_assignment(problem: Problem, decisions: Decisions) -> Assignment:
    """The decisions, unfolded: every node and every input of the graph."""
    storages: dict[str, Sharding] = {}
    strategies: dict[str, tuple[str, ...]] = {}
    for chooser, k in zip(problem.choosers, decisions):
        for part in chooser.parts:
            option = part.options[k]
            for name in part.members:
                if isinstance(option, Strategy):
                    strategies[name] = option.choices
                else:
                    storages[name] = option
    graph = problem.graph
    return Assignment(
        problem.mesh, tuple((n, storages[n]) for n in graph.inputs), tuple((n.name, strategies[n.name]) for n in graph.nodes)
    )


def find_smallest(problem: Problem, time_limit_s: float) -> tuple[int, Decisions]:
    """(bytes at the peak, decisions) of the plan that needs the least memory, seconds aside; (0, ()) where time ran out."""
    form = Formulation(problem)
    deadline = time.monotonic() + time_limit_s
    decisions = tuple(0 for _ in problem.choosers)
    best, chosen = None, ()
    unit = float(held_bytes(problem, decisions).max()) or 1.0
    for _ in range(_MAX_ROUNDS):
        held = held_bytes(problem, decisions)
        peak = int(held.max())
        feasible = np.isfinite(evaluate_seconds(problem, decisions))
        if feasible and (best is None or peak < best):
            best, chosen = peak, decisions
        before = len(form._memory_rows)
        for point in _highest(held):
            form.add_memory_row(point)
        if len(form._memory_rows) == before or time.monotonic() > deadline:
            break
        found = solve_program(form.build_smallest(unit), relaxed=False, time_limit_s=deadline - time.monotonic(), relative_gap=1e-4)
        if found.values is None:
            break
        decisions = tuple(int(np.argmax(found.values[o : o + len(c.seconds)])) for o, c in zip(form.offsets, problem.choosers))
    return best or 0, chosen


def _highest(held: np.ndarray) -> list[int]:
    height, points = held.astype(float).copy(), []
    reach = max(1, len(height) // 50)
    for _ in range(_ROWS_PER_ROUND):
        point = int(np.argmax(height))
        if height[point] < 0:
            break
        points.append(point)
        height[max(0, point - reach) : point + reach + 1] = -1
    return points
