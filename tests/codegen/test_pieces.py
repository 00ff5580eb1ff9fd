"""Pieces: wide rows of which registers do not hold a whole one go in pieces of columns, and their kernels make the same numbers and spill nothing."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F

from autopar import Workload
from autopar.codegen.kernels.parts import print_parts
from autopar.codegen.kernels.pieces import in_pieces
from benchmarks.norm_spills import Kind, Net

from .interpreter import read_numbers
from .kernel_cases import ADAMW, CASES, kernels_of

pytestmark = pytest.mark.torch


def norm_kernels(width, norm, place, biased=False, precision="fp32", rows=512, dropout=0.1):
    """Of blocks of two norms."""
    with torch.device("meta"):
        net, x, y = Net(Kind(width, norm, place, biased, dropout, precision)), torch.empty(rows, 16), torch.empty(rows, dtype=torch.long)
    return [k for k in kernels_of(Workload(net, (x,), (y,), F.cross_entropy, ADAMW), precision) if "norm" in k.name]


def texts_of(*kind, **options):
    return [part.text for kernel in norm_kernels(*kind, **options) for part in print_parts(kernel)]


def test_lines_stand_in_pieces_between_two_exchanges():
    lines = [
        "col = tl.arange(0, COLS)[None, :]", "a_sum = tl.zeros([ROWS, COLS], tl.float32)", "for block in tl.range(0, 8, ROWS):", "    row = block + 1", "    a = tl.load(a_ptr + row * 12 + col, mask=(col < 12), other=0)",
        "    a_sum += a", "    s, t = row_sums(tl.where((col < 12), a, 0), a)", "    u = s * 2.0", "    tl.store(out, a * u)", "tl.store(sum_out + col, a_sum)",
    ]  # fmt: skip
    assert in_pieces(lines, 12, 8, 2) == [
        "col = tl.arange(0, COLS // 2)[None, :]", "a_sum_at_0 = tl.zeros([ROWS, COLS // 2], tl.float32)", "a_sum_at_8 = tl.zeros([ROWS, COLS // 2], tl.float32)", "for block in tl.range(0, 8, ROWS):", "    row = block + 1",
        "    a_at_0 = tl.load(a_ptr + row * 12 + col, mask=(col < 12), other=0)", "    a_sum_at_0 += a_at_0",
        "    s_parts = tl.where((col < 12), a_at_0, 0)", "    t_parts = a_at_0", "    a_at_8 = tl.load(a_ptr + row * 12 + 8 + col, mask=((8 + col) < 12), other=0)", "    a_sum_at_8 += a_at_8",
        "    s_parts += tl.where(((8 + col) < 12), a_at_8, 0)", "    t_parts += a_at_8", "    s, t = row_sums(s_parts, t_parts)", "    u = s * 2.0", "    tl.store(out, a_at_0 * u)", "    tl.store(out, a_at_8 * u)",
        "tl.store(sum_out + col, a_sum_at_0)", "tl.store(sum_out + 8 + col, a_sum_at_8)",
    ]  # fmt: skip


def test_names_of_functions_and_arguments_are_no_values():
    lines = ["col = tl.arange(0, COLS)", "mask = tl.load(x_ptr + col, mask=(col < 8), other=0)", "sum = fused.more(mask, mask, \"sum\")", "exp = tl.exp(sum) + tl.sum(r)", "tl.store(y_out + col, exp)"]
    found = in_pieces(lines, 8, 4, 2)
    assert found[1:5] == [
        "mask_at_0 = tl.load(x_ptr + col, mask=(col < 8), other=0)", 'sum_at_0 = fused.more(mask_at_0, mask_at_0, "sum")', "exp_at_0 = tl.exp(sum_at_0) + tl.sum(r)", "tl.store(y_out + col, exp_at_0)",
    ]  # fmt: skip


def test_only_rows_that_registers_do_not_hold_go_in_pieces():
    assert not any(text.pieces for text in texts_of(4096, "LlamaNorm", "sandwich"))
    assert not any(text.pieces for text in texts_of(8192, "LayerNorm", "before", precision="bf16"))
    assert any(text.pieces for text in texts_of(8192, "LlamaNorm", "sandwich"))


def test_pieces_behind_the_row_are_none():
    [text] = [text for text in texts_of(5120, "RMSNorm", "twice") if text.pieces]
    lines = "\n".join(text.lines)
    assert "_at_4096 = " in lines and "_at_5120" not in lines and "COLS // 8" in lines


@pytest.mark.parametrize("width, parts", [(5120, 1), (8192, 2)])
def test_a_third_sum_over_rows_is_a_part_of_its_own_where_registers_hold_two(width, parts):
    found = [print_parts(kernel) for kernel in norm_kernels(width, "RMSNorm", "twice", biased=True)]
    assert max(map(len, found)) == parts
    for _, *others in (pieces for pieces in found if len(pieces) > 1):
        assert [(part.text.shape, part.kernel.graph.inputs) for part in others] == [("columns", ("mul_21",))]


@pytest.mark.parametrize("width, norm, place, biased, precision", [
    (8192, "LlamaNorm", "sandwich", False, "fp32"), (5120, "RMSNorm", "twice", True, "fp32"), (8192, "RMSNorm", "sandwich", False, "bf16"), (8192, "RMSNorm", "after", False, "fp32"), (8192, "LayerNorm", "after", True, "fp32"),
])  # fmt: skip
def test_gradients_of_norms_of_wide_rows_do_not_spill(width, norm, place, biased, precision):
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)
    from benchmarks.kernel_compile import compile_kernels

    rows = compile_kernels([k for k in norm_kernels(width, norm, place, biased, precision) if "norm_backward" in k.name], [90])
    assert rows and not [row for row in rows if row.spilled_bytes], rows


def test_numbers_equal_float64():
    """Loads and sums in pieces, rows that end within one, a part of its own for a third sum."""
    rows = read_numbers("piece_numbers")
    assert len(rows) == 4
    for row in rows:
        assert row["difference"] < {"fp32": 2e-5, "bf16": 2e-2}[row["precision"]], row


def test_a_sum_of_all_columns_is_no_sum_of_pieces():
    """A scale for the whole tensor: its gradient is one number, which each piece would write."""
    texts = [part.text for kernel in kernels_of(CASES["norms of wide rows"]()) if "norm_backward" in kernel.name for part in print_parts(kernel)]
    assert texts and not any(text.pieces for text in texts if any("tl.sum(sum_2_sum))" in line for line in text.lines))
