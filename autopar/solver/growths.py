"""How much guesses usually grow until a layout is solved, learnt while a search goes on.

In: what each step multiplied a guess by. Out: for a layout the product over all steps that are left. What runs between two cuts adds (`Step.RUN`) depends on
how its mesh divides anything but the batch; what memory adds, on whether the fastest plan fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from statistics import median

from .layouts import tensor_degree
from .open_layouts import Open, OpenPlace, Step, next_step, shares_work

_USUAL = (1.01, 1.05, 1.03, 1.0, 1.02)  # what each step multiplies a guess by, until the search knows better
_ALONE = (1.0, 1.0, 1.02, 1.0, 1.01)  # where no rank of a stage shares its work with another
_TIGHT = 1.02  # the last of them, where the fastest plan does not fit
_WEIGHT = 2  # what is usual counts as if it had been seen so often


@dataclass(slots=True)
class Growths:
    """Args:
    trusts_seen: what was seen once tells more than what is usual (of layouts that are nearly all fixed).
    """

    trusts_seen: bool = False
    seen: dict[tuple[int, bool, Step], list[float]] = field(default_factory=dict)

    def note(self, place: OpenPlace, tight: bool, step: Step, times: float) -> None:
        """A step multiplied the guess of a layout. Args: tight: its fastest plan did not fit."""
        self.seen.setdefault(_key(place, tight, step), []).append(times)

    def expect(self, place: OpenPlace, each: Open) -> float:
        """Seconds that the layout will be found to take."""
        steps = [step for step in Step if step >= next_step(place, each) and not (each.is_own and step is Step.OWN)]
        return each.guess_s * prod(self._usual(place, each.tight, step) for step in steps)

    def _usual(self, place: OpenPlace, tight: bool, step: Step) -> float:
        first = (_USUAL if shares_work(place) else _ALONE)[step]
        first = _TIGHT if tight and step is Step.SOLVE and not self.trusts_seen else first
        weight = 0 if self.trusts_seen else 1 if step is Step.RUN else _WEIGHT
        return median((*weight * (first,), *self.seen.get(_key(place, tight, step), ())) or (first,))


def _key(place: OpenPlace, tight: bool, step: Step) -> tuple[int, bool, Step]:
    return tensor_degree(place.place.mesh) if shares_work(place) else 0, tight and step is Step.SOLVE, step
