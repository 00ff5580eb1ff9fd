"""What depends on dtypes in kernels: numbers beside halves and whole numbers, operands of several dtypes, ops of floats on whole numbers."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest

torch = pytest.importorskip("torch")

from autopar.codegen.kernels.literals import TYPES, as_kept, common_dtype, number_text  # noqa: E402

from .dtype_numbers import HALVES, OUTSIDE, mixed_cases, number_cases, step_cases, whole_cases  # noqa: E402
from .interpreter import read_numbers  # noqa: E402
from .reduction_numbers import WHOLE  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def numbers():
    """What is not torch's own, of one process with Triton's interpreter."""
    return read_numbers("dtype_numbers")


@pytest.mark.parametrize(("family", "count"), [("number", 75), ("mixed", 200), ("whole", 6), ("step", 7)])
def test_results_are_torch_s_own(numbers, family, count):
    """Halves and whole numbers compared with numbers that they have and have not, and with each other; whole numbers that go around; signs and steps of whole numbers, and bools added up; steps
    of halves as they are rounded, and extremes over dims of one element."""
    rows = [row for row in numbers if row["family"] == family]
    assert len(rows) >= count and not [row for row in rows if row["wrong"]]


def test_numbers_are_kept_as_torch_keeps_them():
    for dtype, number in itertools.product(HALVES, (0.1, -0.7, 257, 1e-8, 65519.999, 65520.0, -7e4, 3.39e38, 3.3961775e38, 3.3962e38, math.inf)):
        assert as_kept(number, dtype) == torch.tensor(number, dtype=torch.float64).to(getattr(torch, dtype)).item(), (dtype, number)
    for dtype, number in itertools.product(WHOLE[:-1], (*OUTSIDE[:-1], -(2**40), 2**62)):
        assert as_kept(number, dtype) == torch.tensor(number).to(getattr(torch, dtype)).item(), (dtype, number)
    assert (as_kept(0.1, "float32"), number_text(-100, "uint8"), number_text(2**40, "int32"), number_text(300, "float32")) == (0.1, "156", "0", "300.0")


def test_operands_have_torch_s_common_dtype():
    for (one, other), shapes in itertools.product(itertools.product(TYPES, repeat=2), itertools.product(((3,), ()), repeat=2)):
        found = [(dtype, shape) for dtype, shape in zip((one, other), shapes)]
        x, y = (torch.zeros(shape, dtype=getattr(torch, dtype)) for dtype, shape in found)
        assert common_dtype([d for d, s in found if s], [d for d, s in found if not s], ()) == str(torch.result_type(x, y))[6:], found
        for number in (2, 0.5):
            assert common_dtype([one], [], [number]) == str(torch.result_type(torch.zeros(3, dtype=getattr(torch, one)), number))[6:], (one, number)


def test_they_compile():
    """Numbers that a dtype has not, operands of several, steps of halves."""
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    from benchmarks.kernel_compile import compile_kernels

    wanted = ("uint8 compared with -100", "int8 with 300", "uint8 within {'min': -1}", "bfloat16 compared with 0.1", "uint8 beside int8 of 1 dims", "bfloat16 beside int64 of 1 dims", "signs and steps of int64", "steps of a product", "amax of one that is cast")
    found = {what: kernel for what, kernel, _ in itertools.chain(number_cases(), mixed_cases(), whole_cases(), step_cases())}
    assert len(compile_kernels([found[what] for what in wanted], [90])) == len(wanted)
