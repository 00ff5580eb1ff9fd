"""The laws of graphs and programs: every message, with the place."""

from dataclasses import replace

import pytest
from codegen.chain import chain_graph

from autopar.errors import GraphError, ProgramError
from autopar.graph.graph import check_graph, count_params, final_values, graph_hash, producer_table, use_table
from autopar.graph.node import Node, Phase, Ref, get_arg, input_names
from autopar.graph.program import COMM_OPS, check_program
from autopar.graph.tensor import DTYPE_BYTES, Kind, num_elements, size_bytes

from .drafts import Assigner, make_graph, node, value

W, X = value("w@0", (4,), Kind.PARAM), value("x", (4,), Kind.BATCH)


def toy(**rest):
    steps = [
        (node("aten.mul.Tensor", ("x", "w@0"), "y", path="h.0"), value("y", (4,))),
        (node("aten.sum.default", ("y",), "z"), value("z", (), Kind.LOSS)),
        (node("aten.mul.Tensor", ("w@0",), "w@1", other=0.9, phase=Phase.UPDATE), value("w@1", (4,), Kind.PARAM)),
    ]
    return make_graph((W, X), steps, **({"loss": "z", "updates": (("w@0", "w@1"),), "outputs": ("y",)} | rest))


def change(graph, index, **fields):
    nodes = list(graph.nodes)
    nodes[index] = replace(nodes[index], **fields)
    return replace(graph, nodes=tuple(nodes))


def change_value(graph, name, **fields):
    return replace(graph, values=tuple(replace(v, **fields) if v.name == name else v for v in graph.values))


Y, Z, W1 = (f"toy: node {k} {n} = aten.{op} ({where}, model.py:1)" for k, n, op, where in [
    (0, "y", "mul.Tensor", "h.0"), (1, "z", "sum.default", "root"), (2, "w@1", "mul.Tensor", "root")])  # fmt: skip


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (replace(toy(), values=(*toy().values, X)), "toy: value x is listed twice; names are unique in a graph"),
        (replace(toy(), inputs=("w@0", "x", "t")), "toy: input t has no value entry"),
        (change_value(toy(), "w@0", version=1), "toy: state w@0 enters at version 1, expected 0"),
        (change(toy(), 1, name="y"), "toy: node 1 y = aten.sum.default (root, model.py:1): a second node of this name"),
        (change(toy(), 0, phase=Phase.BACKWARD), f"{Z}: forward after backward; phases come in order"),
        (change(toy(), 1, inputs=("q",)), f"{Z}: reads q, which nothing has made yet\n  y = aten.mul.Tensor('x', 'w@0')\n  z = aten.sum.default('q',)"),
        (change(toy(), 0, inputs=("x", "z")), f"{Y}: reads z, which nothing has made yet\n  y = aten.mul.Tensor('x', 'z')"),
        (change(toy(), 0, inputs=("x",)), f"{Y}: its arguments hold inputs 0, 1, expected each of its 1 inputs"),
        (change(toy(), 1, args=()), f"{Z}: its arguments hold no inputs, expected each of its 1 inputs"),
        (change(toy(), 1, outputs=("y",)), f"{Z}: makes y a second time; a write makes a new version"),
        (change(toy(), 2, outputs=("x",)), f"{W1}: makes x a second time; a write makes a new version"),
        (change(toy(), 1, outputs=("v",)), f"{Z}: makes v, which has no value entry"),
        (toy(updates=(("x", "y"),)), "toy: update of x: not a state that enters"),
        (toy(updates=(("w@1", "w@1"),)), "toy: update of w@1: not a state that enters"),
        (toy(updates=(("w@0", "v"),)), "toy: update of w@0 by v: nothing makes it"),
        (toy(updates=(("w@0", "z"),)), "toy: update of w@0 float64[4] by z float64[]: expected the same shape and dtype"),
        (change_value(toy(), "w@1", dtype="float32"), "toy: update of w@0 float64[4] by w@1 float32[4]: expected the same shape and dtype"),
        (toy(updates=(("w@0", "w@1"), ("w@0", "y"))), "toy: update of w@0: a second one"),
        (toy(outputs=("v",)), "toy: the step returns v, which nothing makes"),
        (toy(loss="v"), "toy: the step returns v, which nothing makes"),
        (toy(grads=(("w@0", "v"),)), "toy: the step returns v, which nothing makes"),
        (toy(loss="y"), "toy: loss y has shape [4], expected a scalar"),
        (change(toy(), 0, path="", source="", inputs=("q", "x")), "toy: node 0 y = aten.mul.Tensor (root, no source): reads q, which nothing has made yet\n"
         "  y = aten.mul.Tensor('q', 'x')"),
        (replace(toy(), values=(*toy().values, value("v", ()))), "toy: value v is neither an input nor made by a node"),
    ],
)  # fmt: skip
def test_graph_messages(graph, message):
    check_graph(toy())
    with pytest.raises(GraphError) as error:
        check_graph(graph)
    assert str(error.value).startswith(message)


