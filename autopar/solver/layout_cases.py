"""The graph of a layout: in turns, and with few of its equal blocks where only their price is asked for.

In: a case, constraints. Out: the same case in so many turns, whole or shortened, its roles and units. A cache: made as they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..constraints import Constraints
from ..errors import MicrobatchError
from ..graph.case import Case, build_case, case_roles, split_case
from ..graph.roles import Roles
from ..graph.shorten import drop_units, unit_members
from ..graph.stages import list_units
from .run_costs import RunParts
from .steer import names_some, refine_fold
from .unit_costs import Units, find_units
from .unit_stages import unit_homes

_KEPT_UNITS = 4  # of a run of equal ones, where only its price is asked for
_SHORTER = 3000  # nodes; a smaller graph is not shortened


@dataclass(frozen=True, slots=True)
class Turned:
    """A number of microbatches: the shortened graph that takes them, its roles and units.

    Args:
        parts: of the longest run of equal units.
        more: so many more of them has the whole model.
        homes: the stage that each unit of the model must be on (`unit_stages`).
    """

    case: Case
    roles: Roles
    units: Units
    parts: RunParts
    more: int
    homes: tuple[int, ...]

    def expand(self, row: Sequence) -> tuple:
        """What is said of each unit of the shortened graph, said of each unit of the model."""
        k = self.parts.first
        return (*row[:k], *(row[k],) * self.more, *row[k:])

    @property
    def num_units(self) -> int:
        """Of the model; what no turn changes runs before all of them and is no unit."""
        return len(self.units.kinds) + self.more

    @property
    def run_units(self) -> tuple[int, int]:
        """First unit of the longest run in the model, and the first after it."""
        return self.parts.first, self.parts.first + self.parts.length + self.more


@dataclass(slots=True)
class LayoutCases:
    """The graphs of one model under given constraints."""

    case: Case
    constraints: Constraints
    _turned: dict[int, Turned | str] = field(default_factory=dict)
    _splits: dict[tuple[int, int], tuple[Case, Case]] = field(default_factory=dict)
    _shorts: dict[int, tuple[Case, int, int]] = field(default_factory=dict)
    _roles: dict[int, tuple[Case, Roles]] = field(default_factory=dict)

    def turned(self, count: int) -> Turned | str:
        """The shortened graph in so many turns; why there is none."""
        if count not in self._turned:
            self._turned[count] = self._turn(count)
        return self._turned[count]

    def _turn(self, count: int) -> Turned | str:
        short, _, more = self.shorten(_KEPT_UNITS)
        found = self._turn_case(short, count, more)
        if more and isinstance(found, Turned) and found.parts.length < _KEPT_UNITS - 1:  # in turns they are not alike: then none may be left out
            found = self._turn_case(self.case, count, 0)
        return found

    def _turn_case(self, whole: Case, count: int, more: int) -> Turned | str:
        try:
            case = self.refine(split_case(whole, count, self.roles(whole)))
        except MicrobatchError as error:
            return str(error)
        if not list_units(case.graph):
            return f"{whole.graph.name}: what reads a parameter does not depend on the batch, so all of it runs before the microbatches: leave them out"
        roles = self.roles(case)
        units = find_units(case, roles)
        homes = unit_homes(case.graph, self.constraints)
        return Turned(case, roles, units, RunParts(case, roles, *_longest_run(units.kinds), units.shared, units.traffic), more, homes)

    def shorten(self, keep: int) -> tuple[Case, int, int]:
        """The case with `keep` units of its longest run of equal ones: (case, the unit that is repeated, how many are left out)."""
        if keep not in self._shorts:
            self._shorts[keep] = self._make_short(max(keep, _KEPT_UNITS - 1))
        return self._shorts[keep]

    def _make_short(self, keep: int) -> tuple[Case, int, int]:
        graph, fold = self.case.graph, self.case.fold
        if len(graph.nodes) < _SHORTER or names_some(self.constraints) or self.constraints.module_stages:
            return self.case, -1, 0
        rows = list_units(graph)
        members = unit_members(graph, rows)
        first, length = _longest_run([tuple(fold.node_class[i] for i in unit) for unit in members])
        if length <= keep:
            return self.case, -1, 0
        short = drop_units(graph, members, first + 1, first + length - keep)
        if short is None:
            return self.case, -1, 0
        return build_case(short, self.case.rules), first + 1, length - keep

    def with_run(self, length: int, count: int) -> Case | None:
        """The graph in turns with so many units of its longest run (which may be longer in turns than before); None where it cannot be that short."""
        turned = self.turned(count)
        assert not isinstance(turned, str), turned
        keep = length - (turned.parts.length - _KEPT_UNITS)
        short, _, more = self.shorten(keep)
        return self.split(short, count) if more else None

    def split(self, case: Case, count: int) -> Case:
        """A case in turns; the last one is kept, for layouts of one number of microbatches come together."""
        key = (id(case), count)
        if key not in self._splits:
            self._splits.clear()
            self._splits[key] = (case, self.refine(split_case(case, count, self.roles(case))))
        return self._splits[key][1]

    def roles(self, case: Case) -> Roles:
        """The roles of a case, found once."""
        if id(case) not in self._roles:
            self._roles[id(case)] = (case, case_roles(case))
        return self._roles[id(case)][1]

    def refine(self, case: Case) -> Case:
        """The case in which nodes decide together only where the same names are about them."""
        fold = refine_fold(case.graph, case.fold, self.constraints)
        return case if fold is case.fold else replace(case, fold=fold)


def _longest_run(kinds: Sequence) -> tuple[int, int]:
    """(first, length) of the most equal kinds in a row."""
    best, start = (0, 0), 0
    for k in range(1, len(kinds) + 1):
        if k == len(kinds) or kinds[k] != kinds[start]:
            best = max(best, (start, k - start), key=lambda found: found[1])
            start = k
    return best
