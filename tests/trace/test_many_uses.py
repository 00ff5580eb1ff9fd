"""Gradients of weights that are used many times on few rows are one product, and gates that are written in place are read as they were made."""

from __future__ import annotations

import random
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from autopar.trace import Workload, trace_step  # noqa: E402
from tests.trace.compare import worst_differences  # noqa: E402

pytestmark = pytest.mark.torch


class Layer(nn.Module):
    """A recurrent layer of torch over 5 steps of 3 samples, and a linear."""

    def __init__(self, kind: type[nn.RNNBase], **kwargs) -> None:
        super().__init__()
        self.cells, self.out = kind(12, 16, batch_first=True, **kwargs), nn.LazyLinear(4)
        self(torch.randn(3, 5, 12))

    def forward(self, x):
        return self.out(self.cells(x)[0])


class ByHand(nn.Module):
    """A loop over a cell."""

    def __init__(self, cell: nn.Module, out: int = 16) -> None:
        super().__init__()
        self.cell, self.out = cell, nn.Linear(out, 4)

    def forward(self, x):
        h, found = x.new_zeros(x.shape[0], 16), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            found.append(h)
        return self.out(torch.stack(found, 1))


class Own(nn.Module):
    """A cell of two linears; one of them by `@`."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.last = nn.Linear(12, 16), nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x, h):
        return torch.tanh(self.own(x) + h @ self.last)


class Again(nn.Module):
    """One linear on the same tensor again and again."""

    def __init__(self, times: int, rows: int) -> None:
        super().__init__()
        self.lin, self.times, self.rows = nn.Linear(16, 16), times, rows

    def forward(self, x):
        for _ in range(self.times):
            x = torch.tanh(self.lin(x))
        return x


def squared(out, target):
    return (out - target).square().sum()


def make_workload(model: nn.Module, *shape: int) -> Workload:
    torch.manual_seed(0)
    x = torch.randn(*shape)
    return Workload(model, (x,), (torch.randn_like(model(x)),), squared, torch.optim.SGD)


def count(workload: Workload) -> Counter:
    return Counter(node.op.split(".")[1] for node in trace_step(workload).graph.nodes)


def assert_right(workload: Workload) -> None:
    worst, _ = worst_differences(workload)
    assert max(worst.values()) < 1e-9, "of gradients up to 1e5"


@pytest.mark.parametrize("kwargs", [{}, {"bias": False}, {"num_layers": 2}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_has_a_product_for_each_weight(kind, kwargs):
    workload = make_workload(Layer(kind, **kwargs), 3, 5, 12)
    ops = count(workload)
    weights = sum(p.dim() == 2 for p in workload.model.parameters())
    assert ops["linear_weight_grad"] == weights and ops["slice_scatter"] == 0
    assert ops["cat"] < 5 + 12 * weights, "gradients of gates, of steps, and what goes into the products"
    assert_right(workload)


@pytest.mark.parametrize("cell", [nn.GRUCell(12, 16), nn.RNNCell(12, 16), Own()], ids=lambda cell: type(cell).__name__)
def test_a_loop_by_hand_is_as_good(cell):
    workload = make_workload(ByHand(cell), 3, 5, 12)
    ops = count(workload)
    assert ops["linear_weight_grad"] == 3 and ops["slice_scatter"] == 0
    assert_right(workload)


@pytest.mark.parametrize("times, rows, products", [(4, 3, 1), (4, 7, 1), (12, 7, 3), (11, 3, 2), (4, 8, 4), (2, 3, 2), (3, 3, 1)])
def test_only_many_uses_on_few_rows_are_one(times, rows, products):
    """256 elements of a gradient, 32 in a row of what is laid: 8 rows are as many. What nothing else lays is one product for as many steps as have 32."""
    workload = make_workload(Again(times, rows), rows, 16)
    assert count(workload)["linear_weight_grad"] == products
    assert_right(workload)


def test_other_terms_stay_beside_what_is_one():
    """A weight that is used by steps of one sample, on the whole once more, and elementwise."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(16, 16)

        def forward(self, x):
            steps = torch.cat([torch.tanh(self.lin(x[k : k + 1])) for k in range(4)])
            return self.lin(torch.cat([steps] * 5)) + self.lin.weight.sin().sum()

    workload = make_workload(Tied(), 4, 16)
    assert count(workload)["linear_weight_grad"] == 2
    assert_right(workload)


def test_writes_into_slices_are_read_right():
    """Random writes into slices of a tensor, in any order, some over others, and reads between them."""

    class Written(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.lin, self.seed = nn.Linear(6, 6), seed

        def forward(self, x):
            rng, whole, found = random.Random(self.seed), self.lin(x).clone(), []
            for _ in range(6):
                dim = rng.choice((1, 1, 1, 0))
                start, step = rng.randrange(5), rng.choice((1, 1, 1, 2))
                end = rng.randint(start + 1, 6)
                part = whole[:, start:end:step] if dim else whole[start:end:step]
                if rng.random() < 0.6:
                    part.copy_(part.clone().sin()) if rng.random() < 0.5 else part.mul_(0.7)
                else:
                    found.append((part * rng.random()).sum())
                if rng.random() < 0.3:
                    found.append(whole[:, rng.randrange(6)].sum())
            return torch.stack([*found, whole.sum()])

    for seed in range(30):
        torch.manual_seed(seed)
        x = torch.randn(6, 6)
        assert_right(Workload(model := Written(seed), (x,), (torch.randn_like(model(x)),), squared, torch.optim.SGD))


def test_what_was_written_is_what_is_read():
    def gates(m, x):
        g = m.lin(x)
        a, b, c = g[:, :4], g[:, 4:8], g[:, 8:]
        a.sigmoid_(), b.tanh_(), c.exp_()
        return a * b + c * g[:, 5:7].sum() + g[:, 8:].sum()

    class Gates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(6, 12)

        def forward(self, x):
            with torch.no_grad():
                return gates(self, x)

    workload = Workload(Gates(), (torch.randn(3, 6),), (), None, None)
    ops = count(workload)
    assert ops["slice_scatter"] == 0 and (ops["sigmoid"], ops["tanh"], ops["exp"]) == (1, 1, 1)


@pytest.mark.parametrize("cell", [nn.GRUCell(12, 16), nn.LSTMCell(12, 16)], ids=lambda cell: type(cell).__name__)
def test_a_batch_of_one(cell):
    """The gradient of a weight that is used on one row is that of a weight."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = cell, nn.Linear(16, 1)

        def forward(self, x):
            h = None
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
            return self.out(h[0] if isinstance(h, tuple) else h).squeeze(-1)

    workload = make_workload(Loop(), 1, 5, 12)
    ops = count(workload)
    assert ops["linear_weight_grad"] == 3 and ops["linear_input_grad"] == 5, "of the head, and of four states"
    assert_right(workload)


def test_a_head_of_one_number_on_one_sample_of_many_rows():
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.out = nn.Linear(12, 16), nn.Linear(16, 1, bias=False)

        def forward(self, x):
            return self.out(torch.tanh(self.lin(x))).squeeze(-1)

    workload = make_workload(Head(), 1, 5, 12)
    ops = count(workload)
    assert (ops["linear_weight_grad"], ops["linear_input_grad"]) == (2, 1)
    assert_right(workload)
