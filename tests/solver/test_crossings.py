"""How what crosses between stages is split: as finely as the mesh allows, within what the roles of its axes may split."""

import pytest

from autopar.constraints import DATA, SEQUENCE
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.node import Node, Phase
from autopar.graph.roles import Roles
from autopar.graph.tensor import Kind, Value
from autopar.graph.turns import SEND
from autopar.solver.stage_solve import crossing_sharding
from autopar.solver.steer import names_node

HEADS, SEQ = 4, 8
BIAS = Value("bias", "bias", 0, (1, HEADS, SEQ, SEQ), "float32", Kind.ACTIVATION)  # of positions, as T5 adds to scores: it has no batch
HIDDEN = Value("hidden", "hidden", 0, (16, SEQ, 32), "float32", Kind.ACTIVATION)
PIECES = {"bias": ((2, 1, SEQ, SEQUENCE), (3, 1, SEQ, SEQUENCE)), "hidden": ((0, 1, 16, DATA), (1, 1, SEQ, SEQUENCE))}
ROLES = Roles(PIECES, (), frozenset(), (), ())


def crossing(value, *axes, **words):
    return str(crossing_sharding(value, Mesh(tuple(MeshAxis(name, 2) for name in axes)), ROLES, **words))


def test_dp_takes_the_batch_and_tp_the_largest_other_dim():
    assert crossing(HIDDEN, "dp", "tp", dp_takes_any=False) == "S0/8,S2/16"


@pytest.mark.parametrize(("takes_any", "expected"), [(False, "R"), (True, "S1/2")])
def test_dp_never_takes_the_sequence(takes_any, expected):
    assert crossing(BIAS, "dp", dp_takes_any=takes_any) == expected


@pytest.mark.parametrize(("takes_sequence", "expected"), [(True, "S2/4"), (False, "S1/2")])
def test_tp_takes_the_sequence_where_it_may(takes_sequence, expected):
    assert crossing(BIAS, "tp", dp_takes_any=False, tp_takes_sequence=takes_sequence) == expected


def test_what_crosses_is_of_no_module():
    op = Node("add", "aten.add.Tensor", (), (), ("sum",), Phase.FORWARD, "h.1", "")
    assert names_node("h.*", op) and not names_node("h.*", Node("send", SEND, (), (), ("sent",), Phase.FORWARD, "h.1", ""))
