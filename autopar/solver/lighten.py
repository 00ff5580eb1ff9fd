"""A plan that fits, soon, and what fits takes at least: memory priced by a multiplier, choosers decided away.

In: the `Problem` of a mesh whose fastest plan does not fit. Out: decisions that fit, none of them proven to be best, and seconds that no plan that fits
beats. Bytes at the points of time that broke the limit so far count as seconds: the more, the lighter the plan; the multiplier is raised until one fits, and
then lowered as long as one does.

    seconds of an option + multiplier x bytes that what it makes holds, over these points      (copies on their way are not seen: each plan is judged)

A plan that fits holds no more than the limit at any point, so it takes at least the least of that sum - multiplier x limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

from .judge import evaluate_seconds, held_bytes, made_bytes
from .problem import Life, Problem
from .relaxation import Relaxation

_MOST_TRIES, _MOST_POINTS = 16, 6
_CLOSE = 1.3  # multipliers this near to each other give much the same plan
_STEEP = 8.0

Decisions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lighter:
    """What was found.

    Args:
        decisions: the fastest that fit; None where none was found.
        bound_s: no decisions that fit are faster.
        heavy: those that did not fit.
    """

    decisions: Decisions | None
    bound_s: float
    heavy: tuple[Decisions, ...]


def lighten(
    problem: Problem, relaxation: Relaxation, heavy: Sequence[int], limit_bytes: float, fits: Callable[[Decisions], bool], has_time: Callable[[], bool],
    enough_s: float = inf,
) -> Lighter:
    """Decisions that fit, and a bound.

    Args:
        relaxation: of the problem.
        heavy: decisions that do not fit.
        limit_bytes: for tensors, by the judge.
        fits: True of decisions that fit by the judge, and by the program that is built.
        has_time: asked before each try.
        enough_s: a bound that is as high ends it.
    """
    seconds = evaluate_seconds(problem, heavy)
    held = held_bytes(problem, heavy)
    points, low, high = [int(held.argmax())], 0.0, inf
    multiplier = 0.1 * (seconds or 1.0) / float(held.max())
    best: tuple[float, Decisions] | None = None
    bound, over = 0.0, {tuple(heavy): None}
    seen: dict[Decisions, bool] = {}
    for _ in range(_MOST_TRIES):
        if not has_time() or high < low * _CLOSE:
            break
        least, found = relaxation.find(_priced(problem, points, multiplier))
        bound = max(bound, least * (1 - relaxation.error) - multiplier * limit_bytes) if least < inf else bound
        if found is None or bound >= enough_s:
            break
        decisions = tuple(found)
        took, held = evaluate_seconds(problem, decisions), held_bytes(problem, decisions)
        if held.max() > limit_bytes:
            over[decisions] = None
        if held.max() > limit_bytes and int(held.argmax()) not in points and len(points) < _MOST_POINTS:
            points.append(int(held.argmax()))
            continue
        if decisions not in seen:
            seen[decisions] = took < inf and held.max() <= limit_bytes and fits(decisions)
        if seen[decisions]:
            high = multiplier
            if best is None or took < best[0]:
                best = took, decisions
        else:
            low = multiplier
        multiplier = multiplier * _STEEP if high == inf else sqrt(low * high) if low else high / _STEEP
    return Lighter(best[1] if best is not None else None, bound, tuple(over))


def _priced(problem: Problem, points: Sequence[int], multiplier: float) -> Problem:
    """The problem in which bytes at these points cost seconds."""
    extra = [np.zeros(len(c.seconds)) for c in problem.choosers]
    for owner in problem.owners:
        weight = sum(_times_held(problem, life, point) for life in owner.lives for point in points)
        if weight:
            extra[owner.source[0]] += weight * made_bytes(problem, owner)
    return replace(problem, choosers=tuple(replace(c, seconds=c.seconds + multiplier / len(points) * more) for c, more in zip(problem.choosers, extra)))


def _times_held(problem: Problem, life: Life, point: int) -> float:
    """How often an instance is held at a point, at least: whatever its readers want; what other microbatches in flight hold of it, too."""
    turns, held = problem.turns, float(max(0, life.first) <= point <= life.certain)
    if turns.in_flight > 1 and turns.first <= point <= turns.last and turns.first <= life.first <= turns.turn <= life.certain <= turns.last:
        if all(hold.last <= turns.last for hold in life.longer):
            return turns.in_flight - 1.0 + held
    return held
