"""Which dims are the batch, which the sequence: the models that people write, and what could mislead."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from torch.nn import functional as F

import autopar
from autopar.api import build_case
from autopar.graph.roles import find_roles
from autopar.trace import trace_step

pytestmark = pytest.mark.torch


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last, self.head = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def maps(self, x):
        return self.last(F.relu(self.norm(self.first(x))))

    def forward(self, x):
        return self.head(self.maps(x).mean((2, 3)))


class Segment(Conv):
    def forward(self, x):
        return self.maps(x)


class SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0)

    def forward(self, x):
        return self.layer(x)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(5, 8)

    def forward(self, x, y):
        return self.a(x) @ self.b(y).t()


class Masked(nn.Module):
    """Scores of a mask that is given, of the shape of the scores: its first dim is no batch, although it is as large."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        return self.head(torch.softmax(x @ x.transpose(1, 2) + mask, -1) @ x)


def image(*shape):
    return torch.randn(16, 4, 8, 8), torch.randint(0, 4, (16, *shape))


CASES = {
    "mlp": (nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)), (torch.randn(16, 6),), (torch.randn(16, 4),), F.mse_loss,
            {("input:0", 0), ("target:0", 0)}, set()),
    "convolutions": (Conv(), image()[:1], image()[1:], F.cross_entropy, {("input:0", 0), ("target:0", 0)}, set()),
    "segmentation": (Segment(), image()[:1], image(8, 8)[1:], F.cross_entropy, {("input:0", 0), ("target:0", 0)}, {("target:0", 1), ("target:0", 2)}),
    "sequence first": (SequenceFirst(), (torch.randn(10, 6, 16),), (torch.randn(10, 6, 16),), F.mse_loss,
                       {("input:0", 1), ("target:0", 1)}, {("input:0", 0), ("target:0", 0)}),
    "two towers": (Towers(), (torch.randn(16, 6), torch.randn(16, 5)), (torch.arange(16),), F.cross_entropy,
                   {("input:0", 0), ("input:1", 0), ("target:0", 0)}, set()),
    "a mask as large as the batch": (
        Masked(), (torch.randint(0, 11, (6, 6)), torch.zeros(6, 6)), (torch.randint(0, 11, (6, 6)),),
        lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()),
        {("input:0", 0), ("target:0", 0)}, {("input:0", 1), ("input:1", 0), ("input:1", 1), ("target:0", 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_batch_and_sequence(name):
    model, inputs, targets, loss, batch, sequence = CASES[name]
    workload = autopar.Workload(model=model, example_inputs=inputs, example_targets=targets, loss=loss, optimizer=torch.optim.SGD)
    graph = trace_step(workload, "fp32").graph
    case = build_case(graph)
    roles = find_roles(graph, case.sites, case.signatures, case.cuts)
    assert {place[:2] for place in roles.batch} == batch
    assert {place[:2] for place in roles.sequence} == sequence
    assert roles.available() == ("dp", "tp", *(["sp"] if sequence else []))
