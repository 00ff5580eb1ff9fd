"""Wrong words from Python: options, plans and models that compute nothing are told as such, by name."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import autopar  # noqa: E402
from autopar.errors import ConstraintError, InputError, OptionsError, PlanError, TraceError  # noqa: E402

pytestmark = pytest.mark.torch
LINEAR, X = nn.Linear(4, 4), torch.randn(8, 4)


class Body(nn.Module):
    """A model without parameters."""

    def __init__(self, body) -> None:
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x)


def leaves(x):
    raise SystemExit(3)


def test_a_limit_is_no_more_than_a_gpu_has():
    work = autopar.Workload(nn.Linear(4, 4), (X,), (torch.randint(0, 4, (8,)),), nn.functional.cross_entropy, torch.optim.SGD)
    with pytest.raises(OptionsError) as error:
        autopar.plan_workload(work, "2xA100-40GB", autopar.Options(memory_bytes=40 << 30))
    assert str(error.value) == (
        "memory: expected at most the 39.6 GiB (42505076736 bytes) that A100-40GB has, found 40.0 GiB; leave it out, name a device that has as much, "
        "or describe yours in a cluster file ([devices.NAME])"
    )
    assert autopar.plan_workload(work, "2xA100-40GB", autopar.Options(memory_bytes=42505076736)).plan.cluster.memory_bytes == 42505076736
    assert autopar.plan_workload(work, "cpu:2", autopar.Options(memory_bytes=40 << 30)).plan.cluster.memory_bytes == 40 << 30  # a process on a CPU may have more


def test_numbers_of_numpy_are_numbers():
    found = autopar.Options(seed=np.int64(3), memory_bytes=np.int64(2**30), time_limit_s=np.float32(5))
    assert (found.seed, found.memory_bytes, found.time_limit_s) == (3, 2**30, 5.0)


@pytest.mark.parametrize(
    "words, text",
    [
        ({"memory_bytes": "2GiB"}, "memory: expected a positive number of bytes, found '2GiB'"),
        ({"memory_bytes": True}, "memory: expected a positive number of bytes, found True"),
        ({"memory_bytes": float("nan")}, "memory: expected a positive number of bytes, found nan"),
        ({"time_limit_s": "10"}, "time limit: expected a positive number of seconds, found '10'"),
        ({"time_limit_s": 0}, "time limit: expected a positive number of seconds, found 0"),
        ({"seed": "a"}, "seed: expected a whole number, found 'a'"),
        ({"seed": 1.5}, "seed: expected a whole number, found 1.5"),
    ],
)
def test_options(words, text):
    with pytest.raises(OptionsError, match=re.escape(text)):
        autopar.Options(**words)


@pytest.mark.parametrize("call", [autopar.plan, autopar.compile])
def test_options_must_be_options(call):
    with pytest.raises(OptionsError, match=re.escape("options: expected autopar.Options(...), found dict")):
        call(LINEAR, "cpu:2", example_inputs=(X,), options={"precision": "fp32"})


def test_a_given_plan_must_be_a_plan():
    with pytest.raises(PlanError, match=re.escape("given_plan: expected a plan, found str. A file is read with autopar.load_plan(path).")):
        autopar.compile(LINEAR, "cpu:2", example_inputs=(X,), given_plan="plan.json")


@pytest.mark.parametrize(
    "model, inputs, error, text",
    [
        (Body(lambda x: None), X, InputError, "the model returns no tensor (found NoneType), and there is no loss, so nothing is asked of the step."),
        (Body(lambda x: 3.0), X, InputError, "the model returns no tensor (found float)"),
        (Body(leaves), X, TraceError, "the model's forward raises SystemExit: 3"),
        (LINEAR, X[:0], InputError, "example_inputs: input:0 has shape [0, 4], so no sample; expected the global batch's shapes"),
    ],
)
def test_models_that_compute_nothing(model, inputs, error, text):
    with pytest.raises(error, match=re.escape(text)):
        autopar.plan(model, "cpu:2", example_inputs=(inputs,))


def test_a_model_without_parameters_is_planned_whole():
    model = Body(lambda x: x * 2)
    assert autopar.plan(model, "cpu:2", example_inputs=(X,)).num_stages == 1
    for words in ({"pp": 2}, {"microbatches": 2}):
        options = autopar.Options(constraints=autopar.constrain(**words))
        with pytest.raises(ConstraintError, match=r"=2: Body has nothing to divide into stages or microbatches: no op of its forward pass reads a parameter"):
            autopar.plan(model, "cpu:2", example_inputs=(X,), options=options)


class Fits(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, scale=1.0):
        return self.linear(x) * scale


def distance(output, target, weight):
    return ((output - target) ** 2 * weight).mean()


@pytest.mark.parametrize(
    "words, text",
    [
        ({"example_inputs": ()}, r"test_python_words.py:\d+: the model's forward raises TypeError: Fits.forward\(\) missing 1 required positional argument: 'x'. It takes \(x, scale=1.0\), and "
         r"example_inputs gives nothing. Give example_inputs as a tuple of what it takes, in order, as in example_inputs=\(x,\), or as a dict by name\."),
        ({"example_inputs": (X, X, X)}, r"test_python_words.py:\d+: the model's forward raises TypeError: .* 4 were given. It takes .* gives input:0 float32\[8, 4\], .*"),
        ({"example_inputs": {"y": X}}, r"test_python_words.py:\d+: the model's forward raises TypeError: .*'y'. It takes .* gives input:y float32\[8, 4\]\. Give"),
        ({"example_targets": X}, r"test_python_words.py:\d+: the loss raises TypeError: distance\(\) missing 1 .*: 'weight'. It takes \(output, target, weight\), and example_targets gives target:0 "
         r"float32\[8, 4\]. Give example_targets as a tuple of what it takes after the output, in order, as in example_targets=\(target, weight\)\."),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_parameters_names_the_users_line(words, text):
    with pytest.raises(InputError, match=text):
        autopar.plan(Fits(), "cpu:2", **{"example_inputs": (X,), "example_targets": (X, X), "loss": distance, "optimizer": torch.optim.SGD} | words)


def test_an_error_inside_of_a_forward_that_fits_is_told_as_it_is():
    with pytest.raises(InputError, match=r"test_python_words.py:\d+: the model's forward raises TypeError: linear\(\): argument 'input'"):
        autopar.plan(Fits(), "cpu:2", example_inputs=(None, X))


def test_several_tensors_whose_values_are_asked_for_are_several():
    with pytest.raises(TraceError, match=re.escape("the program asks for the values of tensors (float32[8, 4], bool[8, 4], by aten.index.Tensor) that depend on data, while")):
        autopar.plan(Body(lambda x: x[x > 0]), "cpu:2", example_inputs=(X,))


@pytest.mark.parametrize("word", ["price", "cuda_graph"])
def test_what_is_true_or_false_is_no_text(word):
    with pytest.raises(OptionsError, match=f"{word}: expected True or False, found 'no'"):
        autopar.Options(**{word: "no"})
