"""Copies that kernels make: which reshapes of what was expanded they are; and what of a group its kernel has; by hand."""

import pytest

from autopar.graph.fuse import _find_copies
from autopar.graph.graph import producer_table, use_table, value_table
from autopar.graph.kernel import cut_kernel
from autopar.graph.tensor import Kind

from .drafts import make_graph, node, value

BATCH, GROUPS, SEQ, WIDTH = 2, 4, 256, 32


def find(shared=4, seq=SEQ, op="aten.reshape.default", taken=(), again=False, to=None):
    """Keys of so many heads each, as copies of them are found: (members, views) of each group."""
    keys, wide = (BATCH, GROUPS, 1, seq, WIDTH), (BATCH, GROUPS, shared, seq, WIDTH)
    flat = to or (BATCH, GROUPS * shared, seq, WIDTH)
    steps = [
        (node("aten.expand.default", ("keys",), "wide", size=wide), value("wide", wide)),  # 0
        (node(op, ("wide",), "flat", size=flat), value("flat", flat)),  # 1
        (node("aten.relu.default", ("wide" if again else "flat",), "read"), value("read", wide if again else flat)),  # 2
    ]
    graph = make_graph([value("keys", keys, Kind.BATCH)], steps)
    return [(g.members, g.views) for g in _find_copies(graph, value_table(graph), producer_table(graph), use_table(graph), set(taken))]


@pytest.mark.parametrize("op", ["aten.reshape.default", "aten.view.default", "aten._unsafe_view.default"])
def test_keys_that_heads_share_are_copied(op):
    assert find(op=op) == [((1,), (0,))]


@pytest.mark.parametrize(
    "why",
    [{"shared": 1}, {"to": (BATCH * GROUPS, 4, SEQ, WIDTH)}, {"to": (BATCH, GROUPS, 4, SEQ * WIDTH)}, {"op": "aten.relu.default"}, {"taken": (0,)}, {"taken": (1,)}, {"again": True}, {"seq": 8}],
    ids=str,
)  # fmt: skip
def test_others_are_not(why):
    """A view that stays one, another op, what a kernel makes or reads already, what somebody else reads as it was expanded, and what is small."""
    assert find(**why) == []


def test_what_was_not_expanded_is_left():
    steps = [(node("aten.permute.default", ("x",), "turned", dims=(1, 0)), value("turned", (512, 512))), (node("aten.reshape.default", ("turned",), "flat", size=(512 * 512,)), value("flat", (512 * 512,)))]
    graph = make_graph([value("x", (512, 512), Kind.BATCH), value("y", (512, 512), Kind.BATCH)], steps)
    assert not list(_find_copies(graph, value_table(graph), producer_table(graph), use_table(graph), set()))


def test_a_kernel_has_nothing_that_leads_nowhere():
    """What is made again for the backward pass may leave its first making unread."""
    steps = [
        (node("aten.exp.default", ("x",), "unread"), value("unread", (4, 8))),
        (node("aten.mul.Tensor", ("unread", "y"), "idle"), value("idle", (4, 8))),
        (node("aten.relu.default", ("x",), "read"), value("read", (4, 8))),
    ]
    graph = make_graph([value("x", (4, 8), Kind.BATCH), value("y", (4, 8), Kind.BATCH)], steps)
    kernel, arguments = cut_kernel(graph, value_table(graph), producer_table(graph), (0, 1, 2), ("read",), {})
    assert [n.op for n in kernel.graph.nodes] == ["aten.relu.default"]
    assert arguments == ("x",)
    assert kernel.sources == ("model.py:1: relu",)
