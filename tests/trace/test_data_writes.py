"""Assignments to `.data` in forward: averaged teachers as people write them."""

from __future__ import annotations

import copy

import pytest
import torch
from compare import worst_differences
from torch import nn
from torch.nn import functional as F

from autopar.errors import TraceError
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch


def with_teacher(write) -> Workload:
    """`write(teacher's parameter, student's)` runs for each pair before the student does."""

    class Byol(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = nn.Linear(6, 5)
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)

        def forward(self, x, y):
            with torch.no_grad():
                for t, s in zip(self.teacher.parameters(), self.student.parameters()):
                    write(t, s)
                aim = self.teacher(y)
            return F.mse_loss(self.student(x), aim)

    return Workload(Byol(), (torch.randn(4, 6), torch.randn(4, 6)), (), lambda loss: loss, torch.optim.SGD)


def average(t, s):
    t.data = t.data * 0.9 + s.data * 0.1


def copied(t, s):
    t.data = s.data.clone()


def itself(t, s):
    t.data = t.data
    t.data.lerp_(s.data, 0.1)


@pytest.mark.parametrize("write", [average, copied, itself])
def test_equals_eager(write):
    worst, traced = worst_differences(with_teacher(write))
    assert all(w <= 1e-12 for w in worst.values()), worst
    assert "teacher.weight@1" in {value.name for value in traced.graph.values}


def shared(t, s):
    t.data = s.data


def reshaped(t, s):
    t.data = t.data.flatten()


@pytest.mark.parametrize(
    "write, text", [(shared, r"two tensors of the model the same memory.*x\.data\.copy_"), (reshaped, r"changes the shape")]
)
def test_what_cannot_be_followed_names_the_line(write, text):
    line = write.__code__.co_firstlineno + 1
    with pytest.raises(TraceError, match=rf"test_data_writes.py:{line}: .*{text}"):
        trace_step(with_teacher(write))
