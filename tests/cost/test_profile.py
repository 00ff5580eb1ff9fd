"""Profiling without measuring: the grid, what is kept of a run that stops, rows of what ranks found, processes that die."""

from __future__ import annotations

import json
import os
import queue
from dataclasses import replace

import pytest

from autopar.cost import profile, profile_ranks
from autopar.cost.machine import machine_here
from autopar.cost.profile import job_key, make_row, measure_cpu, middle_row, open_ledger
from autopar.cost.profile_grid import CommJob, OpJob, comm_jobs, group_members, list_groups, op_jobs
from autopar.cost.profile_ranks import collect
from autopar.cost.profile_time import Sample, clock_cpu, measure, sample, sustain
from autopar.cost.rows import COMM_KINDS, MEETING, SHAPE_NAMES, SUSTAINED, op_work, row_key
from autopar.cost.rows_file import load_profile, save_profile
from autopar.errors import RankError

TINY = (OpJob("matmul", "float32", (8, 8, 8)), OpJob("matmul", "float32", (16, 8, 8)), OpJob("launch", "float32", (8,)))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_grid(kind):
    whole, quick = op_jobs(kind), op_jobs(kind, True)
    assert len(set(whole)) == len(whole) and set(quick) < set(whole) and whole[: len(quick)] == quick
    assert {job.family for job in quick} == set(SHAPE_NAMES) - {SUSTAINED if kind == "cpu" else "matmul_plain"}, "a CPU has no board whose power it shares, a GPU one library for all products"
    for job in whole:
        assert len(job.shape) == len(SHAPE_NAMES[job.family]) and max(op_work(job.family, job.dtype, job.shape)) > 0
    for ranks in (2, 4, 6, 8):
        comms = comm_jobs(kind, ranks)
        assert len(set(comms)) == len(comms) and set(comm_jobs(kind, ranks, True)) < set(comms)
        meetings = {MEETING} if kind == "cpu" else set()  # of all ranks and of every other group
        assert {job.kind for job in comms} == {job.kind for job in comms if job.beside} == set(COMM_KINDS) | meetings
        assert {job.group for job in comms if job.kind == MEETING} == (set(list_groups(ranks)) if meetings else set())
        assert all(job.num_bytes % (4 * job.group[0]) == 0 for job in comms)
    assert comm_jobs(kind, 1) == ()


def test_groups_are_all_ranks():
    assert (
        list_groups(4) == ((4, 1), (2, 1), (2, 2))
        and list_groups(2) == ((2, 1),)
        and list_groups(6) == ((6, 1), (3, 1), (3, 2), (2, 1), (2, 3))
    )
    assert group_members((2, 1), 4) == ((0, 1), (2, 3)) and group_members((2, 2), 4) == ((0, 2), (1, 3))
    assert group_members((2, 2), 8) == ((0, 2), (1, 3), (4, 6), (5, 7))
    for ranks in (2, 4, 6, 8, 12):
        for group in list_groups(ranks):
            assert sorted(r for members in group_members(group, ranks) for r in members) == list(range(ranks))


def test_the_slowest_rank_counts_and_one_that_failed_fails_the_row():
    job = OpJob("matmul", "float32", (8, 8, 8))
    row = make_row(job, 2, 2, [Sample(1e-3, 0.1, 7), Sample(2e-3, 0.3, 5)])
    assert (row.seconds, row.spread, row.repeats, row.error, row.ranks) == (2e-3, 0.3, 5, "", 2)
    assert row_key(row) == job_key(job, 2, 2)
    row = make_row(job, 2, 2, [Sample(1e-3, 0.1, 7), "RuntimeError: no memory"])
    assert (row.seconds, row.error) == (None, "rank 1 of 2: RuntimeError: no memory")
    comm = make_row(CommJob("all_reduce", (2, 2), 1024, True), 4, 2, [Sample(3e-3, 0.1, 7, 1e-3)] * 4)
    assert (comm.seconds, comm.beside_s, comm.per_host, comm.group) == (3e-3, 1e-3, 2, (2, 2)) and comm.beside


def test_a_meeting_is_the_mean_of_its_ranks():
    """They come to it in another order each time, and leave it together."""
    row = make_row(CommJob(MEETING, (2, 1), 1024, True), 2, 2, [Sample(5e-3, 0.1, 7, 1e-3), Sample(4e-3, 0.2, 7, 3e-3)])
    assert (row.seconds, row.beside_s, row.beside) == (pytest.approx(4.5e-3), pytest.approx(2e-3), True)


