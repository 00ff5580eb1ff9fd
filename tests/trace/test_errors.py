"""Each thing that can be wrong with a workload gives an error that says where, what and what to do."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from zoo import class_loss, mlp

from autopar.errors import InputError, ModelError, TraceError
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch


def train(model: nn.Module, inputs=None, targets=None, loss=class_loss, optimizer=torch.optim.SGD) -> Workload:
    return Workload(model, inputs or (torch.randn(4, 6),), targets or (torch.tensor([0, 1, 2, 3]),), loss, optimizer)


def forward_of(body) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(6, 5)

        def forward(self, x):
            return body(self, x)

    return Model()


def branches(m, x):
    y = m.lin(x)
    if y.sum() > 0:
        y = y * 2
    return y


def counts(m, x):
    return m.lin(x) * x.abs().max().item()


def selects(m, x):
    return m.lin(x[x[:, 0] > 0])


@pytest.mark.parametrize("body, line", [(branches, 2), (counts, 1), (selects, 1)])
def test_control_flow_on_data_names_the_line(body, line):
    number = body.__code__.co_firstlineno + line
    with pytest.raises(TraceError, match=rf"test_errors.py:{number}: the program asks for the value of a tensor .*torch.where instead of"):
        trace_step(train(forward_of(body)))


def test_wrong_input_shape_names_the_line_and_the_inputs():
    with pytest.raises(InputError, match=r"forward raises RuntimeError: .*input:0 float32\[4, 7\].*Check the example inputs"):
        trace_step(train(mlp().model, (torch.randn(4, 7),)))


def test_wrong_number_of_inputs():
    with pytest.raises(InputError, match="forward raises TypeError: .*positional argument"):
        trace_step(train(mlp().model, (torch.randn(4, 6), torch.randn(4, 6))))


def test_loss_must_be_scalar():
    with pytest.raises(InputError, match=r"expected a scalar tensor, found shape \[4\]. Reduce it"):
        trace_step(train(mlp().model, loss=functools.partial(F.cross_entropy, reduction="none")))
    with pytest.raises(InputError, match="expected a scalar tensor, found float"):
        trace_step(train(mlp().model, loss=lambda y, t: 1.0))
    with pytest.raises(InputError, match="does not depend on any parameter"):
        trace_step(train(mlp().model, loss=lambda y, t: y.detach().sum()))


def test_closure_optimizer_is_refused_by_name():
    with pytest.raises(TraceError, match=r"optimizer LBFGS: its step\(\) needs closure"):
        trace_step(mlp(torch.optim.LBFGS))


class Decides(torch.optim.SGD):
    def step(self, closure=None):
        p = self.param_groups[0]["params"][0]
        if p.grad.norm() < 1:
            super().step()


def test_optimizer_that_decides_on_data():
    line = Decides.step.__code__.co_firstlineno + 2
    with pytest.raises(TraceError, match=rf"optimizer Decides: .*test_errors.py:{line}: .*depends on data"):
        trace_step(mlp(functools.partial(Decides, lr=0.1)))


def test_optimizer_adafactor_is_refused():
    with pytest.raises(TraceError, match="optimizer Adafactor: "):
        trace_step(mlp(torch.optim.Adafactor))


def test_sgd_with_dampening_is_refused():
    with pytest.raises(TraceError, match="dampening=0.5 makes its first step different"):
        trace_step(mlp(functools.partial(torch.optim.SGD, momentum=0.9, dampening=0.5)))


def test_optimizer_that_returns_something_else():
    with pytest.raises(TraceError, match="expected a callable that returns a torch.optim.Optimizer, found int"):
        trace_step(mlp(lambda params: 3))
    with pytest.raises(TraceError, match="optimizer SGD: cannot be built from the model's 6 parameters: TypeError"):
        trace_step(mlp(functools.partial(torch.optim.SGD, nonsense=1)))


@pytest.mark.parametrize(
    "change, text",
    [
        ({"model": 3}, "model: expected a torch.nn.Module, found int"),
        ({"example_inputs": 3}, "example_inputs: expected a tuple"),
        ({"loss": None}, "optimizer: given without a loss"),
        ({"optimizer": 3}, "optimizer: expected a torch.optim class"),
        ({"loss": 3}, "loss: expected a callable"),
    ],
)
def test_workload_parts(change, text):
    good = {"model": mlp().model, "example_inputs": (torch.randn(4, 6),), "loss": class_loss, "optimizer": torch.optim.SGD}
    with pytest.raises((ModelError, InputError), match=re.escape(text)):
        Workload(**(good | change))
