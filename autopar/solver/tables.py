"""Tables: what reshards cost and what pieces weigh, by number of the sharding, filled on demand.

In: the prices of one mesh. Out: seconds and bytes. A cache: same answers whatever was asked before; one per problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..graph.sharding import Sharding, local_shape
from ..graph.tensor import DTYPE_BYTES, Value, num_elements
from .prices import Prices
from .transients import transient_bytes


@dataclass(slots=True)
class Tables:
    """Reshard seconds and local bytes by sharding id, filled on demand; one per problem (a cache: same answers whatever was asked)."""

    prices: Prices
    sizes: tuple[int, ...]
    shardings: list[Sharding]
    ids: dict[Sharding, int]
    _seconds: dict[tuple[tuple[int, ...], str, int, int], float] = field(default_factory=dict)
    _transient: dict[tuple[tuple[int, ...], str, int, int], int] = field(default_factory=dict)
    _bytes: dict[tuple[tuple[int, ...], str, int], int] = field(default_factory=dict)

    def intern(self, sharding: Sharding) -> int:
        """The id of a sharding."""
        found = self.ids.get(sharding)
        if found is None:
            found = self.ids[sharding] = len(self.shardings)
            self.shardings.append(sharding)
        return found

    def reshard_seconds(self, value: Value, source: int, target: int) -> float:
        """Seconds of one reshard, infinity where there is no way."""
        if source == target:
            return 0.0
        key = (value.shape, value.dtype, source, target)
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = self.prices.reshard_seconds(value, self.shardings[source], self.shardings[target])
        return found

    def transient_bytes(self, value: Value, source: int, target: int) -> int:
        """Bytes that a reshard holds on its way, beside source and result."""
        key = (value.shape, value.dtype, source, target)
        found = self._transient.get(key)
        if found is None:
            found = self._transient[key] = transient_bytes(value, self.shardings[source], self.shardings[target], self.sizes)
        return found

    def local_bytes(self, value: Value, sharding: int) -> int:
        """Bytes that one rank holds."""
        key = (value.shape, value.dtype, sharding)
        found = self._bytes.get(key)
        if found is None:
            shape = local_shape(value.shape, self.shardings[sharding], self.sizes)
            found = self._bytes[key] = num_elements(shape) * DTYPE_BYTES[value.dtype]
        return found
