"""What belongs to the blocks of a row, one each, but lies beside it: gates, scales, running averages. Blocks stay a loop whose text names them by the block's number, and the numbers are right."""

import functools

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.api import compile_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace import Workload  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402

pytestmark = pytest.mark.torch
BLOCKS, WIDTH = 4, 8
ORDERS = {"listed": lambda i: i, "backwards": lambda i: BLOCKS - 1 - i, "later": lambda i: i + 1, "scattered": lambda i: (1, 3, 0, 2)[i]}


class Gated(nn.Module):
    """A gate for each block, in a container of another kind and in another order."""

    def __init__(self, kind, order):
        super().__init__()
        self.order = ORDERS[order]
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS))
        gates = [nn.Parameter(torch.full((WIDTH,), 0.5 + 0.1 * i)) for i in range(BLOCKS + 1)]
        if kind == "list":
            self.gates = nn.ParameterList(gates)
        elif kind == "dict":
            self.gates = nn.ParameterDict({str(i): gate for i, gate in enumerate(gates)})
        else:
            for i, gate in enumerate(gates):
                self.register_parameter(f"gate{i}", gate)

    def gate(self, i):
        number = self.order(i)
        if hasattr(self, "gates"):
            return self.gates[number if isinstance(self.gates, nn.ParameterList) else str(number)]
        return getattr(self, f"gate{number}")

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = x + self.gate(i) * block(x)
        return x * self.gate(0) if self.order(0) == 1 else x


class Averaged(nn.Module):
    """Each block has a running average of what it makes in a buffer of the model, which it takes off."""

    def __init__(self, order):
        super().__init__()
        self.order = ORDERS[order]
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS))
        for i in range(BLOCKS + 1):
            self.register_buffer(f"mean{i}", torch.zeros(WIDTH))

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x, mean = block(x), getattr(self, f"mean{self.order(i)}")
            mean.lerp_(x.detach().mean(0), 0.1)
            x = x - mean
        return x


def workload(model):
    torch.manual_seed(0)
    return Workload(model, (torch.randn(8, WIDTH),), (torch.randn(8, WIDTH),), F.mse_loss, functools.partial(torch.optim.AdamW, lr=0.01), name="beside")


def check(model, cluster, fix):
    report = verify_workload(workload(model), cluster, Options(constraints=parse_fix(fix), price=False, time_limit_s=30))
    assert not report.failures, describe_failure(report)


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("kind", ["list", "dict", "registered"])
def test_gates_beside_the_blocks(kind, order):
    for cluster, fix in (("cpu:1", "pp=1"), ("cpu:2", "dp=2,zero=3,pp=1"), ("cpu:2", "dp=2,zero=1,microbatches=2,pp=1"), ("cpu:2", "pp=2,microbatches=2")):
        check(Gated(kind, order), cluster, fix)


@pytest.mark.parametrize("order", list(ORDERS))
def test_buffers_that_blocks_write_beside_them(order):
    for cluster, fix in (("cpu:1", "pp=1"), ("cpu:2", "dp=2,pp=1")):
        check(Averaged(order), cluster, fix)


@pytest.mark.parametrize(("order", "gate", "mean"), [("listed", "gates.{i}", "mean{i}"), ("backwards", "gates.{3 - i}", "mean{3 - i}"), ("later", "gates.{i + 1}", "mean{i + 1}"), ("scattered", "", "")])
def test_the_text_names_them_by_the_number_of_the_block(order, gate, mean):
    """One function for all blocks where one text says which is whose; else each on its own."""
    for model, name, loops in ((Gated("list", order), gate, 2), (Averaged(order), mean, 2)):
        text = compile_workload(workload(model), "cpu:1", Options(price=False, time_limit_s=30)).files["program.py"]
        assert (f'state[f"{name}"]' in text) == bool(name)
        assert text.count("for i in range") >= loops * bool(name)


def test_deep_rows_with_gates_are_no_longer_text():
    class Deep(Gated):
        def __init__(self, depth):
            super().__init__("list", "listed")
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth))
            self.gates = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(depth))

    sizes = [len(compile_workload(workload(Deep(depth)), "cpu:1", Options(price=False, time_limit_s=30)).files["program.py"].splitlines()) for depth in (8, 16)]
    assert sizes[0] == sizes[1]
