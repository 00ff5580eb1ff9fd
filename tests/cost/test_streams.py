"""Streams: what hides, what sticks out, in small passes that can be done by hand, and against the law that plans are priced by."""

import random
from dataclasses import replace

import pytest

from autopar.cost.streams import TRAIL, Piece, Role, run_pass


def compute(seconds, block="", name="c"):
    return Piece(name, Role.COMPUTE, seconds, block)


def comm(role, seconds, block="", name="m"):
    return Piece(name, role, seconds, block)


def test_compute_alone():
    found = run_pass([compute(1.0), compute(2.0)], 0.5)
    assert (found.seconds, found.left_s, found.waits) == (3.0, 0.0, ())
    assert [(r.start_s, r.end_s) for r in found.ran] == [(0.0, 1.0), (1.0, 3.0)]


def test_a_blocking_collective_stops_compute():
    found = run_pass([compute(1.0), comm(Role.BLOCKING, 0.5, name="all_reduce"), compute(2.0)], 0.5)
    assert found.seconds == 3.5 and found.waits == (("all_reduce", 0.5),)


def test_an_early_gather_starts_behind_what_blocks_in_its_block():
    """Its axis is free from 1.5 on; along another it would have started with the block."""
    pieces = [compute(1.0, "h.0"), comm(Role.BLOCKING, 0.5, "h.1", "grad"), compute(4.0, "h.1"), comm(Role.EARLY, 2.0, "h.1", "saved"), compute(1.0, "h.1")]
    found = run_pass(pieces, 0.5)
    assert found.seconds == pytest.approx(7.5) and dict(found.waits) == {"grad": pytest.approx(0.5), "saved": pytest.approx(1.0)}
    gather = next(r for r in found.ran if r.piece.name == "saved")
    assert (gather.start_s, gather.end_s) == (1.5, 3.5)
    blocks = Piece("grad", Role.BLOCKING, 0.5, "h.1", ("dp",))
    found = run_pass([pieces[0], pieces[2], blocks, *pieces[3:]], 0.0)
    assert next(r for r in found.ran if r.piece.name == "saved").start_s == 1.0


def test_a_prefetch_runs_beside_the_block_before():
    """Its reader's block is the second: it starts with the first, and costs a half of its time there."""
    found = run_pass([compute(4.0, "h.0"), comm(Role.PREFETCH, 2.0, "h.1", "gather"), compute(1.0, "h.1")], 0.5)
    assert found.seconds == pytest.approx(6.0) and found.waits == (("gather", pytest.approx(1.0)),)
    gather = next(r for r in found.ran if r.piece.name == "gather")
    assert (gather.start_s, gather.end_s) == (0.0, 2.0)


def test_in_no_block_a_prefetch_starts_where_the_program_starts_it():
    """Not with the first of a long stretch; what the program starts no later than that may start with the block before."""

    def begin(starts_at):
        pieces = [replace(compute(1.0, name=f"p{i}"), block="h.0" if i == 0 else "") for i in range(4)]
        pieces.insert(4, replace(comm(Role.PREFETCH, 0.5, "", "gather"), starts_at=starts_at))
        return next(r for r in run_pass(pieces, 0.5).ran if r.piece.name == "gather").start_s

    assert [begin(name) for name in ("", "p1", "p2", "p3")] == [0.0, 0.0, 2.0, 3.0]


def test_a_prefetch_that_is_too_long_is_waited_for():
    found = run_pass([compute(1.0, "h.0"), comm(Role.PREFETCH, 5.0, "h.1", "gather"), compute(1.0, "h.1")], 0.5)
    # 2 s beside the first block, of which 1 is lost; then 3 s alone
    assert found.seconds == pytest.approx(6.0) and dict(found.waits)["gather"] == pytest.approx(4.0)


def test_no_prefetch_before_its_own_first_block():
    """What the first block reads cannot start before the pass does."""
    found = run_pass([comm(Role.PREFETCH, 2.0, "h.0"), compute(1.0, "h.0"), compute(1.0, "h.1")], 0.5)
    assert found.seconds == pytest.approx(4.0)


def test_trailing_reductions_leave_a_rest():
    found = run_pass([compute(1.0), comm(Role.TRAILING, 3.0, name="reduce"), compute(1.0)], 0.5)
    assert found.seconds == pytest.approx(3.0) and found.left_s == pytest.approx(1.0)  # 2 s of compute beside 2 of 3


def test_a_pass_of_many_turns_ends_with_what_it_reduces():
    found = run_pass([compute(1.0), comm(Role.TRAILING, 3.0, name="reduce"), compute(1.0)], 0.5, waits_for_all=True)
    assert found.seconds == pytest.approx(4.0) and found.left == () and dict(found.waits)[TRAIL] == pytest.approx(1.0)


def test_nothing_hides_where_compute_and_links_share_the_cores():
    found = run_pass([compute(1.0, "h.0"), comm(Role.PREFETCH, 2.0, "h.1"), comm(Role.TRAILING, 1.0), compute(1.0, "h.1")], 1.0)
    assert found.seconds == pytest.approx(5.0)


@pytest.mark.parametrize("seed", range(200))
def test_time_is_conserved(seed):
    """What compute takes is its own seconds and what it waited; never less than each stream's work; never more than one after the other."""
    rng = random.Random(seed)
    share = rng.choice((0.0, 0.3, 0.5, 1.0))
    roles = (Role.COMPUTE, Role.COMPUTE, Role.BLOCKING, Role.PREFETCH, Role.EARLY, Role.TRAILING)
    pieces = [Piece(f"p{i}", rng.choice(roles), rng.random(), f"h.{i // 4}" if rng.random() < 0.9 else "") for i in range(rng.randint(1, 30))]
    waits = rng.random() < 0.5
    found = run_pass(pieces, share, waits)
    own = sum(p.seconds for p in pieces if p.role is Role.COMPUTE)
    sent = sum(p.seconds for p in pieces if p.role is not Role.COMPUTE)
    assert found.seconds == pytest.approx(own + sum(s for _, s in found.waits), abs=1e-9)
    assert found.seconds + found.left_s >= max(own, sent) - 1e-9
    assert found.seconds + found.left_s <= own + sent + 1e-9 and not (waits and found.left)
    assert own + share * min(sent, own) <= found.seconds + found.left_s + 1e-9
    for stream in (True, False):
        rows = [r for r in found.ran if (r.piece.role is Role.COMPUTE) == stream]
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in zip(rows, rows[1:]))


def test_axes_have_streams_of_their_own():
    """A blocking collective along one axis does not wait for what trails along another; what runs along both does."""
    def blocking(*axes):
        return Piece("blocks", Role.BLOCKING, 1.0, "", axes)

    trailing = Piece("trails", Role.TRAILING, 4.0, "", ("dp",))
    assert run_pass([trailing, blocking("tp")], 0.5).seconds == pytest.approx(1.0)
    assert run_pass([trailing, blocking("dp")], 0.5).seconds == pytest.approx(5.0)
    assert run_pass([trailing, blocking("tp", "dp")], 0.5).seconds == pytest.approx(5.0)
    found = run_pass([trailing, Piece("more", Role.TRAILING, 2.0, "", ("tp",)), compute(3.0)], 0.5)
    assert found.seconds == pytest.approx(5.0) and dict(found.left) == {}  # slowed once while both run: 4 s beside do 2 s of compute
    assert dict(run_pass([trailing, compute(1.0)], 0.5).left) == {"dp": pytest.approx(2.0)}
