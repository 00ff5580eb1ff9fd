"""What a kernel of the update may write over: gradients that are edited before a norm of all."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from autopar.api import compile_workload, launch  # noqa: E402
from autopar.graph.given_up import list_given_up  # noqa: E402
from autopar.graph.graph import producer_table, use_table, value_table  # noqa: E402
from autopar.graph.kernel import cut_kernel, places_given_up, result_places  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.tensor import Kind  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime.peak import measure_cpu_peak  # noqa: E402
from autopar.trace import Workload  # noqa: E402

from tests.codegen.kernel_cases import kernels_of  # noqa: E402
from tests.codegen.update_numbers import Lamb, filtered  # noqa: E402
from .drafts import make_graph, node, value  # noqa: E402

OPTIONS = Options(price=False)
WIDE = (8, 4)
UPDATE = {"phase": Phase.UPDATE, "path": "lin"}


def workload(optimizer, width: int = 512, layers: int = 4) -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())))
    return Workload(model, (torch.randn(4, width),), (torch.randn(4, width),), nn.functional.mse_loss, optimizer)


def body_of(name: str, text: str) -> list[str]:
    """The lines of a kernel's ops."""
    return re.search(rf"def {name}_ops\(.*\n((?:    .*\n)+)", text).group(1).splitlines()


def test_an_edited_gradient_lies_where_the_raw_one_did():
    text = compile_workload(workload(filtered, 8), "cpu:1", OPTIONS, cache_path=None).files["kernels.py"]
    assert "    grad.add_(self_slow, alpha=2.0)" in body_of("update_self_slow", text) and "    return grad, sum" in body_of("update_self_slow", text)
    assert "made=[together.Made(torch.float32, over=0), together.Made(torch.float32, scalar=True" in text
    assert "tl.store(grad_ptr + row, add_2, mask=(row < SIZE))" in text and "add_2_out" not in text
    assert "return together.each(update_self_slow_ops, lists, 2, whole=True, given_up=[0])" in text


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_plan_says_what_a_step_holds(precision):
    """The raw gradients of all parameters are not held beside the edited ones, of whatever dtype those are."""
    given = workload(filtered)
    step = launch(given, "cpu:1", replace(OPTIONS, precision=precision))
    batch = [*given.example_inputs, *given.example_targets]
    step(*batch)
    _, extra = measure_cpu_peak(lambda: step(*batch))
    measured = sum(step.num_bytes().values()) + sum(x.numel() * x.element_size() for x in batch) + extra
    assert 0.9 * step.plan.cost.peak_bytes[0] <= measured <= 1.002 * step.plan.cost.peak_bytes[0], (measured, step.plan.cost.peak_bytes)


def test_what_waits_for_no_number_of_all_is_given_up_nowhere():
    """What a kernel leaves for the next one of the same parameter is there for one after the other."""
    assert not any(kernel.given_up for optimizer in (torch.optim.AdamW, Lamb) for kernel in kernels_of(workload(optimizer, 8)))


def test_a_gradient_of_another_dtype_is_let_go():
    """No result its place."""
    [edits] = [kernel for kernel in kernels_of(workload(filtered, 8), "bf16") if kernel.given_up]
    assert [edits.graph.inputs[k] for k in edits.given_up] == ["grad"] and places_given_up(edits) == {} and result_places(edits) == dict(edits.into)


# --- by hand


def given_up(*late, maker: str = "autopar.linear_weight_grad", outputs: tuple[str, ...] = (), first=(), waits: bool = True) -> list[str]:
    """Of a kernel that adds a state to a gradient, which is then scaled by a number of all (`waits`): the values that it may write over; `late`: nodes beside it, `first`: of the update, before it."""
    rows = [
        (node(maker, ("y", "x"), "g", phase=Phase.BACKWARD), value("g", WIDE)),
        *first,
        (node("aten.add.Tensor", ("g", "m@0"), "edited", **UPDATE), value("edited", WIDE)),
        (node("aten.mul.Tensor", ("edited", "edited" if not first else first[-1][1].name), "read", **UPDATE), value("read", WIDE)),
        (node("aten.sum.default", ("read",), "size", **UPDATE), value("size", ())),
        (node("aten.stack.default", ("size",), "sizes", **UPDATE), value("sizes", (1,))),
        (node("aten.sum.default", ("sizes",), "total", **UPDATE), value("total", ())),
        (node("aten.mul.Tensor", ("read", "total" if waits else "size"), "scaled", **UPDATE), value("scaled", WIDE)),
        *late,
    ]
    inputs = [value("x", WIDE, Kind.BATCH), value("y", WIDE, Kind.BATCH), value("m@0", WIDE, Kind.OPTIM)]
    graph = make_graph(inputs, rows)
    makers, uses = producer_table(graph), use_table(graph)
    members = tuple(makers[name][0] for name in ("edited", "read"))
    kernel, arguments = cut_kernel(graph, value_table(graph), makers, members, ("read",), {})
    found = list_given_up(graph, makers, uses, {*outputs}, members, kernel, arguments, ("read",))
    return [arguments[k] for k in sorted(found)]


def other(op: str = "aten.relu.default", name: str = "other"):
    return node(op, ("g",), name, **UPDATE), value(name, WIDE)


def test_a_gradient_that_nobody_else_reads_is_given_up():
    assert given_up() == ["g"]


def test_a_gradient_that_was_read_before_is():
    """By a node that the kernel waits for, whose result has bytes of its own."""
    assert given_up(first=(other("aten.relu.default"),)) == ["g"]


@pytest.mark.parametrize(
    "why",
    [
        {"outputs": ("g",)},
        {"waits": False},
        {"maker": "user.op"},
        {"first": (other("aten.view.default"),)},
        {"first": (other("aten._to_copy.default"),)},
        {"first": (other("comm.slice"),)},
    ],
    ids=["leaves the step", "nothing waits for all", "may be somebody else's", "a view of it is read", "a conversion that may be itself", "a piece of it is read"],
)  # fmt: skip
def test_others_are_not(why):
    assert given_up(**why) == []


def test_a_gradient_that_is_read_beside_the_kernel_is_not():
    """Nobody says which of both runs first."""
    assert given_up(other()) == []
