"""Programs written by hand, in the form that codegen emits."""

from __future__ import annotations

# a linear model without bias, squared error, SGD with momentum 0.9; parameters and momentum stored in pieces (ZeRO-3)
ZERO3 = '''\
from autopar.runtime import Batch, State

MESH = (("a", {n}),)
STATES = {{
    "w": State(kind="param", shape=(8, 4), dtype="float32", sharding="{w}", init=(("normal_", 0.0, 0.5),)),
    "scale": State(kind="buffer", shape=(3,), dtype="float32", sharding="R", init=("tensor", (1.0, 2.0, 3.0))),
    "seen": State(kind="buffer", shape=(), dtype="int64", sharding="R", init=("zeros",), persistent=False),
    "momentum_buffer:w": State(kind="optim", shape=(8, 4), dtype="float32", sharding="{w}", init=("zeros",)),
}}
BATCH = {{"input:x": Batch((24, 4), "float32", "{x}"), "target:0": Batch((24, 8), "float32", "{x}")}}
ALIASES = {{"tied.w": "w"}}


def step(comm, state, batch):
    x, target = batch["input:x"], batch["target:0"]
    w = comm.all_gather(state["w"], "a", {dim}, {stride})
    error = x @ w.t() - target
    loss = comm.all_reduce((error * error).sum() / 192, "a")
    grad = comm.reduce_scatter(2 * error.t() @ x / 192, "a", {dim}, {stride})
    state["momentum_buffer:w"].mul_(0.9).add_(grad)
    state["w"].sub_(0.1 * state["momentum_buffer:w"])
    state["seen"].add_(1)
    return loss
'''


def zero3(n: int, dim: int = 0, stride: int | None = None) -> dict[str, str]:
    """The files of the program on `n` ranks, parameters split along `dim`."""
    stride = stride or (8, 4)[dim] // n
    return {"program.py": ZERO3.format(n=n, w=f"S{dim}/{stride}", x=f"S0/{24 // n}", dim=dim, stride=stride), "plan.json": '{"model": {"name": "linear", "graph_hash": "h"}}'}
