"""One form for one meaning: rewrites ops that have several spellings, and opens what sharding wants to see inside.

In: one op call with its arguments by name (tensors as `Val`). Out: what the op returns, written with canonical ops. Invariant: equal to
the op to rounding. What is not listed here stays whole.
"""

from __future__ import annotations

import math
from math import prod

import torch

from .draft import Draft, Val, const

# -- creation ------------------------------------------------------------------------------------------------------------------------


def _filled(value: object | None, name: str = ""):
    def rule(b: Draft, a: dict) -> object:
        shape, dtype = b.specs[0]
        fill = a[name] if name else value
        if dtype == torch.bool:
            fill = bool(fill)
        return b.full(shape, fill, dtype)

    return rule


def _arange(b: Draft, a: dict) -> object:
    (n,), dtype = b.specs[0]
    args = {"start": a.get("start", 0), "end": a["end"], "step": a.get("step", 1)}
    return b.emit_one("aten.arange.start_step", {**args, "dtype": const(dtype)}, (n,), dtype)


def _fill_tensor(b: Draft, a: dict) -> object:
    return b.expand(b.cast(a["value"], a["self"].dtype), a["self"].shape)


def _copy(b: Draft, a: dict) -> object:
    return b.expand(b.cast(a["src"], a["self"].dtype), a["self"].shape)


def _identity(b: Draft, a: dict) -> object:
    return a["self"]


def _to_copy(b: Draft, a: dict) -> object:
    return b.cast(a["self"], b.specs[0][1])


# -- movement ------------------------------------------------------------------------------------------------------------------------


def _repeat(b: Draft, a: dict) -> object:
    x, reps = a["self"], list(a["repeats"])
    shape = [1] * (len(reps) - len(x.shape)) + list(x.shape)
    thin = b.view(x, tuple(s for size in shape for s in (1, size)))
    wide = b.expand(thin, tuple(s for r, size in zip(reps, shape) for s in (r, size)))
    return b.view(wide, tuple(r * s for r, s in zip(reps, shape)))


def _stack(b: Draft, a: dict) -> object:
    first = a["tensors"][0].shape
    dim = a["dim"] % (len(first) + 1)
    return b.call("aten.cat.default", [b.view(t, (*t.shape[:dim], 1, *t.shape[dim:])) for t in a["tensors"]], dim)


def _cat(b: Draft, a: dict) -> object:
    """Empty tensors of one dim, which torch skips whatever the others' shape (a cache that holds nothing yet), are left out."""
    tensors = [t for t in a["tensors"] if t.shape != (0,)] or a["tensors"][:1]
    if len(tensors) == 1:
        return b.cast(tensors[0], b.specs[0][1])
    return b.emit("aten.cat.default", {"tensors": tuple(tensors), **({"dim": a["dim"]} if a["dim"] else {})}, b.specs)[0]


def _index_select(b: Draft, a: dict) -> object:
    dim = a["dim"] % max(len(a["self"].shape), 1)
    return b.call("aten.index.Tensor", a["self"], [None] * dim + [a["index"]])


# -- pointwise -----------------------------------------------------------------------------------------------------------------------


def _tensor_form(op: str):
    """`add.Scalar` -> `add.Tensor`."""

    def rule(b: Draft, a: dict) -> object:
        if a.get("alpha", 1) != 1:
            return b.call(op, a["self"], a["other"], alpha=a["alpha"])
        return b.call(op, a["self"], a["other"])

    return rule


def _rsub(b: Draft, a: dict) -> object:
    minus = b.call("aten.neg.default", a["self"]) if a["alpha"] == 1 else b.mul(a["self"], -a["alpha"])
    return b.add(minus, a["other"])


def _lerp(b: Draft, a: dict) -> object:
    """From the end that is nearer, as torch does it (ATen/native/Lerp.h); by a weight for each element it stays whole."""
    if isinstance(a["weight"], Val):
        return b.keep("aten.lerp.Tensor", a)
    step = b.sub(a["end"], a["self"])
    if abs(a["weight"]) < 0.5:
        return b.call("aten.add.Tensor", a["self"], step, alpha=a["weight"])
    return b.call("aten.sub.Tensor", a["end"], step, alpha=1 - a["weight"])


