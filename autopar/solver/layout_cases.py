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
from .runs import FEW, Run, find_run
from .steer import names_some, refine_fold
from .unit_costs import Units, find_units
from .unit_stages import unit_homes

_SHORTER = 3000  # nodes; a smaller graph is not shortened


@dataclass(frozen=True, slots=True)
class Turned:
    """A number of microbatches: the shortened graph that takes them, its roles and units.

    Args:
        parts: of the run of units that repeat.
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
        k, period = self.parts.run.first, self.parts.run.period
        return (*row[:k], *tuple(row[k : k + period]) * (self.more // period), *row[k:])

    @property
    def num_units(self) -> int:
        """Of the model; what no turn changes runs before all of them and is no unit."""
        return len(self.units.kinds) + self.more

    @property
    def run(self) -> Run:
        """Of the model."""
        return self.parts.run.longer(self.more)


@dataclass(frozen=True, slots=True)
class Shortened:
    """A case with few units of its run.

    Args:
        run: of this case.
        more: so many more units has the model's.
    """

    case: Case
    run: Run
    more: int


@dataclass(slots=True)
class LayoutCases:
    """The graphs of one model under given constraints."""

    case: Case
    constraints: Constraints
    _turned: dict[int, Turned | str] = field(default_factory=dict)
    _splits: dict[tuple[int, int], tuple[Case, Case]] = field(default_factory=dict)
    _shorts: dict[int, Shortened] = field(default_factory=dict)
    _roles: dict[int, tuple[Case, Roles]] = field(default_factory=dict)

    def turned(self, count: int) -> Turned | str:
        """The shortened graph in so many turns; why there is none."""
        if count not in self._turned:
            self._turned[count] = self._turn(count)
        return self._turned[count]

    def _turn(self, count: int) -> Turned | str:
        short = self.shorten()
        found = self._turn_case(short.case, count, short.more, (short.run.period,) if short.more else ())
        if short.more and isinstance(found, Turned) and found.parts.run.length < short.run.length - 1:  # in turns they are not alike: then none may be left out
            found = self._turn_case(self.case, count, 0)
        return found

    def _turn_case(self, whole: Case, count: int, more: int, periods: tuple[int, ...] = ()) -> Turned | str:
        try:
            case = self.refine(split_case(whole, count, self.roles(whole)))
        except MicrobatchError as error:
            return str(error)
        if not list_units(case.graph):
            return f"{whole.graph.name}: what reads a parameter does not depend on the batch, so all of it runs before the microbatches: leave them out"
        roles = self.roles(case)
        units = find_units(case, roles)
        homes = unit_homes(case.graph, self.constraints)
        return Turned(case, roles, units, RunParts(case, roles, find_run(units.kinds, periods), units.shared, units.traffic), more, homes)

    def shorten(self, keep: int = 0) -> Shortened:
        """The case with `keep` units of its run; 0: as few as tell it. Whole where it cannot be that short."""
        if keep not in self._shorts:
            self._shorts[keep] = self._make_short(keep)
        return self._shorts[keep]

    def _make_short(self, keep: int) -> Shortened:
        graph, fold = self.case.graph, self.case.fold
        if len(graph.nodes) < _SHORTER or names_some(self.constraints) or self.constraints.module_stages:
            return Shortened(self.case, Run(0, 0), 0)
        rows = list_units(graph)
        members = unit_members(graph, rows)
        run = find_run([tuple(fold.node_class[i] for i in unit) for unit in members])
        keep = max(keep, run.period + FEW - 2) if keep else run.few(run.length)
        if run.length <= keep or (run.length - keep) % run.period:
            return Shortened(self.case, run, 0)
        short = drop_units(graph, members, run.first + run.period, run.last + run.period - 1 - keep)
        if short is None:
            return Shortened(self.case, run, 0)
        return Shortened(build_case(short, self.case.rules), run.longer(keep - run.length), run.length - keep)

    def with_run(self, length: int, count: int) -> Case | None:
        """The graph in turns with so many units of its longest run (which may be longer in turns than before); None where it cannot be that short."""
        turned = self.turned(count)
        assert not isinstance(turned, str), turned
        short = self.shorten(length - (turned.parts.run.length - self.shorten().run.length))
        return self.split(short.case, count) if short.more else None

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
