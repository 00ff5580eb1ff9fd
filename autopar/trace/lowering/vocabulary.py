"""Embeddings and cross-entropy in forms that may be split over the vocabulary.

In: `aten.embedding` and its gradient; `_log_softmax` with `nll_loss`, one class gathered for each token, sums over the classes (label smoothing,
probabilities as targets, divergences) and their gradients, where nothing else reads the log-probabilities (`log_probabilities.find_private`). Out: ops that know which rows a rank holds (`rows`, a list of all row numbers
that is split as the table is), and

    m = amax(x);  s = sum_exp(x, m);  loss of a token = log s - (x_t - m), weighted, 0 where the target is ignored
    mean = sum / (sum of the weights that count), a value of its own;  dx = cross_entropy_backward(...)
    sum over the classes of w_c log p_c = sum_c w_c x_c - W (log s + m), W the sum of the w_c;  of any gradient g:  dx = g - softmax sum_c g_c

on logits with the classes last and the other dims as the model has them, however the loss was spelled. Logits that were widened for the
loss alone are read as they were: the ops compute in the wide dtype. A loss that uses the log-probabilities in another way too (their entropy)
stays as it is, and so its classes stay whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod


from .decompose import RULES as FORM_RULES
from .decompose import keep_dims, list_dims
from .draft import Draft, DraftNode, Val
from .linears import LINEAR_RULES
from .log_probabilities import LOSSES, Entropy, OfAll, OfClass, OfEach, OfLoss, Picked, Scores, class_dim, find_entropy, find_indexed, find_picked, find_scores, find_terms, indexed_class, is_pick, is_zero, sum_dtype
from .losses import LOSS_RULES, count_targets, mask_ignored, total_weight

_NONE, _MEAN = 0, 1


# -- embeddings ------------------------------------------------------------------------------------------------------------------------


def _embedding(b: Draft, a: dict) -> object:
    weight = a["weight"]
    args = {"weight": weight, "indices": a["indices"], "rows": b.positions(weight.shape[0], "row"), "num_rows": weight.shape[0]}
    return b.emit_one("autopar.embedding", args, *b.specs[0])


def _embedding_backward(b: Draft, a: dict) -> object:
    """Gradients that are scaled by how often a row is used stay whole: that counts all uses."""
    op = "aten.embedding_dense_backward.default"
    if a["scale_grad_by_freq"]:
        return b.keep(op, a)
    n, padding = a["num_weights"], a["padding_idx"]
    args = {"grad": a["grad_output"], "indices": a["indices"], "rows": b.positions(n, "row"), "num_rows": n}
    return b.emit_one("autopar.embedding_backward", args | ({"padding_idx": padding} if padding >= 0 else {}), *b.specs[0])


# -- cross-entropy ---------------------------------------------------------------------------------------------------------------------


def _log_softmax(b: Draft, a: dict) -> object:
    """Written whole; left for dead where the loss opens it."""
    args = {"self": a["self"], "dim": a["dim"], "half_to_float": a["half_to_float"]}
    out = b.emit_one("aten._log_softmax.default", args, *b.specs[0])
    if b.is_private and out.shape:
        b.entropies[out] = None
    return out


def _tokens(b: Draft, e: Entropy, a: dict) -> tuple[Val, Val, Val | None]:
    target, weight, ignored = a["target"], a.get("weight"), a["ignore_index"]
    key = (id(target), id(weight), ignored)
    if key not in e.tokens:
        e.tokens[key] = count_targets(b, b.view(target, e.peak.shape), weight, ignored, e.peak.dtype)
    return e.tokens[key]


def _vocabulary(b: Draft, e: Entropy) -> dict[str, object]:
    n = e.logits.shape[-1]
    return {"rows": b.positions(n, "row"), "num_rows": n}


def _log_probability(b: Draft, e: Entropy, target: Val) -> Val:
    """Of one class for each token, times -1."""
    picked = b.emit_one("autopar.pick", {"logits": e.logits, "target": target, **_vocabulary(b, e)}, e.peak.shape, e.logits.dtype)
    return b.sub(b.call("aten.log.default", e.total), b.sub(b.cast(picked, e.peak.dtype), e.peak))


def _loss(op: str):
    whole = LOSS_RULES[op]

    def rule(b: Draft, a: dict) -> object:
        e = find_entropy(b, a["self"])
        if e is None:
            return whole(b, a)
        target, counted, own = _tokens(b, e, a)
        loss = _log_probability(b, e, target)
        loss = mask_ignored(b, counted, loss if own is None else b.mul(loss, own))
        if a["reduction"] == _NONE:
            return [b.view(loss, a["target"].shape), b.full((), 0, loss.dtype)]
        weight = total_weight(b, counted, own, loss.dtype)
        total = b.sum(loss, None)
        return [b.div(total, weight) if a["reduction"] == _MEAN else total, weight]

    return rule


def _pick(op: str, find: Callable[[Draft, dict], Picked | None]):
    """One log-probability for each token."""

    def rule(b: Draft, a: dict) -> object:
        found = find(b, a)
        if found is None:
            target = _target_of(b, a)
            return b.keep(op, a) if target is None else _pick_any(b, a["self"], target)
        made = b.call("aten.neg.default", _log_probability(b, found.entropy, found.target))
        return b.view(b.cast(made, b.specs[0][1]), b.specs[0][0])

    return rule


def _target_of(b: Draft, a: dict) -> Val | None:
    """The place in each last row of what is picked from floats, or added to zeros, one for each; None where it is anything else."""
    x = a["self"]
    if "index" in a:
        return b.view(a["index"], x.shape[:-1]) if is_pick(x, a["dim"], a["index"]) else None
    return indexed_class(b, x, a["indices"])


def _pick_any(b: Draft, x: Val, target: Val) -> object:
    """One element for each row, of what are no log-probabilities (a loss that is written as `logsumexp` less a logit)."""
    args = {"logits": x, "target": target, "rows": b.positions(x.shape[-1], "row"), "num_rows": x.shape[-1]}
    return b.view(b.emit_one("autopar.pick", args, x.shape[:-1], x.dtype), b.specs[0][0])


def _unpick(op: str, values: str):
    """The gradient of that: one number for each row, added to zeros."""

    def rule(b: Draft, a: dict) -> object:
        x, grad = a["self"], a[values]
        adds = a.get("accumulate", True) and is_zero(x) and prod(grad.shape) == prod(x.shape[:-1])
        target = _target_of(b, a) if adds else None
        if target is None:
            return FORM_RULES[op](b, a) if op in FORM_RULES else b.keep(op, a)
        args = {"grad": b.view(grad, x.shape[:-1]), "target": target, "rows": b.positions(x.shape[-1], "row"), "num_rows": x.shape[-1]}
        return b.emit_one("autopar.unpick", args, *b.specs[0])

    return rule


def _summed(op: str):
    """Sums and means over the classes, and over other dims beside them."""

    whole = FORM_RULES[op] if op in FORM_RULES else LINEAR_RULES[op]

    def rule(b: Draft, a: dict) -> object:
        x = a["self"]
        dims = list_dims(x, a.get("dim"))
        scores = find_scores(b, x, dims) if a.get("dtype") in (None, x.dtype) else None
        if scores is None:
            return whole(b, a)
        row = _row(b, scores, 1 / prod(x.shape[d] for d in dims) if "mean" in op else 1.0)
        row = b.view(row, x.shape[: scores.dim] + x.shape[scores.dim + 1 :])
        others = [d - (d > scores.dim) for d in dims if d != scores.dim]
        made = b.cast(b.sum(row, others) if others else row, x.dtype)
        return keep_dims(b, made, x, dims, a.get("keepdim", False))

    return rule


def _row(b: Draft, scores: Scores, share: float) -> Val:
    """`share` times the sum over the classes, `[...]`. With weights of each token it is made element by element, as a large part of it may cancel."""
    e, dtype = scores.entropy, sum_dtype(scores.entropy)
    peak, log_total = b.cast(e.peak, dtype), b.call("aten.log.default", b.cast(e.total, dtype))
    num_classes = e.logits.shape[-1]
    if scores.rest is None and (scores.weight is None or len(scores.weight.shape) == 1):
        log_total = b.add(log_total, peak)
        if scores.weight is None:
            row = b.sub(b.sum(e.logits, [-1], dtype=dtype), b.mul(log_total, num_classes))
        else:
            weight = b.expand(scores.weight, (num_classes,))
            row = b.sub(b.sum(b.mul(b.cast(e.logits, dtype), weight), [-1]), b.mul(log_total, b.sum(weight, None)))
        return row if scores.factor * share == 1 else b.mul(row, scores.factor * share)
    thin = (*e.peak.shape, 1)
    made = b.sub(b.sub(b.cast(e.logits, dtype), b.view(peak, thin)), b.view(log_total, thin))
    made = made if scores.weight is None else b.mul(made, scores.weight)
    made = made if scores.factor == 1 else b.mul(made, scores.factor)
    row = b.sum(made if scores.rest is None else b.add(made, scores.rest), [-1])
    return row if share == 1 else b.mul(row, share)


def _log_softmax_backward(b: Draft, a: dict) -> object:
    e = b.entropies.get(a["output"])
    if e is None:
        op = "aten._log_softmax_backward_data.default"
        return b.keep(op, a)
    dim = class_dim(a["output"])
    terms = find_terms(b, a["grad_output"], dim)
    picks = [term for term in terms if isinstance(term, (OfLoss, OfClass))]
    sums = _of_sums(b, e, [term for term in terms if term not in picks])
    parts = [_of_pick(b, e, term, sums if k == 0 else None) for k, term in enumerate(picks)]
    parts += sums.offsets if parts else [_alone(b, e, sums)]
    made = parts[0]
    for part in parts[1:]:
        made = b.add(made, part)
    made = b.cast(made, e.logits.dtype)
    rank = len(e.turned)
    order = [*(k for k in range(rank) if k != dim), dim]
    back = b.permute(b.view(made, e.turned), [order.index(k) for k in range(rank)])
    return b.cast(back, b.specs[0][1])


@dataclass(frozen=True, slots=True)
class _Sums:
    """What sums over the classes add to a gradient: g less the softmax times the sum of g.

    Args:
        share: the sum of g, `[...]`; None: there are no sums.
        even: of g what all classes of a token get alike, `[...]`; None: nothing.
        offsets: the other g, `[..., v]`.
    """

    share: Val | None
    even: Val | None
    offsets: tuple[Val, ...]


def _of_sums(b: Draft, e: Entropy, terms: list[OfAll | OfEach]) -> _Sums:
    dtype, share, even, offsets = e.peak.dtype, None, None, []
    for term in terms:
        if isinstance(term, OfEach):
            rank = len(term.grad.shape)
            offset = b.permute(b.cast(term.grad, dtype), [*(k for k in range(rank) if k != term.dim), term.dim])
            offsets.append(b.view(offset, e.logits.shape))
            part = b.sum(offsets[-1], [-1])
        elif term.weight is None:
            h = b.cast(b.view(term.even, e.peak.shape), dtype)
            part = b.mul(h, e.logits.shape[-1])
            even = h if even is None else b.add(even, h)
        else:
            h, weight = b.cast(b.view(term.even, e.peak.shape), dtype), b.cast(term.weight, dtype)
            part = b.mul(h, b.sum(weight, None))
            offsets.append(b.mul(b.view(h, (*h.shape, 1)), weight))
        share = part if share is None else b.add(share, part)
    return _Sums(share, even, tuple(offsets))


def _of_pick(b: Draft, e: Entropy, term: OfLoss | OfClass, sums: _Sums | None) -> Val:
    """The gradient of the logits that one class for each token gives, and what sums add to all classes of a token alike."""
    target, grad = _of_loss(b, e, term.loss) if isinstance(term, OfLoss) else _of_class(b, e, term)
    values = {"grad": grad, "logits": e.logits, "peak": e.peak, "total": e.total, "target": target, **_vocabulary(b, e)}
    if sums is not None and sums.share is not None:
        even = b.full(e.peak.shape, 0, grad.dtype) if sums.even is None else sums.even
        values |= {"grad": b.sub(grad, sums.share), "own": grad, "even": even}
    return b.emit_one("autopar.cross_entropy_backward", values, e.logits.shape, e.logits.dtype)


def _of_loss(b: Draft, e: Entropy, loss: DraftNode) -> tuple[Val, Val]:
    """Targets, and what reaches the loss of each."""
    args = dict(loss.args)
    target, counted, own = _tokens(b, e, args)
    grad = args["grad_output"]
    if args["reduction"] == _NONE:
        grad = b.view(grad, e.peak.shape)
    elif args["reduction"] == _MEAN:
        grad = b.div(grad, args["total_weight"])
    return target, mask_ignored(b, counted, grad if own is None else b.mul(grad, own))


def _of_class(b: Draft, e: Entropy, term: OfClass) -> tuple[Val, Val]:
    """As `_of_loss`: what reaches the log-probability of a class is what reaches its loss, times -1."""
    return b.view(term.target, e.peak.shape), b.call("aten.neg.default", b.cast(b.view(term.grad, e.peak.shape), e.peak.dtype))


def _alone(b: Draft, e: Entropy, sums: _Sums) -> Val:
    """The gradient of the logits that sums give where no token has a target."""
    softmax = b.call("aten.exp.default", b.sub(e.logits, b.view(e.peak, (*e.peak.shape, 1))))
    share = b.call("aten.neg.default", b.div(sums.share, e.total))
    made = b.mul(softmax, b.view(share, (*share.shape, 1)))
    for offset in (*sums.offsets, *(() if sums.even is None else (b.view(sums.even, (*e.peak.shape, 1)),))):
        made = b.add(made, offset)
    return made


VOCABULARY_RULES = {
    "aten.embedding.default": _embedding, "aten.embedding_dense_backward.default": _embedding_backward,
    "aten._log_softmax.default": _log_softmax, "aten._log_softmax_backward_data.default": _log_softmax_backward,
    **{f"aten.{name}.default": _loss(f"aten.{name}.default") for name in LOSSES},
    "aten.gather.default": _pick("aten.gather.default", lambda b, a: find_picked(b, a["self"], a["dim"], a["index"])),
    "aten.scatter_add.default": _unpick("aten.scatter_add.default", "src"), "aten.index_put.default": _unpick("aten.index_put.default", "values"),
    "aten.index.Tensor": _pick("aten.index.Tensor", lambda b, a: find_indexed(b, a["self"], a["indices"])),
    **{f"aten.{name}": _summed(f"aten.{name}") for name in ("sum.default", "sum.dim_IntList", "mean.default", "mean.dim")},
}  # fmt: skip
