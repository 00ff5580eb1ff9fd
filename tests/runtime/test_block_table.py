"""Block tables: what is measured once is kept, in a file that a person may read; the rule's sizes stand where nothing better is known."""

import contextlib
import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from autopar.runtime.block_table import BlockTable, candidates, loop_candidates  # noqa: E402

pytestmark = pytest.mark.torch

RULE = {"ROWS": 4, "COLS": 512, "num_warps": 4}
BEST = {"ROWS": 8, "COLS": 512, "num_warps": 2}


class Timer:
    """Seconds of sizes: those that are said, else 1; it counts, and fails on others."""

    def __init__(self, seconds=(), fails=()):
        self.said, self.fails, self.calls = list(seconds), fails, 0

    def __call__(self, sizes):
        self.calls += 1
        if sizes in self.fails:
            raise RuntimeError("out of resource: shared memory")
        return next((s for wanted, s in self.said if wanted == sizes), 1.0)


def find(table, key, rule, timer, walks=False):
    return table.find(key, rule, timer, lambda sizes: None, walks)


def test_the_fastest_is_kept(tmp_path):
    path, timer = tmp_path / "blocks" / "device.json", Timer([(BEST, 0.5)])
    assert find(BlockTable(path), "norm rows 8x512", RULE, timer) == BEST and timer.calls > len(candidates(RULE))
    again = Timer()
    table = BlockTable(path)  # another process
    assert table.known("norm rows 8x512") == BEST and find(table, "norm rows 8x512", RULE, again) == BEST and again.calls == 0
    assert path.read_text() == '{\n "norm rows 8x512": {"ROWS": 8, "COLS": 512, "num_warps": 2}\n}\n'


def test_two_processes_keep_what_both_found(tmp_path):
    path = tmp_path / "device.json"
    one, two = BlockTable(path), BlockTable(path)
    find(one, "a", RULE, Timer())
    find(two, "b", RULE, Timer([(BEST, 0.5)]))
    assert json.loads(path.read_text()) == {"a": RULE, "b": BEST}


def test_noise_does_not_replace_the_rule():
    assert find(BlockTable(None), "a", RULE, Timer([(BEST, 0.99)])) == RULE


def test_sizes_that_do_not_run_are_left_out():
    others = [sizes for sizes in candidates(RULE) if sizes != RULE]
    assert find(BlockTable(None), "a", RULE, Timer([(BEST, 0.5)], fails=[BEST])) == RULE
    assert find(BlockTable(None), "a", RULE, Timer(fails=[RULE])) == RULE
    assert find(BlockTable(None), "a", RULE, Timer([(others[-1], 0.5)], fails=others[:-1])) == others[-1]


@pytest.mark.parametrize("text", ["", "[1]", '{"a": {"ROWS": 3, "num_warps": 4}}', '{"a": {"ROWS": "8", "num_warps": 4}}', '{"a": {"ROWS": 8}}', '{"a": {"ROWS": 8, "num_warps": 4, "num_stages": 2}}'])
def test_what_is_no_table_is_not_read(tmp_path, text):
    path = tmp_path / "device.json"
    path.write_text(text)
    assert BlockTable(path).known("a") is None


def test_candidates_are_around_the_rule():
    found = candidates(RULE)
    assert found[0] == RULE and len(found) == len({tuple(s.items()) for s in found}) > 6
    assert all(s["COLS"] == 512 and 1 <= s["num_warps"] <= 16 and s["ROWS"] * 512 <= 16384 for s in found)
    assert all(s["ROWS"] >= 1 for s in candidates({"ROWS": 1, "COLS": 8192, "num_warps": 16}))


class OnDevice:
    """Stands for a tensor on a GPU."""

    device = SimpleNamespace(type="cuda", index=0)

    def __init__(self, name="x"):
        self.name = name

    def clone(self):
        return OnDevice(f"copy of {self.name}")

    def numel(self):
        return 5_000_000

    def element_size(self):
        return 4


