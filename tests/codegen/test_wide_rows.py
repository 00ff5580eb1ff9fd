"""Wide rows: what a program's registers hold of norms of up to 8,192 columns, and so what stands where in their kernels."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autopar import Workload
from autopar.codegen.kernels.lines import drop_unread, place_early
from autopar.codegen.kernels.parts import print_parts

from .kernel_cases import ADAMW, Halves, kernels_of

pytestmark = pytest.mark.torch


class Before(nn.Module):
    """A norm, two linears and a residual, twice."""

    def __init__(self, hidden: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm(hidden) for _ in range(2))
        self.down, self.up = (nn.ModuleList(nn.Linear(*sizes) for _ in range(2)) for sizes in ((hidden, 64), (64, hidden)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, down, up in zip(self.norms, self.down, self.up):
            x = x + up(F.relu(down(norm(x))))
        return x


class Twice(nn.Module):
    """Two linears and a residual, then two norms."""

    def __init__(self, hidden: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.down, self.up, self.first, self.second = nn.Linear(hidden, 64), nn.Linear(64, hidden), norm(hidden), norm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x + self.up(F.relu(self.down(x)))))


class Net(nn.Module):
    """Two blocks between linears."""

    def __init__(self, hidden: int, block: type[nn.Module], norm: type[nn.Module]) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(16, hidden), norm(hidden), nn.Linear(hidden, 32)
        self.blocks = nn.ModuleList(block(hidden, norm) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


class Scaled(nn.Module):
    """A scale for each column, and a gain after it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.scale, self.gain = (nn.Parameter(torch.ones(hidden)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.scale) * self.gain


def workload(hidden, block, norm=nn.LayerNorm):
    with torch.device("meta"):
        net, x, y = Net(hidden, block, norm), torch.empty(8, 64, 16), torch.empty(512, dtype=torch.long)
    return Workload(net, (x,), (y,), lambda out, y: F.cross_entropy(out.flatten(0, 1), y), ADAMW)


def gradients(hidden, block, precision="fp32"):
    """The texts of the kernels in which gradients of norms are."""
    kernels = [k for k in kernels_of(workload(hidden, block), precision) if "norm_backward" in k.name]
    return ["\n".join(part.text.lines) for kernel in kernels for part in print_parts(kernel)]


def test_the_gradients_of_two_norms_are_one_kernel_until_rows_are_wide():
    assert max(text.count("row_sums(") for text in gradients(1024, Twice)) > 1
    wide = gradients(8192, Twice)
    assert wide and {text.count("row_sums(") for text in wide} == {1}


@pytest.mark.parametrize("hidden, held", [(1024, True), (8192, False)])
def test_a_weight_is_loaded_once_where_registers_have_room(hidden, held):
    texts = gradients(hidden, Before)
    for text in texts:
        before, loop, inside = text.partition("for block in")
        assert loop and ("tl.load(weight_ptr" in before) == held and ("tl.load(weight_ptr" in inside) == (not held)
    assert len(texts) > 1


def test_what_only_a_sum_still_needs_is_added_at_once():
    for text in gradients(1024, Before):
        lines = [line.strip() for line in text.splitlines()]
        exchange = next(k for k, line in enumerate(lines) if "row_sums(" in line)
        added = [k for k, line in enumerate(lines) if "_sum += linear_input_grad" in line]
        assert len(added) == 2 and max(added) < exchange


def test_each_sum_is_added_after_what_it_reads():
    body = ["row = 0", "a = tl.load(a_ptr)", "b, c = row_sums(a, a)", "tl.store(out, b)", "a_2 = a * c"]
    added = ["x += a", "y += a_2", "z += b + a", "one += 1"]
    assert place_early(body, added) == ["one += 1", "row = 0", "a = tl.load(a_ptr)", "x += a", "b, c = row_sums(a, a)", "z += b + a", "tl.store(out, b)", "a_2 = a * c", "y += a_2"]


def test_what_nobody_reads_is_no_line():
    body = ["row = 0", "a = tl.load(a_ptr + row)", "b = tl.load(b_ptr + row)", "c, d = row_sums(a, a)", "e = b * d", "f = a * d", "tl.store(out, c)"]
    assert drop_unread(body, ["f"]) == [line for line in body if line[0] not in "be"]


def lines_of(hidden, block, norm=nn.LayerNorm, precision="fp32"):
    """(part of a kernel with norms, its lines)."""
    kernels = [k for k in kernels_of(workload(hidden, block, norm), precision) if "norm" in k.name]
    return [(part.kernel, [line.strip() for line in part.text.lines]) for kernel in kernels for part in print_parts(kernel) if part.text.shape == "rows"]


@pytest.mark.parametrize("block", [Before, Twice])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_nothing_of_a_wide_row_is_held_while_threads_exchange_its_sums(norm, block):
    found = lines_of(8192, block, norm)
    assert max(len(exchanges_in(lines)) for _, lines in found) > (block is Twice)
    for kernel, lines in found:
        for exchange in exchanges_in(lines):
            assert not wide_names(lines[:exchange]) & words(lines[exchange + 1 :]), (kernel.name, lines[exchange])
        loads = [line.partition(" = ")[2] for line in lines if "tl.load(" in line and "col" in line]
        assert exchanges_in(lines) and len(loads) == len(set(loads))  # Triton would make one of two that say the same


def words(lines):
    return {word for line in lines for word in re.findall(r"\w+", line.partition(" = ")[2] or line)}


def exchanges_in(lines):
    return [k for k, line in enumerate(lines) if "row_sums(" in line or "axis=1" in line]


def wide_names(lines):
    """What is made of each element of a row."""
    found = set()
    for line in lines:
        name, made, text = line.partition(" = ")
        if made and name != "col" and "axis=1" not in line and "row_sums(" not in line and words([text]) & {"col", *found}:
            found.add(name)
    return found


@pytest.mark.parametrize("width, part", [(8192, 4096), (6000, 5001), (5003, 7)])
def test_sums_along_two_widths_stay_one_function(width, part):
    with torch.device("meta"):
        net, x = Halves(part), torch.empty(8, width)
    kernels = kernels_of(Workload(net, (x,), (), lambda y: (y * y).mean(), ADAMW))
    shapes = {name: [part.text.shape for k in kernels if name in k.name for part in print_parts(k)] for name in ("softmax_backward", "softmax_layer_norm")}
    assert shapes == {"softmax_backward": ["rows"], "softmax_layer_norm": ["rows", "flat"]}


def test_narrower_rows_are_loaded_once():
    for _, lines in lines_of(4096, Twice):
        loads = [line.partition(" = ")[2] for line in lines if "tl.load(" in line]
        assert len({load.partition(",")[0] for load in loads}) == len(loads)


def test_random_numbers_of_a_wide_row_are_drawn_once():
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.norm, self.out = nn.Linear(16, 8192), nn.LayerNorm(8192), nn.Linear(8192, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.norm(F.dropout(self.up(x), 0.1)))

    with torch.device("meta"):
        net, x, y = Dropped(), torch.empty(512, 16), torch.empty(512, dtype=torch.long)
    texts = ["\n".join(part.text.lines) for k in kernels_of(Workload(net, (x,), (y,), F.cross_entropy, ADAMW)) for part in print_parts(k)]
    [forward] = [text for text in texts if "uniform(" in text]
    assert forward.count("uniform(") == 1 and forward.count("tl.load(linear_ptr") > 1


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("hidden", [1024, 5120, 8192])
def test_norms_do_not_spill(hidden, norm):
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    from benchmarks.kernel_compile import compile_kernels

    kernels = [k for k in kernels_of(workload(hidden, Before, norm), "bf16") if "norm" in k.name]
    rows = compile_kernels(kernels, [90])
    assert len(rows) >= 3 and not [row for row in rows if row.spilled_bytes], rows


class Parallel(nn.Module):
    """Two layer norms of one x in a kernel, in a block of 90 columns, of which every element has an address of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.first, self.second = nn.Linear(16, 90), nn.LayerNorm(90), nn.LayerNorm(90)
        self.one, self.other, self.out = nn.Linear(90, 90), nn.Linear(90, 90), nn.Linear(90, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        return self.out(x + F.gelu(self.one(self.first(x))) + F.relu(self.other(self.second(x))))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_two_norms_of_narrow_rows_do_not_spill(precision):
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)
    from benchmarks.kernel_compile import compile_kernels

    with torch.device("meta"):
        net, x, y = Parallel(), torch.empty(320, 16), torch.empty(320, dtype=torch.long)
    kernels = [k for k in kernels_of(Workload(net, (x,), (y,), F.cross_entropy, ADAMW), precision) if "norm" in k.name]
    rows = compile_kernels(kernels, [90])
    assert any(row.name.count("norm_backward") == 2 for row in rows) and not [row for row in rows if row.spilled_bytes], rows


def test_more_rows_than_32_bits_count_compile_too():
    """Elements of 300,000 rows of 8,192: rows have 64 bits."""
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)
    from benchmarks.kernel_compile import compile_kernels

    with torch.device("meta"):
        net, x, y = Net(8192, Before, nn.LayerNorm), torch.empty(300_000, 16), torch.empty(300_000, dtype=torch.long)
    kernels = [k for k in kernels_of(Workload(net, (x,), (y,), F.cross_entropy, ADAMW), "bf16") if "norm_backward" in k.name]
    assert any("int64" in line and "fused.opaque" in "".join(part.text.lines) for k in kernels for part in print_parts(k) for line in part.text.lines)
    assert all(row.registers for row in compile_kernels(kernels, [90]))


def test_a_program_of_some_columns_loads_theirs_once_however_wide_its_rows_are():
    """A sum over rows alone: a program has a block of columns, not a row."""
    with torch.device("meta"):
        net = nn.Sequential(Scaled(8192), nn.Linear(8192, 32))
        x, y = torch.empty(512, 8192), torch.empty(512, dtype=torch.long)
    kernels = kernels_of(Workload(net, (x,), (y,), F.cross_entropy, ADAMW))
    texts = ["\n".join(part.text.lines) for kernel in kernels for part in print_parts(kernel) if part.text and part.text.shape == "columns"]
    [(before, loop, inside)] = [text.partition("for block in") for text in texts if "gain_ptr" in text]
    assert loop and "tl.load(gain_ptr" in before and "gain_ptr" not in inside
