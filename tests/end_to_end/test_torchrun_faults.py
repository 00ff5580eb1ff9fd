"""What a user of torchrun sees when a rank dies, fails or sleeps in the midst of a step: torchrun stops the others within moments, and each of them still says
which rank it is, what it was doing and whom it waited for, on stderr and in torchrun's summary."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("torch")

from autopar.cli.torchrun import finish, start_torchrun
from autopar.runtime.folder import write_program
from tests.end_to_end.test_pipeline_faults import ACTION, FAULT, LENGTH, ROOT, TRAIN, WHAT, WIDTH, with_fault
from tests.runtime.programs import zero3
from tests.runtime.staged_programs import staged

pytestmark = [pytest.mark.torch, pytest.mark.gloo, pytest.mark.timeout(300)]

BATCH = f"torch.ones({LENGTH}, {WIDTH}), torch.zeros({LENGTH}, {WIDTH})"
STAGE = rf"stage (?P<stage>\d), (?:{ACTION}|in its update|sharing the loss|at the (?:start|end) of the step)(?:, waiting for stage (?P<peer_stage>\d))?"
LINE = r"in its step \(program\.py, line \d+\)"
ENDED = rf"(?:{WHAT} failed: another rank is gone|ended by SIGTERM(?: in the midst of {WHAT.replace('?P<peer>', '').replace('?P<peers>', '')})?\. torchrun sends it)"


def run(folder, files, fault, monkeypatch, timeout_s=100.0, batch=BATCH):
    """(torchrun's exit code, stderr)."""
    write_program(files, folder)
    (folder / "train.py").write_text(TRAIN.format(length=LENGTH, width=WIDTH, timeout=timeout_s).replace(BATCH, batch))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAULT", fault)
    with open(folder / "said", "w+") as said:
        begin = time.monotonic()
        process = start_torchrun([str(folder / "train.py")], 4, stdout=subprocess.DEVNULL, stderr=said)
        timer = threading.Timer(200, process.terminate)
        timer.start()
        code = finish(process)
        timer.cancel()
        took = time.monotonic() - begin
    assert took < 90, took
    return code, (folder / "said").read_text()


def read_lines(text, place, survivors):
    """rank -> match, for every line that a rank says; checked that each survivor says one, and that torchrun's summary repeats it."""
    said, _, summary = text.partition("ChildFailedError")
    found = {}
    for line in said.splitlines():
        if line.startswith("RankError: "):
            match = re.match(rf"RankError: {place}: rank (?P<rank>\d): {ENDED}", line)
            assert match is not None, line
            found[int(match["rank"])] = match
            assert line in summary, (line, summary)
    assert set(found) == set(survivors), text
    return found, summary


@pytest.mark.parametrize("stages, tp, faulty, where", [(4, 1, 3, "forward 1"), (2, 2, 2, "backward 0")])
def test_a_killed_rank(tmp_path, monkeypatch, stages, tp, faulty, where):
    files = {name: with_fault(name, text) for name, text in staged(stages, tp).items()}
    code, err = run(tmp_path / "program", files, f"killed {faulty} {where}", monkeypatch)
    assert code == 1
    found, summary = read_lines(err, STAGE, set(range(4)) - {faulty})
    assert all(int(match["stage"]) == rank // tp for rank, match in found.items())
    assert any(f"rank {faulty} failed" in match.string or f"rank {faulty}." in match.string for match in found.values()), err
    cause = summary.partition("Root Cause")[2]
    assert f"rank      : {faulty} " in cause and "Signal 9 (SIGKILL)" in cause


def test_a_killed_rank_without_stages(tmp_path, monkeypatch):
    files = zero3(4)
    fault = FAULT.replace("def forward(", "def step(").replace('(section, turn) == ("forward", 0)', "True")
    fault = fault.replace("os.kill(", "time.sleep(1.0); os.kill(")  # until then the others may still be in the collective before, which this rank has left
    text = files["program.py"].replace("\n\ndef step(", fault, 1)
    files["program.py"] = text.replace('    grad = comm', '    trip(comm, "step", 0)\n    grad = comm')
    code, err = run(tmp_path / "program", files, "killed 2 step 0", monkeypatch, batch="torch.ones(24, 4), torch.zeros(24, 8)")
    assert code == 1
    found, summary = read_lines(err, LINE, {0, 1, 3})
    assert all("reduce_scatter along mesh axis 'a' with ranks" in match.string for match in found.values()), err
    assert "Signal 9 (SIGKILL)" in summary.partition("Root Cause")[2]


def test_a_rank_that_fails_is_the_cause_in_the_summary(tmp_path, monkeypatch):
    files = {name: with_fault(name, text) for name, text in staged(4).items()}
    code, err = run(tmp_path / "program", files, "raises 2 backward 1", monkeypatch)
    assert code == 1
    _, summary = read_lines(err, STAGE, {0, 1, 3})
    cause = summary.partition("Root Cause")[2]
    assert "rank      : 2 " in cause and "ValueError: no such thing" in cause
    if sys.version_info >= (3, 11):
        assert "rank 2: stage 2, in 2B1 (backward of microbatch 1): stage_1.py, line " in cause


def test_a_rank_that_sleeps(tmp_path, monkeypatch):
    """Those who wait for it say so at the timeout, and it says where it slept."""
    files = {name: with_fault(name, text) for name, text in staged(4).items()}
    code, err = run(tmp_path / "program", files, "80 1 forward 2", monkeypatch, timeout_s=6)
    assert code == 1
    found, _ = read_lines(err, STAGE, {0, 1, 2, 3})
    assert "in 1F2 (forward of microbatch 2): rank 1: ended by SIGTERM. torchrun" in found[1].string
    assert any("rank 1 failed" in match.string and "Timed out" in match.string for match in found.values()), err
