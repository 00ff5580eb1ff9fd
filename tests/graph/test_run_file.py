"""The file of a run: what is saved loads back equal, is there whole or not at all, and what cannot be is told by its place."""

from __future__ import annotations

import json
import os

import pytest

from autopar.errors import RunError
from autopar.graph.machine import Machine
from autopar.graph.run import ActionTimes, CommTimes, RankRun, Run, plan_key
from autopar.graph.run_file import load_run, save_run


def rank_run(rank=0, peak=900):
    return RankRun(
        rank, (0.5, 0.4), (0.011, 0.012), (ActionTimes("forward", 0, (0.001, 0.002)), ActionTimes("forward", 1, (0.003, 0.0))),
        (CommTimes("forward", "all_reduce", "dp", 2, 64, (0.0, 0.0005)),), 700, 32, peak,
    )  # fmt: skip


RUN = Run("2026-01-02T03:04:05+00:00", "0.1", Machine("cpu", "AMD EPYC", 2, "2.13.0", "3.11.2"), "gpt", "0" * 16, "dp=2", (rank_run(), rank_run(1, None)))


def test_what_is_saved_loads_back_equal(tmp_path):
    path = tmp_path / "run.json"
    save_run(RUN, path)
    assert load_run(path) == RUN
    empty = Run("now", "0.1", RUN.machine, "gpt", "", "", (RankRun(0, (), (), (), (), 0, 0, None),))
    save_run(empty, path)
    assert load_run(path) == empty and [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    save_run(RUN, path)
    before = path.read_text()

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"run.json: the run cannot be written: No space left on device; choose another place with --record"):
        save_run(RUN, path)
    assert path.read_text() == before and [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RunError, match="No such file or directory; choose another place with --record"):
        save_run(RUN, tmp_path / "absent" / "run.json")
    with pytest.raises(RunError, match=r"absent.json: cannot be read: No such file or directory; expected a run that `autopar run DIR` recorded"):
        load_run(tmp_path / "absent.json")


def entry(data, *path):
    for step in path:
        data = data[step]
    return data


