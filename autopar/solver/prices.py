"""Prices: what the solver asks of a cost model, and nothing more. One object per mesh; seconds of one execution on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from ..graph.sharding import Sharding
from ..graph.strategy import Strategy
from ..graph.tensor import Value


class Prices(Protocol):
    """Seconds on one mesh. Equal nodes (op, arguments, shapes, dtypes) have equal prices: tables are shared among them."""

    def node_seconds(self, node: int, strategies: Sequence[Strategy]) -> Sequence[float]:
        """Of node number `node` of the graph, run in each of these strategies."""
        ...

    def reshard_seconds(self, value: Value, source: Sharding, target: Sharding) -> float:
        """To bring the value from one sharding to another; infinity where there is no way."""
        ...

    def hidden_seconds(self, value: Value, source: Sharding, target: Sharding) -> float:
        """Of `reshard_seconds`, what hides behind compute where it may (`graph.transfer`); 0 where there is no way."""
        ...

    def write_seconds(self, value: Value, storage: Sharding) -> float:
        """To write the new version of a state into its storage."""
        ...


@runtime_checkable
class MatrixPrices(Prices, Protocol):
    """Prices that give many reshards at once, faster than one by one."""

    def reshard_matrices(self, value: Value, sources: Sequence[Sharding], targets: Sequence[Sharding]) -> tuple[np.ndarray, np.ndarray]:
        """`reshard_seconds` and `hidden_seconds` of every source to every target."""
        ...


def reshard_matrices(
    prices: Prices, value: Value, sources: Sequence[Sharding], targets: Sequence[Sharding]
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of every source to every target, infinity where there is no way; and what of them hides behind compute where it may."""
    if isinstance(prices, MatrixPrices):
        return prices.reshard_matrices(value, sources, targets)
    pairs = [(a, b) for a in sources for b in targets]
    seconds = [0.0 if a == b else prices.reshard_seconds(value, a, b) for a, b in pairs]
    hidden = [0.0 if a == b else prices.hidden_seconds(value, a, b) for a, b in pairs]
    shape = len(sources), len(targets)
    return np.array(seconds, dtype=float).reshape(shape), np.array(hidden, dtype=float).reshape(shape)
