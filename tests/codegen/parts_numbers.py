"""Sums that programs leave in parts, added up in Triton's interpreter or on a GPU, beside torch: prints one JSON object per case.

    TRITON_INTERPRET=1 python -m tests.codegen.parts_numbers
    python -m tests.codegen.parts_numbers --device cuda

A process of its own, for Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import itertools
import json

import torch
import triton.language as tl

from autopar.runtime import fused
from tests.codegen.asked import Asked, read_words

SHAPES = [(1, 1, 1), (1, 1, 37), (3, 1, 1), (2, 5, 33), (4, 264, 48), (3, 7, 1030), (1, 1000, 1), (2, 129, 31)]  # sums, programs, width
DTYPES = [("float32", "float32"), ("float32", "bfloat16"), ("float64", "float64"), ("int64", "int64")]  # of parts and of sums
ROWS, COLS = 53, 21


@fused.jit
def sums_kernel(x_ptr, double_out, sum_out, square_out, count_out, ROWS: tl.constexpr, COLS: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr):
    """As `codegen.kernels` prints one: twice `x [53, 21]`, its sum over rows and that of its squares, and how many of its elements are positive."""
    col = tl.arange(0, COLS)[None, :]
    total = tl.zeros([ROWS, COLS], tl.float32)
    squares = tl.zeros([ROWS, COLS], tl.float32)
    positive = tl.zeros([ROWS, COLS], tl.int64)
    for block in tl.range(tl.program_id(0) * ROWS, 53, PROGRAMS * ROWS, num_stages=STAGES):
        row = block + tl.arange(0, ROWS)[:, None]
        inside = (row < 53) & (col < 21)
        x = tl.load(x_ptr + row * 21 + col, mask=inside, other=0)
        tl.store(double_out + row * 24 + col, x * 2, mask=inside)
        total += x
        squares += x * x
        positive += (x > 0).to(tl.int64)
    tl.store(sum_out + tl.program_id(0) * 21 + col, tl.sum(total, axis=0)[None, :], mask=col < 21)
    tl.store(square_out + tl.program_id(0) * 21 + col, tl.sum(squares, axis=0)[None, :], mask=col < 21)
    tl.store(count_out + tl.program_id(0), tl.sum(positive))


def add_up(shape: tuple[int, int, int], part: str, dtype: str, device: torch.device) -> dict:
    torch.manual_seed(0)
    parts = (torch.randn(shape, dtype=torch.float64) * 9).to(device, getattr(torch, part))
    found, wanted = fused._adder(*parts.shape, parts.dtype, fused.Out(None, getattr(torch, dtype)), parts.device)(parts), parts.double().sum(1)
    aligned = all(x.data_ptr() % 16 == 0 and x.is_contiguous() and x.shape == shape[2:] and x.dtype == getattr(torch, dtype) for x in found)
    worst = (torch.stack(found).double() - wanted).abs().max() / wanted.abs().max()
    return {"shape": shape, "dtype": dtype, "part": part, "sums": len(found), "aligned": aligned, "difference": worst.item()}


def launch(most: int, device: torch.device) -> dict:
    """A launch of at most so many programs."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLS).to(device)
    fused._PROGRAMS = {**fused._PROGRAMS, "rows": most}
    fused._ELEMENTS = 64  # few rows a program
    outs = [fused.Out([ROWS, COLS], torch.float32, strides=[24, 1]), fused.Out([COLS], torch.float32, COLS, torch.float32), fused.Out([1, COLS], torch.float32, COLS, torch.float32)]
    double, total, squares, positive = fused.Launch(sums_kernel, fused.Grid("rows", ROWS, COLS), [*outs, fused.Out([], torch.int64, 1, torch.int64)]).run(x)
    wanted = (x * 2, x.sum(0), x.square().sum(0, keepdim=True), (x > 0).sum())
    close = [torch.allclose(a, b, rtol=1e-5, atol=1e-5) and a.shape == b.shape and a.dtype == b.dtype for a, b in zip((double, total, squares, positive), wanted)]
    return {"most": most, "close": close, "strides": double.stride()}


def main(asked: Asked) -> None:
    for (part, dtype), shape in asked.share(itertools.product(DTYPES, SHAPES)):
        print(json.dumps(add_up(shape, part, dtype, asked.device)), flush=True)
    for most in asked.share((1, 2, 5, 264)):
        print(json.dumps(launch(most, asked.device)), flush=True)


if __name__ == "__main__":
    main(read_words(__doc__))