DAMAGED = {
    "negative": (("ranks", 1, "step_s"), 1, -0.5, r"ranks\[1\].step_s\[1\]: expected a positive number of seconds, found -0.5"),
    "zero": (("ranks", 0, "step_s"), 0, 0, r"ranks\[0\].step_s\[0\]: expected a positive number of seconds, found 0"),
    "nan": (("ranks", 0, "actions", 1, "seconds"), 0, float("nan"), r"ranks\[0\].actions\[1\].seconds\[0\]: expected a number of seconds, found NaN"),
    "infinite": (("ranks", 0, "comms", 0, "seconds"), 1, float("inf"), r"ranks\[0\].comms\[0\].seconds\[1\]: expected a number of seconds, found Infinity"),
    "text": (("ranks", 0, "warmup_s"), 0, "0.1", r'ranks\[0\].warmup_s\[0\]: expected a positive number of seconds, found "0.1"'),
    "short": (("ranks", 0, "actions", 0), "seconds", [0.1], r"ranks\[0\].actions\[0\].seconds: expected 2 entries, one per timed step, found 1"),
    "steps": (("ranks", 1), "step_s", [], r"ranks\[1\].actions\[0\].seconds: expected 0 entries"),
    "rank": (("ranks", 1), "rank", 0, r"ranks\[1\].rank: expected 1, found 0"),
    "bytes": (("ranks", 0), "peak_bytes", -1, r"ranks\[0\].peak_bytes: expected a whole number of at least 0, found -1"),
    "part": (("ranks", 0), "state_bytes", 1.5, r"ranks\[0\].state_bytes: expected a whole number of at least 0, found 1.5"),
    "huge": (("ranks", 1, "step_s"), 0, 10**400, r"ranks\[1\].step_s\[0\]: expected a positive number of seconds, found 1000"),
    "huge bytes": (("ranks", 0), "peak_bytes", 10**400, r"ranks\[0\].peak_bytes: expected a whole number below 2\^63, found 1000"),
    "unit": (("ranks", 1), "step_s", [500.0, 500.0], r"ranks\[1\].step_s: expected about the seconds of the other ranks, which wait for each other in every step, found 1000 in all where rank 0 took"),
    "long": (("ranks", 1, "actions", 0), "seconds", [100.0, 0.0], r"ranks\[1\].actions: expected no more seconds than the steps they are part of, 0.023, found 100, most of them in actions\[0\] \(forward 0\)"),
    "long wait": (("ranks", 0, "comms", 0), "seconds", [3.0, 3.0], r"ranks\[0\].comms: expected no more seconds than the steps they are part of, 0.023, found 6, most of them in comms\[0\] \(forward all_reduce dp\)"),
    "phase": (("ranks", 0, "actions", 0), "phase", "frobnicate", r"ranks\[0\].actions\[0\].phase: expected one of prepare, forward, backward, update, or a section of one \(forward_1\), found"),
    "twice": (("ranks", 0, "actions", 1), "turn", 0, r"ranks\[0\].actions\[1\]: forward 0 is there already, as actions\[0\]"),
    "small peak": (("ranks", 0), "peak_bytes", 699, r"ranks\[0\].peak_bytes: expected at least state_bytes, 700, which are held all the time, found 699"),
    "cores": (("machine",), "cores", 0, "machine.cores: expected a whole number of at least 1, found 0"),
    "object": (("ranks",), 0, 3, r"ranks\[0\]: expected an object, found 3"),
    "none": ((), "ranks", [], "ranks: expected at least one, found none"),
    "list": ((), "ranks", {}, "ranks: expected a list, found an object of 0"),
    "name": ((), "model", "", 'model: expected a text, found ""'),
    "format": ((), "format", "autopar-run-9", "format: expected 'autopar-run-1', found 'autopar-run-9': not a run that `autopar run` of this version recorded"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_is_told_by_its_place(tmp_path, name):
    path, key, value, text = DAMAGED[name]
    save_run(RUN, tmp_path / "run.json")
    data = json.loads((tmp_path / "run.json").read_text())
    entry(data, *path)[key] = value
    (tmp_path / "run.json").write_text(json.dumps(data))
    with pytest.raises(RunError, match=f"run.json: {text}.*; record it again with `autopar run DIR`"):
        load_run(tmp_path / "run.json")


@pytest.mark.parametrize(
    "cut, text",
    [
        (lambda text: text[: len(text) // 2], r"run.json: line \d+, column \d+: not JSON .*: cut short or damaged; record it again"),
        (lambda text: "", "line 1, column 1: not JSON .*: cut short or damaged"),
        (lambda text: "[1]", "format: expected 'autopar-run-1', found no such key: not a run"),
        (lambda text: '{"format": "autopar-plan-1"}', "format: expected 'autopar-run-1', found 'autopar-plan-1': not a run"),
        (lambda text: text.replace('"turn": 0, ', "", 1), r"ranks\[0\].actions\[0\].turn: missing"),
    ],
)
def test_truncated_and_foreign_files(tmp_path, cut, text):
    path = tmp_path / "run.json"
    save_run(RUN, path)
    path.write_text(cut(path.read_text()))
    with pytest.raises(RunError, match=text):
        load_run(path)


def test_no_text(tmp_path):
    (tmp_path / "run.json").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match="run.json: not a run .*; record it again"):
        load_run(tmp_path / "run.json")


def test_a_plans_key_is_what_its_program_follows_from():
    plan = {"model": {"graph_hash": "h", "precision": "fp32", "name": "a"}, "mesh": {"axes": []}, "assignment": {"storages": {}}, "cost": 1}
    assert plan_key(plan) == plan_key({**plan, "cost": 2, "model": {**plan["model"], "name": "b"}})
    for other in ({"mesh": {"axes": [1]}}, {"assignment": {}}, {"num_microbatches": 2}, {"model": {"graph_hash": "g", "precision": "fp32"}}):
        assert plan_key({**plan, **other}) != plan_key(plan)
    assert len(plan_key({})) == 16
