"""Kept: tables of a graph are made once, though pass after pass asks for them.

In: a function of one graph alone. Out: one that returns the same; what it made of the graphs that were asked for last is kept. A graph is frozen, so it is known by what it is, not by
what is in it: to compare two of them takes longer than most of what is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .graph import Graph

K, V, T = TypeVar("K"), TypeVar("V"), TypeVar("T")
_GRAPHS = 16  # a program, what it was made of, and a few candidates


class _Itself:
    """A graph as a key."""

    __slots__ = ("graph",)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.graph is other.graph


def kept(make: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """Of a function that returns what nobody can change."""

    @lru_cache(maxsize=_GRAPHS)
    def made(key: _Itself) -> T:
        return make(key.graph)

    @wraps(make)
    def known(graph: Graph) -> T:
        return made(_Itself(graph))

    return known


def kept_table(make: Callable[[Graph], dict[K, V]]) -> Callable[[Graph], dict[K, V]]:
    """Of a function that returns a table; each caller has one of its own, but its entries are the same."""
    made = kept(make)

    @wraps(make)
    def known(graph: Graph) -> dict[K, V]:
        return made(graph).copy()

    return known
