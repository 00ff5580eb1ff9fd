"""Embeddings and cross-entropy in forms that may be split over the vocabulary.

In: `aten.embedding` and its gradient; `_log_softmax` with `nll_loss` and their gradients, where nothing else reads the log-probabilities
(`find_private`). Out: ops that know which rows a rank holds (`rows`, a list of all row numbers that is split as the table is), and

    m = amax(x);  s = sum_exp(x, m);  loss of a token = log s - (x_t - m), weighted, 0 where the target is ignored
    mean = sum / (sum of the weights that count), a value of its own;  dx = cross_entropy_backward(...)

on logits with the classes last and the other dims as the model has them, however the loss was spelled. Logits that were widened for the
loss alone are read as they were: the ops compute in the wide dtype. A loss that uses the log-probabilities in another way too (label
smoothing) stays as it is, and so its classes stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

import torch

from ..tape import Record, Slot, find_slots
from .draft import Draft, DraftNode, Shape, Val, canonical_args, resolve_op, schema_arguments, view_chain
from .losses import LOSS_RULES, count_targets, mask_ignored, total_weight

_NONE, _MEAN = 0, 1
_LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
_GRADIENTS = ("nll_loss_backward", "nll_loss2d_backward")


# -- embeddings ------------------------------------------------------------------------------------------------------------------------


def _embedding(b: Draft, a: dict) -> object:
    weight = a["weight"]
    args = {"weight": weight, "indices": a["indices"], "rows": b.positions(weight.shape[0], "row"), "num_rows": weight.shape[0]}
    return b.emit_one("autopar.embedding", args, *b.specs[0])


def _embedding_backward(b: Draft, a: dict) -> object:
    """Gradients that are scaled by how often a row is used stay whole: that counts all uses."""
    op = "aten.embedding_dense_backward.default"
    if a["scale_grad_by_freq"]:
        return b.emit(op, canonical_args(resolve_op(op), a), b.specs)
    n, padding = a["num_weights"], a["padding_idx"]
    args = {"grad": a["grad_output"], "indices": a["indices"], "rows": b.positions(n, "row"), "num_rows": n}
    return b.emit_one("autopar.embedding_backward", args | ({"padding_idx": padding} if padding >= 0 else {}), *b.specs[0])


# -- which log-probabilities only a loss reads ------------------------------------------------------------------------------------------


def find_private(records: Iterable[Record], kept: frozenset[int]) -> frozenset[int]:
    """Uids of log-probabilities that only `nll_loss` and its gradient read, through views and copies.

    Args:
        records: of forward and backward.
        kept: uids that leave the step or live on.
    """
    source: dict[int, tuple[int, bool]] = {}  # uid -> (the log-probabilities it comes from, True for their gradient)
    found: set[int] = set()
    shared: set[int] = set()
    for record in records:
        packet = record.op._schema.name.partition("::")[2]
        if packet == "_log_softmax":
            source[record.outs[0]] = (record.outs[0], False)
            found.add(record.outs[0])
        if not found:
            continue
        read = [uid for uid in find_slots(record) if uid in source]
        for uid in read:
            root, is_gradient = source[uid]
            if packet == "clone" or any(a.is_view for a in schema_arguments(record.op)) or packet == "_unsafe_view":
                source.update((out, source[uid]) for out in record.outs)
            elif packet in _LOSSES and _origins(record, source) == [(root, False)]:
                continue
            elif packet in _GRADIENTS and _origins(record, source) == [None, (root, False)]:
                source[record.outs[0]] = (root, True)
            elif packet != "_log_softmax_backward_data" or _origins(record, source) != [(root, True), (root, False)]:
                shared.add(root)
    shared |= {source[uid][0] for uid in kept if uid in source}
    return frozenset(found - shared)


def _origins(record: Record, source: dict[int, tuple[int, bool]]) -> list[tuple[int, bool] | None]:
    """What each argument of a record comes from, those at the end that come from nothing we follow left out."""
    found = [source.get(value.uid) if isinstance(value, Slot) else None for value in record.args]
    while found and found[-1] is None:
        found.pop()
    return found


# -- cross-entropy ---------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Entropy:
    """A softmax that only a loss reads.

    Args:
        node: the `_log_softmax`, which nothing will read.
        logits: `[..., v]`, classes last.
        turned: the shape of the softmax's input with the classes last.
        peak, total: per token, in the dtype of the softmax.
        tokens: by (target, weight, ignored class): targets, whether they count, and with what weight (None: 1).
    """

    node: DraftNode
    logits: Val
    turned: Shape
    peak: Val
    total: Val
    tokens: dict[tuple[int, int, int], tuple[Val, Val, Val | None]] = field(default_factory=dict)


def _class_dim(x: Val, dim: int, root: Val) -> int | None:
    """Where dim `dim` of `x` is in `root`, of which `x` is a view that moves no other dims; None where it is not."""
    while x is not root:
        if x.node is None or x.node.op not in ("aten.view.default", "aten.permute.default"):
            return None
        args = dict(x.node.args)
        base = args["self"]
        if x.node.op == "aten.permute.default":
            order = args["dims"]
            rest = [d for d in order if d != order[dim]]
            if rest != sorted(rest):
                return None
            dim = order[dim]
        else:
            before, size = prod(x.shape[:dim]), x.shape[dim]
            fitting = [k for k, n in enumerate(base.shape) if n == size and prod(base.shape[:k]) == before]
            if not fitting:
                return None
            dim = fitting[-1]
        x = base
    return dim


def _log_softmax(b: Draft, a: dict) -> object:
    """Written whole; left for dead where the loss opens it."""
    args = {"self": a["self"], "dim": a["dim"], "half_to_float": a["half_to_float"]}
    out = b.emit_one("aten._log_softmax.default", args, *b.specs[0])
    if b.is_private and out.shape:
        b.entropies[out] = None
    return out


def _root(x: Val) -> Val:
    """The value of which `x` is a view."""
    while x.node is not None and x.node.op in ("aten.view.default", "aten.permute.default"):
        x = dict(x.node.args)["self"]
    return x


def _entropy_of(b: Draft, log_p: Val) -> Entropy | None:
    """The softmax under the log-probabilities of a loss `[n, c, ...]`, opened; None where it stays whole."""
    root = _root(log_p)
    if root not in b.entropies:
        return None
    dim = dict(root.node.args)["dim"] % len(root.shape)
    if _class_dim(log_p, 1 if len(log_p.shape) > 1 else 0, root) != dim:
        return None
    if b.entropies[root] is None:
        b.entropies[root] = _open(b, root, dim)
    return b.entropies[root]


def _open(b: Draft, root: Val, dim: int) -> Entropy:
    x = dict(root.node.args)["self"]
    turned = b.permute(x, [*(k for k in range(len(x.shape)) if k != dim), dim])
    logits = _unflattened(turned)
    cast = logits.node
    if cast is not None and cast.op == "aten._to_copy.default" and dict(cast.args)["self"].dtype in (torch.bfloat16, torch.float16):
        logits = _unflattened(dict(cast.args)["self"])
    peak = b.cast(b.call("aten.amax.default", logits, [-1]), root.dtype)
    total = b.emit_one("autopar.sum_exp", {"logits": logits, "peak": peak}, peak.shape, root.dtype)
    return Entropy(root.node, logits, turned.shape, peak, total)


def _unflattened(x: Val) -> Val:
    """The oldest value of which `x` is a view that merges or splits all dims but the last."""
    return [base for base in view_chain(x) if base.shape[-1:] == x.shape[-1:]][-1]


def _tokens(b: Draft, e: Entropy, a: dict) -> tuple[Val, Val, Val | None]:
    target, weight, ignored = a["target"], a.get("weight"), a["ignore_index"]
    key = (id(target), id(weight), ignored)
    if key not in e.tokens:
        e.tokens[key] = count_targets(b, b.view(target, e.peak.shape), weight, ignored, e.peak.dtype)
    return e.tokens[key]


def _vocabulary(b: Draft, e: Entropy) -> dict[str, object]:
    n = e.logits.shape[-1]
    return {"rows": b.positions(n, "row"), "num_rows": n}


def _loss(op: str):
    whole = LOSS_RULES[op]

    def rule(b: Draft, a: dict) -> object:
        e = _entropy_of(b, a["self"])
        if e is None:
            return whole(b, a)
        target, counted, own = _tokens(b, e, a)
        picked = b.emit_one("autopar.pick", {"logits": e.logits, "target": target, **_vocabulary(b, e)}, e.peak.shape, e.logits.dtype)
        picked = b.cast(picked, e.peak.dtype)
        loss = b.sub(b.call("aten.log.default", e.total), b.sub(picked, e.peak))
        loss = mask_ignored(b, counted, loss if own is None else b.mul(loss, own))
        if a["reduction"] == _NONE:
            return [b.view(loss, a["target"].shape), b.full((), 0, loss.dtype)]
        weight = total_weight(b, counted, own, loss.dtype)
        total = b.sum(loss, None)
        return [b.div(total, weight) if a["reduction"] == _MEAN else total, weight]

    return rule


def _log_softmax_backward(b: Draft, a: dict) -> object:
    op = "aten._log_softmax_backward_data.default"
    e, source = b.entropies.get(a["output"]), _root(a["grad_output"])
    call = source.node
    if e is None or call is None or call.op.split(".")[1] not in _GRADIENTS:
        return b.emit(op, canonical_args(resolve_op(op), a), b.specs)
    args = dict(call.args)
    if _class_dim(a["grad_output"], a["dim"] % len(a["output"].shape), source) != (1 if len(source.shape) > 1 else 0):
        return b.emit(op, canonical_args(resolve_op(op), a), b.specs)
    target, counted, own = _tokens(b, e, args)
    grad = args["grad_output"]
    if args["reduction"] == _NONE:
        grad = b.view(grad, e.peak.shape)
    elif args["reduction"] == _MEAN:
        grad = b.div(grad, args["total_weight"])
    grad = mask_ignored(b, counted, grad if own is None else b.mul(grad, own))
    values = {"grad": grad, "logits": e.logits, "peak": e.peak, "total": e.total, "target": target}
    made = b.emit_one("autopar.cross_entropy_backward", {**values, **_vocabulary(b, e)}, e.logits.shape, e.logits.dtype)
    dim, rank = dict(e.node.args)["dim"] % len(e.turned), len(e.turned)
    order = [*(k for k in range(rank) if k != dim), dim]
    back = b.permute(b.view(made, e.turned), [order.index(k) for k in range(rank)])
    return b.cast(back, b.specs[0][1])


VOCABULARY_RULES = {
    "aten.embedding.default": _embedding, "aten.embedding_dense_backward.default": _embedding_backward,
    "aten._log_softmax.default": _log_softmax, "aten._log_softmax_backward_data.default": _log_softmax_backward,
    **{f"aten.{name}.default": _loss(f"aten.{name}.default") for name in _LOSSES},
}  # fmt: skip
