"""The best plan on one mesh: glance, relax, choose among what looks good, prove; memory rows as they are needed.

    glance    the fastest plan, memory and the limits of overlap aside (`relaxation`): a lower bound, and where it fits, as a rule the answer;
              where not, of a large program some plan that fits (`lighten`)
    relax     LP without memory rows: a lower bound; with the overlap rows that its solution would break, and the memory rows that it would once it is rounded
    choose    MIP over few options (what the relaxation and the fastest plan use, kept or made again; what is nearly as good), with the memory rows asked for so far;
              judge every program point; where the answer breaks the limit, ask for those rows and choose again
    measure   build the program: where it holds more than the judge saw, leave that much room and choose again
    prove     LP with the rows: a higher bound, and more options to choose among; if a gap is left, the whole MIP in the time that is left

Rows are only ever added, so every bound stays valid. Invariant: an answer with status "solved" fits the limit at every point of its
program; `bound_s` holds for every plan of the search space that fits by the judge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from ..graph.choice import Assignment
from ..graph.liveness import is_view
from ..graph.recompute import recompute_graph, recomputed_names
from ..graph.sharding import Sharding
from ..graph.strategy import REPLICATED, Strategy
from ..graph.turns import count_microbatches
from .formulate import Formulation, count_columns
from .ilp import LinearProgram, Solution, solve_program
from .judge import evaluate_seconds, held_bytes
from .lighten import lighten
from .problem import Chooser, Problem
from .relaxation import Relaxation

_INTEGRAL = 1e-6
_ROWS_PER_ROUND = 4
_MAX_ROUNDS = 30
_MAX_ROUNDED = 6  # so many times the LP is asked for rows before a MIP is
_GOOD_GAP = 5e-3  # of a large program: the whole MIP seldom closes what is left
_FEW_COLUMNS = 20_000  # up to here a proof to the last digit costs seconds
_VERY_FEW_COLUMNS = 4_000  # with memory rows up to here
_WIDTHS = (0.0, 0.003, 0.03, float("inf"))  # how much dearer than the relaxation's what may be chosen is, as a share of the whole
_SOON_COLUMNS = 50_000  # of a program with recompute that has no more, a MIP over what is made again gives a better plan than bytes priced by a multiplier, as soon
_NUM_SHARES = 3  # a narrow MIP, and the search for a plan to begin with, may take this part of the time that is left
_LEAST_S = 3.0  # the latter gets in any case: a plan late is better than none
_SURE = 0.9  # of the limit: without recompute the judge's bytes are at least the program's, so that up to here building it tells nothing new
_SLACK = 5e-4  # of the limit: room that is left where a program holds more than the judge saw
Decisions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeshAnswer:
    """What one mesh gives.

    Args:
        status: "solved", "infeasible" (proven), "dominated" (its bound is not below the cutoff), "unknown" (out of time, no plan), "tight"
            (its fastest plan does not fit, and more was not asked for).
        decisions: option per chooser; () where there is none.
        bound_s: no plan on this mesh is faster; infinity where none fits.
        peak_bytes: by the judge.
        heavy: decisions that do not fit.
        apart_s: what `bound_s` was before the integer program; what mixtures of blocks report (`mixed`).
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
    heavy: tuple[Decisions, ...] = ()
    apart_s: float = 0.0


def solve_mesh(
    problem: Problem,
    limit_bytes: float | None,
    *,
    time_limit_s: float,
    gap: float = 1e-3,
    cutoff_s: float = float("inf"),
    measure: Callable[[Assignment], int] | None = None,
    give_up_tight: bool = False,
) -> MeshAnswer:
    """Solve one mesh.

    Args:
        limit_bytes: per device; None: no limit.
        gap: good enough; smaller where it costs nothing.
        cutoff_s: stop as soon as the bound reaches this (a faster plan is known).
        measure: bytes at the peak of the program of an assignment; None: the judge's own figure is trusted.
        give_up_tight: end with "tight" as soon as the fastest plan does not fit; its bound is that without memory.
    """
    work = _Work(problem, limit_bytes, time.monotonic() + time_limit_s, gap, measure)
    return work.answer(work.run(cutoff_s, give_up_tight))


