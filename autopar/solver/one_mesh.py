"""The best plan on one mesh: relax, choose among what looks good, prove; memory rows as they are needed.

    relax     LP without memory rows: a lower bound, and often the answer
    choose    MIP over few options (what relaxations used; one factor on all axes; every storage), with the memory rows asked for so far;
              judge every program point; where the answer breaks the limit, ask for those rows and choose again
    measure   build the program: where it holds more than the judge saw, leave that much room and choose again
    prove     LP with the rows: a higher bound, and more options to choose among; if a gap is left, the whole MIP in the time that is left

Rows are only ever added, so every bound stays valid. Invariant: an answer with status "solved" fits the limit at every point of its
program; `bound_s` holds for every plan of the search space that fits by the judge.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..graph.choice import Assignment
from ..graph.sharding import Sharding
from ..graph.strategy import REPLICATED, Strategy
from .formulate import Formulation
from .ilp import LinearProgram, solve_program
from .judge import evaluate_seconds, held_bytes
from .problem import Problem

_INTEGRAL = 1e-6
_ROWS_PER_ROUND = 4
_MAX_ROUNDS = 30
_GOOD_GAP = 5e-3  # of a large program: the whole MIP seldom closes what is left
_FEW_COLUMNS = 20_000  # up to here a proof to the last digit costs seconds
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
    work = _Work(problem, limit_bytes, time.monotonic() + time_limit_s, gap, measure)
    status = work.relax(rows=False)
    if status in ("infeasible", "unknown"):  # without rows only a program that cannot be resharded at all is infeasible
        return work.answer(status)
    while True:
        if work.bound >= cutoff_s:
            return work.answer("dominated")
        status = work.choose()
        if status != "again":
            return work.answer(status)


def few_options(form: Formulation) -> np.ndarray:
    """Which columns are worth choosing from in any case: one factor on all axes of a node that uses it; every storage."""
    allowed = np.zeros(form.num_columns, bool)
    for first, chooser in zip(form.offsets, form.problem.choosers):
        for k, option in enumerate(chooser.parts[0].options):
            allowed[first + k] = not isinstance(option, Strategy) or len(set(option.choices) - {REPLICATED}) <= 1
    return allowed


class _Work:
    """The state of one solve: the formulation and the options to choose among grow, the bound rises."""

    def __init__(
        self, problem: Problem, limit_bytes: float | None, deadline: float, gap: float, measure: Callable[[Assignment], int] | None
    ) -> None:
        self.problem, self.deadline, self.gap, self.measure = problem, deadline, gap, measure
        self.limit, self.true_limit = limit_bytes, limit_bytes
        self.form = Formulation(problem)
        fastest = sum(float(c.seconds.min()) for c in problem.choosers)
        self.scale = 1000.0 / fastest if fastest > 0 else 1e6
        self.decisions: Decisions = ()
        self.best: _Found | None = None  # the fastest that fits so far
        self.objective, self.peak, self.bound = float("inf"), 0, 0.0
        self.rounds, self.how, self.tightened = 0, "", False
        self.allowed = few_options(self.form)
        self.proof = ""  # how far the proof went for the rows so far: "", "relaxed", "all"

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    # --- what to choose among

    def _allow_used(self, values: np.ndarray) -> bool:
        """Also choose among what a relaxation used; False where that is nothing new."""
        used = values[: len(self.allowed)] > _INTEGRAL
        fresh = bool((used & ~self.allowed).any())
        self.allowed = self.allowed | used
        return fresh

    # --- the steps

    def relax(self, rows: bool) -> str:
        """Solve the LP, raise the bound, widen the choice; take the answer where it is integral."""
        program = self.form.build(self.limit if rows else None, self.scale)
        found = solve_program(program, relaxed=True, time_limit_s=self.left_s())
        if found.status == "infeasible":
            return "infeasible"
        if found.values is None:
            return "late"
        self._raise_bound(found.objective if found.status == "optimal" else found.bound)
        self._allow_used(found.values)
        if self._is_integral(found.values):
            self._take(found.values, "the relaxation was integral")
        return "relaxed"

    def choose(self) -> str:
        """One round: decisions for the rows so far, judged; "again" unless the work is done."""
        self.rounds += 1
        if not (self.rounds == 1 and self.decisions):
            status = self._choose_options()
            if status:
                return status
        if self._breaks_limit():
            return "again" if self.rounds < _MAX_ROUNDS and self.left_s() > 0 else "unknown"
        return self._prove()

    def _choose_options(self) -> str:
        program = self.form.build(self.limit, self.scale)
        every = bool(self.allowed[program.integer[: len(self.allowed)]].all())
        found = solve_program(_restrict(program, self.allowed), relaxed=False, time_limit_s=self.left_s(), relative_gap=self._fine_gap())
        if found.values is not None:
            self._take(found.values, "the whole MIP" if every else "a MIP over the options that relaxations used")
            if every:
                self._raise_bound(found.bound)
                self.proof = "all"
            return ""
        if every and found.status == "infeasible":
            return "unknown" if self.tightened else "infeasible"
        if self.left_s() <= 0:
            return "unknown"
        status = self.relax(rows=True) if self.proof == "" else "relaxed"
        if status == "infeasible":
            return "unknown" if self.tightened else "infeasible"
        if status == "late":
            return "unknown"
        if self.proof == "" and self._is_fresh():
            self.proof = "relaxed"
            return self._choose_options()
        whole = solve_program(program, relaxed=False, time_limit_s=self.left_s(), relative_gap=self._fine_gap())
        if whole.status == "infeasible":
            return "unknown" if self.tightened else "infeasible"
        if whole.values is None:
            return "unknown"
        self._raise_bound(whole.bound)
        self._take(whole.values, "the whole MIP")
        self.proof = "all"
        return ""

    def _is_fresh(self) -> bool:
        return not self.allowed.all()

    def _breaks_limit(self) -> bool:
        """Judge the decisions; where they do not fit, ask for rows or leave room."""
        held = held_bytes(self.problem, self.decisions)
        self.peak = int(held.max())
        if self.limit is not None and self.peak > self.limit:
            self._ask_rows(held)
            self.proof = ""
            return True
        if self.limit is not None and self.measure is not None:
            over = self.measure(build_assignment(self.problem, self.decisions)) - self.true_limit
            if over > 0:
                self.tightened, self.proof = True, ""
                self.limit -= over
                self._ask_rows(held)
                return True
        if self.best is None or self.objective < self.best.objective_s:
            self.best = _Found(self.decisions, self.objective, self.peak, self.how)
        return False

    def _prove(self) -> str:
        """Done where the gap is small or time is out; else a better bound, and maybe a better plan."""
        if self._gap() <= self._fine_gap() or self.left_s() <= 0 or self.tightened:
            return "solved"
        if self.proof == "":
            self.proof = "relaxed"
            late = self.relax(rows=True) == "late"
            return "again" if self._gap() > self._fine_gap() and not late else "solved"
        if self.proof == "all" or (self._gap() <= _GOOD_GAP and self.form.num_columns > _FEW_COLUMNS):
            return "solved"
        self.proof = "all"
        program = self.form.build(self.limit, self.scale)
        found = solve_program(program, relaxed=False, time_limit_s=self.left_s(), relative_gap=self._fine_gap())
        self._raise_bound(found.bound)
        if found.values is not None and found.objective / self.scale < self.best.objective_s:
            self._take(found.values, "the whole MIP")
            if self._breaks_limit():
                return "again"
        return "solved"

    def _gap(self) -> float:
        assert self.best is not None
        return (self.best.objective_s - self.bound) / self.best.objective_s if self.best.objective_s > 0 else 0.0

    def _fine_gap(self) -> float:
        return min(self.gap, 1e-6 if self.form.num_columns <= _FEW_COLUMNS else self.gap / 4)

    def _ask_rows(self, held: np.ndarray) -> None:
        """Rows for the highest points over the limit, far from one another."""
        for point in _highest(held):
            if held[point] > self.limit:
                self.form.add_memory_row(point)

    def _raise_bound(self, scaled: float) -> None:
        if not self.tightened and np.isfinite(scaled):
            self.bound = max(self.bound, scaled / self.scale)

    def _is_integral(self, values: np.ndarray) -> bool:
        return all(
            values[o : o + len(c.seconds)].max() > 1 - _INTEGRAL for o, c in zip(self.form.offsets, self.problem.choosers)
        )

    def _take(self, values: np.ndarray, how: str) -> None:
        self.decisions = tuple(
            int(np.argmax(values[o : o + len(c.seconds)])) for o, c in zip(self.form.offsets, self.problem.choosers)
        )
        self.objective, self.how = evaluate_seconds(self.problem, self.decisions), how

    def answer(self, status: str) -> MeshAnswer:
        best = self.best
        if status in ("solved", "unknown") and best is not None:
            bound = min(self.bound, best.objective_s)
            return MeshAnswer(
                "solved", best.decisions, best.objective_s, bound, best.peak_bytes,
                self.form.num_columns, self.rounds, self.form.num_memory_rows, best.how,
            )  # fmt: skip
        bound = float("inf") if status == "infeasible" else self.bound
        return MeshAnswer(status, (), float("inf"), bound, 0, self.form.num_columns, self.rounds, self.form.num_memory_rows, "")


@dataclass(frozen=True, slots=True)
class _Found:
    """Decisions that fit."""

    decisions: Decisions
    objective_s: float
    peak_bytes: int
    how: str


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


def _restrict(program: LinearProgram, some: np.ndarray) -> LinearProgram:
    """Only these of the options (columns beyond `some` are no options)."""
    allowed = np.ones(len(program.cost), bool)
    allowed[: len(some)] = some
    upper = np.where(program.integer & ~allowed, 0.0, program.upper)
    return LinearProgram(program.cost, upper, program.integer, program.rows)


def find_smallest(problem: Problem, time_limit_s: float) -> tuple[int, Decisions]:
    """(bytes at the peak, decisions) of a plan that needs little memory, seconds aside; of a small program, the least.

    Returns:
        The best found in the time given; the first is the plan that replicates everything.
    """
    form = Formulation(problem)
    small = form.num_columns <= _FEW_COLUMNS
    some = np.ones(form.num_columns, bool) if small else few_options(form)
    deadline = time.monotonic() + time_limit_s
    decisions: Decisions = tuple(0 for _ in problem.choosers)
    best, chosen = float("inf"), decisions
    unit = float(held_bytes(problem, decisions).max()) or 1.0
    for _ in range(_MAX_ROUNDS):
        held = held_bytes(problem, decisions)
        if held.max() < best and np.isfinite(evaluate_seconds(problem, decisions)):
            best, chosen = float(held.max()), decisions
        before = form.num_memory_rows
        for point in _highest(held):
            form.add_memory_row(point)
        if form.num_memory_rows == before or time.monotonic() > deadline:
            break
        program = _restrict(form.build_smallest(unit), some)
        found = solve_program(program, relaxed=False, time_limit_s=deadline - time.monotonic(), relative_gap=1e-6 if small else 1e-3)
        if found.values is None:
            break
        decisions = tuple(int(np.argmax(found.values[o : o + len(c.seconds)])) for o, c in zip(form.offsets, problem.choosers))
        if found.bound * unit / 1000 >= best * (1 - 1e-9):
            break
    return int(best) if np.isfinite(best) else 0, chosen


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
