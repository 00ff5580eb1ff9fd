"""What published runs of other frameworks are priced with: the allocator, FSDP2's pieces, Zero Bubble's grid, states in flat buffers."""

from __future__ import annotations

import pytest

from autopar.cost.habits import flat_states_bytes, flat_states_seconds
from autopar.graph.schedules.check import check_schedule
from autopar.graph.schedules.held import peak_held
from autopar.graph.schedules.known import build_order
from autopar.graph.schedules.schedule import parse_csv
from autopar.graph.schedules.timeline import Durations, simulate
from autopar.graph.tensor import Kind, size_bytes
from benchmarks.allocator import Piece, reserved_bytes
from benchmarks.alpa import combined_bytes
from benchmarks.fsdp2 import list_pieces
from benchmarks.zero_bubble import Passes, build_grid, kept_share, longest_span
from tests.cost.test_habits import price

MIB = 2**20

# the allocator


@pytest.mark.parametrize(
    ("pieces", "mib"),
    [
        ([Piece(1, 0, 0)], 2),  # a small segment
        ([Piece(MIB, 0, 1), Piece(MIB, 1, 1)], 2),  # two in one
        ([Piece(MIB + 1, 0, 0)], 20),  # a large segment
        ([Piece(4 * MIB, 0, 1)] * 5, 20),
        ([Piece(11 * MIB, 0, 0)], 12),  # one of its own, in steps of 2 MiB
        ([Piece(12 * MIB, 0, 0), Piece(12 * MIB, 1, 1)], 12),  # used again
        ([Piece(12 * MIB, 0, 0), Piece(12 * MIB, 1, 1, stream=1)], 24),  # not by another stream
        ([Piece(12 * MIB, 0, 0), Piece(24 * MIB, 1, 1)], 36),  # what is free is too small
        ([Piece(24 * MIB, 0, 0), Piece(12 * MIB, 1, 1), Piece(12 * MIB, 1, 1)], 24),  # split
    ],
)
def test_what_the_allocator_takes(pieces, mib):
    assert reserved_bytes(pieces) == mib * MIB


def test_free_neighbours_are_one_block_again():
    halves = [Piece(12 * MIB, 1, 1), Piece(12 * MIB, 1, 1)]
    assert reserved_bytes([Piece(24 * MIB, 0, 0), *halves, Piece(24 * MIB, 2, 2)]) == 24 * MIB


def test_a_state_made_late_breaks_up_a_free_block():
    state, large = Piece(12 * MIB, 1, 1, stays=True), Piece(40 * MIB, 0, 0)
    assert reserved_bytes([large, state], steps=1) == 40 * MIB
    assert reserved_bytes([large, state], steps=2) == reserved_bytes([large, state], steps=5) == 80 * MIB


# Zero Bubble's grid


def passes_of(hidden, heads, seq):
    """In units of a token's work. Source: Qi et al. 2024, Table 1: F is b s h (24 h + 4 s) FLOPs, B b s h (24 h + 8 s), W b s h (24 h)."""
    return Passes(24 * hidden + 4 * seq, 24 * hidden + 8 * seq, 24 * hidden, kept_share(hidden, heads, seq))


@pytest.mark.parametrize(("ranks", "count", "limit"), [(2, 1, 2), (4, 8, 8), (8, 24, 16), (8, 24, 11), (4, 3, 8), (3, 7, 1), (1, 4, 2)])
def test_grid_runs_and_keeps_its_limit(ranks, count, limit):
    passes = passes_of(2304, 24, 1024)
    grid = build_grid([passes] * ranks, count, limit)
    check_schedule(parse_csv(grid))
    held = peak_held(build_order(grid, ranks, count), (1.0,) * ranks, (passes.kept,) * ranks)
    assert max(held) <= limit + 1e-6


def span_of(schedule, passes, count, send_s):
    ranks = len(passes)
    each = ([p.forward_s for p in passes], [p.input_s + p.weight_s for p in passes], [p.weight_s for p in passes])
    return longest_span(build_order(schedule, ranks, count), Durations(*map(tuple, each), (send_s,) * (ranks - 1)))


def test_twice_the_memory_leaves_hardly_a_bubble():
    """Source: github.com/sail-sg/zero-bubble-pipeline-parallelism, README: ZB-2p has no bubble, ZB-1p a third of 1F1B's."""
    passes = [Passes(10.0, 10.0, 10.0, 0.5)] * 8
    twice, once = (span_of(build_grid(passes, 24, limit, 0.1), passes, 24, 0.1) / 720 - 1 for limit in (16, 8))
    assert 0 <= twice < 0.01 and once == pytest.approx(7 * 10.2 / 720, rel=0.02)


