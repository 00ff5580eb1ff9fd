"""Log-probabilities that only losses read: which they are, and what a loss reads or a gradient holds of them.

In: the tape; values of the draft. Out: the softmaxes that may be opened (`find_private`), the two numbers per token that stand for one (`Entropy`), a
loss's reading traced back to them (`find_entropy`, `find_scores`), and their gradient taken apart (`find_terms`). Invariant: what is not
found stays whole and is right; it costs a pass more at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import torch

from ..tape import Record, Slot, find_slots
from .draft import Draft, DraftNode, Shape, Val, bind, schema_arguments, view_chain
from .exponentials import HALVES, open_rows

LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
_GRADIENTS = ("nll_loss_backward", "nll_loss2d_backward")
_LINEAR = ("neg", "mul", "div", "add", "sub", "rsub")
_PICKS = ("gather", "index")
_SUMS = ("sum", "mean")
_WHOLE, _SCALED, _GRADIENT = range(3)  # what a value is of log-probabilities: they themselves, their elements times and plus values, their gradient


# -- which log-probabilities only losses read --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a value comes from: uid of the log-probabilities, their number of classes, and what it is of them."""

    root: int
    num_classes: int
    kind: int


def find_private(records: Iterable[Record], kept: frozenset[int], tensors: Mapping[int, torch.Tensor]) -> frozenset[int]:
    """Uids of log-probabilities that only losses and their gradients read, through views and copies: `nll_loss`, a class picked for each token, sums over
    the classes of what is linear in them.

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
    size = tensors[read[0].root].numel()
    if packet in _LINEAR:
        others = [value for k, value in enumerate(record.args) if kinds[k] is None and isinstance(value, Slot)]
        return _SCALED if tensors[record.outs[0]].numel() == size and not (packet == "div" and others) else None
    if packet in _PICKS:
        return -1 if kinds[0] == _WHOLE and tensors[record.outs[0]].numel() * read[0].num_classes == size else None
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
    return _find_at(b, log_p, _loss_dim(log_p)) if b.entropies else None


def _find_at(b: Draft, log_p: Val, dim: int) -> Entropy | None:
    """The softmax of which `log_p` is a view with its classes at `dim`, opened."""
    found: tuple[Val, int] | None = (log_p, dim)
    while found is not None and found[0] not in b.entropies:
        found = _under(*found)
    return _open(b, found[0]) if found is not None and found[1] == class_dim(found[0]) else None


# -- sums over the classes -----------------------------------------------------------------------------------------------------------------

_LONGEST = 16  # so many steps from a sum back to its log-probabilities are looked at


@dataclass(frozen=True, slots=True)
class _Step:
    """What an op does with log-probabilities: times a number, times a value, or plus a value.

    Args:
        factor: the number.
        times, plus: the values, which broadcast to `shape`.
        shape, dim: of the op's result, and where that has its classes.
    """

    factor: float = 1.0
    times: Val | None = None
    plus: object = None
    shape: Shape = ()
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities times a number and weights, plus a rest.

    Args:
        entropy: of the softmax, opened.
        dim: of the classes.
        factor: the number.
        weight: `[v]`, `[..., 1]` or `[..., v]`, classes last; None: 1.
        rest: likewise; None: 0.
    """

    entropy: Entropy
    dim: int
    factor: float
    weight: Val | None
    rest: Val | None


def find_scores(b: Draft, x: Val, dims: Iterable[int]) -> Scores | None:
    """`x` as log-probabilities whose classes are one of `dims`; None where it is nothing of this kind."""
    for dim in dims if b.entropies else ():
        found = _trace_scores(b, x, dim, set(), _LONGEST)
        if found is not None:
            return _fold(b, _open(b, found[0]), dim, found[1])
    return None


