"""Ranks that measure: the loop that each of them runs, and the processes that this one starts on its own machine.

In: jobs, a time to be done by. Out: for every job what each rank found, as soon as all have it. Ranks contend, so all do the same job at
the same time, between meetings at which they also agree on the time it may take. Processes that are started here talk over loopback only,
run one thread each where there are several (torchrun sets OMP_NUM_THREADS=1), and are stopped by their own handle. A process that dies or
hangs over a job makes it an error row; the others are started again for the rest.
"""

from __future__ import annotations

import datetime
import os
import queue
import random
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RankError
from .profile_comm import build_comm, join_groups, share_of_run
from .profile_grid import CommJob, Job, OpJob
from .profile_ops import build_op
from .profile_time import Sample, clock_of, measure, sustain
from .rows import MEETING, SUSTAINED

SILENCE_S = 60.0  # without a word from any process: it hangs
_MAX_DEATHS = 3
_READY, _END = -1, -2
ROUNDS = 3
_MIN_BUDGET_S, _MAX_BUDGET_S = 0.004, 0.5
_SUSTAINED_S = 3.0  # a board's power is held within tenths of a second; what its warmth does takes seconds
_RUNNING_SHARE = 0.5  # of a job's time: the rest is making tensors, warming up, meeting
_BEFORE_S, _MEETING_BUDGET_S = 0.01, 0.6  # of compute before a collective for which ranks wait; what is left of two long times that are subtracted needs many runs
_BESIDE_SIDE = {"cpu": 256, "cuda": 2048}  # of the square matmuls that run beside a collective

Finding = Sample | str  # what one rank measured, or why it could not
Deliver = Callable[[Job, Sequence[Finding]], None]


@dataclass(frozen=True)
class Seat:
    """One rank's place among those that measure.

    Args:
        lowest, highest: of every rank's number; alone, the number itself. Meeting for it brings the ranks together.
        joined: process group and members for each way to lie in groups (`profile_comm.join_groups`).
        crowded: ranks on this host outnumber its cores.
    """

    rank: int
    ranks: int
    device: Any
    lowest: Callable[[float], float]
    highest: Callable[[float], float]
    joined: dict
    crowded: bool = False


def lone_seat(device: Any) -> Seat:
    """The seat of a process that measures alone."""
    return Seat(0, 1, device, lambda x: x, lambda x: x, {})


def run_jobs(jobs: Sequence[Job], seat: Seat, until: float, deliver: Callable[[int, Finding], None]) -> None:
    """Do the jobs in order, and then all of them again in another, until they are done or the time is over.

    A machine that others share is a third slower for seconds on end. What is measured in one piece is all of it so, whatever its spread says; of what is
    measured `ROUNDS` times, with all the others between and beside other jobs each time, the middle one counts (`profile.Ledger`).

    Args:
        until: as `time.time()` counts.
        deliver: is given the job's index and what this rank found, once a round.
    """
    import torch

    order = [index for turn in range(ROUNDS) for index in _shuffled(len(jobs), turn)]
    with torch.no_grad():
        for place, index in enumerate(order):
            left = until - time.time()
            mine = max(_MIN_BUDGET_S, min(_MAX_BUDGET_S, _RUNNING_SHARE * left / (len(order) - place))) if left > 0 else -1.0
            budget = seat.lowest(mine)
            if budget < 0:
                return
            deliver(index, _measure_job(jobs[index], seat, budget))


def _shuffled(count: int, turn: int) -> list[int]:
    """The same on all ranks; as they come in the first turn, for they come by what they are worth."""
    places = list(range(count))
    if turn:
        random.Random(turn).shuffle(places)
    return places


def _measure_job(job: Job, seat: Seat, budget_s: float) -> Finding:
    """What was found, or the error's text: one that fails must not end the others."""
    try:
        if isinstance(job, OpJob):
            run = build_op(job, seat.device)
            if job.family == SUSTAINED:
                return sustain(run, clock_of(seat.device), _SUSTAINED_S)
            return measure((run,), clock_of(seat.device), budget_s, seat.crowded)[0]
        return _measure_comm(job, seat, budget_s)
    except Exception as error:  # whatever an op raises here is what a step would meet: it becomes the row
        if seat.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()  # what was kept for one that did not fit may be what the next lacks
        return error_text(error)


