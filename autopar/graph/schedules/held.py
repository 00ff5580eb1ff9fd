"""What a schedule holds: how many microbatches' activations are in flight on each stage and rank.

In: an `Order`. Out: the most that are held at once. It depends on the lists alone, not on durations: a rank does its actions in order, and
what it holds changes only with them. A forward's activations are there from its start to the end of its backward; where the backward is
split, a part of them may go after the input gradient, and the rest waits for the weight gradient. Where there is no backward, they go with the forward.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ScheduleError
from .order import Order


def count_held(order: Order) -> tuple[int, ...]:
    """Stage -> the most microbatches whose activations it holds at once, up to the end of their backward (of the weights' where split)."""
    most = [0] * order.num_stages
    for rank in range(len(order.rows)):
        own = [stage for stage, mine in enumerate(order.rank_of) if mine == rank]
        for stage, counts in zip(own, zip(*list_flying(order, rank))):
            most[stage] = max(counts)
    return tuple(most)


def list_flying(order: Order, rank: int) -> tuple[tuple[int, ...], ...]:
    """In each action of a rank, and after them: of each of its stages the microbatches between their forward and the end of their backward, the one at hand included."""
    count, size, waits = order.num_microbatches, order.num_stages * order.num_microbatches, _waits(order)
    place = {stage: k for k, stage in enumerate(stage for stage, own in enumerate(order.rank_of) if own == rank)}
    found, flying = [], [0] * len(place)
    for code in order.rows[rank]:
        mine = place[code % size // count]
        flying[mine] += code < size
        found.append(tuple(flying))
        flying[mine] -= code >= 2 * size or (code >= size and code not in order.split) or not waits
    return (*found, tuple(flying))


def _waits(order: Order) -> bool:
    """True where forwards have backwards."""
    return any(code >= order.num_stages * order.num_microbatches for row in order.rows for code in row)


def peak_held(order: Order, whole: Sequence[float], late: Sequence[float] = ()) -> tuple[float, ...]:
    """Rank -> the most that its stages' activations take together at any time.

    Args:
        whole: per stage, what one microbatch takes (bytes, or 1 to count) from its forward to the end of its backward or input gradient.
        late: per stage, the part of `whole` that stays from there until the weight gradient is over; all of it where empty. Only read where
            backwards are split.
    """
    late = late or whole
    for name, given in (("whole", whole), ("late", late)):
        if len(given) != order.num_stages:
            raise ScheduleError(f"{order.name}: {name}: expected {order.num_stages} numbers, one a stage, found {len(given)}")
    count, size = order.num_microbatches, order.num_stages * order.num_microbatches
    if not _waits(order):
        return tuple(max(whole[code // count] for code in row) for row in order.rows)
    gone = [a - b for a, b in zip(whole, late)]
    peaks = []
    for row in order.rows:
        now = most = 0
        for code in row:
            if code < size:
                now += whole[code // count]
                if now > most:
                    most = now
            elif code >= 2 * size:
                now -= late[code // count - 2 * order.num_stages]
            elif code in order.split:
                now -= gone[code // count - order.num_stages]
            else:
                now -= whole[code // count - order.num_stages]
        peaks.append(most)
    return tuple(peaks)
