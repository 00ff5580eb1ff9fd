"""Blocks of two kinds: where equal blocks that decide alike leave memory unused, some of them decide as a faster plan does that does not fit.

In: decisions that fit and faster ones that do not, of one problem whose equal blocks decide alike. Out: the first blocks decide as the former, the last as
the latter (their activations are held shortest), as many of these as fit; what is in no block decides as the former. Each try is a problem of its own,
judged and built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph.choice import Assignment
from ..graph.graph import Graph
from ..graph.repeats import Fold, Repeat, fold_graph, relative_name
from .judge import evaluate_seconds, held_bytes
from .one_mesh import Decisions, MeshAnswer, build_assignment
from .problem import Chooser, Problem

_MOST_TRIES = 4
TWO_KINDS = "blocks of two kinds"  # how an answer was found
_WORTH = 0.005  # what a mixture may gain, where it is tried


@dataclass(frozen=True, slots=True)
class Mixed:
    """Decisions that fit, of a problem in which the blocks of two kinds decide apart."""

    problem: Problem
    decisions: Decisions
    seconds: float
    peak_bytes: int


def mix_blocks(
    problem: Problem, light: Decisions, heavy: Sequence[Decisions], repeats: Sequence[Repeat], build: Callable[[Fold], Problem], limit_bytes: float,
    fits: Callable[[Problem, Decisions], bool], has_time: Callable[[], bool],
) -> Mixed | None:
    """The fastest mixture that was found; None where none fits that is faster than `light`.

    Args:
        light: decisions that fit.
        heavy: some that do not; those are taken that promise most.
        repeats: equal blocks of its graph.
        build: the problem of another fold, with the same menus.
        fits: True of decisions that fit by the program that is built.
    """
    family, numbers = _longest_family(repeats)
    low, high = 0, len(numbers)  # so many heavy blocks fit, and do not
    seconds, few = evaluate_seconds(problem, light), float(held_bytes(problem, light).max())
    rows = [(evaluate_seconds(problem, row), float(held_bytes(problem, row).max()), row) for row in heavy]
    shares = [((limit_bytes - few) / (many - few), took, row) for took, many, row in rows if many > limit_bytes and took < seconds]
    share, took, chosen = min(shares, key=lambda row: row[0] * (row[1] - seconds), default=(0.0, seconds, light))
    if high < 2 or share * (seconds - took) <= _WORTH * seconds:
        return None
    count, best = int(high * share), None
    for _ in range(_MOST_TRIES):
        count = min(max(count, low + 1), high - 1)
        if count <= low or not has_time():
            break
        found = _try(problem, light, chosen, repeats, family, numbers[-count], build)
        if found is None:
            break
        if found.peak_bytes <= limit_bytes and fits(found.problem, found.decisions):
            low, best = count, found if best is None or found.seconds < best.seconds else best
            count += 1
        else:
            high = count
            count -= 1
    return best if best is not None and best.seconds < seconds else None


def _longest_family(repeats: Sequence[Repeat]) -> tuple[str, tuple[int, ...]]:
    """(the container with the most equal blocks, their numbers)."""
    longest = max(repeats, key=lambda r: len(r.blocks), default=None)
    return ("", ()) if longest is None else (longest.family, tuple(b.index for b in longest.blocks))


def _try(
    problem: Problem, light: Decisions, heavy: Decisions, repeats: Sequence[Repeat], family: str, first: int, build: Callable[[Fold], Problem]
) -> Mixed | None:
    """Heavy blocks from number `first` on; None where the choosers of the two problems do not correspond."""
    graph = problem.graph
    mixed = build(fold_graph(graph, _part(repeats, family, first)))
    names = _names_of(graph, repeats, family, first)
    decisions = _carry(problem, mixed, light, heavy, names)
    if decisions is None:
        return None
    seconds = evaluate_seconds(mixed, decisions)
    return Mixed(mixed, decisions, seconds, int(held_bytes(mixed, decisions).max())) if np.isfinite(seconds) else None


def _part(repeats: Sequence[Repeat], family: str, first: int) -> tuple[Repeat, ...]:
    """The blocks before a number of a container, and those from it on, as repeats of their own."""
    found = []
    for repeat in repeats:
        if repeat.family != family:
            found.append(repeat)
            continue
        for blocks in (tuple(b for b in repeat.blocks if b.index < first), tuple(b for b in repeat.blocks if b.index >= first)):
            found += [replace(repeat, blocks=blocks)] if blocks else []
    return tuple(found)


def _names_of(graph: Graph, repeats: Sequence[Repeat], family: str, first: int) -> frozenset[str]:
    """Nodes, and states, of the blocks from a number on."""
    blocks = [b for repeat in repeats if repeat.family == family for b in repeat.blocks if b.index >= first]
    numbers = {b.index for b in blocks}
    nodes = {graph.nodes[i].name for b in blocks for i in b.nodes}
    return frozenset(nodes | {name for name in graph.inputs if any(relative_name(name, family, number) for number in numbers)})


def _carry(problem: Problem, mixed: Problem, light: Decisions, heavy: Decisions, names: frozenset[str]) -> Decisions | None:
    """The decisions of each chooser's members in the problem that they are of."""
    places = {name: number for number, chooser in enumerate(problem.choosers) for part in chooser.parts for name in part.members}
    found = []
    for chooser in mixed.choosers:
        members = [name for part in chooser.parts for name in part.members]
        number = places[members[0]]
        if not _correspond(problem.choosers[number], chooser):
            return None
        kinds = {name in names for name in members}
        found.append((heavy if kinds == {True} else light)[number])
    return tuple(found)


def _correspond(mine: Chooser, theirs: Chooser) -> bool:
    """True where an option of one is the same option of the other."""
    return len(mine.parts) == len(theirs.parts) and mine.num_kept == theirs.num_kept and all(a.options == b.options for a, b in zip(mine.parts, theirs.parts))


def widen_answer(full: Problem, wide: Problem, answer: MeshAnswer, heavy: tuple[Decisions, ...]) -> MeshAnswer:
    """The answer of a problem in which all is made again that may be, as one of the problem in which that is free.

    Args:
        heavy: decisions of the problem in which nothing is.
    """
    decisions = tuple(k + w.num_kept if len(w.seconds) > len(f.seconds) else k for k, f, w in zip(answer.decisions, full.choosers, wide.choosers))
    return replace(answer, decisions=decisions, heavy=heavy, apart_s=answer.bound_s)


def mix_answer(
    problem: Problem, answer: MeshAnswer, repeats: Sequence[Repeat], build: Callable[[Fold], Problem], limit_bytes: float,
    measure: Callable[[Assignment], int], deadline: float,
) -> tuple[Problem, MeshAnswer]:
    """The answer of a mesh, with blocks of two kinds where that is faster, and the problem that it is of.

    Args:
        build: as of `mix_blocks`.
        measure: bytes at the peak of the program of an assignment.
        deadline: by `time.monotonic`: from then on nothing is tried.
    """
    if not answer.heavy or answer.objective_s <= answer.apart_s * (1 + _WORTH):
        return problem, answer

    def fits(mixed: Problem, decisions: Decisions) -> bool:
        return measure(build_assignment(mixed, decisions)) <= limit_bytes

    found = mix_blocks(problem, answer.decisions, answer.heavy, repeats, build, limit_bytes, fits, lambda: time.monotonic() < deadline)
    if found is None:
        return problem, answer
    bound = min(answer.apart_s, found.seconds)
    return found.problem, replace(answer, decisions=found.decisions, objective_s=found.seconds, bound_s=bound, peak_bytes=found.peak_bytes, how=TWO_KINDS, heavy=())
