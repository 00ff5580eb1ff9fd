"""Messages under way: counts by hand, and that a rank that waits until no more are under way never waits for ever."""

import itertools

import pytest

from autopar.graph.schedules.known import KINDS, build_order, runs_backward, why_impossible
from autopar.graph.schedules.under_way import SLACK, Wire, count_under_way

ALL = [
    (kind, ranks, microbatches, chunks)
    for kind, ranks, microbatches, chunks in itertools.product(KINDS, range(2, 6), (1, 2, 3, 4, 5, 8, 12), (1, 2, 3))
    if why_impossible(kind, ranks, microbatches, chunks) is None
]


def wires_of(order, skips=True):
    """From each chunk to the next and back; with skips also from the first to the last."""
    count, size = order.num_microbatches, order.num_stages * order.num_microbatches
    places = [{code: place for place, code in enumerate(row)} for row in order.rows]
    last = order.num_stages - 1
    pairs = [(0, a, b) for a, b in zip(range(last), range(1, last + 1))] + [(0, 0, last)] * skips
    pairs += [(size, b, a) for _, a, b in pairs] if runs_backward(order.name) else []
    found = []
    for base, a, b in pairs:
        source, target = order.rank_of[a], order.rank_of[b]
        if source != target:
            sends = tuple(places[source][base + a * count + m] for m in range(count))
            found.append(Wire(source, target, sends, tuple(places[target][base + b * count + m] for m in range(count))))
    return found


def run(order, wires, most):
    """Let all ranks go on as far as they can; where each stops.

    A rank asks for what it receives in its next action when it begins the one at hand; `most` of (rank, target) says how many messages that nobody has asked for it may have
    sent before each action.
    """
    places, moved = [0] * len(order.rows), True
    asked = [1] * len(order.rows)  # the messages of so many actions are asked for
    while moved:
        moved = False
        for rank, row in enumerate(order.rows):
            place = places[rank]
            if place == len(row):
                continue
            asked[rank] = max(asked[rank], place + 2)
            here = all(places[w.source] > a for w in wires if w.target == rank for a, b in zip(w.sends, w.receives) if b == place)
            free = all(
                sum(a < place and b >= asked[target] for w in wires if (w.source, w.target) == (rank, target) for a, b in zip(w.sends, w.receives)) <= limit[place]
                for (source, target), limit in most.items()
                if source == rank
            )
            if here and free:
                places[rank] += 1
                moved = True
    return places


def limits_of(order, wires):
    """(source, target) -> messages that may be under way before each action, as `runtime.stages` adds them up."""
    found = {}
    for rank in range(len(order.rows)):
        mine = [w for w in wires if w.source == rank]
        for wire, counts in zip(mine, count_under_way(order, rank, mine)):
            known = found.get((rank, wire.target), (0,) * len(counts))
            found[rank, wire.target] = tuple(map(sum, zip(known, counts)))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_for_ever(kind):
    for name, ranks, microbatches, chunks in ALL:
        if name == kind:
            order = build_order(kind, ranks, microbatches, chunks)
            wires = wires_of(order)
            assert run(order, wires, limits_of(order, wires)) == [len(row) for row in order.rows], (kind, ranks, microbatches, chunks)


def test_a_rank_that_may_send_nothing_ahead_waits_for_ever():
    """A skip over three stages is taken after more has to be sent: the check above can fail."""
    order = build_order("1f1b", 4, 5)
    wires = wires_of(order)
    assert run(order, wires, {pair: (0,) * len(limit) for pair, limit in limits_of(order, wires).items()}) != [len(row) for row in order.rows]


def test_counts_of_1f1b_by_hand():
    """0F0 0F1 0B0 0F2 0B1 0B2 beside 1F0 1B0 1F1 1B1 1F2 1B2: what the first sends is taken at once; it is held for two actions."""
    assert SLACK == 2
    order = build_order("1f1b", 2, 3)
    there, back = wires_of(order, skips=False)
    assert there == Wire(0, 1, (0, 1, 3), (0, 2, 4)) and back == Wire(1, 0, (1, 3, 5), (2, 4, 5))
    sent, asked = count_under_way(order, 0, [there, back])
    assert sent == (0, 1, 2, 1, 1, 1, 0)
    assert asked == (0, 1, 0, 1, 1, 0, 0)  # of 0B0 during 0F1, of 0B1 during 0F2, of 0B2 during 0B1
    taken, returned = count_under_way(order, 1, [there, back])
    assert taken == (0, 1, 0, 1, 0, 0, 0)
    assert returned == (0, 0, 1, 1, 1, 1, 1)


def test_a_skip_is_under_way_until_its_stage_asks_for_it():
    order = build_order("forward-only", 4, 8)
    wire = Wire(0, 3, tuple(range(8)), tuple(range(8)))
    [sent] = count_under_way(order, 0, [wire])
    assert max(sent) == 2 and sent[0] == 0
    [taken] = count_under_way(order, 3, [wire])
    assert taken == (1, 1, 1, 1, 1, 1, 1, 0, 0)