def _scalar_like(b: Draft, value: object, x: Val) -> Val:
    return b.full((), value, x.dtype) if not isinstance(value, Val) else b.cast(value, x.dtype)


def _masked_fill(b: Draft, a: dict) -> object:
    return b.call("aten.where.self", a["mask"], _scalar_like(b, a["value"], a["self"]), a["self"])


def _index_put(b: Draft, a: dict) -> object:
    """One number where a mask says so is `where`, whose places need not be counted; all else stays whole."""
    x, value, masks = a["self"], a["values"], [index for index in a["indices"] if index is not None]
    if len(masks) != 1 or masks[0].dtype != torch.bool or value.shape or a["accumulate"]:
        return b.keep("aten.index_put.default", a)
    before = a["indices"].index(masks[0])
    mask = b.view(masks[0], (1,) * before + masks[0].shape + (1,) * (len(x.shape) - before - len(masks[0].shape)))
    return b.call("aten.where.self", mask, b.cast(value, x.dtype), x)


def _where_scalar(b: Draft, a: dict) -> object:
    dtype = b.specs[0][1]
    x, y = (v if isinstance(v, Val) else b.full((), v, dtype) for v in (a["self"], a["other"]))
    return b.call("aten.where.self", a["condition"], b.cast(x, dtype), b.cast(y, dtype))


def _clamp(b: Draft, a: dict) -> object:
    low, high, x = a.get("min"), a.get("max"), a["self"]
    if isinstance(low, Val) or isinstance(high, Val):
        if low is not None:
            x = b.call("aten.maximum.default", x, _scalar_like(b, low, x))
        if high is not None:
            x = b.call("aten.minimum.default", x, _scalar_like(b, high, x))
        return x
    return b.call("aten.clamp.default", x, low, high)


def _pow(b: Draft, a: dict) -> object:
    """A first power is the number itself: autograd leaves it of a square's gradient."""
    x, exponent = a["self"], a["exponent"]
    return x if exponent == 1 and x.dtype == b.specs[0][1] else b.call("aten.pow.Tensor_Scalar", x, exponent)


def _square(b: Draft, a: dict) -> object:
    return b.call("aten.pow.Tensor_Scalar", a["self"], 2)


def _log_sigmoid(b: Draft, a: dict) -> object:
    """One number for one. What torch's own op leaves beside it on a CPU, exp(-|x|), nobody reads but its own gradient (on a GPU it leaves nothing)."""
    x = a["self"]
    beside = b.specs[1][0]
    decay = b.call("aten.exp.default", b.call("aten.neg.default", b.call("aten.abs.default", x))) if beside == x.shape else b.full(beside, 0, x.dtype)
    return [b.call("aten.log_sigmoid.default", x), decay]


def _log_sigmoid_backward(b: Draft, a: dict) -> object:
    return b.mul(a["grad_output"], b.call("aten.sigmoid.default", b.call("aten.neg.default", a["self"])))


def _floor_divide(b: Draft, a: dict) -> object:
    return b.call("aten.div.Tensor_mode", a["self"], a["other"], rounding_mode="floor")


# -- reductions ----------------------------------------------------------------------------------------------------------------------


def list_dims(x: Val, dim: object) -> list[int]:
    """The dims that an argument `dim` names; nothing names all."""
    if dim is None or dim == [] or not x.shape:  # a scalar takes 0 and -1 as dims, too
        return list(range(len(x.shape)))
    return [d % len(x.shape) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]


def keep_dims(b: Draft, thin: Val, x: Val, dims: list[int], keepdim: bool) -> Val:
    """What was made over dims of `x`, with those as dims of size 1 where they are kept."""
    return b.view(thin, tuple(1 if k in dims else s for k, s in enumerate(x.shape))) if keepdim else thin


def _mean(b: Draft, a: dict) -> object:
    x, dims = a["self"], list_dims(a["self"], a.get("dim"))
    if a.get("dtype") is not None:
        x = b.cast(x, b.specs[0][1])
    scaled = b.mul(b.sum(x, dims), 1.0 / max(prod(x.shape[d] for d in dims), 1))
    return keep_dims(b, scaled, x, dims, a.get("keepdim", False))


