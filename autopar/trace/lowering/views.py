"""Views and writes: turns in-place programs into pure ones.

Every tensor on the tape is a `Handle`: a cell (its storage) and a chain of views from the cell's value. A write through a view makes a
new value of the cell (scatter), and every other view of that cell is made again when it is next read. In: what the op did to which
handle. Out: `Val`s. Invariant: reading a handle gives what the tensor would hold now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...errors import TraceError
from .draft import Draft, Shape, Val, const


@dataclass(slots=True, eq=False)
class Cell:
    """One storage: its value now, the uid of the tensor that was made with it, and how often it was written."""

    value: Val
    uid: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """One step from a value to a view of it.

    kind: view, permute, expand, slice, select, strided (elements of a 1-D value by size, stride and offset), or other (then `op` with
    `params` by name).
    """

    kind: str
    params: tuple
    op: str = ""


@dataclass(slots=True, eq=False)
class Handle:
    """A tensor: views on a cell, with the value as it was last read."""

    cell: Cell
    chain: tuple[View, ...] = ()
    cached: Val | None = None
    cached_version: int = -1


@dataclass(slots=True)
class Handles:
    """All tensors of a tape, by uid."""

    draft: Draft
    table: dict[int, Handle] = field(default_factory=dict)

    def make(self, uid: int, value: Val) -> None:
        """A new storage."""
        self.table[uid] = Handle(Cell(value, uid), (), value, 0)

    def make_view(self, uid: int, base: int, steps: tuple[View, ...]) -> None:
        """A tensor that shares its base's storage."""
        parent = self.table[base]
        handle = Handle(parent.cell, parent.chain + steps)
        value = self.read(base)
        for step in steps:
            value = apply_view(self.draft, value, step)
        handle.cached, handle.cached_version = value, parent.cell.version
        self.table[uid] = handle

    def read(self, uid: int) -> Val:
        """What the tensor holds now."""
        handle = self.table[uid]
        if handle.cached is None or handle.cached_version != handle.cell.version:
            value = handle.cell.value
            for step in handle.chain:
                value = apply_view(self.draft, value, step)
            handle.cached, handle.cached_version = value, handle.cell.version
        return handle.cached

    def write(self, uid: int, value: Val) -> None:
        """The tensor holds `value` from now on; so do all that share its storage."""
        handle = self.table[uid]
        bases = [handle.cell.value]
        for step in handle.chain[:-1]:
            bases.append(apply_view(self.draft, bases[-1], step))
        new = value
        for step, base in zip(reversed(handle.chain), reversed(bases)):
            new = invert_view(self.draft, base, step, new)
        handle.cell.value = new
        handle.cell.version += 1
        handle.cached, handle.cached_version = value, handle.cell.version


def apply_view(b: Draft, x: Val, step: View) -> Val:
    """The view's value."""
    if step.kind == "view":
        return b.view(x, step.params)
    if step.kind == "permute":
        return b.permute(x, step.params)
    if step.kind == "expand":
        return b.expand(x, step.params)
    if step.kind == "slice":
        dim, start, end, stride = step.params
        x, start, end = _under_writes(x, dim, start, end)
        shape = list(x.shape)
        shape[dim] = (end - start + stride - 1) // stride
        if tuple(shape) == x.shape:
            return x
        args = {"self": x, "dim": dim, "start": start, "end": end} | ({"step": stride} if stride != 1 else {})
        return b.emit_one("aten.slice.Tensor", args, tuple(shape), x.dtype)
    if step.kind == "select":
        dim, index = step.params
        x, index, _ = _under_writes(x, dim, index, index + 1)
        shape = x.shape[:dim] + x.shape[dim + 1 :]
        if x.shape[dim] == 1:
            return b.view(x, shape)
        return b.emit_one("aten.select.int", {"self": x, "dim": dim, "index": index}, shape, x.dtype)
    if step.kind == "strided":
        return b.view(b.call("aten.index.Tensor", x, [_strided_index(b, *step.params)]), step.params[0])
    return b.call(_EAGER.get(step.op, step.op), x, **dict(step.params))


def _under_writes(x: Val, dim: int, start: int, end: int) -> tuple[Val, int, int]:
    """Where elements `start` to `end` of a dim of `x` come from, and which they are there: writes into `x` beside them are passed by, and what one write made all of is what was written.

    Gates of a recurrent cell (`gates[:, :h].sigmoid_()`) are so read as they were made, and the whole that was written into is made only where somebody reads it.
    """
    while (write := _slice_write(x, dim)) is not None:
        base, new, low, high, step = write
        if step != 1 or new.dtype != x.dtype:
            break
        if end <= low or start >= high:
            x = base
        elif low <= start and end <= high:
            x, start, end = new, start - low, end - low
        else:
            break
    return x, start, end


def _slice_write(x: Val, dim: int) -> tuple[Val, Val, int, int, int] | None:
    """Of a value that was made by writing into a slice along this dim: what was there before, what was written, and where (start, end, step)."""
    if x.node is None or x.node.op != "aten.slice_scatter.default":
        return None
    args = dict(x.node.args)
    end = args.get("end")
    return (args["self"], args["src"], args.get("start") or 0, x.shape[dim] if end is None else end, args.get("step", 1)) if args.get("dim", 0) == dim else None


def _strided_index(b: Draft, size: Shape, stride: Shape, offset: int) -> Val:
    """The places, 1-D, of the elements that `as_strided` takes."""
    places = b.full((1,) * len(size), offset, torch.int64)
    for dim, (n, step) in enumerate(zip(size, stride)):
        args = {"start": 0, "end": n, "step": 1, "dtype": const(torch.int64)}
        steps = b.mul(b.emit_one("aten.arange.start_step", args, (n,), torch.int64), step)
        places = b.add(places, b.view(steps, tuple(n if d == dim else 1 for d in range(len(size)))))
    return b.view(places, (-1,)) if size else b.view(places, (1,))


