"""Parcels: names of states a few at a time, so that what is sent for one lot travels while the next one is worked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor


def parcels(state: Mapping[str, Tensor], names: Sequence[str], most_bytes: int) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Three neighbouring lots at a time: the one that comes next, the one whose turn it is, and the one before. Each lot has its turn once; the first and
    the last have no neighbour on one side, and an empty list stands for it.

    Args:
        most_bytes: of the states of a lot; one that is larger makes a lot of its own.
    """
    lots: list[list[str]] = []
    held = 0
    for name in names:
        size = state[name].numel() * state[name].element_size()
        alike = lots and state[name].dtype == state[lots[-1][0]].dtype
        if not alike or held + size > most_bytes:
            lots.append([])
            held = 0
        lots[-1].append(name)
        held += size
    row: list[list[str]] = [[], [], *lots, [], []]
    for before, here, ahead in zip(row, row[1:], row[2:]):
        yield ahead, here, before
