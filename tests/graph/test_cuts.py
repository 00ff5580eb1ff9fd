"""Cuts: what views and slices tell about a dim travels to every op that only carries it."""

from autopar.graph.rule import Rule
from autopar.graph.sharding import parse_sharding
from autopar.graph.tensor import Kind

from .drafts import Assigner, make_graph, node, value


def fused_qkv(hidden=8, heads=4):
    """x [6, hidden] @ w [hidden, 3 hidden], cut into three, each seen as heads."""
    wide = 3 * hidden
    inputs = (value("w@0", (hidden, wide), Kind.PARAM), value("x", (6, hidden), Kind.BATCH))
    steps = [(node("aten.mm.default", ("x", "w@0"), "qkv", ("self", "mat2")), value("qkv", (6, wide)))]
    for k, name in enumerate("qkv"):
        cut = node("aten.slice.Tensor", ("qkv",), name, dim=1, start=k * hidden, end=(k + 1) * hidden)
        heads_of = node("aten.view.default", (name,), f"{name}_heads", size=(6, heads, hidden // heads))
        steps += [(cut, value(name, (6, hidden))), (heads_of, value(f"{name}_heads", (6, heads, hidden // heads)))]
    return make_graph(inputs, steps)


def test_a_fused_projection_is_split_by_heads():
    assigner = Assigner(fused_qkv(), 2)
    assert assigner.cuts["qkv"] == ((), (2, 8))  # heads of 2 inside of chunks of 8
    assert assigner.cuts["w@0"] == ((), (2, 8)) and assigner.cuts["x"] == ((), ())
    assert assigner.cuts["q"] == ((), (2,)) and assigner.cuts["q_heads"] == ((), (), ())
    projection = {" ".join(s.choices): s for s in assigner.strategies(0)}
    assert projection["n@8"].outputs == (parse_sharding("S1/4"),)  # half of the heads of q, of k and of v
    assert "n" not in projection  # three chunks do not divide by two
    program = assigner.program(assigner.assign({"w@0": "S1/4"}, {"qkv": "n@8"} | {n: "c" for n in "qkv"} | {f"{n}_heads": "v1" for n in "qkv"}))
    assert [n.op for n in program.graph.nodes if n.op.startswith("comm.")] == []  # nothing to exchange from weight to heads
    args = {n.name: dict(n.args) for n in program.graph.nodes}
    assert [(args[n]["start"], args[n]["end"]) for n in "qkv"] == [(0, 4), (4, 8), (8, 12)]
    assert args["q_heads"]["size"] == (6, 2, 2)


def merged(batch=4, seq=6):
    """[batch, seq, 8] seen as [batch seq, 8], through a matmul and a relu."""
    inputs = (value("w@0", (8, 8), Kind.PARAM), value("x", (batch, seq, 8), Kind.BATCH))
    steps = [
        (node("aten.view.default", ("x",), "flat", size=(batch * seq, 8)), value("flat", (batch * seq, 8))),
        (node("aten.mm.default", ("flat", "w@0"), "y", ("self", "mat2")), value("y", (batch * seq, 8))),
        (node("aten.relu.default", ("y",), "z"), value("z", (batch * seq, 8))),
    ]
    return make_graph(inputs, steps)


def test_a_merged_dim_is_split_by_batch_or_by_sequence():
    assigner = Assigner(merged(), 2)
    assert assigner.cuts["flat"] == assigner.cuts["z"] == ((6,), ())
    matmul = {" ".join(s.choices): str(s.outputs[0]) for s in assigner.strategies(1)}
    assert matmul["m"] == "S0/12" and matmul["m@6"] == "S0/3"
    program = assigner.program(assigner.assign({"x": "S1/3"}, {"flat": "v1", "y": "m@6", "z": ".1@6"}))
    assert [n.op for n in program.graph.nodes if n.op.startswith("comm.")] == []  # sequence parallel, nothing to exchange
    assert dict(program.graph.nodes[0].args)["size"] == (12, 8)


def test_cuts_of_a_dim_divide_one_another():
    """24 = 4 x 6 for one reader and 3 x 8 for another: the first one found stays."""
    inputs = (value("x", (24,), Kind.BATCH),)
    views = [("a", (4, 6)), ("b", (3, 8)), ("c", (2, 12))]
    graph = make_graph(inputs, [(node("aten.view.default", ("x",), n, size=s), value(n, s)) for n, s in views])
    (cuts,) = Assigner(graph, 2).cuts["x"]
    assert all(high % low == 0 for low, high in zip(cuts, cuts[1:])) and 12 in cuts and len(cuts) == 2


def test_a_graph_without_views_has_no_cuts():
    graph = make_graph((value("x", (4, 6), Kind.BATCH),), [(node("aten.relu.default", ("x",), "y"), value("y", (4, 6)))])
    assert Assigner(graph, 2).cuts == {"x": ((), ()), "y": ((), ())}


def test_equal_nodes_are_resolved_once():
    calls = []

    def text(site):
        calls.append(site.node.name)
        return "... -> ..."

    steps = [(node("toy.op", (before,), name), value(name, (4,))) for before, name in [("x", "y"), ("y", "z")]]
    assigner = Assigner(make_graph((value("x", (4,)),), steps), 2, rules={"toy.op": Rule("toy.op", text)})
    assert calls == ["y"] and assigner.signatures[0] is assigner.signatures[1]
