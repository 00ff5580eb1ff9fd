"""Ways of writing and handing over a model that change nothing: inference mode, dtypes, checks of libraries, TorchScript (refused)."""

from __future__ import annotations

import pytest
import torch
from compare import worst_differences
from torch import nn
from torch.nn import functional as F

from autopar.errors import ModelError, TraceError
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch


def step(model: nn.Module, dtype: torch.dtype = torch.float32) -> Workload:
    inputs, targets = torch.randn(4, 6, dtype=dtype), torch.randint(0, 5, (4,))
    return Workload(model, (inputs,), (targets,), lambda y, t: F.cross_entropy(y.float(), t), torch.optim.SGD)


class Guided(nn.Module):
    """A teacher with dropout and batch norm runs in inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(6, 5)
        self.teacher = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)).requires_grad_(False)

    def forward(self, x):
        self.teacher.eval()
        with torch.inference_mode():
            aim = self.teacher(x)
        return self.student(x) + aim.clone()


class Conjugate(nn.Module):
    """The backward of `1j * x` has the conjugate of a number."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 5)

    def forward(self, x):
        return torch.exp(self.lin(x) + (0.5 + 1j) * self.lin(x)).real


@pytest.mark.parametrize("model", [Guided, Conjugate])
def test_equals_eager(model):
    worst, _ = worst_differences(step(model()))
    assert all(w <= 1e-12 for w in worst.values()), worst


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_model_and_inputs_of_another_dtype(dtype):
    """Parameters are traced in the precision asked for; inputs of their former dtype follow inside of the step."""
    graph = trace_step(step(nn.Linear(6, 5).to(dtype), dtype)).graph
    dtypes = {value.name: value.dtype for value in graph.values}
    assert dtypes["weight@0"] == "float32" and dtypes["input:0"] == str(dtype).removeprefix("torch.")


def test_checks_of_transformers_are_taken_as_passed():
    checks = pytest.importorskip("transformers.utils.import_utils")

    class Checked(nn.Linear):
        def forward(self, x):
            checks.torch_compilable_check((x < 1e9).all(), "too large")
            return super().forward(x)

    assert trace_step(step(Checked(6, 5))).graph.nodes


@pytest.mark.filterwarnings("ignore")  # torch.jit.script is deprecated
def test_torchscript_is_refused():
    with pytest.raises(ModelError, match=r"RecursiveScriptModule is a module of TorchScript.*Pass the nn.Module"):
        step(torch.jit.script(nn.Linear(6, 5)))


class SparseBuffer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 5)
        self.register_buffer("adjacency", torch.eye(4).to_sparse())

    def forward(self, x):
        return super().forward(torch.sparse.mm(self.adjacency, x))


def test_a_sparse_buffer_is_refused():
    with pytest.raises(TraceError, match=r"buffer adjacency is a sparse tensor.*\.to_dense\(\)"):
        trace_step(step(SparseBuffer()))


class ToDevice(nn.Linear):
    def forward(self, x):
        raise RuntimeError("PyTorch is not linked with support for cuda devices")  # x.cuda() where there is none


def test_a_device_by_name_is_told_with_its_cure():
    line = ToDevice.forward.__code__.co_firstlineno + 1
    text = rf"test_forward_code.py:{line}: the program moves a tensor to a device by name.*self.weight.device"
    with pytest.raises(TraceError, match=text):
        trace_step(step(ToDevice(6, 5)))


class Sized(nn.Module):
    """Sizes in buffers, as audio codecs keep them."""

    def __init__(self, persistent: bool = False, counts: bool = False) -> None:
        super().__init__()
        self.lin, self.counts = nn.Linear(6, 5), counts
        self.register_buffer("width", torch.tensor(3), persistent=persistent)

    def forward(self, x):
        for _ in range(int(self.width) - 1):
            x = x.roll(1, 1)
        if self.counts:
            self.width += 1
        return self.lin(x)


def test_a_buffer_outside_of_checkpoints_may_decide():
    worst, traced = worst_differences(step(Sized()))
    assert all(w <= 1e-12 for w in worst.values()), worst


@pytest.mark.parametrize(
    "model, text", [(Sized(persistent=True), r"depends on data"), (Sized(counts=True), r"buffer width: .*asks for its value")]
)
def test_other_buffers_may_not(model, text):
    with pytest.raises(TraceError, match=text):
        trace_step(step(model))
