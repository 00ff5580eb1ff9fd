"""The largest logit of each row and the sum of exponentials over it, made in one walk, in Triton's interpreter or on a GPU, beside float64: prints one JSON object per row of logits.

    TRITON_INTERPRET=1 python -m tests.codegen.exps_numbers
    python -m tests.codegen.exps_numbers --device cuda

A process of its own, for Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import itertools
import json
import math

import torch

from autopar.codegen.kernels.triton_text import print_triton
from autopar.graph.blocks import LARGEST, WALK
from autopar.graph.graph import Graph
from autopar.graph.kernel import Kernel
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.tensor import Kind, Value
from autopar.runtime import fused
from tests.codegen.asked import Asked, read_words
from tests.codegen.kernel_numbers import functions_of

WIDTHS = (9001, 3 * WALK, LARGEST)  # columns: a few more than blocks have, whole blocks of the rule's size, and of every size
SIZES = (WALK, LARGEST)  # columns of a block


def exps_kernel(rows: int, width: int, dtype: str) -> Kernel:
    """The first two nodes of a loss of so many classes."""
    values = [Value("logits", "logits", 0, (rows, width), dtype, Kind.ACTIVATION)]
    values += [Value(name, name, 0, (rows,), dtype, Kind.ACTIVATION) for name in ("peak", "total")]
    nodes = (
        Node("n0", "aten.amax.default", ("logits",), (("self", Ref(0)), ("dim", (-1,))), ("peak",), Phase.FORWARD),
        Node("n1", "autopar.sum_exp", ("logits", "peak"), (("logits", Ref(0)), ("peak", Ref(1)), ("num_classes", width)), ("total",), Phase.FORWARD),
    )
    return Kernel(f"exps_{width}_{dtype}", Graph("", tuple(values), nodes, ("logits",), outputs=("peak", "total")), (), False, ())


def draw_rows(width: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Rows of logits, by what is odd about them."""
    generator = torch.Generator().manual_seed(width)
    plain, last, block = (torch.randn(width, generator=generator) * 5).to(dtype), width - 1, WALK
    lowest = torch.finfo(dtype).min

    def changed(places: slice | int, number: float) -> torch.Tensor:
        row = plain.clone()
        row[places] = number
        return row

    none = torch.full((width,), -math.inf, dtype=dtype)
    alone, low = none.clone(), none.clone()
    alone[last], low[17] = 2.5, lowest
    return {
        "plain": plain, "large": plain + 3000, "rising": plain.sort()[0] * 20, "falling": plain.sort(descending=True)[0] * 20,
        "masked": plain.where(plain > 0, none), "first block masked": changed(slice(0, block), -math.inf),
        "last block masked": changed(slice(block, width), -math.inf), "the last alone": alone, "masked but one of a block": changed(slice(1, width), -math.inf),
        "all lowest": torch.full_like(none, lowest), "one lowest, the others masked": low, "all but one lowest": torch.full_like(none, lowest).where(torch.arange(width) != 5, plain),
        "all masked": none, "infinite": changed(17, math.inf), "infinite at the end": changed(last, math.inf), "no number": changed(17, math.nan), "no number at the end": changed(last, math.nan),
    }  # fmt: skip


def main(asked: Asked) -> None:
    rule = fused.blocks
    for width, dtype, cols in asked.share(itertools.product(WIDTHS, ("float32", "float64"), SIZES)):
        rows = draw_rows(width, getattr(torch, dtype))
        given = torch.stack(list(rows.values()))
        kernel = exps_kernel(len(rows), width, dtype)
        walks = sum("tl.range(" in line for line in print_triton(kernel).lines)
        fused.blocks = lambda *args, cols=cols: {**rule(*args), "COLS": cols}
        peaks, totals = functions_of([kernel])[kernel.name](*asked.place([given]))
        wanted = given.double().amax(-1)
        sums = (given.double() - wanted[:, None]).exp().sum(-1)
        for name, *found in zip(rows, peaks.tolist(), totals.tolist(), wanted.tolist(), sums.tolist(), strict=True):
            row = {"width": width, "dtype": dtype, "cols": cols, "row": name, "walks": walks}
            print(json.dumps({**row, **dict(zip(("peak", "total", "peak wanted", "total wanted"), found))}), flush=True)


if __name__ == "__main__":
    main(read_words(__doc__))
