"""Launches of kernels: sizes of their blocks, how their tensors lie, sums that come in parts, what is done where a compiler fails."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
from codegen.interpreter import read_numbers  # noqa: E402

from autopar.graph.blocks import LARGEST, most_rows  # noqa: E402
from autopar.graph.layouts import span  # noqa: E402
from autopar.runtime import fused  # noqa: E402
from autopar.runtime.block_table import candidates, loop_candidates  # noqa: E402
from autopar.runtime.fused import Grid  # noqa: E402

pytestmark = pytest.mark.torch

TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-2, "float64": 1e-14, "int64": 0.0}


@pytest.fixture(scope="module")
def numbers():
    """Sums in parts, of one process with Triton's interpreter."""
    return read_numbers("parts_numbers")


def test_parts_are_added_up_and_their_sums_begin_at_16_bytes(numbers):
    rows = [row for row in numbers if "shape" in row]
    assert {row["dtype"] for row in rows} == set(TOLERANCE)
    for row in rows:
        assert row["sums"] == row["shape"][0] and row["aligned"] and row["difference"] <= TOLERANCE[row["dtype"]], row


def test_a_launch_adds_up_what_its_programs_leave(numbers):
    """Two sums of one kind, one of another, beside a result whose rows are apart; of one program and of many."""
    rows = [row for row in numbers if "most" in row]
    assert [row["most"] for row in rows] == [1, 2, 5, 264] and all(row["close"] == [True] * 4 and row["strides"] == [24, 1] for row in rows), rows


# --- how tensors lie


def test_what_lies_as_it_should_is_taken_as_it_is():
    x = torch.randn(2, 16, 4, 8).permute(0, 2, 1, 3)
    assert fused.lay(x, (512, 8, 32, 1)) is x
    one = torch.randn(1, 5)
    assert fused.lay(one, (5, 1)) is one and fused.lay(one, (8, 1)) is one, "with one row there is no next"


def test_what_lies_otherwise_is_copied():
    x = torch.randn(3, 1030)
    copy = fused.lay(x, (1032, 1))
    assert copy.stride() == (1032, 1) and torch.equal(copy, x) and copy.untyped_storage().nbytes() == 4 * 3 * 1032
    for seed in range(30):
        rng = random.Random(seed)
        x = torch.randn([rng.randint(1, 4) for _ in range(3)]).permute(rng.sample(range(3), 3))
        like = torch.empty([x.shape[d] + rng.choice((0, 2)) for d in (2, 0, 1)]).permute(1, 2, 0)[: x.shape[0], : x.shape[1], : x.shape[2]]
        copy = fused.lay(x, like.stride())
        assert torch.equal(copy, x) and all(size == 1 or a == b for size, a, b in zip(x.shape, copy.stride(), like.stride()))


class Silent:
    """Stands for a Triton function: does nothing, and notes grids."""

    __name__ = "silent"

    def __init__(self):
        self.asked = []

    def __getitem__(self, sides):
        self.asked.append(sides)
        return lambda *args, **options: None


def test_results_lie_as_they_are_asked_for():
    outs = [fused.Out([2, 3, 1030], torch.bfloat16, strides=strides) for strides in ((), (3096, 1032, 1))]
    packed, apart = fused.Launch(Silent(), Grid("flat", 6180), outs).run(torch.zeros(2, 3, 1030))
    assert packed.is_contiguous() and packed.shape == apart.shape == (2, 3, 1030) and packed.dtype == apart.dtype == torch.bfloat16
    assert apart.stride() == (3096, 1032, 1) and apart.untyped_storage().nbytes() == 2 * 6 * 1032 == 2 * span(apart.shape, apart.stride())


# --- sizes

GRID, SIZES = Grid("rows", 512, 768), {"ROWS": 2, "COLS": 1024, "num_warps": 4}


