"""Uneven pieces: what an update leaves in their padding is nobody's, what it leaves inside is compared."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace import Workload  # noqa: E402
from autopar.verify import compare, describe_failure, verify_workload  # noqa: E402

pytestmark = pytest.mark.torch

SUM = "sum:0.weight"  # [35, 33] on 4 ranks: no dim is divided by any of their axes


def verify_adagrad():
    """Its sums begin at 0.1, in the padding, too, where plain PyTorch's pieces have 0."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(33, 35), torch.nn.ReLU(), torch.nn.Linear(35, 7))
    optimizer = functools.partial(torch.optim.Adagrad, lr=0.01, initial_accumulator_value=0.1)
    workload = Workload(model, (torch.randn(8, 33),), (torch.randn(8, 7),), torch.nn.functional.mse_loss, optimizer)
    return verify_workload(workload, "cpu:4", Options(constraints=autopar.constrain(dp=4, zero=3), price=False))


@pytest.fixture
def first_values(monkeypatch):
    """Every rank's own pieces as the program begins with them, and what is done to them: a function of (rank, state)."""
    seen, made, changes = {}, compare.initial_state, []

    def initial_state(program, rank, *words):
        state = made(program, rank, *words)
        for change in changes:
            change(rank, state)
        seen[rank] = {name: x.clone() for name, x in state.items()}
        return state

    monkeypatch.setattr(compare, "initial_state", initial_state)
    return seen, changes


def test_padding_is_not_compared(first_values):
    report = verify_adagrad()
    assert not report.failures, describe_failure(report)
    pieces = [state[SUM] for state in first_values[0].values()]
    assert len(pieces) == 4 and sum(x.numel() for x in pieces) > 35 * 33 and all((x == 0.1).all() for x in pieces), "nothing is padded"


def test_what_is_beside_the_padding_is_compared(first_values):
    def change(rank, state):
        if rank == 3:
            state[SUM][0, 0] += 0.5

    first_values[1].append(change)
    assert SUM in describe_failure(verify_adagrad())
