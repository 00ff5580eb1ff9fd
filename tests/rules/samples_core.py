"""Samples of pointwise ops, matrix products, reductions and creation.

Numbers are signed with zeros and one large value; sizes are odd multiples (6, 9, 12, 5, 7) and sometimes equal to the mesh's, so that a
shard has size one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import torch

from autopar.graph.rules import pointwise

from .referee import Sample, make_sample

F64 = torch.float64


def numbers(*shape: int, seed: str = "", kind: str = "real") -> torch.Tensor:
    """Deterministic data: `real` signed with zeros and a large value, `unit` within (-1, 1), `positive`, `int`, `bool`."""
    rng = torch.Generator().manual_seed(zlib.crc32(f"{shape} {seed} {kind}".encode()))
    x = torch.randn(shape, generator=rng, dtype=F64)
    if kind == "int":
        return (x * 5).round().to(torch.int64)
    if kind == "bool":
        return x > 0
    if kind == "unit":
        return x.clamp(-2, 2) / 2.5
    if kind == "positive":
        return x.abs() + 0.5
    flat = x.view(-1)
    if flat.numel() > 4:
        flat[1], flat[-2] = 0.0, 300.0
    return x


def below(limit: int, *shape: int, seed: str = "") -> torch.Tensor:
    """Deterministic indices in [0, limit)."""
    rng = torch.Generator().manual_seed(zlib.crc32(f"{limit} {shape} {seed}".encode()))
    return torch.randint(0, limit, shape, generator=rng)


# domain, and the arguments after the first, of pointwise ops that are not simply op(x)
UNIT = "acos asin atanh erfinv logit special_ndtri".split()
POSITIVE = "acosh log log10 log1p log2 rsqrt sqrt digamma lgamma pow special_entr special_log_ndtr".split()
TWO = """atan2 copysign floor_divide fmax fmin fmod heaviside hypot logaddexp logaddexp2 remainder xlogy maximum minimum max.other
min.other""".split()
COMPARE = "eq ge gt le lt ne logical_and logical_or logical_xor".split()
INTEGER = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
EXTRA = {
    "clamp_max": (0.5,), "clamp_min": (-0.5,), "fill": (2.5,), "full_like": (1.5,), "leaky_relu": (0.1,), "rsub": (2.0,),
    "threshold": (0.2, -1.0), "gelu": (), "clamp": (-0.5, 0.5),
}  # fmt: skip


def pointwise_samples() -> Iterator[Sample]:
    x, y, wide = numbers(6, 9), numbers(6, 9, seed="y"), numbers(4, 6, 9)
    row = numbers(9, seed="row")
    column = torch.tensor([1.5, 2.0, -0.5, -3.0, 0.7, 1.0], dtype=F64).view(6, 1)
    for name in pointwise.NONLINEAR:
        if name == "heaviside":
            yield make_sample("aten.heaviside", below(3, 6, 9).to(F64) - 1, row)
        elif name in TWO:
            op = f"aten.{name}" if "." in name else f"aten.{name}.{'default' if name in NO_TENSOR else 'Tensor'}"
            yield make_sample(op, x, y)
            yield make_sample(op, wide, row, label="row")
            yield make_sample(op, x, column, label="column")
        elif name in COMPARE:
            op = f"aten.{name}.{'default' if name.startswith('logical') else 'Tensor'}"
            few, fewer = below(3, 6, 9) - 1, below(3, 9, seed="few") - 1
            yield make_sample(op, few.to(F64), fewer.to(F64))
            yield make_sample(op, below(3, 6, 1), fewer, label="outer")
        elif name in ("isfinite", "isinf", "isnan", "nan_to_num", "logical_not"):
            odd = torch.tensor([0.0, 1.0, -2.0, torch.inf, -torch.inf, torch.nan], dtype=F64)
            yield make_sample(f"aten.{name}", odd[below(6, 6, 9)])
        elif name in INTEGER:
            a, b = numbers(6, 9, kind="int"), numbers(9, kind="int")
            yield make_sample(f"aten.{name}.Tensor", a.abs() % 8, b.abs() % 4)
        elif name.startswith("where."):
            mask = numbers(6, 9, kind="bool")
            values = {"Scalar": (1.0, -2.0), "ScalarOther": (x, -1.0), "ScalarSelf": (2.0, row)}[name.removeprefix("where.")]
            yield make_sample(f"aten.{name}", mask, *values)
        elif name.startswith("div."):
            yield make_sample(f"aten.{name}", x, row if name == "div.Tensor_mode" else 0.7, rounding_mode="floor")
        elif name == "ldexp":
            yield make_sample("aten.ldexp.Tensor", x, numbers(9, kind="int"))
        elif name == "pow":
            p = numbers(6, 9, kind="positive")
            yield make_sample("aten.pow.Tensor_Scalar", x, 2)
            yield make_sample("aten.pow.Tensor_Tensor", p, row)
            yield make_sample("aten.pow.Scalar", 0.9, numbers(seed="step"))
        elif name == "_prelu_kernel":
            yield make_sample("aten._prelu_kernel", numbers(4, 6, 5), numbers(1, 6, 1))
        elif name == "copy":
            yield make_sample("aten.copy", x, row)
        elif name == "bitwise_not":
            yield make_sample("aten.bitwise_not", numbers(6, 9, kind="bool"))
        elif name == "rsub":
            yield make_sample("aten.rsub.Scalar", x, 2.0)
        elif name == "fill":
            yield make_sample("aten.fill.Scalar", x, 2.5)
            yield make_sample("aten.fill.Tensor", x, numbers(seed="fill"))
        else:
            kind = "unit" if name in UNIT else "positive" if name in POSITIVE else "real"
            shift = 1.0 if name == "acosh" else 0.0
            data = numbers(6, 9, kind=kind) + shift
            yield make_sample(f"aten.{name}", data, *EXTRA.get(name, ()), compare="shapes" if name == "empty_like" else "values")


NO_TENSOR = "atan2 fmax fmin heaviside hypot logaddexp logaddexp2 maximum minimum floor_divide".split()


def linear_pointwise_samples() -> Iterator[Sample]:
    x, y, wide = numbers(6, 9), numbers(6, 9, seed="y"), numbers(4, 6, 9)
    row, scalar = numbers(9, seed="row"), numbers(seed="scalar")
    mask = numbers(6, 9, kind="bool")
    for op in ("add", "sub", "mul", "div"):
        yield make_sample(f"aten.{op}.Tensor", x, y + (0.1 if op == "div" else 0))
        yield make_sample(f"aten.{op}.Tensor", wide, numbers(9, kind="positive"), label="row")
        yield make_sample(f"aten.{op}.Tensor", row, wide.abs() + 1, label="row first")
        yield make_sample(f"aten.{op}.Tensor", x, scalar, label="0-dim")
        yield make_sample(f"aten.{op}.Tensor", x, 0.7, label="number")
        yield make_sample(f"aten.{op}.Scalar", x, 0.7)
    yield make_sample("aten.add.Tensor", x, y, alpha=0.3, label="alpha")
    yield make_sample("aten.add.Tensor", numbers(6, kind="int"), numbers(6, kind="int", seed="b"), label="integers")
    yield make_sample("aten.mul.Tensor", numbers(6, 9, kind="int"), x, label="integer times real")
    yield make_sample("aten.mul.Tensor", numbers(2, 3), numbers(2, 3, seed="b"), label="shards of one")
    for op in ("neg", "clone", "deg2rad", "rad2deg"):
        yield make_sample(f"aten.{op}", x)
    yield make_sample("aten._to_copy", x, dtype=torch.float64)
    yield make_sample("aten._to_copy", numbers(6, kind="int"), dtype=F64, label="from integer")
    yield make_sample("aten._to_copy", x, dtype=torch.int64, label="to integer")
    yield make_sample("aten._to_copy", below(2, 6, 9).to(F64), dtype=torch.bool, label="to bool")
    yield make_sample("aten.where.self", mask, x, y)
    yield make_sample("aten.where.self", mask, x, scalar, label="0-dim")
    yield make_sample("aten.addcmul", x, y, row, value=0.3)
    yield make_sample("aten.addcdiv", x, y, numbers(6, 9, kind="positive"), value=-0.3)
    yield make_sample("aten.lerp.Scalar", x, y, 0.1)
    yield make_sample("aten.lerp.Tensor", x, y, scalar, label="tensor")
    yield make_sample("aten.masked_fill.Scalar", x, mask, 0.0, label="zero")
    yield make_sample("aten.masked_fill.Scalar", x, mask, -1.5)
    yield make_sample("aten.masked_fill.Tensor", x, mask, scalar)
    g, buffer = numbers(6, 9, seed="g"), numbers(6, 9, kind="unit")
    extra = {
        "elu_backward": (1.0, 1.0, 1.0, False, x), "gelu_backward": (x,), "hardsigmoid_backward": (4 * x,), "hardswish_backward": (x,),
        "hardtanh_backward": (x, -1.0, 1.0), "leaky_relu_backward": (x, 0.1, False),
        "mish_backward": (x,), "native_dropout_backward": (mask, 2.0), "sigmoid_backward": (buffer,),
        "silu_backward": (x,), "softplus_backward": (x, 1.0, 20.0), "softshrink_backward": (x, 0.5), "tanh_backward": (buffer,),
        "rrelu_with_noise_backward": (x, numbers(6, 9, seed="noise"), 0.1, 0.3, True, False),
        "threshold_backward": (x, 0.0), "logit_backward": (numbers(6, 9, kind="positive") / 9,),
    }  # fmt: skip
    for name in pointwise.BACKWARDS:
        if name == "_prelu_kernel_backward":
            big = numbers(4, 6, 5)
            yield make_sample("aten._prelu_kernel_backward", numbers(4, 6, 5, seed="g"), big, numbers(1, 6, 1))
        else:
            yield make_sample(f"aten.{name}", g, *extra[name])


def matmul_samples() -> Iterator[Sample]:
    a, b = numbers(6, 12), numbers(12, 9)
    yield make_sample("aten.mm", a, b)
    yield make_sample("aten.mm", numbers(5, 7), numbers(7, 2), label="odd")
    yield make_sample("aten.mm", numbers(6, 1), numbers(1, 9), label="outer product")
    yield make_sample("aten.bmm", numbers(4, 6, 12), numbers(4, 12, 9))
    for bias in ((9,), (6, 9), (1, 9)):
        yield make_sample("aten.addmm", numbers(*bias, seed="bias"), a, b, label=f"bias {bias}")
    yield make_sample("aten.addmm", numbers(9), a, b, beta=0.5, alpha=2.0, label="scaled")
    yield make_sample("aten.baddbmm", numbers(4, 6, 9), numbers(4, 6, 12), numbers(4, 12, 9))
    yield make_sample("aten.baddbmm", numbers(9), numbers(4, 6, 12), numbers(4, 12, 9), label="row")
    yield make_sample("aten.mv", a, numbers(12))
    for op in ("dot", "vdot"):
        yield make_sample(f"aten.{op}", numbers(12), numbers(12, seed="b"))
    for bias in ((6,), ()):
        yield make_sample("aten.addmv", numbers(*bias, seed="bias"), a, numbers(12), beta=0.5, label=f"bias {bias}")
    for bias in ((9,), (6, 9)):
        yield make_sample("aten.addbmm", numbers(*bias, seed="bias"), numbers(4, 6, 12), numbers(4, 12, 9), label=f"bias {bias}")
        yield make_sample("aten.addr", numbers(*bias, seed="bias"), numbers(6), numbers(9, seed="b"), alpha=0.5, label=f"bias {bias}")
        yield make_sample("aten._addmm_activation", numbers(9, seed="bias"), a, b, use_gelu=len(bias) == 2, label=f"bias {bias}")
    left, right, middle = numbers(6, 4), numbers(6, 9), numbers(8, 4, 9)  # nn.Bilinear
    yield make_sample("aten._trilinear", left, middle, right, [1, 3], [0], [1, 2], [2, 3])
    x, w, bias = numbers(2, 6, 12), numbers(9, 12), numbers(9)
    for flip in (False, True):
        weight = w.T.contiguous() if flip else w
        label = "transposed" if flip else "plain"
        yield make_sample("autopar.linear", x, weight, bias, flip, label=f"{label} bias")
        yield make_sample("autopar.linear", x, weight, transposed=flip, label=label)
        yield make_sample("autopar.linear_input_grad", numbers(2, 6, 9), weight, flip, label=label)
        yield make_sample("autopar.linear_weight_grad", numbers(2, 6, 9), x, flip, label=label)
    yield make_sample("autopar.linear", numbers(12), w, bias, label="vector")
    # _grouped_mm exists in bfloat16 only, so small integers keep it exact
    ends = torch.tensor([32, 64], dtype=torch.int32)

    def small(*shape: int) -> torch.Tensor:
        return below(3, *shape).to(torch.bfloat16) - 1

    yield make_sample("aten._grouped_mm", small(64, 64), small(2, 64, 64).transpose(1, 2), ends, label="2d 3d")
    yield make_sample("aten._grouped_mm", small(64, 64), small(64, 64).T, ends, label="2d 2d")
    yield make_sample("aten._grouped_mm", small(2, 64, 64), small(64, 64).T, ends, label="3d 2d")
    yield make_sample("aten._grouped_mm", small(4, 64, 64), small(4, 64, 64).transpose(1, 2), label="3d 3d")


def reduction_samples() -> Iterator[Sample]:
    x = numbers(4, 6, 9)
    for dims, keep in (([0], False), ([1, 2], True), ([-1], False), (None, False), ([], True)):
        yield make_sample("aten.sum.dim_IntList", x, dims, keep, label=f"{dims} {keep}")
    yield make_sample("aten.sum", x)
    yield make_sample("aten.sum", numbers(), label="scalar")
    yield make_sample("aten.sum.dim_IntList", numbers(6, 9, kind="bool"), [1], label="bool")
    yield make_sample("aten.sum.dim_IntList", x, [1], dtype=torch.int64, label="to integer")
    yield make_sample("aten.sum.dim_IntList", numbers(4, 0, 6), [2], label="empty")
    for op in ("amax", "amin"):
        yield make_sample(f"aten.{op}", x, [1])
        yield make_sample(f"aten.{op}", -x.abs() - 1, [0, -1], True, label="negative")
        yield make_sample(f"aten.{op}", x, label="all")
        yield make_sample(f"aten.{op}", numbers(4, 6, kind="int"), [1], label="integers")
    yield make_sample("aten.max", x)
    yield make_sample("aten.min", x)
    yield make_sample("aten.mean.dim", x, [1], True)
    yield make_sample("aten.mean", x)
    for op in ("max.dim", "min.dim"):
        yield make_sample(f"aten.{op}", x, 1)
        yield make_sample(f"aten.{op}", x, -1, True, label="keep")
    for op in ("argmax", "argmin"):
        yield make_sample(f"aten.{op}", x, 1)
        yield make_sample(f"aten.{op}", x, label="all")
    for op in ("any", "all"):
        rare = torch.zeros(12, 6, dtype=torch.bool)
        rare[4, 2] = True
        rows = rare.clone()
        rows[[0, 1, 3, 7, 10], 2] = True
        yield make_sample(f"aten.{op}", rare if op == "any" else ~rare)
        yield make_sample(f"aten.{op}.dims", rows if op == "any" else ~rows, [1], True)
        yield make_sample(f"aten.{op}.dim", rare if op == "any" else ~rare, 0, label="one dim")
    yield make_sample("aten.prod.dim_int", numbers(4, 6, kind="positive"), 1)
    yield make_sample("aten.prod", numbers(4, 6, kind="positive"))
    for op in ("var", "std", "var_mean", "std_mean"):
        yield make_sample(f"aten.{op}.correction", x, [1], correction=0, keepdim=True)
        yield make_sample(f"aten.{op}.correction", x, label="all")
    yield make_sample("aten.logsumexp", x, [1])
    yield make_sample("aten.linalg_vector_norm", x, 2, [1], True)
    yield make_sample("aten.linalg_vector_norm", x, label="all")
    yield make_sample("aten.norm.ScalarOpt_dim", x, 2, [1])
    yield make_sample("aten.norm.Scalar", x, 2)
    yield make_sample("aten.median.dim", x, 1)
    yield make_sample("aten.median", x)
    holes = x.where(below(5, 4, 6, 9) > 0, torch.nan)
    yield make_sample("aten.nanmedian.dim", holes, 1)
    yield make_sample("aten.nanmedian", holes)
    yield make_sample("aten.count_nonzero.dim_IntList", below(3, 4, 6, 9), [1])
    yield make_sample("aten.nansum", x.where(below(5, 4, 6, 9) > 0, torch.nan), [1])
    yield make_sample("aten.aminmax", x, dim=1)
    yield make_sample("aten.aminmax", x, label="all")
    yield make_sample("aten.kthvalue", x, 2, 1)
    yield make_sample("aten.kthvalue", x, 2, label="last")
    yield make_sample("aten.mode", numbers(4, 6, kind="int"), 1)
    yield make_sample("aten.mode", numbers(4, 6, kind="int"), label="last")
    for op in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
        yield make_sample(f"aten.{op}", x, 1)
    yield make_sample("aten.topk", x, 3, 1)
    yield make_sample("aten.topk", x, 2, label="last")
    yield make_sample("aten.sort", x, 1, True)
    yield make_sample("aten.sort.stable", x, stable=True, dim=0)
    yield make_sample("aten.argsort.stable", x, stable=True, dim=1)


def creation_samples() -> Iterator[Sample]:
    yield make_sample("aten.full", [6, 9], 1.5)
    yield make_sample("aten.full", [], 1.5, label="scalar")
    yield make_sample("aten.zeros", [4, 6])
    yield make_sample("aten.ones", [4, 6])
    yield make_sample("aten.empty.memory_format", [4, 6], compare="shapes")
    yield make_sample("aten.scalar_tensor", 2.0)
    x = numbers(6, 9)
    yield make_sample("aten.new_full", x, [4, 6], 2.0)
    yield make_sample("aten.new_zeros", x, [4, 6])
    yield make_sample("aten.new_ones", x, [4, 6])
    yield make_sample("aten.new_empty", x, [4, 6], compare="shapes")
    yield make_sample("aten.arange", 12)
    yield make_sample("autopar.row_numbers", 12)
    yield make_sample("aten.arange.start_step", 3, 24, 2)
    yield make_sample("aten.linspace", 0.0, 1.0, 12)
    yield make_sample("aten.logspace", 0.0, 1.0, 12)
    yield make_sample("aten.eye", 6)
    yield make_sample("aten.tril_indices", 4, 6)
    yield make_sample("aten.triu_indices", 4, 6)
