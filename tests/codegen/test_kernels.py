"""Kernels: their indices, their text, their numbers in Triton's interpreter, their compilation without a GPU, and programs with and without them."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.codegen.kernels.emit_kernels import print_kernels  # noqa: E402
from autopar.codegen.kernels.index import coordinates, flatten, in_memory, variable, view_source  # noqa: E402
from autopar.codegen.kernels.parts import print_parts  # noqa: E402
from autopar.codegen.kernels.triton_text import print_triton  # noqa: E402
from autopar.graph.fuse import fuse_program  # noqa: E402
from autopar.graph.kernel import is_kernel, takes_lists  # noqa: E402
from autopar.graph.program import check_program  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.graph.tensor import Kind  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402

from . import random_plans  # noqa: E402
from .interpreter import read_numbers  # noqa: E402
from .kernel_cases import CASES, Chain, fused_step, kernels_of  # noqa: E402
from .random_plans import Assigner, Control, files_of  # noqa: E402
from .reduction_numbers import chain  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = {"fp32": 2e-5, "bf16": 2e-2, "fp64": 1e-11}  # of the largest value: rounding of what comes in and goes out, and of sums of 9001 in float32


@pytest.fixture(scope="module")
def numbers():
    """Every kernel's difference from float64, of one process with Triton's interpreter."""
    return read_numbers("kernel_numbers")


@pytest.mark.parametrize("case", CASES)
def test_numbers_equal_float64(numbers, case):
    rows = [row for row in numbers if row["case"] == case]
    assert {row["precision"] for row in rows} == set(TOLERANCE) and any(row["kernel"].endswith("_half") for row in rows)
    for row in rows:
        assert not row["plain"], row
        exact = "fp32" if case == "hard sigmoid" and row["precision"] == "fp64" else row["precision"]  # torch's own has 1 / 6 in float32
        assert max(row["difference"], row["strided"], row["largest"]) < TOLERANCE[exact], row


def test_a_wrong_kernel_is_found(numbers):
    """The comparison can fail: float16 results are not within float32's tolerance."""
    assert max(row.get("difference", 0) for row in numbers if row["kernel"].endswith("_half")) > TOLERANCE["fp32"]


def test_one_walk_finds_the_largest_and_the_sum_of_exponentials():
    """Whatever is masked, infinite or no number in a row, the sum is that of float64; the largest, too, but where torch has no number for it."""
    rows = read_numbers("exps_numbers")
    assert len(rows) == 3 * 2 * 2 * 17 and {row["walks"] for row in rows} == {1}
    for row in rows:
        tolerance = 1e-6 if row["dtype"] == "float32" else 1e-12
        assert row["total"] == pytest.approx(row["total wanted"], rel=tolerance, nan_ok=True), row
        assert math.isnan(row["peak wanted"]) or row["peak"] == row["peak wanted"], row


def _texts(case):
    """The Triton functions of a case, those of the update left out."""
    kernels = [kernel for kernel in kernels_of(CASES[case]()) if not takes_lists(kernel)]
    return ["\n".join(part.text.lines) for kernel in kernels for part in print_parts(kernel) if part.text and ("COLS" in part.text.lines[1] or part.text.rows > 1)]


def test_masks_stand_where_a_block_may_reach_beyond():
    """Blocks of up to 32 rows of 512 columns, 64 rows of 64, and 4096 elements divide what there is; of odd sizes everything is asked."""
    even = [*_texts("even rows"), *(text for text in _texts("even blocks") if "part_2" not in text)]
    assert len(even) == 4 and not any("mask=" in text or "row <" in text or "col <" in text for text in even), even
    odd = [line for text in _texts("dropout") for line in text.splitlines() if re.search(r"tl\.(load|store)\(\w+ \+ .*(row|col)", line)]
    assert len(odd) > 20 and all("mask=" in line for line in odd), odd