def _trace_scores(b: Draft, x: Val, dim: int, tried: set[tuple[Val, int]], longest: int) -> tuple[Val, tuple[_Step, ...]] | None:
    """The log-probabilities that `x` is made of, and how, last step first."""
    if x in b.entropies:
        return (x, ()) if dim == class_dim(x) else None
    if not longest or (x, dim) in tried:
        return None
    tried.add((x, dim))
    for base, there, step in _ways(x, dim):
        found = _trace_scores(b, base, there, tried, longest - 1)
        if found is not None:
            return found[0], (*([] if step is None else [step]), *found[1])
    return None


def _ways(x: Val, dim: int) -> Iterator[tuple[Val, int, _Step | None]]:
    """What `x` may be a step from: the value before, where that has dim `dim`, and the step (None: a view)."""
    under = _under(x, dim)
    if under is not None:
        yield *under, None
    op, args = (x.node.op, dict(x.node.args)) if x.node is not None else ("", {})
    if op == "aten.neg.default":
        yield args["self"], dim, _Step(-1.0)
    if op not in ("aten.mul.Tensor", "aten.div.Tensor", "aten.add.Tensor", "aten.sub.Tensor") or not x.dtype.is_floating_point or args.get("alpha", 1) != 1:
        return
    one, other = args["self"], args["other"]
    if op == "aten.div.Tensor":
        if isinstance(other, (int, float)):
            yield one, dim, _Step(1.0 / other if other else float("nan"))
        return
    for base, by, is_first in ((one, other, True), (other, one, False)):
        if not isinstance(base, Val) or base.shape != x.shape or base.dtype != x.dtype:
            continue
        if op == "aten.mul.Tensor":
            if isinstance(by, Val) and by.dtype.is_complex:
                continue
            yield base, dim, _Step(times=by, shape=x.shape, dim=dim) if isinstance(by, Val) else _Step(float(by))
        else:
            minus = op == "aten.sub.Tensor"
            yield base, dim, _Step(1.0 if is_first or not minus else -1.0, None, (by, -1.0 if minus and is_first else 1.0), x.shape, dim)


def _fold(b: Draft, e: Entropy, dim: int, steps: Iterable[_Step]) -> Scores:
    """All steps as one: what was added is multiplied by what came after it."""
    factor, weight, rest = 1.0, None, None
    dtype = sum_dtype(e)
    for step in steps:
        if step.plus is not None:
            value, sign = step.plus
            value = value if isinstance(value, Val) else b.full((), value, dtype)
            part = _placed(b, e, value, step.shape, step.dim)
            part = part if weight is None else b.mul(part, weight)
            part = part if factor * sign == 1 else b.mul(part, factor * sign)
            rest = part if rest is None else b.add(rest, part)
        factor *= step.factor
        if step.times is not None:
            by = _placed(b, e, step.times, step.shape, step.dim)
            weight = by if weight is None else b.mul(weight, by)
    return Scores(e, dim, factor, weight, rest)


def _placed(b: Draft, e: Entropy, x: Val, shape: Shape, dim: int) -> Val:
    """What broadcasts to `shape`, as it broadcasts to the logits: `[v]` where it is the same for all tokens, else `[..., 1]` or `[..., v]`."""
    x = b.cast(b.view(x, (1,) * (len(shape) - len(x.shape)) + x.shape), sum_dtype(e))
    size = x.shape[dim]
    if prod(x.shape) == size:
        return b.view(x, (size,))
    x = b.expand(x, tuple(size if k == dim else wide for k, wide in enumerate(shape)))
    return b.view(b.permute(x, [*(k for k in range(len(shape)) if k != dim), dim]), (*e.peak.shape, size))


def sum_dtype(e: Entropy) -> torch.dtype:
    """In which sums over the classes are made: of so many, a half would overflow."""
    return torch.float32 if e.peak.dtype in HALVES else e.peak.dtype


# -- one class per token -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Picked:
    """The log-probability of one class for each token.

    Args:
        entropy: of the softmax, opened.
        target: the classes, `[...]`.
    """

    entropy: Entropy
    target: Val


