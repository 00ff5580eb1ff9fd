"""Batch norm opened into sums, so that a sharded batch gives the statistics of the whole batch (SyncBN).

    mean = sum(x) / n;  var = sum((x - mean)^2) / n;  y = (x - mean) / sqrt(var + eps) * w + b       n = elements per channel
    running <- (1 - m) running + m (mean, var n / (n - 1))
    dx = w invstd (dy - sum(dy) / n - xhat sum(dy xhat) / n);  dw = sum(dy xhat);  db = sum(dy)

Where microbatches have statistics of their own (`Draft.norm_turns` of them), the batch is so many groups, one after the other: all of the above for each
group, and the running statistics take the groups in turn, as a loop over microbatches does: `(1 - m)^T running + sum_k m (1 - m)^(T-1-k) mean_k`.

Sums go along what lies side by side in a channel first, and then over the batch: the first is a row's, and of one kernel with what makes its elements. What is in half precision is read and widened by each
pass anew: a kernel of a GPU then moves half as many bytes as for one that holds what another made in float32, and nothing is held.

Source: Ioffe and Szegedy, arXiv 1502.03167, section 3. Evaluation uses the running statistics, pointwise. Layer norm and group norm
stay whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import torch

from ...errors import MicrobatchError
from .draft import Draft, Val


@dataclass(frozen=True)
class Effects:
    """What a rule returns when the op also writes arguments in place: outputs, and the new value per argument name."""

    outs: object
    writes: dict[str, Val] = field(default_factory=dict)


_HALVES = (torch.bfloat16, torch.float16)


def _wide(b: Draft, x: Val) -> Val:
    """Half precision is summed in float32."""
    return b.cast(x, torch.float32) if x.dtype in _HALVES else x


def _by_each(make: Callable[[], Val], x: Val) -> Callable[[], Val]:
    """Gives whoever asks what is made of `x`: anew to each where `x` is in half precision, else the same to all."""
    if x.dtype in _HALVES:
        return make
    made = make()
    return lambda: made


def _sum(b: Draft, x: Val, dims: list[int]) -> Val:
    """Over a channel's elements of each sample, then over the samples."""
    return b.sum(b.sum(x, dims[1:]) if len(dims) > 1 else x, dims[:1])


def _groups(b: Draft, a: dict) -> int:
    """In how many groups of the batch statistics are taken."""
    if not a.get("training", a.get("train", True)):
        return 1
    b.has_norms = True
    return b.norm_turns