@pytest.mark.parametrize(("ranks", "count"), [(8, 2), (8, 4), (8, 8), (16, 4), (16, 16)])
def test_few_microbatches_take_their_closed_form(ranks, count):
    """Source: Qi et al. 2024, appendix H: (m + p - 1) (T_F + T_B) + T_W where m <= p."""
    passes = [Passes(18.5, 18.1, 9.3, 0.37)] * ranks
    order = build_order(build_grid(passes, count, 2 * ranks), ranks, count)
    times = Durations((18.5,) * ranks, (27.4,) * ranks, (9.3,) * ranks)
    assert simulate(order, times).makespan_s == pytest.approx((count + ranks - 1) * 36.6 + 9.3)


@pytest.mark.parametrize("count", [24, 32, 64])
def test_the_memory_of_1f1b_gives_the_order_by_hand(count):
    """Of equal ranks ZB-1p takes what ZB-H1 takes."""
    passes = [passes_of(4096, 32, 1024)] * 8
    work = count * (passes[0].forward_s + passes[0].input_s + passes[0].weight_s)
    found, by_hand = (span_of(schedule, passes, count, 0.0) / work for schedule in (build_grid(passes, count, 8), "zero-bubble"))
    assert found == pytest.approx(by_hand, rel=1e-9)


def test_a_slow_last_rank_is_never_idle_for_long():
    """The order is that of the ranks' own seconds: where one has most of the work, a step is hardly longer than its work."""
    passes = [Passes(10.0, 0.0, 19.0, 0.4), *[Passes(15.0, 17.0, 11.0, 0.4)] * 6, Passes(17.0, 18.0, 14.0, 0.4)]
    grid = build_grid(passes, 24, 16)
    check_schedule(parse_csv(grid))
    assert span_of(grid, passes, 24, 0.0) < 1.01 * 24 * (17.0 + 18.0 + 14.0)


# flat states


def program_of(**words):
    from autopar.solver.stage_solve import stage_program

    stage = price(price_only=True, **words).stages[0]
    return stage_program(stage.case, stage.assignment)[1]


def test_states_that_are_cut_already_gain_nothing():
    program = program_of(pp=1, dp=8, microbatches=2, zero=1)
    seconds = {node.name: 1.0 for node in program.graph.nodes}
    assert flat_states_bytes(program, (0,)) == 0 == flat_states_seconds(program, (0,), seconds)


def test_whole_states_gain_all_but_their_part():
    program = program_of(pp=1, dp=8, microbatches=2, zero=0)
    values = {v.name: v for v in program.graph.values}
    whole = sum(size_bytes(values[n]) for n in program.graph.inputs if values[n].kind is Kind.OPTIM)
    axes = tuple(range(len(program.mesh.axes)))
    assert flat_states_bytes(program, axes) == pytest.approx(whole * 7 / 8)
    seconds = {node.name: 1.0 for node in program.graph.nodes}
    update = sum(node.phase.value == "update" and not node.op.startswith("comm.") for node in program.graph.nodes)
    assert flat_states_seconds(program, axes, seconds) == pytest.approx(update * 7 / 8)


# what others hold


def bytes_of(program, kind):
    values = {v.name: v for v in program.graph.values}
    return sum(size_bytes(values[n]) for n in program.graph.inputs if values[n].kind is kind)


def test_gradients_that_are_sent_at_once_are_all_there():
    program = program_of(pp=1, dp=8, microbatches=2, zero=1)
    params, states = bytes_of(program, Kind.PARAM), bytes_of(program, Kind.OPTIM)
    assert combined_bytes(program, gathers_at_once=False) >= params + states + params  # gradients are whole, as parameters are


def test_fsdp2_keeps_states_and_no_parameters_beside_them():
    program = program_of(pp=1, dp=8, microbatches=2, zero=3)
    stays = [p for p in list_pieces(program) if p.stays]
    assert sum(p.bytes for p in stays) == sum(bytes_of(program, kind) for kind in (Kind.OPTIM, Kind.BUFFER, Kind.BATCH))
    assert {p.stream for p in list_pieces(program)} == {0, 1, 2}
