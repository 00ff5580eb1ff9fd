"""What a module holds beside parameters: hooks, closures, attributes, and modules under two names."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autopar.errors import TraceError
from autopar.trace import Workload, trace_step
from autopar.trace.build import build_lightly
from autopar.trace.private import FakeTensor, gradient_hooks
from autopar.trace.reach import replace_tensors

pytestmark = pytest.mark.torch


def step_of(model: nn.Module) -> Workload:
    return Workload(model, (torch.randn(4, 6),), (torch.randn(4, 5),), F.mse_loss, torch.optim.SGD)


def test_a_trace_leaves_the_model_as_it_was():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.calls, self.last = nn.Linear(6, 5), 0, None
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.calls += 1
            self.last = x.mean()
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return self.lin(x - self.mean)

    model = Model()
    before = (model.mean, model.lin.weight)
    trace_step(step_of(model))
    assert (model.calls, model.last) == (0, None) and (model.mean, model.lin.weight) == before


def test_a_module_under_two_names_is_put_back():
    block = nn.Linear(6, 6)
    model = nn.Sequential(block, nn.ReLU(), block, nn.Linear(6, 5))
    weight = block.weight
    trace_step(step_of(model))
    assert block.weight is weight and not isinstance(block.weight, FakeTensor)


def hooked() -> Workload:
    model = nn.Linear(6, 5)
    mask = torch.ones(5, 6)
    mask[0] = 0
    model.weight.register_hook(lambda grad: grad * mask)

    def clip(p):
        p.grad.clamp_(-0.1, 0.1)

    model.bias.register_post_accumulate_grad_hook(clip)
    return step_of(model)


def test_hooks_on_parameters_are_in_the_step():
    ops = [n.op for n in trace_step(hooked()).graph.nodes]
    assert "aten.clamp.default" in ops and "aten.mul.Tensor" in ops[ops.index("autopar.linear_weight_grad") :]


def test_a_factory_keeps_hooks_and_what_they_close_over():
    made, _ = build_lightly(hooked)
    (before, _), (_, after) = gradient_hooks(made.model.weight), gradient_hooks(made.model.bias)
    assert made.model.weight.is_meta and len(before) == len(after) == 1
    mask = before[0].__closure__[0].cell_contents
    assert not isinstance(mask, FakeTensor) and mask.sum() == 24
    assert trace_step(made).graph.nodes == trace_step(hooked()).graph.nodes


def test_every_tensor_is_reached_once():
    class Thing:
        def __init__(self, x):
            self.x, self.me = x, self

    one = torch.ones(1)
    thing = Thing(one)
    closed = functools.partial(lambda a, b, c=one: a + b + c + thing.x, one, b=(one, [one]))
    module = nn.Linear(1, 1)
    module.own = {"thing": thing, "call": closed, "pair": (one, 1)}
    seen = []

    def change(t):
        seen.append(t)
        return t if t in (module.weight, module.bias) else torch.zeros(1)

    replace_tensors([module, thing.__init__], change)
    assert sum(t is one for t in seen) == 6
    assert not any(t.item() for t in (thing.x, closed.args[0], closed.keywords["b"][0], closed.keywords["b"][1][0], module.own["pair"][0]))
    assert closed.func.__defaults__[0].item() == 0


@functools.lru_cache
def cached_grid(n, dtype):
    return torch.arange(n, dtype=dtype)


def wrapped(function):
    kept = functools.lru_cache(function)

    @functools.wraps(function)
    def call(*args):
        return kept(*args)

    return call


@wrapped
def wrapped_grid(n, dtype):
    return torch.arange(n, dtype=dtype)


class Cached(nn.Linear):
    def forward(self, x):
        return super().forward(x) * cached_grid(3, torch.float32) + wrapped_grid(3, torch.float32)


def test_caches_of_functions_are_emptied_before_and_after():
    """A cache would give the fake tensor of one trace to the next, and to plain PyTorch."""
    model = Cached(3, 3)
    workload = Workload(model, (torch.randn(2, 3),), (torch.randn(2, 3),), F.mse_loss, torch.optim.SGD)
    for precision in ("fp32", "fp64", "fp32"):
        assert trace_step(workload, precision).graph.nodes
    assert type(cached_grid(3, torch.float32)) is torch.Tensor
    torch.testing.assert_close(model(torch.zeros(1, 3))[0], model.bias * torch.arange(3) + torch.arange(3))


def counting_model(use: str) -> nn.Module:
    """Counts its calls; `use`: what it does with the count."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.calls, self.ready = nn.Linear(6, 5), 0, False

        def forward(self, x):
            self.calls += 1
            if use == "flag" and not self.ready:
                x = x - x.mean(0)
            self.ready = True
            scale = torch.tensor(1.0 / self.calls) if use == "constant" else 1.0 / self.calls if use == "number" else 1.0
            return self.lin(x) * scale

    return Model()


@pytest.mark.parametrize(("use", "name"), [("number", "calls (from 0 to 1)"), ("constant", "calls (from 0 to 1)"), ("flag", "ready (from False to True)")])
def test_a_number_that_a_module_changes_and_computes_with_is_refused(use, name):
    model = counting_model(use)
    with pytest.raises(TraceError) as error:
        trace_step(step_of(model))
    assert name in str(error.value) and "self.register_buffer(" in str(error.value)
    assert (model.calls, model.ready) == (0, False)


def test_a_number_that_only_counts_is_fine():
    model = counting_model("nothing")
    assert trace_step(step_of(model)).graph.nodes
    assert model.calls == 0
