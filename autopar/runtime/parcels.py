"""Parcels: names of states a few at a time, so that what is sent for one lot travels while the next one is worked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from ..graph.update_lots import fill_lots
from .pending import give_back


def as_they_come(grads: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """The names in the order in which their gradients were made, so that the last ones travel while the first are used."""
    place = {key: number for number, key in enumerate(grads)}
    return sorted(names, key=lambda name: place.get(name, len(place)))


def lots(state: Mapping[str, Tensor], names: Sequence[str], most_bytes: int) -> list[list[str]]:
    """The names in lots of one dtype.

    Args:
        most_bytes: of the states of a lot; one that is larger makes a lot of its own.
    """
    return fill_lots(((name, state[name].numel() * state[name].element_size(), state[name].dtype) for name in names), most_bytes)


def put(state: Tensor, came: Tensor) -> None:
    """The new state, which a collective brought, in its place. What brought it is let go of at once: a thread of gloo's may hold it for longer."""
    state.copy_(came)
    if came.untyped_storage().nbytes() == came.nbytes:
        give_back(came, state)


def parcels(state: Mapping[str, Tensor], names: Sequence[str], most_bytes: int) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Three neighbouring lots at a time: the one that comes next, the one whose turn it is, and the one before. Each lot has its turn once; the first and
    the last have no neighbour on one side, and an empty list stands for it."""
    row: list[list[str]] = [[], [], *lots(state, names, most_bytes), [], []]
    for before, here, ahead in zip(row, row[1:], row[2:]):
        yield ahead, here, before
