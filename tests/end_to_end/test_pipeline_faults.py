"""A rank of a program in stages that dies, fails or sleeps in the midst of its second step, in real processes: every other rank ends with an
error that names its own stage and action and whom it waited for; nobody hangs."""

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

pytest.importorskip("torch")

from autopar.runtime.folder import write_program
from tests.runtime.staged_programs import LENGTH, WIDTH, staged

pytestmark = [pytest.mark.torch, pytest.mark.gloo, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
AMPLE_S = 100.0  # timeout of ranks where nobody should wait for it

FAULT = """
import os, signal, time

STEPS = []


def trip(comm, section, turn):
    fault, rank, *where = os.environ["FAULT"].split()
    if (section, turn) == ("forward", 0):
        STEPS.append("another")
    if len(STEPS) == 2 and comm.rank == int(rank) and where == [section, str(turn)]:
        print("stops", flush=True)
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "raises":
            raise ValueError("no such thing")
        time.sleep(float(fault))


def forward("""

TRAIN = """
import os, time
from pathlib import Path

import torch
import program
from autopar.runtime import run_training

os.close(os.open("ready" + os.environ["RANK"], os.O_CREAT))
while len(list(Path().glob("ready*"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
one = torch.ones({length}, {width}), torch.zeros({length}, {width})
run_training(program, [one] * 4, 4, timeout_s={timeout}, device_type="cpu")
"""


def with_fault(name, text):
    """A stage file that stops in its second step where the environment says."""
    if not name.startswith("stage"):
        return text
    text = text.replace("\n\ndef forward(", FAULT, 1)
    for section, turn in (("forward", "turn"), ("backward", "turn"), ("update", -1)):
        text = re.sub(rf"def {section}\(.*\n", rf'\g<0>    trip(comm, "{section}", {turn})\n', text)
    return text


def start(folder, files, fault, timeout_s=AMPLE_S):
    """One process per rank, with torchrun's environment but without torchrun, which would stop the others itself."""
    write_program({name: with_fault(name, text) for name, text in files.items()}, folder)
    (folder / "train.py").write_text(TRAIN.format(length=LENGTH, width=WIDTH, timeout=timeout_s))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    same = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    same |= {"PYTHONPATH": str(ROOT), "FAULT": fault}
    return [
        subprocess.Popen(
            [sys.executable, "-W", "error", "train.py"], cwd=folder, env={**os.environ, **same, "RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for r in range(4)
    ]  # fmt: skip


def finish(processes, faulty, limit_s=240):
    """(code, stderr) of every rank, and the seconds from the fault to the end of the last of the others."""
    try:
        while (line := processes[faulty].stdout.readline()) != "stops\n":
            assert line, processes[faulty].communicate()
        begin = time.monotonic()
        said = {r: p.communicate(timeout=limit_s)[1] for r, p in enumerate(processes) if r != faulty}
        took = time.monotonic() - begin
        said[faulty] = processes[faulty].communicate(timeout=limit_s)[1]
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.communicate()
    return [(p.returncode, said[r]) for r, p in enumerate(processes)], took


WORDS = {"F": "forward", "B": "backward"}
ACTION = r"in (?P<action>(?P<chunk>\d)(?P<kind>[FB])(?P<turn>\d)) \((?P<word>\w+) of microbatch (?P=turn)\)"
PLACE = rf"(?:{ACTION}|in its update|sharing the loss|at the (?:start|end) of the step)"
WAITS = r"(?:, waiting for stage (?P<peer_stage>\d))?"
MESSAGE = r"(?:receive|send) of message \d(?: of turn \d)?, float32\[[\d, ]*\] (?:from|to) rank (?P<peer>\d)"
WHAT = rf"(?:{MESSAGE}|\w+ along mesh axis '\w+' with ranks? (?P<peers>[\d, ]+))"
WHY = (
    r"failed: another rank is gone or did not answer within the timeout\. "
    r"The first rank that stopped says why; restart from the last checkpoint\. \((?P<gloo>.*)\)"
)


def read_error(err, rank, tp):
    """Whom the one line that a rank ends with names, and what gloo said; checked that it names the rank's own stage and action."""
    found = re.fullmatch(rf"RankError: stage (?P<stage>\d), {PLACE}{WAITS}: rank (?P<rank>\d): {WHAT} {WHY}", err.strip())
    assert found is not None, err
    assert int(found["rank"]) == rank and int(found["stage"]) == rank // tp
    if found["action"]:
        assert int(found["chunk"]) == rank // tp and WORDS[found["kind"]] == found["word"]
    if found["peer_stage"] and found["peer"]:
        assert int(found["peer"]) // tp == int(found["peer_stage"]) or "send of" in err
    return {int(r) for r in re.findall(r"\d", found["peers"] or found["peer"])}, found["gloo"]


@pytest.mark.parametrize("stages, tp, faulty, where", [(2, 2, 3, "forward 1"), (4, 1, 3, "update -1")])
def test_a_killed_rank_ends_the_others_at_once(tmp_path, stages, tp, faulty, where):
    found, took = finish(start(tmp_path / "program", staged(stages, tp), f"killed {faulty} {where}"), faulty)
    assert took < AMPLE_S, took
    assert found[faulty] == (-signal.SIGKILL, "")
    peers = {}
    for rank in set(range(4)) - {faulty}:
        code, err = found[rank]
        assert code == 2, err
        peers[rank], _ = read_error(err, rank, tp)
    assert any(faulty in heard for heard in peers.values()), peers


def test_a_rank_that_fails_tells_its_action_and_ends_the_others(tmp_path):
    found, took = finish(start(tmp_path / "program", staged(4), "raises 2 backward 1"), 2)
    assert took < AMPLE_S, took
    code, err = found[2]
    assert code == 1 and "ValueError: no such thing" in err
    if sys.version_info >= (3, 11):
        assert "rank 2: stage 2, in 2B1 (backward of microbatch 1): stage_1.py, line " in err
        assert ': raise ValueError("no such thing")' in err
    peers = {}
    for rank in (0, 1, 3):
        code, err = found[rank]
        assert code == 2, err
        peers[rank], _ = read_error(err, rank, 1)
    assert any(2 in heard for heard in peers.values()), peers


def test_a_rank_that_sleeps_ends_the_others_at_the_timeout(tmp_path):
    """It wakes up to find that nobody is there."""
    timeout = 6.0
    found, took = finish(start(tmp_path / "program", staged(2, 2), "14 2 forward 1", timeout), 2)
    assert timeout - 1 < took < timeout + 60, took
    told = []
    for rank, (code, err) in enumerate(found):
        assert code == 2, err
        told.append(read_error(err, rank, 2))
    assert any(2 in peers and gloo == "Timed out waiting 6000ms for recv operation to complete" for peers, gloo in told), told
