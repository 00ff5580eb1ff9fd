"""Complex numbers in parameters, inputs and constants."""

import functools

import pytest
import torch
from torch import nn

import autopar
from autopar.verify import describe_failure, verify_workload

pytestmark = pytest.mark.torch
BATCH = 8
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class Between(nn.Module):
    """Real numbers in and out, a function of complex numbers between."""

    def __init__(self, function) -> None:
        super().__init__()
        self.into, self.out, self.function = nn.Linear(6, 4), nn.Linear(8, 3), function

    def forward(self, x):
        z = self.function(torch.complex(self.into(x), self.into(x.flip(-1))))
        return self.out(torch.view_as_real(z).flatten(1))


class Wave(nn.Module):
    """Complex parameters on complex inputs, and a recurrence with one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.decay = nn.Parameter(torch.randn(4, 4, dtype=torch.cfloat)), nn.Parameter(torch.polar(torch.rand(4), torch.rand(4)))
        self.out = nn.Linear(8, 3)

    def forward(self, z):
        u = z.to(torch.cfloat) @ self.weight
        h = self.decay * (self.decay * u + u.conj())
        return self.out(torch.view_as_real(h * torch.sigmoid(h.abs())).flatten(1))


def verify(model: nn.Module, inputs: torch.Tensor, optimizer=SGD, random_plans: int = 3) -> None:
    workload = autopar.Workload(model, (inputs,), (torch.randint(0, 3, (BATCH,)),), nn.functional.cross_entropy, optimizer)
    report = verify_workload(workload, "cpu:2", autopar.Options(time_limit_s=1.0, price=False), random_plans=random_plans)
    assert not report.failures, describe_failure(report)


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z + 2j,
        lambda z: z / (1 + 2j) - 1j,
        lambda z: (z + 3) ** (1 + 0.5j),
        lambda z: torch.exp(-1j * torch.pi * torch.arange(4) / 4) * z,  # whole numbers that a complex one makes complex128
        lambda z: torch.polar(z.abs(), z.angle()),  # its gradient reads a conjugate as real numbers
        lambda z: z.conj() * z.conj() + z,  # what is written into a conjugate must not reach its base
    ],
    ids=["add", "divide", "power", "whole", "polar", "conjugate"],
)
def test_functions_of_complex_numbers_equal_plain_pytorch(function):
    torch.manual_seed(0)
    verify(Between(function), torch.randn(BATCH, 6))


@pytest.mark.parametrize("optimizer", [SGD, torch.optim.AdamW])
def test_complex_parameters_and_inputs_equal_plain_pytorch(optimizer):
    torch.manual_seed(0)
    verify(Wave(), torch.randn(BATCH, 4, dtype=torch.cfloat), optimizer)
