"""Messages between two ranks: threads, and real gloo processes that run this same file (`python -m tests.runtime.test_messages TASK`)."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import AutoparError, ProgramError, RankError
from autopar.runtime import Arrival, ProcessComm, read_torchrun_env, run_ranks, solo_comm, start_process_group, stop_process_group

from .conftest import mesh_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
DTYPES = ["float32", "float64", "bfloat16", "int64", "int32", "bool", "complex64", "uint8"]
SHAPES = [(), (0, 3), (5,), (3, 2, 4)]
BIG = (2, 1024, 1024)  # 8 MB of float32
ONE = Arrival((0, 0), (2,), "float32")


def value(rank, number, shape, dtype):
    count = int(torch.Size(shape).numel())
    return ((torch.arange(count) * 3 + 7 * rank + number) % 5 - 2).to(getattr(torch, dtype)).view(shape)


def all_links(comm):
    ranks = range(max(2, comm.mesh.axes[0].size))
    return [(a, b) for a in ranks for b in ranks]


def neighbours(comm):
    size = comm.mesh.axes[0].size
    return (comm.rank - 1) % size, (comm.rank + 1) % size


# What both kinds of ranks do


def every_dtype(comm):
    """Two steps around the ring, each asked for in another order, and to itself."""
    comm.open_links(all_links(comm))
    before, after = neighbours(comm)
    whats = [(shape, dtype) for dtype in DTYPES for shape in SHAPES]
    results = []
    for step in range(2):
        arrivals = [Arrival((number, turn), shape, dtype) for number, (shape, dtype) in enumerate(whats) for turn in (-1, 0, 1)]
        comm.begin_step({before: arrivals, comm.rank: [Arrival((9, 9), (3,), "int64")]})
        for a in arrivals:
            x = value(comm.rank, a.key[0] + 100 * a.key[1] + step, a.shape, a.dtype)
            comm.send(x, after, a.key)
        mine = torch.arange(3) + comm.rank
        comm.send(mine, comm.rank, (9, 9))
        mine += 1
        order = torch.randperm(len(arrivals), generator=torch.Generator().manual_seed(step)).tolist()
        for position, i in enumerate(order):
            a = arrivals[i]
            if position % 3 == 0:
                comm.expect(before, a.key)
                comm.expect(before, a.key)
            got = comm.receive(before, a.key)
            assert got.shape == a.shape and got.is_contiguous()
            assert torch.equal(got, value(before, a.key[0] + 100 * a.key[1] + step, a.shape, a.dtype)), a
            results.append(got)
        comm.expect(comm.rank, (9, 9))
        results.append(comm.receive(comm.rank, (9, 9)))
        comm.end_step()
    return results


def strided(comm):
    """What is not contiguous, or is only marked as conjugated, arrives as what it is."""
    comm.open_links([(0, 1)])
    if comm.rank > 1:
        return
    comm.begin_step({0: [Arrival((0, -1), (4, 3), "int64"), Arrival((1, -1), (1,), "complex64")]} if comm.rank == 1 else {})
    if comm.rank == 0:
        comm.send(torch.arange(12).view(3, 4).T, 1, (0, -1))
        comm.send(torch.tensor([1 + 2j]).conj(), 1, (1, -1))
    else:
        assert torch.equal(comm.receive(0, (0, -1)), torch.arange(12).view(3, 4).T)
        assert torch.equal(comm.receive(0, (1, -1)), torch.tensor([1 - 2j]))
    comm.end_step()


def both_directions(comm):
    """All send before anybody receives."""
    comm.open_links(all_links(comm))
    before, after = neighbours(comm)
    for step in range(2):
        comm.begin_step({before: [Arrival((0, turn), BIG, "float32") for turn in range(3)]})
        for turn in range(3):
            comm.send(torch.full(BIG, 10.0 * comm.rank + turn + step), after, (0, turn))
        for turn in range(3):
            assert (comm.receive(before, (0, turn)) == 10.0 * before + turn + step).all()
        comm.end_step()


def nothing_is_held(comm):
    """Neither what was sent and is gone, within the step, nor what was received."""
    comm.open_links([(0, 1), (1, 0)])
    other = 1 - comm.rank
    if comm.rank > 1:
        return
    comm.begin_step({other: [Arrival((0, 0), BIG, "float32"), Arrival((1, 0), (), "bool"), Arrival((2, 0), (), "bool")]})
    x = torch.ones(BIG)
    sent = weakref.ref(x)
    comm.send(x, other, (0, 0))
    del x
    got = comm.receive(other, (0, 0))
    received = weakref.ref(got)
    del got
    comm.send(torch.tensor(True), other, (1, 0))
    comm.receive(other, (1, 0))  # so the other one has received
    for _ in range(200):  # the thread that waits may come a little later
        if sent() is None:
            break
        time.sleep(0.01)
    comm.send(torch.tensor(True), other, (2, 0))
    gc.collect()
    assert sent() is None and received() is None
    comm.receive(other, (2, 0))
    comm.end_step()


def broadcasts(comm):
    results = []
    for axis in comm.mesh.axes:
        for source in range(axis.size):
            for dtype in DTYPES:
                for shape in SHAPES:
                    x = value(comm.rank, source, shape, dtype)
                    results.append(comm.broadcast(x, axis.name, source))
                    assert torch.equal(x, value(comm.rank, source, shape, dtype)) and results[-1].is_contiguous()
            results.append(comm.broadcast((torch.arange(6) + comm.rank).view(2, 3).T, axis.name, source))
    return results


def after_an_aborted_step(comm):
    """Half of what was announced is sent, and half of that is received: the next step begins from nothing."""
    comm.open_links(all_links(comm))
    before, after = neighbours(comm)
    comm.begin_step({before: [Arrival((0, turn), (2,), "float32") for turn in range(4)]})
    for turn in range(2):
        comm.send(torch.zeros(2), after, (0, turn))
    comm.expect(before, (0, 2))
    comm.receive(before, (0, 0))
    for step in range(2):
        comm.begin_step({before: [Arrival((0, turn), (2,), "float32") for turn in range(4)]})
        for turn in range(4):
            comm.send(torch.full((2,), 5.0 + turn), after, (0, turn))
        assert [float(comm.receive(before, (0, turn))[1]) for turn in (3, 0, 1, 2)] == [8.0, 5.0, 6.0, 7.0]
        comm.end_step()


BOTH = [every_dtype, strided, both_directions, nothing_is_held, after_an_aborted_step]


# Threads


@pytest.mark.parametrize("what", BOTH)
def test_threads(what):
    run_ranks(mesh_of(2), what)
    run_ranks(mesh_of(3), what)


def test_broadcast_is_what_the_source_has():
    def main(comm):
        return [comm.broadcast(torch.tensor([comm.rank]), axis, source) for axis in "ab" for source in (0, 1)]

    for rank, got in enumerate(run_ranks(mesh_of(2, 2), main)):
        assert [int(x) for x in got] == [rank % 2, 2 + rank % 2, rank - rank % 2, rank - rank % 2 + 1]


def test_what_is_received_belongs_to_the_receiver():
    def main(comm):
        comm.open_links([(0, 1)])
        comm.begin_step({0: [ONE]} if comm.rank else {})
        x = torch.ones(2)
        if comm.rank == 0:
            comm.send(x, 1, (0, 0))
        else:
            comm.receive(0, (0, 0)).zero_()
        comm.end_step()
        comm.barrier()
        return float(x.sum())

    assert run_ranks(mesh_of(2), main) == [2.0, 2.0]


def step_of_two(arrivals, sender, receiver):
    """Rank 0 sends to rank 1, in one step."""

    def main(comm):
        comm.open_links([(0, 1)])
        comm.begin_step({0: arrivals} if comm.rank == 1 else {})
        (receiver if comm.rank == 1 else sender)(comm)
        comm.end_step()

    run_ranks(mesh_of(2), main)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (lambda comm: comm.send(torch.ones(3), 1, (0, 0)), "message 0 of turn 0, float32[3]"),
        (lambda comm: comm.send(torch.ones(2).int(), 1, (0, 0)), "message 0 of turn 0, int32[2]"),
        (lambda comm: comm.send(torch.ones(2), 1, (1, -1)), "message 1, float32[2]"),
    ],
)
def test_another_message_than_announced(sent, text):
    with pytest.raises(ProgramError) as caught:
        step_of_two([ONE], sent, lambda comm: comm.receive(0, (0, 0)))
    assert str(caught.value) == f"rank 1: the next message from rank 0: expected message 0 of turn 0, float32[2]; found {text}"


NOT_ANNOUNCED = "from rank 0: it was not announced in this step, or was received before"
NOT_RECEIVED = "to rank 1: rank 1 has ended the step and did not receive it"


@pytest.mark.parametrize(
    ("sent", "received", "error", "text"),
    [
        ("", "0", RankError, "rank 1 waits in receive of message 0 of turn 0, float32[2] from rank 0, but rank 0 has ended the step"),
        ("0", "", ProgramError, "rank 1 never received message 0 of turn 0, float32[2] from rank 0, which it announced"),
        ("0", "00", ProgramError, f"rank 1 receives message 0 of turn 0 {NOT_ANNOUNCED}"),
        ("0", "1", ProgramError, f"rank 1 receives message 1 of turn 0 {NOT_ANNOUNCED}"),
        ("00", "0", ProgramError, "rank 0 sends message 0 of turn 0 to rank 1 twice in one step"),
        ("01", "0", ProgramError, f"rank 0: send of message 1 of turn 0, float32[2] {NOT_RECEIVED}"),
    ],
)
def test_who_does_not_keep_to_it_is_named(sent, received, error, text):
    with pytest.raises(error) as caught:
        step_of_two(
            [ONE],
            lambda comm: [comm.send(torch.ones(2), 1, (int(n), 0)) for n in sent],
            lambda comm: [comm.receive(0, (int(n), 0)) for n in received],
        )
    assert str(caught.value) == text


def test_ranks_that_wait_for_each_other():
    def main(comm):
        comm.open_links(all_links(comm))
        before, _ = neighbours(comm)
        comm.begin_step({before: [ONE]})
        comm.receive(before, (0, 0))

    with pytest.raises(RankError, match="ranks wait for each other: rank . in receive of message 0.* from rank .; rank .*; rank "):
        run_ranks(mesh_of(3), main)


def test_a_source_that_has_finished_or_failed():
    def main(comm, fail):
        comm.open_links([(0, 1)])
        if comm.rank == 0:
            if fail:
                raise ValueError("boom on rank 0")
            return
        comm.begin_step({0: [ONE]})
        comm.receive(0, (0, 0))

    with pytest.raises(RankError, match="rank 1 waits in receive of message 0 of turn 0.* but rank 0 has finished"):
        run_ranks(mesh_of(2), lambda comm: main(comm, False))
    with pytest.raises(ValueError, match="boom on rank 0"):
        run_ranks(mesh_of(2), lambda comm: main(comm, True))


def test_a_target_that_has_finished():
    def main(comm):
        comm.open_links([(0, 1)])
        if comm.rank == 0:
            comm.begin_step({})
            comm.send(torch.ones(2), 1, (0, 0))
            comm.end_step()

    with pytest.raises(RankError, match="rank 0 waits in send of message 0 of turn 0.* to rank 1, but rank 1 has finished"):
        run_ranks(mesh_of(2), main)


def test_what_was_not_agreed():
    comm = solo_comm()
    with pytest.raises(RankError, match=r"rank 0: link \(0, 1\): expected two ranks of the mesh, 0 to 0"):
        comm.open_links([(0, 1)])
    with pytest.raises(ProgramError, match="rank 0: no link from rank 0 to rank 0: open_links was not given it"):
        comm.begin_step({0: [ONE]})
    comm.open_links([(0, 0)])
    with pytest.raises(ProgramError, match="rank 0 sends message 0 of turn 0 to rank 0 outside of a step"):
        comm.send(torch.ones(2), 0, (0, 0))
    with pytest.raises(ProgramError, match="rank 0: message 0 of turn 0 from rank 0 is announced twice"):
        comm.begin_step({0: [ONE, ONE]})
    comm.begin_step({0: [ONE]})
    with pytest.raises(ProgramError, match="rank 0 receives message 0 of turn 0 from itself before it was sent"):
        comm.receive(0, (0, 0))
    with pytest.raises(ProgramError, match=r"expected message 0 of turn 0, float32\[2\]; found message 0 of turn 0, float32\[3\]"):
        comm.send(torch.ones(3), 0, (0, 0))


# Processes


def start(world_size, *task):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.test_messages", *map(str, task)],
            cwd=Path(__file__).parents[2],
            env={**common, "RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(world_size)
    ]


def finish(processes, timeout=60):
    try:
        return [(p.returncode, *said) for p in processes for said in [p.communicate(timeout=timeout)]]
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.communicate()


@pytest.mark.gloo
def test_processes():
    for code, _, err in finish(start(3, "all", 30)):
        assert code == 0, err


@pytest.mark.gloo
def test_a_rank_killed_ends_the_others_at_once():
    """One that waits to receive from it, one that waits until it is rid of what it sent; both then leave while a send is on its way."""
    processes = start(3, "killed", 30)
    for p in processes[:2]:
        assert p.stdout.readline() == "waiting\n"
    begin = time.monotonic()
    time.sleep(0.2)
    processes[2].kill()
    (code, _, err), (code_1, _, err_1), (code_2, _, _) = finish(processes)
    assert time.monotonic() - begin < 15
    assert (code, code_1, code_2) == (2, 2, -signal.SIGKILL), (err, err_1)
    why = "failed: another rank is gone or did not answer within the timeout."
    assert err.startswith(f"RankError: rank 0: receive of message 0 of turn 0, float32[2] from rank 2 {why}"), err
    assert err_1.startswith(f"RankError: rank 1: send of message 0 of turn 0, float32[2] to rank 2 {why}"), err_1


@pytest.mark.gloo
def test_a_message_that_is_never_sent_or_never_received():
    """The timeout holds though the peer is alive; a message of another shape counts as none."""
    processes = start(3, "silent", 3)
    assert processes[0].stdout.readline() == "waiting\n"
    begin = time.monotonic()
    (code, _, err), (code_1, _, err_1), (code_2, _, err_2) = finish(processes)
    assert 3 <= time.monotonic() - begin < 20
    assert (code, code_1, code_2) == (2, 2, 0), (err, err_1, err_2)
    assert err.startswith("RankError: rank 0: receive of message 0 of turn 0, float32[2] from rank 2 failed: another rank is gone or"), err
    assert err_1.startswith("RankError: rank 1: send of message 0 of turn 0, float32[2] to rank 2 failed: another rank is gone or"), err_1
    assert "not received within 3 s" in err_1


@pytest.mark.gloo
def test_a_rank_may_leave_while_it_sends():
    """A rank fails of its own with sends on their way, and another dies at about that time: no abort at the end of the interpreter."""
    found = finish(start(2, "leaves", 30, 0.1))
    assert [code for code, _, _ in found] == [3, 0], found


def comm_of(timeout_s):
    env = read_torchrun_env()
    comm = start_process_group(mesh_of(env.world_size), env, timeout_s)
    assert isinstance(comm, ProcessComm)
    return comm


def task_all(timeout_s):
    comm = comm_of(float(timeout_s))
    for what in sorted(BOTH, key=lambda what: what in (strided, nothing_is_held)):  # last what not all ranks do: they begin no step
        what(comm)
    for got, want in zip(broadcasts(comm), run_ranks(comm.mesh, broadcasts)[comm.rank], strict=True):
        assert torch.equal(got, want)
    comm.barrier()
    stop_process_group()


def task_killed(timeout_s):
    comm = comm_of(float(timeout_s))
    comm.open_links(all_links(comm))
    comm.begin_step({2: [ONE]} if comm.rank == 0 else {})
    comm.barrier()
    try:
        if comm.rank < 2:
            print("waiting", flush=True)
            comm.send(torch.ones(2), 1 - comm.rank, (1, 0))
        if comm.rank == 0:
            comm.receive(2, (0, 0))
        elif comm.rank == 1:
            comm.send(torch.ones(2), 2, (0, 0))
            comm.end_step()
        else:
            time.sleep(60)
    except AutoparError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        if comm.rank == 0:  # and the other one without
            stop_process_group()
        raise SystemExit(2) from None


def task_silent(timeout_s):
    comm = comm_of(float(timeout_s))
    comm.open_links([(2, 0), (1, 2)])
    comm.begin_step({2: [ONE]} if comm.rank == 0 else {})
    comm.barrier()
    print("waiting", flush=True)
    try:
        if comm.rank == 0:
            comm.receive(2, (0, 0))
        elif comm.rank == 1:
            comm.send(torch.ones(2), 2, (0, 0))
            comm.end_step()
        else:
            comm.send(torch.ones(4), 0, (0, 0))
            time.sleep(5)
    except AutoparError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


def task_leaves(timeout_s, delay):
    comm = comm_of(float(timeout_s))
    comm.open_links([(0, 1)])
    comm.begin_step({})
    if comm.rank == 0:
        comm.send(torch.ones(2), 1, (0, 0))
    comm.barrier()
    if comm.rank == 0:
        raise SystemExit(3)
    time.sleep(float(delay))
    os._exit(0)


if __name__ == "__main__":
    warnings.simplefilter("error")
    globals()[f"task_{sys.argv[1]}"](*sys.argv[2:])
