"""Sums along rows that end a kernel, as XLA compiles: what is read again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.model import build_cost_model
from autopar.cost.ops import estimate_op_s
from autopar.cost.row_sums import reread_bytes

ROWS = ((256, 1024, 1024), "float16")
SIZE = 2 * 256 * 1024 * 1024
MODEL = build_cost_model(parse_cluster("1x1xV100-16GB"))
XLA = replace(MODEL, sums_end_kernels=True)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "passes"),
    [
        ("aten._softmax.default", [ROWS], [ROWS], 5),
        ("aten._softmax_backward_data.default", [ROWS, ROWS], [ROWS], 5),
        ("aten._log_softmax.default", [ROWS], [ROWS], 4),
        ("aten._log_softmax_backward_data.default", [ROWS, ROWS], [ROWS], 4),
        ("aten.native_layer_norm.default", [ROWS], [ROWS], 3),
        ("aten.native_layer_norm_backward.default", [ROWS, ROWS], [ROWS], 7),
        ("aten.mul.Tensor", [ROWS, ROWS], [ROWS], 3),
    ],
)
def test_rows_are_read_once_more_for_each_sum(op, inputs, outputs, passes):
    def passes_of(model):
        return (estimate_op_s(model, op, 0.0, inputs, outputs) - model.launch_s) * model.memory_bytes_per_s / SIZE

    assert passes_of(MODEL) == pytest.approx(len(inputs) + len(outputs))
    assert passes_of(XLA) == pytest.approx(passes)


def test_what_sums_nothing_reads_nothing_again():
    assert reread_bytes("aten.gelu", [3.0]) == 0
    assert reread_bytes("autopar.sum_exp", [3.0, 1.0]) == 3


def test_no_price_of_a_matmul_changes():
    case = ("aten.mm.default", 2.0 * 1024**3, [((1024, 1024), "float16")] * 2, [((1024, 1024), "float16")])
    assert estimate_op_s(XLA, *case) == estimate_op_s(MODEL, *case)
