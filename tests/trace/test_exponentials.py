"""logsumexp in two numbers per row: equal to eager over any dims, where numbers are infinite or none, and shared with a loss of the same logits."""

from __future__ import annotations

import functools

import pytest
import torch
from compare import worst_differences
from torch import nn
from torch.nn import functional as F

from autopar.graph.graph import Graph
from autopar.runtime.execute import run_graph
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch
SGD = functools.partial(torch.optim.SGD, lr=0.1)
TARGETS = torch.tensor([[1, 0, -100], [6, 3, 2]])


def work(loss) -> Workload:
    """Of logits [2, 3, 7]."""
    torch.manual_seed(0)
    return Workload(nn.Linear(5, 7), (torch.randn(2, 3, 5),), (TARGETS,), loss, SGD)


def count(graph: Graph, op: str) -> int:
    return sum(node.op == op for node in graph.nodes)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [-1, 0, 1, (0, 1), (1, 2), (0, -1), (0, 1, 2)], ids=str)
def test_any_dims_equal_eager(dims, keepdim):
    worst, traced = worst_differences(work(lambda x, t: x.logsumexp(dims, keepdim).square().sum()))
    assert all(w <= 1e-12 for w in worst.values()), worst
    assert not count(traced.graph, "aten.logsumexp.default") and count(traced.graph, "autopar.sum_exp") == (dims == -1)


SPELLINGS = {
    "flat": lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten()) + 0.1 * x.logsumexp(-1).square().mean(),
    "classes second": lambda x, t: F.cross_entropy(x.transpose(1, 2), t) + 0.1 * x.view(-1, 7).logsumexp(1).square().mean(),
    "smoothed": lambda x, t: F.cross_entropy(x.view(-1, 7), t.view(-1), label_smoothing=0.1) + 0.1 * x.view(-1, 7).logsumexp(1, True).square().mean(),
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_penalty_reads_what_the_loss_has(name, precision):
    worst, _ = worst_differences(work(SPELLINGS[name]))
    assert all(w <= 1e-10 for w in worst.values()), worst
    graph = trace_step(work(SPELLINGS[name]), precision).graph
    assert count(graph, "autopar.sum_exp") == count(graph, "aten.amax.default") == 1 and not count(graph, "aten._log_softmax.default")


ROWS = torch.tensor([
    [1.0, -2.0, 3.0], [-torch.inf, -torch.inf, -torch.inf], [-torch.inf, 2.0, -torch.inf], [torch.inf, 0.0, 1.0], [torch.inf, torch.inf, -torch.inf],
    [torch.nan, 0.0, 1.0], [torch.nan, torch.inf, -torch.inf], [1e4, -1e4, 1e4], [0.0, -0.0, 0.0],
])  # fmt: skip


class Rows(nn.Module):
    def __init__(self, dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        x = x.to(self.dtype)
        return x.logsumexp(-1), x.t().logsumexp(0), x[None].logsumexp((0, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rows_that_are_infinite_or_no_numbers(dtype):
    traced = trace_step(Workload(Rows(dtype), (ROWS,)))
    known = run_graph(traced.graph, {**traced.constants, "input:0": ROWS})
    wanted = ROWS.to(dtype).double().logsumexp(-1).to(dtype)
    for output in traced.graph.outputs:
        torch.testing.assert_close(known[output], wanted, equal_nan=True)


def test_whole_numbers_are_left_to_torch():
    class Whole(nn.Linear):
        def forward(self, x):
            return super().forward(x) + (x * 3).to(torch.int64).logsumexp(0)[0]

    traced = trace_step(Workload(Whole(4, 2), (torch.randn(3, 4),)))
    assert count(traced.graph, "aten.logsumexp.default") == 1
