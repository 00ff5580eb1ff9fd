"""Turned: what is put side by side and then turned is turned first.

`h.reshape(b, s, 3, n, d).permute(2, 0, 3, 1, 4)` gives queries, keys and values; backward their gradients are put side by side and turned back, and a tensor in another shape of that is a copy of all of it.
Parts that are turned are views; put side by side along the dim that theirs has become they lie as they are read. In: draft nodes. Out: the same nodes, where a `cat` that one `permute` alone reads, for readers
that would copy it, is a `cat` of `permute`s.
"""

from __future__ import annotations

from collections import defaultdict

from ...graph.view_strides import is_copied, packed
from .draft import Draft, DraftNode, Val, node_inputs

_CAT, _PERMUTE, _VIEW = "aten.cat.default", "aten.permute.default", "aten.view.default"


def turn_parts(draft: Draft, roots: list[Val]) -> None:
    """Rewrite the nodes in place.

    Args:
        roots: values that the step returns.
    """
    readers: dict[int, list[DraftNode]] = defaultdict(list)
    for node in draft.nodes:
        for value in node_inputs(node):
            readers[id(value)].append(node)
    leaving, nodes, gone = {id(value) for value in roots}, [], set()
    for node in list(draft.nodes):
        if id(node) in gone:
            continue
        turned = _turned(node, readers, leaving)
        if turned is not None:
            nodes += _turn_parts(draft, node, turned)
            gone.add(id(turned))
        nodes.append(node)
    draft.nodes[:] = nodes


def _turned(node: DraftNode, readers: dict[int, list[DraftNode]], leaving: set[int]) -> DraftNode | None:
    """The one reader of a cat, where what it turns is copied for all of its own."""
    out = node.outs[0] if node.op == _CAT else None
    if out is None or id(out) in leaving or len(readers[id(out)]) != 1:
        return None
    [reader] = readers[id(out)]
    made = reader.outs[0] if reader.op == _PERMUTE and reader.phase is node.phase else None
    if made is None or id(made) in leaving or not readers[id(made)]:
        return None
    strides = packed(out.shape)
    lies = tuple(strides[d] for d in dict(reader.args)["dims"])
    copies = (use.op == _VIEW and use.outs[0] is not None and is_copied(made.shape, lies, use.outs[0].shape) for use in readers[id(made)])
    return reader if all(copies) else None


def _turn_parts(draft: Draft, node: DraftNode, turned: DraftNode) -> list[DraftNode]:
    """Turn the parts of a cat, which then makes what `turned` made; returns what must stand before it."""
    args, dims, made = dict(node.args), dict(turned.args)["dims"], turned.outs[0]
    assert made is not None
    draft.phase, draft.path, draft.source = turned.phase, turned.path, turned.source
    begin = len(draft.nodes)
    parts = tuple(draft.permute(part, dims) for part in args["tensors"])
    before = draft.nodes[begin:]
    del draft.nodes[begin:]
    dim = dims.index(args.get("dim", 0) % len(made.shape))
    node.args, node.outs = (("tensors", parts), *([("dim", dim)] if dim else [])), [made]
    made.node, made.out = node, 0
    return before
