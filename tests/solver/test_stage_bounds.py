"""Cuts between stages equal exhaustive enumeration, and what is said to be a bound of a pipeline is one, for random times."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from math import inf

import pytest

from autopar.graph.mesh import Mesh
from autopar.graph.schedules.known import build_order, goes_back, splits_backward, why_impossible
from autopar.graph.schedules.timeline import Durations, simulate
from autopar.solver.layouts import Layout, Place, least_seconds
from autopar.solver.stage_cuts import (
    PIECE_FIELDS,
    Piece,
    Segments,
    bound_chunks,
    bound_cuts,
    bound_drain,
    bound_every_cut,
    bound_turns,
    choose_cuts,
    raise_segments,
    receive_table,
    sum_segments,
)


def every_cut(count, stages):
    """The units of each stage, for every way to cut."""
    for cuts in combinations(range(1, count), stages - 1):
        yield cuts, [range(a, b) for a, b in zip((0, *cuts), (*cuts, count))]


def draw_row(rng, count):
    """Random seconds; often equal ones."""
    kind = rng.choice(("any", "equal", "few", "wide"))
    draw = {"any": rng.random, "equal": lambda: 1.0, "few": lambda: rng.choice((0.5, 1.0, 2.0)), "wide": lambda: 10 ** rng.uniform(-6, 3)}[kind]
    return [draw() for _ in range(count)]


@pytest.mark.parametrize("seed", range(150))
def test_cuts_equal_every_way_to_cut(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    stages = rng.randint(1, min(4, count))
    step = draw_row(rng, count)
    turn = [s * rng.random() / 4 for s in step]
    found = choose_cuts([sum_segments(step)] * stages)
    ways = list(every_cut(count, stages))
    worst = {cuts: max(sum(step[k] for k in mine) for mine in parts) for cuts, parts in ways}
    assert worst[found] == pytest.approx(min(worst.values()), rel=1e-9)
    spread = {cuts: sum(sum(step[k] for k in mine) ** 2 for mine in parts) for cuts, parts in ways if cuts == found}
    assert set(spread) == {found}
    bound = min(max(sum(step[k] for k in mine) + sum(turn[: mine[0]]) for mine in parts) for _, parts in ways)
    assert bound_cuts([sum_segments(step)] * stages, sum_segments(turn)) == pytest.approx(bound, rel=1e-9, abs=1e-300)


def test_every_stage_has_a_unit_even_where_units_cost_nothing():
    assert choose_cuts([sum_segments([0.0, 1.0])] * 2) == (1,)


def sums_of(steps, forward, loops, update, backward):
    """Segments that cost what their units cost, and need nothing before the turns."""
    return Segments(*map(sum_segments, (steps, forward, [0.0] * len(steps), loops, backward, update)))


def draw_pipeline(rng, kind, has_updates):
    """(layout, seconds of the forward, the backward and the update of each unit, seconds of the step, the cuts), the cuts random."""
    while True:
        stages, turns = rng.randint(2, 4), rng.choice((1, 2, 3, 4, 6, 8, 12))
        chunks = rng.randint(2, 3) if kind == "interleaved" else 2 if kind == "zbv" else 1
        if why_impossible(kind, stages, turns, chunks) is None:
            break
    count = rng.randint(stages * chunks, 12)
    forward, backward, update = (draw_row(rng, count) for _ in range(3))
    update = update if has_updates else [0.0] * count
    weight = [b * rng.random() for b in backward]
    cuts = sorted(rng.sample(range(1, count), stages * chunks - 1))
    parts = [range(a, b) for a, b in zip((0, *cuts), (*cuts, count))]
    sums = [tuple(sum(row[k] for k in mine) for mine in parts) for row in (forward, backward, weight)]
    order = build_order(kind, stages, turns, chunks)
    line = simulate(order, Durations(sums[0], sums[1], sums[2] if splits_backward(kind) else ()))
    after = [sum(update[k] for part, rank in zip(parts, order.rank_of) if rank == r for k in part) for r in range(stages)]
    step = max(end + late for end, late in zip(line.end_s, after))
    return Layout(Place(stages, Mesh(())), turns, kind, chunks), forward, backward, update, step, cuts


def stages_of(cuts, count, stages):
    """The (first unit, end) of each chunk of each stage."""
    ends = list(zip((0, *cuts), (*cuts, count)))
    return [ends[s::stages] for s in range(stages)]


def check_bounds(layout, forward, backward, update, step, cuts):
    """By the least times of units, with the best cuts there are: no more than this step, with its cuts."""
    turn = [f + b for f, b in zip(forward, backward)]
    steps, stages = [layout.num_microbatches * t + u for t, u in zip(turn, update)], layout.place.num_stages
    assert least_seconds(layout, sum(turn), sum(update)) <= step * (1 + 1e-9)
    loops = [layout.num_microbatches * t for t in turn]
    if not splits_backward(layout.schedule):
        own = bound_turns(sums_of(steps, forward, loops, update, backward), cuts, stages)
        assert own <= step * (1 + 1e-9)
        busy = [layout.num_microbatches * sum(turn[k] for a, b in mine for k in range(a, b)) for mine in stages_of(cuts, len(turn), stages)]
        assert own >= max(busy) * (1 - 1e-9)
    if layout.chunks > 1:
        assert bound_chunks([sum_segments(steps)] * (stages * layout.chunks - goes_back(layout.schedule)), sum_segments(forward), stages) <= step * (1 + 1e-9)
        return
    low = bound_cuts([sum_segments(steps)] * stages, sum_segments(forward))
    assert low <= step * (1 + 1e-9)
    if not splits_backward(layout.schedule):
        assert low <= bound_drain([sum_segments(steps)] * stages, sums_of(steps, forward, loops, update, backward))[0] <= step * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved"])
def test_bounds_hold_for_every_simulated_pipeline(kind):
    rng = random.Random(kind)
    for _ in range(200):
        check_bounds(*draw_pipeline(rng, kind, False))


def test_the_bound_of_chunks_holds_with_updates():
    rng = random.Random(7)
    for _ in range(200):
        check_bounds(*draw_pipeline(rng, "interleaved", True))


@pytest.mark.parametrize("seed", range(40))
def test_no_chunks_of_any_lengths_are_faster_than_the_bound_says(seed):
    """Not where the first, or the last, of each rank have nothing to do; and it is no less than what bounds equal ones."""
    rng = random.Random(seed)
    stages, chunks = rng.randint(2, 6), rng.randint(2, 5)
    turns = stages * rng.randint(1, 4)
    layout, order = Layout(Place(stages, Mesh(())), turns, "interleaved", chunks), build_order("interleaved", stages, turns, chunks)
    bound = least_seconds(layout, 1.0)
    assert bound * (1 + 1e-12) >= 1 / (chunks * (1 - (1 - 1 / (chunks * turns)) ** stages))
    for idle in (range(0), range(stages), range(stages * (chunks - 1), stages * chunks)):
        for _ in range(20):
            forward, backward = ([0.0 if c in idle else rng.random() ** rng.choice((1, 8)) for c in range(stages * chunks)] for _ in range(2))
            whole = sum(forward) + sum(backward)
            line = simulate(order, Durations(tuple(s / whole for s in forward), tuple(s / whole for s in backward)))
            assert line.makespan_s >= bound * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_bounds_hold_with_updates_beside_the_drain(kind):
    rng = random.Random(kind)
    for _ in range(200):
        check_bounds(*draw_pipeline(rng, kind, True))


@pytest.mark.parametrize("kind", ["zero-bubble", "zbv"])
def test_bounds_hold_where_the_backward_is_split(kind):
    rng = random.Random(3)
    for _ in range(200):
        check_bounds(*draw_pipeline(rng, kind, False))


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_with_the_drain_equals_every_way_to_cut(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 8)
    stages, turns = rng.randint(1, min(4, count)), rng.choice((1, 2, 4))
    forward, backward, update = (draw_row(rng, count) for _ in range(3))
    loops = [turns * (f + b) for f, b in zip(forward, backward)]
    steps = [loop + u for loop, u in zip(loops, update)]

    def last(parts):
        """The end of the latest stage, each waiting for the turns of all later ones."""
        ends = []
        for s, mine in enumerate(parts):
            ends.append(sum(forward[: mine[0]]) + sum(steps[k] for k in mine))
            for later in parts[s + 1 :]:
                drain = sum(backward[mine[0] : later[0]])
                ends.append(sum(forward[: later[0]]) + sum(loops[k] for k in later) + drain + sum(update[k] for k in mine))
        return max(ends)

    least = min(last(parts) for _, parts in every_cut(count, stages))
    low = bound_cuts([sum_segments(steps)] * stages, sum_segments(forward))
    found, cuts = bound_drain([sum_segments(steps)] * stages, sums_of(steps, forward, loops, update, backward))
    every, cuts_of_every = bound_every_cut([sum_segments(steps)] * stages, sums_of(steps, forward, loops, update, backward), {})
    assert every == pytest.approx(least) and last([range(a, b) for a, b in zip((0, *cuts_of_every), (*cuts_of_every, count))]) == pytest.approx(least)
    raised, others = bound_every_cut([sum_segments(steps)] * stages, sums_of(steps, forward, loops, update, backward), {cuts_of_every: inf})
    assert raised >= every * (1 - 1e-9) and (others != cuts_of_every or stages in (1, count))
    best = [range(a, b) for a, b in zip((0, *cuts), (*cuts, count))]
    assert len(best) == stages and last(best) <= least + (sum(loops) + sum(update)) / 8000
    assert found <= least * (1 + 1e-9)
    assert found >= least - (sum(loops) + sum(update)) / 16000  # it halves fourteen times
    assert low <= found * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_of_chunks_knows_what_each_segment_costs(seed):
    """As segments that cost more than their units."""
    rng = random.Random(seed)
    count, stages = rng.randint(4, 9), 2
    segments = sum_segments(draw_row(rng, count)) + rng.random()
    chunks = 2 * stages
    sums = [sum(segments[a, b] for a, b in zip((0, *cuts), (*cuts, count))) for cuts, _ in every_cut(count, chunks)]
    alone = max(segments[k, k + 1] for k in range(count))
    assert bound_chunks([segments] * chunks, sum_segments([0.0] * count), stages) == pytest.approx(max(min(sums) / stages, alone))


def test_the_bound_of_given_chunks_is_reached_by_equal_ones():
    """Interleaved, equal chunks: all M turns of a rank's chunks, and the fill and drain of one chunk per rank before."""
    for stages, chunks, turns in ((2, 2, 4), (4, 2, 8), (4, 3, 8)):
        count = stages * chunks
        line = simulate(build_order("interleaved", stages, turns, chunks), Durations((1.0,) * count, (2.0,) * count))
        row = [1.0] * count
        loops = [3.0 * turns] * count
        bound = bound_turns(sums_of(loops, row, loops, [0.0] * count, [2.0] * count), range(1, count), stages)
        assert bound == line.makespan_s == 3.0 * turns * chunks + 3.0 * (stages - 1)


