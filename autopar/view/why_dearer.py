"""Why one program of a graph takes longer than another: whose compute, which communication along which axis.

In: two programs over one mesh, as rows of seconds. Out: `Cause`s, equal blocks folded. Invariant: the causes and what is left
out sum to the difference of the two steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ..graph.graph import Graph
from ..graph.mesh import Mesh, MeshAxis
from ..graph.program import Program
from ..graph.repeats import block_of, block_path
from .fold import fold_names
from .split_text import print_op

COMPUTE = "compute"
_LEAST = 0.02  # of the sum of all changes: what is less is not told
_MOST = 3  # of what is more, and of what is less


@dataclass(frozen=True, slots=True)
class CostRow:
    """Nodes that are told together: `sort` is `compute` or the collective, `axis` "" for compute, `what` and `place` say of what."""

    sort: str
    axis: str
    phase: str
    what: str
    place: str


@dataclass(frozen=True, slots=True)
class Cause:
    """So many seconds more than in the chosen plan (less, where negative), of `count` equal places."""

    what: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Difference:
    """By kind (`compute`, `communication along a (across hosts)`), then by place; what is more comes first, then what is less.

    `rest_s`: what is not listed among the causes.
    """

    kinds: tuple[Cause, ...]
    causes: tuple[Cause, ...]
    rest_s: float


def list_costs(graph: Graph, program: Program, seconds: Mapping[str, float]) -> dict[CostRow, float]:
    """The seconds of a program by what they are for.

    Args:
        graph: the whole one, with what is run again.
        seconds: of each node of the program (`cost.estimate.node_seconds`, less what hides).
    """
    makers = {out: node for node in graph.nodes for out in node.outputs if out}
    nodes = {node.name: node for node in graph.nodes}
    grads = {grad: param.partition("@")[0] for param, grad in graph.grads}
    found: dict[CostRow, list[float]] = {}
    for node, origin in zip(program.graph.nodes, program.origins):
        if node.op.startswith("comm."):
            sort, axis, maker = node.op.partition(".")[2], str(dict(node.args)["axis"]), makers.get(origin.value)
            if origin.value in grads:
                what, place = "the gradient of ", grads[origin.value]
            elif maker is None:
                what, place = "", origin.value.removesuffix("@0")
            else:
                what, place = f"what {print_op(maker.op)} makes in ", maker.path or maker.name
        else:
            own = nodes.get(origin.node)
            sort, axis, what, place = COMPUTE, "", "", _module(own.path if own is not None else "", graph.sequences)
        found.setdefault(CostRow(sort, axis, node.phase.value, what, place), []).append(seconds[node.name])
    return {row: fsum(parts) for row, parts in found.items()}


def compare_costs(chosen: Mapping[CostRow, float], other: Mapping[CostRow, float], extra_s: float, mesh: Mesh, hosts: int) -> Difference:
    """What the other takes more, or less.

    Args:
        extra_s: by how much its step is longer.
        hosts: of the cluster; with one, links need no name.
    """
    axes = {axis.name: axis for axis in mesh.axes}
    changes = {row: other.get(row, 0.0) - chosen.get(row, 0.0) for row in dict.fromkeys((*chosen, *other))}
    changes = {row: seconds for row, seconds in changes.items() if abs(seconds) > 1e-12}
    kinds: dict[str, list[float]] = {}
    for row, seconds in changes.items():
        kinds.setdefault(COMPUTE if row.sort == COMPUTE else f"communication {_along(axes[row.axis], hosts)}", []).append(seconds)
    rows = list(changes)
    folds = fold_names([row.place for row in rows], [(row.sort, row.axis, row.phase, row.what, changes[row] > 0) for row in rows])
    causes = []
    for fold in folds:
        row, seconds = rows[fold.members[0]], fsum(changes[rows[i]] for i in fold.members)
        if row.sort == COMPUTE:
            what = f"compute ({row.phase}){f' in {fold.name}' if fold.name else ''}"
        else:
            what = f"{row.sort} on {row.axis} ({row.phase}) of {row.what}{fold.name}"
        causes.append(Cause(what, len(fold.members), seconds))
    causes.sort(key=lambda c: -abs(c.seconds))
    weight = fsum(abs(c.seconds) for c in causes)
    causes = [c for c in causes if abs(c.seconds) >= _LEAST * weight]
    told = [c for c in causes if c.seconds > 0][:_MOST] + [c for c in causes if c.seconds < 0][:_MOST]
    sums = [Cause(what, len(parts), fsum(parts)) for what, parts in kinds.items()]
    sums = [c for c in sums if abs(c.seconds) >= _LEAST * max(abs(other.seconds) for other in sums)]
    return Difference(tuple(sorted(sums, key=lambda c: -c.seconds)), tuple(told), extra_s - fsum(c.seconds for c in told))


def _module(path: str, sequences: Collection[str]) -> str:
    """The numbered block that a module is in, or itself: ops of one block are told together."""
    block = block_of(path, sequences)
    return path if block is None else block_path(*block)


def _along(axis: MeshAxis, hosts: int) -> str:
    where = "" if hosts < 2 else " (across hosts)" if axis.link == "across" else " (inside a host)"
    return f"along {axis.name}{where}"


def largest_kind(kinds: Sequence[Cause]) -> str:
    """The kind of cost that grows most; "" where none does."""
    return kinds[0].what if kinds and kinds[0].seconds > 0 else ""
