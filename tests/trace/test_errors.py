"""Each thing that can be wrong with a workload gives an error that says where, what and what to do."""

from __future__ import annotations

import dataclasses
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


def loops(m, x):
    y = m.lin(x)
    while y.abs().max() > 1:
        y = y / 2
    return y


def asserts(m, x):
    assert not x.isnan().any()
    return m.lin(x)


def counts(m, x):
    return m.lin(x) * x.abs().max().item()


def lists(m, x):
    return m.lin(x) * x.sum(0).tolist()[0]


def ranges(m, x):
    return sum(m.lin(x) for _ in range(int(x[0, 0])))


def logs(m, x):
    m.last = float(x.mean())
    return m.lin(x)


def selects(m, x):
    return m.lin(x[x[:, 0] > 0])


def assigns(m, x):
    y = m.lin(x)
    y[x[:, 0] > 0] = m.lin.bias
    return y


def picks(m, x):
    return m.lin(x) + torch.masked_select(x, x > 0).sum()


def finds(m, x):
    return m.lin(x)[torch.nonzero(x[:, 0]).squeeze(1)]


def finds_by_where(m, x):
    return m.lin(x)[torch.where(x[:, 0] > 0)[0]]


def distinct(m, x):
    return m.lin(x) + torch.unique(x).shape[0]


def bins(m, x):
    return m.lin(x) * torch.bincount((x[:, 0] > 0).long())[0]


def repeats(m, x):
    return m.lin(x).repeat_interleave((x[:, 0] > 0).long() + 1, 0)


def packs(m, x):
    lengths = (x[:, 0] > 0).long() + 1
    packed = nn.utils.rnn.pack_padded_sequence(x.view(4, 2, 3), lengths, batch_first=True, enforce_sorted=False)
    return m.lin(m.rnn(packed)[1][0][0])


def connects(m, x):
    scores = m.lin(x).log_softmax(-1).unsqueeze(1)
    return m.lin(x) + F.ctc_loss(scores, torch.ones(1, 2, dtype=torch.long), (x[:1, 0] > 9).long() + 4, torch.tensor([2]))


def compares(m, x):
    return m.lin(x) if torch.allclose(x, x * 2) else x


def through_numpy(m, x):
    return m.lin(x) + float(x.numpy().mean())


def prints(m, x):
    m.text = f"{x.mean():.3f}"
    return m.lin(x)


def splits(m, x):
    return m.lin(torch.cat(torch.tensor_split(x, (x[:2, 0] > 0).long())))


def nests(m, x):
    return m.lin(torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)).values()


@pytest.mark.parametrize(
    "body, line, need, cure",
    [
        (branches, 2, "whether it is true (`if`, `while`", "torch.where instead of `if`"),
        (loops, 2, "whether it is true", "a fixed number of rounds instead of `while`"),
        (asserts, 1, "whether it is true", "no assert on values"),
        (counts, 1, "its value as a Python number (.item(), float(), int(), .tolist())", "Keep it a tensor"),
        (lists, 1, "its value as a Python number", "Keep it a tensor"),
        (ranges, 1, "its value as a Python number", "Keep it a tensor"),
        (logs, 1, "its value as a Python number", "logged outside of the step"),
        (selects, 1, "how many elements a mask selects", "torch.where(mask[..., None], x, 0)"),
        (assigns, 2, "how many elements a mask selects", "x = torch.where(mask[..., None], y, x)"),
        (picks, 1, "how many elements a mask selects", "divide by mask.sum()"),
        (finds, 1, "how many elements are not zero", "torch.topk for a fixed number of places"),
        (finds_by_where, 1, "how many elements are not zero", "the mask itself with torch.where"),
        (distinct, 1, "how many different values there are", "F.one_hot(x, n).sum(0)"),
        (bins, 1, "its largest value", "index_add(0, x, weights)"),
        (repeats, 1, "how often each element is repeated", "Repeat by one Python number"),
        (packs, 2, "the length of each sequence", "Run the RNN on the padded batch"),
        (connects, 2, "the lengths of inputs and targets", 'autopar.region(fn, "b [t] [c], b [s], b, b -> b")'),
        (compares, 1, "whether all values are close", "Leave the comparison out of the step"),
        (through_numpy, 1, "the values of a tensor as a numpy array", "write it with torch operations"),
        (prints, 1, "the value of a tensor as text", "Print and log outside of the step"),
        (splits, 1, "the values of a tensor", "Pass Python numbers"),
        (nests, 1, "a size that depends on data", "a padded tensor and a mask"),
    ],
)
def test_what_depends_on_data_names_line_need_and_cure(body, line, need, cure):
    model = forward_of(body)
    model.rnn = nn.LSTM(3, 6, batch_first=True)
    number = body.__code__.co_firstlineno + line
    with pytest.raises(TraceError) as caught:
        trace_step(train(model))
    text = str(caught.value)
    assert text.startswith(f"tests/trace/test_errors.py:{number}: the program asks for "), text
    assert need in text and cure in text, text