def _moments(b: Draft, a: dict) -> tuple[Val, Val, list[int]]:
    x, dims = a["self"], list_dims(a["self"], a.get("dim"))
    n = prod(x.shape[d] for d in dims)
    correction = a.get("correction")
    correction = 1 if correction is None else correction
    mean = b.mul(b.sum(x, dims), 1.0 / n)
    centred = b.sub(x, keep_dims(b, mean, x, dims, True))
    square = b.sum(b.mul(centred, centred), dims)
    rest = n - correction
    return b.mul(square, 1.0 / rest if rest > 0 else math.nan), mean, dims


def _var(b: Draft, a: dict) -> object:
    var, _, dims = _moments(b, a)
    return keep_dims(b, var, a["self"], dims, a["keepdim"])


def _std(b: Draft, a: dict) -> object:
    var, _, dims = _moments(b, a)
    return keep_dims(b, b.call("aten.sqrt.default", var), a["self"], dims, a["keepdim"])


def _var_mean(b: Draft, a: dict) -> object:
    var, mean, dims = _moments(b, a)
    return [keep_dims(b, v, a["self"], dims, a["keepdim"]) for v in (var, mean)]


def _norm(b: Draft, a: dict) -> object:
    """Norms of any order: sums of powers, the largest or least magnitude, or the number of elements that are not zero."""
    x, order = a["self"], a.get("ord", a.get("p", 2))
    order = 2 if order is None else order
    dims = list_dims(x, a.get("dim"))
    if a.get("dtype") is not None:
        x = b.cast(x, b.specs[0][1])
    joined = _join_roots(b, x, order)
    if order == 2:
        thin = b.call("aten.sqrt.default", b.sum(b.mul(x, x) if joined is None else joined, dims))
    elif order == 1:
        thin = b.sum(b.call("aten.abs.default", x) if joined is None else joined, dims)
    elif order in (math.inf, -math.inf):
        thin = b.call("aten.amax.default" if order > 0 else "aten.amin.default", b.call("aten.abs.default", x) if joined is None else joined, dims)
    elif order == 0:
        thin = b.cast(b.sum(b.call("aten.ne.Scalar", x, 0), dims), b.specs[0][1])
    else:
        power = b.call("aten.pow.Tensor_Scalar", b.call("aten.abs.default", x), order) if joined is None else joined
        thin = b.call("aten.pow.Tensor_Scalar", b.sum(power, dims), 1.0 / order)
    return keep_dims(b, thin, x, dims, a.get("keepdim", False))


_ROOTS = {2: "aten.sqrt.default", 1: "aten.sum.dim_IntList", math.inf: "aten.amax.default", -math.inf: "aten.amin.default"}  # what a norm ends with


def _join_roots(b: Draft, x: Val, order: float) -> Val | None:
    """Of norms that were put together, what they are the roots of; None where they are not. A norm of norms is the norm of all (the clipping of gradients): summed as
    it is, each device adds up what it has, and all of it is reduced once."""
    if order == 0 or x.node is None or x.node.op != "aten.cat.default":
        return None
    args = dict(x.node.args)
    parts = [_under_root(part, order) for part in args["tensors"]]
    if any(part is None for part in parts):
        return None
    return b.call("aten.cat.default", [b.view(part, whole.shape) for part, whole in zip(parts, args["tensors"])], args.get("dim", 0))


def _under_root(x: Val, order: float) -> Val | None:
    """What a norm of this order is the root of, seen through views."""
    while x.node is not None and x.node.op == "aten.view.default":
        x = dict(x.node.args)["self"]
    if x.node is None or x.node.op != _ROOTS.get(order, "aten.pow.Tensor_Scalar"):
        return None
    args = dict(x.node.args)
    if order in (1, math.inf, -math.inf):  # the sum itself, of magnitudes
        return x if args["self"].node is not None and args["self"].node.op == "aten.abs.default" else None
    return args["self"] if (order == 2 or args["exponent"] == 1.0 / order) and _is_of_powers(args["self"], order) else None