def test_of_rounds_the_middle_one_counts():
    """A machine that others share is slow for seconds on end: one round of three may be so without harm."""
    job = OpJob("matmul", "float32", (8, 8, 8))
    slow, low, high, failed = (make_row(job, 1, 1, [found]) for found in (Sample(4e-3, 0.01, 7), Sample(1e-3, 0.02, 5), Sample(2e-3, 0.03, 3), "RuntimeError: no memory"))
    assert middle_row([low]) == low and middle_row([failed]) == failed
    found = middle_row([slow, low, high])
    assert (found.seconds, found.spread, found.repeats) == (2e-3, 0.75, 15)
    assert middle_row([slow, low]).seconds == 1e-3 and middle_row([failed, high]) == high
    comm = CommJob("all_reduce", (2, 1), 1024, True)
    rows = [make_row(comm, 2, 2, [Sample(seconds, 0.1, 7, beside)]) for seconds, beside in ((5e-3, 4e-3), (6e-3, 1e-3), (3e-3, 1e-3))]
    assert middle_row(rows).beside_s == 1e-3 and middle_row(rows).seconds == 3e-3, "by what it adds to the compute beside"


def test_rounds_are_kept_and_told(monkeypatch, tmp_path):
    path, said = tmp_path / "p.json", []
    ledger = open_ledger(machine_here(), [(job, 1, 1) for job in TINY], path, said.append)
    ledger.begin("1 process", len(TINY))
    for seconds in (3e-3, 1e-3, 2e-3):
        for job in TINY:
            ledger.add(job, 1, 1, [Sample(seconds, 0.1, 7)])
    assert sum(line.startswith(f"  1 process: {len(TINY)} of {len(TINY)}") for line in said) == 1, "a round that is over is told once"
    rows = ledger.close()
    assert rows == load_profile(path) and {row.seconds for row in rows.ops} == {2e-3} and {row.repeats for row in rows.ops} == {21}


def test_repeats_fill_the_budget_and_give_their_spread():
    calls = []
    (found,) = measure((lambda: calls.append(1),), lambda run, inner: [run() for _ in range(inner)] and 1e-3 * inner, 0.07)
    assert found == Sample(pytest.approx(1e-3), pytest.approx(0), 7) and len(calls) == 2 + 7 * 10
    (found,) = measure((lambda: None,), lambda run, inner: 1.0, 0.01)
    assert found.repeats == 3, "never fewer"
    assert sample([1.0, 2.0, 3.0, 4.0, 5.0]) == Sample(3.0, 2 / 3, 5) and sample([1.0, 1.0, 4.0], crowded=True).seconds == 2.0
    first, second = measure((lambda: None, lambda: None), clock_cpu, 1e-3)
    assert 0 < first.seconds < 1e-3 and 0 < second.seconds < 1e-3