def few_options(form: Formulation) -> np.ndarray:
    """Which columns are worth choosing from in any case: one factor on all axes of a node that uses it; every storage."""
    allowed = np.zeros(form.num_columns, bool)
    for first, chooser in zip(form.offsets, form.problem.choosers):
        for k, option in enumerate(chooser.parts[0].options):
            allowed[first + k] = not isinstance(option, Strategy) or len(set(option.choices) - {REPLICATED}) <= 1
    return allowed


class _Work:
    """The state of one solve: memory rows are only added, the bound rises, what is known not to be in a better plan is left out."""

    def __init__(
        self, problem: Problem, limit_bytes: float | None, deadline: float, gap: float, measure: Callable[[Assignment], int] | None
    ) -> None:
        self.problem, self.deadline, self.gap, self.measure = problem, deadline, gap, measure
        self.limit, self.true_limit = limit_bytes, limit_bytes
        self._form: Formulation | None = None
        fastest = sum(float(c.seconds.min()) for c in problem.choosers)
        self.scale = 1000.0 / fastest if fastest > 0 else 1e6
        self.decisions: Decisions = ()
        self.best: _Found | None = None  # the fastest that fits so far
        self.objective, self.peak, self.bound = float("inf"), 0, 0.0
        self.rounds, self.how, self.tightened = 0, "", False
        self.hides_too_much = False  # the last decisions broke an overlap row that was not asked for before
        self.relaxed: Solution | None = None  # of the rows so far
        self.heavy: tuple[Decisions, ...] = ()
        self.apart_s = 0.0

    @property
    def form(self) -> Formulation:
        """The program in rows and columns, made when it is needed."""
        if self._form is None:
            self._form = Formulation(self.problem)
        return self._form

    @property
    def num_variables(self) -> int:
        """Columns of the program, about where it was not needed."""
        return count_columns(self.problem) if self._form is None else self._form.num_columns

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def run(self, cutoff_s: float, give_up_tight: bool) -> str:
        """The status of the answer."""
        if status := self.glance(cutoff_s, give_up_tight):
            return status
        while self.rounds < _MAX_ROUNDS:
            self.rounds += 1
            status = self.relax() or ("dominated" if self.bound >= cutoff_s else "") or self.choose()
            if status:
                return status
            if not self._fits():
                if give_up_tight:
                    return "tight"
                if self.left_s() <= 0:
                    break
                continue
            if self.hides_too_much and self.left_s() > 0:
                continue
            if self._gap() > self._fine_gap() and self.left_s() > 0 and not self.tightened and self.prove():
                continue
            return "solved"
        return "unknown"

    # --- the steps: each gives the status with which the work ends, or ""

    def glance(self, cutoff_s: float, give_up_tight: bool) -> str:
        """The fastest plan without the program: nobody needs that where this plan fits."""
        relaxation = Relaxation(self.problem, self.left_s() / _NUM_SHARES)
        bound, decisions = relaxation.find()
        self._raise_bound(bound * self.scale)
        if self.bound >= cutoff_s:
            return "dominated"
        objective = evaluate_seconds(self.problem, decisions) if decisions is not None else inf
        if decisions is None or objective == inf:
            return ""
        self.decisions, self.objective, self.how = tuple(decisions), objective, "the fastest plan"
        held = held_bytes(self.problem, self.decisions)
        if self.limit is not None and held.max() > self.limit:
            if give_up_tight:  # the bound that is asked for knows nothing of memory
                return "tight" if objective <= self.bound * (1 + _INTEGRAL) else ""
            if self._has_twins() and self.num_variables <= _SOON_COLUMNS:
                self.heavy, self.apart_s = (self.decisions,), self.bound
                self._ask_rows(held)
                return ""
            self._lighten(relaxation, cutoff_s)
            return "dominated" if self.bound >= cutoff_s else ""
        return "solved" if self._fits() and self._gap() <= self._fine_gap() else ""

    def _lighten(self, relaxation: Relaxation, cutoff_s: float) -> None:
        """A plan that fits, to begin with, and a bound that knows of memory, up to the cutoff."""
        assert self.limit is not None
        until = time.monotonic() + max(_LEAST_S, self.left_s() / _NUM_SHARES)

        def has_time() -> bool:
            left = until - time.monotonic()
            relaxation.limit_time(left)
            return left > 0

        found = lighten(self.problem, relaxation, self.decisions, self.limit, self._is_within, has_time, cutoff_s)
        self._raise_bound(found.bound_s * self.scale)
        self.heavy, self.apart_s = found.heavy, self.bound
        if found.decisions is not None:
            peak = int(held_bytes(self.problem, found.decisions).max())
            self.best = _Found(found.decisions, evaluate_seconds(self.problem, found.decisions), peak, "bytes priced by a multiplier")

    def _is_within(self, decisions: Decisions) -> bool:
        """The program of decisions that fit by the judge does, too."""
        return self.measure is None or self.measure(build_assignment(self.problem, decisions)) <= self.true_limit

    def relax(self) -> str:
        """Solve the LP with the rows so far, and with those that its solution breaks; raise the bound."""
        for turn in range(_MAX_ROUNDS):
            found = solve_program(self._program(), relaxed=True, time_limit_s=self.left_s())
            if found.status == "infeasible":
                return "unknown" if self.tightened else "infeasible"
            if found.values is None:
                return "unknown"
            self._raise_bound(found.objective if found.status == "optimal" else found.bound)
            self.relaxed = found
            hides_too_much = self.form.ask_overlap(found.values)
            if not (hides_too_much or (turn < _MAX_ROUNDED and self._ask_rows_of(found.values))):
                return ""
        return ""

    def _ask_rows_of(self, values: np.ndarray) -> bool:
        """Ask for the memory rows that the LP's solution breaks once it is rounded: another LP takes less time than the MIP that would ask for them. True where some are new."""
        if self.limit is None or self._is_integral(values):
            return False
        before, held = self.form.num_memory_rows, held_bytes(self.problem, self._round(values))
        self._ask_rows(held)
        return self.form.num_memory_rows > before

    def choose(self) -> str:
        """Decisions for the rows so far: those of the LP where it is integral, else of a MIP over what is nearly as good as what it uses."""
        assert self.relaxed is not None and self.relaxed.values is not None
        if self._is_integral(self.relaxed.values):
            self._take(self.relaxed.values, "the relaxation was integral")
            return ""
        program = self._program()
        for allowed, how in self._list_menus():
            every = bool(allowed.all())
            share = self.left_s() / (1 if every else _NUM_SHARES)
            found = solve_program(_restrict(program, allowed), relaxed=False, time_limit_s=share, relative_gap=self._fine_gap())
            if found.values is not None:
                if every:
                    self._raise_bound(found.bound)
                self._take(found.values, "the whole MIP" if every else how)
                return ""
            if every and found.status == "infeasible":
                return "unknown" if self.tightened else "infeasible"
            if self.left_s() <= 0:
                return "unknown"
        return "unknown"

    def _list_menus(self) -> Iterator[tuple[np.ndarray, str]]:
        """Columns to choose among, narrow first, and how that is told."""
        assert self.relaxed is not None and self.relaxed.values is not None
        if self.form.num_memory_rows and self._has_twins():
            yield self._with_twins(self.relaxed.values > _INTEGRAL), "a MIP over what is made again"
        for width in _WIDTHS:
            yield self._within(width * max(self.relaxed.objective, 0.0)), f"a MIP over what is within {width:.1%} of the relaxation"

    def prove(self) -> bool:
        """Close the gap: no better plan uses an option whose reduced cost exceeds what is left to gain. True where it gave other decisions."""
        assert self.best is not None and self.relaxed is not None
        allowed = self._within(self.best.objective_s * self.scale - self.relaxed.objective)
        if self.form.num_columns > _FEW_COLUMNS and self._gap() <= _GOOD_GAP:
            return False
        found = solve_program(_restrict(self._program(), allowed), relaxed=False, time_limit_s=self.left_s(), relative_gap=self._fine_gap())
        known = self.best.objective_s * self.scale
        self._raise_bound(min(known, found.bound) if found.status != "infeasible" else known)
        if found.values is None or found.objective >= known * (1 - 1e-9):
            return False
        self._take(found.values, "a MIP over all that may be better")
        if not self._fits() or self.hides_too_much:
            return self.left_s() > 0
        return False

    def _program(self) -> LinearProgram:
        return self.form.build(self.limit if self.form.num_memory_rows else None, self.scale)

    def _within(self, room: float) -> np.ndarray:
        """Columns that the relaxation uses, or would use if they cost this much less."""
        assert self.relaxed is not None and self.relaxed.values is not None
        used = self.relaxed.values > _INTEGRAL
        if self.relaxed.reduced is None:
            return np.ones(len(used), bool)
        return used | (self.relaxed.reduced <= room + 1e-9 * abs(self.relaxed.objective))

    def _has_twins(self) -> bool:
        """Something may be kept or made again."""
        return any(_has_twins(chooser) for chooser in self.problem.choosers)

    def _with_twins(self, some: np.ndarray) -> np.ndarray:
        """These columns and those of the fastest plan, each option kept and made again. What is made again fills the memory; how all is split changes little beside it."""
        found = some.copy()
        for decisions in self.heavy[:1]:
            found[np.array(self.form.offsets) + np.array(decisions)] = True
        for first, chooser in zip(self.form.offsets, self.problem.choosers):
            if _has_twins(chooser):
                pair = found[first : first + len(chooser.seconds)].reshape(2, -1)
                pair |= pair[::-1].copy()
        return found

    def _fits(self) -> bool:
        """Judge the decisions; where they do not fit, ask for rows or leave room."""
        held = held_bytes(self.problem, self.decisions)
        self.peak = int(held.max())
        if self.limit is not None and self.peak > self.limit:
            self._ask_rows(held)
            return False
        if self.limit is not None and self.measure is not None and (self.problem.can_recompute or self.peak > _SURE * self.limit):
            over = self.measure(build_assignment(self.problem, self.decisions)) - self.true_limit
            if over > 0:
                self.tightened = True
                self.limit -= over + _SLACK * self.true_limit
                self._ask_rows(held)
                return False
        if self.best is None or self.objective < self.best.objective_s:
            self.best = _Found(self.decisions, self.objective, self.peak, self.how)
        return True

    def _gap(self) -> float:
        assert self.best is not None
        return (self.best.objective_s - self.bound) / self.best.objective_s if self.best.objective_s > 0 else 0.0

    def _fine_gap(self) -> float:
        few = _VERY_FEW_COLUMNS if self._form is not None and self._form.num_memory_rows else _FEW_COLUMNS
        return min(self.gap, 1e-6 if self.num_variables <= few else self.gap / 4)

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
        self.decisions = self._round(values)
        self.objective, self.how = evaluate_seconds(self.problem, self.decisions), how
        self.hides_too_much = self.form.ask_overlap(values)

    def _round(self, values: np.ndarray) -> Decisions:
        """Of each chooser the option with the largest share."""
        return tuple(int(np.argmax(values[o : o + len(c.seconds)])) for o, c in zip(self.form.offsets, self.problem.choosers))

    def answer(self, status: str) -> MeshAnswer:
        best, rows = self.best, self._form.num_memory_rows if self._form is not None else 0
        if status in ("solved", "unknown", "infeasible") and best is not None:
            bound = min(self.bound, best.objective_s)
            return MeshAnswer(
                "solved", best.decisions, best.objective_s, bound, best.peak_bytes,
                self.num_variables, self.rounds, rows, best.how, self.heavy, min(self.apart_s, best.objective_s),
            )  # fmt: skip
        bound = float("inf") if status == "infeasible" else self.bound
        heavy = self.heavy or ((self.decisions,) if status == "tight" else ())
        return MeshAnswer(status, (), float("inf"), bound, 0, self.num_variables, self.rounds, rows, "", heavy)


