"""What counts as a difference: imaginary parts do, NaN on both sides is no comparison."""

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import InputError  # noqa: E402
from autopar.verify.findings import Findings  # noqa: E402

pytestmark = pytest.mark.torch
NAN = float("nan")


def test_a_wrong_imaginary_part_is_a_failure():
    found = Findings()
    found.note("gradient", "weight", 1, torch.tensor([1 + 2j]), torch.tensor([1 + 3j]))
    (row,) = found.differences()
    assert row.absolute == 1.0 and row.relative > 0.1


def test_nan_on_both_sides_is_told_and_not_called_a_difference():
    with pytest.raises(InputError) as error:
        Findings().note("gradient", "weight", 2, torch.tensor([1.0, NAN, 2.0]), torch.tensor([1.0, NAN, 2.0]))
    assert str(error.value).startswith("step 2: gradient weight is NaN in 1 of 3 places, in plain PyTorch as in the program, so there is nothing to compare")


@pytest.mark.parametrize(("ours", "theirs"), [([NAN, 1.0], [1.0, 1.0]), ([1.0, 1.0], [NAN, 1.0]), ([1.0, NAN], [NAN, 1.0])])
def test_nan_on_one_side_is_a_failure(ours, theirs):
    found = Findings()
    found.note("loss", "loss on rank 0", 1, torch.tensor(ours), torch.tensor(theirs))
    (row,) = found.differences()
    assert row.relative == float("inf")
