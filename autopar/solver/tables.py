"""Tables: what reshards cost and what pieces weigh, by number of the sharding, filled on demand.

In: the prices of one mesh. Out: seconds and bytes. A cache: same answers whatever was asked before; one per problem. Reshards are kept as
matrices, one per shape, dtype and transfer: what a program needs of a shape is best asked for at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..graph.sharding import Sharding, local_elements, replicated
from ..graph.tensor import DTYPE_BYTES, Value
from ..graph.transfer import Transfer, transfer_of
from .prices import Prices, reshard_matrices
from .transients import transient_bytes, transient_matrix

_LEAST = np.minimum.reduce  # without the steps of `ndarray.min` in Python
WHOLE_ID, NONE = 0, 1  # the shardings of every table: whole everywhere; not there at all, which costs and holds nothing
Sort = tuple[tuple[int, ...], str, Transfer]  # what reshards depend on: shape, dtype, and whether it travels in a bucket and may hide


def sort_of(value: Value) -> Sort:
    """Values of one sort share the prices of their reshards."""
    return value.shape, value.dtype, transfer_of(value)


@dataclass(slots=True)
class _Matrix:
    """Known entries, layers x sources x targets: `rows` and `columns` give the place of each sharding id, -1 where it is not known."""

    rows: np.ndarray
    columns: np.ndarray
    entries: np.ndarray


@dataclass(slots=True)
class Tables:
    """Reshard seconds and local bytes by sharding id, filled on demand; one per problem (a cache: same answers whatever was asked)."""

    prices: Prices
    sizes: tuple[int, ...]
    shardings: list[Sharding]
    ids: dict[Sharding, int]
    _seconds: dict[Sort, _Matrix] = field(default_factory=dict)
    _transients: dict[Sort, _Matrix] = field(default_factory=dict)
    _transient: dict[tuple[tuple[int, ...], str, int, int], int] = field(default_factory=dict)
    _bytes: dict[tuple[tuple[int, ...], str, int], int] = field(default_factory=dict)
    _places: dict[bytes, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.shardings:
            return  # those of another problem on the same mesh
        whole = replicated(len(self.sizes))
        self.shardings += [whole, whole]  # the second stands for NONE and is never asked for
        self.ids[whole] = WHOLE_ID

    def intern(self, sharding: Sharding) -> int:
        """The id of a sharding."""
        found = self.ids.get(sharding)
        if found is None:
            found = self.ids[sharding] = len(self.shardings)
            self.shardings.append(sharding)
        return found

    def places_of(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sharding ids without repeats, ascending, and the place of each among them: of a row that many ports have."""
        key = ids.tobytes()
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = np.unique(ids, return_inverse=True)
        return found

    def seconds_matrix(self, value: Value, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Seconds of every source to every target (ids without repeats), infinity where there is no way."""
        return self._price(value, sources, targets)[0]

    def hidden_matrix(self, value: Value, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Of `seconds_matrix`, what hides behind compute where it may."""
        return self._price(value, sources, targets)[1]

    def _price(self, value: Value, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        def make(rows: Sequence[Sharding], columns: Sequence[Sharding]) -> np.ndarray:
            return np.stack(reshard_matrices(self.prices, value, rows, columns))

        return self._look_up(self._seconds, value, sources, targets, make, 2)

    def transient_matrix(self, value: Value, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Bytes that each reshard holds on its way, beside source and result; 0 where there is no way."""

        def make(rows: Sequence[Sharding], columns: Sequence[Sharding]) -> np.ndarray:
            return transient_matrix(value, rows, columns, self.sizes)[None]

        return self._look_up(self._transients, value, sources, targets, make, 1)[0]

    def reshard_seconds(self, value: Value, source: int, target: int) -> float:
        """Seconds of one reshard, infinity where there is no way."""
        return 0.0 if source == target else float(self.seconds_matrix(value, np.array([source]), np.array([target]))[0, 0])

    def hidden_seconds(self, value: Value, source: int, target: int) -> float:
        """Of `reshard_seconds`, what hides behind compute where it may."""
        return 0.0 if source == target else float(self.hidden_matrix(value, np.array([source]), np.array([target]))[0, 0])

    def transient_bytes(self, value: Value, source: int, target: int) -> int:
        """Bytes that a reshard holds on its way, beside source and result. There must be a way."""
        if NONE in (source, target):
            return 0
        key = (value.shape, value.dtype, source, target)
        found = self._transient.get(key)
        if found is None:
            found = self._transient[key] = transient_bytes(value, self.shardings[source], self.shardings[target], self.sizes)
        return found

    def local_bytes(self, value: Value, sharding: int) -> int:
        """Bytes that one rank holds."""
        if sharding == NONE:
            return 0
        key = (value.shape, value.dtype, sharding)
        found = self._bytes.get(key)
        if found is None:
            found = self._bytes[key] = local_elements(value.shape, self.shardings[sharding], self.sizes) * DTYPE_BYTES[value.dtype]
        return found

    def _look_up(
        self,
        known: dict[Sort, _Matrix],
        value: Value,
        sources: np.ndarray,
        targets: np.ndarray,
        make: Callable[[Sequence[Sharding], Sequence[Sharding]], np.ndarray],
        layers: int,
    ) -> np.ndarray:
        key = sort_of(value)
        matrix = known.get(key)
        if matrix is None:
            matrix = known[key] = _Matrix(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((layers, 0, 0)))
        if len(matrix.rows) < len(self.shardings):
            grown = np.full(len(self.shardings) - len(matrix.rows), -1)
            matrix.rows, matrix.columns = np.concatenate([matrix.rows, grown]), np.concatenate([matrix.columns, grown])
        rows, columns = matrix.rows[sources], matrix.columns[targets]
        if _LEAST(rows, initial=0) < 0 or _LEAST(columns, initial=0) < 0:
            self._extend(matrix, sources[rows < 0], targets[columns < 0], make)
            rows, columns = matrix.rows[sources], matrix.columns[targets]
        return matrix.entries[:, rows[:, None], columns[None, :]]

    def _extend(
        self,
        matrix: _Matrix,
        rows: np.ndarray,
        columns: np.ndarray,
        make: Callable[[Sequence[Sharding], Sequence[Sharding]], np.ndarray],
    ) -> None:
        """Add rows and columns: the new rows to all columns, and the old rows to the new columns."""
        old = np.flatnonzero(matrix.rows >= 0)[np.argsort(matrix.rows[matrix.rows >= 0])]
        matrix.columns[columns] = np.arange(len(columns)) + matrix.entries.shape[2]
        every = np.flatnonzero(matrix.columns >= 0)[np.argsort(matrix.columns[matrix.columns >= 0])]
        matrix.rows[rows] = np.arange(len(rows)) + matrix.entries.shape[1]

        def price(some: np.ndarray, others: np.ndarray) -> np.ndarray:
            if not len(some) or not len(others):
                return np.zeros((len(matrix.entries), len(some), len(others)))
            return make([self.shardings[i] for i in some], [self.shardings[i] for i in others])

        matrix.entries = np.block([[matrix.entries, price(old, columns)], [price(rows, every)]])
        for place, entries in ((matrix.rows[NONE], matrix.entries), (matrix.columns[NONE], matrix.entries.swapaxes(1, 2))):
            if place >= 0:
                entries[:, place] = 0.0
