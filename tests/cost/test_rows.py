"""Profiles: saved, loaded, checked, and read by a cluster of cpu ranks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.model import build_cost_model
from autopar.cost.rows import ComputeRow, LinkRow, ProfileRows, load_profile, save_profile
from autopar.errors import ClusterError, RankError

ROWS = ProfileRows(
    "2026-11-20", "x86_64 with 2 cores", "2.13.0", 2,
    (
        ComputeRow(1, (("float32", 200e9), ("bfloat16", 400e9)), 60e9, 1e-6),
        ComputeRow(4, (("float32", 50e9), ("bfloat16", 100e9)), 10e9, 2e-6),
    ),
    (LinkRow(2, 2e-4, 5e8), LinkRow(4, 5e-4, 2e8)),
)  # fmt: skip


def test_a_profile_survives_its_file(tmp_path):
    path = tmp_path / "deep" / "profile-cpu.json"
    save_profile(ROWS, path)
    assert load_profile(path) == ROWS
    assert [p.name for p in path.parent.iterdir()] == ["profile-cpu.json"]


def test_no_file_is_no_profile(tmp_path):
    assert load_profile(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "expected format 'autopar-profile-1', found 'other'"),
        (lambda d: d.pop("links"), "'links' is missing"),
        (lambda d: d["compute"][0].update(launch_s=-1), "launch_s: expected a positive number, found -1"),
        (lambda d: d["compute"][1]["flops_per_s"][0].__setitem__(1, "fast"), "flops_per_s of float32: expected a positive number, found 'fast'"),
        (lambda d: d["links"][0].update(ranks=0), "ranks: expected a positive whole number, found 0"),
        (lambda d: d.update(compute=[]), "no compute rows"),
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
    assert str(error.value) == f"{path}: not a profile: {message}; run `autopar profile` again, or delete the file"


def test_a_truncated_profile_says_so(tmp_path):
    path = tmp_path / "p.json"
    save_profile(ROWS, path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(ClusterError, match=r"p\.json: not a profile: .*run `autopar profile` again"):
        load_profile(path)
    path.write_text("[]")
    with pytest.raises(ClusterError, match="expected format 'autopar-profile-1', found 'list'"):
        load_profile(path)


def test_cpu_ranks_get_what_was_measured_at_their_number():
    model = build_cost_model(parse_cluster("cpu:4"), ROWS)
    assert dict(model.flops_per_s) == {"float32": 50e9, "bfloat16": 100e9}
    assert (model.memory_bytes_per_s, model.launch_s, model.inside_bytes_per_s) == (10e9, 2e-6, 2e8)
    assert model.cluster.inside.latency_s == 5e-4
    assert model.source.startswith("measured 2026-11-20 on x86_64 with 2 cores, torch 2.13.0, 4 at once; inside: measured")


def test_more_ranks_than_measured_share_what_was_there():
    model = build_cost_model(parse_cluster("cpu:8"), ROWS)
    assert dict(model.flops_per_s)["float32"] == 25e9 and model.memory_bytes_per_s == 5e9
    assert (model.inside_bytes_per_s, model.cluster.inside.latency_s) == (1e8, 1e-3)
    assert "4 at once, scaled to 8" in model.source


def test_one_rank_and_machines_without_links():
    assert dict(build_cost_model(parse_cluster("cpu:1"), ROWS).flops_per_s)["float32"] == 200e9
    without = replace(ROWS, links=())
    assert build_cost_model(parse_cluster("cpu:4"), without).inside_bytes_per_s == parse_cluster("cpu:4").inside.bandwidth_bytes_per_s


def test_a_cpu_profile_does_not_touch_gpus():
    cluster = parse_cluster("8xH100")
    assert build_cost_model(cluster, ROWS) == build_cost_model(cluster)


def test_the_memory_of_a_rank_stays_the_presets():
    assert build_cost_model(parse_cluster("cpu:4"), ROWS).cluster.device.memory_bytes == 2 * 2**30


def test_cost_needs_no_torch():
    import subprocess

    code = (
        "import sys, autopar.cluster, autopar.cost.estimate, autopar.cost.memory, autopar.cost.model, autopar.cost.prices, "
        "autopar.cost.profile, autopar.cost.rows; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_link_is_fitted_by_the_ring_formula():
    from autopar.cost.profile import _LARGE, _fit_link

    row = _fit_link(4, 1e-6 + 3 * 2e-4, 1e-6 + 3 * 2e-4 + 3 * _LARGE / 5e8, 1e-6)
    assert row.latency_s == pytest.approx(2e-4) and row.bandwidth_bytes_per_s == pytest.approx(5e8)


@pytest.mark.torch
@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_this_machine_can_be_measured(monkeypatch):
    from autopar.cost import profile

    rows = profile.measure_cpu((1, 2))
    assert [row.ranks for row in rows.compute] == [1, 2] and [row.ranks for row in rows.links] == [2]
    for row in rows.compute:
        assert 1e8 < dict(row.flops_per_s)["float32"] < 1e14 and 1e8 < row.memory_bytes_per_s < 1e13
        assert 1e-8 < row.launch_s < 1e-2
    assert build_cost_model(parse_cluster("cpu:2"), rows).inside_bytes_per_s == rows.links[0].bandwidth_bytes_per_s


class _Queue:
    def __init__(self, rows):
        self.rows = rows

    def get(self, timeout):
        import queue

        if not self.rows:
            raise queue.Empty
        return self.rows.pop()


class _Process:
    exitcode = 9


def test_a_process_that_fails_is_named():
    from autopar.cost.profile import _collect

    with pytest.raises(RankError, match=r"^profile: process 1 of 2: OSError: no port$"):
        _collect(2, [_Process(), _Process()], _Queue([(1, {"error": "OSError: no port"})]))
    with pytest.raises(RankError, match=r"^profile: process 0 of 2 ended with code 9$"):
        _collect(2, [_Process(), _Process()], _Queue([(1, {})]))
