"""Lists with an entry for each parameter, as functions of the update take and make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def columns(rows: Sequence[Any], num_results: int) -> list[list[Any]]:
    """Of rows of results (each a tuple; where there is one result, that) a list of each result."""
    if num_results == 1:
        return [list(rows)]
    return [[row[k] for row in rows] for k in range(num_results)]


def pack(results: list[list[Any]]) -> Any:
    """The lists as a function returns its results: none, one, or a tuple of them."""
    return None if not results else results[0] if len(results) == 1 else tuple(results)
