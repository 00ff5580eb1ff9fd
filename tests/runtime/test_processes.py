"""Real gloo processes: equal to threads, wrong world sizes, killed ranks."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from autopar.runtime import Executable, run_ranks
from autopar.runtime.folder import write_program

from .conftest import mesh_of
from .programs import zero3

pytestmark = [pytest.mark.torch, pytest.mark.gloo, pytest.mark.timeout(180)]
WORKER = Path(__file__).with_name("worker.py")


def start(world_size, *task):
    """One process per rank, with torchrun's environment but without torchrun, which would stop the others itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, str(WORKER), *map(str, task)],
            env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(world_size)
    ]


def finish(processes, timeout=120):
    found = []
    try:
        for p in processes:
            out, err = p.communicate(timeout=timeout)
            found.append((p.returncode, out, err))
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.communicate()
    return found


@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_say_what_threads_say(world_size):
    for code, _, err in finish(start(world_size, "comm")):
        assert code == 0, err


def test_training_goes_on_with_other_processes(tmp_path):
    write_program(zero3(4), tmp_path / "four")
    write_program(zero3(2, dim=1), tmp_path / "two")
    first = finish(start(4, "train", tmp_path / "four", 2, tmp_path / "c"))
    second = finish(start(2, "train", tmp_path / "two", 2, tmp_path / "c"))
    assert [code for code, _, _ in first + second] == [0] * 6, (first, second)
    printed = [float(line.split()[-1]) for line in (first[0][1] + second[0][1]).splitlines()]
    assert not first[1][1]

    def whole(comm):
        run = Executable(None, zero3(1), comm)
        generator = torch.Generator().manual_seed(3)
        one = torch.randn(24, 4, generator=generator), torch.randn(24, 8, generator=generator)
        return [float(run(*one)) for _ in range(4)]

    assert printed == pytest.approx(run_ranks(mesh_of(1), whole)[0], abs=2e-6)


def test_wrong_world_size(tmp_path):
    write_program(zero3(4), tmp_path / "four")
    for code, _, err in finish(start(2, "train", tmp_path / "four", 2, tmp_path / "c")):
        assert code == 2
        assert err.strip() == "RankError: the plan needs 4 ranks (mesh a=4), torchrun started 2: use --nproc-per-node 4"


def test_damaged_checkpoint_ends_training_with_its_text(tmp_path):
    write_program(zero3(2), tmp_path / "two")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "autopar.json").write_text("{")
    for code, _, err in finish(start(2, "train", tmp_path / "two", 2, tmp_path / "c")):
        assert code == 2 and "CheckpointError" in err and "Traceback" not in err


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_rank_ends_the_others(how):
    """Killed: at once. Frozen: at the timeout."""
    timeout = 8.0
    processes = start(4, "endless", "-", timeout)
    assert processes[0].stdout.readline() == "running\n"
    processes[2].send_signal(how)
    begin = time.monotonic()
    others = finish([p for i, p in enumerate(processes) if i != 2], timeout=60)
    took = time.monotonic() - begin
    processes[2].kill()
    finish([processes[2]])
    assert took < timeout + (0 if how == signal.SIGKILL else 10), took
    for code, _, err in others:
        assert code == 2, err
        assert "failed: another rank is gone or did not answer within the timeout" in err, err
        assert re.match(r"RankError: in its step \(program\.py, line \d+\): rank \d: \w+ along mesh axis 'a' with ranks ", err), err


def test_a_rank_that_goes_while_a_collective_is_under_way():
    (code, out, err), _ = finish(start(2, "leave"), timeout=60)
    assert code == 2 and out.startswith("RankError: rank 0: reduce_scatter along mesh axis 'a' with rank 1 failed: another rank is gone"), (out, err)


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.11])
def test_a_rank_killed_while_saving_leaves_a_whole_checkpoint(tmp_path, delay):
    processes = start(2, "endless", tmp_path / "c", 10.0)
    assert processes[0].stdout.readline() == "running\n"
    time.sleep(delay)
    processes[1].kill()
    codes = [code for code, _, _ in finish(processes, timeout=60)]
    assert codes[0] == 2 and codes[1] == -signal.SIGKILL

    def load(comm):
        run = Executable(None, zero3(4), comm)
        run.load(tmp_path / "c")
        return int(run.state["seen"]), run.state_dict()["w"].isfinite().all()

    for seen, finite in run_ranks(mesh_of(4), load):
        assert seen >= 4 and finite
