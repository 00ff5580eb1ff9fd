"""Habits of other frameworks that our programs do not have: what they add to a step, and what they save.

In: a program of one stage, the seconds of its nodes. Out: seconds; of states that are cut as one flat buffer bytes, too. Asked for by fields of the cost
model that nothing sets for our own programs; the published runs of other frameworks are priced with them (`benchmarks.fidelity_predict`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum, prod

from ..graph.graph import value_table
from ..graph.node import Phase
from ..graph.program import Program
from ..graph.recompute import AGAIN
from ..graph.repeats import block_of
from ..graph.sharding import Shard
from ..graph.tensor import Kind, size_bytes
from ..graph.transfer import Transfer, transfer_of
from ..graph.turns import count_microbatches
from .model import CostModel


def rest_of_blocks(program: Program) -> tuple[str, ...]:
    """The nodes of the forward pass of numbered blocks that the backward pass does not run again; states are gathered there anyway."""
    values = value_table(program.graph)
    rows = list(zip(program.graph.nodes, program.origins))
    again = {origin.value or node.name for node, origin in rows if node.phase is Phase.BACKWARD}
    rest = []
    for node, origin in rows:
        if node.phase is not Phase.FORWARD or block_of(node.path, program.graph.sequences) is None:
            continue
        if origin.value and transfer_of(values[origin.value]) is not Transfer.BLOCKING:
            continue
        if (origin.value or node.name) + AGAIN not in again:
            rest.append(node.name)
    return tuple(rest)


def ends_hidden_seconds(model: CostModel, program: Program, seconds: Mapping[str, float]) -> float:
    """Seconds by which what is sent with the update does not lengthen the step: all but the exposed share, as far as one backward (gradients that were added up
    over turns) and one forward (new parameters) compute.

    Args:
        seconds: of each node (`estimate.node_seconds`).
    """
    values, turns = value_table(program.graph), count_microbatches(program.graph)
    beside, sent = dict.fromkeys((Phase.FORWARD, Phase.BACKWARD), 0.0), dict.fromkeys((Phase.FORWARD, Phase.BACKWARD), 0.0)
    for node, origin in zip(program.graph.nodes, program.origins):
        if not node.op.startswith("comm."):
            if node.phase in beside:
                beside[node.phase] += seconds[node.name] / turns
        elif node.phase is Phase.UPDATE:
            value = values[origin.value]
            if value.kind is Kind.GRAD:
                sent[Phase.BACKWARD] += seconds[node.name]
            elif value.kind is Kind.PARAM and value.version > 0:
                sent[Phase.FORWARD] += seconds[node.name]
    return fsum(min((1 - model.exposed_share) * sent[phase], beside[phase]) for phase in beside)


def flat_states_bytes(program: Program, axes: Sequence[int]) -> float:
    """Bytes of optimizer states that one device holds here and would not hold if they were cut as one flat buffer: a state whose dims do not divide is whole along
    an axis here, its n-th part is there (and the padding of the buffer's end).

    Args:
        axes: of the mesh, by index: those along which states are to be cut.
    """
    return fsum(size * (1 - part) for size, part in _states(program, axes))


def flat_states_seconds(program: Program, axes: Sequence[int], seconds: Mapping[str, float]) -> float:
    """Seconds by which the update of such states is shorter there. An update moves bytes and computes next to nothing, so it takes their share. What is sent
    stays: gradients of whole states are all-reduced here; there they are reduce-scattered and new parameters gathered, which are the two halves of that.

    Args:
        axes: as of `flat_states_bytes`.
        seconds: of each node (`estimate.node_seconds`).
    """
    held = fsum(size for size, _ in _states(program, axes))
    update = fsum(seconds[node.name] for node in program.graph.nodes if node.phase is Phase.UPDATE and not node.op.startswith("comm."))
    return update * flat_states_bytes(program, axes) / held if held else 0.0


def _states(program: Program, axes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Of each optimizer state: bytes that a device holds, and the part of them that it would hold if all `axes` cut it."""
    values = value_table(program.graph)
    shardings = {name: sharding for name, _, sharding in program.shardings}
    for name in program.graph.inputs:
        if values[name].kind is Kind.OPTIM:
            placements = shardings[name].placements
            yield size_bytes(values[name]), 1 / prod(program.mesh.axes[k].size for k in axes if not isinstance(placements[k], Shard))
