"""Kernels that read and write tensors as they lie: their numbers in Triton's interpreter, and what their text says."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from autopar import Workload  # noqa: E402
from autopar.codegen.kernels.emit_kernels import print_kernels  # noqa: E402
from autopar.codegen.kernels.triton_text import print_triton  # noqa: E402
from autopar.graph.graph import Graph  # noqa: E402
from autopar.graph.kernel import Kernel, kernel_key  # noqa: E402
from autopar.graph.node import Node, Phase, Ref  # noqa: E402
from autopar.graph.tensor import Kind, Value  # noqa: E402

from .interpreter import read_numbers  # noqa: E402
from .kernel_cases import ADAMW, CASES, RotaryAttention, kernels_of  # noqa: E402
from .test_kernels import TOLERANCE  # noqa: E402

HEADS, ROWS = (2, 4, 16, 8), (512, 8, 32, 1)  # as they lie in rows that hold all heads


@pytest.fixture(scope="module")
def numbers():
    """The kernels of one process with Triton's interpreter."""
    return read_numbers("layout_numbers")


@pytest.mark.parametrize("case", ["rotary", "wide", "swapped"])
def test_numbers_are_those_of_float64_however_tensors_lie(numbers, case):
    """As the kernel expects them, with what is no number between rows, row by row, and otherwise; results lie as they should each time."""
    rows = [row for row in numbers if row["case"] == case]
    assert any(row["reads"] for row in rows) and any(row["leaves"] for row in rows)
    for row in rows:
        assert max(row["as it lies"], row["row by row"], row["otherwise"]) < TOLERANCE[row["precision"]] and row["left"], row


def test_rows_that_are_walked_along_are_among_them(numbers):
    walked = [row for row in numbers if row["case"] == "wide" and row["walks"]]
    assert {row["precision"] for row in walked} == {"bf16", "fp32"} and any(row["leaves"] for row in walked)


# --- text


def _add(shape, **layouts):
    """A kernel that adds two tensors."""
    values = tuple(Value(name, name, 0, shape, "bfloat16", Kind.ACTIVATION) for name in ("a", "b", "made"))
    node = Node("n0", "aten.add.Tensor", ("a", "b"), (("self", Ref(0)), ("other", Ref(1))), ("made",), Phase.FORWARD)
    return Kernel("add", Graph("", values, (node,), ("a", "b"), outputs=("made",)), (), False, ("x.py:1: add",), tuple(layouts.items()))


def test_a_permuted_tensor_is_walked_in_its_own_order():
    """Where all lie alike, no index is divided; what lies otherwise is looked up."""
    text = "\n".join(print_triton(_add(HEADS, a=ROWS, b=ROWS, made=ROWS)).lines)
    assert "tl.load(a_ptr + row, " in text and "tl.load(b_ptr + row, " in text and "tl.store(made_out + row, " in text
    text = "\n".join(print_triton(_add(HEADS, a=ROWS, made=ROWS)).lines)
    assert "tl.load(a_ptr + row, " in text and "tl.store(made_out + row, " in text and "tl.load(b_ptr + (" in text


def test_launches_say_how_tensors_lie():
    text = print_kernels([_add(HEADS, a=ROWS, made=ROWS)])
    assert f"], laid={{0: {list(ROWS)}}})" in text and "add_launch.run(a, b)" in text and f"fused.Out([2, 4, 16, 8], torch.bfloat16, strides={list(ROWS)})," in text
    assert "laid=" not in print_kernels([_add(HEADS)]) and "strides" not in print_kernels([_add(HEADS)])


def test_kernels_are_one_where_their_tensors_lie_alike():
    assert kernel_key(_add(HEADS, a=ROWS)) == kernel_key(replace(_add(HEADS, a=ROWS), name="other"))
    assert len({kernel_key(k) for k in (_add(HEADS), _add(HEADS, a=ROWS), _add(HEADS, b=ROWS), _add(HEADS, a=(512, 128, 1, 16)))}) == 4


def test_a_walk_goes_to_where_the_next_row_begins():
    """So the last loads are as wide as the others; what is behind the row is left out of its sums."""
    kernels = kernels_of(CASES["gpt with a wide vocabulary"](), "bf16")
    loss, back = (next(k for k in kernels if name in k.name and k.layouts) for name in ("cross_entropy_where", "cross_entropy_backward"))
    for kernel, key in ((loss, "tl.load(linear_ptr + "), (back, "tl.store(cross_entropy_backward_out + ")):
        lines = [line for line in print_triton(kernel).lines if key in line and "col" in line]
        assert ["(col < 9008)" in line for line in lines] == [False, True] and all("* 9008 + col" in line for line in lines), lines
    assert any("tl.where(col < 9001" in line for line in print_triton(loss).lines)
    alone = [line for line in print_triton(replace(loss, roomy=())).lines if "tl.load(linear_ptr + " in line and "col" in line]
    assert ["(col < 9001)" in line for line in alone] == [False, True] and all("* 9008 + col" in line for line in alone), "behind its last row there may be nothing"
    packed = "\n".join(print_triton(replace(loss, layouts=(), roomy=())).lines)
    assert "9008" not in packed and "(col < 9001)" in packed


def test_long_tensors_with_gaps_are_counted_in_64_bits():
    """2^31 places, of which fewer are elements."""
    rows, width = 2**16, 2**15 - 8
    row = next(line for line in print_triton(_add((rows, width))).lines if "row = " in line)
    assert "int64" not in row
    row = next(line for line in print_triton(_add((rows, width), made=(2**15, 1))).lines if "row = " in line)
    assert "to(tl.int64)" in row


def test_loops_are_told_how_many_rounds_they_load_at_once():
    """Where a kernel walks, and where it leaves sums; others have no loop."""
    kernels = {k.name: print_triton(k) for k in kernels_of(CASES["gpt with a wide vocabulary"](), "bf16")}
    for name, text in kernels.items():
        looped = text.walks or text.partials and "update" not in name
        assert bool(looped) == any("STAGES: tl.constexpr" in line for line in text.lines) == any("num_stages=STAGES" in line for line in text.lines), name


def test_a_kernel_that_expands_is_printed():
    workload = Workload(RotaryAttention(8, 2, 32, 64), (torch.zeros(2, 256, 256),), (), lambda y: (y * y).mean(), ADAMW)
    kernel = next(k for k in kernels_of(workload, "bf16") if k.name == "expand")
    assert dict(kernel.layouts) == {"view": (16384, 32, 16384, 64, 1)}
    assert sum("tl.load(" in line for line in print_triton(kernel).lines) == 1
