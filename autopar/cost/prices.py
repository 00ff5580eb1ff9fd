"""Prices: the cost model on one mesh, in the words in which a solver asks (`solver.prices.Prices`).

Each answer is what `cost.estimate` counts for the same choice, so that an objective and the estimate of its program are one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ..errors import GraphError
from ..graph.fusion import rewritten_states
from ..graph.graph import Graph, value_table
from ..graph.mesh import Mesh, axis_sizes
from ..graph.rule import Signature, Site
from ..graph.sharding import Sharding, local_elements
from ..graph.strategy import Strategy
from ..graph.tensor import DTYPE_BYTES, Value
from .model import CostModel
from .ops import estimate_strategies_s, estimate_write_s, site_dtypes
from .wires import estimate_reshard_s, estimate_reshards_s


@dataclass(frozen=True, slots=True)
class MeshPrices:
    """Seconds of single decisions on one mesh.

    Args:
        sites, signatures, dtypes: of each node of the graph.
        rewritten: states that the kernels of the update write where they are (`fusion.rewritten_states`).
    """

    model: CostModel
    mesh: Mesh
    sites: tuple[Site, ...]
    signatures: tuple[Signature, ...]
    dtypes: tuple[tuple[str, ...], ...]
    rewritten: frozenset[str] = frozenset()

    def node_seconds(self, node: int, strategies: Sequence[Strategy]) -> tuple[float, ...]:
        """Of node number `node` of the graph, run in each of these strategies."""
        return estimate_strategies_s(
            self.model, self.signatures[node], self.sites[node], self.dtypes[node], strategies, axis_sizes(self.mesh)
        )

    def reshard_seconds(self, value: Value, source: Sharding, target: Sharding) -> float:
        """To bring the value from one sharding to another; infinity where there is no way."""
        try:
            return estimate_reshard_s(self.model, value, source, target, self.mesh)[0]
        except GraphError:
            return inf

    def hidden_seconds(self, value: Value, source: Sharding, target: Sharding) -> float:
        """Of `reshard_seconds`, what hides behind compute where it may."""
        try:
            return estimate_reshard_s(self.model, value, source, target, self.mesh)[1]
        except GraphError:
            return 0.0

    def reshard_matrices(self, value: Value, sources: Sequence[Sharding], targets: Sequence[Sharding]) -> tuple[np.ndarray, np.ndarray]:
        """`reshard_seconds` and `hidden_seconds` of every source to every target."""
        return estimate_reshards_s(self.model, value, sources, targets, self.mesh)

    def write_seconds(self, value: Value, storage: Sharding) -> float:
        """To write the new version of a state into its storage; paid once per state that the step replaces."""
        if value.name in self.rewritten:
            return 0.0
        return estimate_write_s(self.model, local_elements(value.shape, storage, axis_sizes(self.mesh)) * DTYPE_BYTES[value.dtype])


def build_prices(model: CostModel, mesh: Mesh, graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...]) -> MeshPrices:
    """Prices of a graph on a mesh.

    Args:
        sites, signatures: of each node (`cuts.resolve_all`).
    """
    values = value_table(graph)
    dtypes = tuple(site_dtypes(node, values) for node in graph.nodes)
    return MeshPrices(model, mesh, sites, signatures, dtypes, rewritten_states(graph, sites))
