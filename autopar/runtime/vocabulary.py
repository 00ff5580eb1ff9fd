"""Tables that may be split by rows over ranks, and cross-entropy over classes that may be: the local parts.

In: a rank's rows (or classes), and `rows`, the whole table's numbers of them, ascending. A whole table is known by its size. What a rank
does not hold is zero in what it returns; the sum over the ranks is the whole. Source of the split loss: Shoeybi et al. 2019, "Megatron-LM",
section 3 (arXiv 1909.08053).

The loss of a token with logits x and class t is log(sum exp(x - m)) - (x_t - m) with m = max x. `m`, the sum and x_t are one number per
token each, so all that ranks exchange is small. Nothing of the size of the logits is made but the gradient: work goes in blocks of tokens.
Exponentials are torch's softmax where they can be: one pass, of half the time of `exp` alone on a CPU (torch 2.13: 0.75 against 1.4 ns an element).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ..graph.tensor import LOGITS_BLOCK as BLOCK  # elements of logits that are worked on at a time

_VECTOR = 16  # elements of a CPU's widest vectors of float32


def _find(wanted: torch.Tensor, rows: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each wanted row its place among the local ones, and whether it is there (else the place is any)."""
    if wanted.device.type == "cpu" and wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < num_rows:
        raise IndexError(f"expected row numbers from 0 to {num_rows - 1}, found {int(wanted.min())} to {int(wanted.max())}")
    place = torch.searchsorted(rows, wanted.contiguous()).clamp_(max=rows.shape[0] - 1)
    return place, rows[place] == wanted


