"""The largest logit of each row and the sum of exponentials over it, made in one walk, in Triton's interpreter beside float64: prints one JSON object per row of logits.

    TRITON_INTERPRET=1 python -m tests.codegen.exps_numbers

A process of its own, for Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import json
import math
import warnings

import torch

from autopar.codegen.kernels.triton_text import print_triton
from autopar.graph.graph import Graph
from autopar.graph.kernel import Kernel
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.tensor import Kind, Value
from autopar.graph.blocks import WALK
from autopar.runtime import fused
from tests.codegen.kernel_numbers import functions_of

WIDTHS = (9001, 3 * WALK)  # columns: a few more than blocks have, and whole blocks


def exps_kernel(rows: int, width: int, dtype: str) -> Kernel:
    """The first two nodes of a loss of so many classes."""
    values = [Value("logits", "logits", 0, (rows, width), dtype, Kind.ACTIVATION)]
    values += [Value(name, name, 0, (rows,), dtype, Kind.ACTIVATION) for name in ("peak", "total")]
    nodes = (
        Node("n0", "aten.amax.default", ("logits",), (("self", Ref(0)), ("dim", (-1,))), ("peak",), Phase.FORWARD),
        Node("n1", "autopar.sum_exp", ("logits", "peak"), (("logits", Ref(0)), ("peak", Ref(1))), ("total",), Phase.FORWARD),
    )
    return Kernel(f"exps_{width}_{dtype}", Graph("", tuple(values), nodes, ("logits",), outputs=("peak", "total")), (), False, ())


def draw_rows(width: int) -> dict[str, torch.Tensor]:
    """Rows of logits, by what is odd about them."""
    generator = torch.Generator().manual_seed(width)
    plain, last, block = torch.randn(width, generator=generator) * 5, width - 1, WALK

    def changed(places: slice | int, number: float) -> torch.Tensor:
        row = plain.clone()
        row[places] = number
        return row

    none = torch.full((width,), -math.inf)
    alone = none.clone()
    alone[last] = 2.5
    return {
        "plain": plain, "large": plain + 3000, "rising": plain.sort()[0] * 20, "falling": plain.sort(descending=True)[0] * 20,
        "masked": torch.where(plain > 0, plain, torch.tensor(-math.inf)), "first block masked": changed(slice(0, block), -math.inf),
        "last block masked": changed(slice(block, width), -math.inf), "the last alone": alone, "masked but one of a block": changed(slice(1, width), -math.inf),
        "all masked": none, "infinite": changed(17, math.inf), "infinite at the end": changed(last, math.inf), "no number": changed(17, math.nan), "no number at the end": changed(last, math.nan),
    }  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")  # numpy on lanes that are masked out, and what is infinite
    assert fused.runs_triton(torch.zeros(1)), "TRITON_INTERPRET=1 is needed"
    for width in WIDTHS:
        rows = draw_rows(width)
        logits = torch.stack(list(rows.values()))
        for dtype in ("float32", "float64"):
            kernel = exps_kernel(len(rows), width, dtype)
            walks = sum("tl.range(" in line for line in print_triton(kernel).lines)
            given = logits.to(getattr(torch, dtype))
            peaks, totals = functions_of([kernel])[kernel.name](given)
            wanted = given.double().amax(-1)
            sums = (given.double() - wanted[:, None]).exp().sum(-1)
            for name, *found in zip(rows, peaks.tolist(), totals.tolist(), wanted.tolist(), sums.tolist(), strict=True):
                print(json.dumps({"width": width, "dtype": dtype, "row": name, "walks": walks, **dict(zip(("peak", "total", "peak wanted", "total wanted"), found))}), flush=True)


if __name__ == "__main__":
    main()