def test_outputs_that_nobody_sees_may_repeat():
    check_graph(change(toy(), 0, outputs=("y", "", "")))


def program():
    assigner = Assigner(chain_graph(1), 2)
    return assigner.program(assigner.assign({"h.0.w@0": "S0/6"}))


def change_comm(made, **fields):
    place = next(i for i, n in enumerate(made.graph.nodes) if n.op.startswith("comm."))
    return replace(made, graph=change(made.graph, place, **fields))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda p: replace(p, origins=p.origins[1:]), "chain: 16 nodes but 15 origins"),
        (lambda p: change_comm(p, op="comm.gather"), f"all_gather:h.0.w@0~1: unknown communication comm.gather, expected one of {', '.join(COMM_OPS)}"),
        (lambda p: change_comm(p, args=(("x", Ref(0)), ("axis", "z"), ("dim", 0), ("stride", 6))), "all_gather:h.0.w@0~1: comm.all_gather along 'z', the mesh has a"),
        (lambda p: change_comm(p, args=(("x", Ref(0)),)), "all_gather:h.0.w@0~1: comm.all_gather along None, the mesh has a"),
        (lambda p: replace(p, shardings=p.shardings[1:]), "chain: local value h.0.w@0 has no sharding"),
    ],
)
def test_program_messages(break_it, message):
    made = program()
    check_program(made)
    with pytest.raises(ProgramError) as error:
        check_program(break_it(made))
    assert str(error.value) == message


def test_a_program_obeys_the_law_of_graphs():
    with pytest.raises(GraphError):
        check_program(replace(program(), graph=replace(program().graph, loss="v")))


def test_tables():
    graph = toy()
    assert producer_table(graph) == {"y": (0, 0), "z": (1, 0), "w@1": (2, 0)}
    assert use_table(graph) == {"w@0": ((0, 1), (2, 0)), "x": ((0, 0),), "y": ((1, 0),), "z": (), "w@1": ()}
    assert final_values(graph) == ("w@1", "z", "y")
    assert count_params(graph) == 4
    assert (num_elements(()), num_elements((2, 0)), size_bytes(value("v", (3, 5), dtype="bfloat16"))) == (1, 0, 30)
    assert set(DTYPE_BYTES.values()) == {1, 2, 4, 8, 16}


def test_arguments_of_a_node():
    made = Node("n", "aten.cat.default", ("a", "b", "c"), (("out", Ref(2)), ("tensors", (Ref(1), (Ref(0),))), ("dim", 1)), ("n",), Phase.FORWARD)
    assert input_names(made) == ("tensors", "tensors", "out")
    assert (get_arg(made, "dim"), get_arg(made, "other"), get_arg(made, "other", 7)) == (1, None, 7)


def test_the_hash_changes_with_what_matters():
    one = graph_hash(toy())
    assert len(one) == 16 and graph_hash(change(toy(), 0, source="other.py:2")) == one and graph_hash(replace(toy(), name="other")) == one
    others = [change(toy(), 2, args=(("self", Ref(0)), ("other", 0.8))), change_value(toy(), "y", shape=(5,)), toy(outputs=()), change(toy(), 0, op="aten.div.Tensor")]
    assert len({one, *map(graph_hash, others)}) == 5
