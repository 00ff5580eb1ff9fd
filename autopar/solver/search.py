"""The search over mesh shapes: each is bounded cheaply, the most promising is solved first, the others only if they can still win.

In: a graph, its fold, meshes, prices, a memory limit. Out: the best assignment and its certificate; `MemoryShortage` where nothing fits.
Invariant: the certificate's bound is the least of the bounds of all meshes, so it holds for the whole search space, which the
certificate names. Equal inputs give equal answers, as long as no time limit strikes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log, prod

from ..collector import rare_collections
from ..cost.memory import Memory, estimate_memory
from ..errors import ConstraintError
from ..graph.choice import Assignment
from ..graph.cuts import CutTable
from ..graph.graph import Graph
from ..graph.mesh import Mesh, print_mesh
from ..graph.partition import partition
from ..graph.plan import Certificate, Pruned
from ..graph.recompute import recompute_all
from ..graph.repeats import Fold, find_repeats
from ..graph.rule import Signature, Site
from .build import build_problem
from .formulate import count_columns
from .infeasible import MemoryShortage, describe_nearest
from .judge import evaluate_seconds
from .mixed import mix_answer, widen_answer
from .one_mesh import Decisions, MeshAnswer, build_assignment, find_smallest, solve_mesh
from .prices import Prices
from .problem import Problem
from .skeleton import Skeleton
from .steer import Steer, describe_space, names_some

_GAP = 1e-3
_NOT_TRIED = MeshAnswer("unknown", (), inf, 0.0, 0, 0, 0, 0, "")
_LEAST_S = 10.0  # for the plan of least memory of a mesh, whatever the time limit
_THICK = 3  # the part of the time that is left which a mesh gets as long as there is no plan
_LEAST_MESHES = 2  # that are asked for it
_MOST_COLUMNS = 400_000
_AXIS_GROWTH = 8  # a third axis multiplied the columns of GPT-2 by 22; small models grow less


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer: what was decided, how sure we are, what each mesh gave (in the order of solving). `assignment`: None where nothing beats the cutoff."""

    assignment: Assignment | None
    certificate: Certificate
    memory: Memory | None
    meshes: tuple[tuple[Mesh, MeshAnswer], ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, the same for every mesh.

    Args:
        sites, signatures, cuts: of the graph (`cuts.resolve_all`, `cuts.find_cuts`).
        limit_bytes: per device; None: no limit.
        reserve_bytes: of the limit that tensors cannot have.
        steer: what users demand of the plan; the meshes are then those of `role_meshes.label_meshes`.
    """

    graph: Graph
    sites: tuple[Site, ...]
    signatures: tuple[Signature, ...]
    cuts: CutTable
    fold: Fold
    limit_bytes: int | None
    reserve_bytes: int = 0
    steer: Steer | None = None


@rare_collections()
def search(
    question: Question,
    meshes: Sequence[Mesh],
    prices_for_mesh: Callable[[Mesh], Prices],
    *,
    time_limit_s: float = 60.0,
    cutoff_s: float = inf,
    ask_others: Callable[[], float] | None = None,
    bound_mesh: Callable[[Mesh, int, float], tuple[float, int]] | None = None,
    report: Callable[[str], None] | None = None,
) -> SearchResult:
    """Find the fastest plan that fits.

    Args:
        prices_for_mesh: the cost model.
        cutoff_s: of a plan that is known; only what beats it is of interest.
        ask_others: called before time is spent on meshes whose fastest plan does not fit, and where no mesh gave a plan: the seconds of a plan that somebody
            else has, infinity where there is none.
        bound_mesh: told a mesh, how many columns may be solved and seconds that are enough: seconds that no plan there beats, and columns. Asked where a plan is
            known, before the tables of a mesh are built.
        report: told what is going on, one line each.

    Raises:
        MemoryShortage: nothing fits (an `InfeasibleError`).
    """
    return _Search(question, prices_for_mesh, time_limit_s, report or _silent, cutoff_s, bound_mesh).run(meshes, ask_others)


def _silent(line: str) -> None:
    """Tell nobody."""


@dataclass(slots=True)
class _Try:
    """A mesh on its way through the search: `problem` is without recompute (or with all of it, if that is demanded)."""

    problem: Problem
    bound_s: float
    answer: MeshAnswer = _NOT_TRIED
    full: MeshAnswer | None = None
    full_problem: Problem | None = None

    def close(self, status: str, how: str) -> None:
        """No plan of this mesh is wanted."""
        self.answer = MeshAnswer(status, (), inf, self.bound_s, 0, self.answer.num_variables, 0, 0, how)


def _countdown(tries: Sequence[_Try]) -> Iterator[tuple[int, _Try]]:
    """Each with how many are left, itself included."""
    return zip(range(len(tries), 0, -1), tries)


class _Search:
    """One search; lives for one call. First every mesh without memory limits (few programs need more), then the tight ones, best bound first."""

    def __init__(self, question: Question, prices_for_mesh: Callable[[Mesh], Prices], time_limit_s: float, report: Callable[[str], None], cutoff_s: float, bound_mesh: Callable[[Mesh, int, float], tuple[float, int]] | None) -> None:
        self.cutoff_s, self.bound_mesh = cutoff_s, bound_mesh
        self.question, self.prices_for_mesh, self.report = question, prices_for_mesh, report
        self.started = time.monotonic()
        self.time_limit_s = time_limit_s
        self.deadline = self.started + time_limit_s
        self.build_s = self.solve_s = 0.0
        self.best: tuple[float, Problem, Decisions] | None = None
        self.is_mixed = False  # its blocks decide in two ways
        self.answers: list[tuple[Mesh, MeshAnswer]] = []
        self.pruned: dict[Pruned, None] = {}
        self.skeletons: list[Skeleton] = []  # with recompute or without
        said = question.steer.constraints.recompute if question.steer is not None else None
        self.recompute = said or "free"

    def run(self, meshes: Sequence[Mesh], ask_others: Callable[[], float] | None) -> SearchResult:
        problems = self.drop_large(self.build_some(meshes))
        tries = [_Try(problem, least_seconds(problem)) for problem in problems]
        tries.sort(key=lambda t: (_class_of(t.bound_s), count_columns(t.problem)))
        for left, each in _countdown(tries):
            self.relax(each, left if self.known_s() < inf else min(left, _THICK))
        tight = sorted((each for each in tries if each.answer.status == "tight"), key=lambda t: t.bound_s)
        if (tight or self.best is None) and ask_others is not None:
            self.cutoff_s = min(self.cutoff_s, ask_others())
        # as long as there is no plan at all, time goes to a few meshes in thick slices: thin ones would be too thin for any
        if self.recompute == "free":
            for each in tight:
                self.make_all_again(each)
        for left, each in _countdown(tight):
            self.finish(each, left if self.best is not None else min(left, _THICK))
        self.answers += [(each.problem.mesh, each.answer) for each in tries]
        for each in tries:
            self.note_pruned(each)
        if self.best is None and self.cutoff_s < inf:
            return SearchResult(None, self.certify(self.cutoff_s), None, tuple(self.answers))
        if self.best is None:
            self.fall_back([each.problem for each in sorted(tries, key=lambda t: t.bound_s)])
        assert self.best is not None
        objective, problem, decisions = self.best
        assignment = build_assignment(problem, decisions)
        return SearchResult(assignment, self.certify(objective), self.measure(assignment), tuple(self.answers))

    def build_some(self, meshes: Sequence[Mesh]) -> list[Problem]:
        """Tables of as many meshes as half of the time allows, and name the others: few axes first, of those the ones that
        keep most ranks of an axis inside of a host, then the most even."""
        problems: list[Problem] = []
        refused: ConstraintError | None = None
        few: dict[int, int] = {}  # number of axes -> columns of the smallest program so far
        for mesh in sorted(meshes, key=_promise):
            name, axes = f"mesh {print_mesh(mesh)}", len(mesh.axes)
            if (problems or self.cutoff_s < inf) and time.monotonic() - self.started > self.time_limit_s / 2:
                self.pruned[Pruned(name, "time for tables was up; not part of the search space, --time-limit gives more")] = None
            elif few.get(axes - 1, 0) * _AXIS_GROWTH > _MOST_COLUMNS:
                why = f"one axis less already has {few[axes - 1]:,} variables, and another multiplies them; not part of the search space"
                self.pruned[Pruned(name, why)] = None
            elif not self.is_ruled_out(mesh, few):
                try:
                    problems.append(self.build(mesh))
                except ConstraintError as error:  # of this mesh; another may obey
                    self.pruned[Pruned(name, str(error))] = None
                    refused = refused or error
                    continue
                count = count_columns(problems[-1])
                few[axes] = min(few.get(axes, count), count)
        if refused is not None and not problems:
            raise refused
        return problems

    def is_ruled_out(self, mesh: Mesh, few: dict[int, int]) -> bool:
        """By its bound, before anything of it is built. Its columns are noted in `few`."""
        if self.bound_mesh is None or self.cutoff_s == inf:
            return False
        bound, count = self.bound_mesh(mesh, _MOST_COLUMNS, self.cutoff_s)
        if bound < self.cutoff_s * (1 - _GAP):
            return False
        few[len(mesh.axes)] = min(few.get(len(mesh.axes), count), count)
        self.answers.append((mesh, MeshAnswer("dominated", (), inf, bound, 0, 0, 0, 0, "relaxation")))
        self.pruned[Pruned(f"mesh {print_mesh(mesh)}", f"its relaxation takes {min(bound, self.cutoff_s):.4g} s or more, the best plan {self.cutoff_s:.4g} s")] = None
        return True

    def drop_large(self, problems: list[Problem]) -> list[Problem]:
        """Leave out the meshes whose program no solver closes; the smallest program stays in any case."""
        counts = [count_columns(problem) for problem in problems] or [0]
        kept = []
        for problem, count in zip(problems, counts):
            if count <= max(_MOST_COLUMNS, min(counts)):
                kept.append(problem)
            else:
                why = f"its program has {count:,} variables, more than the {_MOST_COLUMNS:,} that are solved; not part of the search space"
                self.pruned[Pruned(f"mesh {print_mesh(problem.mesh)}", why)] = None
        return kept

    def build(self, mesh: Mesh, recompute: str | None = None, fold: Fold | None = None) -> Problem:
        began = time.monotonic()
        q = self.question
        prices, said = self.prices_for_mesh(mesh), recompute or ("none" if self.recompute == "free" else self.recompute)
        problem = build_problem(
            q.graph, q.sites, q.signatures, q.cuts, fold or q.fold, mesh, prices, steer=q.steer, recompute=said, skeletons=self.skeletons if fold is None else []
        )
        for pruned in problem.pruned:
            self.pruned[Pruned(f"{pruned.what} on mesh {print_mesh(mesh)}", pruned.why)] = None
        self.build_s += time.monotonic() - began
        return problem

    def measure(self, assignment: Assignment) -> Memory:
        q = self.question
        whole = recompute_all(q.graph, q.sites, q.signatures, q.cuts, assignment.again)
        return estimate_memory(partition(*whole, assignment), q.reserve_bytes)

    def free_bytes(self) -> int | None:
        q = self.question
        return None if q.limit_bytes is None else q.limit_bytes - q.reserve_bytes

    def solve(self, each: _Try, problem: Problem, parts: float, give_up_tight: bool) -> MeshAnswer:
        """Solve a program of a mesh in one of `parts` of the time that is left, and take its plan if it is the best so far."""
        began = time.monotonic()
        room = self.free_bytes()
        best = self.known_s()
        if room is not None and room <= 0:
            answer = MeshAnswer("infeasible", (), inf, inf, 0, 0, 0, 0, "the reserve is all there is")
        else:
            answer = solve_mesh(
                problem, room, time_limit_s=max(0.5, (self.deadline - began) / parts), gap=_GAP, cutoff_s=best, give_up_tight=give_up_tight,
                measure=lambda a: self.measure(a).peak_bytes - self.question.reserve_bytes,
            )  # fmt: skip
        self.solve_s += time.monotonic() - began
        at_least = max(answer.bound_s, each.bound_s)
        told = f"{answer.objective_s:.4g} s, at least {at_least:.4g} s ({answer.how})" if answer.status == "solved" else _TOLD[answer.status]
        bound = f"; at least {at_least:.4g} s" if answer.status != "solved" and at_least < inf else ""
        self.report(f"mesh {print_mesh(problem.mesh)}{_FORM[problem.can_recompute]}: {told}{bound}")
        if answer.status == "solved" and answer.objective_s < best:
            self.best, self.is_mixed = (answer.objective_s, problem, answer.decisions), False
        return answer

    def known_s(self) -> float:
        """Seconds of the best plan that anybody has."""
        return min(self.best[0] if self.best else inf, self.cutoff_s)

    def is_beaten(self, each: _Try) -> bool:
        """Its bound says that it cannot win any more."""
        return each.bound_s >= self.known_s() * (1 - _GAP)

    def relax(self, each: _Try, meshes_left: int) -> None:
        """The fastest plan, memory aside: the answer where it fits, else a bound."""
        if self.is_beaten(each):
            each.close("dominated", "roofline")
            return
        answer = self.solve(each, each.problem, meshes_left, True)
        each.bound_s = max(each.bound_s, answer.bound_s)
        each.answer = replace(answer, bound_s=each.bound_s)

    def make_all_again(self, each: _Try) -> None:
        """The fastest plan that recomputes all it may: soon found, and often one that fits. Where a plan is known it would bound nothing."""
        if self.known_s() < inf or time.monotonic() > self.deadline:
            return
        full = self.build(each.problem.mesh, "full")
        if full.can_recompute:
            each.full, each.full_problem = self.solve(each, full, 2, False), full  # the other half of the time is for `finish`

    def finish(self, each: _Try, meshes_left: int) -> None:
        """The best plan of a mesh whose fastest does not fit, with recompute where that is free, and its bound."""
        if self.is_beaten(each):
            each.close("dominated", "relaxation")
            return
        found = MeshAnswer("unknown", (), inf, each.bound_s, 0, 0, 0, 0, "")
        if time.monotonic() < self.deadline:
            wide = self.widen(each.problem) if self.recompute == "free" else each.problem
            found = self.solve(each, wide, meshes_left, False)
            if found.status == "unknown" and self.best is None and wide is not each.problem:
                kept = self.solve(each, each.problem, meshes_left, False)
                found, wide = (replace(kept, bound_s=min(found.bound_s, kept.bound_s)), each.problem) if kept.status == "solved" else (found, wide)
            if each.full is not None and each.full_problem is not None and each.full.objective_s < found.objective_s and wide is not each.problem:
                found = widen_answer(each.full_problem, wide, replace(each.full, bound_s=max(each.bound_s, found.bound_s)), each.answer.heavy)
            found = self.mix(each, wide, found)
        each.bound_s = max(each.bound_s, found.bound_s)
        if each.full is not None and each.full.status == "solved" and each.full.objective_s < found.objective_s:
            found = each.full
        each.answer = replace(found, bound_s=min(each.bound_s, found.objective_s))

    def mix(self, each: _Try, problem: Problem, answer: MeshAnswer) -> MeshAnswer:
        """The answer with blocks of two kinds, where that is faster; taken if it is the best so far."""
        q, room = self.question, self.free_bytes()
        if answer.status != "solved" or not answer.heavy or room is None or (q.steer is not None and names_some(q.steer.constraints)):
            return answer
        form = "free" if problem is not each.problem else None
        mixed, found = mix_answer(
            problem, answer, find_repeats(q.graph), lambda fold: self.build(problem.mesh, form, fold), room,
            lambda a: self.measure(a).peak_bytes - q.reserve_bytes, self.deadline,
        )  # fmt: skip
        if found.objective_s < self.known_s():
            self.best, self.is_mixed = (found.objective_s, mixed, found.decisions), True
            self.report(f"mesh {print_mesh(problem.mesh)}{_FORM[problem.can_recompute]}: {found.objective_s:.4g} s ({found.how})")
        return found

    def note_pruned(self, each: _Try) -> None:
        """What became of a mesh that gave no plan, for the certificate."""
        name, best = f"mesh {print_mesh(each.problem.mesh)}", self.known_s()
        if each.answer.status == "dominated":
            what = "compute alone" if each.answer.how == "roofline" else "relaxation"
            self.pruned[Pruned(name, f"its {what} takes {each.bound_s:.4g} s, the best plan {best:.4g} s")] = None
        if each.answer.status == "infeasible":
            self.pruned[Pruned(name, "no plan fits the memory")] = None

    def widen(self, problem: Problem) -> Problem:
        """The same mesh with recompute; the problem itself where nothing may be recomputed or the program becomes too large."""
        wide = self.build(problem.mesh, "free")
        count = count_columns(wide)
        if wide.can_recompute and count <= _MOST_COLUMNS:
            return wide
        if wide.can_recompute:
            why = f"its program has {count:,} variables, more than the {_MOST_COLUMNS:,} that are solved; not part of the search space"
            self.pruned[Pruned(f"recompute on mesh {print_mesh(problem.mesh)}", why)] = None
        return problem

    def fall_back(self, problems: list[Problem]) -> None:
        """No mesh gave a plan: the plan of least memory is one if it fits; else it says what is missing."""
        proven = all(answer.status == "infeasible" for _, answer in self.answers)
        smallest: tuple[Memory, Assignment] | None = None
        for number, problem in enumerate(problems):
            room = self.deadline - time.monotonic()
            if number >= _LEAST_MESHES and room <= 0:
                break
            if self.recompute == "free":
                full = self.build(problem.mesh, "full")
                problem = full if full.can_recompute else problem
            _, decisions = find_smallest(problem, max(_LEAST_S, room / 2))
            assignment = build_assignment(problem, decisions)
            memory = self.measure(assignment)
            seconds = evaluate_seconds(problem, decisions)
            fits = self.question.limit_bytes is None or memory.peak_bytes <= self.question.limit_bytes
            if fits and (self.best is None or seconds < self.best[0]):
                self.best = seconds, problem, decisions
            if smallest is None or memory.peak_bytes < smallest[0].peak_bytes:
                smallest = memory, assignment
        if self.best is None:
            assert smallest is not None and self.question.limit_bytes is not None
            nearest = describe_nearest(smallest[0].peak_bytes)
            raise MemoryShortage(self.question.limit_bytes, smallest[0], smallest[1], proven, nearest)

    def certify(self, objective: float) -> Certificate:
        bound = min([objective, *(answer.bound_s for _, answer in self.answers)])
        count = max((answer.num_variables for _, answer in self.answers), default=0)
        wall = time.monotonic() - self.started
        gap = (objective - bound) / objective if objective > 0 else 0.0
        phases = (("tables_s", self.build_s), ("ilp_s", self.solve_s))
        return Certificate(objective, bound, gap, wall, phases, count, self._space(), tuple(self.pruned))

    def _space(self) -> str:
        classes = len(set(self.question.fold.node_class))
        total = len(self.question.graph.nodes)
        folded = f", equal blocks deciding alike ({classes} of {total} nodes decide)" if classes < total else ""
        folded += ", but for those of the plan, which decide in two ways" if folded and self.is_mixed else ""
        demanded = "" if self.question.steer is None else describe_space(self.question.steer.constraints)
        shapes = "; ".join(print_mesh(mesh) for mesh, _ in self.answers)
        return (
            f"every strategy that the rules allow on each of the meshes {shapes}, and every storage of states that a reader wants or that "
            f"cuts dims into chunks{folded}{demanded}; {_SPACE[self.recompute]}; without what is listed as pruned; overlap as the cost model prices it"
        )


_FORM = {False: "", True: " with recompute"}
_TOLD = {
    "tight": "the fastest plan does not fit",
    "infeasible": "nothing fits",
    "dominated": "cannot beat the best plan",
    "unknown": "time was up",
}
_SPACE = {
    "none": "nothing is recomputed",
    "full": "all that may be recomputed is",
    "selective": "attention cores are recomputed and nothing else",
    "free": "values of a block kept or made again as they were made, elementwise nodes in a row together",
}


def _promise(mesh: Mesh) -> tuple[int, int, int]:
    inside = prod(a.size for a in mesh.axes if a.link == "inside")
    return len(mesh.axes), -inside, max((a.size for a in mesh.axes), default=1)


def _class_of(bound_s: float) -> int:
    """Bounds that differ by 2 % or less count as equal: of such meshes the smallest program comes first, and may settle the others."""
    return round(log(bound_s) / 0.02) if bound_s > 0 else -(10**9)


def least_seconds(problem: Problem) -> float:
    """No plan is faster: every node in its fastest strategy, no communication."""
    return sum(float(c.seconds.min()) for c in problem.choosers)
