"""Log-probabilities that only losses read: which they are, and what a loss reads or a gradient holds of them.

In: the tape; values of the draft. Out: the softmaxes that may be opened (`find_private`), the two numbers per token that stand for one (`Entropy`), a
loss's reading traced back to them (`find_entropy`, `find_scores`), and their gradient taken apart (`find_terms`). Invariant: what is not
found stays whole and is right; it costs a pass more at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

import torch

from ..tape import Record, Slot, find_slots
from .draft import Draft, DraftNode, Shape, Val, bind, schema_arguments
from .exponentials import open_rows

LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
_GRADIENTS = ("nll_loss_backward", "nll_loss2d_backward")
_SCALES = ("neg", "mul", "div")
_SUMS = ("sum", "mean")
_WHOLE, _SCALED, _GRADIENT = range(3)  # what a value is of log-probabilities: they themselves, their elements times numbers, their gradient


# -- which log-probabilities only losses read --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a value comes from: uid of the log-probabilities, their number of classes, and what it is of them."""

    root: int
    num_classes: int
    kind: int


def find_private(records: Iterable[Record], kept: frozenset[int], tensors: Mapping[int, torch.Tensor]) -> frozenset[int]:
    """Uids of log-probabilities that only `nll_loss`, sums over the classes and their gradients read, through views and copies.

    Args:
        records: of forward and backward.
        kept: uids that leave the step or live on.
        tensors: of every uid.
    """
    source: dict[int, _Origin] = {}
    found: set[int] = set()
    shared: set[int] = set()
    for record in records:
        packet = record.op._schema.name.partition("::")[2]
        if packet == "_log_softmax":
            shape = tensors[record.outs[0]].shape
            source[record.outs[0]] = _Origin(record.outs[0], shape[bind(record.op, record.args, record.kwargs)["dim"]] if shape else 1, _WHOLE)
            found.add(record.outs[0])
        if not found:
            continue
        read = [source[uid] for uid in find_slots(record) if uid in source]
        if not read:
            continue
        kind = _reading(record, packet, read, source, tensors)
        if kind is None:
            shared.update(origin.root for origin in read)
        elif kind >= 0:
            source.update((out, _Origin(read[0].root, read[0].num_classes, kind)) for out in record.outs)
    shared |= {source[uid].root for uid in kept if uid in source}
    return frozenset(found - shared)


def _reading(record: Record, packet: str, read: list[_Origin], source: Mapping[int, _Origin], tensors: Mapping[int, torch.Tensor]) -> int | None:
    """What a record makes of log-probabilities that it reads: its kind; -1: something that is followed no further; None: it reads them in a way of its own."""
    origins = [source.get(value.uid) if isinstance(value, Slot) else None for value in record.args]
    kinds = [None if origin is None else origin.kind for origin in origins]
    if len({origin.root for origin in read}) > 1 or len(read) != len([kind for kind in kinds if kind is not None]):
        return None
    if packet in ("clone", "_unsafe_view") or any(a.is_view for a in schema_arguments(record.op)):
        return read[0].kind
    if packet in LOSSES:
        return -1 if kinds[0] == _WHOLE and len(read) == 1 else None
    if packet in _GRADIENTS:
        return _GRADIENT if kinds[1] == _WHOLE and len(read) == 1 else None
    if packet == "_log_softmax_backward_data":
        return -1 if kinds[0] in (None, _GRADIENT) and kinds[1] == _WHOLE else None
    if packet == "add" and set(kinds) <= {None, _GRADIENT}:
        return _GRADIENT
    if len(read) > 1 or read[0].kind == _GRADIENT:
        return None
    if packet in _SCALES:
        factors = [value for k, value in enumerate(record.args) if kinds[k] is None and isinstance(value, Slot)]
        return _SCALED if all(packet == "mul" and tensors[v.uid].numel() == read[0].num_classes for v in factors) else None
    if packet in _SUMS:
        before, after = (tensors[uid].numel() for uid in (record.args[0].uid, record.outs[0]))
        return -1 if after and before // after % read[0].num_classes == 0 else None
    return None


# -- a softmax that is opened --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Entropy:
    """A softmax that only losses read.

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


def _open(b: Draft, root: Val) -> Entropy:
    if b.entropies[root] is None:
        dim, x = class_dim(root), dict(root.node.args)["self"]
        turned = b.permute(x, [*(k for k in range(len(x.shape)) if k != dim), dim])
        e = open_rows(b, turned, root.dtype)
        b.entropies[root] = Entropy(root.node, e.rows, turned.shape, e.peak, e.total)
    return b.entropies[root]


def class_dim(root: Val) -> int:
    """The dim of its classes."""
    return dict(root.node.args)["dim"] % len(root.shape)


def _under(x: Val, dim: int) -> tuple[Val, int] | None:
    """What `x` is a view of that moves no dims but `dim`, and where that dim is there; None where it is no such view."""
    if x.node is None or x.node.op not in ("aten.view.default", "aten.permute.default"):
        return None
    args = dict(x.node.args)
    base = args["self"]
    if x.node.op == "aten.permute.default":
        order = args["dims"]
        rest = [d for d in order if d != order[dim]]
        return (base, order[dim]) if rest == sorted(rest) else None
    before, size = prod(x.shape[:dim]), x.shape[dim]
    fitting = [k for k, n in enumerate(base.shape) if n == size and prod(base.shape[:k]) == before]
    return (base, fitting[-1]) if fitting else None


def _loss_dim(x: Val) -> int:
    """Where `nll_loss` has its classes."""
    return 1 if len(x.shape) > 1 else 0


def find_entropy(b: Draft, log_p: Val) -> Entropy | None:
    """The softmax under the log-probabilities of a loss `[n, c, ...]`, opened; None where it stays whole."""
    found: tuple[Val, int] | None = (log_p, _loss_dim(log_p)) if b.entropies else None
    while found is not None and found[0] not in b.entropies:
        found = _under(*found)
    return _open(b, found[0]) if found is not None and found[1] == class_dim(found[0]) else None


# -- sums over the classes -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities times a number, and times a number for each class.

    Args:
        entropy: of the softmax, opened.
        dim: of the classes.
        factor: the number.
        weight: `[v]`; None: 1.
    """

    entropy: Entropy
    dim: int
    factor: float
    weight: Val | None


