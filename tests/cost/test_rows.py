"""Profiles: saved, loaded, checked, and read by a cluster of cpu ranks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.measured_file import list_gaps, load_measured
from autopar.cost.model import build_cost_model
from autopar.cost.profile_grid import op_jobs
from autopar.cost.rows import COMM_KINDS, SUSTAINED, CommRow, Machine, OpRow, ProfileRows, disturbed_text
from autopar.cost.rows_file import load_profile, save_profile
from autopar.errors import ClusterError

DAY = "2026-11-20"
MACHINE = Machine("cpu", "AMD EPYC", 2, "2.13.0", "3.11.2")


def op(family, dtype, shape, ranks, seconds, error=""):
    return OpRow(family, dtype, shape, ranks, seconds, 0.1 if seconds else 0.0, 7 if seconds else 0, DAY, error)


def comm(kind, group, ranks, num_bytes, seconds, error="", beside_s=0.0):
    good = seconds is not None
    return CommRow(
        kind, group, ranks, ranks, num_bytes, beside_s, seconds, 0.2 if good else 0.0, 7 if good else 0, DAY, error, bool(beside_s)
    )


def machine_rows(ranks, flops_per_s, memory_bytes_per_s, launch_s):
    """What a CPU of these figures would give."""
    return (
        op("launch", "float32", (8,), ranks, launch_s),
        op("copy", "float32", (2**26,), ranks, 2**26 / memory_bytes_per_s), op("copy", "float32", (2**14,), ranks, 1e-6),
        op("add_into", "float32", (2**26,), ranks, 2**26 / memory_bytes_per_s),
        *(op("matmul", d, (512, 512, 512), ranks, 2 * 512**3 / rate) for d, rate in flops_per_s),
        *(op("matmul", d, (16, 16, 16), ranks, 1e-3) for d, _ in flops_per_s),
    )  # fmt: skip


def gathers(ranks, latency_s, bytes_per_s, launch_s):
    """all_gather by the ring formula."""
    return tuple(
        comm("all_gather", (ranks, 1), ranks, size, launch_s + (ranks - 1) * latency_s + (ranks - 1) / ranks * size / bytes_per_s)
        for size in (2**8, 2**16, 2**23)
    )


ROWS = ProfileRows(
    MACHINE,
    (*machine_rows(1, (("float32", 200e9), ("bfloat16", 400e9)), 60e9, 1e-6),
     *machine_rows(4, (("float32", 50e9), ("bfloat16", 100e9)), 10e9, 2e-6)),
    (
        *gathers(2, 2e-4, 5e8, 1e-6), *gathers(4, 5e-4, 2e8, 2e-6), comm("all_reduce", (2, 2), 4, 1024, None, "RuntimeError: no route"),
        comm("all_reduce", (4, 1), 4, 1024, 3e-3, beside_s=1e-3),
    ),
)  # fmt: skip


def test_a_profile_survives_its_file(tmp_path):
    path = tmp_path / "deep" / "profile-cpu.json"
    save_profile(ROWS, path)
    assert load_profile(path) == ROWS and load_profile(path, MACHINE) == ROWS
    assert [p.name for p in path.parent.iterdir()] == ["profile-cpu.json"]
    save_profile(replace(ROWS, finished=False, ops=(), comms=()), path)
    assert load_profile(path) == replace(ROWS, finished=False, ops=(), comms=())


def test_a_profile_to_price_with_has_measured_ops(tmp_path):
    path, said = tmp_path / "p.json", []
    assert load_measured(path, MACHINE, said.append) is None
    save_profile(replace(ROWS, ops=()), path)
    with pytest.raises(ClusterError) as error:
        load_measured(path, MACHINE, said.append)
    assert str(error.value) == (
        f"{path}: not a profile to price with: expected measured ops, found no rows of ops; run `autopar profile` again, or delete the file"
    )
    save_profile(replace(ROWS, ops=tuple(replace(r, seconds=None, error="RuntimeError: no kernel") for r in ROWS.ops)), path)
    with pytest.raises(ClusterError, match=r"found \d+ rows of ops, none with seconds \(RuntimeError: no kernel\)"):
        load_measured(path, MACHINE, said.append)
    assert not said


def test_what_a_profile_lacks_is_said(tmp_path):
    path, said = tmp_path / "p.json", []
    save_profile(ROWS, path)
    assert load_measured(path, replace(MACHINE, torch="9.9.9"), said.append) == ROWS
    versions, missing = said
    assert versions == f"{path}: measured with other versions (torch: expected '9.9.9', found {MACHINE.torch!r}); run `autopar profile` again"
    assert "not measured, so priced by formula: " in missing and "softmax" in missing and "reduce_scatter" in missing
    assert "all_reduce" not in missing and " matmul," not in missing


def test_an_interrupted_profile_is_said():
    ops = tuple(replace(ROWS.ops[0], family=job.family, shape=job.shape) for job in {job.family: job for job in op_jobs("cpu", True)}.values())
    comms = tuple(replace(ROWS.comms[0], kind=kind) for kind in COMM_KINDS)
    assert list_gaps(ProfileRows(MACHINE, ops, comms, True), MACHINE) == ()
    (line,) = list_gaps(ProfileRows(MACHINE, ops, comms, False), MACHINE)
    assert line.startswith("measuring was interrupted")


def test_a_profile_beside_which_something_ran_is_said():
    """Alone an op is no slower than beside others."""
    one = replace(ROWS.ops[0], family="gelu", dtype="float32", shape=(64, 128), ranks=1, seconds=2e-5)
    quiet = (one, replace(one, ranks=2, seconds=2.1e-5), replace(one, ranks=4, seconds=1.9e-5), replace(one, shape=(8,), seconds=9.0), replace(one, family=SUSTAINED, shape=(), ranks=2, seconds=1.0))
    assert disturbed_text(replace(ROWS, ops=quiet)) == ""
    rows = replace(ROWS, ops=(*quiet, replace(one, dtype="bfloat16", seconds=0.016), replace(one, dtype="bfloat16", ranks=2, seconds=2e-5)))
    text = "1 of 3 ops took longer while fewer processes ran them (most: gelu bfloat16 64 x 128, 800 times): something else ran meanwhile"
    assert disturbed_text(rows) == text
    assert list_gaps(rows, MACHINE)[-1] == f"{text}; delete the file and run `autopar profile` again while nothing else does"


def test_a_row_is_a_line(tmp_path):
    save_profile(ROWS, tmp_path / "p.json")
    lines = (tmp_path / "p.json").read_text().splitlines()
    assert sum("all_gather" in line for line in lines) == 6


def test_no_file_is_no_profile(tmp_path):
    assert load_profile(tmp_path / "none.json") is None


def test_writing_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    import os

    path = tmp_path / "p.json"
    save_profile(ROWS, path)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_profile(replace(ROWS, ops=()), path)
    assert load_profile(path) == ROWS and [p.name for p in tmp_path.iterdir()] == ["p.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "expected format 'autopar-profile-6', found 'other'"),
        (
            lambda d: d.update(format="autopar-profile-1"),
            "expected format 'autopar-profile-6', found 'autopar-profile-1' of an earlier autopar",
        ),
        (lambda d: d.pop("comms"), "comms: expected, and not there"),
        (lambda d: d["machine"].pop("torch"), "machine.torch: expected, and not there"),
        (lambda d: d["ops"][1].pop("seconds"), "ops[1].seconds: expected, and not there"),
        (lambda d: d.update(machine=3), "machine: expected an object, found 3"),
        (lambda d: d["machine"].update(cores=0), "machine.cores: expected a positive whole number, found 0"),
        (lambda d: d.update(ops={}), "ops: expected a list, found {}"),
        (lambda d: d.update(finished=1), "finished: expected true or false, found 1"),
        (lambda d: d["ops"][0].update(seconds=-1), "ops[0].seconds: expected a positive number, found -1"),
        (lambda d: d["ops"][1].update(seconds=0.0), "ops[1].seconds: expected a positive number, found 0.0"),
        (lambda d: d["ops"][1].update(seconds=float("nan")), "ops[1].seconds: expected a positive number, found nan"),
        (lambda d: d["comms"][1].update(seconds=float("inf")), "comms[1].seconds: expected a positive number, found inf"),
        (lambda d: d["ops"][1].update(seconds=10**400), "ops[1].seconds: expected a positive number, found 1000"),
        (lambda d: d["ops"][1].update(seconds=1e-300), "ops[1].seconds: expected the seconds of one op or collective, 1e-09 to 10000, found 1e-300"),
        (lambda d: d["comms"][1].update(seconds=1e300), "comms[1].seconds: expected the seconds of one op or collective, 1e-09 to 10000, found 1e+300"),
        (lambda d: d["comms"][7].update(beside_s=0), "comms[7].beside_s: expected a positive number, found 0"),
        (lambda d: d["comms"][1].update(seconds="fast"), "comms[1].seconds: expected a positive number, found 'fast'"),
        (lambda d: _times(d, 1000), "ops[1].seconds: 1.11848 s of a copy of 67108864 in float32 would be 6.0e+07 bytes/s, expected 1e+08 to 2e+13: are they seconds?"),
        (lambda d: _times(d, 1e-3), "ops[1].seconds: 1.11848e-06 s of a copy of 67108864 in float32 would be 6.0e+13 bytes/s, expected 1e+08 to 2e+13: are they seconds?"),
        (lambda d: d["ops"][4].update(seconds=1e-6), "ops[4].seconds: 1e-06 s of a matmul of 512 x 512 x 512 in float32 would be 2.7e+14 FLOP/s, expected 2e+08 to 2e+14: are they seconds?"),
        (lambda d: d["ops"][0].update(spread=-0.5), "ops[0].spread: expected a number that is not negative, found -0.5"),
        (lambda d: d["ops"][0].update(repeats=0), "ops[0].repeats: expected a positive whole number, found 0"),
        (lambda d: d["ops"][1].update(ranks=0), "ops[1].ranks: expected a positive whole number, found 0"),
        (lambda d: d["ops"][4].update(shape=[512, 0, 512]), "ops[4].shape: expected a positive whole number, found 0"),
        (lambda d: d["ops"][4].update(shape=[512, 512]), "ops[4].shape: expected (m, n, k) of a matmul, found [512, 512]"),
        (lambda d: d["ops"][0].update(dtype="float31"), "ops[0].dtype: expected one of float64, float32, bfloat16, "),
        (lambda d: d["comms"][0].update(kind="shout"), "comms[0].kind: expected one of all_reduce, all_gather, "),
        (lambda d: d["comms"][0].update(group=[2]), "comms[0].group: expected [ranks, distance], found [2]"),
        (lambda d: d["comms"][0].update(group=[8, 1]), "comms[0].group: expected [ranks, distance] of equal groups that are all 2 ranks, found [8, 1]"),
        (lambda d: d["comms"][0].update(group=[1, 1]), "comms[0].group: expected [ranks, distance] of equal groups that are all 2 ranks, found [1, 1]"),
        (lambda d: d["ops"].append(d["ops"][0]), f"ops[{len(ROWS.ops)}]: measures the same as ops[0]"),
        (lambda d: d["ops"].append(7), f"ops[{len(ROWS.ops)}]: expected an object, found 7"),
    ],
)
def test_an_edited_profile_says_what_is_wrong(tmp_path, change, message):
    path = tmp_path / "p.json"
    save_profile(ROWS, path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ClusterError) as error:
        load_profile(path)
    text = str(error.value)
    assert text.startswith(f"{path}: not a profile: {message}") and text.endswith("; run `autopar profile` again, or delete the file")


def _times(data, factor):
    for row in (*data["ops"], *data["comms"]):
        if "seconds" in row:
            row["seconds"] *= factor


def test_a_truncated_profile_says_so(tmp_path):
    path = tmp_path / "p.json"
    save_profile(ROWS, path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(ClusterError, match=r"p\.json: not a profile: .*run `autopar profile` again"):
        load_profile(path)
    path.write_text("[]")
    with pytest.raises(ClusterError, match="expected format 'autopar-profile-6', found 'list'"):
        load_profile(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ClusterError, match=r"p\.json: not a profile: .*run `autopar profile` again"):
        load_profile(path)


def test_a_profile_of_another_machine_says_what_differs(tmp_path):
    path = tmp_path / "p.json"
    save_profile(ROWS, path)
    with pytest.raises(ClusterError) as error:
        load_profile(path, replace(MACHINE, processor="Intel Xeon", cores=64, torch="2.11.0"))
    assert str(error.value) == (
        f"{path}: a profile of another machine: processor: expected 'Intel Xeon', found 'AMD EPYC'; cores: expected 64, found 2; "
        "run `autopar profile` again, or delete the file"
    )
    with pytest.raises(ClusterError, match="device: expected 'NVIDIA H200', found 'cpu'; run"):
        load_profile(path, replace(MACHINE, device="NVIDIA H200"))
    assert load_profile(path, replace(MACHINE, torch="2.11.0")) == ROWS, "another version is no other machine"
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "NVIDIA H100 80GB HBM3"'))
    with pytest.raises(ClusterError, match="a profile of another machine: device: expected 'cpu', found 'NVIDIA H100 80GB HBM3'"):
        load_profile(path, MACHINE)  # before any row is held against what a GPU can do


def near(found):
    return pytest.approx(found, rel=1e-9)


def test_cpu_ranks_get_what_was_measured_at_their_number():
    model = build_cost_model(parse_cluster("cpu:4"), ROWS)
    assert dict(model.flops_per_s) == {"float32": near(50e9), "bfloat16": near(100e9)}
    assert (model.memory_bytes_per_s, model.launch_s, model.links.inside_bytes_per_s) == (near(10e9), near(2e-6), near(2e8))
    assert model.cluster.inside.latency_s == near(5e-4)
    assert model.source.startswith("measured 2026-11-20 on AMD EPYC with 2 cores, torch 2.13.0, 4 at once; inside: measured")


def test_more_ranks_than_measured_share_what_was_there():
    model = build_cost_model(parse_cluster("cpu:8"), ROWS)
    assert dict(model.flops_per_s)["float32"] == near(25e9) and model.memory_bytes_per_s == near(5e9)
    assert (model.links.inside_bytes_per_s, model.cluster.inside.latency_s) == (near(1e8), near(1e-3))
    assert "4 at once, scaled to 8" in model.source


def test_one_rank_and_machines_without_links():
    assert dict(build_cost_model(parse_cluster("cpu:1"), ROWS).flops_per_s)["float32"] == near(200e9)
    without = replace(ROWS, comms=())
    assert build_cost_model(parse_cluster("cpu:4"), without).links.inside_bytes_per_s == parse_cluster("cpu:4").inside.bandwidth_bytes_per_s


def test_a_noisy_gather_does_not_make_the_link():
    noisy = (*gathers(2, 2e-4, 5e8, 1e-6), comm("all_gather", (2, 1), 2, 2**21, 2**20 / 4e8), comm("all_gather", (2, 1), 2, 2**25, 1e-5))
    link = build_cost_model(parse_cluster("cpu:2"), replace(ROWS, comms=noisy)).cluster.inside
    assert link.bandwidth_bytes_per_s == near(5e8) and link.latency_s == pytest.approx(2e-4, rel=0.01)
    equal = tuple(comm("all_gather", (2, 1), 2, size, 1e-3) for size in (2**8, 2**16))
    link = build_cost_model(parse_cluster("cpu:2"), replace(ROWS, comms=equal)).cluster.inside
    assert link.bandwidth_bytes_per_s == near(2**15 / 1e-3) and 0 < link.latency_s <= 1e-3, "no difference: all the time counts"


def test_what_an_interrupted_profile_lacks_stays_the_presets_and_is_named():
    preset = parse_cluster("cpu:1").device
    model = build_cost_model(parse_cluster("cpu:1"), replace(ROWS, ops=ROWS.ops[:4], finished=False))
    assert model.flops_per_s == preset.flops_per_s and model.memory_bytes_per_s == near(60e9)
    assert "(not measured: matmul)" in model.source
    empty = build_cost_model(parse_cluster("cpu:1"), replace(ROWS, ops=(), comms=(), finished=False))
    assert empty == build_cost_model(parse_cluster("cpu:1"))


def test_a_cpu_profile_does_not_touch_gpus():
    cluster = parse_cluster("8xH100")
    assert build_cost_model(cluster, ROWS) == build_cost_model(cluster)


def test_the_memory_of_a_rank_stays_the_presets():
    assert build_cost_model(parse_cluster("cpu:4"), ROWS).cluster.device.memory_bytes == 2 * 2**30


def test_cost_needs_no_torch():
    import subprocess

    code = (
        "import sys, autopar.cluster, autopar.cost.estimate, autopar.cost.memory, autopar.cost.model, autopar.cost.prices, "
        "autopar.cost.lookup, autopar.cost.profile, autopar.cost.rows_file; from autopar.cost.machine import machine_here; machine_here(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