def _is_of_powers(x: Val, order: float) -> bool:
    """Whether this is a sum of powers of magnitudes: a root of anything else may be no number, and a norm of that is none."""
    while x.node is not None and x.node.op in ("aten.view.default", "aten.sum.dim_IntList"):
        x = dict(x.node.args)["self"]
    args = dict(x.node.args) if x.node is not None else {}
    if x.node is not None and x.node.op == "aten.cat.default":
        return all(_is_of_powers(part, order) for part in args["tensors"])
    if order == 2:
        return x.node is not None and x.node.op == "aten.mul.Tensor" and args["self"] is args["other"]
    base = args["self"].node if x.node is not None and x.node.op == "aten.pow.Tensor_Scalar" and args["exponent"] == order else None
    return base is not None and base.op == "aten.abs.default"


def _all_dims(op: str):
    def rule(b: Draft, a: dict) -> object:
        return b.call(op, a["self"], list(range(len(a["self"].shape))))

    return rule


def _any_all(kind: str):
    """`all` is the minimum, `any` the maximum; kept as one op over all dims."""

    def rule(b: Draft, a: dict) -> object:
        return b.call(f"aten.{kind}.dims", a["self"], list_dims(a["self"], a.get("dim")), a.get("keepdim", False))

    return rule


def _select_backward(b: Draft, a: dict) -> object:
    """The gradient of the only entry of a dim is a view."""
    sizes = tuple(a["input_sizes"])
    if sizes[a["dim"]] == 1:
        return b.view(a["grad_output"], sizes)
    return b.call("aten.select_backward.default", a["grad_output"], sizes, a["dim"], a["index"])


RULES = {
    **{f"aten.{n}": _filled(0) for n in (
        "zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default", "new_empty.default",
        "empty_strided.default", "new_empty_strided.default", "zero.default")},
    **{f"aten.{n}": _filled(1) for n in ("ones.default", "ones_like.default", "new_ones.default")},
    **{f"aten.{n}": _filled(None, "fill_value") for n in ("full.default", "full_like.default", "new_full.default")},
    "aten.scalar_tensor.default": _filled(None, "s"), "aten.fill.Scalar": _filled(None, "value"),
    "aten.fill.Tensor": _fill_tensor, "aten.copy.default": _copy,
    **{f"aten.arange.{n}": _arange for n in ("default", "start", "start_step")},
    "aten.clone.default": _identity, "aten.positive.default": _identity,
    **{f"aten.{n}": _to_copy for n in ("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other")},  # torch 2.11 leaves `to` in its attention
    "aten.repeat.default": _repeat, "aten.stack.default": _stack, "aten.cat.default": _cat,
    "aten.index_select.default": _index_select, "aten.select_backward.default": _select_backward,
    "aten.add.Scalar": _tensor_form("aten.add.Tensor"), "aten.sub.Scalar": _tensor_form("aten.sub.Tensor"),
    "aten.mul.Scalar": _tensor_form("aten.mul.Tensor"), "aten.div.Scalar": _tensor_form("aten.div.Tensor"),
    "aten.true_divide.Tensor": _tensor_form("aten.div.Tensor"),
    "aten.rsub.Scalar": _rsub, "aten.rsub.Tensor": _rsub, "aten.lerp.Scalar": _lerp, "aten.lerp.Tensor": _lerp,
    "aten.masked_fill.Scalar": _masked_fill, "aten.masked_fill.Tensor": _masked_fill, "aten.index_put.default": _index_put,
    **{f"aten.where.{n}": _where_scalar for n in ("Scalar", "ScalarSelf", "ScalarOther", "self")},
    **{f"aten.{n}": _clamp for n in (
        "clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default", "clamp_min.Tensor", "clamp_max.Tensor")},
    "aten.square.default": _square, "aten.pow.Tensor_Scalar": _pow, "aten.floor_divide.default": _floor_divide,
    "aten.log_sigmoid_forward.default": _log_sigmoid, "aten.log_sigmoid_backward.default": _log_sigmoid_backward,
    "aten.mean.default": _mean, "aten.mean.dim": _mean, "aten.var.correction": _var, "aten.std.correction": _std,
    "aten.var_mean.correction": _var_mean,
    **{f"aten.{n}": _norm for n in ("linalg_vector_norm.default", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype",
                                    "norm.ScalarOpt_dim_dtype")},
    "aten.max.default": _all_dims("aten.amax.default"), "aten.min.default": _all_dims("aten.amin.default"),
    **{f"aten.{k}.{n}": _any_all(k) for k in ("any", "all") for n in ("default", "dim", "dims")},
}  # fmt: skip