def find_scores(b: Draft, x: Val, dims: Iterable[int]) -> Scores | None:
    """`x` as log-probabilities whose classes are one of `dims`; None where it is nothing of this kind."""
    for dim in dims if b.entropies else ():
        found = _trace_scores(b, x, dim)
        if found is not None:
            return found
    return None


def _trace_scores(b: Draft, x: Val, dim: int) -> Scores | None:
    at, factor, weight = dim, 1.0, None
    while x not in b.entropies:
        found = _under(x, at) or _unscaled(x, at)
        if found is None:
            return None
        if len(found) == 3:
            if isinstance(found[2], Val):
                row = b.view(found[2], (x.shape[at],))
                weight = row if weight is None else b.mul(weight, row)
            else:
                factor *= found[2]
        x, at = found[0], found[1]
    return Scores(_open(b, x), dim, factor, weight) if at == class_dim(x) else None


def _unscaled(x: Val, dim: int) -> tuple[Val, int, float | Val] | None:
    """What `x` is a multiple of, where its dim `dim` is there, and by what: a number, or a value that has that dim alone."""
    op, args = (x.node.op, dict(x.node.args)) if x.node is not None else ("", {})
    if op == "aten.neg.default":
        return args["self"], dim, -1.0
    if op not in ("aten.mul.Tensor", "aten.div.Tensor") or x.dtype.is_complex:
        return None
    base, by = args["self"], args["other"]
    if isinstance(by, (int, float)):
        return base, dim, (float(by) if op == "aten.mul.Tensor" else 1.0 / by if by else float("nan"))
    if op == "aten.mul.Tensor" and isinstance(by, Val) and isinstance(base, Val):
        for one, other in ((base, by), (by, base)):
            if one.shape == x.shape and one.dtype == x.dtype and other.dtype.is_floating_point and _is_row(other, x.shape, dim):
                return one, dim, other
    return None


def _is_row(x: Val, shape: Shape, dim: int) -> bool:
    """True where `x`, broadcast to `shape`, has one number for each entry of dim `dim`."""
    place = dim - (len(shape) - len(x.shape))
    return place >= 0 and x.shape[place] == shape[dim] == prod(x.shape)


# -- gradients -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a gradient of log-probabilities.

    Args:
        loss: the gradient of `nll_loss` that it is; None: it is `even`.
        even: a number per token, `[...]` without the classes, which all classes get.
        weight: `[v]`, times which they get it; None: 1.
    """

    loss: DraftNode | None
    even: Val | None = None
    weight: Val | None = None


def find_terms(b: Draft, x: Val, dim: int) -> list[Term] | None:
    """The sum that a gradient of log-probabilities with its classes at `dim` is; None where it is anything else."""
    if x.node is None:
        return None
    args = dict(x.node.args)
    if x.node.op.split(".")[1] in _GRADIENTS:
        return [Term(x.node)] if dim == _loss_dim(x) else None
    if x.node.op == "aten.add.Tensor" and args.get("alpha", 1) == 1:
        sides = [args["self"], args["other"]]
        if all(isinstance(side, Val) and side.shape == x.shape for side in sides):
            terms = [find_terms(b, side, dim) for side in sides]
            return None if None in terms else [*terms[0], *terms[1]]
    even = _find_even(b, x, dim)
    if even is not None:
        return [even]
    found = _under(x, dim)
    return find_terms(b, *found) if found is not None else None


def _find_even(b: Draft, x: Val, dim: int) -> Term | None:
    """A value that is the same for all classes, but for weights that all tokens share."""
    if x.node is None:
        return None
    args, thin = dict(x.node.args), x.shape[:dim] + x.shape[dim + 1 :]
    if x.node.op == "aten.full.default":
        return Term(None, b.full(thin, args["fill_value"], x.dtype))
    if x.node.op == "aten.expand.default":
        base = args["self"]
        place = dim - (len(x.shape) - len(base.shape))
        if place >= 0 and base.shape[place] != 1:
            return None
        return Term(None, b.expand(b.view(base, base.shape[:place] + base.shape[place + 1 :]) if place >= 0 else base, thin))
    found = _under(x, dim)
    if found is not None:
        inner = _find_even(b, *found)
        return inner and Term(None, b.view(inner.even, thin), inner.weight)
    scaled = _unscaled(x, dim)
    inner = _find_even(b, scaled[0], dim) if scaled is not None else None
    if inner is None:
        return None
    if isinstance(scaled[2], Val):
        row = b.view(scaled[2], (x.shape[dim],))
        return Term(None, inner.even, row if inner.weight is None else b.mul(inner.weight, row))
    return Term(None, b.call(x.node.op, inner.even, *([args["other"]] if "other" in args else [])), inner.weight)
