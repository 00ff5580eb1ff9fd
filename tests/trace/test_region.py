"""Regions: a function of tensors as one op, with its gradient, run plainly and under a trace."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

import autopar  # noqa: E402
from autopar.errors import RuleError, TraceError  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.trace import trace_step  # noqa: E402
from autopar.trace.discovery.register import registered_rules  # noqa: E402

pytestmark = pytest.mark.torch


def branching(x: Tensor, weight: Tensor) -> Tensor:
    """Control flow on data."""
    if x.abs().max().item() > 100.0:
        x = x / 100.0
    return x @ weight


@autopar.region("b s d, d e -> b s e", name="regiontest_route", sample=(torch.randn(6, 12, 18), torch.randn(18, 24)), linear=("weight",))
def route(x: Tensor, weight: Tensor) -> Tensor:
    return branching(x, weight)


def row_of(name: str):
    return registered_rules()[f"autopar_region.{name}.default"]


def test_the_gradients_rule_follows() -> None:
    assert row_of("regiontest_route").text == "b s d, d e -> b s e"
    back = row_of("regiontest_route_backward")
    assert (back.text, back.linear, back.origin) == ("b s e, b s d, d e -> b s d, d e", (("grad_of_0",),), "region")
    assert row_of("regiontest_route").num_trials > 0 and back.num_trials > 0


def test_run_plainly_it_is_the_function() -> None:
    x, w = torch.randn(2, 3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    found = route(x, weight=w)
    assert torch.equal(found, branching(x, w)) and "MmBackward" in type(found.grad_fn.next_functions[0][0]).__name__


@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)])
def test_the_op_and_its_gradient_are_those_of_the_function(needed: tuple[bool, bool]) -> None:
    x, w = (torch.randn(*shape, dtype=torch.float64).requires_grad_(n) for shape, n in zip(((2, 3, 4), (4, 5)), needed))
    grad = torch.randn(2, 3, 5, dtype=torch.float64)
    ours = torch.ops.autopar_region.regiontest_route(x, w)
    wanted = [t for t in (x, w) if t.requires_grad]
    assert torch.equal(ours, branching(x, w))
    for a, b in zip(torch.autograd.grad(ours, wanted, grad), torch.autograd.grad(branching(x, w), wanted, grad)):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


class Model(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


def workload(function) -> autopar.Workload:
    return autopar.Workload(Model(function), (torch.randn(2, 4, 4),), loss=lambda y: y.square().mean(), optimizer=torch.optim.SGD)


def test_under_a_trace_it_is_one_node_and_its_gradient_another() -> None:
    graph = trace_step(workload(route)).graph
    ops = [(n.op, n.phase) for n in graph.nodes if n.op.startswith("autopar_region.")]
    assert ops == [("autopar_region.regiontest_route.default", Phase.FORWARD), ("autopar_region.regiontest_route_backward.default", Phase.BACKWARD)]
    assert not any("mm" in n.op for n in graph.nodes)


def test_the_error_for_control_flow_names_the_way_out() -> None:
    with pytest.raises(TraceError, match=r"test_region.py:\d+.*autopar.region"):
        trace_step(workload(branching))


def test_a_wrong_rule_is_an_error() -> None:
    with pytest.raises(RuleError, match=r"'b s -> b s' is not what the op computes: splitting s over 2 ranks"):
        autopar.region(lambda x: x.softmax(-1), "b s -> b s")


def test_what_is_no_plain_sum_is_whole_in_the_gradient() -> None:
    autopar.region(lambda x: x.amax(-1), "b s -> b", reduce="max", name="regiontest_largest")
    autopar.region(lambda x, w, c: x @ w + c, "b s, s e, e -> b e", owed=("c",), name="regiontest_affine")
    autopar.region(lambda x, y: (x * 2, y.sum()), "b, [n] -> b, {b}", name="regiontest_same")
    assert row_of("regiontest_largest_backward").text == "b, b [s] -> b [s]"
    assert row_of("regiontest_affine_backward").text == "b e, b [s], [s] e, e -> b [s], [s] e, e"
    assert row_of("regiontest_same_backward").text == "[b], , [b], [n] -> [b], [n]"


def test_whole_numbers_and_shapes_that_the_rule_does_not_say() -> None:
    top = autopar.region(
        lambda x: tuple(x.topk(3)), "b [s] -> b [k], b [k]", shapes=lambda x: ((x[0], 3), (x[0], 3)), dtypes=(None, torch.int64), name="regiontest_top"
    )
    values, places = torch.ops.autopar_region.regiontest_top(torch.randn(2, 7))
    assert values.shape == places.shape == (2, 3) and places.dtype == torch.int64
    assert top(torch.randn(2, 7))[0].shape == (2, 3)
    autopar.region(lambda table, index: table[index], "[v] d, b s -> b s d", name="regiontest_rows")
    table = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    torch.ops.autopar_region.regiontest_rows(table, torch.tensor([[1, 1], [4, 0]])).sum().backward()
    assert table.grad[:, 0].tolist() == [1.0, 2.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: autopar.region(nn.Linear(3, 3), "b [s] -> b [e]"), r"it uses self, which is trained but is no argument"),
        (lambda: _captures(nn.Parameter(torch.ones(6))), r"it uses weight, which is trained but is no argument.*weight.weight, as arguments"),
        (lambda: autopar.region(lambda x: x.topk(3).values, "b [s] -> b [k]"), r"the inputs do not say the size of k: state it \(`\[k:10\]`\) or give shapes="),
        (lambda: autopar.region(lambda x: x, "b, d -> b"), r"has 2 operands, the function takes x"),
        (lambda: autopar.region(lambda x: x[:, :2], "b [s] -> b [s]"), r"expected outputs float\d+\[6, 12\], as its rule says, found float\d+\[6, 2\]"),
        (lambda: autopar.region(branching), r'expected region\(fn, "b s d -> b s d"\)'),
        (lambda: autopar.region(branching, "b [s], [s] [d] -> b [d]", dtypes=()), r"dtypes: expected 1, one per output, found 0"),
    ],
)
def test_what_is_wrong_is_said(make, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        make()


def _captures(weight: Tensor):
    return autopar.region(lambda x: x * weight, "b -> b")
