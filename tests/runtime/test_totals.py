"""What launches have left in parts, put together for one number of all."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from autopar.runtime.totals import Share, gather_parts, runs_triton  # noqa: E402


def _shares(*sizes: int) -> list[Share]:
    """What a launch has left of parameters that had so many programs."""
    bounds = [0, *(sum(sizes[: k + 1]) for k in range(len(sizes)))]
    buffer = torch.arange(bounds[-1], dtype=torch.float32)
    return [Share(buffer, bounds, number) for number in range(len(sizes))]


def test_all_parts_of_one_launch_are_its_buffer():
    """In whatever order the parameters are asked for: they were left in one order, and are added up in that."""
    shares = _shares(3, 1, 0, 2)
    assert gather_parts(shares[::-1], torch.float32) is shares[0].buffer
    assert runs_triton(shares) and not runs_triton([torch.zeros(())])


def test_some_parameters_of_a_launch_have_their_own_parts():
    shares = _shares(3, 1, 2)
    assert gather_parts([shares[2], shares[0]], torch.float32).tolist() == [4, 5, 0, 1, 2]


def test_parts_of_several_launches_and_numbers_lie_in_one_row():
    first, second = _shares(2, 1), _shares(1, 2)
    numbers = [second[0], torch.tensor(7.0), *first, torch.tensor(8.0), second[1]]
    assert gather_parts(numbers, torch.float32).tolist() == [0, 1, 2, 0, 1, 2, 7, 8]


def test_numbers_that_are_no_parts_come_as_parts_do():
    found = gather_parts([torch.tensor(True), torch.tensor(False)], torch.int32)
    assert found.dtype == torch.int32 and found.tolist() == [1, 0]
