"""Recording: what a step took, phase by phase and collective by collective, without changing what it computes."""

from __future__ import annotations

import json
import signal
import time
from statistics import median

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import ProgramError
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.run import plan_key
from autopar.graph.run_file import load_run
from autopar.runtime import Executable, recording, run_ranks, solo_comm
from autopar.runtime.folder import RUN, read_files, write_program
from autopar.runtime.peak import measure_cpu_peak
from autopar.runtime.pending import Flight, Pending
from autopar.runtime.recording import Recorder, hidden_seconds
from autopar.runtime.timed_comm import TimedComm

from .conftest import mesh_of
from .programs import zero3
from .staged_programs import staged
from .test_processes import finish, start

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

# two turns, each with a collective; the update has one, too, and one stands outside of the phases
TURNS = '''
import torch
from autopar.runtime import Batch, State
MESH = (("a", 1),)
STATES = {"w": State("param", (1024,), "float32", "R", ("zeros",))}
BATCH = {"input:x": Batch((4, 1024), "float32", "R")}
def prepare(comm, state, batch, grads):
    grads["sum"] = torch.zeros(1024)
def forward(comm, state, batch, grads, kept, turn):
    kept["y"] = comm.all_reduce(batch["input:x"][turn], "a")
def backward(comm, state, batch, grads, kept, turn):
    if bool((kept["y"] > 1e6).any()):
        raise ValueError("too large")
    grads["sum"] += kept["y"]
def update(comm, state, grads):
    state["w"].add_(comm.all_gather(grads["sum"], "a", 0, 1024).reshape(1024))
    comm.all_reduce(state["w"], "a")
def step(comm, state, batch):
    grads = {}
    prepare(comm, state, batch, grads)
    for turn in range(2):
        kept = {}
        forward(comm, state, batch, grads, kept, turn)
        backward(comm, state, batch, grads, kept, turn)
    update(comm, state, grads)
    return comm.all_reduce(state["w"].sum(), "a")
'''


class Ticks:
    """A clock that every look moves on by a second."""

    def __init__(self):
        self.now = 0

    def stamp(self):
        self.now += 1
        return float(self.now)

    def seconds(self, begin, end):
        return end - begin


def turns_run(tmp_path):
    run = Executable(None, {"program.py": TURNS, "plan.json": json.dumps({"model": {"name": "turns", "graph_hash": "h"}})}, solo_comm(mesh_of(1)))
    return run, Recorder(run, tmp_path / "run.json")


def test_every_action_of_every_turn_and_every_collective(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "clock_of", lambda device: Ticks())
    run, recorder = turns_run(tmp_path)
    before, comm = dict(run.program.step.__globals__), run.comm
    x = torch.ones(4, 1024)
    sums = [float(recorder.step(x)) for _ in range(5)]
    assert sums == [2048.0 * (k + 1) for k in range(5)]
    assert run.program.step.__globals__ == before and run.comm is comm
    found = recorder.finish()
    assert (len(found.warmup_s), len(found.step_s)) == (2, 3)
    # a collective looks at the clock twice, an action twice beside what is in it
    assert {(a.phase, a.turn): a.seconds for a in found.actions} == {
        ("prepare", 0): (1.0,) * 3, ("forward", 0): (3.0,) * 3, ("backward", 0): (1.0,) * 3, ("forward", 1): (3.0,) * 3, ("backward", 1): (1.0,) * 3,
        ("update", 0): (5.0,) * 3,
    }  # fmt: skip
    assert found.step_s == (23.0,) * 3  # 12 looks of 6 actions, 2 of the step, 10 of 5 collectives, less one
    assert [(c.phase, c.kind, c.axis, c.calls, c.bytes, c.seconds) for c in found.comms] == [
        ("forward", "all_reduce", "a", 2, 8192, (2.0,) * 3),
        ("update", "all_gather", "a", 1, 4096, (1.0,) * 3),
        ("update", "all_reduce", "a", 1, 4096, (1.0,) * 3),
        ("", "all_reduce", "a", 1, 4, (1.0,) * 3),
    ]
    assert (found.state_bytes, found.batch_bytes) == (4096, 16384)
    assert recorder.write() is None
    saved = load_run(tmp_path / "run.json")
    assert saved.ranks == (found,) and saved.model == "turns" and saved.plan == plan_key({"model": {"name": "turns", "graph_hash": "h"}})
    assert saved.machine.device == "cpu" and saved.machine.torch == torch.__version__ and saved.mesh == "a=1"


