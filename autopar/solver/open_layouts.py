"""What the search knows of each layout so far, and of the places that layouts share.

The only things in the solver that change while it works: a bound rises, a guess gets better. `pipeline` changes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from .layout_prices import Tier
from .layouts import Layout, Place, working_ranks


@dataclass(slots=True)
class Open:
    """A layout, with what is known of it so far: `guess_s` only once its place was priced; `tier`: of its prices."""

    layout: Layout
    any_s: float  # no plan is faster, wherever it is cut
    at_cuts_s: float = 0.0  # nor one that is cut where its prices say, if it is searched there alone (`has_given_cuts`)
    guess_s: float = inf
    tier: Tier = Tier.NONE
    base: int = 0  # number of microbatches whose graph was asked for its prices
    own_cuts: tuple[int, ...] | None = None  # the only ones; None: where its costs say
    cuts: tuple[int, ...] | None = None  # those that hold the bound down
    joint_s: dict[tuple[int, ...], float] = field(default_factory=dict)  # cuts -> bound of their stages, each with one plan for all phases
    tried: tuple[int, ...] | None = None  # of these, those that it was solved with
    path_s: float | None = None  # of one microbatch through all stages, at least, where that was asked (`path_bound`)
    failed: bool = False  # no plan was found in the time that it had
    searched: bool = False  # again, with all the time that was left
    tight: bool = False  # the guess is one of a fastest plan that does not fit
    simulated: bool = False
    solved: bool = False
    gone: bool = False  # there is no such plan

    @property
    def bound_s(self) -> float:
        """No plan of it that is searched is faster."""
        return max(self.any_s, self.at_cuts_s)

    @property
    def is_own(self) -> bool:
        """Priced by the graph of its own number of microbatches."""
        return self.base == self.layout.num_microbatches

    @property
    def likely_s(self) -> float:
        """What it may take: a guess is not made again where a bound says that it cannot win."""
        return max(self.guess_s, self.bound_s)


@dataclass(slots=True)
class OpenPlace:
    """A place with its layouts, fewest microbatches first, and how much of its prices is known: for the fewest that may be good (`count`)."""

    place: Place
    rows: list[Open]
    tier: Tier = Tier.NONE
    count: int = 0


class Step(IntEnum):
    """What makes a guess better, in order."""

    UNITS, RUN, OWN, SIMULATE, SOLVE = range(5)


def next_step(place: OpenPlace, each: Open) -> Step:
    """What makes the guess of a layout better."""
    if place.tier < Tier.ALL:
        return Step.UNITS
    if each.tier < Tier.RUN:
        return Step.RUN
    if not each.is_own:
        return Step.OWN
    return Step.SIMULATE if not each.simulated and each.layout.place.num_stages > 1 else Step.SOLVE


def shares_work(place: OpenPlace) -> bool:
    """Ranks of a stage divide its work. Where none does, nothing is resharded, and a guess is nearly exact: it says nothing of the others."""
    return working_ranks(place.place) > 1


def by_place(every: list[Open]) -> list[OpenPlace]:
    """In the order of the least bounds."""
    found: dict[Place, list[Open]] = {}
    for each in sorted(every, key=lambda e: (e.layout.num_microbatches, e.layout.chunks)):
        found.setdefault(each.layout.place, []).append(each)
    return sorted((OpenPlace(place, rows) for place, rows in found.items()), key=least_bound)


def least_bound(place: OpenPlace) -> float:
    """No plan of a place is faster."""
    return min((each.bound_s for each in place.rows if not each.gone), default=inf)


def by_count(rows: list[Open]) -> Iterable[tuple[int, list[Open]]]:
    """Layouts with equally many microbatches together."""
    found: dict[int, list[Open]] = {}
    for each in rows:
        found.setdefault(each.layout.num_microbatches, []).append(each)
    return found.items()
