"""Losses that hold tensors: class weights, frozen networks, teachers; and what they must not hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autopar.errors import ModelError
from autopar.options import Options
from autopar.trace import Workload, trace_step
from autopar.verify import verify_workload

pytestmark = pytest.mark.torch


class Perceptual(nn.Module):
    """Distances of a frozen network's features."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 4, 3).requires_grad_(False)

    def forward(self, output, targets):
        return F.l1_loss(self.features(output), self.features(targets)) + F.mse_loss(output, targets)


def perceptual() -> Workload:
    return Workload(nn.Conv2d(1, 1, 3, padding=1), (torch.randn(4, 1, 6, 6),), (torch.randn(4, 1, 6, 6),), Perceptual(), torch.optim.SGD)


def class_weights() -> Workload:
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)
    return Workload(nn.Linear(6, 3), (torch.randn(4, 6),), (torch.tensor([0, 1, 2, 1]),), criterion, torch.optim.SGD)


def teacher() -> Workload:
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    weights = torch.tensor([0.2, 0.3, 0.5])

    def loss(output, targets):
        with torch.no_grad():
            expected = network(output)
        return F.mse_loss(output, expected) + (output @ weights).square().mean() + F.cross_entropy(output, targets)

    return Workload(nn.Linear(6, 3), (torch.randn(4, 6),), (torch.tensor([0, 1, 2, 1]),), loss, torch.optim.SGD)


@pytest.mark.parametrize("workload", [perceptual, class_weights, teacher])
def test_verified(workload):
    made = workload()
    assert not verify_workload(made, "cpu:2", Options(time_limit_s=2.0)).failures


def test_the_loss_stays_as_it_was():
    made = perceptual()
    before = dict(made.loss.named_parameters())
    trace_step(made, "fp64")
    after = dict(made.loss.named_parameters())
    assert all(after[name] is param and param.dtype == torch.float32 and param.grad is None for name, param in before.items())


class Proxies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(3, 5))

    def forward(self, output, targets):
        return F.cross_entropy(output @ self.proxies.t(), targets)


def test_a_loss_that_would_be_trained_is_refused():
    made = Workload(nn.Linear(6, 5), (torch.randn(4, 6),), (torch.tensor([0, 1, 2, 1]),), Proxies(), torch.optim.SGD)
    text = r"loss Proxies: holds a parameter of shape \[3, 5\] that gets a gradient.*Put the loss into the model"
    with pytest.raises(ModelError, match=text):
        trace_step(made)
    assert made.loss.proxies.grad is None
