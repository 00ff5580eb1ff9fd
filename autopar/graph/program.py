"""Programs: what every rank executes. A program is a graph of LOCAL values in which each communication is a node.

Nodes of a program are the step's own ops with local attributes, and nodes `comm.*` (one collective or local cut along one mesh
axis). All ranks run the same nodes; only the coordinates differ. `origin` tells which node of the whole graph each node comes from, or
which value it brings where, so that a person can read why it is there.

    comm.all_gather(x, axis, dim, stride[, short])       comm.reduce_scatter(x, axis, dim, stride, op)    comm.all_reduce(x, axis, op)
    comm.all_to_all(x, axis, from_dim, from_stride, to_dim, to_stride)
    comm.slice(x, axis, dim, stride)            comm.keep(x, axis)
    state.write(state, value)                   puts the new version into the state's own storage; the old one is read no more

`stride` is in elements of the local tensor that is whole along the axis (see `reshard.Step`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ProgramError
from .graph import Graph, check_graph
from .mesh import Mesh
from .sharding import Sharding


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a program's node comes from.

    Args:
        node: name of the node of the whole graph that needed it.
        value: for a `comm` node the whole-graph value that it brings to another sharding, else "".
        reason: one line for people: the strategy's choices, or `S0/4,R -> R,R for linear_3`.
    """

    node: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank executes.

    Args:
        graph: nodes and values with local shapes. States enter and leave in their storage sharding.
        mesh: the ranks.
        origins: one per node of `graph`.
        shardings: (local value, whole-graph value, sharding) for every value of `graph`.
        whole: (whole-graph value, whole shape) for the values named in `shardings`.
    """

    graph: Graph
    mesh: Mesh
    origins: tuple[Origin, ...]
    shardings: tuple[tuple[str, str, Sharding], ...]
    whole: tuple[tuple[str, tuple[int, ...]], ...]


STARTS = ("comm.start_all_gather", "comm.start_reduce_scatter", "comm.start_all_reduce")  # of a program that was overlapped (`graph.overlap`)
WAIT = "comm.wait"
OPEN = "comm.open_bucket"  # `graph.open_buckets`
MAKES, WRITES = "autopar.linear_weight_grad", "autopar.linear_weight_grad_into"  # a matmul that makes a gradient, and one that writes it into a bucket
CUTS = ("comm.slice", "comm.keep")  # local
COMM_OPS = ("comm.all_gather", "comm.reduce_scatter", "comm.all_reduce", "comm.all_to_all", *CUTS, *STARTS, WAIT, OPEN)


def check_program(program: Program) -> None:
    """Raise `ProgramError` (or `GraphError`) where the program breaks its law."""
    check_graph(program.graph)
    if len(program.origins) != len(program.graph.nodes):
        raise ProgramError(f"{program.graph.name}: {len(program.graph.nodes)} nodes but {len(program.origins)} origins")
    axes = {a.name for a in program.mesh.axes}
    for node in program.graph.nodes:
        if node.op.startswith("comm."):
            if node.op not in COMM_OPS:
                raise ProgramError(f"{node.name}: unknown communication {node.op}, expected one of {', '.join(COMM_OPS)}")
            axis = dict(node.args).get("axis")
            several = node.op in STARTS and isinstance(axis, tuple)
            if node.op not in (WAIT, OPEN) and not axes.issuperset(axis if several else (axis,)):
                raise ProgramError(f"{node.name}: {node.op} along {axis!r}, the mesh has {', '.join(sorted(axes))}")
    known = {name for name, _, _ in program.shardings}
    for value in program.graph.values:
        if value.name not in known:
            raise ProgramError(f"{program.graph.name}: local value {value.name} has no sharding")
