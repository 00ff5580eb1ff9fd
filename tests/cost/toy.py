"""A hand-made training step for tests: two linears with a relu between, a sum as loss, plain SGD; its rules by hand too."""

from __future__ import annotations

from autopar.cluster import Cluster, Device, Link
from autopar.graph.choice import Assignment
from autopar.graph.cuts import find_cuts, resolve_all
from autopar.graph.graph import Graph, check_graph
from autopar.graph.mesh import Mesh
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.partition import assigned_strategies, partition
from autopar.graph.program import check_program
from autopar.graph.rule import Rule
from autopar.graph.sharding import Sharding
from autopar.graph.tensor import Kind, Value

F, B, U = Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE
RULES = {
    r.op: r
    for r in (
        Rule("aten.mm", "m k, k n -> m n", linear=(("self",), ("mat2",)), flops=2.0),
        Rule("aten.permute", "a b -> b a", linear=(("self",),), flops=0.0),
        Rule("aten.relu", "... -> ...", flops=1.0),
        Rule("aten.threshold_backward", "..., ... -> ...", linear=(("grad_output",),), flops=1.0),
        Rule("aten.sum", "a b ->", linear=(("self",),), flops=1.0),
        Rule("aten.sub", "..., ... -> ...", linear=(("self", "other"),), flops=1.0),
    )
}

DEVICE = Device("toy", "cpu", 10**9, (("float32", 1e9), ("bfloat16", 4e9)), 1e8, 1e-5, "made up")
CLUSTER = Cluster("toy", 1, 4, DEVICE, Link("own", 1e-4, 1e7, "made up"), Link("own", 1e-3, 1e6, "made up"))


def mm(name, a, b, phase, path=""):
    return Node(name, "aten.mm.default", (a, b), (("self", Ref(0)), ("mat2", Ref(1))), (name,), phase, path)


def one(name, op, ins, names, phase):
    return Node(name, op, ins, tuple((n, Ref(i)) for i, n in enumerate(names)), (name,), phase)


def build_toy(batch=8, wide=16, hidden=32):
    """x @ w1 -> relu -> @ w2 -> sum; the gradient of the sum is the batch input `ones`."""
    shapes = {
        "w1@0": (wide, hidden), "w2@0": (hidden, wide), "x": (batch, wide), "ones": (batch, wide),
        "h": (batch, hidden), "r": (batch, hidden), "y": (batch, wide), "loss": (),
        "rt": (hidden, batch), "g2": (hidden, wide), "w2t": (wide, hidden), "dr": (batch, hidden), "dh": (batch, hidden),
        "xt": (wide, batch), "g1": (wide, hidden), "w1@1": (wide, hidden), "w2@1": (hidden, wide),
    }  # fmt: skip
    kinds = {"x": Kind.BATCH, "ones": Kind.BATCH, "loss": Kind.LOSS, "g1": Kind.GRAD, "g2": Kind.GRAD}

    def value(name):
        storage, _, version = name.partition("@")
        kind = Kind.PARAM if version else kinds.get(name, Kind.ACTIVATION)
        return Value(name, storage, int(version or 0), shapes[name], "float32", kind)

    nodes = (
        mm("h", "x", "w1@0", F),
        one("r", "aten.relu.default", ("h",), ("self",), F),
        mm("y", "r", "w2@0", F),
        one("loss", "aten.sum.default", ("y",), ("self",), F),
        one("rt", "aten.permute.default", ("r",), ("self",), B),
        mm("g2", "rt", "ones", B),
        one("w2t", "aten.permute.default", ("w2@0",), ("self",), B),
        mm("dr", "ones", "w2t", B),
        one("dh", "aten.threshold_backward.default", ("dr", "r"), ("grad_output", "self"), B),
        one("xt", "aten.permute.default", ("x",), ("self",), B),
        mm("g1", "xt", "dh", B),
        one("w1@1", "aten.sub.Tensor", ("w1@0", "g1"), ("self", "other"), U),
        one("w2@1", "aten.sub.Tensor", ("w2@0", "g2"), ("self", "other"), U),
    )
    graph = Graph(
        "toy", tuple(value(n) for n in shapes), nodes, ("w1@0", "w2@0", "x", "ones"),
        (("w1@0", "w1@1"), ("w2@0", "w2@1")), "loss", (), (("w1@0", "g1"), ("w2@0", "g2")),
    )  # fmt: skip
    check_graph(graph)
    return graph


class Made:
    """The toy, decided: everything that cost functions ask for."""

    def __init__(self, mesh: Mesh, choices: dict, storages: dict, graph=None) -> None:
        self.graph = graph or build_toy()
        n = len(mesh.axes)
        self.sites, self.signatures = resolve_all(self.graph, RULES)
        self.cuts = find_cuts(self.graph, self.signatures)
        self.assignment = Assignment(
            mesh,
            tuple((i, storages.get(i, Sharding(()) if not n else _replicate(n))) for i in self.graph.inputs),
            tuple((node.name, choices.get(node.name, ("R",) * n)) for node in self.graph.nodes),
        )
        args = (self.graph, self.sites, self.signatures, self.cuts, self.assignment)
        self.strategies = assigned_strategies(*args)
        self.program = partition(*args)
        check_program(self.program)


def _replicate(n):
    from autopar.graph.sharding import replicated

    return replicated(n)


DATA_PARALLEL = {
    "h": ("m",), "r": (".1",), "y": ("m",), "loss": ("a",), "rt": ("a",), "g2": ("k",), "dr": ("m",), "dh": (".1",), "xt": ("a",), "g1": ("k",),
}  # fmt: skip
