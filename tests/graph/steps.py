"""Whole steps made by hand, small enough to count every number of their opportunities on paper."""

from autopar.graph.node import Phase
from autopar.graph.tensor import Kind

from .drafts import make_graph, node, value

LINEAR = ("input", "weight")


def diamond():
    """x [8, 4] through two branches of unequal length, and their sum: levels 0 1 1 2 3."""
    inputs = (value("w@0", (4, 4), Kind.PARAM), value("x", (8, 4), Kind.BATCH))
    steps = [
        (node("aten.relu.default", ("x",), "top"), value("top", (8, 4))),
        (node("autopar.linear", ("top", "w@0"), "left", LINEAR, path="left"), value("left", (8, 4))),
        (node("aten.neg.default", ("top",), "right", path="right"), value("right", (8, 4))),
        (node("aten.exp.default", ("right",), "far", path="right"), value("far", (8, 4))),
        (node("aten.add.Tensor", ("left", "far"), "sum"), value("sum", (8, 4))),
    ]
    return make_graph(inputs, steps, outputs=("sum",))


def pair(blocks=1, batch=8, hidden=4, wide=16):
    """Blocks of two linears, up and down, added to their input: what Megatron splits with one all-reduce a block."""
    inputs = [value("x", (batch, hidden), Kind.BATCH)]
    steps, last = [], "x"
    for k in range(blocks):
        where = f"h.{k}"
        inputs += [value(f"{where}.up@0", (wide, hidden), Kind.PARAM), value(f"{where}.down@0", (hidden, wide), Kind.PARAM)]
        steps += [
            (node("autopar.linear", (last, f"{where}.up@0"), f"up_{k}", LINEAR, path=f"{where}.up"), value(f"up_{k}", (batch, wide))),
            (node("aten.relu.default", (f"up_{k}",), f"relu_{k}", path=where), value(f"relu_{k}", (batch, wide))),
            (node("autopar.linear", (f"relu_{k}", f"{where}.down@0"), f"down_{k}", LINEAR, path=f"{where}.down"), value(f"down_{k}", (batch, hidden))),
            (node("aten.add.Tensor", (last, f"down_{k}"), f"out_{k}", path=where), value(f"out_{k}", (batch, hidden))),
        ]
        last = f"out_{k}"
    return make_graph(tuple(inputs), steps, outputs=(last,))


def update():
    """A running mean of x that is rewritten in the forward, read before and after, and a weight that is rewritten in the update."""
    inputs = (
        value("w@0", (4,), Kind.PARAM), value("bn.running_mean@0", (4,), Kind.BUFFER), value("x", (8, 4), Kind.BATCH),
    )  # fmt: skip
    steps = [
        (node("aten.sub.Tensor", ("x", "bn.running_mean@0"), "centred", path="bn"), value("centred", (8, 4))),
        (node("aten.sum.dim_IntList", ("x",), "mean", ("self",), path="bn", dim=(0,)), value("mean", (4,))),
        (node("aten.add.Tensor", ("bn.running_mean@0", "mean"), "bn.running_mean@1", path="bn"), value("bn.running_mean@1", (4,), Kind.BUFFER)),
        (node("aten.sum.default", ("centred",), "loss", ("self",)), value("loss", (), Kind.LOSS)),
        (node("aten.sub.Tensor", ("w@0", "mean"), "w@1", phase=Phase.UPDATE), value("w@1", (4,), Kind.PARAM)),
    ]
    updates = (("bn.running_mean@0", "bn.running_mean@1"), ("w@0", "w@1"))
    return make_graph(inputs, steps, updates=updates, loss="loss")