@pytest.mark.parametrize(
    ("grid", "widest", "sizes"),
    [
        (Grid("flat", 5000), 0, {"ROWS": 1024, "num_warps": 4}),
        (Grid("flat", 5000), 1, {"ROWS": 1024, "num_warps": 4, "PROGRAMS": 16384, "STAGES": 1}),
        (Grid("rows", 512, 768), 0, {"ROWS": 2, "COLS": 1024, "num_warps": 4}),
        (Grid("rows", 512, 768), 1, {"ROWS": 2, "COLS": 1024, "num_warps": 4, "PROGRAMS": 16384, "STAGES": 1}),
        (Grid("rows", 512, 768), 768, {"ROWS": 2, "COLS": 1024, "num_warps": 4, "PROGRAMS": 264, "STAGES": 3}),
        (Grid("rows", 512, 33, widest=1089), 0, {"ROWS": 1, "COLS": 64, "num_warps": 4}),
        (Grid("rows", 512, 50257, walks=True), 0, {"ROWS": 1, "COLS": 4096, "num_warps": 8, "STAGES": 1}),
        (Grid("rows", 512, 50257, walks=True), 1, {"ROWS": 1, "COLS": 4096, "num_warps": 8, "PROGRAMS": 16384, "STAGES": 1}),
        (Grid("columns", 4096, 768), 768, {"ROWS": 16, "COLS": 64, "num_warps": 4, "PROGRAMS": 85, "STAGES": 1}),  # times twelve blocks of columns
        (Grid("columns", 4096, 7), 7, {"ROWS": 16, "COLS": 8, "num_warps": 4, "PROGRAMS": 1024, "STAGES": 1}),
        (Grid("columns", 4096, 10**6), 10**6, {"ROWS": 16, "COLS": 64, "num_warps": 4, "PROGRAMS": 1, "STAGES": 1}),
    ],
    ids=str,
)
def test_sizes_by_rule(grid, widest, sizes):
    assert fused.blocks(grid, widest) == sizes


def test_loops_load_ahead_where_there_is_room():
    wide = Grid("rows", 4096, 8192)
    assert [fused.blocks(wide, 8192, loaded)["STAGES"] for loaded in (2, 4, 8, 16)] == [3, 3, 1, 1]


GRIDS = [Grid("flat", 5000), Grid("columns", 4096, 768), Grid("columns", 4096, 3)] + [Grid("rows", 512, cols) for cols in (1, 3, 32, 700, 1024, 2500, 8192)]


@pytest.mark.parametrize("grid", [*GRIDS, Grid("rows", 512, 50257, walks=True), *(Grid("rows", 512, 8, widest=wide) for wide in (100, 3000, 8192))], ids=str)
def test_no_block_has_more_rows_than_texts_are_printed_for(grid):
    """Masks are left out where blocks of `most_rows` cannot reach beyond what there is."""
    most, rule = most_rows(grid.shape, grid.width, grid.walks), fused.blocks(grid, grid.cols)
    tried = [sizes for base in candidates(rule, grid.widest) for sizes in (base, *loop_candidates(base, grid.walks))]
    assert all(most % sizes["ROWS"] == 0 for sizes in tried)
    assert grid.walks and max(sizes["COLS"] for sizes in tried) == LARGEST or len({sizes.get("COLS") for sizes in tried}) == 1, "a whole row, or a block of columns"
    assert all(fused._may_have(grid, rule, sizes) for sizes in tried) and not fused._may_have(grid, rule, {**rule, "ROWS": 2 * most})
    assert not fused._may_have(grid, rule, {**rule, "COLS": 2 * LARGEST})


@pytest.mark.parametrize("row", [{"ROWS": 2, "COLS": 512, "num_warps": 4}, {"ROWS": 2, "COLS": 2048, "num_warps": 4}, {"ROWS": 2, "num_warps": 4}, {"ROWS": 2, "COLS": 1024, "num_warps": 4, "STAGES": 2}])
def test_sizes_that_somebody_wrote_are_only_taken_where_the_text_knows_of_them(row):
    assert not fused._may_have(GRID, SIZES, row) and fused._may_have(GRID, SIZES, {**SIZES, "num_warps": 8})


