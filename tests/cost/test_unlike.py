"""Whether a step is like those whose predictions were compared with what they took."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from autopar.cost.lookup import op_table, table_seconds
from autopar.cost.measured import measured_rows, node_reach, wire_reach
from autopar.cost.unlike import FAR, LIKE, find_unlike
from autopar.graph.node import Phase, Ref
from tests.cost.test_error_bar import ROWS


def ask(reaches=(), **seconds):
    """Of nodes named for their ops; `_grad` runs backward, `_step` in the update."""
    ops = {"mm": "aten.mm.default", "conv": "aten.convolution.default", "add": "aten.add.Tensor", "attention": "autopar.attention", "comm": "comm.all_reduce"}
    phases = {"grad": Phase.BACKWARD, "step": Phase.UPDATE}
    args = {"attention": (("is_causal", True),), "masked": (("attn_mask", Ref(3)),)}
    ops |= {"masked": ops["attention"], "open": ops["attention"]}
    nodes = [SimpleNamespace(name=name, op=ops[name.split("_")[0]], args=args.get(name.split("_")[0], ()), phase=phases.get(name.rpartition("_")[2], Phase.FORWARD)) for name in seconds]
    return find_unlike(nodes, seconds, {name: 1.0 for name in seconds if name.startswith("mm")}, dict(reaches))


def test_blocks_of_linears_and_attention_are_like_them():
    assert ask(mm=5.0, attention=2.0, add=3.0) == LIKE
    assert ask(mm=5.0, mm_grad=5.0, add_step=40.0, comm=40.0) == LIKE, "updates and messages are in all of them"
    assert ask() == LIKE


def test_attention_to_all_of_a_sequence_is_told():
    assert [ask(mm=5.0, **{kind: 2.0}).encodes for kind in ("open", "attention", "masked")] == [True, False, False]
    assert ask(mm=5.0, open=2.0, attention=1.0).encodes and not ask(mm=5.0, open=2.0, attention=3.0).encodes


def test_convolutions_are_not():
    assert not ask(mm=95.0, conv=5.0).why, "a stem of patches"
    assert "convolutions, which take 50 % of forward and backward" in ask(mm=5.0, conv=2.0, conv_grad=3.0).why


def test_a_step_of_little_matmul_is_not():
    assert "matmuls and attention take 25 %" in ask(mm=1.0, add=3.0).why


@pytest.mark.parametrize("factor, seconds, why, beside", [(FAR, 9.0, False, False), (40.0, 9.0, True, False), (40.0, 1.0, False, True), (40.0, 0.05, False, False)])
def test_shapes_far_outside_of_the_rows(factor, seconds, why, beside):
    found = ask({"mm_far": (factor, "matmul"), "mm": (1.0, "matmul")}, mm=10.0 - seconds, mm_far=seconds)
    assert (bool(found.why), bool(found.beside)) == (why, beside)
    text = f"{10 * seconds:.0f} % of the step's seconds are of shapes more than 4 times beyond the profile's rows, most of it matmul, up to 40 times"
    assert text in found.why + found.beside or not (why or beside)


def test_a_reach_is_that_of_the_rows():
    measured = measured_rows(ROWS, 4, 1e-6, 1e10)
    table = op_table(ROWS, "pointwise", "float32", 4)
    largest = float(np.exp(table.points.max()))
    for times in (1.0, 3.0, 50.0):
        sizes = np.array([[largest * times / 12], [largest * times / 12], [largest * times / 12]])
        factor, family = node_reach(measured, "aten.add.Tensor", None, "float32", sizes, 2, np.zeros(1), np.array([largest * times]))
        assert family == "pointwise" and factor == pytest.approx(table_seconds(table, np.array([[largest * times]]))[1][0]) == pytest.approx(times)
    row = max((r for r in ROWS.comms if r.kind == "all_reduce" and r.ranks == 4 and not r.beside), key=lambda r: r.num_bytes)
    assert wire_reach(measured, "all_reduce", row.group, 8.0 * row.num_bytes) == (pytest.approx(8.0), "all_reduce")
    assert wire_reach(measured, "all_reduce", row.group, 1.0)[0] == pytest.approx(1.0)