def test_a_launch_is_measured_once_on_copies_of_what_it_rewrites(monkeypatch):
    """Without a GPU: a kernel whose time is known stands for a launch."""
    from autopar.runtime import fused

    monkeypatch.setattr(OnDevice, "device", torch.device("cuda", 0))
    table, seen, now = BlockTable(None), [], [0.0]

    def stamp():
        return now[0]

    def run(sizes, taken):
        seen.append([x.name for x in taken])
        now[0] += 0.5 if sizes["ROWS"] == 2048 else 1.0

    monkeypatch.setattr(fused, "_table", lambda device: table)
    monkeypatch.setattr(fused, "clock_of", lambda device: SimpleNamespace(hold=lambda seconds: None, stamp=stamp, seconds=lambda a, b: b - a))
    monkeypatch.setattr(fused, "on_device", lambda device: contextlib.nullcontext())
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])

    def kernel():
        pass

    param, grad = OnDevice("param"), OnDevice("grad")
    compiled = []

    def asked(grid):
        return fused.block_sizes(kernel, grid, fused.blocks(grid), [param, grad], False, [0], run, compiled.append)

    grid, small, rows = fused.Grid("flat", 5_000_000, any_size=True), fused.Grid("flat", 5000, any_size=True), fused.Grid("rows", 64_000, 512)
    rule = fused.blocks(grid)
    assert asked(grid) == (rule, False) and not seen  # a graph that is being captured is left alone
    capturing[0] = False
    assert asked(small) == (rule, True) and not seen and not compiled, "what takes no longer than its start is not worth it"
    found, settled = asked(grid)
    assert settled and found["ROWS"] == 2048 and all(names == ["copy of param", "grad"] for names in seen)
    assert sorted(map(str, compiled)) == sorted(map(str, candidates(rule))), "each is compiled for before any is timed"
    count = len(seen)
    assert asked(replace(grid, rows=8_000_000))[0]["ROWS"] == 2048 and len(seen) == count  # as large, nearly
    monkeypatch.setattr(fused, "num_ranks", lambda: 2)
    assert asked(rows) == (fused.blocks(rows), True) and len(seen) == count  # ranks add up in one order


def test_a_table_that_somebody_wrote_cannot_make_a_kernel_wrong(monkeypatch):
    from autopar.runtime import fused

    monkeypatch.setattr(OnDevice, "device", torch.device("cuda", 0))
    grid, table = fused.Grid("rows", 4096, 1024), BlockTable(None)
    monkeypatch.setattr(fused, "_table", lambda device: table)
    for rows, taken in ((16, 16), (32, 2)):
        monkeypatch.setattr(table, "known", lambda key, rows=rows: {**fused.blocks(grid), "ROWS": rows})
        assert fused.block_sizes(len, grid, fused.blocks(grid), [OnDevice()], False, [], len, len)[0]["ROWS"] == taken


def test_sizes_are_compiled_for_side_by_side():
    """The first alone, the others in threads; what does not compile is left to the launch."""
    order, here = [], threading.get_ident()

    def make_ready(sizes):
        order.append((sizes, threading.get_ident()))
        if sizes == BEST:
            raise RuntimeError("does not compile")

    assert BlockTable(None).find("a", RULE, Timer([(BEST, 0.5)], fails=[BEST]), make_ready, walks=False) == RULE
    assert order[0] == (RULE, here) and all(thread != here for _, thread in order[1:]) and len(order) == len(candidates(RULE))


WALK = {"ROWS": 1, "COLS": 4096, "num_warps": 8, "PROGRAMS": 264, "STAGES": 1}


def test_loops_are_measured_with_the_best_of_the_other_sizes(tmp_path):
    """Loads of several rounds at once, more programs, more columns where a program has one row; what was fastest is read again from its file."""
    found = loop_candidates(WALK, walks=True)
    assert [sizes["STAGES"] for sizes in found[:4]] == [2, 3, 4, 6] and {**WALK, "PROGRAMS": 528} in found and {**WALK, "PROGRAMS": 396} in found
    assert {**WALK, "COLS": 16384, "num_warps": 16} in found and {**WALK, "COLS": 8192, "num_warps": 16} in found and len(found) == 8
    assert max(sizes["COLS"] for sizes in loop_candidates({**WALK, "COLS": 16384}, walks=True)) == 16384
    assert loop_candidates({**WALK, "ROWS": 2}, walks=True) == [{**sizes, "ROWS": 2} for sizes in found[:6]] and loop_candidates(WALK, walks=False) == found[:6]
    assert loop_candidates(RULE, walks=True) == []
    better, best = {**WALK, "num_warps": 16}, {**WALK, "num_warps": 16, "STAGES": 3}
    path = tmp_path / "device.json"
    assert find(BlockTable(path), "loss", WALK, Timer([(better, 0.5), (best, 0.25), ({**WALK, "STAGES": 3}, 0.1)]), walks=True) == best
    assert BlockTable(path).known("loss") == best


@pytest.mark.parametrize("row", [{**WALK, "PROGRAMS": 0}, {**WALK, "STAGES": 1.0}, {**WALK, "COLS": 4095}])
def test_sizes_of_loops_that_are_none_are_not_read(tmp_path, row):
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"a": row, "b": WALK}))
    assert BlockTable(path).known("a") is None and BlockTable(path).known("b") == WALK
