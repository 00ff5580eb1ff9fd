"""Masks: those that depend on shapes alone select by places; those that depend on data are refused."""

from __future__ import annotations

import pytest
import torch
from compare import worst_differences
from torch import nn
from torch.nn import functional as F

from autopar.errors import TraceError
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch


def contrastive(pick) -> Workload:
    """SimCLR's loss: `pick(similarities)` are those of different samples, one row each."""

    def loss(z):
        z = F.normalize(z, dim=1)
        return torch.logsumexp(pick(z @ z.t()), 1).mean()

    return Workload(nn.Linear(6, 5), (torch.randn(8, 6),), (), loss, torch.optim.SGD)


def off_diagonal(s):
    return s[~torch.eye(len(s), dtype=torch.bool)].view(len(s), -1)


def selected(s):
    return s.masked_select(torch.arange(len(s))[:, None] != torch.arange(len(s))).view(len(s), -1)


def rows(s):
    return s[torch.arange(len(s)) % 2 == 0]


def row_of_mask(s):
    return s.masked_select(torch.arange(len(s)) > 2).view(len(s), -1)


def with_index(s):
    return s[torch.arange(len(s)) < 3, torch.tensor([0, 2, 4])][None]


@pytest.mark.parametrize("pick", [off_diagonal, selected, rows, row_of_mask, with_index])
def test_mask_of_shapes_equals_eager(pick):
    worst, traced = worst_differences(contrastive(pick))
    assert all(w <= 1e-12 for w in worst.values()), worst
    assert all(value.dtype != "bool" for value in traced.graph.values if value.name.startswith("const:"))


def test_mask_of_data_is_refused():
    text = r"test_masks.py:\d+: .*float32\[8, 8\], bool\[8, 8\], by aten.index.Tensor.*how many elements a mask"
    with pytest.raises(TraceError, match=text):
        trace_step(contrastive(lambda s: s[s > 0][None]))


# -- numbers put where a mask says so --------------------------------------------------------------------------------------------------


class Put(nn.Module):
    def __init__(self, put) -> None:
        super().__init__()
        self.first, self.last, self.put = nn.Linear(6, 5), nn.Linear(5, 3), put

    def forward(self, x):
        y = F.gelu(self.first(x))
        return self.last(self.put(y) * 2)


def everywhere(y):
    y[y > 0.2] = 0.5
    return y


def whole_rows(y):
    y[y[..., 0] > 0] = -1
    return y


def of_a_batch(y):
    y = y.clone()
    y[y.sum((1, 2)) > 0] = torch.tensor(0.25, dtype=torch.float64)
    return y


def whole_columns(y):
    y[:, y.mean((0, 2)) > 0] = 3.0
    return y


def last_entries(y):
    y[..., y.mean((0, 1)) > 0] = float("-inf")
    return y.softmax(-1)


def in_a_slice(y):
    y[:, 1:][y[:, 1:] < 0] = 0.0
    return y


def pure(y):
    return y.index_put((y > 0,), torch.zeros((), dtype=y.dtype))


def of_whole_numbers(y):
    places = (y.detach() * 8).to(torch.int64)
    places[places < 0] = 7
    return y * places


def of_what_is_there(y):
    y[y > 0.2] = y.detach().amax()
    return y


PUTS = [everywhere, whole_rows, of_a_batch, whole_columns, last_entries, in_a_slice, pure, of_whole_numbers, of_what_is_there]


@pytest.mark.parametrize("put", PUTS)
def test_a_number_put_where_a_mask_of_data_says_so(put):
    torch.manual_seed(0)
    worst, traced = worst_differences(Workload(Put(put), (torch.randn(4, 3, 6),), (), lambda y: y.square().sum(), torch.optim.SGD))
    assert all(w <= 1e-12 for w in worst.values()), worst
    assert "aten.index_put.default" not in {node.op for node in traced.graph.nodes}


def test_a_trained_number_put_where_a_mask_of_data_says_so_is_refused():
    def put(y):
        y[y > 0.2] = y.sum()
        return y

    with pytest.raises(TraceError, match=r"test_masks.py:\d+: .*how many elements a mask"):
        trace_step(Workload(Put(put), (torch.randn(4, 3, 6),), (), lambda y: y.square().sum(), torch.optim.SGD))


def test_numbers_of_places_and_several_values_stay_as_they_are():
    def put(y):
        y[:, torch.tensor([2, 0])] = 0.5
        y[y[:, 0, 0] > 0] = torch.linspace(0, 1, 5, dtype=y.dtype)
        return y.index_put((y > 0.2,), torch.ones((), dtype=y.dtype), accumulate=True)

    torch.manual_seed(0)
    worst, traced = worst_differences(Workload(Put(put), (torch.randn(4, 3, 6),), (), lambda y: y.square().sum(), torch.optim.SGD))
    assert all(w <= 1e-12 for w in worst.values()), worst
    assert [node.op for node in traced.graph.nodes].count("aten.index_put.default") >= 3