def test_stages_tell_their_sections_by_microbatch_and_what_they_receive(tmp_path, monkeypatch):
    """A schedule of one's own, whose backwards run in another order than the forwards. Ranks are threads, of which torch's profiler knows one."""
    monkeypatch.setattr(recording, "measure_cpu_peak", lambda run: (run(), 1))
    files = {**staged(3, 2, 4), "schedule.csv": "".join(f"{s}F0,{s}F1,{s}F2,{s}F3,{s}B1,{s}B0,{s}B3,{s}B2\n" for s in range(3))}
    mesh = Mesh((MeshAxis("pp", 3), MeshAxis("tp", 2)))

    def main(comm):
        plain, recorded = (Executable(None, files, comm) for _ in range(2))
        recorder = Recorder(recorded, tmp_path / "run.json")
        losses = [(float(plain.step(*batch)), float(recorder.step(*recorded.local_batch(*batch)))) for batch in [(torch.ones(8, 4), torch.zeros(8, 4))] * 4]
        assert recorder.write() is None
        return losses, recorder.finish()

    results = run_ranks(mesh, main)
    saved = load_run(tmp_path / "run.json")
    assert saved.mesh == "pp=3 tp=2" and saved.ranks == tuple(found for _, found in results)
    forwards, backwards = [("forward", turn) for turn in range(4)], [("backward", turn) for turn in (1, 0, 3, 2)]
    for rank, (losses, found) in enumerate(results):
        assert all(plain == recorded for plain, recorded in losses) and found.rank == rank and len(found.step_s) == 2
        assert [(a.phase, a.turn) for a in found.actions] == [*forwards, *backwards, ("update", 0)]
        received = {c.phase: (c.axis, c.calls, c.bytes) for c in found.comms if c.kind == "receive"}
        message = ("pp", 4, 4 * 2 * 4 * 4)
        assert received == {**({"forward": message} if rank >= 2 else {}), **({"backward": message} if rank < 4 else {})}
        assert [(c.phase, c.axis, c.calls, c.bytes) for c in found.comms if c.kind == "broadcast"] == [("", "pp", 1, 4)]
        for k, step in enumerate(found.step_s):
            assert sum(a.seconds[k] for a in found.actions) <= step
            assert sum(c.seconds[k] for c in found.comms if c.phase) <= sum(a.seconds[k] for a in found.actions)


def test_what_is_started_is_recorded_as_it_was_hidden():
    """One call of two tensors, started in one phase and waited for in another; a blocking one is in flight as long as it stops the rank."""

    class Ticks:
        def __init__(self):
            self.now = 0

        def stamp(self):
            self.now += 1
            return self.now

        def seconds(self, begin, end):
            return float(end - begin)

    calls, phase = [], ["backward"]
    clock = Ticks()
    comm = TimedComm(solo_comm(Mesh((MeshAxis("a", 1),))), clock, lambda: phase[0], calls.append)
    started = comm.start_all_reduce([torch.ones(2), torch.ones(3)], "a")
    assert comm.start_all_reduce([], "a") == []
    phase[0] = "update"
    clock.now = 50
    assert [x.wait().numel() for x in started] == [2, 3]
    with pytest.raises(ProgramError, match="waited for a second time"):
        started[0].wait()
    comm.all_reduce(torch.ones(4), "a")
    ahead, blocking = calls
    assert (ahead.phase, ahead.kind, ahead.axis, ahead.bytes) == ("backward", "all_reduce", "a", 20)
    assert clock.seconds(ahead.begin, ahead.end) > 50 and [stop[0] for stop in ahead.stops] == ["backward", "update", "update"]
    assert sum(clock.seconds(begin, end) for _, begin, end in ahead.stops) == 3
    assert blocking.stops == (("update", blocking.begin, blocking.end),)