def test_the_bound_is_reached_by_equal_stages():
    """As many equal units as stages: 1F1B takes (M + S - 1) turns, which is what the bound of the cuts says of the last stage."""
    for stages in (2, 3, 4):
        for turns in (stages, 2 * stages, 12):
            order = build_order("1f1b", stages, turns)
            line = simulate(order, Durations((1.0,) * stages, (2.0,) * stages))
            assert bound_cuts([sum_segments([3.0 * turns] * stages)] * stages, sum_segments([3.0] * stages)) == line.makespan_s


def draw_crossings(rng, count, turns):
    """Values between random units, some of them skips: (source, forward targets, backward target, seconds) and what is received of them by segment."""
    found = [(a, b, 10 ** rng.uniform(-1, 1)) for a in range(count - 1) for b in range(a + 1, count) if b == a + 1 or rng.random() < 0.2]
    forward = sum(receive_table(count, a, [b], seconds) for a, b, seconds in found)
    backward = sum(receive_table(count, b, [a], seconds) for a, b, seconds in found)
    return (forward, backward), found


def with_crossings(plain, forward, backward, turns):
    """Segments with what they receive."""
    both = turns * (forward + backward)
    return replace(plain, step_s=plain.step_s + both, forward_s=plain.forward_s + forward, loop_s=plain.loop_s + both, backward_s=plain.backward_s + backward)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved"])
