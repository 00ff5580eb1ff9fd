"""Parcels: names of states a few at a time, so that what is sent for one lot travels while the next one is worked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor


def as_they_come(grads: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """The names in the order in which their gradients were made, so that the last ones travel while the first are used."""
    place = {key: number for number, key in enumerate(grads)}
    return sorted(names, key=lambda name: place.get(name, len(place)))


def lots(state: Mapping[str, Tensor], names: Sequence[str], most_bytes: int) -> list[list[str]]:
    """The names in lots of one dtype.

    Args:
        most_bytes: of the states of a lot; one that is larger makes a lot of its own.
    """
    found: list[list[str]] = []
    held = 0
    for name in names:
        size = state[name].numel() * state[name].element_size()
        alike = found and state[name].dtype == state[found[-1][0]].dtype
        if not alike or held + size > most_bytes:
            found.append([])
            held = 0
        found[-1].append(name)
        held += size
    return found


def parcels(state: Mapping[str, Tensor], names: Sequence[str], most_bytes: int) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Three neighbouring lots at a time: the one that comes next, the one whose turn it is, and the one before. Each lot has its turn once; the first and
    the last have no neighbour on one side, and an empty list stands for it."""
    row: list[list[str]] = [[], [], *lots(state, names, most_bytes), [], []]
    for before, here, ahead in zip(row, row[1:], row[2:]):
        yield ahead, here, before
