"""Tiny graphs, rules and prices made by hand, so that the solver is tested without trace, rules and cost."""

from __future__ import annotations

import random
from collections.abc import Sequence

from autopar.errors import GraphError
from autopar.graph.cuts import find_cuts, resolve_all
from autopar.graph.graph import Graph, check_graph
from autopar.graph.mesh import Mesh, MeshAxis, axis_sizes
from autopar.graph.node import Arg, Node, Phase, Ref
from autopar.graph.reshard import moved_elements, reshard_steps
from autopar.graph.rule import Rule
from autopar.graph.sharding import Sharding, local_shape
from autopar.graph.strategy import Strategy
from autopar.graph.tensor import DTYPE_BYTES, Kind, Value, num_elements
from autopar.graph.transfer import Transfer, transfer_of

RULES = {
    rule.op: rule
    for rule in (
        Rule("aten.mm", "m k, k n -> m n", flops=2),
        Rule("aten.relu", "... -> ...", linear=()),
        Rule("aten.neg", "... -> ...", linear=(("self",),)),
        Rule("aten.add", "..., ... -> ...", linear=(("self", "other"),)),
        Rule("aten.mul", "..., ... -> ...", linear=(("self",), ("other",))),
        Rule("aten.permute", "a b -> b a", linear=(("self",),), flops=0),
        Rule("aten.sum", "a b -> a", linear=(("self",),)),
        Rule("tiny.total", "a b ->", linear=(("self",),)),
    )
}


def make_mesh(*sizes: int) -> Mesh:
    return Mesh(tuple(MeshAxis(name, size) for name, size in zip("abc", sizes)))


class TinyPrices:
    """Seconds from bytes: compute 1 per element of the factor space, communication `wire` per element, 0.01 per step.

    `hides`: share of the seconds of states and gradients that hides behind compute; their steps then cost a tenth.
    """

    def __init__(self, graph: Graph, mesh: Mesh, wire: float = 3.0, hides: float = 0.0) -> None:
        self.sizes, self.wire, self.hides = axis_sizes(mesh), wire, hides
        self.sites, self.signatures = resolve_all(graph, RULES)

    def node_seconds(self, node: int, strategies: Sequence[Strategy]) -> list[float]:
        site = self.sites[node]
        if site.node.op.startswith("aten.permute"):
            return [0.0 for _ in strategies]
        found = []
        for strategy in strategies:
            shapes = [local_shape(s, sh, self.sizes) for s, sh in zip((*site.inputs, *site.outputs), (*strategy.inputs, *strategy.outputs))]
            found.append(float(sum(num_elements(s) for s in shapes)) + (4.0 * max(num_elements(s) for s in shapes) if site.node.op == "aten.mm" else 0.0))
        return found

    def reshard_seconds(self, value: Value, source: Sharding, target: Sharding) -> float:
        try:
            steps = reshard_steps(value.shape, source, target, self.sizes)
        except GraphError:
            return float("inf")
        token = 0.001 if self.hides and transfer_of(value) is not Transfer.BLOCKING else 0.01
        return sum(token + self.wire * moved_elements(s, self.sizes[s.axis]) * DTYPE_BYTES[value.dtype] / 4 for s in steps)

    def hidden_seconds(self, value: Value, source: Sharding, target: Sharding) -> float:
        seconds = self.reshard_seconds(value, source, target)
        return self.hides * seconds if seconds < float("inf") and transfer_of(value) is not Transfer.BLOCKING else 0.0

    def write_seconds(self, value: Value, storage: Sharding) -> float:
        return 0.5 * num_elements(local_shape(value.shape, storage, self.sizes))