def test_bounds_hold_where_stages_receive(kind):
    """Each value goes forward, and its gradient back, wherever a cut lies between."""
    rng = random.Random(kind)
    reached = 0.0
    for _ in range(200):
        layout, forward, backward, update, _, cuts = draw_pipeline(rng, kind, True)
        count, stages, turns = len(forward), layout.place.num_stages, layout.num_microbatches
        crossings, rows = draw_crossings(rng, count, turns)
        parts = [range(a, b) for a, b in zip((0, *cuts), (*cuts, count))]
        taken = [sum(forward[k] for k in mine) + sum(s for a, b, s in rows if b in mine and a not in mine) for mine in parts]
        given = [sum(backward[k] for k in mine) + sum(s for a, b, s in rows if a in mine and b not in mine) for mine in parts]
        order = build_order(kind, stages, turns, layout.chunks)
        line = simulate(order, Durations(tuple(taken), tuple(given)))
        after = [sum(update[k] for part, rank in zip(parts, order.rank_of) if rank == r for k in part) for r in range(stages)]
        step = max(end + late for end, late in zip(line.end_s, after))
        loops = [turns * (f + b) for f, b in zip(forward, backward)]
        plain = sums_of([loop + u for loop, u in zip(loops, update)], forward, loops, update, backward)
        segments = with_crossings(plain, *crossings, turns)
        own = bound_turns(segments, cuts, stages)
        assert own <= step * (1 + 1e-9)
        reached = max(reached, own / step)
        if layout.chunks > 1:
            assert bound_chunks([segments.step_s] * len(parts), segments.forward_s, stages) <= step * (1 + 1e-9)
            continue
        tables = [segments.step_s] * stages
        low, drained = bound_cuts(tables, segments.forward_s), bound_drain(tables, segments)[0]
        assert bound_cuts(tables, plain.forward_s) <= low * (1 + 1e-9) and low <= drained * (1 + 1e-9) and drained <= step * (1 + 1e-9)
    assert reached > 0.99