# --- where a compiler fails


class Compiler:
    """Stands for a launch: it fails on some sizes, and remembers what it was asked for."""

    def __init__(self, fails, text="PassManager::run failed", error=RuntimeError):
        self.fails, self.text, self.error, self.asked = fails, text, error, []

    def __call__(self, sizes):
        self.asked.append(sizes)
        if self.fails(sizes):
            raise self.error(self.text)
        return sizes["ROWS"]


@pytest.fixture
def instead(monkeypatch):
    found = {}
    monkeypatch.setattr(fused, "_INSTEAD", found)
    return found


def test_other_sizes_run_where_the_compiler_fails_and_are_kept(instead):
    compiler = Compiler(lambda sizes: sizes["ROWS"] == 2)
    others = [sizes for sizes in candidates(SIZES) if sizes["ROWS"] != 2]
    assert fused._run_compiled(len, GRID, SIZES, SIZES, compiler) == (others[0], others[0]["ROWS"]) and compiler.asked[0] == SIZES and instead == {(len, GRID): others[0]}
    again = Compiler(lambda sizes: False)
    fused._run_compiled(len, GRID, SIZES, SIZES, again)
    fused._run_compiled(len, Grid("rows", 512, 700), SIZES, SIZES, again)
    fused._run_compiled(max, GRID, SIZES, SIZES, again)
    assert again.asked == [others[0], SIZES, SIZES], "for this kernel over this grid alone"


def test_where_nothing_compiles_the_first_error_is_raised(instead):
    compiler = Compiler(lambda sizes: True)
    with pytest.raises(RuntimeError, match="PassManager::run failed"):
        fused._run_compiled(len, GRID, SIZES, SIZES, compiler)
    assert compiler.asked == candidates(SIZES) and not instead


@pytest.mark.parametrize(("text", "error"), [("out of resource: shared memory", RuntimeError), ("PassManager::run failed", ValueError)])
def test_other_errors_are_raised_at_once(instead, text, error):
    compiler = Compiler(lambda sizes: True, text, error)
    with pytest.raises(error, match=text):
        fused._run_compiled(len, GRID, SIZES, SIZES, compiler)
    assert compiler.asked == [SIZES] and not instead


def test_sizes_that_fail_otherwise_are_passed_over(instead):
    """Those tried in the place of the rule's may ask for more than the device has: Triton's error for that is no RuntimeError."""

    class OutOfResources(Exception):
        pass

    fails = iter([RuntimeError("PassManager::run failed"), OutOfResources("shared memory"), RuntimeError("too many registers")])

    def run(sizes):
        error = next(fails, None)
        if error is not None:
            raise error
        return sizes

    assert fused._run_compiled(len, GRID, SIZES, SIZES, run) == (candidates(SIZES)[3],) * 2 and instead == {(len, GRID): candidates(SIZES)[3]}


def test_sizes_that_the_device_has_no_room_for_are_given_up(instead):
    """By rule a loop loads ahead; a device with less memory beside its processors runs it as it can."""

    class OutOfResources(Exception):
        pass

    sizes = {**SIZES, "PROGRAMS": 264, "STAGES": 3}
    compiler = Compiler(lambda sizes: sizes["STAGES"] > 1, "out of resource: shared memory", OutOfResources)
    found, _ = fused._run_compiled(len, GRID, sizes, sizes, compiler)
    assert found == {**sizes, "STAGES": 1} == instead[len, GRID]


def test_what_runs_in_the_place_of_a_table_s_sizes_is_near_the_rule_s(instead):
    """Not near those of the table, beyond which a text asks for nothing."""
    grid = Grid("flat", 12288)
    rule, most = fused.blocks(grid), {**fused.blocks(grid), "ROWS": most_rows("flat")}
    compiler = Compiler(lambda sizes: True)
    with pytest.raises(RuntimeError):
        fused._run_compiled(len, grid, rule, most, compiler)
    assert compiler.asked[:2] == [most, rule] and all(sizes["ROWS"] <= most_rows("flat") for sizes in compiler.asked)