def find_picked(b: Draft, x: Val, dim: int, index: Val) -> Picked | None:
    """`gather(x, dim, index)` of one class for each token of log-probabilities; None where it is anything else."""
    dim %= max(len(x.shape), 1)
    if not b.entropies or not x.shape or index.shape != (*x.shape[:dim], 1, *x.shape[dim + 1 :]):
        return None
    e = _find_at(b, x, dim)
    return Picked(e, b.view(index, e.peak.shape)) if e is not None else None


def find_indexed(b: Draft, x: Val, indices: Iterable[Val | None]) -> Picked | None:
    """`x[arange(n), index]` of log-probabilities `[n, v]`; None where it is anything else."""
    e = _find_at(b, x, 1) if b.entropies and len(x.shape) == 2 and _counts_rows(x.shape, indices) else None
    if e is None:
        return None
    return Picked(e, b.view(_from_the_front(b, tuple(indices)[1], x.shape[1]), e.peak.shape))


def indexed_class(b: Draft, x: Val, indices: Iterable[Val | None]) -> Val | None:
    """The classes of `x[arange(n), index]`, of any floats `[n, v]`, counted from 0; None where it is anything else."""
    if len(x.shape) != 2 or not x.dtype.is_floating_point or not _counts_rows(x.shape, indices):
        return None
    return _from_the_front(b, tuple(indices)[1], x.shape[1])


def _from_the_front(b: Draft, index: Val, n: int) -> Val:
    """Indices of which -1 is the last one, as those that count from 0."""
    return b.call("aten.where.self", b.call("aten.lt.Scalar", index, 0), b.add(index, n), index)


def _counts_rows(shape: Shape, indices: Iterable[Val | None]) -> bool:
    """True where `[n, v]` is indexed by all its rows in order, and whole numbers."""
    rows, *others = indices
    if rows is None or len(others) != 1 or others[0] is None or others[0].dtype == torch.bool or others[0].shape != shape[:1]:
        return False
    made = view_chain(rows)[-1]
    args = dict(made.node.args) if made.node is not None and made.node.op == "aten.arange.start_step" else {}
    return rows.shape == shape[:1] and (args.get("start"), args.get("end"), args.get("step")) == (0, shape[0], 1)


# -- gradients -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfLoss:
    """A part of a gradient of log-probabilities: what `nll_loss` gives."""

    loss: DraftNode


@dataclass(frozen=True, slots=True)
class OfClass:
    """A part that one class of each token gets.

    Args:
        target: the classes, with a dim of size 1 or without: one for each token.
        grad: a number for each.
    """

    target: Val
    grad: Val


@dataclass(frozen=True, slots=True)
class OfAll:
    """A part that all classes get.

    Args:
        even: a number per token, `[...]` without the classes.
        weight: `[v]`, times which they get it; None: 1.
    """

    even: Val
    weight: Val | None = None


@dataclass(frozen=True, slots=True)
class OfEach:
    """A part that has a number for each class of each token.

    Args:
        dim: where `grad` has its classes.
    """

    grad: Val
    dim: int


Term = OfLoss | OfClass | OfAll | OfEach


def find_terms(b: Draft, x: Val, dim: int) -> list[Term]:
    """The sum that a gradient of log-probabilities with its classes at `dim` is."""
    return _known_terms(b, x, dim) or [OfEach(x, dim)]


def _known_terms(b: Draft, x: Val, dim: int) -> list[Term] | None:
    """As `find_terms`; None where `x` is nothing that has less than a number for each class."""
    if x.node is None:
        return None
    args = dict(x.node.args)
    if x.node.op.split(".")[1] in _GRADIENTS:
        return [OfLoss(x.node)] if dim == _loss_dim(x) else None
    if x.node.op == "aten.add.Tensor" and args.get("alpha", 1) == 1:
        sides = [args["self"], args["other"]]
        if all(isinstance(side, Val) and side.shape == x.shape for side in sides):
            known = [_known_terms(b, side, dim) for side in sides]
            if any(known):
                return [term for side, terms in zip(sides, known) for term in terms or [OfEach(side, dim)]]
    spread = _spread_at(b, x, dim)
    if spread is not None:
        return [spread]
    even = _find_even(b, x, dim)
    if even is not None:
        return [even]
    found = _under(x, dim)
    return _known_terms(b, *found) if found is not None else None


