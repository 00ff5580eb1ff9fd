"""Random ops as arithmetic on `autopar.uniform`, numbers of U[0, 1) that are a function of a counter and of where each element is.

In: one op that draws, with its arguments by name. Out: what it returns. The counter is a state of the step (`RANDOM_STATE`) that every
draw moves on by one, so the order of the draws decides and no plan does. The rules are written against `Draft` and run on real tensors
as well (`autopar.verify.draws`), which is how plain PyTorch is given the same numbers. Ops whose number of draws depends on data (gamma,
binomial) are refused.

Invariant: the distribution is the op's own, up to the steps of U: 2^-53 in float64, 2^-24 in float32. Whole numbers below n come from
float64, so no number's probability is off by more than 2^-53.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .draft import Draft, Shape, Val, const
from .norms import Effects

_WIDE = {torch.float64: torch.float64}  # everything narrower is drawn in float32
_STEP = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}


def draw(b: Draft, shape: Shape, dtype: torch.dtype) -> Val:
    """U[0, 1) of this shape; moves the counter on."""
    coords = tuple(b.positions(n, f"{dim} of {len(shape)}") for dim, n in enumerate(shape))
    args = {"seed": b.next_count(), "coords": coords, "size": tuple(shape), "dtype": const(dtype)}
    return b.emit_one("autopar.uniform", args, tuple(shape), dtype)


def _draw_for(b: Draft, shape: Shape, dtype: torch.dtype) -> Val:
    return draw(b, shape, _WIDE.get(dtype, torch.float32))


def _standard_normal(b: Draft, shape: Shape, dtype: torch.dtype) -> Val:
    """By inversion: sqrt(2) erfinv(2u - 1); u = 0 counts as half a step."""
    u = _draw_for(b, shape, dtype)
    signed = b.call("aten.clamp.default", b.sub(b.mul(u, 2.0), 1.0), _STEP[u.dtype] - 1.0)
    return b.mul(b.call("aten.erfinv.default", signed), math.sqrt(2.0))


def _standard_exponential(b: Draft, shape: Shape, dtype: torch.dtype) -> Val:
    """-log(1 - u), never zero: u = 0 counts as half a step."""
    u = _draw_for(b, shape, dtype)
    positive = b.call("aten.clamp.default", u, _STEP[u.dtype] / 2)
    return b.call("aten.neg.default", b.call("aten.log1p.default", b.call("aten.neg.default", positive)))


def _whole_numbers(b: Draft, shape: Shape, dtype: torch.dtype, low: int, high: int) -> Val:
    floor = b.call("aten.floor.default", b.mul(draw(b, shape, torch.float64), float(high - low)))
    return b.cast(b.add(floor, low) if dtype.is_floating_point else b.add(b.cast(floor, torch.int64), low), dtype)


# -- rules -----------------------------------------------------------------------------------------------------------------------------


def _uniform(b: Draft, a: dict) -> object:
    (shape, dtype), low, high = b.specs[0], a.get("from", 0.0), a.get("to", 1.0)
    u = b.cast(_draw_for(b, shape, dtype), dtype)
    return u if (low, high) == (0.0, 1.0) else b.add(b.mul(u, high - low), low)


def _normal(b: Draft, a: dict) -> object:
    shape, dtype = b.specs[0]
    z = b.cast(_standard_normal(b, shape, dtype), dtype)
    mean, std = a.get("mean", 0.0), a.get("std", 1.0)
    z = z if isinstance(std, float) and std == 1.0 else b.mul(z, std)
    return z if isinstance(mean, float) and mean == 0.0 else b.add(z, mean)


def _log_normal(b: Draft, a: dict) -> object:
    return b.call("aten.exp.default", _normal(b, a))


def _exponential(b: Draft, a: dict) -> object:
    shape, dtype = b.specs[0]
    return b.cast(b.mul(_standard_exponential(b, shape, dtype), 1.0 / a["lambd"]), dtype)


def _cauchy(b: Draft, a: dict) -> object:
    shape, dtype = b.specs[0]
    angle = b.mul(b.sub(_draw_for(b, shape, dtype), 0.5), math.pi)
    return b.cast(b.add(b.mul(b.call("aten.tan.default", angle), a["sigma"]), a["median"]), dtype)


def _geometric(b: Draft, a: dict) -> object:
    shape, dtype = b.specs[0]
    trials = b.mul(_standard_exponential(b, shape, torch.float64), -1.0 / math.log1p(-a["p"]) if a["p"] < 1 else 0.0)
    return b.cast(b.call("aten.clamp.default", b.call("aten.ceil.default", trials), 1.0), dtype)


def _bernoulli(b: Draft, a: dict) -> object:
    """1 where u < p."""
    (shape, dtype), p = b.specs[0], a.get("p", a["self"])
    if isinstance(p, (int, float)):
        return b.cast(b.call("aten.lt.Scalar", draw(b, shape, torch.float32), p), dtype)
    u = _draw_for(b, shape, p.dtype)
    return b.cast(b.call("aten.lt.Tensor", u, b.expand(b.cast(p, u.dtype), shape)), dtype)


def _randint(b: Draft, a: dict) -> object:
    shape, dtype = b.specs[0]
    return _whole_numbers(b, shape, dtype, a.get("low", 0), a["high"])


def _random(b: Draft, a: dict) -> object:
    """Up to what the dtype holds exactly, where no end is given."""
    shape, dtype = b.specs[0]
    most = round(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max
    high = a.get("to")
    return _whole_numbers(b, shape, dtype, a.get("from", 0), most if high is None else high)


def _randperm(b: Draft, a: dict) -> object:
    (n,), dtype = b.specs[0]
    return b.cast(b.call("aten.sort.default", draw(b, (n,), torch.float64))[1], dtype)


def _multinomial(b: Draft, a: dict) -> object:
    """With replacement by inversion; without, the first to arrive of exponential clocks with these rates."""
    (shape, _), p = b.specs[0], a["self"]
    if not a.get("replacement", False):
        race = b.div(p, _standard_exponential(b, p.shape, p.dtype))
        return b.call("aten.topk.default", race, a["num_samples"], -1)[1]
    total = b.call("aten.cumsum.default", p, -1)
    end = b.call("aten.slice.Tensor", total, -1, p.shape[-1] - 1, p.shape[-1])
    u = b.mul(b.cast(_draw_for(b, shape, p.dtype), p.dtype), end)
    found = b.call("aten.searchsorted.Tensor", total, u, right=True)
    return b.call("aten.clamp.default", found, None, p.shape[-1] - 1)


def _poisson(b: Draft, a: dict) -> object:
    rate = a["self"]
    return b.emit_one("autopar.poisson", {"uniform": draw(b, rate.shape, torch.float64), "rate": rate}, rate.shape, rate.dtype)


def _native_dropout(b: Draft, a: dict) -> object:
    x, p = a["input"], a["p"]
    if a["train"] is False or p == 0:
        return [x, b.full(x.shape, True, torch.bool)]
    kept = b.call("aten.lt.Scalar", draw(b, x.shape, torch.float32), 1.0 - p)
    return [b.mul(b.mul(x, kept), 1.0 / (1.0 - p) if p < 1 else 0.0), kept]


def _rrelu(b: Draft, a: dict) -> object:
    """Slopes of U[lower, upper) below zero; they are kept in `noise` for the backward pass."""
    x, low, high = a["self"], a["lower"], a["upper"]
    if not a["training"]:
        out = b.call("aten.leaky_relu.default", x, (low + high) / 2)
        return out if len(b.specs) == 1 else [out, a["noise"]]
    slope = b.add(b.mul(b.cast(_draw_for(b, x.shape, x.dtype), x.dtype), high - low), low)
    slope = b.call("aten.where.self", b.call("aten.le.Scalar", x, 0), slope, b.full((), 1, x.dtype))
    out = b.mul(x, slope)
    return Effects(out, {"noise": slope}) if len(b.specs) == 1 else [out, slope]


def _rrelu_backward(b: Draft, a: dict) -> object:
    low, high = a["lower"], a["upper"]
    if a["training"] and high - low > 1e-6:  # torch's own limit
        return b.mul(a["grad_output"], a["noise"])
    return b.call("aten.leaky_relu_backward.default", a["grad_output"], a["self"], (low + high) / 2, a["self_is_result"])


DRAWS: dict[str, Callable[[Draft, dict], object]] = {
    **{f"aten.{n}": _uniform for n in ("rand.default", "rand.generator", "rand_like.default", "rand_like.generator", "uniform.default")},
    **{f"aten.{n}": _normal for n in (
        "randn.default", "randn.generator", "randn_like.default", "randn_like.generator", "normal_functional.default",
        "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "normal.float_float")},
    "aten.log_normal.default": _log_normal, "aten.exponential.default": _exponential, "aten.cauchy.default": _cauchy,
    "aten.geometric.default": _geometric,
    **{f"aten.bernoulli.{n}": _bernoulli for n in ("default", "p", "Tensor")},
    **{f"aten.randint.{n}": _randint for n in ("default", "generator", "low", "low_generator")},
    **{f"aten.randint_like.{n}": _randint for n in ("default", "generator", "low_dtype", "low_generator_dtype")},
    **{f"aten.random.{n}": _random for n in ("default", "from", "to")},
    "aten.randperm.default": _randperm, "aten.randperm.generator": _randperm,
    "aten.multinomial.default": _multinomial, "aten.poisson.default": _poisson, "aten.native_dropout.default": _native_dropout,
    "aten.rrelu_with_noise.default": _rrelu, "aten.rrelu_with_noise_functional.default": _rrelu,
}  # fmt: skip


# -- dropout as people write it: x * (kept / (1 - p)) ----------------------------------------------------------------------------------


def _kept(x: object) -> tuple[Val, float] | None:
    """(mask, factor) where `x` is a mask of draws as numbers, or that over a number."""
    factor = 1.0
    if isinstance(x, Val) and x.node is not None and x.node.op == "aten.div.Tensor":
        args = dict(x.node.args)
        if not isinstance(args["other"], (int, float)) or not args["other"]:
            return None
        x, factor = args["self"], 1.0 / args["other"]
    if not isinstance(x, Val) or x.node is None or x.node.op != "aten._to_copy.default":
        return None
    mask = dict(x.node.args)["self"]
    compare = mask.node
    if mask.dtype != torch.bool or compare is None or compare.op != "aten.lt.Scalar":
        return None
    source = dict(compare.args)["self"].node
    return (mask, factor) if source is not None and source.op == "autopar.uniform" else None


def _mul(b: Draft, a: dict) -> object:
    """Multiplying by a dropout's noise keeps its mask, one byte for an element, instead of the noise."""
    for noise, x in ((a["other"], a["self"]), (a["self"], a["other"])):
        found = _kept(noise)
        if found is not None and isinstance(x, Val) and x.dtype == noise.dtype and _kept(x) is None:
            mask, factor = found
            kept = b.call("aten.mul.Tensor", x, mask)
            return kept if factor == 1.0 else b.mul(kept, factor)
    if isinstance(a["self"], Val) and isinstance(a["other"], Val) and a["self"].dtype != a["other"].dtype:
        return b.call("aten.mul.Tensor", a["self"], a["other"])
    return b.emit_one("aten.mul.Tensor", {"self": a["self"], "other": a["other"]}, *b.specs[0])


RANDOM_RULES: dict[str, Callable[[Draft, dict], object]] = {
    **DRAWS, "aten.rrelu_with_noise_backward.default": _rrelu_backward, "aten.mul.Tensor": _mul,
}  # fmt: skip
