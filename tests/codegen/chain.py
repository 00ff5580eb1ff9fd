"""A hand-made training step: a chain of equal blocks (matmul, relu), a sum as loss, plain gradient descent. No tracing needed."""

from autopar.graph.graph import Graph, check_graph
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.tensor import Kind, Value


class _Draft:
    def __init__(self):
        self.values, self.nodes = [], []

    def value(self, name, shape, kind=Kind.ACTIVATION, dtype="float64", storage=None, version=0):
        self.values.append(Value(name, storage or name, version, shape, dtype, kind))
        return name

    def node(self, op, inputs, args, out, shape, phase, path, kind=Kind.ACTIVATION, storage=None, version=0):
        self.value(out, shape, kind, storage=storage, version=version)
        self.nodes.append(Node(out, op, tuple(inputs), tuple(args), (out,), phase, path, "chain.py:1"))
        return out


def chain_graph(num_blocks=3, batch=8, width=12):
    """loss = sum of the last output; w@1 = w@0 - 0.1 grad."""
    d = _Draft()
    params = [d.value(f"h.{i}.w@0", (width, width), Kind.PARAM, storage=f"h.{i}.w") for i in range(num_blocks)]
    x = d.value("input:0", (batch, width), Kind.BATCH)
    two = (("self", Ref(0)), ("mat2", Ref(1)))
    saved = []
    for i, w in enumerate(params):
        y = d.node("aten.mm.default", (x, w), two, f"mm_{i}", (batch, width), Phase.FORWARD, f"h.{i}")
        r = d.node("aten.relu.default", (y,), (("self", Ref(0)),), f"relu_{i}", (batch, width), Phase.FORWARD, f"h.{i}.act")
        saved.append((x, r))
        x = r
    loss = d.node("aten.sum.dim_IntList", (x,), (("self", Ref(0)), ("dim", (0, 1))), "loss", (), Phase.FORWARD, "", Kind.LOSS)
    grad = d.node("aten.full.default", (), (("size", (batch, width)), ("fill_value", 1.0), ("dtype", _double())), "ones", (batch, width), Phase.BACKWARD, "")
    grads = {}
    for i in reversed(range(num_blocks)):
        x, r = saved[i]
        back, path = Phase.BACKWARD, f"h.{i}"
        dy = d.node(
            "aten.threshold_backward.default", (grad, r), (("grad_output", Ref(0)), ("self", Ref(1)), ("threshold", 0)), f"dy_{i}", (batch, width), back, path + ".act"
        )
        xt = d.node("aten.permute.default", (x,), (("self", Ref(0)), ("dims", (1, 0))), f"xt_{i}", (width, batch), back, path)
        grads[i] = d.node("aten.mm.default", (xt, dy), two, f"dw_{i}", (width, width), back, path, Kind.GRAD, f"grad:h.{i}.w")
        wt = d.node("aten.permute.default", (params[i],), (("self", Ref(0)), ("dims", (1, 0))), f"wt_{i}", (width, width), back, path)
        grad = d.node("aten.mm.default", (dy, wt), two, f"dx_{i}", (batch, width), back, path)
    updates = []
    for i, w in enumerate(params):
        step = d.node("aten.mul.Tensor", (grads[i],), (("self", Ref(0)), ("other", -0.1)), f"step_{i}", (width, width), Phase.UPDATE, f"h.{i}")
        new = d.node(
            "aten.add.Tensor", (w, step), (("self", Ref(0)), ("other", Ref(1))), f"h.{i}.w@1", (width, width), Phase.UPDATE, f"h.{i}", Kind.PARAM, f"h.{i}.w", 1
        )
        updates.append((w, new))
    graph = Graph(
        "chain", tuple(d.values), tuple(d.nodes), (*params, "input:0"), tuple(updates), loss, (), tuple((p, grads[i]) for i, p in enumerate(params))
    )
    check_graph(graph)
    return graph


def _double():
    from autopar.graph.node import Const

    return Const("dtype", "float64")
