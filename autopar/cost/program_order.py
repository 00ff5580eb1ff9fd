"""The order of a program: what communication costs when collectives start, wait and share buckets as the emitted program does it.

In: a program of one stage, the seconds of its nodes, how much memory overlap may take. Out: a `ProgramOrder`. Invariant: nothing here follows the law by which
plans are priced (`cost.estimate`: so much of a phase's communication hides behind its compute). It walks the nodes of `graph.overlap`, on a stream that computes
and one for each axis along which something is sent; so the two may be compared.

    start    queues one collective of all its tensors' bytes, with the whole latency of one
    wait     compute stands still until it is over
    others   collectives that block, one after the other with compute
    update   equal updates as their gradients come (`runtime.parcels`), in lots as `codegen.parcels` prints them: reductions of the next lot first, gathers of the
             last one waited for after this one
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph.graph import producer_table, value_table
from ..graph.node import Node, Phase, get_arg
from ..graph.overlap_memory import overlap_within
from ..graph.program import CUTS, OPEN, STARTS, WAIT, Program
from ..graph.reshard import StepKind
from ..graph.sections import phase_sections
from ..graph.tensor import size_bytes
from ..graph.turns import LOOP, count_microbatches, times_of
from ..graph.update_order import as_they_come, list_calls, list_steps, list_update, sends_in_lots
from .memory import comm_step
from .model import CostModel
from .streams import CommStreams, Piece, Role
from .wires import AxisLink, estimate_comm_s, joint_copied_bytes, joint_link, step_copied_bytes


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """What a step takes in the order of its program.

    Args:
        compute_s: of the step, without cutting and packing of pieces, which takes the stream that computes but is for communication.
        comm_s: of all communication, hidden or not.
        exposed_s: by how much communication lengthens the step.
    """

    step_s: float
    compute_s: float
    comm_s: float
    exposed_s: float


def replay_order(model: CostModel, program: Program, seconds: Mapping[str, float], room_bytes: int | None = None) -> ProgramOrder:
    """Walk through the step of a program of one stage.

    Args:
        seconds: of each node of the program, over all turns (`estimate.node_seconds`).
        room_bytes: as of `overlap_within`; None: there is no limit.
    """
    overlapped, _ = overlap_within(program, phase_sections(program.graph), room_bytes)
    walk = _Walk(model, program, overlapped, seconds)
    nodes = overlapped.graph.nodes
    steps = {phase: [[i] for i, node in enumerate(nodes) if node.phase is phase] for phase in Phase}
    walk.run(steps[Phase.PREPARE])
    for _ in range(count_microbatches(program.graph)):
        for phase in LOOP:
            walk.run(steps[phase])
    _run_update(walk)
    walk.stand(walk.stream.over_s())
    return ProgramOrder(walk.now, walk.compute_s, walk.comm_s, walk.now - walk.compute_s)


def _run_update(walk: _Walk) -> None:
    """Groups of equal updates; those that send, in lots."""
    graph = walk.program.graph
    makers = producer_table(graph)
    for group in list_update(walk.program):
        if sends_in_lots(graph, group):
            for call in list_calls(graph, makers, group):
                walk.run(list_steps(graph, call))
        else:
            for part in as_they_come(graph, makers, group) if len(group) > 1 else group:
                walk.run([[i] for i in part.nodes])


class _Walk:
    """A device on its way through a step: `now` on the compute stream, and what the communication stream does."""

    def __init__(self, model: CostModel, before: Program, program: Program, seconds: Mapping[str, float]) -> None:
        turns = count_microbatches(before.graph)
        self.model, self.program, self.nodes = model, program, program.graph.nodes
        self.values = value_table(program.graph)
        self._held = {name: (whole, sharding) for name, whole, sharding in program.shardings}
        self._whole = dict(program.whole)
        self.seconds = {node.name: seconds[node.name] / times_of(node.phase, turns) for node in before.graph.nodes}
        self.stream = CommStreams(model.exposed_share)
        self.now = self.compute_s = self.comm_s = 0.0
        self._priced: dict[tuple[int, ...], tuple[float, float]] = {}
        self._over: dict[str, float] = {}  # value under way -> when it is there

    def run(self, steps: Iterable[Sequence[int]]) -> None:
        """Nodes one after the other; of a step with several of them, alike, one collective."""
        for step in steps:
            node = self.nodes[step[0]]
            if node.op in STARTS:
                self.start(step)
            elif node.op == OPEN:
                continue
            elif node.op == WAIT:
                self.stand(self._over[node.inputs[0]])
            elif node.op.startswith("comm.") and node.op not in CUTS:
                self.start(step)
                self.stand(self._over[node.outputs[0]])
            else:
                self.compute(self.seconds[node.name], for_comm=node.op.startswith("comm."))

    def start(self, step: Sequence[int]) -> None:
        """Queue one collective for all of these nodes."""
        wire_s, copies_s = self._price(tuple(step))
        axis = get_arg(self.nodes[step[0]], "axis")
        axes = axis if isinstance(axis, tuple) else (axis,)
        self.compute(copies_s, for_comm=True)
        self.comm_s += wire_s
        over = self.stream.start(Piece(self.nodes[step[0]].name, Role.BLOCKING, wire_s, "", axes), self.now)  # type: ignore[arg-type]
        self._over.update((out, over) for i in step for out in self.nodes[i].outputs)

    def compute(self, seconds: float, for_comm: bool = False) -> None:
        self.now, _ = self.stream.compute(self.now, seconds, {})
        if for_comm:
            self.comm_s += seconds
        else:
            self.compute_s += seconds

    def stand(self, until_s: float) -> None:
        self.now = max(self.now, until_s)

    def _price(self, row: tuple[int, ...]) -> tuple[float, float]:
        """(seconds on the wire, of copies) of one collective for all tensors of these nodes."""
        if row not in self._priced:
            first = self.nodes[row[0]]
            kind = StepKind(first.op.replace("start_", "").removeprefix("comm."))
            ends = [(self.values[a], self.values[b]) for i in row for a, b in zip(self.nodes[i].inputs, self.nodes[i].outputs)]
            sides = sum(size_bytes(a) for a, _ in ends), sum(size_bytes(b) for _, b in ends)
            link, copied = self._link(get_arg(first, "axis")), sum(self._copied_bytes(self.nodes[i]) for i in row)
            wire_s = estimate_comm_s(self.model, kind, link, *sides)
            self._priced[row] = wire_s, estimate_comm_s(self.model, kind, link, *sides, copied) - wire_s
        return self._priced[row]

    def _link(self, axis: object) -> AxisLink:
        """The way of a collective; of several axes that of the ranks of all."""
        names = [a.name for a in self.program.mesh.axes]
        return joint_link(self.model, self.program.mesh, sorted(names.index(str(name)) for name in (axis if isinstance(axis, tuple) else (axis,))))

    def _copied_bytes(self, node: Node) -> int:
        """Of what is read and written once more, packing of buckets not counted."""
        once = self._copied_jointly if isinstance(get_arg(node, "axis"), tuple) else self._copied_once
        return sum(once(node, number) for number in range(len(node.outputs)))

    def _copied_jointly(self, node: Node, number: int) -> int:
        kind, names = StepKind(node.op.removeprefix("comm.start_")), [a.name for a in self.program.mesh.axes]
        before, after = node.inputs[number], node.outputs[number]
        whole, split = self._held[before if kind is StepKind.ALL_GATHER else after]
        axes = sorted(names.index(str(name)) for name in get_arg(node, "axis"))  # type: ignore[union-attr]
        return joint_copied_bytes(kind, self._whole[whole], split, axes, self.program.mesh, size_bytes(self.values[before]), size_bytes(self.values[after]))

    def _copied_once(self, node: Node, number: int) -> int:
        digits = [(name, arg[number] if node.op in STARTS else arg) for name, arg in node.args if name in ("dim", "stride")]  # type: ignore[index]
        single = node if node.op not in STARTS else replace(node, op=node.op.replace("start_", ""), args=(("axis", get_arg(node, "axis")), *digits))
        kind, size, ends = comm_step(self.program, single)
        before, after = self.values[node.inputs[number]], self.values[node.outputs[number]]
        return step_copied_bytes(kind, before.shape, after.shape, before.dtype, size, ends)
