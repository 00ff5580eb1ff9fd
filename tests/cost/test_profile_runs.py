"""Profiling for real: every op and collective of the grid runs, in this process, in processes of our own, and under torchrun."""

from __future__ import annotations

import os
import sys
import time

import pytest

from autopar.cost import profile
from autopar.cost.profile_grid import CommJob, OpJob, op_jobs
from autopar.cost.profile_ops import build_op
from autopar.cost.profile_ranks import ROUNDS, lone_seat, run_jobs, run_processes
from autopar.cost.profile_time import Sample
from autopar.cost.rows import COMM_KINDS, MEETING, SHAPE_NAMES, measured_device, measured_link
from autopar.cost.rows_file import load_profile

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SMALL = {3: (2, 8, 16), 5: (2, 3, 4, 8, 3), 2: (6, 8), 1: (512,)}  # a shape by its number of dims


def test_every_family_runs_in_every_dtype_of_its_grid():
    import torch

    with torch.no_grad():
        for family, dtype in dict.fromkeys((job.family, job.dtype) for job in (*op_jobs("cpu"), *op_jobs("cuda"))):
            run = build_op(OpJob(family, dtype, SMALL[len(SHAPE_NAMES[family])]), torch.device("cpu"))
            run()
            run()


@pytest.mark.parametrize(
    "family", ["matmul", "matmul_input_grad", "matmul_weight_grad", "matmul_plain", "conv_input_grad", "conv_weight_grad", "cross_entropy_backward"]
)
def test_ops_give_what_they_are_named_for(family):
    import torch

    shapes = {
        "matmul": ((5, 6, 7), (5, 6)), "matmul_input_grad": ((5, 6, 7), (5, 7)), "matmul_weight_grad": ((5, 6, 7), (6, 7)), "matmul_plain": ((5, 6, 7), (6, 7)),
        "conv_input_grad": ((2, 3, 4, 8, 3), (2, 3, 8, 8)), "conv_weight_grad": ((2, 3, 4, 8, 3), (4, 3, 3, 3)),
        "cross_entropy_backward": ((4, 9), (4, 9)),
    }  # fmt: skip
    shape, expected = shapes[family]
    with torch.no_grad():
        found = build_op(OpJob(family, "float32", shape), torch.device("cpu"))()
    found = found if isinstance(found, torch.Tensor) else next(x for x in found if x is not None and x.numel())
    assert tuple(found.shape) == expected and torch.isfinite(found).all() and found.abs().sum() > 0


def test_what_fails_becomes_text_and_the_rest_goes_on():
    import torch

    found = {}
    jobs = (OpJob("conv", "float32", (1, 1, 1, 1, 0)), OpJob("nonsense", "float32", (1,)), OpJob("launch", "float32", (8,)))
    run_jobs(jobs, lone_seat(torch.device("cpu")), time.time() + 5, found.__setitem__)
    assert found[0].startswith("RuntimeError: ") and found[1] == "ValueError: no op for family 'nonsense'" and isinstance(found[2], Sample)
    run_jobs(jobs, lone_seat(torch.device("cpu")), time.time() - 1, lambda *_: pytest.fail("no time is left"))


class Deadly:
    """A job over which a process dies."""

    @property
    def num_bytes(self):
        os._exit(9)

    kind, group = "all_reduce", (2, 1)


@pytest.mark.gloo
def test_two_processes_do_every_collective_and_survive_a_death():
    comms = [*(CommJob(kind, (2, 1), 4096, beside) for kind in COMM_KINDS for beside in (False, True)), CommJob(MEETING, (2, 1), 4096, True)]
    found = []
    run_processes(
        2,
        (OpJob("matmul", "float32", (32, 32, 32)), Deadly(), *comms),
        time.time() + 60,
        lambda job, findings: found.append((job, findings)),
    )
    assert [type(job) for job, _ in found[:2]] == [OpJob, Deadly] and "ended with code 9" in found[1][1][0]
    first, later = found[2 : 2 + len(comms)], [job for job, _ in found[2 + len(comms) :]]
    assert [job for job, _ in first] == comms
    assert len(later) == (ROUNDS - 1) * len(comms) and all(later.count(job) == ROUNDS - 1 for job in comms), "all again, in another order"
    for job, findings in (found[0], *found[2:]):
        assert len(findings) == 2
        for rank in findings:
            assert isinstance(rank, Sample) and 1e-7 < rank.seconds < 1.0 and rank.repeats >= 3
            assert (rank.beside_s > 0) == (isinstance(job, CommJob) and job.beside)


