"""Writes of every kind: into slices, diagonals and complex parts, through `out=`, by foreach ops, and shapes changed in place."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from compare import worst_differences
from torch import nn
from torch.nn import functional as F

from autopar.graph.node import Phase
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch


def step_of(body, optimizer=functools.partial(torch.optim.SGD, lr=1e-2)) -> Workload:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(6, 5)

        def forward(self, x):
            return body(self, x)

    return Workload(Model(), (torch.randn(4, 6),), (torch.tensor([0, 1, 2, 3]),), F.cross_entropy, optimizer)


def diagonal(m, x):
    y = x.clone()
    y.select(0, 1).fill_(2.0)
    y.diagonal().add_(1.0)
    return m.lin(y)


def complex_part(m, x):
    z = torch.fft.fft(x)
    z.real.mul_(2.0)
    torch.view_as_real(z)[..., 1].add_(0.5)
    return m.lin(torch.view_as_real(z).sum(-1))


def masked_rows(m, x):
    y = x.clone()
    y[x[:, 0] > 0] = 0.5
    y[:, [0, 2]] = m.lin(x)[:, :2]
    return m.lin(y)


def out_forms(m, x):
    total, given = torch.empty(4, 4), x.detach()
    torch.mm(given, given.t(), out=total)
    return m.lin(x) + F.normalize(given, dim=1, out=torch.empty(4, 6)).sum() + total.sum()


def power(m, x):
    return m.lin(x.abs().add(1).pow_(1.5)) * torch.linalg.vector_norm(m.lin(x), 3)


def reshaped(m, x):
    y = x.clone().unsqueeze_(1).squeeze_().t_()
    before = y.sum()
    y.transpose_(0, 1).swapaxes_(0, 1).swapaxes_(0, 1).mul_(2.0)
    return m.lin(y) + before


def strided(m, x):
    whole = m.lin(x)
    windows = torch.as_strided(whole[1:].t(), (2, 3), (1, 2), 4)
    torch.as_strided(whole, (4,), (6,)).mul_(3.0)
    return whole + windows.sum()


@pytest.mark.parametrize("body", [diagonal, complex_part, masked_rows, out_forms, power, reshaped, strided])
def test_write_equals_eager(body):
    torch.manual_seed(0)
    worst, _ = worst_differences(step_of(body))
    assert all(w <= 1e-10 for w in worst.values()), worst


@pytest.mark.parametrize("order", [0, 0.5, 1, 2, 3, float("inf"), -float("inf"), -1])
def test_norms_of_every_order(order):
    torch.manual_seed(0)
    worst, _ = worst_differences(step_of(lambda m, x: m.lin(x) * x.norm(order) + m.lin(x).norm(order, dim=1, keepdim=True)))
    assert all(w <= 1e-10 for w in worst.values()), worst


def test_a_strided_view_does_not_depend_on_how_its_base_lies_in_memory():
    """The graph takes the elements by their number: `as_strided` itself would count in the memory of a shard."""
    graph = trace_step(step_of(strided)).graph
    assert not [n for n in graph.nodes if "as_strided" in n.op]
    assert [n for n in graph.nodes if n.op == "aten.index.Tensor"]


class Lists(torch.optim.Optimizer):
    """Foreach ops of every kind of argument."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        params = self.param_groups[0]["params"]
        grads = [p.grad for p in params]
        sizes = torch._foreach_norm(grads, 1)
        scaled = torch._foreach_div(grads, torch._foreach_add(torch._foreach_maximum(sizes, 0.5), 1.0))
        torch._foreach_mul_(scaled, [0.5] * len(params))
        torch._foreach_add_(scaled, grads, alpha=0.1)
        torch._foreach_clamp_max_(scaled, 0.3)
        torch._foreach_minimum_(scaled, torch._foreach_abs(params))
        low = torch._foreach_lerp(params, scaled, 0.1)
        torch._foreach_addcdiv_(low, scaled, torch._foreach_exp(params), [0.01] * len(params))
        torch._foreach_addcmul_(low, scaled, grads, torch.full((len(params),), 0.01))
        torch._foreach_sub_(params, torch._foreach_pow(scaled, 2))
        torch._foreach_copy_(params, torch._foreach_lerp(low, params, [torch.ones(()) / 2] * len(params)))


def test_foreach_ops_run_one_tensor_at_a_time():
    torch.manual_seed(0)
    worst, traced = worst_differences(step_of(lambda m, x: m.lin(x), Lists))
    assert all(w <= 1e-10 for w in worst.values()), worst
    assert not [n for n in traced.graph.nodes if "foreach" in n.op]


class Gate(nn.Module):
    """Shares of the two largest of a softmax, made to add up to one in place, as routers of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x):
        top, where = self.lin(x).softmax(-1).topk(2, dim=-1)
        top /= top.sum(dim=-1, keepdim=True)
        return x + torch.zeros_like(x).scatter(-1, where, top)


def test_gradients_of_what_is_written_in_place_have_the_place_of_the_write():
    model = nn.Sequential(Gate(), Gate(), nn.Linear(6, 5))
    graph = trace_step(Workload(model, (torch.randn(4, 6),), (torch.tensor([0, 1, 2, 3]),), F.cross_entropy, functools.partial(torch.optim.SGD, lr=1e-2))).graph
    mine = [n for n in graph.nodes if n.phase is Phase.BACKWARD and "test_in_place.py" in n.source]
    assert {n.path.partition(".")[0] for n in mine} == {"0", "1"}
    divisions = [n for n in mine if n.op == "aten.div.Tensor"]
    line = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.strip().startswith("top /="))
    assert {(n.path, n.source.rpartition(":")[2]) for n in divisions} == {("0", str(line)), ("1", str(line))}
