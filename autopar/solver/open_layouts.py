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
    """A layout, with what is known of it so far: `guess_s` only once its place was priced; `tier`: of the prices for its own number of microbatches."""

    layout: Layout
    any_s: float  # no plan is faster, wherever it is cut
    at_cuts_s: float = 0.0  # nor one that is cut where its own prices say, if it is searched there alone (`has_given_cuts`)
    guess_s: float = inf
    tier: Tier = Tier.NONE
    own: bool = False  # priced for its number of microbatches, but maybe not for as many chunks
    own_cuts: tuple[int, ...] | None = None  # the only ones; None: where its costs say
    cuts: tuple[int, ...] | None = None  # those that hold the bound down
    joint_s: dict[tuple[int, ...], float] = field(default_factory=dict)  # cuts -> bound of their stages, each with one plan for all phases
    tried: tuple[int, ...] | None = None  # of these, those that it was solved with
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
    chunks: set[int] = field(default_factory=set)  # for which runs were priced

    @property
    def first_chunks(self) -> int:
        """Of the first layout with so many microbatches."""
        return next((row.layout.chunks for row in self.rows if row.layout.num_microbatches >= self.count), 1)


class Step(IntEnum):
    """What makes a guess better, in order."""

    UNITS, RUN, OWN, CHUNKS, SIMULATE, SOLVE = range(6)


def next_step(place: OpenPlace, each: Open) -> Step:
    """What makes the guess of a layout better."""
    if place.tier < Tier.RUN:
        return Step.UNITS if place.tier < Tier.ALL else Step.RUN
    if each.tier < Tier.RUN:
        return Step.CHUNKS if each.own else Step.OWN
    return Step.SIMULATE if not each.simulated and each.layout.place.num_stages > 1 else Step.SOLVE


def is_own_price(place: OpenPlace, each: Open) -> bool:
    """The place is priced for as many microbatches and chunks as this layout has: nothing more is asked for it alone."""
    return (each.layout.num_microbatches, each.layout.chunks) == (place.count, place.first_chunks)


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
