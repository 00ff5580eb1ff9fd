"""Tables of a graph are made once, and each caller has one of its own."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

from autopar.graph.kept import kept, kept_table


@dataclass(frozen=True)
class Thing:
    """Stands for a graph; with another of the same name it is equal, but not the same."""

    name: str
    __hash__ = None


def test_what_a_caller_does_to_its_table_is_its_own():
    asked = []

    @kept_table
    def letters(thing):
        asked.append(thing.name)
        return {letter: k for k, letter in enumerate(thing.name)}

    thing = Thing("ab")
    letters(thing).clear()
    assert letters(thing) == {"a": 0, "b": 1} and asked == ["ab"]


def test_equal_graphs_are_not_compared():
    asked = []

    @kept
    def name(thing):
        asked.append(thing)
        return thing.name

    first, second = Thing("ab"), Thing("ab")
    assert name(first) == name(second) == name(first) == "ab" and len(asked) == 2


def test_of_many_graphs_the_last_are_kept_and_a_place_in_memory_is_never_taken_for_another():
    @kept
    def name(thing):
        return thing.name

    watched = []
    for k in range(100):
        thing = Thing(str(k))
        assert name(thing) == str(k)
        watched.append(weakref.ref(thing))
        del thing
    gc.collect()
    assert sum(ref() is not None for ref in watched) == 16
