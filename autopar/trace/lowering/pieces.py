"""Pieces: gradients of slices that are added up become one concatenation.

`q, k, v = h[..., :d], h[..., d:2*d], h[..., 2*d:]` has a backward that pads each gradient with zeros to the whole and adds three wholes;
`h.split(d, -1)` concatenates. Both are the same function, so both become the same nodes. In: draft nodes. Out: the same nodes, where an add
of disjoint `slice_backward`s or `select_backward`s along one dim is a `cat` (gaps filled with zeros).
"""

from __future__ import annotations

from dataclasses import dataclass

from .draft import Draft, DraftNode, Shape, Val

_SLICE, _SELECT, _ADD = "aten.slice_backward.default", "aten.select_backward.default", "aten.add.Tensor"


@dataclass(frozen=True)
class _Piece:
    """`value` stands at `start` ... `end` of dim `dim`; `is_select`: it lacks that dim."""

    value: Val
    dim: int
    start: int
    end: int
    is_select: bool


def join_pieces(draft: Draft) -> None:
    """Rewrite the adds in place; what nobody reads any more is dropped later."""
    known: dict[int, tuple[_Piece, ...]] = {}
    nodes: list[DraftNode] = []
    for node in list(draft.nodes):
        out = node.outs[0] if len(node.outs) == 1 else None
        if out is not None and node.op in (_SLICE, _SELECT):
            piece = _read_piece(node, out.shape)
            if piece is not None:
                known[id(out)] = (piece,)
        elif out is not None and node.op == _ADD:
            pieces = _merge(node, out, known)
            if pieces:
                known[id(out)] = pieces
                nodes += _write(draft, node, out, pieces)
        nodes.append(node)
    draft.nodes[:] = nodes


def _read_piece(node: DraftNode, shape: Shape) -> _Piece | None:
    args = dict(node.args)
    dim = args["dim"] % len(shape)
    size = shape[dim]
    if node.op == _SELECT:
        index = args["index"] % size
        return _Piece(args["grad_output"], dim, index, index + 1, True)
    if args.get("step", 1) != 1:
        return None
    start, end = (min(max(k + size if k < 0 else k, 0), size) for k in (args["start"], args["end"]))
    return _Piece(args["grad_output"], dim, start, end, False) if end > start else None


def _merge(node: DraftNode, out: Val, known: dict[int, tuple[_Piece, ...]]) -> tuple[_Piece, ...]:
    args = dict(node.args)
    terms = [args["self"], args["other"]]
    if set(args) != {"self", "other"} or not all(isinstance(t, Val) and t.shape == out.shape and id(t) in known for t in terms):
        return ()
    pieces = sorted((p for t in terms for p in known[id(t)]), key=lambda p: p.start)
    apart = all(a.end <= b.start for a, b in zip(pieces, pieces[1:]))
    return tuple(pieces) if apart and len({(p.dim, p.value.dtype) for p in pieces}) == 1 else ()


def _write(draft: Draft, node: DraftNode, out: Val, pieces: tuple[_Piece, ...]) -> list[DraftNode]:
    """Turn the add into a cat; returns what must stand before it."""
    draft.phase, draft.path, draft.source = node.phase, node.path, node.source
    begin, dim = len(draft.nodes), pieces[0].dim

    def zeros(start: int, end: int) -> list[Val]:
        shape = (*out.shape[:dim], end - start, *out.shape[dim + 1 :])
        return [draft.full(shape, 0.0, out.dtype)] if end > start else []

    parts: list[Val] = []
    at = 0
    for piece in pieces:
        parts += zeros(at, piece.start)
        shape = (*out.shape[:dim], piece.end - piece.start, *out.shape[dim + 1 :])
        parts.append(draft.view(piece.value, shape) if piece.is_select else piece.value)
        at = piece.end
    parts += zeros(at, out.shape[dim])
    made = draft.nodes[begin:]
    del draft.nodes[begin:]
    node.op, node.args = "aten.cat.default", (("tensors", tuple(parts)), *([("dim", dim)] if dim else []))
    return made
