"""The whole road on real gloo processes: compile, train, compare with plain PyTorch; and what goes wrong at the start.

Killed ranks and damaged checkpoints are in tests/runtime.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.gloo, pytest.mark.timeout(300)]

WORKER = Path(__file__).with_name("worker.py")
AMPLE = 2**31


def run_ranks(world_size, *task, timeout=200):
    """(code, stdout, stderr) of every rank; torchrun's environment without torchrun, which would stop the others itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    same = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = subprocess.Popen(
            [sys.executable, str(WORKER), *map(str, task)], env={**os.environ, **same, "RANKS_FOLDER": folder},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            _, err = ranks.communicate(timeout=timeout)
        finally:
            if ranks.poll() is None:
                os.killpg(ranks.pid, signal.SIGKILL)
                ranks.communicate()
        assert ranks.returncode == 0, err
        read = {path.name: path.read_text() for path in Path(folder).iterdir()}
    return [(int(read[f"code.{rank}"]), read[f"out.{rank}"], read[f"err.{rank}"]) for rank in range(world_size)]


def test_five_adamw_steps_equal_plain_pytorch(tmp_path):
    """45 000 bytes: the MLP's parameters, gradients and AdamW states alone are 104 000 on each rank of plain data parallelism."""
    for code, _, err in run_ranks(4, "train", tmp_path, f"mlp:{AMPLE}", "mlp:45000", f"gpt:{AMPLE}"):
        assert code == 0, err
    for folder in ("mlp0", "mlp1", "gpt2"):
        names = {p.name for p in (tmp_path / folder / "program").iterdir()}
        of_stages = {name for name in names if name.startswith("stage_") or name == "schedule.csv"}  # where the plan has stages
        assert names - of_stages == {"kernels.py", "plan.json", "program.py", "train.py", "weights.pt"}


def test_three_adamw_steps_of_two_microbatches_equal_plain_pytorch():
    for code, _, err in run_ranks(2, "turns"):
        assert code == 0, err


def test_memory_of_an_update_that_reduces_is_as_predicted():
    """All gradients and, of all shapes, what a lot of them is packed into."""
    fixes = [f"dp=2,zero={zero},microbatches=4,recompute=full" for zero in (0, 1)]
    for code, _, err in run_ranks(2, "update_memory", *fixes):
        assert code == 0, err


def test_memory_of_an_update_in_lots_is_as_predicted():
    """Beside the lot at hand there are the reductions of the next one, or the one that backward began last, and the gathers of the one before."""
    one, four, mixed = "1024-4096-1024", "2048-2048-2048-2048-2048", "512-4096-512-2048-1024"
    cases = [f"{one}:dp=2,zero=0,microbatches=4", *(f"{widths}:dp=2,zero=1{turns}" for widths in (one, four, mixed) for turns in ("", ",microbatches=4"))]
    for code, out, err in run_ranks(2, "wide_update", *cases):
        assert code == 0, err
        assert len(out.splitlines()) == len(cases)


def test_states_in_chunks_that_do_not_divide(tmp_path):
    for code, _, err in run_ranks(3, "uneven", tmp_path):
        assert code == 0, err


def test_every_rank_says_why_not():
    for code, out, err in run_ranks(2, "refuse"):
        assert code == 0, err
        world, memory, inputs, checkpoint = out.splitlines()
        assert world == "the plan needs 4 ranks (mesh world=4), torchrun started 2: use --nproc-per-node 4"
        assert memory.startswith("no plan fits 1.0 KiB per device; the best found needs ")
        assert inputs.startswith("input:0: expected shape [16, 24]") and inputs.endswith("found [3, 24]")
        assert checkpoint.startswith(f"{WORKER.parent} is not a checkpoint")


def test_demo(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "autopar", "demo", "--out", str(tmp_path / "demo"), "--steps", "3"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    for text in ("Certificate", "plain data parallelism needs", "and does not fit", "plain PyTorch", "optimizer state", "plan.html"):
        assert text in " ".join(done.stdout.split())
    assert sorted(p.name for p in (tmp_path / "demo").iterdir()) == ["plan.html", "plan.json", "profile.json", "program"]


def test_demo_tells_why_a_rank_failed(tmp_path):
    from autopar.demo.run import _train_ranks
    from autopar.errors import RankError

    def start_failing(script, num_ranks, stdout, stderr):
        code = "import sys; print('{\"loss\": 1.0, \"seconds\": 0.1}'); print('RankError: rank 2 is gone', file=sys.stderr); sys.exit(1)"
        return subprocess.Popen([sys.executable, "-c", code], stdout=stdout, stderr=stderr, text=True)

    with pytest.raises(RankError, match=r"^a rank of the demo failed \(torchrun ended with 1\):\nRankError: rank 2 is gone$"):
        _train_ranks(str(tmp_path), 3, lambda line: None, start_failing)
