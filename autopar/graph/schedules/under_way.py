"""Messages under way: how many each rank holds while it runs an action, because they are sent and not taken yet, or asked for and not received yet.

In: an `Order` and the places at which messages are sent and received. Out: counts. When all passes of a kind take equally long and the backward twice as long as the forward,
the schedule says when each action begins. A rank asks for what an action receives when it begins the action before; a message is under way from the end of the action
that sends it until it is asked for, and for `SLACK` actions of its sender at least, for it takes time to travel. No rank holds more: it waits before an action until no
more are under way than are counted here (`runtime.stages`). Nobody waits for ever so, for the times of the schedule are an order in which all can run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .order import Order
from .timeline import Durations, action_times

SLACK = 2  # a rank may be so many actions ahead of what the schedule's times say


@dataclass(frozen=True, slots=True)
class Wire:
    """What one rank sends to another, once for each of several actions.

    Args:
        source, target: ranks.
        sends: the places of the sending actions in the source's list.
        receives: of each of them the place in the target's list of the action that receives it.
    """

    source: int
    target: int
    sends: tuple[int, ...]
    receives: tuple[int, ...]


def count_under_way(order: Order, rank: int, wires: Sequence[Wire]) -> tuple[tuple[int, ...], ...]:
    """Of each wire how many of its messages a rank holds at most during each action of its list, and after them.

    Args:
        wires: between this rank and others, all there are.
    Returns:
        per wire one number for each action and one for what follows all of them. At the target the messages of the action itself are not among them.
    """
    begins = _list_begins(order)
    found = []
    for wire in wires:
        spans = _sent(wire, begins) if wire.source == rank else _asked(wire, [other for other in wires if (other.source, other.target) == (wire.source, rank)])
        change = [0] * (len(order.rows[rank]) + 2)
        for first, last in spans:
            change[first] += 1
            change[last + 1] -= 1
        counts, held = [], 0
        for step in change[:-1]:
            held += step
            counts.append(held)
        found.append(tuple(counts))
    return tuple(found)


def _sent(wire: Wire, begins: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """(first, last) place, both included, at which the source holds each message."""
    mine, theirs = begins[wire.source], begins[wire.target]
    found = []
    for sent, received in zip(wire.sends, wire.receives, strict=True):
        until = bisect_left(mine, theirs[max(0, received - 1)]) - 1  # the last action that begins before it is asked for
        found.append((sent + 1, min(len(mine) - 1, max(sent + SLACK, until))))
    return found


def _asked(wire: Wire, same_way: Sequence[Wire]) -> list[tuple[int, int]]:
    """(first, last) place at which the target holds each message before the action that receives it. What was sent before it is asked for no later."""
    every = sorted(pair for other in same_way for pair in zip(other.sends, other.receives, strict=True))
    asked: dict[tuple[int, int], int] = {}
    first = len(every) and max(received for _, received in every)
    for sent, received in reversed(every):
        first = min(first, max(0, received - 1))
        asked[sent, received] = first
    return [(asked[pair], pair[1] - 1) for pair in zip(wire.sends, wire.receives, strict=True) if asked[pair] < pair[1]]


@lru_cache(maxsize=4)
def _list_begins(order: Order) -> tuple[tuple[float, ...], ...]:
    """Rank -> when each action of its list begins, and when the last one ends."""
    one = (1.0,) * order.num_stages
    times = action_times(order, Durations(one, (2.0,) * order.num_stages, one if order.split else ()))
    return tuple((*(begin for begin, _ in row), row[-1][1]) for row in times)
