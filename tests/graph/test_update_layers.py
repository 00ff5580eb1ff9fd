"""The layers of an update run in an order that gives every node what it is to read."""

from autopar.graph.graph import Graph
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.tensor import Kind, Value
from autopar.graph.turns import RECEIVE, SEND
from autopar.graph.update_parts import update_layers


def make_update():
    """Both parameters are joined through views, then each is rewritten; the joined ones leave the step."""
    values, nodes = {}, []

    def enter(name, kind):
        values[name] = Value(name, name, 0, (4,), "float32", kind)

    def call(op, *inputs, out="", shape=(4,)):
        if out:
            values[out] = Value(out, out, 0, shape, "float32", Kind.ACTIVATION)
        nodes.append(Node(out or f"write_{inputs[0]}", op, inputs, tuple((f"x{k}", Ref(k)) for k in range(len(inputs))), (out,) if out else (), Phase.UPDATE, ""))

    for name, kind in (("a", Kind.PARAM), ("b", Kind.PARAM), ("grad_a", Kind.GRAD), ("grad_b", Kind.GRAD)):
        enter(name, kind)
    for name in ("a", "b"):
        call("aten.view.default", name, out=f"view_{name}")
    call("aten.cat.default", "view_a", "view_b", out="joined", shape=(8,))
    for name in ("a", "b"):
        call("aten.add.Tensor", name, f"grad_{name}", out=f"new_{name}")
        call("state.write", name, f"new_{name}")
    return Graph("update", tuple(values.values()), tuple(nodes), ("a", "b", "grad_a", "grad_b"), (), None, ("joined",), ())


def test_a_state_is_rewritten_after_a_view_of_it_was_read():
    graph = make_update()
    layers = update_layers(graph, range(len(graph.nodes)), {"grad_a": "a", "grad_b": "b"})
    order = [graph.nodes[i].name for layer in layers for mine in (*(part.nodes for part in layer.parts), layer.rest) for i in mine]
    assert sorted(order) == sorted(node.name for node in graph.nodes)
    assert order.index("view_a") < order.index("joined") < order.index("write_a")
    assert order.index("view_b") < order.index("joined") < order.index("write_b")


def make_stage():
    """A number of each gradient goes to another stage; what comes back scales the gradients before the parameters are rewritten. Another number comes that waits for nothing here."""
    values, nodes = {}, []

    def enter(name, kind):
        values[name] = Value(name, name, 0, (4,), "float32", kind)

    def call(name, op, *inputs, shape=(4,)):
        values[name] = Value(name, name, 0, shape, "float32", Kind.ACTIVATION)
        nodes.append(Node(name, op, inputs, tuple((f"x{k}", Ref(k)) for k in range(len(inputs))), (name,), Phase.UPDATE, ""))

    for name, kind in (("a", Kind.PARAM), ("b", Kind.PARAM), ("grad_a", Kind.GRAD), ("grad_b", Kind.GRAD)):
        enter(name, kind)
    call("early", RECEIVE, shape=())
    for name in ("a", "b"):
        call(f"sum_{name}", "aten.sum.default", f"grad_{name}", shape=())
        call(f"send_{name}", SEND, f"sum_{name}", shape=())
    call("factor", RECEIVE, shape=())
    call("late", RECEIVE, shape=())
    for name in ("a", "b"):
        call(f"small_{name}", "aten.mul.Tensor", f"grad_{name}", "factor")
        call(f"new_{name}", "aten.sub.Tensor", name, f"small_{name}")
        nodes.append(Node(f"write_{name}", "state.write", (name, f"new_{name}"), (("x0", Ref(0)), ("x1", Ref(1))), (), Phase.UPDATE, ""))
    return Graph("update", tuple(values.values()), tuple(nodes), ("a", "b", "grad_a", "grad_b"), (), None, ("late", "early"), ())


def test_a_stage_sends_before_it_waits():
    """Messages are nobody's own, and keep their order: a stage that waited before it has sent what others make that of would wait for ever."""
    graph = make_stage()
    layers = update_layers(graph, range(len(graph.nodes)), {"grad_a": "a", "grad_b": "b"})
    own = [{graph.nodes[i].name for part in layer.parts for i in part.nodes} for layer in layers]
    rest = [[graph.nodes[i].name for i in layer.rest] for layer in layers]
    assert own == [{"sum_a", "sum_b"}, {f"{what}_{name}" for what in ("small", "new", "write") for name in "ab"}]
    assert rest == [["early", "send_a", "send_b", "factor", "late"], []]
