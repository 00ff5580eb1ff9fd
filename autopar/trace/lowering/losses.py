"""Losses opened into pointwise ops and one sum, so that a sharded batch gives a Partial; means become sums times a global constant.

Cross-entropy is opened in `vocabulary` where only the loss reads the log-probabilities. Elsewhere `nll_loss` stays whole; its mean is the
sum divided by the weight of the targets that are not ignored, which is a value of its own (`total_weight`), made of the targets alone.
"""

from __future__ import annotations

from math import prod

import torch

from .draft import Draft, Val

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduce(b: Draft, loss: Val, reduction: int) -> Val:
    if reduction == _NONE:
        return loss
    total = b.sum(loss, None)
    return b.mul(total, 1.0 / max(prod(loss.shape), 1)) if reduction == _MEAN else total


def _scale(b: Draft, grad_output: Val, x: Val, reduction: int) -> Val:
    """The gradient that reaches each element."""
    return b.mul(grad_output, 1.0 / max(prod(x.shape), 1)) if reduction == _MEAN else grad_output


def _mse(b: Draft, a: dict) -> object:
    diff = b.sub(a["self"], a["target"])
    return _reduce(b, b.mul(diff, diff), a["reduction"])


def _mse_backward(b: Draft, a: dict) -> object:
    diff = b.mul(b.sub(a["self"], a["target"]), 2.0)
    return b.mul(diff, _scale(b, a["grad_output"], diff, a["reduction"]))


def _smooth_l1(edge: str, huber: bool):
    def rule(b: Draft, a: dict) -> object:
        beta = float(a[edge])
        size = b.call("aten.abs.default", b.sub(a["self"], a["target"]))
        near = b.mul(b.mul(size, size), 0.5 if huber else 0.5 / beta) if beta else size
        far = b.mul(b.sub(size, 0.5 * beta), beta) if huber else b.sub(size, 0.5 * beta)
        inside = b.call("aten.lt.Scalar", size, beta)
        return _reduce(b, b.call("aten.where.self", inside, near, far), a["reduction"])

    return rule


def _smooth_l1_backward(edge: str, huber: bool):
    def rule(b: Draft, a: dict) -> object:
        beta = float(a[edge])
        diff = b.sub(a["self"], a["target"])
        slope = b.call("aten.clamp.default", diff if huber else b.mul(diff, 1.0 / beta), -beta if huber else -1.0, beta if huber else 1.0)
        return b.mul(slope, _scale(b, a["grad_output"], diff, a["reduction"]))

    return rule


def _bce_logits(b: Draft, a: dict) -> object:
    x, t, weight, positive = a["self"], a["target"], a.get("weight"), a.get("pos_weight")
    decay = b.call("aten.exp.default", b.call("aten.neg.default", b.call("aten.abs.default", x)))
    # -log sigmoid(x) without overflow
    minus_log = b.add(b.call("aten.log1p.default", decay), b.call("aten.clamp.default", b.call("aten.neg.default", x), 0))
    rest = b.mul(b.add(b.call("aten.neg.default", t), 1), x)
    if positive is not None:
        minus_log = b.mul(minus_log, b.add(b.mul(b.sub(positive, 1), t), 1))
    loss = b.add(rest, minus_log)
    return _reduce(b, b.mul(loss, weight) if weight is not None else loss, a["reduction"])


def _bce(b: Draft, a: dict) -> object:
    x, t = a["self"], a["target"]
    log_x = b.call("aten.clamp.default", b.call("aten.log.default", x), -100)
    log_rest = b.call("aten.clamp.default", b.call("aten.log1p.default", b.call("aten.neg.default", x)), -100)
    loss = b.sub(b.mul(b.sub(t, 1), log_rest), b.mul(t, log_x))
    return _reduce(b, b.mul(loss, a["weight"]) if a.get("weight") is not None else loss, a["reduction"])


def _bce_backward(b: Draft, a: dict) -> object:
    x = a["self"]
    below = b.call("aten.clamp.default", b.mul(b.add(b.call("aten.neg.default", x), 1), x), 1e-12)
    slope = b.div(b.sub(x, a["target"]), below)
    if a.get("weight") is not None:
        slope = b.mul(slope, a["weight"])
    return b.mul(slope, _scale(b, a["grad_output"], x, a["reduction"]))


def count_targets(b: Draft, target: Val, weight: Val | None, ignored: int, dtype: torch.dtype) -> tuple[Val, Val, Val | None]:
    """Targets (0 where ignored), whether they count, and with what weight (None: 1)."""
    counted = b.call("aten.ne.Scalar", target, ignored)
    target = b.call("aten.where.self", counted, target, b.full((), 0, target.dtype))
    own = b.call("aten.index.Tensor", b.cast(weight, dtype), [target]) if weight is not None else None
    return target, counted, own


def mask_ignored(b: Draft, counted: Val, x: Val) -> Val:
    """`x` where the target counts, else 0."""
    return b.call("aten.where.self", counted, x, b.full((), 0, x.dtype))


def total_weight(b: Draft, counted: Val, own: Val | None, dtype: torch.dtype) -> Val:
    """By what a mean divides."""
    return b.sum(b.cast(counted, dtype) if own is None else mask_ignored(b, counted, own), None)


def _nll(op: str):
    """Mean = sum / weight of the targets that count."""

    def rule(b: Draft, a: dict) -> object:
        args = [a["self"], a["target"], a["weight"]]
        if a["reduction"] != _MEAN:
            return b.call(op, *args, a["reduction"], a["ignore_index"])
        total, _ = b.call(op, *args, _SUM, a["ignore_index"])
        _, counted, own = count_targets(b, a["target"], a["weight"], a["ignore_index"], total.dtype)
        weight = total_weight(b, counted, own, total.dtype)
        return [b.div(total, weight), weight]

    return rule


LOSS_RULES = {
    "aten.mse_loss.default": _mse, "aten.mse_loss_backward.default": _mse_backward,
    "aten.smooth_l1_loss.default": _smooth_l1("beta", False), "aten.smooth_l1_loss_backward.default": _smooth_l1_backward("beta", False),
    "aten.huber_loss.default": _smooth_l1("delta", True), "aten.huber_loss_backward.default": _smooth_l1_backward("delta", True),
    "aten.binary_cross_entropy_with_logits.default": _bce_logits,
    "aten.binary_cross_entropy.default": _bce, "aten.binary_cross_entropy_backward.default": _bce_backward,
    "aten.nll_loss_forward.default": _nll("aten.nll_loss_forward.default"),
    "aten.nll_loss2d_forward.default": _nll("aten.nll_loss2d_forward.default"),
}  # fmt: skip
