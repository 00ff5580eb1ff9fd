"""Batch norm opened into sums, so that a sharded batch gives the statistics of the whole batch (SyncBN).

    mean = sum(x) / n;  var = sum((x - mean)^2) / n;  y = (x - mean) / sqrt(var + eps) * w + b       n = elements per channel
    running <- (1 - m) running + m (mean, var n / (n - 1))
    dx = w invstd (dy - sum(dy) / n - xhat sum(dy xhat) / n);  dw = sum(dy xhat);  db = sum(dy)

Source: Ioffe and Szegedy, arXiv 1502.03167, section 3. Evaluation uses the running statistics, pointwise. Layer norm and group norm
stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import torch

from .draft import Draft, Val


@dataclass(frozen=True)
class Effects:
    """What a rule returns when the op also writes arguments in place: outputs, and the new value per argument name."""

    outs: object
    writes: dict[str, Val] = field(default_factory=dict)


def _wide(b: Draft, x: Val) -> Val:
    """Half precision is summed in float32."""
    return b.cast(x, torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x


def _per_channel(b: Draft, v: Val, rank: int) -> Val:
    return b.view(v, (1, v.shape[0], *[1] * (rank - 2)))


def _dims(x: Val) -> tuple[list[int], int]:
    dims = [0, *range(2, len(x.shape))]
    return dims, prod(x.shape[d] for d in dims)


def rule_batch_norm(b: Draft, a: dict) -> object:
    """All forms of `native_batch_norm`; outputs (y, mean, invstd)."""
    x, rank = a["input"], len(a["input"].shape)
    training = a.get("training", True)
    wide = _wide(b, x)
    dims, n = _dims(x)
    writes: dict[str, Val] = {}
    if training:
        mean = b.mul(b.sum(wide, dims), 1.0 / n)
        centred = b.sub(wide, _per_channel(b, mean, rank))
        var = b.mul(b.sum(b.mul(centred, centred), dims), 1.0 / n)
        invstd = b.call("aten.rsqrt.default", b.add(var, a["eps"]))
        momentum = a["momentum"]
        for name, new in (("running_mean", mean), ("running_var", b.mul(var, n / (n - 1)) if n > 1 else var)):
            old = a.get(name)
            if isinstance(old, Val):
                mixed = b.add(b.mul(old, 1 - momentum), b.mul(b.cast(new, old.dtype), momentum))
                writes[name] = mixed
    else:
        mean, var = _wide(b, a["running_mean"]), _wide(b, a["running_var"])
        centred = b.sub(wide, _per_channel(b, mean, rank))
        invstd = b.call("aten.rsqrt.default", b.add(var, a["eps"]))
    y = b.mul(centred, _per_channel(b, invstd, rank))
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
        else:
            outs.append(b.cast(saved[k], spec[1]))
    return Effects(outs, writes)


def rule_batch_norm_backward(b: Draft, a: dict) -> object:
    """Gradients of input, weight and bias."""
    dy, x, mask = _wide(b, a["grad_out"]), _wide(b, a["input"]), a["output_mask"]
    rank = len(x.shape)
    dims, n = _dims(x)
    if a["train"]:
        mean, invstd = a["save_mean"], a["save_invstd"]
    else:
        mean = _wide(b, a["running_mean"])
        invstd = b.call("aten.rsqrt.default", b.add(_wide(b, a["running_var"]), a["eps"]))
    xhat = b.mul(b.sub(x, _per_channel(b, mean, rank)), _per_channel(b, invstd, rank))
    sum_dy = b.sum(dy, dims)
    sum_dy_xhat = b.sum(b.mul(dy, xhat), dims)
    dx = None
    if mask[0]:
        scale = b.mul(invstd, _wide(b, a["weight"])) if a.get("weight") is not None else invstd
        rest = dy
        if a["train"]:
            rest = b.sub(rest, _per_channel(b, b.mul(sum_dy, 1.0 / n), rank))
            rest = b.sub(rest, b.mul(xhat, _per_channel(b, b.mul(sum_dy_xhat, 1.0 / n), rank)))
        dx = b.cast(b.mul(rest, _per_channel(b, scale, rank)), a["input"].dtype)
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