class Kernel:
    """Stands for a Triton function: it remembers its sizes, and fails on some."""

    src, __name__ = "", "kernel"

    def __init__(self, fails=lambda sizes: False):
        self.fails, self.asked = fails, []

    def __getitem__(self, programs):
        def launched(*args, **sizes):
            self.asked.append(sizes)
            if self.fails(sizes):
                raise RuntimeError("PassManager::run failed")

        return launched


def test_a_launch_whose_sizes_are_known_is_guarded_too(instead):
    """Another address may need another compilation of the same function."""
    kernel = Kernel()
    launch = fused.Launch(kernel, GRID, [fused.Out([512, 768], torch.float32)])
    x = torch.randn(512, 768)
    launch.run(x)
    kernel.fails = lambda sizes: sizes["ROWS"] == 2
    assert launch.run(x).shape == x.shape and kernel.asked[-1]["ROWS"] != 2
    kernel.fails = lambda sizes: False
    launch.run(x)
    assert kernel.asked[-1]["ROWS"] != 2 and len(kernel.asked) == 4, "what ran is what runs"


def test_what_is_compiled_for_needs_no_memory(monkeypatch):
    """Results are told by their dtypes."""
    kernel, told = Kernel(), []
    kernel.warmup = lambda *args, grid, **sizes: told.append((args, grid, sizes))
    outs = [fused.Out([512, 768], torch.bfloat16), fused.Out([768], torch.bfloat16, 768), fused.Out([512, 1], torch.bfloat16, statistic=True)]
    launch, x = fused.Launch(kernel, GRID, outs), torch.randn(512, 768)
    sizes = fused.blocks(GRID, 768)
    launch._compile(GRID, [x], sizes)
    [(args, programs, used)] = told
    assert args[0] is x and args[1:] == (torch.bfloat16, torch.float32, torch.bfloat16) and programs == (256, 1) and used["PROGRAMS"] == 256


def test_a_state_that_is_not_dense_is_no_state_to_rewrite():
    with pytest.raises(ValueError, match="rewritten in place is not dense"):
        fused.Launch(Kernel(), GRID, [], written=[0]).run(torch.randn(768, 512).t())


MOST_ON_A_SIDE = 65535  # programs on the second side of a grid on CUDA; on its first 2^31 - 1


@pytest.mark.parametrize("grid", [Grid("columns", 16, 3_145_728), Grid("columns", 10**8, 8), Grid("rows", 10**7, 64), Grid("flat", 2**31)], ids=str)
@pytest.mark.parametrize("wide", [True, False])
def test_the_second_side_of_a_grid_stays_short(grid, wide, monkeypatch):
    width = grid.cols if wide else 1
    launch = fused.Launch(Silent(), grid, [fused.Out([width], torch.float32, width)])
    (first, second), _ = launch._programs(grid, fused.blocks(grid, width))
    assert second <= MOST_ON_A_SIDE and first < 2**31
    adds = Silent()
    monkeypatch.setattr(fused, "add_parts", adds)
    fused._adder(3, 2, width, torch.float32, fused.Out([width], torch.float32, width), torch.device("cpu"))
    assert all(sides[1] <= MOST_ON_A_SIDE for sides in adds.asked) and len(adds.asked) == 1


def test_parts_of_one_program_are_the_sums(monkeypatch):
    monkeypatch.setattr(fused, "add_parts", None)
    parts = torch.randn(2, 1, 32)
    sums = fused._adder(2, 1, 32, torch.float32, fused.Out([32], torch.bfloat16, 32), torch.device("cpu"))(parts)
    assert len(sums) == 2 and all(torch.equal(total, part[0].bfloat16()) for total, part in zip(sums, parts))
