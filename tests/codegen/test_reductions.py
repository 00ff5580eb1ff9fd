"""Sums and extremes in kernels: whole numbers stay whole, what is no number is told, and an extreme is equal to something of its row."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from autopar.codegen.kernels.literals import identity_of  # noqa: E402
from autopar.codegen.kernels.parts import print_parts  # noqa: E402
from autopar.graph.node import Const  # noqa: E402

from .interpreter import read_numbers  # noqa: E402
from .reduction_numbers import chain  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def numbers():
    """Whether kernels have torch's own results, of one process with Triton's interpreter."""
    return read_numbers("reduction_numbers")


@pytest.mark.parametrize(("family", "count"), [("whole", 200), ("nan", 25), ("equal", 14), ("counting", 400), ("everything", 60)])
def test_results_are_torch_s_own(numbers, family, count):
    """Sums of whole numbers in 64 bits and extremes in their own type, along rows that a program holds or walks along, down columns and over everything; extremes of what is no number;
    which elements are as large as the largest, in one function, in parts and of two kernels; what is not 0, any, all and how many; extremes of everything by many programs."""
    rows = [row for row in numbers if row["family"] == family]
    assert len(rows) >= count and not [row for row in rows if not row["same"]]


def test_what_is_compared_with_its_own_extreme_is_handed_on():
    """Made again in another function it might be rounded otherwise, in float32, too: then no element were the largest."""
    given = {"x": torch.zeros(30, 24), "w": torch.zeros(24)}
    steps = ("y", "aten.mul.Tensor", {"self": "x", "other": "w"}), ("top", "aten.amax.default", {"self": "y", "dim": (0,)}), ("hit", "aten.eq.Tensor", {"self": "y", "other": "top"})
    more = ("hits", "aten.sum.dim_IntList", {"self": "hit", "dim": (0,)}), ("share", "aten.div.Tensor", {"self": "hit", "other": "hits"})
    first, *others = print_parts(chain("equal", given, *steps, *more))
    assert {"y", "top"} <= set(first.kernel.graph.outputs) and all({"y", "top"} <= set(part.kernel.graph.inputs) for part in others) and others
    apart = ("low", "aten.sub.Tensor", {"self": "y", "other": "top"}), ("lows", "aten.sum.dim_IntList", {"self": "low", "dim": (0,)}), ("share", "aten.div.Tensor", {"self": "low", "other": "lows"})
    assert all("y" not in part.kernel.graph.outputs for part in print_parts(chain("apart", given, *steps[:2], *apart))), "nothing asks whether they are equal"


def test_no_element_is_the_least_of_its_type():
    assert [identity_of(kind, "int8") for kind in ("sum", "max", "min", "peak")] == ["0", "-128", "127", "-128"]
    assert [identity_of("max", dtype) for dtype in ("bool", "uint8", "int64", "float32")] == ["0", "0", str(-(2**63)), 'float("-inf")']


@pytest.mark.parametrize("width", [13, 9001])
def test_reductions_of_all_types_compile(width):
    """What is asked of whole numbers alone (`//`, `&`, `~`) of a sum or an extreme of theirs; extremes of floats that tell of what is no number."""
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    from benchmarks.kernel_compile import compile_kernels

    kernels = []
    for dtype in ("int64", "int32", "uint8", "bool") if width == 13 else ("int64", "bool"):
        total, most = ("total", "aten.sum.dim_IntList", {"self": "x", "dim": (1,)}), ("most", "aten.amax.default", {"self": "x", "dim": (1,)})
        steps = ("half", "aten.div.Scalar_mode", {"self": "total", "other": 2, "rounding_mode": "floor"}), ("other", "aten.bitwise_not.default", {"self": "most"})
        kernels.append(chain(f"whole_{dtype}", {"x": torch.ones(6, width, dtype=getattr(torch, dtype))}, total, most, *steps, outputs=("half", "other")))
    for dtype in ("bfloat16", "float32", "float64"):
        extremes = [(f"most_{kind}", f"aten.{kind}.default", {"self": "y", "dim": (1,), "keepdim": True}) for kind in ("amax", "amin")]
        steps = ("y", "aten.mul.Scalar", {"self": "x", "other": 2.5}), *extremes, ("hit", "aten.ge.Tensor", {"self": "y", "other": "most_amax"})
        wide = ("total", "aten.sum.dim_IntList", {"self": "x", "dim": (1,), "dtype": Const("dtype", "torch.float64")})
        kernels.append(chain(f"floats_{dtype}", {"x": torch.ones(6, width, dtype=getattr(torch, dtype))}, *steps, wide, outputs=("most_amax", "most_amin", "hit", "total")))
    assert len(compile_kernels(kernels, [90])) == len(kernels)


@pytest.mark.parametrize("shape", [(7, 13), (3, 9001)])
def test_extremes_of_everything_compile(shape):
    """Beside results of all elements and sums, of a block or of rows that are walked along."""
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    from benchmarks.kernel_compile import compile_kernels

    kernels = []
    for dtype in ("bfloat16", "float32", "float64", "int64", "uint8"):
        steps = [("top", "aten.amax.default", {"self": "x", "dim": (0, 1)}), ("any", "aten.any.default", {"self": "x"}), ("few", "aten.count_nonzero.default", {"self": "x"}), ("made", "aten.mul.Tensor", {"self": "x", "other": "x"})]
        kernels.append(chain(f"everything_{dtype}", {"x": torch.ones(shape, dtype=getattr(torch, dtype))}, *steps, outputs=("top", "any", "few", "made")))
    assert {row.name for row in compile_kernels(kernels, [80, 90]) if "part" not in row.name} <= {k.name for k in kernels} and len(compile_kernels(kernels, [90])) >= len(kernels)


@pytest.mark.parametrize("arch", [80, 90])
def test_launches_that_add_up_parts_compile(arch):
    """For each kind and dtype of parts; on sm_90 they wait for the kernel before them."""
    triton = pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from autopar.runtime import fused, together

    for kind in ("sum", "max", "min"):
        for part, out in (("float32", "bf16"), ("float64", "fp64"), ("int64", "i64"), ("int32", "i1")):
            told = {"KIND": kind, "NONE": fused.identity_of(kind, getattr(torch, part))}
            pointers = {"part_ptr": f"*{ {'float32': 'fp32', 'float64': 'fp64', 'int64': 'i64', 'int32': 'i32'}[part]}", "sum_out": f"*{out}"}
            sizes = {"ROWS": 16, "COLS": 8, "WAITS": arch >= 90, **told}
            signature = {"part_ptr": pointers["part_ptr"], "sum_out": pointers["sum_out"], "count": "i32", "width": "i32", "pitch": "i32", **dict.fromkeys(sizes, "constexpr")}
            assert triton.compile(ASTSource(fn=fused.add_parts, signature=signature, constexprs=sizes), target=GPUTarget("cuda", arch, 32)).asm["cubin"]
            sizes = {"COLS": 1024, **told}
            signature = {"part_ptr": pointers["part_ptr"], "bounds_ptr": "*i64", "sum_out": pointers["sum_out"], **dict.fromkeys(sizes, "constexpr")}
            assert triton.compile(ASTSource(fn=together.add_up, signature=signature, constexprs=sizes), target=GPUTarget("cuda", arch, 32)).asm["cubin"]