@pytest.mark.parametrize(
    "spans, stops, hidden",
    [
        ([("dp", 0.0, 4.0)], [(0.0, 0.5), (3.0, 5.0)], [2.5]),  # packing, and waiting until it is unpacked
        ([("dp", 0.0, 2.0)], [(0.0, 0.5), (3.0, 3.5)], [1.5]),  # it came before it was waited for
        ([("dp", 0.0, 4.0), ("dp", 1.0, 6.0)], [], [4.0, 2.0]),  # one after the other along an axis
        ([("dp", 1.0, 6.0), ("dp", 0.0, 4.0), ("tp", 1.0, 6.0)], [], [2.0, 4.0, 5.0]),  # beside each other along two, in any order
        ([("dp", 0.0, 4.0), ("tp", 1.0, 3.0)], [(1.0, 3.0)], [2.0, 0.0]),  # while the rank stands still for another it hides nothing
        ([("dp", 0.0, 4.0)], [(2.0, 5.0), (1.0, 3.0)], [1.0]),
        ([("dp", 2.0, 1.0)], [], [0.0]),
        ([], [], []),
    ],
)
def test_what_is_hidden(spans, stops, hidden):
    assert hidden_seconds(spans, stops) == hidden


def test_when_messages_come_is_told_by_who_brings_them():
    """A work that tells its future, one that has none; and what is here when it is started."""

    class Work:
        def get_future(self):
            return self

        def add_done_callback(self, done):
            self.done = done

    class Silent:
        def get_future(self):
            raise RuntimeError("Work::getFuture not implemented.")

    works, calls, clock = [Work(), Work()], [], Ticks()
    solo = solo_comm(Mesh((MeshAxis("a", 1),)))

    def start(flight, count):
        solo.start_all_gather = lambda *words: [Pending(lambda: torch.ones(1), flight) for _ in range(count)]
        return TimedComm(solo, clock, lambda: "forward", calls.append).start_all_gather([], "a", [], [])

    started = start(Flight(lambda: None, (), works=works), 2)
    works[0].done(None)
    works[1].done(None)
    came = clock.stamp()
    clock.now = 50
    for x in started:
        x.wait()
    assert calls[0].come == came - 1 and calls[0].end > 50
    for work in (Silent(), Work()):  # of the second nobody has heard yet
        start(Flight(lambda: None, (), works=[work]), 1)[0].wait()
        assert calls[-1].come == calls[-1].end
    start(None, 1)[0].wait()
    assert calls[-1].come == calls[-1].stops[0][2] < calls[-1].end


# two collectives that are started, and a tenth of a second later waited for
AHEAD = """
import time
import torch
from autopar.runtime import Batch, State
MESH = (("a", {n}),)
STATES = {{"w": State("param", (64, 64), "float32", "R", ("zeros",))}}
BATCH = {{"input:x": Batch((24, 4), "float32", "R"), "target:0": Batch((24, 8), "float32", "R")}}
def forward(comm, state, batch, grads):
    [grads["sum"]] = comm.start_all_reduce([torch.ones(64, 64)], "a")
    [grads["piece"]] = comm.start_reduce_scatter([torch.ones(64, 64)], "a", [0], [64 // {n}])
    comm.all_reduce(torch.ones(()), "a", "max")
    time.sleep(0.1)
def update(comm, state, grads):
    state["w"].add_(grads["sum"].wait())
    grads["piece"].wait()
    comm.all_gather(state["w"], "a", 0, 64)
def step(comm, state, batch):
    grads = {{}}
    forward(comm, state, batch, grads)
    update(comm, state, grads)
    return state["w"].sum()
"""


def ahead(n):
    return {"program.py": AHEAD.format(n=n), "plan.json": '{"model": {"name": "ahead", "graph_hash": "h"}}'}