def error_text(error: Exception) -> str:
    """The kind of an error and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def _measure_comm(job: CommJob, seat: Seat, budget_s: float) -> Finding:
    problem = ""
    try:
        start = build_comm(job, seat.joined, seat.rank, seat.device)
    except Exception as error:  # no memory, say: the others must hear of it, or they would wait for this rank
        problem = error_text(error)
    if seat.lowest(0.0 if problem else 1.0) < 1.0:
        return problem or "another rank could not prepare it"
    clock = clock_of(seat.device)
    if job.kind == MEETING:
        return _measure_meeting(start, seat, budget_s)
    if job.beside:
        return _measure_beside(job, start, seat, budget_s)
    (found,) = measure((lambda: start(False),), clock, budget_s, seat.crowded, seat.highest)
    return Sample(found.seconds * share_of_run(job.kind), found.spread, found.repeats)


def _measure_beside(job: CommJob, start: Callable[[bool], Any], seat: Seat, budget_s: float) -> Sample:
    """The collective and about as many seconds of matmuls, together and the matmuls alone, in turns."""
    import torch

    side = _BESIDE_SIDE[seat.device.type]
    x = torch.ones(side, side, device=seat.device, dtype=torch.float32 if seat.device.type == "cpu" else torch.bfloat16)
    clock = clock_of(seat.device)

    def both() -> None:
        work = start(True)
        for _ in range(count):
            torch.mm(x, x)
        if work is not None:
            work.wait()

    def compute() -> None:
        for _ in range(count):
            torch.mm(x, x)

    count = 0
    both()  # warm
    alone_s = seat.highest(clock(both, 1))
    count = 1
    compute()
    count = max(1, min(1000, round(alone_s / max(1e-9, seat.highest(clock(compute, 1))))))
    without, together = measure((compute, both), clock, budget_s, seat.crowded, seat.highest)
    return Sample(together.seconds, together.spread, together.repeats, without.seconds)


def _measure_meeting(start: Callable[[bool], Any], seat: Seat, budget_s: float) -> Sample:
    """Some matmuls and then the collective, and the matmuls alone, in turns."""
    import torch

    side = _BESIDE_SIDE[seat.device.type]
    x = torch.ones(side, side, device=seat.device)
    clock = clock_of(seat.device)

    def compute() -> None:
        for _ in range(count):
            torch.mm(x, x)

    def both() -> None:
        compute()
        start(False)

    count = 1
    both()  # warm
    count = max(1, min(1000, round(_BEFORE_S / max(1e-9, seat.highest(clock(compute, 20)) / 20))))
    without, together = measure((compute, both), clock, max(_MEETING_BUDGET_S, budget_s), seat.crowded, seat.highest)
    return Sample(together.seconds, together.spread, together.repeats, without.seconds)


def connect(rank: int, ranks: int, per_host: int, device: Any, groups: tuple[tuple[int, int], ...], timeout_s: float) -> Seat:
    """The seat of a rank of the default process group, which must be there. Every rank calls it.

    Args:
        groups: ways to lie in groups that jobs will ask for.
    """
    import torch
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=timeout_s)
    control = dist.new_group(timeout=timeout, backend="gloo")  # numbers of the host, whatever the devices speak

    def agree(value: float, reduction: Any) -> float:
        box = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(box, reduction, group=control)
        return float(box)

    backend = "nccl" if device.type == "cuda" else "gloo"
    return Seat(
        rank, ranks, device, lambda x: agree(x, dist.ReduceOp.MIN), lambda x: agree(x, dist.ReduceOp.MAX),
        join_groups(groups, rank, ranks, backend, timeout), device.type == "cpu" and per_host > (os.cpu_count() or 1),
    )  # fmt: skip


def loopback_name() -> str:
    """The interface that does not leave this machine."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "lo")


# --- processes of our own ---------------------------------------------------------------------------------------------------------


def run_processes(count: int, jobs: Sequence[Job], until: float, deliver: Deliver) -> None:
    """Do the jobs in `count` processes at once on this machine's CPU, until they are done or the time is over. Processes that die when all has been measured once end the rounds, no more.

    Raises:
        RankError: the processes could not begin, or too many died.
    """
    left = list(jobs)
    for death in range(_MAX_DEATHS + 1):
        done, trouble = _run_once(count, left, until, deliver)
        left = left[done:]
        if not trouble or not left:
            return
        if done < 0 or death == _MAX_DEATHS:
            raise RankError(f"profile: {trouble}")
        deliver(left.pop(0), [trouble])
        if not left:
            return


