"""What Muon makes of a tall matrix is one kernel with its norm, though that is of what was turned: the momentum is rewritten where it is, as a wide one's is."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from autopar.api import compile_workload, launch  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime.peak import measure_cpu_peak  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402
from autopar.trace.lowering.draft import DraftNode, Val, node_inputs  # noqa: E402
from autopar.trace.lowering.unturned import unturn_sums  # noqa: E402

pytestmark = pytest.mark.torch

TALL, WIDE = (256, 64), (64, 256)
OPTIONS = Options(price=False)


class Matrices(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o, bias=False) for o, i in shapes)

    def forward(self, x):
        return sum(layer(x[:, : layer.in_features]).square().mean() for layer in self.layers)


def workload(*shapes, **options):
    torch.manual_seed(0)
    return Workload(Matrices(shapes), (torch.randn(4, max(max(shape) for shape in shapes)),), (), lambda y: y, lambda params: torch.optim.Muon(params, lr=1e-2, **options))


def test_the_norm_is_added_up_as_the_matrix_lies():
    for shape in (TALL, WIDE):
        graph = trace_step(workload(shape)).graph
        shapes = {v.name: v.shape for v in graph.values}
        [total] = [node for node in graph.nodes if node.phase is Phase.UPDATE and node.op.startswith("aten.sum")]
        assert shapes[total.inputs[0]] == shape and shapes[total.outputs[0]] == ()


def test_a_tall_momentum_is_rewritten_as_a_wide_one_is():
    """By the same kernel."""
    files = compile_workload(workload(TALL, WIDE), "cpu:1", OPTIONS).files
    assert files["program.py"].count("to_copy, sum = kernels.update_momentum_buffer(grad, ") == 2 and ".copy_(" not in files["program.py"]
    assert len(re.findall(r"\ndef update_momentum_buffer\w*\(", files["kernels.py"])) == len(["kernel", "ops", "function"])


@pytest.mark.parametrize("nesterov, share", [(False, 1.0), (True, 0.85)])
def test_the_plan_says_what_a_step_with_tall_matrices_holds(nesterov, share):
    """And as much as one with wide ones. With Nesterov's step it says a little more than there is: of a kernel that leaves a sum, a new version that the same kernel reads counts."""
    held = {}
    for shape in ((2048, 512), (512, 2048)):
        given = workload(shape, nesterov=nesterov)
        step = launch(given, "cpu:1", OPTIONS)
        step(*given.example_inputs)
        _, extra = measure_cpu_peak(lambda: step(*given.example_inputs))
        batch = sum(x.numel() * x.element_size() for x in given.example_inputs)
        held[shape] = sum(step.num_bytes().values()) + batch + extra, step.plan.cost.peak_bytes[0]
    for measured, predicted in held.values():
        assert share * predicted <= measured <= 1.001 * predicted, held
    (tall, _), (wide, _) = held.values()
    assert abs(tall - wide) <= 0.001 * wide, held


# --- by hand


def made(op, shape, *inputs, phase=Phase.UPDATE, dtype=torch.float32, **options):
    names = ("self", "other") if len(inputs) > 1 else ("self",)
    node = DraftNode(f"aten.{op}", (*zip(names, inputs), *options.items()), phase, "", "")
    node.outs = [Val(shape, dtype, node)]
    return node.outs[0]


def turned(x, **options):
    return made("permute.default", x.shape[::-1], x, dims=tuple(range(len(x.shape)))[::-1], **options)


def unturned(*values, roots=()):
    """The nodes that lead to values, in order, with their sums unturned: of each of these the shape that it adds up."""
    nodes = []

    def add(value):
        if value.node is not None and value.node not in nodes:
            for v in node_inputs(value.node):
                add(v)
            nodes.append(value.node)

    for value in values:
        add(value)
    found = unturn_sums(nodes, [*values, *roots])
    places = {id(v): k for k, node in enumerate(found) for v in node.outs}
    assert all(places[id(v)] < k for k, node in enumerate(found) for v in node_inputs(node) if v.node is not None)
    return [node_inputs(value.node)[0].shape for value in values]


X, Y = Val((6, 4), torch.float32, entry="x"), Val((6, 4), torch.float32, entry="y")


def test_sums_of_everything_are_unturned():
    number = Val((), torch.float32, entry="n")
    assert unturned(made("sum.dim_IntList", (), turned(X), dim=(0, 1))) == [(6, 4)]
    assert unturned(made("amax.default", (), made("abs.default", (4, 6), turned(X)), dim=())) == [(6, 4)]
    both = made("mul.Tensor", (4, 6), turned(X), made("mul.Tensor", (4, 6), turned(Y), number))
    assert unturned(made("sum.default", (1, 1), made("_to_copy.default", (4, 6), both, dtype=torch.float64), dim=(-1, 0), keepdim=True)) == [(6, 4)]


def test_others_are_not():
    """Sums of rows; what is read otherwise, too, or returned; two that were not turned alike, or not both; what is made larger on the way; before the update."""
    squares = made("mul.Tensor", (4, 6), turned(X), turned(X))
    assert unturned(made("sum.dim_IntList", (4,), squares, dim=(1,))) == [(4, 6)]
    assert unturned(made("sum.default", (), squares), made("relu.default", (4, 6), squares)) == [(4, 6), (4, 6)]
    assert unturned(made("sum.default", (), squares), roots=[squares]) == [(4, 6)]
    z = Val((4, 6), torch.float32, entry="z")
    assert unturned(made("sum.default", (), made("mul.Tensor", (4, 6), turned(X), z))) == [(4, 6)]
    assert unturned(made("sum.default", (), made("mul.Tensor", (4, 6), turned(X), Val((6,), torch.float32, entry="row")))) == [(4, 6)]
    square = Val((6, 6), torch.float32, entry="square")
    assert unturned(made("sum.default", (), made("mul.Tensor", (6, 6), turned(square), made("permute.default", (6, 6), square, dims=(0, 1))))) == [(6, 6)]
    early = made("mul.Tensor", (4, 6), turned(X, phase=Phase.BACKWARD), turned(X, phase=Phase.BACKWARD), phase=Phase.BACKWARD)
    assert unturned(made("sum.default", (), early, phase=Phase.BACKWARD)) == [(4, 6)]
