"""Losses. Summed over the batch they are partial sums; a mean inside the kernel divides by the local count, so it is whole.

Trace writes means as a sum times a constant, and the count of tokens that are not ignored as a node of its own.
"""

from __future__ import annotations

from ..rule import Rule, Site

NONE, MEAN, SUM = 0, 1, 2  # torch's enum at::Reduction
GRAD = (("grad_output",),)
_MEAN = "the kernel divides by the count that it is given: write the mean as a sum and a division"
_CLASS = "the class of the target lies on one rank only"

POINTWISE = "mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss binary_cross_entropy_with_logits".split()
POINTWISE_BACKWARD = "mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss".split()


def _batch(site: Site, scores: int, counts: bool) -> tuple[str, str]:
    """Texts of the scores (input number `scores`) and of the targets; a kernel that counts the batch for its mean holds it whole."""
    rank = len(site.inputs[scores])
    names = [f"n{k}" for k in range(max(rank - 1, 0))]
    if counts and site.arg("reduction", MEAN) == MEAN:
        names = [f"[{name}]" for name in names]
    return " ".join([*names[:1], "[c]", *names[1:]]), " ".join(names)


def _nll(site: Site) -> str:
    scores, targets = _batch(site, 0, counts=True)
    loss = targets if site.arg("reduction") == NONE else ""
    return f"self: {scores}, target: {targets}, weight: [c] -> {loss}, "


def _nll_backward(site: Site) -> str:
    scores, targets = _batch(site, 1, counts=False)  # a mean divides by the total weight that comes in, of the whole batch
    grad = targets if site.arg("reduction") == NONE else ""
    return f"grad_output: {grad}, self: {scores}, target: {targets}, weight: [c], total_weight: -> {scores}"


def _pointwise(site: Site) -> str:
    reduction = site.arg("reduction", MEAN)
    if reduction == MEAN:
        dims = " ".join(f"[m{k}]" for k in range(len(site.inputs[0])))
        return ", ".join([dims] * len(site.inputs)) + " ->"
    return ", ".join(["..."] * len(site.inputs)) + (" -> ..." if reduction == NONE else " ->")


def _pointwise_backward(site: Site) -> str:
    if site.arg("reduction", MEAN) != MEAN:
        return ", ".join(["..."] * len(site.inputs)) + " -> ..."
    dims = " ".join(f"[m{k}]" for k in range(len(site.outputs[0])))
    return ", ".join(["", *[dims] * (len(site.inputs) - 1)]) + f" -> {dims}"


def _margin(site: Site) -> str:
    """One score per class: a row of classes is whole; a single row has no batch dim."""
    scores, targets = _batch(site, 0, counts=True)
    loss = (targets or "1" * len(site.outputs[0])) if site.arg("reduction", MEAN) == NONE else ""
    places = targets or "1" * len(site.inputs[1])  # one row has its target in a vector of one
    return f"self: {scores}, target: {places}, weight: [c] -> {loss}"


def _margin_backward(site: Site) -> str:
    scores, targets = _batch(site, 1, counts=True)
    grad = (targets or "1" * len(site.inputs[0])) if site.arg("reduction", MEAN) == NONE else ""
    places = targets or "1" * len(site.inputs[2])
    return f"grad_output: {grad}, self: {scores}, target: {places}, weight: [c] -> {scores}"


def _multilabel(site: Site) -> str:
    scores, rows = _batch(site, 0, counts=True)
    loss = rows if site.arg("reduction") == NONE else ""
    return f"self: {scores}, target: {scores} -> {loss}, {scores}"


def _multilabel_backward(site: Site) -> str:
    scores, rows = _batch(site, 1, counts=True)
    grad = rows if site.arg("reduction") == NONE else ""
    return f"grad_output: {grad}, self: {scores}, target: {scores}, is_target: {scores} -> {scores}"


_ROW = "the margins are those to all other classes"

ROWS = (
    Rule("aten.multi_margin_loss", _margin, flops=3, why_whole=_ROW),
    Rule("aten.multi_margin_loss_backward", _margin_backward, GRAD, flops=3, why_whole=_ROW),
    Rule("aten.multilabel_margin_loss_forward", _multilabel, flops=3, why_whole=_ROW),
    Rule("aten.multilabel_margin_loss_backward", _multilabel_backward, GRAD, flops=3, why_whole=_ROW),
    Rule("aten.nll_loss_forward", _nll, why_whole=_CLASS),
    Rule("aten.nll_loss2d_forward", _nll, why_whole=_CLASS),
    Rule("aten.nll_loss_backward", _nll_backward, (("grad_output",),), why_whole=_CLASS),
    Rule("aten.nll_loss2d_backward", _nll_backward, (("grad_output",),), why_whole=_CLASS),
    *(Rule(f"aten.{name}", _pointwise, flops=3, why_whole=_MEAN) for name in POINTWISE),
    *(Rule(f"aten.{name}_backward", _pointwise_backward, (("grad_output",),), flops=3, why_whole=_MEAN) for name in POINTWISE_BACKWARD),
)