@dataclass(frozen=True, slots=True)
class _Found:
    """Decisions that fit."""

    decisions: Decisions
    objective_s: float
    peak_bytes: int
    how: str


def build_assignment(problem: Problem, decisions: Decisions) -> Assignment:
    """The decisions, unfolded: every node and every input of the graph, and the copies of what is recomputed, which decide as it does."""
    storages: dict[str, Sharding] = {}
    strategies: dict[str, tuple[str, ...]] = {}
    again: list[str] = []
    for chooser, k in zip(problem.choosers, decisions):
        for part in chooser.parts:
            option = part.options[k]
            if part.again and k >= chooser.num_kept and not is_view(problem.graph.nodes[part.node].op):
                again += part.members
            for name in part.members:
                if isinstance(option, Strategy):
                    strategies[name] = option.choices
                else:
                    storages[name] = option
    found = recompute_graph(problem.graph, again)
    return Assignment(
        problem.mesh,
        tuple((n, storages[n]) for n in problem.graph.inputs),
        tuple((n.name, strategies[found.original.get(n.name, n.name)]) for n in found.graph.nodes),
        recomputed_names(found),
        count_microbatches(problem.graph),
    )


def _has_twins(chooser: Chooser) -> bool:
    """Each of its options is there twice, kept and made again."""
    return 2 * chooser.num_kept == len(chooser.seconds)


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
