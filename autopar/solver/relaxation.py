"""The relaxation of a problem, solved for one objective after another: its rows are made once.

In: a `Problem`, and problems like it that differ in what choosers take and how often groups are resharded. Out: seconds that no plan beats, memory aside.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from .formulate import Formulation
from .ilp import solve_program
from .problem import Problem

_TIME_LIMIT_S = 20.0


class Relaxation:
    """The linear program of a problem, without memory and overlap rows."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.form = Formulation(problem)
        self.program = self.form.build(None, 1.0)

    def solve(self, seconds: np.ndarray | None = None) -> tuple[float, np.ndarray | None]:
        """Seconds that no plan beats, and the columns of the fastest mix of plans (None where that was not found).

        Args:
            seconds: of each column (`Formulation.seconds_of`); None: the problem's own.
        """
        cost = self.program.cost if seconds is None else seconds
        least = sum(float(cost[o : o + len(c.seconds)].min()) for o, c in zip(self.form.offsets, self.problem.choosers))
        scale = 1000.0 / least if least > 0 else 1.0
        found = solve_program(replace(self.program, cost=cost * scale), relaxed=True, time_limit_s=_TIME_LIMIT_S)
        if found.status != "optimal" or found.values is None:
            return max(least, (found.bound or 0.0) / scale), None
        return max(found.objective / scale, 0.0), found.values

    def decide(self, values: np.ndarray) -> list[int]:
        """The option of each chooser that a mix of plans has most of."""
        return [int(np.argmax(values[o : o + len(c.seconds)])) for o, c in zip(self.form.offsets, self.problem.choosers)]


Kept = TypeVar("Kept")


@dataclass(slots=True)
class Latest(Generic[Kept]):
    """What was used last, and no more: a relaxation holds some megabytes."""

    most: int
    _known: OrderedDict[Hashable, Kept] = field(default_factory=OrderedDict)

    def get(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """The one with this key, made where it is not known (any more)."""
        found = self._known.pop(key) if key in self._known else make()
        self._known[key] = found
        while len(self._known) > self.most:
            self._known.popitem(last=False)
        return found
