"""`autopar profile`: measures the machine it runs on.

In: a device, the numbers of ranks, a time limit, the file. Out: `ProfileRows`, in the file row by row as they are measured. Ranks contend:
4 on 2 cores reach half of what 2 reach, so on a CPU everything is measured at each number of ranks that may share it, by so many processes
at the same time; the slowest counts, as a step waits for its slowest rank. All is measured in rounds (`profile_ranks.run_jobs`), of which the middle one counts. On a GPU one process measures ops; collectives need torchrun.

Law: what was measured is kept. A run that is interrupted, or out of time, leaves a file that is whole and says that it is not finished; the
next run of the same versions on the same machine goes on where it stopped. A finished file is measured anew, but for rows that this run
does not ask for (another number of ranks).
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from ..errors import ClusterError, RankError
from .machine import machine_here
from .profile_grid import CommJob, Job, OpJob, comm_jobs, list_groups, op_jobs
from .profile_ranks import SILENCE_S, Finding, Seat, connect, lone_seat, loopback_name, run_jobs, run_processes
from .profile_time import Sample, sample
from .rows import MEETING, CommRow, Machine, OpRow, ProfileRows, row_key
from .rows_file import encode_row, load_profile, machine_difference, write_profile

LIMIT_S = 160.0  # with starting Python and torch: within 3 minutes
QUICK_LIMIT_S = 45.0
_AGAIN_S = 10.0  # starting processes takes half of it
_TELL_S = 4.0  # between two lines of progress
_SAVE_S = 2.0  # between two files, where every row is there

Report = Callable[[str], None]
Path = str | os.PathLike[str]


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Launched:
    """What torchrun told this process: one of `ranks`, `per_host` of them on each host."""

    rank: int
    local_rank: int
    ranks: int
    per_host: int


def measure_cpu(
    ranks: tuple[int, ...] = (1, 2, 4),
    report: Report = _silent,
    path: Path | None = None,
    quick: bool = False,
    limit_s: float | None = None,
) -> ProfileRows:
    """Measure this machine's CPU with processes that are started here, each number of them in turn.

    Args:
        ranks: how many processes run at once.
        report: is told what happens.
        path: of the file; None: nothing is written.
        quick: a part of the grid.
        limit_s: seconds, divided over all that is to be measured.
    Raises:
        RankError: the processes could not begin, or too many died; says which and why. What was measured before is in the file.
    """
    until = time.time() + _limit(quick, limit_s)
    jobs = {count: (*op_jobs("cpu", quick), *comm_jobs("cpu", count, quick)) for count in ranks}
    ledger = open_ledger(machine_here(), [(job, n, n) for n in ranks for job in jobs[n]], path, report)
    with ledger:
        turns = (*ranks, *ranks)  # the second time for what the first had no time for
        for number, count in enumerate(turns):
            left = {n: ledger.missing(jobs[n], n, n) for n in turns[number:]}
            if left[count] and (number < len(ranks) or until - time.time() > _AGAIN_S):
                share = len(left[count]) / sum(map(len, left.values()))
                ledger.begin(f"{count} {'process' if count == 1 else 'processes at once'}", len(left[count]))
                now = time.time()
                run_processes(count, left[count], now + (until - now) * share, lambda job, found: ledger.add(job, count, count, found))
    return ledger.close()


def measure_cuda(report: Report = _silent, path: Path | None = None, quick: bool = False, limit_s: float | None = None) -> ProfileRows:
    """Measure one GPU of this machine, in this process: ops, memory, launch. Arguments as of `measure_cpu`."""
    import torch

    until = time.time() + _limit(quick, limit_s)
    device = torch.device("cuda", torch.cuda.current_device())
    jobs = op_jobs("cuda", quick)
    ledger = open_ledger(machine_here(torch.cuda.get_device_name(device)), [(job, 1, 1) for job in jobs], path, report)
    with ledger:
        left = ledger.missing(jobs, 1, 1)
        ledger.begin(ledger.machine.device, len(left))
        run_jobs(left, lone_seat(device), until, lambda index, finding: ledger.add(left[index], 1, 1, [finding]))
    return ledger.close()


def measure_launched(
    here: Launched,
    report: Report = _silent,
    path: Path | None = None,
    quick: bool = False,
    limit_s: float | None = None,
    use_cuda: bool = False,
) -> ProfileRows | None:
    """Measure with the processes that torchrun started: ops on each at once, and all collectives. Every rank calls it.

    Args:
        here: which process this is.
        path, report: of rank 0.
        use_cuda: measure GPUs, a rank on each; else the CPU.
    Returns:
        the rows on rank 0; None on the others.
    Raises:
        RankError: ranks disagree about the machine: they must run on equal ones.
    """
    import torch
    import torch.distributed as dist

    until = time.time() + _limit(quick, limit_s)
    if here.per_host == here.ranks:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_name())  # of this process only, before gloo looks
    if use_cuda:
        torch.cuda.set_device(here.local_rank)
    device = torch.device("cuda", here.local_rank) if use_cuda else torch.device("cpu")
    torch.manual_seed(here.rank)
    timeout = datetime.timedelta(seconds=SILENCE_S)
    dist.init_process_group("nccl" if use_cuda else "gloo", timeout=timeout)
    try:
        seat = connect(here.rank, here.ranks, here.per_host, device, list_groups(here.ranks) if here.ranks > 1 else (), SILENCE_S)
        return _measure_seated(here, seat, report, path, quick, until)
    finally:
        dist.destroy_process_group()


def _measure_seated(here: Launched, seat: Seat, report: Report, path: Path | None, quick: bool, until: float) -> ProfileRows | None:
    import torch
    import torch.distributed as dist

    kind = seat.device.type
    machine = machine_here(torch.cuda.get_device_name(seat.device) if kind == "cuda" else "cpu")
    beside = 1 if kind == "cuda" else here.per_host  # ranks that share what an op runs on
    jobs = [*op_jobs(kind, quick), *comm_jobs(kind, here.ranks, quick)]
    control = dist.new_group(timeout=datetime.timedelta(seconds=SILENCE_S), backend="gloo")

    def gather(value: Any) -> list[Any]:
        values = [None] * here.ranks
        dist.all_gather_object(values, value, group=control)
        return values

    def ranks_of(job: Job) -> tuple[int, int]:
        return (beside, beside) if isinstance(job, OpJob) else (here.ranks, here.per_host)

    for rank, other in enumerate(gather(machine)):
        if differing := machine_difference(machine, other):
            raise RankError(
                f"profile: rank {rank} runs on another machine than rank {here.rank}: {differing}; profile equal hosts together"
            )
    first = here.rank == 0
    ledger = open_ledger(machine, [(job, *ranks_of(job)) for job in jobs], path if first else None, report if first else _silent)
    with ledger:
        wanted = [job for job in jobs if ledger.missing([job], *ranks_of(job))] if first else []
        left = gather(wanted)[0]
        ledger.begin(f"{here.ranks} ranks of torchrun", len(left))

        def deliver(index: int, finding: Finding) -> None:
            found = gather(finding)
            ledger.add(left[index], *ranks_of(left[index]), found)

        run_jobs(left, seat, until, deliver)
        seat.lowest(0.0)  # nobody leaves while another still talks
    rows = ledger.close()
    return rows if first else None


def file_word(device: str) -> str:
    """A device's name as a part of a file's name: `nvidia-h200`."""
    return "-".join("".join(c if c.isalnum() else " " for c in device.lower()).split())


def _limit(quick: bool, limit_s: float | None) -> float:
    return limit_s if limit_s is not None else QUICK_LIMIT_S if quick else LIMIT_S


# --- what is measured so far ------------------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """The rows so far, in the file as soon as they are known. Lives for one run.

    Args:
        asked: keys of all rows that this run is to measure.
    """

    machine: Machine
    path: Path | None
    report: Report
    asked: set[tuple]
    rows: dict[tuple, OpRow | CommRow]
    lines: dict[tuple, str]
    told: float = field(default=0.0)
    saved: float = field(default=0.0)
    what: str = field(default="")
    total: int = field(default=0)
    found: dict[tuple, list[OpRow | CommRow]] = field(default_factory=dict)  # since `begin`, round by round
    again: int = field(default=0)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None and self.path is not None:
            left = len(self.asked - self.rows.keys())
            self.report(
                f"stopped with {left:,} of {len(self.asked):,} to measure; {os.fspath(self.path)} keeps the others, "
                "and the next run goes on"
            )

    def missing(self, jobs: Sequence[Job], ranks: int, per_host: int) -> list[Job]:
        """The jobs of which there is no row."""
        return [job for job in jobs if job_key(job, ranks, per_host) not in self.rows]

    def begin(self, what: str, number: int) -> None:
        """Tell what comes."""
        self.what, self.total, self.found, self.again, self.told = what, number, {}, 0, time.monotonic()
        self.report(f"measuring {what}: {number:,} rows")

    def add(self, job: Job, ranks: int, per_host: int, found: Sequence[Finding]) -> None:
        """Keep what the ranks found: the slowest counts; one that failed makes it an error row. What is found again counts with what was before: the middle one."""
        row = make_row(job, ranks, per_host, found)
        key = row_key(row)
        rounds = self.found.setdefault(key, [])
        rounds.append(row)
        self.again += len(rounds) > 1
        self.rows[key] = middle_row(rounds)
        self.lines[key] = encode_row(self.rows[key])
        if len(rounds) == 1 or time.monotonic() > self.saved + _SAVE_S:  # to write it takes the time of what is measured
            self._save(False)
        if row.error and not any(r.error for r in rounds[:-1]):
            self.report(f"  failed: {_job_text(job)}: {row.error}")
        done = len(self.found)
        if time.monotonic() > self.told + _TELL_S or (done == self.total and not self.again):
            self.told = time.monotonic()
            again = f", {self.again:,} times again" if self.again else ""
            self.report(f"  {self.what}: {done:,} of {self.total:,}{again}, now {_job_text(job)}")

    def close(self) -> ProfileRows:
        """The end of a run that was not interrupted: the rows, finished if all that was asked for is there."""
        left = len(self.asked - self.rows.keys())
        if left:
            self.report(
                f"out of time with {left:,} of {len(self.asked):,} to measure: run it again to go on, or give it more (--time-limit)"
            )
        self._save(not left)
        rows = self.rows.values()
        ops, comms = tuple(r for r in rows if isinstance(r, OpRow)), tuple(r for r in rows if isinstance(r, CommRow))
        return ProfileRows(self.machine, ops, comms, not left)

    def _save(self, finished: bool) -> None:
        if self.path is None:
            return
        self.saved = time.monotonic()
        ops = [self.lines[key] for key, row in self.rows.items() if isinstance(row, OpRow)]
        comms = [self.lines[key] for key, row in self.rows.items() if isinstance(row, CommRow)]
        write_profile(self.machine, finished, ops, comms, self.path)


def open_ledger(machine: Machine, jobs: Sequence[tuple[Job, int, int]], path: Path | None, report: Report) -> Ledger:
    """What a run begins with: the rows of the file that it need not measure again.

    Args:
        jobs: all that it is to measure, with the number of ranks, and of ranks on a host.
    """
    asked = {job_key(*job) for job in jobs}
    known: dict[tuple, OpRow | CommRow] = {}
    try:
        before = load_profile(path) if path is not None else None
        if before is not None and (differing := machine_difference(machine, before.machine)):
            raise ClusterError(f"{os.fspath(path or '')}: measured elsewhere or with other versions: {differing}")
    except ClusterError as error:
        report(f"beginning anew: {error}")
        before = None
    if before is not None:
        known = {row_key(row): row for row in (*before.ops, *before.comms) if not before.finished or row_key(row) not in asked}
        kept = len(asked & known.keys())
        if kept:
            report(f"going on with {os.fspath(path or '')}: {kept:,} of {len(asked):,} rows are there")
    return Ledger(machine, path, report, asked, known, {key: encode_row(row) for key, row in known.items()})


def job_key(job: Job, ranks: int, per_host: int) -> tuple:
    """`row_key` of the row that a job becomes."""
    return row_key(make_row(job, ranks, per_host, ["not yet"]))


def make_row(job: Job, ranks: int, per_host: int, found: Sequence[Finding]) -> OpRow | CommRow:
    """The row of a job, of what each rank found."""
    samples = [f for f in found if isinstance(f, Sample)]
    error = next((f"rank {r} of {len(found)}: {f}" if len(found) > 1 else f for r, f in enumerate(found) if isinstance(f, str)), "")
    slowest = max(samples, key=lambda s: s.seconds) if samples and not error else Sample(0.0, 0.0, 0)
    if isinstance(job, CommJob) and job.kind == MEETING and slowest.repeats:  # it ends for all at once, but who began last is another one each time
        slowest = replace(slowest, seconds=fmean(s.seconds for s in samples), beside_s=fmean(s.beside_s for s in samples))
    seconds = None if error else slowest.seconds
    date = datetime.date.today().isoformat()
    figures = (seconds, slowest.spread, slowest.repeats, date, error)
    if isinstance(job, OpJob):
        return OpRow(job.family, job.dtype, job.shape, ranks, *figures)
    return CommRow(job.kind, job.group, ranks, per_host, job.num_bytes, slowest.beside_s, *figures, job.beside)


def middle_row(rounds: Sequence[OpRow | CommRow]) -> OpRow | CommRow:
    """Of one job's rounds, the one in the middle (of two the faster: what disturbs only adds); its spread is at least the interquartile range of them all. One
    that failed counts where no other is there.

    Args:
        rounds: at least one.
    """
    fine = sorted((row.seconds - (row.beside_s if isinstance(row, CommRow) else 0.0), n) for n, row in enumerate(rounds) if row.seconds is not None)  # what ran beside compute by what it added
    if not fine:
        return rounds[-1]
    middle = rounds[fine[(len(fine) - 1) // 2][1]]
    between = sample([row.seconds for row in rounds if row.seconds is not None])
    assert middle.seconds is not None
    return replace(middle, spread=max(middle.spread, between.spread * between.seconds / middle.seconds), repeats=sum(rounds[n].repeats for _, n in fine))


def _job_text(job: Job) -> str:
    if isinstance(job, CommJob):
        return f"{job.kind} of {job.num_bytes:,} bytes among {job.group[0]}" + (" beside compute" if job.beside and job.kind != MEETING else "")
    return f"{job.family} {job.dtype} {' x '.join(map(str, job.shape))}"
