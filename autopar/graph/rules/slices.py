"""A part of a dim: slices, selections, concatenations, and their gradients.

A slice that is aligned to chunks takes whole chunks, so the inside of a chunk is free: `([g:3] c) -> c` for one of q, k, v in a fused
projection. What is not aligned is whole. All are linear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd

from ..node import Arg, get_arg
from ..rule import Rule, Shape, Site
from .dims import hold, ints, letters, normal_dim, normal_dims, operand
from .pointwise import linear_if_zero
from .views import output_size

SELF = (("self",),)
GRAD = (("grad_output",),)
BOTH = (("self", "src"),)
_UNALIGNED = "the piece does not fall on chunks of equal size"
_ONE_INDEX = "the selected index lies on one rank only"


def _ends(size: int, start: Arg, end: Arg, step: Arg) -> tuple[int, int, int]:
    """(start, length, step) of a slice, as Python counts."""
    assert all(x is None or isinstance(x, int) for x in (start, end, step))
    first, stop, by = slice(start, end, step).indices(size)
    return first, len(range(first, stop, by)), by


def _slice_dim(size: int, start: int, length: int, step: int) -> tuple[str, str]:
    """Texts of the long and of the short dim of a slice."""
    if length == size:
        return "c", "c"
    chunk = gcd(size, start, length)
    if step == 1 and chunk > 1:
        return f"([g:{size // chunk}] c:{chunk})", f"([h:{length // chunk}] c:{chunk})"
    if step > 1 and start < step and length * step == size:
        return f"(c:{length} [g:{step}])", "c"
    return "[long]", "[short]"


def _slice_operands(site: Site, long: Shape) -> tuple[str, str]:
    """Texts of the whole tensor and of the piece."""
    dim = normal_dim(site.arg("dim", 0), len(long))
    start, length, step = _ends(long[dim], site.arg("start"), site.arg("end"), site.arg("step", 1))
    outer, inner = _slice_dim(long[dim], start, length, step)
    names = letters(len(long))
    return tuple(operand((*names[:dim], text, *names[dim + 1 :])) for text in (outer, inner))  # type: ignore[return-value]


def _slice(site: Site) -> str:
    long, short = _slice_operands(site, site.inputs[0])
    return f"{long} -> {short}"


def _slice_backward(site: Site) -> str:
    long, short = _slice_operands(site, site.outputs[0])
    return f"{short} -> {long}"


def _slice_scatter(site: Site) -> str:
    long, short = _slice_operands(site, site.inputs[0])
    return f"{long}, {short} -> {long}"


def _local_ends(site: Site, whole: int, local: int) -> Mapping[str, Arg]:
    """Start and end on a dim of which every chunk has shrunk by the same factor."""
    start, length, step = _ends(whole, site.arg("start"), site.arg("end"), site.arg("step", 1))
    if local == whole:
        return {}
    if length == whole:
        return {"start": 0, "end": local}
    if step > 1:
        return {"start": start, "end": local}
    shrink = whole // local
    return {"start": start // shrink, "end": (start + length) // shrink}


def _local_slice(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    dim = normal_dim(site.arg("dim", 0), len(whole_inputs[0]))
    return _local_ends(site, whole_inputs[0][dim], site.inputs[0][dim])


def _local_slice_backward(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    whole, local = ints(site.arg("input_sizes")), site.outputs[0]
    dim = normal_dim(site.arg("dim"), len(whole))
    return {"input_sizes": local, **_local_ends(site, whole[dim], local[dim])}


def _select_operands(site: Site, rank: int) -> tuple[str, str]:
    dim = normal_dim(get_arg(site.node, "dim"), rank)
    names = letters(rank)
    return operand(hold(names, (dim,))), operand(names[:dim] + names[dim + 1 :])


def _select(site: Site) -> str:
    long, short = _select_operands(site, len(site.inputs[0]))
    return f"{long} -> {short}"


def _select_backward(site: Site) -> str:
    long, short = _select_operands(site, len(site.outputs[0]))
    return f"{short} -> {long}"


def _select_scatter(site: Site) -> str:
    long, short = _select_operands(site, len(site.inputs[0]))
    return f"{long}, {short} -> {long}"


def _cat(site: Site) -> str:
    rank = len(site.outputs[0])
    dim = normal_dim(site.arg("dim", 0), rank)
    names = letters(rank)
    pieces = [shape[dim] for shape in site.inputs]
    chunk = gcd(*pieces)
    if len(pieces) == 1:
        texts = ["c", "c"]
    elif chunk > 1:
        texts = [f"([g{k}:{size // chunk}] c:{chunk})" for k, size in enumerate((*pieces, sum(pieces)))]
    else:
        texts = [f"[piece{k}]" for k in range(len(pieces) + 1)]
    operands = [operand((*names[:dim], text, *names[dim + 1 :])) for text in texts]
    return f"{', '.join(operands[:-1])} -> {operands[-1]}"


def _dims_whole(name: str) -> Callable[[Site], str]:
    """All dims of the argument `name` are whole, the others carry through."""

    def text(site: Site) -> str:
        rank = len(site.inputs[0])
        both = operand(hold(letters(rank), normal_dims(site.arg(name), rank)))
        return f"{both} -> {both}"

    return text


def _flip(site: Site) -> str:
    rank, dims = len(site.inputs[0]), site.arg("dims")
    both = operand(hold(letters(rank), normal_dims(dims, rank) if dims else ()))  # no dims: nothing is flipped
    return f"{both} -> {both}"


def _last_two_whole(site: Site) -> str:
    return "... [row] [col] -> ... [row] [col]"


def _pad(site: Site) -> str:
    rank = len(site.inputs[0])
    pad = ints(site.arg("pad"))
    padded = {rank - 1 - k // 2 for k, amount in enumerate(pad) if amount}
    left = hold(letters(rank), padded)
    right = [f"[out{k}]" if k in padded else name for k, name in enumerate(left)]
    return f"{operand(left)} -> {operand(right)}"


def _diagonal_operands(site: Site, rank: int) -> tuple[str, str]:
    one, two = (normal_dim(site.arg(name, default), rank) for name, default in (("dim1", 0), ("dim2", 1)))
    names = hold(letters(rank), (one, two))
    return operand(names), operand([n for k, n in enumerate(names) if k not in (one, two)] + ["[diagonal]"])


def _diagonal(site: Site) -> str:
    long, short = _diagonal_operands(site, len(site.inputs[0]))
    return f"{long} -> {short}"


def _diagonal_backward(site: Site) -> str:
    long, short = _diagonal_operands(site, len(site.outputs[0]))
    return f"{short} -> {long}"


def _diag_embed(site: Site) -> str:
    rank = len(site.outputs[0])
    one, two = (normal_dim(site.arg(name, default), rank) for name, default in (("dim1", -2), ("dim2", -1)))
    names = letters(rank - 2)
    right = list(names)
    for at in sorted((one, two)):
        right.insert(at, f"[m{at}]")
    return f"{operand(names)} [diagonal] -> {operand(right)}"


def _diagonal_scatter(site: Site) -> str:
    long, short = _diagonal_operands(site, len(site.inputs[0]))
    return f"{long}, {short} -> {long}"


def _rot90(site: Site) -> str:
    rank = len(site.inputs[0])
    one, two = normal_dims(site.arg("dims", (0, 1)), rank)
    turns = site.arg("k", 1)
    assert isinstance(turns, int)
    turned = {0: (), 1: (two,), 2: (one, two), 3: (one,)}[turns % 4]  # the dims that run backwards
    names = hold(letters(rank), turned)
    right = list(names)
    if turns % 2:
        right[one], right[two] = right[two], right[one]
    return f"{operand(names)} -> {operand(right)}"


def _unfold_operands(long: Shape, dim: Arg, size: Arg, step: Arg) -> tuple[str, str]:
    """Windows along a dim: free where they tile it, else they overlap or leave gaps."""
    at = normal_dim(dim, len(long))
    names = letters(len(long))
    if size == step and long[at] % ints(size)[0] == 0:
        outer, window, inner = f"(n [w:{size}])", "n", "[w]"
    else:
        outer, window, inner = "[x]", "[n]", "[w]"
    return operand((*names[:at], outer, *names[at + 1 :])), operand((*names[:at], window, *names[at + 1 :], inner))


def _unfold(site: Site) -> str:
    long, short = _unfold_operands(site.inputs[0], site.arg("dimension"), site.arg("size"), site.arg("step"))
    return f"{long} -> {short}"


def _unfold_backward(site: Site) -> str:
    long, short = _unfold_operands(site.outputs[0], site.arg("dim"), site.arg("size"), site.arg("step"))
    return f"{short} -> {long}"


def _glu(site: Site) -> str:
    rank = len(site.inputs[0])
    dim = normal_dim(site.arg("dim", -1), rank)
    names = letters(rank)
    short = operand((*names[:dim], "c", *names[dim + 1 :]))
    long = operand((*names[:dim], "([half:2] c)", *names[dim + 1 :]))
    return f"{long} -> {short}" if len(site.inputs) == 1 else f"{short}, {long} -> {long}"


_ORDER = "elements move along the dim, over the borders of the pieces"
_DIAGONAL = "the diagonal runs over both dims"
_OVERLAP = "the windows overlap"
_TRIANGLE = "the triangle depends on the position in the matrix"

ROWS = (
    Rule("aten.slice", _slice, SELF, flops=0, localise=_local_slice, why_whole=_UNALIGNED),
    Rule("aten.slice_backward", _slice_backward, GRAD, flops=0, localise=_local_slice_backward, why_whole=_UNALIGNED),
    Rule("aten.slice_scatter", _slice_scatter, BOTH, flops=0, localise=_local_slice, why_whole=_UNALIGNED),
    Rule("aten.select", _select, SELF, flops=0, why_whole=_ONE_INDEX),
    Rule("aten.select_backward", _select_backward, GRAD, flops=0, localise=output_size("input_sizes"), why_whole=_ONE_INDEX),
    Rule("aten.select_scatter", _select_scatter, BOTH, flops=0, why_whole=_ONE_INDEX),
    Rule("aten.cat", _cat, (("tensors",),), flops=0, why_whole="the pieces have no common chunk"),
    Rule("aten.flip", _flip, SELF, flops=0, why_whole=_ORDER),
    Rule("aten.roll", _dims_whole("dims"), SELF, flops=0, why_whole=_ORDER),
    Rule("aten.constant_pad_nd", _pad, linear_if_zero, flops=0, why_whole="only the ends of the dim are padded"),
    Rule("aten.tril", _last_two_whole, SELF, flops=0, why_whole=_TRIANGLE),
    Rule("aten.triu", _last_two_whole, SELF, flops=0, why_whole=_TRIANGLE),
    Rule("aten.diagonal", _diagonal, SELF, flops=0, why_whole=_DIAGONAL),
    Rule("aten.diagonal_backward", _diagonal_backward, GRAD, flops=0, localise=output_size("input_sizes"), why_whole=_DIAGONAL),
    Rule("aten.diag_embed", _diag_embed, SELF, flops=0, why_whole=_DIAGONAL),
    Rule("aten.diagonal_scatter", _diagonal_scatter, BOTH, flops=0, why_whole=_DIAGONAL),
    Rule("aten.trace", "[row] [col] ->", SELF, why_whole=_DIAGONAL),
    Rule("aten.rot90", _rot90, SELF, flops=0, why_whole=_ORDER),
    Rule("aten.unfold", _unfold, SELF, flops=0, why_whole=_OVERLAP),
    Rule("aten.unfold_backward", _unfold_backward, (("grad_in",),), flops=0, localise=output_size("input_sizes"), why_whole=_OVERLAP),
    Rule("aten.glu", _glu, why_whole="one half gates the other"),
    Rule("aten.glu_backward", _glu, GRAD, why_whole="one half gates the other"),
)