def tiny_grid(monkeypatch):
    monkeypatch.setattr(profile, "op_jobs", lambda kind, quick: (
        OpJob("launch", "float32", (8,)), OpJob("copy", "float32", (2**16,)), OpJob("matmul", "float32", (128, 128, 128)),
    ))  # fmt: skip
    monkeypatch.setattr(profile, "comm_jobs", lambda kind, ranks, quick: tuple(
        CommJob(kind, (ranks, 1), size) for kind in ("all_gather", "all_reduce") for size in (256, 2**18) if ranks > 1
    ))  # fmt: skip


@pytest.mark.gloo
def test_this_machine_can_be_measured(monkeypatch, tmp_path):
    from autopar.cluster import parse_cluster
    from autopar.cost.machine import machine_here

    tiny_grid(monkeypatch)
    said = []
    rows = profile.measure_cpu((1, 2), said.append, tmp_path / "p.json", limit_s=30)
    assert (
        rows.finished and rows == load_profile(tmp_path / "p.json", machine_here()) and not any(r.error for r in (*rows.ops, *rows.comms))
    )
    cluster = parse_cluster("cpu:2")
    for ranks in (1, 2):
        device = measured_device(rows, cluster.device, ranks)
        assert 1e8 < dict(device.flops_per_s)["float32"] < 1e14 and 1e8 < device.memory_bytes_per_s < 1e13 and 1e-8 < device.launch_s < 1e-2
    link = measured_link(rows, cluster.inside, 2)
    assert 1e-7 <= link.latency_s < 1e-1 and 1e5 < link.bandwidth_bytes_per_s < 1e12
    assert "measuring 2 processes at once: 7 rows" in said and any(line.startswith("  2 processes at once: 7 of 7, now") for line in said)


SCRIPT = """
import os, sys
from autopar.cost import profile
from autopar.cost.profile_grid import CommJob, OpJob
profile.op_jobs = lambda kind, quick: (OpJob("launch", "float32", (8,)), OpJob("matmul", "float32", (64, 64, 64)))
profile.comm_jobs = lambda kind, ranks, quick: tuple(CommJob("all_reduce", group, 1024) for group in ((4, 1), (2, 1), (2, 2)))
here = profile.Launched(int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), 4, 4)
rows = profile.measure_launched(here, print, sys.argv[1], limit_s=30)
assert (rows is None) == (here.rank > 0)
"""


@pytest.mark.gloo
def test_under_torchrun_rank_0_writes_what_all_found(tmp_path):
    from autopar.cli.torchrun import finish, start_torchrun

    script, path = tmp_path / "go.py", tmp_path / "p.json"
    script.write_text(SCRIPT)
    with open(tmp_path / "err", "w+") as errors:
        code = finish(start_torchrun([str(script), str(path)], 4, stdout=errors, stderr=errors))
        errors.seek(0)
        assert code == 0, errors.read()
    rows = load_profile(path)
    assert rows.finished and {(r.family, r.ranks) for r in rows.ops} == {("launch", 4), ("matmul", 4)}
    assert {(r.kind, r.group, r.ranks, r.per_host) for r in rows.comms} == {("all_reduce", g, 4, 4) for g in ((4, 1), (2, 1), (2, 2))}
    assert all(r.seconds is not None for r in (*rows.ops, *rows.comms)) and rows.machine.python == sys.version.split()[0]
