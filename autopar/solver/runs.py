"""Runs: units of a model in a row that repeat, equal ones or several kinds that take turns (local and global attention, every sixth another).

In: kinds of units, in order. Out: the run that leaves most of them out where only its price is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FEW = 4  # equal units whose program tells all larger ones: it has an edge from one that is neither first nor last to another, as all of those have


@dataclass(frozen=True, slots=True)
class Run:
    """Units in a row: so many from `first` on, each like the one `period` before it (1: all are equal)."""

    first: int
    length: int
    period: int = 1

    @property
    def last(self) -> int:
        """The first unit after them."""
        return self.first + self.length

    def few(self, length: int) -> int:
        """The fewest of them whose program tells one of `length`: whole periods fewer, or one more."""
        least = FEW + self.period - 1
        return least + (length - least) % self.period

    def shift(self, unit: int) -> int:
        """The place in its period of a unit that is in the run, or would be if that went on."""
        return (unit - self.first) % self.period

    def longer(self, more: int) -> Run:
        """The run with so many more units."""
        return Run(self.first, self.length + more, self.period)


def find_run(kinds: Sequence, periods: Sequence[int] = ()) -> Run:
    """The run of which most units may be left out; where none may, the longest one of equal units.

    Args:
        periods: that are asked for; (): all.
    """
    runs = [_longest_run(kinds, period) for period in periods or range(1, max(2, len(kinds) // 2 + 1))]
    best = runs[0]
    for run in runs[1:]:
        if run.length - run.few(run.length) > max(0, best.length - best.few(best.length)):
            best = run
    return best


def _longest_run(kinds: Sequence, period: int) -> Run:
    best, start = (0, 0), 0
    for k in range(1, len(kinds) + 1):
        if k == len(kinds) or (k - period >= start and kinds[k] != kinds[k - period]):
            best = max(best, (start, k - start), key=lambda found: found[1])
            start = k if period == 1 else k - period + 1
    return Run(*best, period)


__all__ = ["FEW", "Run", "find_run"]