def test_a_walk_asks_for_the_width_that_it_goes_along():
    """Of two in one kernel, each for its own: a narrower tensor ends before the last block of a wider one does."""
    [text] = [text for text in _texts("two widths") if "COLS]" in text]
    rests = {line.strip().partition(" ")[0]: re.search(r"\(col < (\d+)\)", line)[1] for line in text.splitlines() if "tl.load(" in line and "col <" in line}
    assert {rests["v_2"], rests["w_2"]} == {"10000", "9001"}, text


def test_a_smoothed_loss_reads_its_logits_once():
    """The largest, the sum of exponentials and the sum that smoothing adds are one walk; so is the gradient."""
    workload = replace(CASES["gpt with a wide vocabulary"](), loss=lambda y, t: torch.nn.functional.cross_entropy(y.flatten(0, 1), t.flatten(), label_smoothing=0.1))
    parts = [part for kernel in kernels_of(workload) if not takes_lists(kernel) for part in print_parts(kernel) if part.text]
    texts = [text for text in ("\n".join(part.text.lines) for part in parts) if "for first in" in text]
    assert [text.count("for first in") for text in texts] == [1, 1] and "more_exps" in texts[0] and "tl.exp(" in texts[1], texts


def test_what_is_expanded_is_read_as_it_is():
    """The gradient of a mean is a number, or one for each sample: no kernel asks for it as large as what was averaged."""
    graph = fused_step(CASES["pooled rows"]()).program.graph
    makers = {out: node for node in graph.nodes for out in node.outputs}
    read = [makers[name].op for node in graph.nodes if is_kernel(node.op) for name in node.inputs if name in makers]
    assert len(read) > 10 and not [op for op in read if "expand" in op]


def test_what_no_round_of_a_loop_changes_is_loaded_before_it():
    before, _, loop = next(text for text in _texts("even rows") if "row_sums" in text).partition("for block in")
    assert "tl.load(weight_ptr + col)" in before and "weight_ptr" not in loop and loop.count("row_sums(") == 1


@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_compile_without_a_gpu(arch):
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    from benchmarks.kernel_compile import compile_kernels

    kernels = [k for k in kernels_of(CASES["gpt"](), "bf16") if arch == 90 or "norm" in k.name or "exp_avg" in k.name]
    rows = compile_kernels(kernels, [arch])
    assert {row.name for row in rows} == {k.name for k in kernels} and all(row.cubin_bytes > 1000 for row in rows)
    norms = [row for row in rows if "norm" in row.name or "exp_avg" in row.name]
    assert len(norms) >= 3 and all(row.spilled_bytes == 0 for row in norms), norms


# --- indices


@st.composite
def _views(draw):
    """Rows and columns, and a chain of reshapes and permutations of so many elements."""
    rows, cols = draw(st.sampled_from([1, 2, 3, 4, 6])), draw(st.sampled_from([1, 2, 4, 6, 12]))
    chain = []
    for _ in range(draw(st.integers(1, 4))):
        left, shape = rows * cols, []
        for _ in range(draw(st.integers(0, 3))):
            shape.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
            left //= shape[-1]
        shape.append(left)
        chain.append((tuple(shape), draw(st.permutations(range(len(shape))))))
    return rows, cols, chain


@given(_views())
@settings(max_examples=200, deadline=None)
def test_views_are_arithmetic(drawn):
    rows, cols, chain = drawn
    x, index = torch.arange(rows * cols), variable("row", rows) * cols + variable("col", cols)
    for shape, order in chain:
        x = x.reshape(shape).permute(*order)
    wanted = x.reshape(-1).tolist()
    for shape, order in reversed(chain):
        index = view_source(index, "permute", lambda key, default: order, [shape[d] for d in order], shape)
    for row in range(rows):
        for col in range(cols):
            assert eval(index.text(), {}, {"row": row, "col": col}) == wanted[row * cols + col], index.text()


def test_an_op_over_several_dims_is_no_view():
    assert view_source(variable("row", 6), "any", lambda key, default: (0, 1), (), (2, 3)) is None


