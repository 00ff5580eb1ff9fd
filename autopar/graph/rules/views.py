"""Views: the same elements under other dims. Their factors come from the shapes.

A dim that a view merges or splits is a product of factors: `(v0 v1) -> v0 v1`. What has no common factors is whole. All are linear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd, prod

from ..node import Arg
from ..rule import Rule, Shape, Site
from .dims import ints, letters, normal_dim, normal_dims, operand, whole_operand

SELF = (("self",),)
_RAGGED = "the view cuts across the dims, so that no factor is common to both sides"


# --- view: merge and split ---------------------------------------------------------------------------------------------------


def view_text(before: Shape, after: Shape) -> str:
    """Factors of a reshape: within each smallest run of dims of equal size on both sides, the common refinement of the dims."""
    if 0 in before:  # nothing to split
        return f"{whole_operand(len(before), 'x')} -> {whole_operand(len(after), 'y')}"
    left: list[str] = []
    right: list[str] = []
    i = j = count = 0
    while i < len(before) or j < len(after):
        if i < len(before) and before[i] == 1:
            left.append("1")
            i += 1
            continue
        if j < len(after) and after[j] == 1:
            right.append("1")
            j += 1
            continue
        first, last, size_in, size_out = i + 1, j + 1, before[i], after[j]
        while size_in != size_out:
            if size_in < size_out:
                size_in *= before[first]
                first += 1
            else:
                size_out *= after[last]
                last += 1
        group_in, group_out, count = _refine(before[i:first], after[j:last], count)
        left += group_in
        right += group_out
        i, j = first, last
    return f"{' '.join(left)} -> {' '.join(right)}"


def _refine(before: Shape, after: Shape, count: int) -> tuple[list[str], list[str], int]:
    """Texts of the dims of one run; factor names count on from `count`."""
    strides = sorted({prod(dims[k:]) for dims in (before, after) for k in range(len(dims) + 1)})
    if any(high % low for low, high in zip(strides, strides[1:])):
        return _ragged(before, after, count)
    name = {low: (f"v{count + k}", high // low) for k, (low, high) in enumerate(zip(reversed(strides[:-1]), reversed(strides[1:])))}

    def texts(dims: Shape) -> list[str]:
        found = []
        for k, size in enumerate(dims):
            low = prod(dims[k + 1 :])
            parts = [f"{n}:{s}" for stride, (n, s) in name.items() if low <= stride < low * size]
            found.append(f"({' '.join(parts)})" if size > 1 else "1")
        return found

    return texts(before), texts(after), count + len(name)


def _ragged(before: Shape, after: Shape, count: int) -> tuple[list[str], list[str], int]:
    """Dims that are cut across: only what the outermost, and what the innermost dims have in common is free."""
    outer, inner = gcd(before[0], after[0]), gcd(before[-1], after[-1])
    first, last = f"v{count}", f"v{count + 1}"
    count += 2
    texts = []
    for dims in (before, after):
        names = [f"[v{count + k}]" for k in range(len(dims))]
        names[0] = f"({first}:{outer} {names[0]})"
        names[-1] = f"({names[-1]} {last}:{inner})"
        texts.append(names)
        count += len(dims)
    return texts[0], texts[1], count


def _view(site: Site) -> str:
    return view_text(site.inputs[0], site.outputs[0])


def output_size(name: str) -> Callable[[Site, tuple[Shape, ...]], Mapping[str, Arg]]:
    """The argument `name` is the shape of the output."""

    def localise(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
        return {name: site.outputs[0]}

    return localise


def _expand(site: Site) -> str:
    before, after = site.inputs[0], site.outputs[0]
    names = letters(len(after))
    own = names[len(after) - len(before) :]
    left = [name if size != 1 else "1" for name, size in zip(own, before)]
    return f"{operand(left)} -> {operand(names)}"


def _repeat(site: Site) -> str:
    before, after = site.inputs[0], site.outputs[0]
    names = letters(len(after))
    padded = (1,) * (len(after) - len(before)) + before
    right = [f"(g{k}:{out // size} {name}:{size})" for k, (name, size, out) in enumerate(zip(names, padded, after))]
    return f"{operand(names[len(after) - len(before) :])} -> {operand(right)}"


def _local_repeats(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    before, after = site.inputs[0], site.outputs[0]
    padded = (1,) * (len(after) - len(before)) + before
    return {"repeats": tuple(out // size for out, size in zip(after, padded))}


# --- dims in another order, or of size one -------------------------------------------------------------------------------------


def _permute(site: Site) -> str:
    names = letters(len(site.inputs[0]))
    order = [d % len(names) for d in ints(site.arg("dims"))]
    return f"{operand(names)} -> {operand(names[d] for d in order)}"


def _transpose(site: Site) -> str:
    names = letters(len(site.inputs[0]))
    left = operand(names)
    a, b = (normal_dim(site.arg(key), len(names)) for key in ("dim0", "dim1"))
    if names:
        names[a], names[b] = names[b], names[a]
    return f"{left} -> {operand(names)}"


def _t(site: Site) -> str:
    names = letters(len(site.inputs[0]))
    return f"{operand(names)} -> {operand(reversed(names))}"


def _squeeze(site: Site) -> str:
    # a named dim that is larger than one stays in the shape; on a shard of size one it would vanish, so it is whole
    shape = site.inputs[0]
    names = letters(len(shape))
    named = normal_dims(site.arg("dim"), len(shape))
    right = [f"[{name}]" if k in named else name for k, name in enumerate(names) if shape[k] != 1 or k not in named]
    return f"{operand(names)} -> {operand(right)}"


def _unsqueeze(site: Site) -> str:
    names = letters(len(site.inputs[0]))
    dim = normal_dim(site.arg("dim"), len(names) + 1)
    return f"{operand(names)} -> {operand((*names[:dim], '1', *names[dim:]))}"


def _as_strided(site: Site) -> str:
    return f"{whole_operand(len(site.inputs[0]), 'x')} -> {whole_operand(len(site.outputs[0]), 'y')}"


ROWS = (
    Rule("aten.view.default", _view, SELF, flops=0, localise=output_size("size"), why_whole=_RAGGED),
    Rule("aten._unsafe_view", _view, SELF, flops=0, localise=output_size("size"), why_whole=_RAGGED),
    Rule("aten.reshape", _view, SELF, flops=0, localise=output_size("shape"), why_whole=_RAGGED),
    Rule("aten.expand", _expand, SELF, flops=0, localise=output_size("size")),
    Rule("aten.repeat", _repeat, SELF, flops=0, localise=_local_repeats),
    Rule("aten.permute", _permute, SELF, flops=0),
    Rule("aten.transpose", _transpose, SELF, flops=0),
    Rule("aten.t", _t, SELF, flops=0),
    Rule("aten.unsqueeze", _unsqueeze, SELF, flops=0),
    Rule("aten.squeeze", _squeeze, SELF, flops=0, why_whole="a shard of size one would be squeezed away"),
    Rule("aten.alias", "... -> ...", SELF, flops=0),
    Rule("aten.detach", "... -> ...", SELF, flops=0),
    Rule("aten.as_strided", _as_strided, SELF, flops=0, why_whole="its strides are those of the whole memory"),
)
