"""Pointwise functions of kernels: each beside torch, element by element, from 1e-30 to 1e30, at infinity and where there is no number; and their compilation for a GPU."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from autopar.codegen.kernels.pointwise import pointwise_text  # noqa: E402

from .interpreter import read_numbers  # noqa: E402
from .pointwise_numbers import cases, draw  # noqa: E402

pytestmark = pytest.mark.torch

CASES = cases([])


@pytest.fixture(scope="module")
def numbers():
    """What is wrong of each function, of one process with Triton's interpreter."""
    found: dict = {}
    for row in read_numbers("pointwise_numbers"):
        found.setdefault((row["op"], row["options"]), {})[row["dtype"]] = row["wrong"]
    return found


@pytest.mark.parametrize(("op", "options"), CASES, ids=[" ".join([op, *(f"{key}={value}" for key, value in options.items())]) for op, options in CASES])
def test_every_element_is_torch_s(numbers, op, options):
    assert numbers[op, str(options)] == {"float32": [], "float64": []}


@pytest.mark.parametrize("exponent", [float("inf"), float("nan")])
def test_no_power_is_a_number(exponent):
    """Such exponents have no text of their own, and torch's run; other exponents have."""
    assert pointwise_text("aten.pow.Tensor_Scalar", {"self": "x"}, {"exponent": exponent}, "float32") is None
    assert pointwise_text("aten.pow.Tensor_Scalar", {"self": "x"}, {"exponent": 0}, "int64") == "tl.zeros_like(x) + 1"


@pytest.mark.parametrize("arch", [80, 90])
def test_functions_compile_without_a_gpu(arch):
    """Those that are more than an operator."""
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    from benchmarks.kernel_compile import compile_kernels

    wanted = ("tanh", "mish", "mish_backward", "erfc", "logaddexp", "hypot", "pow", "maximum", "clamp", "gelu", "gelu_backward", "softplus", "asin", "acos", "atan2", "asinh", "acosh", "atanh", "signbit", "copysign", "nan_to_num", "logit", "__rshift__", "round") if arch == 90 else ("tanh", "erfc", "pow", "maximum")
    kernels = []
    for number, (op, options) in enumerate(cases(list(wanted))):
        for dtype in ("float32", "float64") if arch == 90 else ("float32",):
            kernel, _ = draw(op, options, dtype)
            kernels.append(type(kernel)(f"{kernel.name}_{number}_{dtype}", kernel.graph, (), False, ()))
    assert len(compile_kernels(kernels, [arch])) == len(kernels)
