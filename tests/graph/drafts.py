"""Small graphs made by hand, one call per node."""

from autopar.graph.graph import Graph
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.rule import Rule, Site, resolve
from autopar.graph.sharding import parse_sharding
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