class Sketch:
    """Builds a graph call by call; every call returns the name of the value made."""

    def __init__(self, name: str = "tiny") -> None:
        self.name = name
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.phase = Phase.FORWARD

    def enter(self, name: str, shape: tuple[int, ...], kind: Kind = Kind.PARAM) -> str:
        self.values[name] = Value(name, name.partition("@")[0], 0, shape, "float32", kind)
        self.inputs.append(name)
        return name

    def call(self, op: str, *inputs: str, kind: Kind = Kind.ACTIVATION, path: str = "", name: str = "") -> str:
        shapes = [self.values[i].shape for i in inputs]
        shape = {
            "aten.mm": lambda: (shapes[0][0], shapes[1][1]),
            "aten.permute": lambda: shapes[0][::-1],
            "aten.sum": lambda: shapes[0][:1],
            "tiny.total": lambda: (),
        }.get(op, lambda: shapes[0])()
        out = name or f"{op.split('.')[1]}_{len(self.nodes)}"
        keys = ("self", "other", "mat2")
        args: list[tuple[str, Arg]] = [(keys[0 if k == 0 else 2 if op == "aten.mm" else 1], Ref(k)) for k in range(len(inputs))]
        self.nodes.append(Node(f"n{len(self.nodes)}", op, inputs, tuple(args), (out,), self.phase, path))
        self.values[out] = Value(out, out.partition("@")[0], 1 if "@1" in out else 0, shape, "float32", kind)
        return out

    def finish(self, updates: Sequence[tuple[str, str]] = (), loss: str = "", outputs: Sequence[str] = (), grads: Sequence[tuple[str, str]] = ()) -> Graph:
        graph = Graph(self.name, tuple(self.values.values()), tuple(self.nodes), tuple(self.inputs), tuple(updates), loss, tuple(outputs), tuple(grads))
        check_graph(graph)
        return graph


def prepare(graph: Graph):
    """(sites, signatures, cuts)."""
    sites, signatures = resolve_all(graph, RULES)
    return sites, signatures, find_cuts(graph, signatures)


def training_step(batch: int = 8, width: int = 4, hidden: int = 8) -> Graph:
    """One matmul, its gradient, and an update with one optimizer state: data parallel, ZeRO and tensor splits are all in it."""
    s = Sketch("training_step")
    w, m = s.enter("w@0", (width, hidden)), s.enter("m:w@0", (width, hidden), Kind.OPTIM)
    x = s.enter("x", (batch, width), Kind.BATCH)
    y = s.call("aten.mm", x, w)
    loss = s.call("tiny.total", y, kind=Kind.LOSS)
    s.phase = Phase.BACKWARD
    xt = s.call("aten.permute", x)
    g = s.call("aten.mm", xt, y, kind=Kind.GRAD)
    s.phase = Phase.UPDATE
    m1 = s.call("aten.add", m, g, kind=Kind.OPTIM, name="m:w@1")
    w1 = s.call("aten.add", w, m1, kind=Kind.PARAM, name="w@1")
    return s.finish([("w@0", w1), ("m:w@0", m1)], loss, (), [("w@0", g)])


def random_graph(seed: int, num_nodes: int, sizes: Sequence[int] = (2, 4, 6, 8)) -> Graph:
    """A random step of at most `num_nodes` nodes over 2-D values, some read several times, with a state that is updated.

    `sizes`: of dims; odd ones leave fewer strategies.
    """
    rng = random.Random(seed)
    s = Sketch(f"random_{seed}")
    a, b = rng.choice(sizes), rng.choice(sizes)
    pool = [s.enter("w@0", (a, b)), s.enter("x", (a, b), Kind.BATCH)]
    phases = sorted(rng.choices([0, 0, 1, 2], k=num_nodes))
    for k in range(num_nodes):
        s.phase = list(Phase)[phases[k]]
        op = rng.choice(["aten.mm", "aten.relu", "aten.neg", "aten.add", "aten.mul", "aten.permute", "aten.add"])
        op = "aten.relu" if op == "aten.permute" and k == num_nodes - 1 else op  # what leaves is no view
        first = rng.choice(pool[-3:] if rng.random() < 0.7 else pool)
        shape = s.values[first].shape
        if op == "aten.mm":
            fits = [v for v in pool if s.values[v].shape[0] == shape[1]]
            if not fits:
                op = "aten.relu"
            else:
                pool.append(s.call(op, first, rng.choice(fits)))
                continue
        if op in ("aten.add", "aten.mul"):
            pool.append(s.call(op, first, rng.choice([v for v in pool if s.values[v].shape == shape])))
        else:
            pool.append(s.call(op, first))
    made = [v for v in pool if v not in s.inputs]
    views = {out for node in s.nodes for out in node.outputs if node.op == "aten.permute"}
    same = [v for v in made if s.values[v].shape == (a, b) and v not in views]
    return s.finish([("w@0", rng.choice(same))] if same and rng.random() < 0.7 else [], "", (made[-1],))