def hidden_of(rank, kind):
    """Seconds of each timed step; None where no row of this kind tells."""
    rows = [c for c in rank.comms if c.kind == kind]
    assert len({bool(c.flight_s) for c in rows}) == 1, "either all rows of a kind and axis tell, or none"
    return [sum(c.flight_s[k] - c.seconds[k] for c in rows) for k in range(len(rank.step_s))] if rows[0].flight_s else None


def test_what_is_here_at_once_is_not_hidden(tmp_path):
    """Rows of what was started tell in all phases, so that their sums are what was hidden; of one rank that is nothing."""
    run = Executable(None, ahead(1), solo_comm(mesh_of(1)))
    recorder = Recorder(run, tmp_path / "run.json")
    for _ in range(4):
        recorder.step(torch.zeros(24, 4), torch.zeros(24, 8))
    found = recorder.finish()
    assert [(c.phase, c.kind, c.calls, len(c.flight_s)) for c in found.comms] == [
        ("forward", "all_reduce", 2, 2), ("update", "all_reduce", 0, 2), ("forward", "reduce_scatter", 1, 2), ("update", "reduce_scatter", 0, 2), ("update", "all_gather", 1, 0),
    ]  # fmt: skip
    assert hidden_of(found, "all_gather") is None
    for kind in ("all_reduce", "reduce_scatter"):
        assert hidden_of(found, kind) == pytest.approx([0.0, 0.0], abs=1e-3)


def test_a_step_that_fails_leaves_the_program_as_it_was(tmp_path):
    run, recorder = turns_run(tmp_path)
    before, comm = dict(run.program.step.__globals__), run.comm
    x = torch.ones(4, 1024)
    for _ in range(3):
        recorder.step(x)
    with pytest.raises(ValueError, match="too large"):
        recorder.step(1e9 * x)
    assert run.program.step.__globals__ == before and run.comm is comm
    assert len(recorder.finish().step_s) == 1


def test_a_long_run_is_recorded_as_far_as_the_file_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "MAX_STEPS", 2)
    run, recorder = turns_run(tmp_path)
    x = torch.ones(4, 1024)
    for k in range(6):
        assert recorder.full == (k >= 4)
        recorder.step(x)
    assert len(recorder.finish().step_s) == 2


def test_the_peak_is_the_allocators():
    """0.5 MiB, then 2 and 1 together, one of them released before the last: 3.5 at most; what was there before is not counted."""
    there = [torch.zeros(2**20)]

    def run():
        a = torch.empty(2**17)
        b, c = torch.empty(2**19), torch.empty(2**18)
        there.clear()
        del b
        d = torch.empty(2**18)
        return a.numel() + c.numel() + d.numel()

    found, peak = measure_cpu_peak(run)
    assert found == 2**17 + 2**19
    assert 3.5 * 2**20 <= peak <= 3.5 * 2**20 + 4096


def test_what_an_earlier_run_kept_is_in_no_later_peak():
    kept = []
    assert 2**20 <= measure_cpu_peak(lambda: kept.append(torch.ones(2**18)))[1] <= 2**20 + 4096
    kept.clear()
    assert 4000 <= measure_cpu_peak(lambda: torch.ones(1000).sum().item())[1] <= 8192


def test_the_recorded_peak_has_states_and_batch(tmp_path):
    run, recorder = turns_run(tmp_path)
    x = torch.ones(4, 1024)
    for _ in range(3):
        recorder.step(x)
    found = recorder.finish()
    held = 3 * 4096  # the sum, what the turn keeps, and a packed piece or a comparison beside them
    assert 4096 + 16384 + 4096 < found.peak_bytes <= 4096 + 16384 + held + 2048


def test_emitting_again_keeps_the_recorded_run(tmp_path):
    write_program(zero3(2), tmp_path / "out")
    (tmp_path / "out" / RUN).write_text("{}")
    assert read_files(tmp_path / "out") == zero3(2)
    write_program(zero3(2, dim=1), tmp_path / "out")
    assert read_files(tmp_path / "out") == zero3(2, dim=1) and (tmp_path / "out" / RUN).read_text() == "{}"


