"""What an update makes and never holds: element by element, into the old version's place; what a norm reads, or comes after one, is held."""

from __future__ import annotations

import pytest

from autopar.graph.liveness import live_ranges
from autopar.graph.node import Phase
from autopar.graph.tensor import Kind
from autopar.graph.unheld import list_unheld, list_written_over

from .drafts import make_graph, node, value

UPDATE = {"phase": Phase.UPDATE, "path": "lin"}


def update(*steps, late=()):
    """A momentum step of one parameter, after `steps`; `late`: nodes that stand after the writes."""
    wide = (8, 4)
    rows = [
        *steps,
        (node("aten.mul.Scalar", ("m@0",), "decayed", other=0.9, **UPDATE), value("decayed", wide)),
        (node("aten.add.Tensor", ("decayed", "g"), "m@1", **UPDATE), value("m@1", wide, Kind.OPTIM)),
        (node("aten.mul.Scalar", ("m@1",), "scaled", other=-0.1, **UPDATE), value("scaled", wide)),
        (node("aten.add.Tensor", ("w@0", "scaled"), "w@1", **UPDATE), value("w@1", wide, Kind.PARAM)),
        (node("state.write", ("m@0", "m@1"), "m@2", **UPDATE), value("m@2", wide, Kind.OPTIM)),
        (node("state.write", ("w@0", "w@1"), "w@2", **UPDATE), value("w@2", wide, Kind.PARAM)),
        *late,
    ]
    inputs = [value("w@0", wide, Kind.PARAM), value("m@0", wide, Kind.OPTIM), value("g", wide, Kind.GRAD)]
    return make_graph(inputs, rows)


def norm(name, out):
    return node("aten.sum.default", (name,), out, **UPDATE), value(out, ())


def test_a_step_element_by_element_holds_nothing():
    assert list_unheld(update()) == {"decayed", "m@1", "scaled", "w@1"}
    assert not {"decayed", "m@1", "scaled", "w@1"} & live_ranges(update()).keys()


@pytest.mark.parametrize(
    "late, held",
    [
        ((norm("m@1", "size"),), {"decayed", "m@1", "scaled", "w@1"}),  # a kernel that leaves a sum runs whole
        (((node("aten.mul.Tensor", ("m@0", "g"), "other", phase=Phase.UPDATE, path="another"), value("other", (8, 4))),), {"m@1"}),  # the old version is read by somebody else
    ],
    ids=["summed", "old version read"],
)
def test_what_is_summed_up_or_read_in_its_old_version_is_held(late, held):
    graph = update(late=late)
    assert {"decayed", "m@1", "scaled", "w@1"} - list_unheld(graph) == held


def test_what_comes_after_a_norm_is_another_kernels():
    """A gradient that is squared for a norm of all, and scaled by what comes of it: the squares are summed up; the scaled one is only read after that."""
    steps = (
        (node("aten.mul.Tensor", ("g", "g"), "square", **UPDATE), value("square", (8, 4))),
        norm("square", "total"),
        (node("aten.mul.Tensor", ("g", "total"), "clipped", **UPDATE), value("clipped", (8, 4))),
        (node("aten.add.Tensor", ("clipped", "square"), "both", **UPDATE), value("both", (8, 4))),
        (node("aten.mul.Scalar", ("both",), "more", other=2.0, **UPDATE), value("more", (8, 4))),
        norm("more", "end"),
    )
    found = list_unheld(update(*steps))
    assert "square" not in found and not {"clipped", "both", "more"} & found, "the last kernel leaves a sum, and momentum stands in it"


def test_other_shapes_and_other_ops_are_held():
    steps = (
        (node("aten.mm.default", ("g", "g"), "product", ("self", "mat2"), **UPDATE), value("product", (8, 4))),
        (node("aten.mul.Scalar", ("product",), "twice", other=2.0, **UPDATE), value("twice", (8, 4))),
        (node("aten.mm.default", ("twice", "g"), "again", ("self", "mat2"), **UPDATE), value("again", (8, 4))),
    )
    found = list_unheld(update(*steps))
    assert not {"product", "twice", "again"} & found


def test_a_square_lies_where_its_operand_was():
    """A gradient is unscaled, squared and summed up: one tensor of its size beside it; what is read again is held."""
    unscaled = (node("aten.mul.Scalar", ("g",), "unscaled", other=0.5, **UPDATE), value("unscaled", (8, 4)))
    square = (node("aten.mul.Tensor", ("unscaled", "unscaled"), "square", **UPDATE), value("square", (8, 4)))
    again = (node("aten.mul.Tensor", ("square", "unscaled"), "cube", **UPDATE), value("cube", (8, 4)))
    assert list_written_over(update(unscaled, square, norm("square", "total"))) >= {"unscaled"}
    assert "unscaled" not in list_written_over(update(unscaled, square, again, norm("cube", "total")))
