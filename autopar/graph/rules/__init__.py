"""The table of rules: one row per op, by family. `RULES` is the only thing that others read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ...errors import GraphError
from ..rule import Rule
from . import (
    attention,
    bags,
    convolution,
    copies,
    counting,
    creation,
    decompositions,
    distances,
    fourier,
    indexing,
    linear,
    loss,
    norms,
    pointwise,
    pooling,
    random_numbers,
    reductions,
    scatter,
    slices,
    space,
    turns,
    views,
    vocabulary,
)


def join_rows(*families: Iterable[Rule]) -> Mapping[str, Rule]:
    """One table of all rows; registering an op twice is an error."""
    table: dict[str, Rule] = {}
    for rows in families:
        for rule in rows:
            if rule.op in table:
                raise GraphError(f"two rule rows for {rule.op}: one op, one row")
            table[rule.op] = rule
    return MappingProxyType(table)


RULES: Mapping[str, Rule] = join_rows(
    bags.ROWS,
    copies.ROWS,
    counting.ROWS,
    decompositions.ROWS,
    distances.ROWS,
    fourier.ROWS,
    scatter.ROWS,
    space.ROWS,
    pointwise.ROWS,
    linear.ROWS,
    views.ROWS,
    slices.ROWS,
    reductions.ROWS,
    norms.ROWS,
    attention.ROWS,
    loss.ROWS,
    convolution.ROWS,
    pooling.ROWS,
    indexing.ROWS,
    creation.ROWS,
    random_numbers.ROWS,
    turns.ROWS,
    vocabulary.ROWS,
)