def embedding(weight: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Rows of `weight [v, d]` by number -> `[..., d]`.

    Args:
        rows: the numbers of the local rows.
        num_rows: of the whole table.
    """
    if weight.shape[0] == num_rows:
        return torch.embedding(weight, indices)
    place, here = _find(indices, rows, num_rows)
    return torch.embedding(weight, place).masked_fill_(~here[..., None], 0)


def embedding_backward(grad: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor, num_rows: int, padding_idx: int = -1) -> torch.Tensor:
    """Gradient of `embedding`'s local rows `[v, d]` from `grad [..., d]`; row `padding_idx` gets none."""
    if rows.shape[0] == num_rows:
        return torch.ops.aten.embedding_dense_backward(grad, indices, num_rows, padding_idx, False)
    place, here = _find(indices, rows, num_rows)
    beyond = rows.shape[0]  # one row more for what lies elsewhere
    place = torch.where(here & (indices != padding_idx), place, beyond)
    return torch.ops.aten.embedding_dense_backward(grad, place, beyond + 1, beyond, False)[:beyond]


def embedding_backward_onto(
    sum: torch.Tensor, grad: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor, num_rows: int, padding_idx: int = -1
) -> torch.Tensor:
    """`sum [v, d]` with `embedding_backward` of the rest added in place."""
    if sum.device.type != "cpu" or sum.dtype != grad.dtype or sum.dtype.itemsize < 4:  # a sum of many small ones in 16 bits rounds too often, and elsewhere their order would be any
        return sum.add_(embedding_backward(grad, indices, rows, num_rows, padding_idx))
    wanted, grad = indices.flatten(), grad.reshape(-1, grad.shape[-1])
    place = wanted
    if rows.shape[0] != num_rows:
        place, here = _find(wanted, rows, num_rows)
        grad = grad.masked_fill(~here[:, None], 0)
    if padding_idx >= 0:
        grad = grad.masked_fill((wanted == padding_idx)[:, None], 0)
    return sum.index_add_(0, place, grad)


def _blocks(logits: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Blocks of tokens as views: `logits [..., v]`, and tensors that agree with it but for the last dim."""
    size, lead = logits.numel(), logits.dim() - 1
    if size <= BLOCK or lead == 0:
        yield (logits, *others)
    elif lead > 1 and logits.is_contiguous():
        yield from _blocks(*(t.flatten(0, lead - 1) for t in (logits, *others)))
    elif lead > 1 and size // logits.shape[0] > BLOCK:
        for k in range(logits.shape[0]):
            yield from _blocks(logits[k], *(t[k] for t in others))
    else:
        step = max(1, BLOCK // (size // logits.shape[0]))
        for start in range(0, logits.shape[0], step):
            yield tuple(t[start : start + step] for t in (logits, *others))


def _order(x: torch.Tensor) -> list[int]:
    """Its dims, those first along which elements lie farthest apart."""
    return sorted(range(x.dim()), key=lambda dim: -x.stride(dim))  # stable: dims of one element keep their places


def _softmax(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Along the last dim, `out` laid out as `x` is. Torch's softmax (2.13) looks at no strides of `out`, copies an `x` that is not packed, and is slow along a last dim shorter than a CPU's vectors
    (18432 x 5: 2.1 ms, op by op 0.7): pictures, whose classes lie apart, go along another dim (8 x 48 x 48 x 5 that lie 8 x 5 x 48 x 48: 2.3 to 0.1)."""
    order = _order(x)
    along = order.index(x.dim() - 1)
    if x.permute(order).is_contiguous() and (x.device.type != "cpu" or along != x.dim() - 1 or x.shape[-1] >= _VECTOR):
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) if out is None or out.stride() != x.stride() else out
        torch._softmax(x.permute(order), along, False, out=made.permute(order))
        return made if out is None or made is out else out.copy_(made)
    made = torch.sub(x, x.amax(-1, keepdim=True), **({} if out is None else {"out": out})).exp_()
    return made.div_(made.sum(-1, keepdim=True))


def _exp(x: torch.Tensor, m: torch.Tensor, out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """exp(x - m) of some of the classes as shares of 1 and their sum, in the dtype of `m`: the largest share is 1 / sum exp(x - top), where `top` is the largest of x.

    Args:
        out: for the shares.
    """
    top = x.amax(-1).to(m.dtype)
    shares = _softmax(x.to(m.dtype), out)
    masked = (top == -math.inf) & (m > top)  # all classes here are masked: they have no shares
    total = torch.where(masked, 0.0, (top - m).exp_() / shares.amax(-1))
    if masked.device.type != "cpu" or masked.any():
        shares.masked_fill_(masked[..., None], 0.0)
    return shares, total


def sum_exp(logits: torch.Tensor, peak: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Sum over the local classes of exp(logits - peak): `[..., v]`, `[...]` -> `[...]`, in the dtype of `peak`.

    Args:
        num_classes: on all ranks.
    """
    total = torch.empty(peak.shape, dtype=peak.dtype, device=peak.device)
    for x, m, out in _blocks(logits, peak, total):
        if logits.shape[-1] == num_classes:  # the largest of them is the peak
            torch.reciprocal(_softmax(x.to(m.dtype)).amax(-1), out=out)
        else:
            out.copy_(_exp(x, m)[1])
    return total


def pick(logits: torch.Tensor, target: torch.Tensor, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The logit of each token's class, 0 where another rank holds it: `[..., v]`, `[...]` -> `[...]`."""
    if logits.shape[-1] == num_rows:
        return _gather(logits, target)
    place, here = _find(target, rows, num_rows)
    return _gather(logits, place).masked_fill_(~here, 0)


def _gather(logits: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """An element of each last row, in the order in which they lie (8 x 48 x 48 x 5 that lie 8 x 5 x 48 x 48: 0.13 to 0.05 ms)."""
    order = _order(logits)
    picked = logits.permute(order).gather(order.index(logits.dim() - 1), place[..., None].permute(order))
    return picked.permute([order.index(dim) for dim in range(logits.dim())])[..., 0]


def unpick(grad: torch.Tensor, target: torch.Tensor, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The gradient of `pick`: each token's number at its class, 0 at the others: `[...]`, `[...]` -> `[..., v]`."""
    place = target
    if len(rows) != num_rows:
        place, here = _find(target, rows, num_rows)
        grad = grad.masked_fill(~here, 0)
    made = torch.zeros((*target.shape, len(rows)), dtype=grad.dtype, device=grad.device)
    return made.scatter_(-1, place[..., None], grad[..., None])


def cross_entropy_backward(
    grad: torch.Tensor,
    logits: torch.Tensor,
    peak: torch.Tensor,
    total: torch.Tensor,
    target: torch.Tensor,
    rows: torch.Tensor,
    num_rows: int,
    own: torch.Tensor | None = None,
    even: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient of the local logits: grad softmax - own one-hot of the class + even.

    Args:
        grad: of each token's loss, `[...]`; its dtype is the one that is computed in, the result has that of `logits`.
        peak, total: `m` and `sum_exp` of all classes, `[...]`.
        own, even: `[...]`, where the loss is smoothed; None: `grad` and 0.
    """
    made = torch.empty_like(logits)  # dense, and in the order of its strides: a convolution wants its gradient as it left its result
    own = grad if own is None else own
    place = target
    if logits.shape[-1] != num_rows:
        place, here = _find(target, rows, num_rows)
        own = own * here
    for x, out, g, m, s, at, mine, *rest in _blocks(logits, made, grad, peak, total, place, own, *(() if even is None else (even,))):
        into = out if out.dtype == g.dtype else None
        if logits.shape[-1] == num_rows:
            shares, scale = _softmax(x.to(g.dtype), into), g
        else:
            shares, local = _exp(x, m.to(g.dtype), into)
            scale = local * (g / s)
        order = _order(shares.mul_(scale[..., None]))
        shares.permute(order).scatter_add_(order.index(shares.dim() - 1), at[..., None].permute(order), -mine[..., None].permute(order))
        for added in rest:
            shares.add_(added[..., None])
        if shares is not out:
            out.copy_(shares)
    return made
