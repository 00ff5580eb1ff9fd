"""Pieces: gradients of slices that are added up become one concatenation.

`q, k, v = h[..., :d], h[..., d:2*d], h[..., 2*d:]` has a backward that pads each gradient with zeros to the whole and adds three wholes;
`h.split(d, -1)` concatenates. Both are the same function, so both become the same nodes. In: draft nodes. Out: the same nodes, where an add
of disjoint `slice_backward`s or `select_backward`s along one dim is a `cat` (gaps filled with zeros), and where several are added to something
else one after the other (a rotary embedding by halves: `x * cos + rotate_half(x) * sin`) one `cat` is. Slices that take every n-th entry
(`x[..., ::2]`, `x[..., 1::2]`) are pieces of the dim's n-tuples, as `x.unflatten(-1, (-1, 2)).unbind(-1)` has them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .draft import Draft, DraftNode, Shape, Val, node_inputs

_SLICE, _SELECT, _ADD = "aten.slice_backward.default", "aten.select_backward.default", "aten.add.Tensor"


@dataclass(frozen=True)
class _Piece:
    """`value` stands at `start` ... `end` of dim `dim`; `is_select`: it lacks that dim. `step`: at these places of each so many entries, one of them."""

    value: Val
    dim: int
    start: int
    end: int
    is_select: bool
    step: int = 1


def join_pieces(draft: Draft) -> None:
    """Rewrite the adds in place; what nobody reads any more is dropped later."""
    known: dict[int, tuple[_Piece, ...]] = {}
    added: dict[int, tuple[Val, tuple[_Piece, ...]]] = {}  # sum -> what pieces were added to, and these
    reads = Counter(id(value) for node in draft.nodes for value in node_inputs(node))
    nodes: list[DraftNode] = []
    for node in list(draft.nodes):
        out = node.outs[0] if len(node.outs) == 1 else None
        if out is not None and node.op in (_SLICE, _SELECT):
            piece = _read_piece(node, out.shape)
            if piece is not None:
                known[id(out)] = (piece,)
        elif out is not None and node.op == _ADD:
            pieces = _merge(_terms(node, out), known)
            if pieces:
                known[id(out)] = pieces
                made, whole = _join(draft, node, out, pieces)
                nodes += made
                node.op, node.args = whole.op, whole.args
            else:
                nodes += _join_later(draft, node, out, known, added, reads)
        nodes.append(node)
    draft.nodes[:] = nodes


def _join_later(
    draft: Draft, node: DraftNode, out: Val, known: dict[int, tuple[_Piece, ...]], added: dict[int, tuple[Val, tuple[_Piece, ...]]], reads: Counter[int]
) -> list[DraftNode]:
    """Where pieces are added to a sum that others were added to before, and nobody else reads that sum, add all at once: each entry has one of them at most, so nothing is rounded otherwise.

    Returns:
        what must stand before the node.
    """
    terms = _terms(node, out)
    whole, piece = next(((a, b) for a, b in (terms, terms[::-1]) if id(b) in known and id(a) not in known), (None, None)) if len(terms) == 2 else (None, None)
    if whole is None or piece is None:
        return []
    base, before = added.get(id(whole), (whole, ()))
    pieces = _apart([*before, *known[id(piece)]]) if before and reads[id(whole)] == 1 else ()
    if not pieces:
        added[id(out)] = whole, known[id(piece)]
        return []
    added[id(out)] = base, pieces
    made, last = _join(draft, node, piece, pieces)
    joined = Val(piece.shape, piece.dtype, last, 0)
    last.outs = [joined]
    node.args = (("self", base), ("other", joined))
    return [*made, last]


def _read_piece(node: DraftNode, shape: Shape) -> _Piece | None:
    args = dict(node.args)
    dim = args["dim"] % len(shape)
    size = shape[dim]
    if node.op == _SELECT:
        index = args["index"] % size
        return _Piece(args["grad_output"], dim, index, index + 1, True)
    start, end = (min(max(k + size if k < 0 else k, 0), size) for k in (args["start"], args["end"]))
    step = args.get("step", 1)
    if step != 1:
        return _Piece(args["grad_output"], dim, start, start + 1, True, step) if size % step == 0 and start < step and end > size - step + start else None
    return _Piece(args["grad_output"], dim, start, end, False) if end > start else None


def _terms(node: DraftNode, out: Val) -> tuple[Val, ...]:
    """What an add adds, where both are as large as the sum."""
    args = dict(node.args)
    terms = (args["self"], args["other"])
    return terms if set(args) == {"self", "other"} and all(isinstance(t, Val) and t.shape == out.shape for t in terms) else ()


def _merge(terms: tuple[Val, ...], known: dict[int, tuple[_Piece, ...]]) -> tuple[_Piece, ...]:
    return _apart([p for t in terms for p in known[id(t)]]) if terms and all(id(t) in known for t in terms) else ()


def _apart(pieces: list[_Piece]) -> tuple[_Piece, ...]:
    """The pieces in order, if they have no place in common; else none."""
    pieces = sorted(pieces, key=lambda p: p.start)
    apart = all(a.end <= b.start for a, b in zip(pieces, pieces[1:]))
    return tuple(pieces) if apart and len({(p.dim, p.value.dtype, p.step) for p in pieces}) == 1 else ()


def _join(draft: Draft, node: DraftNode, like: Val, pieces: tuple[_Piece, ...]) -> tuple[list[DraftNode], DraftNode]:
    """(what must stand before it, the node without results that puts the pieces together): of the shape and dtype of `like`, in the place of `node`."""
    draft.phase, draft.path, draft.source = node.phase, node.path, node.source
    begin, dim, step = len(draft.nodes), pieces[0].dim, pieces[0].step
    lower, upper = (*like.shape[:dim], *((like.shape[dim] // step,) if step > 1 else ())), like.shape[dim + 1 :]
    places = step if step > 1 else like.shape[dim]

    def zeros(start: int, end: int) -> list[Val]:
        return [draft.full((*lower, end - start, *upper), 0.0, pieces[0].value.dtype)] if end > start else []

    parts: list[Val] = []
    at = 0
    for piece in pieces:
        parts += zeros(at, piece.start)
        parts.append(draft.view(piece.value, (*lower, piece.end - piece.start, *upper)) if piece.is_select else piece.value)
        at = piece.end
    parts += zeros(at, places)
    args = ("tensors", tuple(parts)), *([("dim", len(lower))] if lower else [])
    if step > 1:
        joined = draft.emit_one("aten.cat.default", dict(args), (*lower, places, *upper), pieces[0].value.dtype)
    made = draft.nodes[begin:]
    del draft.nodes[begin:]
    last = ("aten.cat.default", args) if step == 1 else ("aten.view.default", (("self", joined), ("size", like.shape)))
    return made, DraftNode(*last, node.phase, node.path, node.source)