def strided_steps(root: torch.Tensor, size: list[int], stride: list[int], offset: int) -> tuple[View, ...] | None:
    """`as_strided` as steps from the tensor that was made with the storage; None where that tensor has gaps in memory."""
    order = sorted(range(root.dim()), key=lambda d: (-root.stride(d), d))
    wanted = 1
    for dim in reversed(order):
        if root.shape[dim] != 1 and root.stride(dim) != wanted:
            return None
        wanted *= root.shape[dim]
    if root.storage_offset():
        return None
    return View("permute", tuple(order)), View("view", (root.numel(),)), View("strided", (tuple(size), tuple(stride), offset))


def invert_view(b: Draft, base: Val, step: View, new: Val) -> Val:
    """The base after `new` was written through the view."""
    if step.kind == "view":
        return b.view(new, base.shape)
    if step.kind == "permute":
        return b.permute(new, [step.params.index(k) for k in range(len(step.params))])
    if step.kind == "slice":
        dim, start, end, stride = step.params
        if new.shape == base.shape:
            return new
        while stride == 1 and (write := _slice_write(base, dim)) is not None and start <= write[2] and write[3] <= end:  # what was written there before is written over
            base = write[0]
        return b.call("aten.slice_scatter.default", base, new, dim, start, end, stride)
    if step.kind == "select":
        if base.shape[step.params[0]] == 1:
            return b.view(new, base.shape)
        return b.call("aten.select_scatter.default", base, new, *step.params)
    if step.kind == "strided" and _are_apart(*step.params):
        return b.call("aten.index_put.default", base, [_strided_index(b, *step.params)], b.view(new, (-1,)))
    inverse = _INVERSES.get(step.op)
    if inverse is not None:
        return inverse(b, base, new, dict(step.params))
    what = step.op or step.kind
    raise TraceError(
        f"{b.source or b.path or 'the step'}: writes in place through {what}, whose elements overlap or cannot be put back. Write to a "
        "clone, or use torch.where or index_put instead."
    )


_INVERSES = {
    "aten.diagonal.default": lambda b, base, new, params: b.call("aten.diagonal_scatter.default", base, new, **params),
    "aten.view_as_real.default": lambda b, base, new, params: b.call("aten.view_as_complex.default", new),
    "aten.view_as_complex.default": lambda b, base, new, params: b.call("aten.view_as_real.default", new),
    "aten._conj.default": lambda b, base, new, params: b.call("aten.conj_physical.default", new),
    "aten._neg_view.default": lambda b, base, new, params: b.call("aten.neg.default", new),
}  # what puts a view's new value back into its base


_EAGER = {
    "aten._conj.default": "aten.conj_physical.default",
    "aten._neg_view.default": "aten.neg.default",
}  # torch's lazy forms mark a view; not every op takes one, and what is written into it would be written into its base


def _are_apart(size: Shape, stride: Shape, offset: int) -> bool:
    """True where no element stands in two places."""
    reach = 0
    for step, n in sorted((s, n) for s, n in zip(stride, size) if n > 1):
        if step <= reach:
            return False
        reach += step * (n - 1)
    return True


def _dim(x: Shape, dim: int) -> int:
    return dim % max(len(x), 1)


def view_steps(op: str, shape: Shape, a: dict[str, object], out_shapes: list[Shape]) -> list[tuple[View, ...]] | None:
    """For each output of a view op the steps from its input.

    Args:
        op: packet name (`transpose`).
        shape: of the input.
        a: the other arguments by schema name, defaults filled in.
        out_shapes: as torch made them.

    Returns:
        None where the op is not a view that we know by heart.
    """
    out = out_shapes[0] if out_shapes else ()
    if op in ("detach", "alias", "lift_fresh", "lift", "view_as_self", "_conj_identity"):
        return [()]
    if op in ("view", "_unsafe_view", "_reshape_alias", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten"):
        return [(View("view", out),)] if a.get("dtype") is None else None
    if op in ("t", "numpy_T"):
        return [(View("permute", tuple(reversed(range(len(shape))))),)]
    if op == "transpose":
        order = list(range(len(shape)))
        i, j = (_dim(shape, d) for d in (a["dim0"], a["dim1"]))
        if order:
            order[i], order[j] = order[j], order[i]
        return [(View("permute", tuple(order)),)]
    if op == "permute":
        return [(View("permute", tuple(_dim(shape, d) for d in a["dims"])),)]
    if op == "expand":
        return [(View("expand", out),)]
    if op == "slice":
        dim, step = _dim(shape, a["dim"]), a["step"]
        start, end = a["start"] or 0, shape[dim] if a["end"] is None else a["end"]
        start = max(0, min(start + shape[dim] if start < 0 else start, shape[dim]))
        end = max(start, min(end + shape[dim] if end < 0 else end, shape[dim]))
        return [(View("slice", (dim, start, end, step)),)]
    if op == "select":
        dim = _dim(shape, a["dim"])
        return [(View("select", (dim, a["index"] % shape[dim])),)]
    if op == "unbind":
        dim = _dim(shape, a["dim"])
        return [(View("select", (dim, k)),) for k in range(shape[dim])]
    if op in ("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "chunk"):
        dim, at, found = _dim(shape, a["dim"]), 0, []
        for piece in out_shapes:
            found.append((View("slice", (dim, at, at + piece[dim], 1)),))
            at += piece[dim]
        return found
    return None


def tensor_spec(tensor: torch.Tensor) -> tuple[Shape, torch.dtype]:
    """Shape and dtype."""
    return tuple(tensor.shape), tensor.dtype
