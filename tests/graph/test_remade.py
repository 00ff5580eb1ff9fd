"""What the backward pass makes again at no cost: which values are kept for it, and that they are the same numbers."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar import Workload  # noqa: E402
from autopar.graph.graph import producer_table, use_table, value_table  # noqa: E402
from autopar.graph.liveness import is_view, storage_bases  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.recompute import REMADE  # noqa: E402
from autopar.graph.tensor import size_bytes  # noqa: E402
from autopar.trace import trace_step  # noqa: E402

pytestmark = pytest.mark.torch
ROWS, WIDTH = 12, 16


class Between(nn.Module):
    """A function between two linears, after a residual."""

    def __init__(self, function, width=WIDTH):
        super().__init__()
        self.function, self.first, self.second, self.weight = function, nn.Linear(WIDTH, width), nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x = self.first(x)
        return self.second(self.function(x, self.weight))


def rms(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def gated(x, weight):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def gelu_by_hand(x, weight):
    return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.045 * x**3)))


def kept(function, precision="fp32", width=WIDTH):
    """Of the forward values that are kept for the backward pass: op that made it -> bytes for each row."""
    workload = Workload(Between(function, width), (torch.zeros(ROWS, WIDTH),), (torch.zeros(ROWS, WIDTH),), F.mse_loss, torch.optim.SGD)
    graph = trace_step(workload, precision).graph
    base, makers, values = storage_bases(graph), producer_table(graph), value_table(graph)
    read = {base[name] for node in graph.nodes if node.phase is Phase.BACKWARD and not is_view(node.op) for name in node.inputs}
    found = [(graph.nodes[makers[name][0]], size_bytes(values[name]) // ROWS) for name in read if name in makers and graph.nodes[makers[name][0]].phase is Phase.FORWARD]
    return graph, sorted((node.op.split(".")[1], size) for node, size in found if size > 0)


def test_a_norm_in_float32_keeps_its_input_and_a_number_per_row():
    """And its result, for the next linear's weight; the first linear its input, the loss that of the second."""
    graph, found = kept(rms, "bf16")
    assert found == [("_to_copy", 2 * WIDTH), ("linear", 2 * WIDTH), ("linear", 2 * WIDTH), ("mul", 2 * WIDTH), ("rsqrt", 4)]
    assert kept(rms)[1] == [("linear", 4 * WIDTH), ("linear", 4 * WIDTH), ("mul", 4 * WIDTH), ("rsqrt", 4)]
    assert {node.phase for node in graph.nodes if node.name.endswith(REMADE)} == {Phase.BACKWARD}


def test_a_gated_activation_keeps_no_activation():
    _, found = kept(gated, width=2 * WIDTH)
    assert found == [("linear", 4 * WIDTH), ("linear", 8 * WIDTH), ("mul", 4 * WIDTH)]


def test_a_tanh_is_kept_and_what_is_made_of_it_is_not():
    """It is no cheap arithmetic; its powers, products and sums are."""
    _, found = kept(gelu_by_hand)
    assert found == [("linear", 4 * WIDTH), ("linear", 4 * WIDTH), ("mul", 4 * WIDTH), ("tanh", 4 * WIDTH)]


@pytest.mark.parametrize("function", [lambda x, w: F.gelu(x), lambda x, w: torch.exp(x) * w, lambda x, w: F.dropout(x, 0.5)], ids=["for a matmul", "an exponential", "random numbers"])
def test_what_would_be_written_again_or_costs_is_kept(function):
    graph, _ = kept(function)
    assert not [node.op for node in graph.nodes if node.name.endswith(REMADE) and ("gelu" in node.op or "exp" in node.op or "uniform" in node.op or "lt" in node.op)]


@pytest.mark.parametrize("loss", [lambda y, t: F.cross_entropy(y, t) + 1e-4 * (torch.logsumexp(y, -1) ** 2).mean(), lambda y, t: F.cross_entropy(y, t)], ids=["z loss", "loss"])
def test_what_only_the_backward_pass_reads_is_not_made_before(loss):
    """The logits in float32: the loss reads them in bfloat16, the gradient of `logsumexp` makes them again."""
    workload = Workload(nn.Linear(WIDTH, 40), (torch.zeros(ROWS, WIDTH),), (torch.zeros(ROWS, dtype=torch.int64),), loss, torch.optim.SGD)
    graph = trace_step(workload, "bf16").graph
    uses, values = use_table(graph), value_table(graph)
    leaving = {graph.loss, *graph.outputs, *(new for _, new in graph.updates)}
    assert not [node.name for node in graph.nodes if not any(uses[out] or out in leaving for out in node.outputs)]
    wide = [node for node in graph.nodes if node.phase is Phase.FORWARD and values[node.outputs[0]].shape == (ROWS, 40) and values[node.outputs[0]].dtype == "float32"]
    assert wide == []


def test_what_is_compared_with_its_own_extreme_is_kept():
    """Made again in another kernel it might be a rounding away from it, and nothing were the largest: the gradient would be divided by 0."""
    graph, _ = kept(lambda x, w: x / (x * w + 1).amax(-1, keepdim=True))
    assert any(node.op == "aten.eq.Tensor" and node.phase is Phase.BACKWARD for node in graph.nodes)
    assert not {name for node in graph.nodes if node.op == "aten.eq.Tensor" for name in node.inputs if name.endswith(REMADE)}
