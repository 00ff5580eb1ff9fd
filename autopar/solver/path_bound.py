"""The path of a microbatch: through all stages forward, and back through all of them. No step of a pipeline is shorter, wherever it is cut.

In: the units of a graph, not cut, a mesh of each stage. Out: the least seconds of one forward and one backward of all of them, as a linear program of the whole
graph tells: more than its units one by one, whose ends are free. With one microbatch that is all but the update; where ranks wait for each other, nothing else is
to be told. Not for schedules that split the backward, for weights' gradients are off the path.

Any cut may be there, so what may cross one is priced as the less of two ways: straight from how it is made to how it is read, or only from how it crosses to
how it is read (what brings it there may serve several readers). What each stage has of its own where it is cut costs nothing beyond how it is stored: what all
stages run, states and inputs that several units read, gradients that meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..constraints import Constraints
from ..cost.model import CostModel
from ..cost.prices import MeshPrices, build_prices
from ..graph.case import Case
from ..graph.graph import entering_values, producer_table, use_table, value_table
from ..graph.mesh import Mesh
from ..graph.node import Phase
from ..graph.roles import Roles
from ..graph.sharding import Sharding
from ..graph.stages import list_units, stage_table
from ..graph.strategy import Strategy
from ..graph.tensor import Value
from ..graph.transfer import Transfer, transfer_of
from .build import build_problem
from .relaxation import Relaxation
from .run_costs import RunPart, with_more
from .stage_solve import nearest_crossing
from .steer import Steer
from .tables import Sort, sort_of
from .unit_costs import weigh_phases

@dataclass(frozen=True, slots=True)
class ThroughCuts:
    """Prices of one mesh, wherever the graph is cut.

    Args:
        crossings: how values of a sort may cross. Of others of this sort the price is too low at worst.
        free: sorts of which each stage may have its own.
    """

    prices: MeshPrices
    crossings: Mapping[Sort, tuple[Sharding, ...]]
    free: frozenset[Sort]

    def node_seconds(self, node: int, strategies: Sequence[Strategy]) -> Sequence[float]:
        """As of `prices`."""
        return self.prices.node_seconds(node, strategies)

    def reshard_seconds(self, value: Value, source: Sharding, target: Sharding) -> float:
        """As of `reshard_matrices`."""
        return float(self.reshard_matrices(value, [source], [target])[0][0, 0])

    def hidden_seconds(self, value: Value, source: Sharding, target: Sharding) -> float:
        """As of `reshard_matrices`."""
        return float(self.reshard_matrices(value, [source], [target])[1][0, 0])

    def reshard_matrices(self, value: Value, sources: Sequence[Sharding], targets: Sequence[Sharding]) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of every source to every target at least, and what of them hides."""
        seconds, hidden = self.prices.reshard_matrices(value, sources, targets)
        if sort_of(value) in self.free:
            return np.zeros_like(seconds), np.zeros_like(hidden)
        if through := self.crossings.get(sort_of(value)):
            after = self.prices.reshard_matrices(value, through, targets)[0].min(axis=0)
            seconds = np.minimum(seconds, after[None, :])
            hidden = np.minimum(hidden, seconds)
        return seconds, hidden

    def write_seconds(self, value: Value, storage: Sharding) -> float:
        """As of `prices`."""
        return self.prices.write_seconds(value, storage)


def relax_path(part: RunPart, mesh: Mesh, model: CostModel, constraints: Constraints, turns: int) -> Relaxation:
    """The program of all units, wherever they are cut.

    Args:
        part: all units of a graph.
        mesh: of a stage.
    Raises:
        ConstraintError: the mesh cannot obey.
    """
    case, values = part.inner, value_table(part.inner.graph)
    crossing, own = find_crossing(case)
    through = {name: _how_it_crosses(case, mesh, part.roles, values[name], constraints) for name in crossing if transfer_of(values[name]) is Transfer.BLOCKING}
    crossings: dict[Sort, dict[Sharding, None]] = {}
    for name, shardings in through.items():
        crossings.setdefault(sort_of(values[name]), {}).update(dict.fromkeys(shardings))
    free = frozenset(sort_of(values[name]) for name in (*own, *(crossing - through.keys())))
    prices = ThroughCuts(build_prices(model, mesh, case.graph, case.sites, case.signatures), {sort: tuple(found) for sort, found in crossings.items()}, free)
    steer = Steer(constraints, part.roles, ())
    return Relaxation(build_problem(case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, steer=steer, turn_weight=float(turns)))


def path_seconds(relaxation: Relaxation, part: RunPart, more: int, turns: int, enough_s: float) -> float:
    """Of one microbatch, forward and back, at least.

    Args:
        more: periods of the run beyond those of the part.
        enough_s: more need not be shown.
    """
    problem = with_more(relaxation.problem, part.second, more) if more else relaxation.problem
    return relaxation.solve(weigh_phases(problem, {Phase.FORWARD: 1.0, Phase.BACKWARD: 1.0}), enough_s * turns) * (1 - relaxation.error) / turns


def find_crossing(case: Case) -> tuple[set[str], set[str]]:
    """Values that one unit makes and another reads; and those that each stage may have for itself: made by what every stage runs, or entering and read by several units."""
    graph, makers = case.graph, producer_table(case.graph)
    units = stage_table(graph, [graph.nodes[row[0]].name for row in list_units(graph)[1:]])
    crossing, own = set(), set()
    entering = {value.name for value in entering_values(graph)}
    for name, uses in use_table(graph).items():
        readers = {units[i] for i, _ in uses if graph.nodes[i].phase is not Phase.UPDATE}
        if name in entering and (len(readers) > 1 or -1 in readers):
            own.add(name)
        elif name in makers and units[makers[name][0]] < 0:
            own.add(name)
        elif name in makers and readers - {units[makers[name][0]]}:
            crossing.add(name)
    return crossing, own


def _how_it_crosses(case: Case, mesh: Mesh, roles: Roles, value: Value, constraints: Constraints) -> Iterator[Sharding]:
    """Forward, and backward."""
    takes_sequence = constraints.sequence_parallel is not False
    return (nearest_crossing(case, mesh, roles, value, dp_takes_any, takes_sequence) for dp_takes_any in (False, True))