def sparse_gradients(m, x):
    return m.lin(m.table((x[:, 0] > 0).long()))


def capped_norms(m, x):
    return m.lin(F.embedding((x[:, 0] > 0).long(), m.table.weight, max_norm=1.0))


def sparse_product(m, x):
    return m.lin(torch.sparse.mm((x[:, :4] > 0).float().to_sparse(), x))


def resizes(m, x):
    return m.lin(x) + torch.zeros(4).resize_(5)


@pytest.mark.parametrize(
    "body, text",
    [
        (sparse_gradients, "makes a sparse tensor, which cannot be split. Use dense ones: sparse=False"),
        (capped_norms, "an embedding with max_norm rewrites the rows that it reads"),
        (sparse_product, "makes a sparse tensor, which cannot be split"),
        (resizes, "gives a tensor another storage or size in place"),
    ],
)
def test_what_no_plan_could_split_names_the_line(body, text):
    model = forward_of(body)
    model.table = nn.Embedding(2, 6, sparse=True)
    with pytest.raises(TraceError, match=rf"test_errors.py:{body.__code__.co_firstlineno + 1}: .*{re.escape(text)}"):
        trace_step(train(model))


def replaces(m, x):
    m.mean = 0.9 * m.mean + 0.1 * x.mean(0)
    return m.lin(x - m.mean)


def updates(m, x):
    m.mean.lerp_(x.mean(0), 0.1)
    return m.lin(x - m.mean)


@pytest.mark.parametrize("body", [replaces, updates])
def test_state_in_a_plain_attribute_is_refused_by_name(body):
    model = forward_of(body)
    model.mean = torch.zeros(6)
    with pytest.raises(TraceError, match=r"attribute mean: the step reads this tensor and changes it.*self.register_buffer\('mean'"):
        trace_step(train(model))


def test_nothing_but_the_error_is_told(caplog, capfd):
    """torch logs a traceback of its own for each op that fails on fake tensors."""
    with pytest.raises(InputError):
        trace_step(train(mlp().model, (torch.randn(4, 7),)))
    assert caplog.text == "" and capfd.readouterr().err == ""


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
    with pytest.raises(TraceError, match=r"optimizer Adafactor: torch/optim/_adafactor.py:\d+: .*choose another optimizer"):
        trace_step(mlp(torch.optim.Adafactor))


class Power(nn.Linear):
    """Divides its weight by a vector that a float buffer holds, which follows the parameters' dtype only where it must."""

    def __init__(self):
        super().__init__(6, 6)
        self.register_buffer("direction", torch.ones(6))

    def forward(self, x):
        return F.linear(x, self.weight / torch.mv(self.weight, self.direction).norm(), self.bias)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_optimizer_is_blamed_where_the_model_was_right(precision):
    workload = Workload(Power(), (torch.randn(4, 6),), (torch.randn(4, 6),), F.mse_loss, functools.partial(torch.optim.SGD, momentum=0.9, dampening=0.5))
    with pytest.raises(TraceError, match="dampening=0.5 makes its first step different"):
        trace_step(workload, precision)
    trace_step(dataclasses.replace(workload, optimizer=torch.optim.AdamW), precision)


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


def test_what_fails_in_bf16_with_its_buffers_as_they_are_and_otherwise_tells_both():
    """The example inputs are not to blame."""
    model = forward_of(lambda m, x: torch.fft.rfft(m.lin(m.places).sum() + x).abs())
    model.register_buffer("places", torch.ones(6))
    with pytest.raises(InputError) as caught:
        trace_step(train(model), "bf16")
    text = str(caught.value)
    assert "found bfloat16, float32, bfloat16" in text and "With its float buffers in bf16, too: " in text and "Unsupported dtype BFloat16" in text
    assert "Check the example inputs" not in text


def test_matrices_of_two_dtypes_are_refused_in_bf16_as_torch_does():
    """Fake tensors would let it pass, and the program would fail on its first step."""
    body = lambda m, x: F.linear(x.float(), m.lin.weight, m.lin.bias)  # noqa: E731
    with pytest.raises(InputError, match="expected matrices of one dtype, found bfloat16, float32, bfloat16.*use precision fp32"):
        trace_step(train(forward_of(body)), "bf16")