def test_what_runs_for_seconds_is_told_by_their_last_third():
    """A device that slows down by a microsecond with each run: from 1 ms to what it takes in the end."""
    ran = []

    def clock(run, inner):
        begin = len(ran)
        for _ in range(inner):
            run()
        return sum(1e-3 + 1e-6 * number for number in range(begin, len(ran)))

    found = sustain(lambda: ran.append(1), clock, 3.0)
    spent = [1e-3 + 1e-6 * number for number in range(len(ran))]
    assert 3.0 <= sum(spent) < 3.0 + 1.0 and spent[len(ran) * 2 // 3] < found.seconds < spent[-1]
    assert sustain(lambda: None, lambda run, inner: 5.0 * inner, 3.0).repeats == 3, "never fewer, however long one takes"


class Bench:
    """Stands for the processes: everything takes a millisecond, and after so many jobs somebody presses Ctrl-C."""

    def __init__(self, monkeypatch, stop_after=10**9, jobs=TINY):
        self.asked, self.left = [], stop_after
        monkeypatch.setattr(profile, "op_jobs", lambda kind, quick: jobs)
        monkeypatch.setattr(
            profile, "comm_jobs", lambda kind, ranks, quick: (CommJob("all_reduce", (ranks, 1), 1024),) if ranks > 1 else ()
        )
        monkeypatch.setattr(profile, "run_processes", self.run)

    def run(self, count, jobs, until, deliver):
        for job in jobs:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            self.asked.append((count, job))
            deliver(job, [Sample(1e-3, 0.1, 7)] * count)


def test_an_interrupted_profile_loses_nothing_and_goes_on(monkeypatch, tmp_path):
    path, said = tmp_path / "p.json", []
    first = Bench(monkeypatch, stop_after=4)
    with pytest.raises(KeyboardInterrupt):
        measure_cpu((1, 2), said.append, path)
    kept = load_profile(path)
    assert not kept.finished and len(kept.ops) == 4 and len(first.asked) == 4
    assert said[-1] == f"stopped with 3 of 7 to measure; {path} keeps the others, and the next run goes on"

    said.clear()
    second = Bench(monkeypatch)
    rows = measure_cpu((1, 2), said.append, path)
    assert not set(first.asked) & set(second.asked) and len(second.asked) == 3
    assert said[0] == f"going on with {path}: 4 of 7 rows are there"
    assert rows == load_profile(path) and rows.finished and len(rows.ops) == 6 and len(rows.comms) == 1

    third = Bench(monkeypatch)
    assert measure_cpu((1, 2), said.append, path) == rows and len(third.asked) == 7, "a finished one is measured anew"


def test_the_file_is_whole_after_every_row(monkeypatch, tmp_path):
    path, seen = tmp_path / "p.json", []
    bench = Bench(monkeypatch)

    def run(count, jobs, until, deliver):
        for job in jobs:
            deliver(job, [Sample(1e-3, 0.1, 7)])
            seen.append(len(load_profile(path).ops))
            assert [p.name for p in tmp_path.iterdir()] == ["p.json"]

    monkeypatch.setattr(profile, "run_processes", run)
    measure_cpu((1,), path=path)
    assert seen == [1, 2, 3] and not bench.asked


def test_rows_that_are_not_asked_for_stay(monkeypatch, tmp_path):
    path = tmp_path / "p.json"
    Bench(monkeypatch)
    measure_cpu((1,), path=path)
    again = Bench(monkeypatch)
    rows = measure_cpu((4,), path=path)
    assert {n for n, _ in again.asked} == {4} and {r.ranks for r in rows.ops} == {1, 4}


def test_out_of_time_is_not_finished_and_is_told(monkeypatch, tmp_path):
    said = []
    Bench(monkeypatch)
    monkeypatch.setattr(profile, "run_processes", lambda count, jobs, until, deliver: deliver(jobs[0], [Sample(1e-3, 0.1, 7)]))
    rows = measure_cpu((1,), said.append, tmp_path / "p.json", limit_s=5)
    assert not rows.finished and len(rows.ops) == 1
    assert said[-1] == "out of time with 2 of 3 to measure: run it again to go on, or give it more (--time-limit)"


def test_what_there_was_no_time_for_gets_a_second_turn(monkeypatch):
    Bench(monkeypatch)
    turns = []

    def run(count, jobs, until, deliver):
        turns.append((count, len(jobs)))
        for job in jobs[:2]:
            deliver(job, [Sample(1e-3, 0.1, 7)])

    monkeypatch.setattr(profile, "run_processes", run)
    assert measure_cpu((1, 2)).finished and turns == [(1, 3), (2, 4), (1, 1), (2, 2)]


@pytest.mark.parametrize("spoil", ["other machine", "other torch", "truncated", "format 1"])
def test_what_cannot_be_gone_on_with_is_measured_anew_and_said(monkeypatch, tmp_path, spoil):
    path, said = tmp_path / "p.json", []
    Bench(monkeypatch, stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        measure_cpu((1,), path=path)
    rows = load_profile(path)
    if spoil == "other machine":
        save_profile(replace(rows, machine=replace(rows.machine, processor="abacus")), path)
    elif spoil == "other torch":
        save_profile(replace(rows, machine=replace(rows.machine, torch="1.0")), path)
    elif spoil == "truncated":
        path.write_text(path.read_text()[:-20])
    else:
        path.write_text(json.dumps({"format": "autopar-profile-1"}))
    bench = Bench(monkeypatch)
    assert measure_cpu((1,), said.append, path).finished and len(bench.asked) == 3
    expected = {
        "other machine": "found 'abacus'",
        "other torch": "torch: expected",
        "truncated": "not a profile",
        "format 1": "of an earlier autopar",
    }
    assert said[0].startswith("beginning anew: ") and expected[spoil] in said[0] and str(path) in said[0]


def test_failures_are_told_and_kept(monkeypatch, tmp_path):
    path, said = tmp_path / "p.json", []
    ledger = open_ledger(machine_here(), [(TINY[0], 2, 2)], path, said.append)
    ledger.begin("2 processes at once", 1)
    ledger.add(TINY[0], 2, 2, ["RuntimeError: no memory", Sample(1e-3, 0.1, 7)])
    assert "  failed: matmul float32 8 x 8 x 8: rank 0 of 2: RuntimeError: no memory" in said
    rows = ledger.close()
    assert rows == load_profile(path) and rows.finished and rows.ops[0].seconds is None
    said.clear()
    assert open_ledger(machine_here(), [(TINY[0], 2, 2)], path, said.append).missing(TINY[:1], 2, 2), "tried again when measured anew"


# --- what comes from processes ----------------------------------------------------------------------------------------------------


class Messages:
    def __init__(self, rows):
        self.rows = list(rows)

    def get(self, timeout):
        if not self.rows:
            raise queue.Empty
        return self.rows.pop(0)


class Ended:
    exitcode = 9


READY, END = profile_ranks._READY, profile_ranks._END


def gather(count, *messages):
    found = []
    told = collect(count, TINY, [Ended()] * count, Messages(messages), lambda job, findings: found.append((job, findings)))
    return told, found


def test_a_job_is_done_when_all_ranks_have_it():
    a, b = Sample(1e-3, 0, 7), Sample(2e-3, 0, 7)
    told, found = gather(2, (0, READY, None), (1, READY, None), (1, 0, b), (0, 0, a), (0, 1, a), (0, END, ""), (1, END, ""))
    assert told == (1, "") and found == [(TINY[0], [a, b])]


def test_rounds_come_one_after_the_other():
    a, b = Sample(1e-3, 0, 7), Sample(2e-3, 0, 7)
    first = [(0, READY, None), *((0, k, a) for k in range(len(TINY)))]
    told, found = gather(1, *first, (0, 1, b), (0, 0, b))
    assert told == (len(TINY), "process 0 of 1 ended with code 9"), "what died in a later round had all its jobs done"
    assert found == [*((job, [a]) for job in TINY), (TINY[1], [b]), (TINY[0], [b])]


def test_a_process_that_fails_is_named():
    assert gather(2, (0, READY, None), (1, END, "OSError: no port"))[0] == (-1, "process 1 of 2: OSError: no port")
    assert gather(2, (1, READY, None))[0] == (-1, "process 0 of 2 ended with code 9")
    assert gather(2, (0, READY, None), (1, READY, None), (0, 0, "x"), (1, 0, "x"))[0] == (1, "process 0 of 2 ended with code 9")


def test_a_process_that_says_nothing_is_named(monkeypatch):
    monkeypatch.setattr(profile_ranks, "SILENCE_S", 0.0)
    monkeypatch.setattr(Ended, "exitcode", None)
    assert gather(2, (0, READY, None))[0] == (-1, "process 1 of 2 did not answer within 0 s")


def test_dead_processes_make_error_rows_and_too_many_an_error(monkeypatch):
    found, answers = [], [(1, "process 1 of 2 ended with code -9"), (1, "")]
    monkeypatch.setattr(profile_ranks, "_run_once", lambda count, jobs, until, deliver: answers.pop(0))
    profile_ranks.run_processes(2, TINY, 0.0, lambda job, findings: found.append((job, findings)))
    assert found == [(TINY[1], ["process 1 of 2 ended with code -9"])] and not answers
    monkeypatch.setattr(profile_ranks, "_run_once", lambda *_: (len(TINY), "process 1 of 2 ended with code -9"))
    profile_ranks.run_processes(2, TINY, 0.0, lambda *_: pytest.fail("in a later round nothing is lost"))
    monkeypatch.setattr(profile_ranks, "_run_once", lambda *_: (-1, "process 0 of 2: OSError: no port"))
    with pytest.raises(RankError, match=r"^profile: process 0 of 2: OSError: no port$"):
        profile_ranks.run_processes(2, TINY, 0.0, lambda *_: None)
    monkeypatch.setattr(profile_ranks, "_run_once", lambda *_: (0, "process 0 of 2 ended with code 1"))
    many = [OpJob("launch", "float32", (n,)) for n in range(1, 10)]
    with pytest.raises(RankError, match=r"^profile: process 0 of 2 ended with code 1$"):
        profile_ranks.run_processes(2, many, 0.0, lambda *_: None)


def test_this_machine():
    here = machine_here()
    assert here == machine_here() and here.device == "cpu" and here.cores == os.cpu_count() and here.processor and here.torch[0] == "2"
    assert machine_here("NVIDIA H200").device == "NVIDIA H200"
