"""Small graphs made by hand, one call per node."""

import random

from autopar.graph.choice import Assignment
from autopar.graph.cuts import find_cuts, resolve_all
from autopar.graph.graph import Graph
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.partition import node_cuts, partition
from autopar.graph.program import check_program
from autopar.graph.rule import Rule, Site, resolve
from autopar.graph.rules import RULES
from autopar.graph.sharding import chunk, parse_sharding, replicated, why_illegal
from autopar.graph.strategy import list_strategies
from autopar.graph.tensor import Kind, Value


def value(name, shape, kind=Kind.ACTIVATION, dtype="float64"):
    storage, _, version = name.rpartition("@")
    return Value(name, storage or name, int(version) if storage else 0, tuple(shape), dtype, kind)


def node(op, inputs, output, names=("self", "other"), phase=Phase.FORWARD, path="", **attributes):
    """A node of one output and the same name; inputs are the arguments `names` in order."""
    args = tuple((key, Ref(k)) for k, key in enumerate(names[: len(inputs)])) + tuple(attributes.items())
    return Node(output, op, tuple(inputs), args, (output,), phase, path, "model.py:1")


def make_graph(inputs, steps, **rest):
    """A graph of values that enter and (node, value) pairs in order."""
    values = (*inputs, *(v for _, v in steps))
    return Graph("toy", values, tuple(n for n, _ in steps), tuple(v.name for v in inputs), **rest)


def make_site(op, inputs, outputs, names=("self", "other", "third"), **attributes):
    """A site of whole shapes, without a graph around it."""
    args = tuple((key, Ref(k)) for k, key in enumerate(names[: len(inputs)])) + tuple(attributes.items())
    made = Node("n", op, tuple(f"x{k}" for k in range(len(inputs))), args, tuple(f"y{k}" for k in range(len(outputs))), Phase.FORWARD)
    return Site(made, tuple(map(tuple, inputs)), tuple(map(tuple, outputs)))


def apply(text, inputs, outputs, names=("self", "other", "third"), **row):
    """(signature, site) of a rule text at these shapes."""
    site = make_site("toy.op", inputs, outputs, names)
    return resolve(Rule("toy.op", text, **row), site), site


def shardings(*texts):
    return tuple(map(parse_sharding, texts))


def make_mesh(*sizes):
    return Mesh(tuple(MeshAxis("abc"[k], n) for k, n in enumerate(sizes)))


class Assigner:
    """Assignments of one graph over one mesh: everything replicated, but for what is named."""

    def __init__(self, graph, *sizes, rules=RULES):
        self.graph, self.mesh, self.sizes = graph, make_mesh(*sizes), sizes
        self.sites, self.signatures = resolve_all(graph, rules)
        self.cuts = find_cuts(graph, self.signatures)

    def strategies(self, index):
        site, signature = self.sites[index], self.signatures[index]
        return list_strategies(signature, site, self.sizes, node_cuts(site, signature, self.cuts))[0]

    def assign(self, storages=None, choices=None):
        """`storages`: input -> sharding text; `choices`: node -> choices joined by spaces. All others replicate."""
        stored = {name: replicated(len(self.sizes)) for name in self.graph.inputs}
        stored |= {name: parse_sharding(text) for name, text in (storages or {}).items()}
        chosen = {n.name: ("R",) * len(self.sizes) for n in self.graph.nodes}
        chosen |= {name: tuple(text.split(";") if text else ()) for name, text in (choices or {}).items()}
        return Assignment(self.mesh, tuple(stored.items()), tuple(chosen.items()))

    def draw(self, seed):
        """A random assignment."""
        rng = random.Random(seed)
        picks = {n.name: ";".join(rng.choice(self.strategies(i)).choices) for i, n in enumerate(self.graph.nodes)}
        shapes = {v.name: v.shape for v in self.graph.values}
        stored = {}
        for name in self.graph.inputs if self.sizes else ():
            fine = [chunk(dim, shapes[name], (0,), self.sizes) for dim in range(len(shapes[name]))]
            stored[name] = str(rng.choice([s for s in fine if not why_illegal(shapes[name], s, self.sizes)]))
        return self.assign(stored, picks)

    def program(self, assignment, keep_grads=False):
        program = partition(self.graph, self.sites, self.signatures, self.cuts, assignment, keep_grads)
        check_program(program)
        return program
