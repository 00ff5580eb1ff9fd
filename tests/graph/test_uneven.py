"""Chunks that do not divide: which nodes may take them, and that no sum mistakes padding for values."""

from dataclasses import replace

import pytest

from autopar.graph.cuts import resolve_all
from autopar.graph.node import Phase
from autopar.graph.rules import RULES
from autopar.graph.sharding import is_uneven
from autopar.graph.tensor import Kind

from .drafts import Assigner, make_graph, node, value

ROWS, COLUMNS = 40, 64  # three divides neither


def step(update, shape=(ROWS, COLUMNS)):
    """w is multiplied with x, and its gradient g comes of that; then these (op, inputs, output, names, attributes) of the update, of which the last makes w@1."""
    inputs = (value("w@0", shape, Kind.PARAM), value("m@0", shape, Kind.OPTIM), value("x", shape, Kind.BATCH))
    steps = [
        (node("aten.mul.Tensor", ("w@0", "x"), "y"), value("y", shape)),
        (node("aten.mul.Tensor", ("y", "x"), "g", phase=Phase.BACKWARD), value("g", shape, Kind.GRAD)),
    ]
    for op, ins, out, names, attributes in update:
        small = () if op.startswith("aten.sum") else shape
        kind = Kind.PARAM if out == "w@1" else Kind.ACTIVATION
        steps.append((node(op, ins, out, names, phase=Phase.UPDATE, **attributes), value(out, small, kind)))
    return make_graph(inputs, steps, updates=(("w@0", "w@1"),))


def marked(graph):
    return {n.name for n, s in zip(graph.nodes, resolve_all(graph, RULES)[1]) if s.uneven}


SGD = ("aten.add.Tensor", ("w@0", "g"), "w@1", ("self", "other"), {"alpha": -0.1})


def summed(name, dims=(0, 1)):
    return ("aten.sum.dim_IntList", (name,), f"sum_{name}", ("self",), {"dim": dims})


def test_what_the_update_does_element_by_element_may_and_the_model_may_not():
    assert marked(step([SGD])) == {"w@1"}


@pytest.mark.parametrize(
    ("between", "zero"),
    [
        ([("aten.mul.Tensor", ("g", "g"), "a", ("self", "other"), {})], True),  # a norm for clipping
        ([("aten.mul.Tensor", ("g",), "a", ("self",), {"other": 0.5})], True),
        ([("aten.clamp.default", ("g",), "a", ("self",), {"min": -0.1, "max": 0.1})], True),
        ([("aten.abs.default", ("g",), "a", ("self",), {})], True),
        ([("aten.add.Tensor", ("g", "g"), "a", ("self", "other"), {})], True),
        ([("aten.add.Tensor", ("g",), "a", ("self",), {"other": 1.0})], False),  # ones in the padding
        ([("aten.exp.default", ("g",), "a", ("self",), {})], False),
        ([("aten.clamp.default", ("g",), "a", ("self",), {"min": 0.1})], False),
        ([("aten.reciprocal.default", ("g",), "a", ("self",), {})], False),
        ([("aten.mul.Tensor", ("w@0", "w@0"), "a", ("self", "other"), {})], False),  # of a state nobody knows what an update left there
        ([("aten.mul.Tensor", ("g", "m@0"), "a", ("self", "other"), {})], False),  # zero times infinity
        ([("aten.div.Tensor", ("g", "g"), "a", ("self", "other"), {})], False),
    ],
)
def test_sums_of_what_is_zero_in_its_padding(between, zero):
    graph = step([*between, summed("a"), SGD])
    assert ("sum_a" in marked(graph)) == zero and {"a", "w@1"} <= marked(graph)


def test_a_largest_value_may_not():
    largest = ("aten.amax.default", ("g",), "sum_g", ("self",), {"dim": (0, 1)})
    graph = step([SGD])
    assert "sum_g" not in marked(make_graph(graph.values[:3], [*((n, v) for n, v in zip(graph.nodes, graph.values[3:])), (node(*largest[:4], phase=Phase.UPDATE, **largest[4]), value("sum_g", ()))], updates=graph.updates))


@pytest.mark.parametrize(
    ("shape", "sizes", "found"),
    [
        ((40, 64), (3,), {"R", "S0/14-2", "S1/22-2"}),
        ((40, 64), (5,), {"R", "S0/8"}),  # five divides one of them: no padding
        ((40, 64), (5, 2), {"R,R", "R,S0/20", "R,S1/32", "S0/8,R", "S1/13-1,R", "S0/8,S0/4", "S0/8,S1/32", "S1/13-1,S0/20"}),  # but another axis may want that one
        ((40, 61), (8, 2), {"R,R", "R,S0/20", "S0/5,R"}),  # powers of two fit beside each other
        ((4, 6), (5,), {"R"}),  # padding would be more than an eighth
        ((40, 64), (3, 2), {"R,R", "R,S0/20", "R,S1/32", "S0/14-2,R", "S1/22-2,R", "S0/14-2,S1/32", "S1/22-2,S0/20"}),
        ((40, 64), (3, 3), {"R,R", "R,S0/14-2", "R,S1/22-2", "S0/14-2,R", "S1/22-2,R", "S0/14-2,S1/22-2", "S1/22-2,S0/14-2"}),
    ],
)
def test_what_an_update_may_choose(shape, sizes, found):
    assigner = Assigner(step([SGD], shape), *sizes)
    offered = [s.outputs[0] for s in assigner.strategies(2)]
    assert {str(s) for s in offered if "P" not in str(s)} == found
    assert not any(is_uneven(s.outputs[0]) for s in assigner.strategies(0))  # the model's own forward never


def test_a_gradient_is_summed_into_chunks_and_the_parameter_gathered():
    assigner = Assigner(replace(step([summed("g"), SGD]), outputs=("sum_g",)), 3)
    taken = {n.name: next(s for s in assigner.strategies(i) if str(s.inputs[0]) == "S0/14-2").choices[0] for i, n in enumerate(assigner.graph.nodes) if i > 1}
    program = assigner.program(assigner.assign({"w@0": "S0/14-2"}, taken))
    by_name = {n.op: dict(n.args) for n in program.graph.nodes if n.op.startswith("comm.")}
    assert by_name["comm.all_gather"]["short"] == 2 and by_name["comm.all_gather"]["stride"] == 14
    assert by_name["comm.slice"]["stride"] == 14 and "comm.all_reduce" in by_name
    shapes = {v.name: v.shape for v in program.graph.values}
    assert shapes["w@0"] == shapes["w@1"] == (14, COLUMNS) and shapes["w@0~1"] == (ROWS, COLUMNS)