@pytest.mark.gloo
def test_processes_record_and_compute_the_same(tmp_path):
    write_program(zero3(2), tmp_path / "two")
    plain = finish(start(2, "train", tmp_path / "two", 5, "-"))
    recorded = finish(start(2, "train", tmp_path / "two", 5, "-", tmp_path / "run.json"))
    assert [code for code, _, _ in plain + recorded] == [0] * 4, (plain, recorded)
    assert plain[0][1] == recorded[0][1]
    run = load_run(tmp_path / "run.json")
    assert [rank.rank for rank in run.ranks] == [0, 1] and run.mesh == "a=2" and run.model == "linear"
    for rank in run.ranks:
        assert (len(rank.warmup_s), len(rank.step_s), rank.actions) == (2, 3, ())  # written in one piece: no phases to tell apart
        assert {(c.kind, c.axis, c.calls) for c in rank.comms} == {("all_gather", "a", 1), ("all_reduce", "a", 1), ("reduce_scatter", "a", 1)}
        for k, step in enumerate(rank.step_s):
            assert 0 < sum(c.seconds[k] for c in rank.comms) <= step
        assert rank.state_bytes == 64 + 20 + 64 and rank.batch_bytes == 12 * 4 * 4 + 12 * 8 * 4
        assert rank.peak_bytes >= rank.state_bytes + rank.batch_bytes + 128 + 384  # the whole weight and the error
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith((".run", "run"))] == ["run.json"]


@pytest.mark.gloo
def test_processes_tell_when_messages_have_come(tmp_path):
    """16 KiB come long before they are waited for, which gloo's threads say."""
    write_program(ahead(2), tmp_path / "two")
    done = finish(start(2, "train", tmp_path / "two", 6, "-", tmp_path / "run.json"))
    assert [code for code, _, _ in done] == [0, 0], done
    run = load_run(tmp_path / "run.json")
    assert run.tells
    for rank in run.ranks:
        assert median(rank.step_s) > 0.09
        for kind in ("all_reduce", "reduce_scatter"):
            assert median(hidden_of(rank, kind)) < 0.05 and min(hidden_of(rank, kind)) > -1e-6
        assert hidden_of(rank, "all_gather") is None


@pytest.mark.gloo
def test_a_run_of_no_steps_leaves_the_one_before(tmp_path):
    write_program(zero3(2), tmp_path / "two")
    (tmp_path / "run.json").write_text("the one before")
    done = finish(start(2, "train", tmp_path / "two", 0, "-", tmp_path / "run.json"))
    assert [code for code, _, _ in done] == [0, 0] and (tmp_path / "run.json").read_text() == "the one before"


@pytest.mark.gloo
def test_a_run_that_breaks_off_leaves_the_one_before(tmp_path):
    write_program(zero3(2), tmp_path / "two")
    (tmp_path / "run.json").write_text("the one before")
    processes = start(2, "train", tmp_path / "two", 10**6, "-", tmp_path / "run.json")
    assert processes[0].stdout.readline().startswith("step 0")
    processes[1].send_signal(signal.SIGKILL)
    time.sleep(0.1)
    codes = [code for code, _, _ in finish(processes, timeout=60)]
    assert codes == [2, -signal.SIGKILL]
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["run.json"]
    text = (tmp_path / "run.json").read_text()  # a record may have been full before the end, and then it is whole
    assert text == "the one before" or len(load_run(tmp_path / "run.json").ranks) == 2


@pytest.mark.gloo
def test_a_run_that_cannot_be_written_ends_with_its_text(tmp_path):
    write_program(zero3(2), tmp_path / "two")
    first, second = finish(start(2, "train", tmp_path / "two", 3, tmp_path / "c", tmp_path / "absent" / "run.json"))
    assert first[0] == 2 and second[0] == 0, (first, second)
    assert first[2].strip().splitlines()[-1].startswith("RunError: ") and "the run cannot be written: No such file or directory" in first[2]
    assert (tmp_path / "c" / "autopar.json").exists()  # the training is saved before