def _split(b: Draft, x: Val, groups: int) -> Val:
    """[N, C, ...] as [groups, N / groups, C, ...]."""
    if x.shape[0] % groups:
        raise MicrobatchError(f"batch norm at {b.source or b.path}: its batch of {x.shape[0]} does not divide by {groups} microbatches")
    if x.shape[0] // groups * prod(x.shape[2:]) == 1:
        raise MicrobatchError(
            f"batch norm at {b.source or b.path}: in {groups} microbatches each would take its statistics from one value per channel, and needs more (as PyTorch does); "
            "take fewer microbatches, or a larger batch"
        )
    return b.view(x, (groups, x.shape[0] // groups, *x.shape[1:]))


def _per_channel(b: Draft, v: Val, rank: int) -> Val:
    """[C] or [groups, C] beside [N, C, ...] or [groups, n, C, ...]."""
    return b.view(v, (*v.shape[:-1], 1, v.shape[-1], *[1] * (rank - 2)))


def _dims(x: Val, groups: int) -> tuple[list[int], int]:
    """What statistics sum over, and how many elements that are; of `x` as `_split` has it, where there are groups."""
    first = 0 if groups == 1 else 1
    dims = [first, *range(first + 2, len(x.shape))]
    return dims, prod(x.shape[d] for d in dims)


def _mixed(b: Draft, old: Val, new: Val, momentum: float, groups: int) -> Val:
    """The running statistic after this batch: the groups one after the other."""
    new = b.cast(new, old.dtype)
    if groups == 1:
        return b.add(b.mul(old, 1 - momentum), b.mul(new, momentum))
    later = b.add(b.mul(b.positions(groups, "turns of batch norm"), -1), groups - 1)  # groups after this one
    share = b.call("aten.pow.Scalar", 1 - momentum, b.cast(later, old.dtype))
    taken = b.sum(b.mul(b.mul(new, momentum), b.view(share, (groups, 1))), [0])
    return b.add(b.mul(old, (1 - momentum) ** groups), taken)


def rule_batch_norm(b: Draft, a: dict) -> object:
    """All forms of `native_batch_norm`; outputs (y, mean, invstd)."""
    x, rank, groups = a["input"], len(a["input"].shape), _groups(b, a)
    writes: dict[str, Val] = {}
    wide = _by_each(lambda: _wide(b, x) if groups == 1 else _split(b, _wide(b, x), groups), x)
    if a.get("training", True):
        first = wide()
        dims, n = _dims(first, groups)
        mean = b.mul(_sum(b, first, dims), 1.0 / n)
        centred = _by_each(lambda: b.sub(wide(), _per_channel(b, mean, rank)), x)
        spread = centred()
        var = b.mul(_sum(b, b.mul(spread, spread), dims), 1.0 / n)
        invstd = b.call("aten.rsqrt.default", b.add(var, a["eps"]))
        for name, new in (("running_mean", mean), ("running_var", b.mul(var, n / (n - 1)) if n > 1 else var)):
            old = a.get(name)
            if isinstance(old, Val):
                writes[name] = _mixed(b, old, new, a["momentum"], groups)
    else:
        mean, var = _wide(b, a["running_mean"]), _wide(b, a["running_var"])
        centred = _by_each(lambda: b.sub(wide(), _per_channel(b, mean, rank)), x)
        invstd = b.call("aten.rsqrt.default", b.add(var, a["eps"]))
    y = b.view(b.mul(centred(), _per_channel(b, invstd, rank)), x.shape)
    if a.get("weight") is not None:
        y = b.mul(y, _per_channel(b, _wide(b, a["weight"]), rank))
    if a.get("bias") is not None:
        y = b.add(y, _per_channel(b, _wide(b, a["bias"]), rank))
    y = b.cast(y, x.dtype)
    specs = b.specs
    saved = [mean, invstd]
    outs: list[object] = [y]
    for k, spec in enumerate(specs[1:]):
        if spec is None or spec[0] == (0,) or k >= 2:
            outs.append(b.full(spec[0], 0, spec[1]) if spec is not None else None)
        elif groups > 1:  # torch knows of no groups: what it takes for the saved statistics stands for them
            stand_in = b.full(spec[0], 0, spec[1])
            b.norm_saved[stand_in] = b.cast(saved[k], spec[1])
            outs.append(stand_in)
        else:
            outs.append(b.cast(saved[k], spec[1]))
    return Effects(outs, writes)


def rule_batch_norm_backward(b: Draft, a: dict) -> object:
    """Gradients of input, weight and bias."""
    mask, groups, rank = a["output_mask"], _groups(b, a), len(a["input"].shape)

    def of_each(name: str) -> Callable[[], Val]:
        return _by_each(lambda: _wide(b, a[name]) if groups == 1 else _split(b, _wide(b, a[name]), groups), a[name])

    dy, x = of_each("grad_out"), of_each("input")
    first = dy()
    dims, n = _dims(first, groups)
    if a["train"]:
        mean, invstd = (b.norm_saved.get(a[name], a[name]) for name in ("save_mean", "save_invstd"))
    else:
        mean = _wide(b, a["running_mean"])
        invstd = b.call("aten.rsqrt.default", b.add(_wide(b, a["running_var"]), a["eps"]))
    xhat = _by_each(lambda: b.mul(b.sub(x(), _per_channel(b, mean, rank)), _per_channel(b, invstd, rank)), a["input"])
    sum_dy = _sum(b, first, dims)
    sum_dy_xhat = _sum(b, b.mul(first, xhat()), dims)
    dx = None
    if mask[0]:
        scale = b.mul(invstd, _wide(b, a["weight"])) if a.get("weight") is not None else invstd
        rest = dy()
        if a["train"]:
            rest = b.sub(rest, _per_channel(b, b.mul(sum_dy, 1.0 / n), rank))
            rest = b.sub(rest, b.mul(xhat(), _per_channel(b, b.mul(sum_dy_xhat, 1.0 / n), rank)))
        dx = b.cast(b.view(b.mul(rest, _per_channel(b, scale, rank)), a["input"].shape), a["input"].dtype)
    if groups > 1:
        sum_dy, sum_dy_xhat = b.sum(sum_dy, [0]), b.sum(sum_dy_xhat, [0])
    outs: list[object] = [dx]
    for wanted, value, spec in ((mask[1], sum_dy_xhat, b.specs[1]), (mask[2], sum_dy, b.specs[2])):
        outs.append(b.cast(value, spec[1]) if wanted and spec is not None else None)
    return outs


NORM_RULES = {
    "aten.native_batch_norm.default": rule_batch_norm,
    "aten._native_batch_norm_legit.default": rule_batch_norm,
    "aten._native_batch_norm_legit.no_stats": rule_batch_norm,
    "aten._native_batch_norm_legit_functional.default": rule_batch_norm, "aten._batch_norm_with_update.default": rule_batch_norm,
    "aten.native_batch_norm_backward.default": rule_batch_norm_backward,
}
