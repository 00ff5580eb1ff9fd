"""Shared positions: equal ones of one section are made once on a rank, others are left apart."""

from __future__ import annotations

import pytest

from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.node import Phase
from autopar.graph.program import Origin, Program, check_program
from autopar.graph.sections import Section, phase_sections
from autopar.graph.shared_positions import share_positions
from autopar.graph.sharding import parse_sharding
from autopar.graph.tensor import Kind

from .drafts import make_graph, node, value

LENGTH = 6


def share(second=None, cuts=("R", "R"), sections=None, path="", outputs=("added",)):
    """The ops and inputs of what is left of two lists and what reads them. Args: second: arguments of the second list."""
    given = {"start": 0, "end": LENGTH, "step": 1}
    steps = [
        (node("aten.arange.start_step", (), "one", **given), value("one", (LENGTH,), dtype="int64")),
        (node("aten.arange.start_step", (), "other", path=path, **(given | (second or {}))), value("other", (LENGTH,), dtype="int64")),
        (node("aten.add.Tensor", ("one", "x"), "first"), value("first", (LENGTH,))),
        (node("aten.add.Tensor", ("first", "other"), "added"), value("added", (LENGTH,))),
    ]
    graph = make_graph([value("x", (LENGTH,), Kind.BATCH)], steps, outputs=outputs)
    names = [v.name for v in graph.values]
    lies = {"one": cuts[0], "other": cuts[1]}
    shardings = tuple((name, name, parse_sharding(lies.get(name, "R"))) for name in names)
    program = Program(graph, Mesh((MeshAxis("a", 2),)), tuple(Origin(n.name, "", "") for n in graph.nodes), shardings, tuple((v.name, v.shape) for v in graph.values))
    found, left = share_positions(program, sections or phase_sections(graph))
    check_program(found)
    assert len(left) == len(found.graph.nodes)
    return [(n.op.split(".")[1], n.inputs) for n in found.graph.nodes]


APART = [("arange", ()), ("arange", ()), ("add", ("one", "x")), ("add", ("first", "other"))]


def test_equal_positions_are_made_once():
    assert share() == [("arange", ()), ("add", ("one", "x")), ("add", ("first", "one"))]
    assert share(cuts=("S0/2", "S0/2")) == share()


@pytest.mark.parametrize(
    "why",
    [{"second": {"start": 1, "end": LENGTH + 1}}, {"cuts": ("R", "S0/2")}, {"path": "h.0"}, {"outputs": ("added", "other")}, {"sections": (Section(Phase.FORWARD), Section(Phase.FORWARD, 1), *(Section(Phase.FORWARD, 1),) * 2)}],
    ids=str,
)  # fmt: skip
def test_others_are_apart(why):
    """Other numbers, those that ranks cut otherwise, of a block, what the step returns, of another chunk."""
    assert share(**why) == APART
