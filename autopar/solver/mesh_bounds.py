"""What no plan of a whole model on a mesh beats, told by the model with few of its equal blocks: before any table of all of them is made.

In: a shortened case, a mesh, seconds that are enough, a memory limit. Out: seconds. First memory aside; where that is not enough, bytes count as seconds, by a
multiplier (as in `lighten`): what every block holds when the backward pass begins, whatever is kept or made again (states, what goes from block to block).
One more block takes and holds what the second one does, as all of those between the first and the last do; where kinds take turns, one more of each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from ..cost.model import CostModel
from ..cost.prices import build_prices
from ..graph.case import Case
from ..graph.mesh import Mesh
from ..graph.node import Phase
from ..graph.recompute import AGAIN
from .build import Shared, build_problem
from .formulate import count_columns
from .judge import made_bytes
from .problem import MOMENTS, Problem
from .relaxation import Relaxation
from .run_costs import unit_names, with_more
from .runs import Run
from .skeleton import Skeleton

_FIRST, _STEEP, _MOST_TRIES = 0.1, 4.0, 3  # the first multiplier makes the bytes of the fastest plan cost this part of its seconds
_MOST_S = 20.0  # of one linear program


def bound_mesh(
    case: Case, run: Run, more: int, mesh: Mesh, model: CostModel, most_columns: int, enough_s: float, skeletons: list[Skeleton], limit_bytes: float | None = None,
    deadline: float = inf,
) -> tuple[float, int]:
    """(seconds that no plan of a whole model on a mesh beats, columns of its program memory aside); 0 seconds where there are too many to be solved.

    Args:
        case: shortened: the model has `more` units more in its run, which is `run` here and no shorter than `Run.few`.
        enough_s: more need not be shown.
        skeletons: of this case, for all meshes.
        limit_bytes: for tensors; None: memory aside.
        deadline: by `time.monotonic`: from then on memory is not asked.
    """
    shared = Shared()

    def build(recompute: str) -> Problem:
        prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
        return build_problem(
            case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, recompute=recompute, skeletons=skeletons, shared=shared
        )

    problem = build("none")
    count = count_columns(problem)
    if count > most_columns:
        return 0.0, count
    second, relaxation, more = unit_names(case, run.first + 1, run.period), Relaxation(problem), more // run.period
    whole = with_more(problem, second, more)
    bound, fastest = relaxation.find(whole, enough_s)
    if bound >= enough_s or limit_bytes is None or time.monotonic() >= deadline or not any(node.phase is Phase.BACKWARD for node in case.graph.nodes):
        return bound, count
    if fastest is None or _sum_chosen(_held_bytes(problem, second, more), fastest) <= limit_bytes:
        return bound, count
    return max(bound, _bound_that_fits(build("free"), second | {name + AGAIN for name in second}, more, enough_s, limit_bytes, deadline)), count


def _bound_that_fits(problem: Problem, second: frozenset[str], more: int, enough_s: float, limit_bytes: float, deadline: float) -> float:
    """Seconds that no plan beats that holds no more than the limit when the backward pass begins; 0 where time is up."""
    relaxation, whole, bound = Relaxation(problem), with_more(problem, second, more), 0.0
    if (left := deadline - time.monotonic()) <= 0:
        return 0.0
    relaxation.limit_time(min(left, _MOST_S))
    least, fastest = relaxation.find(whole)
    sizes = _held_bytes(problem, second, more)
    held = _sum_chosen(sizes, fastest) if fastest is not None else 0.0
    multiplier = _FIRST * least / held if held > limit_bytes else 0.0
    for _ in range(_MOST_TRIES if multiplier > 0 else 0):
        if (left := deadline - time.monotonic()) <= 0:
            break
        relaxation.limit_time(min(left, _MOST_S))
        priced = replace(whole, choosers=tuple(replace(c, seconds=c.seconds + multiplier * row) for c, row in zip(whole.choosers, sizes)))
        found = relaxation.solve(priced, enough_s + multiplier * limit_bytes)
        bound = max(bound, found * (1 - relaxation.error) - multiplier * limit_bytes)
        if bound >= enough_s:
            break
        multiplier *= _STEEP
    return bound


def _held_bytes(problem: Problem, second: frozenset[str], more: int) -> list[np.ndarray]:
    """Per chooser and option, bytes of what it makes that the whole model holds for certain when the backward pass begins. Left out is what some blocks hold
    and others not."""
    point = MOMENTS * next(i for i, node in enumerate(problem.graph.nodes) if node.phase is Phase.BACKWARD)
    found = [np.zeros(len(chooser.seconds)) for chooser in problem.choosers]
    for owner in problem.owners:
        number, port = owner.source
        part = max((p for p in problem.choosers[number].parts if p.makes <= port), key=lambda p: p.makes)
        if len(owner.lives) != len(part.members) or not all(max(0, life.first) <= point <= life.certain for life in owner.lives):
            continue
        count = len(owner.lives) + more * sum(name in second for name in part.members)
        found[number] += count * made_bytes(problem, owner)
    return found


def _sum_chosen(rows: Sequence[np.ndarray], decisions: Sequence[int]) -> float:
    return sum(float(row[k]) for row, k in zip(rows, decisions))