def _run_once(count: int, jobs: Sequence[Job], until: float, deliver: Deliver) -> tuple[int, str]:
    """Jobs that are done, and what went wrong; -1 jobs where the processes did not begin."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    with tempfile.TemporaryDirectory(prefix="autopar-profile-") as folder:
        args = (count, os.path.join(folder, "store"), tuple(jobs), until)
        processes = [context.Process(target=_measure_here, args=(rank, *args, pipes[rank][1]), daemon=True) for rank in range(count)]
        finished = False
        try:
            for process, (_, writer) in zip(processes, pipes):
                process.start()
                writer.close()  # the process has its own: when it ends, so does the pipe
            done, trouble = collect(count, jobs, processes, Inbox([reader for reader, _ in pipes]), deliver)
            finished = not trouble
            return done, trouble
        finally:
            for process in processes:
                if process.pid is None:  # interrupted before it was started
                    continue
                process.join(timeout=5 if finished else 0)
                if process.is_alive():
                    process.kill()
                    process.join()
            for ends in pipes:
                for end in ends:
                    end.close()


class Inbox:
    """What the processes say, each through a pipe of its own: one that is killed while it speaks takes no lock with it, and nothing that it
    said before is lost."""

    def __init__(self, readers: Sequence[Any]) -> None:
        self._readers = list(readers)

    def get(self, timeout: float) -> tuple[int, int, Any]:
        """The next (rank, index, finding).

        Raises:
            queue.Empty: nothing came in time.
        """
        from multiprocessing.connection import wait

        if not self._readers:
            time.sleep(0.05)  # all have ended; their exit codes come
        for reader in wait(self._readers, timeout) if self._readers else ():
            try:
                return reader.recv()  # type: ignore[union-attr]
            except (EOFError, OSError):
                self._readers.remove(reader)
        raise queue.Empty


def collect(count: int, jobs: Sequence[Job], processes: Sequence[Any], inbox: Any, deliver: Deliver) -> tuple[int, str]:
    """Pass on what the processes tell, a job when all ranks have it.

    Returns:
        jobs passed on (-1: not all processes had begun), and what went wrong; "" where nothing did.
    """
    found: list[dict[int, Finding]] = [{} for _ in jobs]
    ready: set[int] = set()
    ended: set[int] = set()
    done = 0
    heard = time.monotonic()
    while len(ended) < count:
        try:
            rank, index, finding = inbox.get(timeout=0.5)
        except queue.Empty:
            gone = [r for r, p in enumerate(processes) if r not in ended and p.exitcode is not None]
            if gone:
                return done if len(ready) == count else -1, f"process {gone[0]} of {count} ended with code {processes[gone[0]].exitcode}"
            if time.monotonic() > heard + SILENCE_S:
                silent = sorted(set(range(count)) - (ended if len(ready) == count else ready))
                return done if len(ready) == count else -1, f"process {silent[0]} of {count} did not answer within {SILENCE_S:.0f} s"
            continue
        heard = time.monotonic()
        if index == _READY:
            ready.add(rank)
        elif index == _END:
            ended.add(rank)
            if finding:
                return done if len(ready) == count else -1, f"process {rank} of {count}: {finding}"
        else:
            found[index][rank] = finding
            if len(found[index]) == count:
                deliver(jobs[index], [found[index][r] for r in range(count)])
                found[index] = {}
                done = min(done + 1, len(jobs))  # the first round comes in order
    return done, ""


def _measure_here(rank: int, count: int, store: str, jobs: tuple[Job, ...], until: float, writer: Any) -> None:
    """One process: measures, and tells what it found."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt goes to the whole group: the parent heeds it, and stops this one
    problem = ""
    try:
        _measure_process(rank, count, store, jobs, until, lambda index, finding: writer.send((rank, index, finding)))
    except Exception as error:  # told to the parent
        problem = error_text(error)
    writer.send((rank, _END, problem))


def _measure_process(rank: int, count: int, store: str, jobs: tuple[Job, ...], until: float, put: Callable[[int, Any], None]) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    torch.manual_seed(rank)
    if count == 1:
        put(_READY, None)
        return run_jobs(jobs, lone_seat(device), until, put)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = loopback_name()  # of this process only, before gloo looks
    timeout = datetime.timedelta(seconds=SILENCE_S)
    dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count, timeout=timeout)
    try:
        groups = tuple(dict.fromkeys(job.group for job in jobs if isinstance(job, CommJob)))
        seat = connect(rank, count, count, device, groups, SILENCE_S)
        put(_READY, None)
        run_jobs(jobs, seat, until, put)
        seat.lowest(0.0)  # nobody leaves while another still talks
    finally:
        dist.destroy_process_group()
