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