def test_indices_are_simple():
    row, col = variable("row", 512), variable("col", 768)
    flat = row * 768 + col
    places = coordinates(flat, (8, 64, 768))
    assert [p.text() for p in places] == ["(row) // 64", "(row) % 64", "col"]
    assert flatten(places, (8, 64, 768)) == flat
    assert flatten(coordinates(flat, (8, 64, 12, 64)), (8, 64, 12, 64)) == flat


@st.composite
def _layouts(draw, gaps):
    """A shape, and strides that have its dims in some order, with gaps between or without; columns that divide its elements."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4))
    order, strides, inner = draw(st.permutations(range(len(shape)))), [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = inner
        inner *= shape[d] + (draw(st.sampled_from([0, 0, 1, 3])) if gaps else 0)
    return shape, strides, draw(st.sampled_from([d for d in range(1, math.prod(shape) + 1) if math.prod(shape) % d == 0]))


@given(_layouts(gaps=True))
@settings(max_examples=150, deadline=None)
def test_every_element_is_where_its_strides_say(drawn):
    shape, strides, cols = drawn
    rows = math.prod(shape) // cols
    wanted = [sum(place * step for place, step in zip(places, strides)) for places in itertools.product(*map(range, shape))]
    index = in_memory(variable("row", rows) * cols + variable("col", cols), shape, strides)
    code = compile(index.text(), "index", "eval")
    assert [eval(code, {}, {"row": k // cols, "col": k % cols}) for k in range(rows * cols)] == wanted, index.text()


@given(_layouts(gaps=False))
@settings(max_examples=150, deadline=None)
def test_what_is_dense_is_walked_in_its_own_order_without_divisions(drawn):
    shape, strides, _ = drawn
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], d))
    places = dict(zip(order, coordinates(variable("row", math.prod(shape)), [shape[d] for d in order])))
    found = in_memory(flatten([places[d] for d in range(len(shape))], shape), shape, strides)
    assert found == variable("row", math.prod(shape)), found.text()


@given(*[st.integers(2, 7)] * 4, st.integers(1, 5), st.integers(0, 1))
@settings(max_examples=150, deadline=None)
def test_a_remainder_of_a_quotient_meets_its_own_quotient(size, inner, middle, factor, times, off):
    """x // a % b * c + x // ab * bc is x // a * c; with another factor both stay, and the number is right all the same."""
    x = variable("row", size * inner * middle)
    rest, quotient = (x // inner % middle) * factor, (x // (inner * middle)) * (middle * factor * times + off)
    for found in (rest + quotient, quotient + rest):
        assert times > 1 or off or found == x // inner * factor, found.text()
        for row in range(size * inner * middle):
            assert eval(found.text(), {}, {"row": row}) == row // inner % middle * factor + row // (inner * middle) * (middle * factor * times + off), found.text()


# --- text


def test_text_is_readable():
    """A person finds the ops of a kernel, and its source, by name."""
    kernels = {k.name: k for k in kernels_of(CASES["gpt"](), "bf16")}
    assert {"add_layer_norm", "where_cross_entropy_backward"} <= kernels.keys() and any(name.startswith("update_") for name in kernels)
    text = print_kernels(list(kernels.values()))
    assert "Ops: autopar/demo/model.py:32: add; autopar/demo/model.py:33: native_layer_norm." in text
    assert "def add_layer_norm_kernel(" in text and "if fused.runs_triton(add):" in text


def test_each_element_is_read_once():
    """Of a norm after a residual: one load per operand, one store per result."""
    kernel = next(k for k in kernels_of(CASES["gpt"](), "fp32") if k.name == "add_layer_norm")
    lines = print_triton(kernel).lines
    assert sum("tl.load(" in line for line in lines) == len(kernel.graph.inputs) and sum("tl.store(" in line for line in lines) == len(kernel.graph.outputs)


def test_one_update_for_all_parameters():
    """Parameters of all shapes share the update's kernels, which rewrite the states in place."""
    kernels = kernels_of(CASES["gpt"](), "bf16")
    updates = [k for k in kernels if k.name.startswith("update_")]
    assert len(updates) == 2 and all(k.into for k in updates)
    wide = next(k for k in updates if "exp_avg" in k.name)
    assert wide.any_shape and {wide.graph.inputs[i] for _, i in wide.into} >= {"master", "exp_avg", "exp_avg_sq", "param"}


def test_one_element_stands_for_no_size():
    """A kernel for tensors of any shape, found first on tensors of one element, runs on wider ones, too."""
    update = next(k for k in kernels_of(CASES["momentum"](), "fp32") if k.any_shape)
    values = tuple(replace(v, shape=(1,)) if v.shape else v for v in update.graph.values)
    assert print_triton(replace(update, graph=replace(update.graph, values=values))).lines == print_triton(update).lines


def test_kernels_run_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\nfrom autopar.runtime import fused\nassert not fused.runs_triton(torch.zeros(1))\n"
        "from tests.codegen.kernel_cases import CASES, kernels_of\nfrom tests.codegen.kernel_numbers import functions_of, differences\n"
        "kernels = kernels_of(CASES['gpt'](), 'fp32')\nfound = functions_of(kernels)\n"
        "print(max(differences(k, found[k.name], False) for k in kernels))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[-1]) < 2e-5


def test_pieces_equal_the_whole():
    from autopar.runtime import fused

    def ops(a, b, s):
        c = a * s + b
        a.copy_(c)
        return c - b

    a, b, s = torch.randn(3, 140001), torch.randn(3, 140001), torch.tensor(1.7, dtype=torch.float64)
    whole, wanted = a.clone(), None
    wanted = ops(whole, b, s)
    found = fused.in_pieces(ops, [a, b, s])
    assert torch.equal(found, wanted) and torch.equal(a, whole)


def test_equal_counts_are_worked_out_once():
    """The update's factors of one count: the next parameter of that count gets the same, and its count grows all the same."""
    from autopar.runtime import fused

    calls = []

    def ops(step):
        calls.append(1)
        step.add_(1)
        return 0.9**step

    seen, steps = fused.Seen(ops, written=[0]), [torch.tensor(float(k), dtype=torch.float64) for k in (3, 3, 5, 3)]
    found = [seen(step) for step in steps]
    assert len(calls) == 2 and [s.item() for s in steps] == [4, 4, 6, 4] and [f.item() for f in found] == [0.9**4, 0.9**4, 0.9**6, 0.9**4]


# --- programs


def test_every_part_reads_something():
    """What a rare function reads that is made of numbers alone is made beside it."""
    number, square = ("two", "aten.full.default", {"size": (), "fill_value": 2.0}), ("square", "aten.mul.Tensor", {"self": "x", "other": "x"})
    rare, made = ("rare", "aten.igamma.default", {"self": "two", "other": "square"}), ("made", "aten.mul.Tensor", {"self": "rare", "other": "two"})
    parts = print_parts(chain("rare", {"x": torch.ones(3, 5)}, number, square, rare, made))
    assert [bool(part.text) for part in parts] == [True, False, True] and all(part.kernel.graph.inputs for part in parts)
    assert [node.op for node in parts[1].kernel.graph.nodes] == ["aten.full.default", "aten.igamma.default"]


@pytest.mark.parametrize("case", ["a norm and a rotary embedding", "read again"])
def test_a_part_makes_only_what_is_read(case):
    """By the parts after it, or by who called the kernel: not the sum along a row of which only the root is read."""
    several = [(kernel, parts) for kernel in kernels_of(CASES[case]()) if len(parts := print_parts(kernel)) > 1]
    for kernel, parts in several:
        for number, part in enumerate(parts):
            read = {*kernel.graph.outputs, *(name for later in parts[number + 1 :] for name in later.kernel.graph.inputs)}
            assert read.issuperset(part.kernel.graph.outputs), part.kernel.name
    assert several


def test_a_loss_of_logs_of_sigmoids_is_one_pass():
    """A pair's distance, the log of its sigmoid and their sum; its gradient likewise."""
    case = Workload(Chain(lambda x: x @ x.T, 6), (torch.randn(6, 6),), (), lambda y: -F.logsigmoid(y * (2 * torch.eye(6) - 1)).sum(), torch.optim.SGD)
    fused = fused_step(case)
    assert not [node.op for node in fused.program.graph.nodes if "sigmoid" in node.op and not is_kernel(node.op)]
    [kernel] = [kernel for kernel in fused.kernels if any("log_sigmoid" in node.op for node in kernel.graph.nodes)]
    assert {"mul", "log_sigmoid", "sum"} <= {node.op.split(".")[1] for node in kernel.graph.nodes}


def test_a_view_of_what_a_kernel_keeps_to_itself_goes():
    """Nobody reads it: its base is made within the kernel."""
    graph = fused_step(CASES["log of the sum of everything"]()).program.graph
    made = {*graph.inputs, *(out for node in graph.nodes for out in node.outputs)}
    assert any(is_kernel(node.op) for node in graph.nodes) and all(made.issuperset(node.inputs) for node in graph.nodes)


def test_what_nobody_reads_makes_no_kernel():
    """Two ops in a row whose result is dropped (a stage may have such copies): they stay as they are, what others read is fused."""
    assigner = Assigner(trace_step(CASES["gpt"](), "fp32").graph, ())
    program = assigner.program(assigner.draw(random.Random(0)))
    graph = program.graph
    first = next(i for i, n in enumerate(graph.nodes) if n.op == "aten.add.Tensor")
    like, weight = graph.nodes[first], next(v for v in graph.values if v.name in graph.inputs and v.kind is Kind.PARAM)
    dead = [replace(like, name=f"dead_{k}", inputs=(source, source), outputs=(f"dead_{k}",)) for k, source in enumerate((weight.name, "dead_0"))]
    values = (*graph.values, *(replace(weight, name=n.name, storage=n.name, kind=Kind.ACTIVATION) for n in dead))
    nodes = (*graph.nodes[: first + 1], *dead, *graph.nodes[first + 1 :])
    origins = (*program.origins[: first + 1], *(program.origins[first],) * 2, *program.origins[first + 1 :])
    changed = replace(program, graph=replace(graph, nodes=nodes, values=values), origins=origins)
    fused = fuse_program(changed, phase_sections(changed.graph))
    assert {"dead_0", "dead_1"} <= {n.name for n in fused.program.graph.nodes} and all(k.graph.outputs for k in fused.kernels)
    assert print_kernels(fused.kernels)


@pytest.mark.parametrize("case", ["gpt", "rotary", "batch norm", "momentum", "dropout"])
def test_programs_are_equal_fused_and_not(case, monkeypatch):
    """One random plan, on one rank and on two, as a program with kernels and op by op: both give plain PyTorch's numbers."""
    graph = trace_step(CASES[case](), "fp64").graph
    control = Control(CASES[case]())
    for sizes in ((), (2,)):
        assigner = Assigner(graph, sizes)
        program = assigner.program(assigner.draw(random.Random(5)))
        fused = fuse_program(program, phase_sections(program.graph))
        check_program(fused.program)
        assert fused.kernels and len(fused.program.graph.nodes) < len(program.graph.nodes)
        for local in ("kernels", "ops"):
            files = files_of(graph, program, local)
            assert ("kernels.py" in files) == (local == "kernels")
            with monkeypatch.context() as patch:
                patch.setattr(random_plans, "files_of", lambda graph, program: files)
                assert control.worst(program)[0] < 1e-10, local


def test_what_a_norm_tells_of_its_rows_may_be_wider_than_they_are():
    """On a GPU torch's norms leave means and spreads in float32: so do these, in the dtype of the memory that they are given."""
    [norm] = [k for k in kernels_of(CASES["gpt"](), "bf16") if k.name == "add_layer_norm"]
    text = print_kernels([norm])
    assert text.count("statistic=True") == 2 and text.count("layer_norm_2_out.dtype.element_ty") == text.count("layer_norm_3_out.dtype.element_ty") == 1
    assert text.count(".to(tl.bfloat16)") == 2  # the sum and the normalised rows