def test_one_microbatch_waits_for_everything_that_crosses():
    """Equal units, one a stage, one microbatch: the bound is the step."""
    forward, backward = (sum(receive_table(4, a, [b], 10.0) for a, b in pairs) for pairs in ([(0, 1), (1, 2), (2, 3)], [(1, 0), (2, 1), (3, 2)]))
    segments = with_crossings(sums_of([3.0] * 4, [1.0] * 4, [3.0] * 4, [0.0] * 4, [2.0] * 4), forward, backward, 1)
    assert bound_drain([segments.step_s] * 4, segments)[0] == pytest.approx(4 * 3.0 + 6 * 10.0, rel=1e-3)


def test_a_piece_raises_its_segment_alone():
    plain = Segments(*(sum_segments([1.0, 2.0, 3.0]),) * 6)
    raised = raise_segments(plain, [Piece(0, 2, 5.0, 1.0, 4.0, 9.0, 3.0, 2.0)])
    for name, seconds in zip(PIECE_FIELDS, (5.0, 3.0, 4.0, 9.0, 3.0, 3.0)):
        before, after = getattr(plain, name), getattr(raised, name)
        assert after[0, 2] == seconds
        after[0, 2] = before[0, 2]
        assert (after == before).all()


def test_no_stage_begins_before_all_are_prepared():
    """Two units, one a stage, of which the second prepares 5 s and the first updates 7 s."""
    rows = {"prepare_s": [1.0, 5.0], "loop_s": [3.0, 3.0], "update_s": [7.0, 1.0]}
    step = [sum(row) for row in zip(*rows.values())]
    segments = Segments(*map(sum_segments, (step, [1.0] * 2, rows["prepare_s"], rows["loop_s"], [2.0] * 2, rows["update_s"])))
    assert bound_turns(segments, (1,), 2) == 5.0 + 1.0 + 3.0 + 2.0 + 7.0


def test_a_value_is_received_once_by_a_stage_that_does_not_make_it():
    table = receive_table(5, 1, [2, 4], 3.0)
    assert table[2, 3] == table[3, 5] == table[2, 5] == 3.0
    assert table[1, 5] == table[0, 2] == table[3, 4] == 0.0