def _spread_at(b: Draft, x: Val, dim: int) -> OfClass | None:
    """The gradient of `gather` of one class for each token, and of `[arange(n), index]`: numbers added to zeros."""
    args = dict(x.node.args)
    if x.node.op == "autopar.unpick":
        thin = (*x.shape[:dim], 1)
        return OfClass(b.view(args["target"], thin), b.view(args["grad"], thin)) if dim == len(x.shape) - 1 else None
    if x.node.op not in ("aten.scatter_add.default", "aten.index_put.default") or not is_zero(args["self"]):
        return None
    if x.node.op == "aten.scatter_add.default":
        thin = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
        fits = args["dim"] % len(x.shape) == dim and args["index"].shape == args["src"].shape == thin
        return OfClass(args["index"], args["src"]) if fits else None
    fits = dim == 1 and len(x.shape) == 2 and args.get("accumulate") and _counts_rows(x.shape, args["indices"]) and args["values"].shape == x.shape[:1]
    return OfClass(_from_the_front(b, args["indices"][1], x.shape[1]), args["values"]) if fits else None


def is_pick(x: Val, dim: int, index: Val) -> bool:
    """True where `index` has one place in each last row of floats."""
    rank = len(x.shape)
    return rank > 0 and dim % rank == rank - 1 and index.shape == (*x.shape[:-1], 1) and x.dtype.is_floating_point


def is_zero(x: Val) -> bool:
    """True for zeros that the step makes."""
    return x.node is not None and x.node.op == "aten.full.default" and dict(x.node.args)["fill_value"] == 0


def _find_even(b: Draft, x: Val, dim: int) -> OfAll | None:
    """A value that is the same for all classes, but for weights that all tokens share."""
    if x.node is None:
        return None
    args, thin = dict(x.node.args), x.shape[:dim] + x.shape[dim + 1 :]
    if x.node.op == "aten.full.default":
        return OfAll(b.full(thin, args["fill_value"], x.dtype))
    if x.node.op == "aten.expand.default":
        base = args["self"]
        place = dim - (len(x.shape) - len(base.shape))
        if place >= 0 and base.shape[place] != 1:
            return None
        return OfAll(b.expand(b.view(base, base.shape[:place] + base.shape[place + 1 :]) if place >= 0 else base, thin))
    found = _under(x, dim)
    if found is not None:
        inner = _find_even(b, *found)
        return inner and OfAll(b.view(inner.even, thin), inner.weight)
    scaled = _unscaled(x, dim)
    inner = _find_even(b, scaled[0], dim) if scaled is not None else None
    if inner is None:
        return None
    if isinstance(scaled[1], Val):
        row = b.view(scaled[1], (x.shape[dim],))
        return OfAll(inner.even, row if inner.weight is None else b.mul(inner.weight, row))
    return OfAll(b.call(x.node.op, inner.even, *([args["other"]] if "other" in args else [])), inner.weight)


def _unscaled(x: Val, dim: int) -> tuple[Val, float | Val] | None:
    """What `x` is a multiple of, and by what: a number, or a value that has its dim `dim` alone."""
    for base, _, step in _ways(x, dim):
        if step is None or step.plus is not None:
            continue
        if step.times is None:
            return base, step.factor
        if _is_row(step.times, x.shape, dim):
            return base, step.times
    return None


def _is_row(x: Val, shape: Shape, dim: int) -> bool:
    """True where `x`, broadcast to `shape`, has one number for each entry of dim `dim`."""
    place = dim - (len(shape) - len(x.shape))
    return x.dtype.is_floating_point and place >= 0 and x.shape[place] == shape[dim] == prod(x.shape)
