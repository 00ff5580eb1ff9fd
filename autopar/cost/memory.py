"""Memory over time: which bytes one device holds while each node of a program runs, and who holds them.

In: a `Program`. Out: `Moment`s, one per node. Which values own bytes and for how long is the law of `graph.liveness`; this file adds who
holds them, the buffer through which a collective packs or unpacks where its split is not outermost (as `runtime.comm` does), and what
the device and its allocator keep for themselves (`reserve_bytes`). Scratch space inside an op is not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..graph.graph import value_table
from ..graph.liveness import live_ranges
from ..graph.node import Node, Phase, get_arg
from ..graph.plan import Holder, Moment
from ..graph.program import Program
from ..graph.reshard import StepKind
from ..graph.tensor import STATE_KINDS, Kind, Value, size_bytes
from ..graph.turns import RECEIVE, SEND, count_microbatches, has_backward, loop_span
from .wires import Ends, step_copied_bytes

HOLDERS = ("parameters", "gradients", "optimizer", "buffers", "batch", "activations", "gathered", "temporaries", "reserve")
_STATE_HOLDER = {Kind.PARAM: "parameters", Kind.BUFFER: "buffers", Kind.OPTIM: "optimizer"}
MAX_MOMENTS = 2000


@dataclass(frozen=True, slots=True)
class Life:
    """One piece of storage: who holds it, and while which nodes (both included; -1: it enters the step). `leaves`: it is held when the step ends."""

    name: str
    holder: str
    bytes: int
    first: int
    last: int
    leaves: bool


@dataclass(frozen=True, slots=True)
class Among:
    """A stage among others.

    Args:
        number: of the stage.
        given_bytes: of what other stages return: every rank has all outputs, whole, when the step ends.
    """

    number: int = 0
    given_bytes: int = 0


ALONE = Among()


@dataclass(frozen=True, slots=True)
class Memory:
    """What a program needs on one device.

    Args:
        peak: index into the program's nodes of the first node at which most is held; -1 where there are no nodes.
        moments: in node order; of a long program the highest of each run of nodes, the peak among them.
        max_activation_bytes: the most that `activations` hold at any node.
    """

    peak: int
    peak_bytes: int
    state_bytes: int
    max_activation_bytes: int
    holders: tuple[Holder, ...]
    moments: tuple[Moment, ...]


def list_lives(program: Program) -> tuple[Life, ...]:
    """The storage of every value that has bytes of its own, in the order in which it comes to be."""
    values = value_table(program.graph)
    end = max(0, len(program.graph.nodes) - 1)
    return tuple(
        Life(name, _holder(program, values, name, first, min(last, end)), size_bytes(values[name]), first, min(last, end), last > end)
        for name, (first, last) in live_ranges(program.graph).items()
    )


def _holder(program: Program, values: dict[str, Value], name: str, first: int, last: int) -> str:
    value = values[name]
    if first < 0:
        return _STATE_HOLDER.get(value.kind, "batch")
    node, origin = program.graph.nodes[first], program.origins[first]
    if node.op.startswith("comm.") and origin.value and _whole_kind(program, values, origin.value) in STATE_KINDS:
        return "gathered"
    if value.kind is Kind.GRAD:
        return "gradients"
    if value.kind is not Kind.LOSS and node.phase is Phase.FORWARD and program.graph.nodes[last].phase is not Phase.FORWARD:
        return "activations"
    return "temporaries"


def _whole_kind(program: Program, values: dict[str, Value], whole: str) -> Kind | None:
    """The kind of a whole-graph value: its piece bears the same name in the program."""
    return values[whole].kind if whole in values else None


def waiting_bytes(program: Program, in_flight: float) -> dict[str, int]:
    """Bytes of each piece that other microbatches hold between their forward and their backward, through all turns.

    Args:
        in_flight: as of `estimate_memory`.
    """
    graph = program.graph
    span = loop_span(graph)
    if span is None or in_flight <= 1:
        return {}
    turn = next((i for i, node in enumerate(graph.nodes) if node.phase is Phase.BACKWARD), len(graph.nodes))
    lives = (life for life in list_lives(program) if span[0] <= life.first < turn <= life.last <= span[1])
    return {life.name: ceil((in_flight - 1) * life.bytes) for life in lives}


def queued_bytes(program: Program, among: Among) -> list[int]:
    """Bytes of messages beside the program's own values while each node runs: what has come for this turn and is not received yet, what comes for the next one, and
    what stages further on have not taken yet: they take it as many turns later as they are further on (`runtime.stages` waits for them). Only where nothing goes
    backward: there the schedule says when a message is taken, and that is not counted."""
    graph, values, span = program.graph, value_table(program.graph), loop_span(program.graph)
    found = [0] * len(graph.nodes)
    if span is None or has_backward(graph):
        return found
    others, inside = count_microbatches(graph) - 1, range(span[0], span[1] + 1)
    sizes = {i: size_bytes(values[graph.nodes[i].outputs[0]]) for i in inside if graph.nodes[i].op in (SEND, RECEIVE)}
    sent = sum(size * min(others, _int(graph.nodes[i], "stage") - among.number) for i, size in sizes.items() if graph.nodes[i].op == SEND)
    coming = {i: size for i, size in sizes.items() if graph.nodes[i].op == RECEIVE}
    early = sum(coming.values())
    for i in inside:
        early -= coming.get(i, 0)
        found[i] = sent + sum(coming.values()) + early
    return found


def scratch_bytes(program: Program, node: Node, values: dict[str, Value]) -> int:
    """Bytes that a collective holds beside its input and output while it runs."""
    if not node.op.startswith("comm."):
        return 0
    kind, size, ends = comm_step(program, node)
    return step_copied_bytes(kind, values[node.inputs[0]].shape, values[node.outputs[0]].shape, values[node.inputs[0]].dtype, size, ends)


def comm_step(program: Program, node: Node) -> tuple[StepKind, int, Ends]:
    """Of a `comm` node: kind, size of its axis, and (from_dim, from_stride), (to_dim, to_stride) as in `reshard.Step`."""
    kind = StepKind(node.op.removeprefix("comm."))
    size = next(a.size for a in program.mesh.axes if a.name == get_arg(node, "axis"))
    here = (_int(node, "dim"), _int(node, "stride"))
    none = (-1, -1)
    if kind is StepKind.ALL_TO_ALL:
        return kind, size, ((_int(node, "from_dim"), _int(node, "from_stride")), (_int(node, "to_dim"), _int(node, "to_stride")))
    return kind, size, (here, none) if kind is StepKind.ALL_GATHER else (none, here)


def _int(node: Node, name: str) -> int:
    found = get_arg(node, name, -1)
    assert isinstance(found, int)
    return found


def ends_higher(program: Program, among: Among) -> bool:
    """The end of the step, when this rank has the outputs of other stages, too, holds more than its last node."""
    last = len(program.graph.nodes) - 1
    if last < 0 or not among.given_bytes:
        return False
    over = sum(life.bytes for life in list_lives(program) if life.last == last and not life.leaves) + beside_bytes(program, last, among)
    return among.given_bytes > over


def beside_bytes(program: Program, at: int, among: Among) -> int:
    """What is held while a node runs, beside values."""
    return scratch_bytes(program, program.graph.nodes[at], value_table(program.graph)) + queued_bytes(program, among)[at]


def estimate_memory(program: Program, reserve_bytes: int, in_flight: float = 1.0, among: Among = ALONE) -> Memory:
    """Walk the program once.

    Args:
        reserve_bytes: that the device and the allocator keep for themselves.
        in_flight: of a pipeline stage: so many microbatches at most are between their forward and their backward, this one included.
    """
    graph = program.graph
    values = value_table(graph)
    column = {name: k for k, name in enumerate(HOLDERS)}
    held = [0] * len(HOLDERS)
    held[column["reserve"]] = reserve_bytes
    starts: dict[int, list[Life]] = {}
    ends: dict[int, list[Life]] = {}
    waiting = [0] * len(HOLDERS)
    span, each = loop_span(graph), waiting_bytes(program, in_flight)
    queued = queued_bytes(program, among)
    for life in list_lives(program):
        waiting[column[life.holder]] += each.get(life.name, 0)
        starts.setdefault(life.first, []).append(life)
        ends.setdefault(life.last, []).append(life)
    for life in starts.get(-1, ()):
        held[column[life.holder]] += life.bytes
    state = sum(held[column[name]] for name in _STATE_HOLDER.values())
    rows: list[tuple[int, ...]] = []
    for i, node in enumerate(graph.nodes):
        for life in starts.get(i, ()):
            held[column[life.holder]] += life.bytes
        row = [a + b for a, b in zip(held, waiting)] if span is not None and span[0] <= i <= span[1] else list(held)
        row[column["temporaries"]] += scratch_bytes(program, node, values) + queued[i]
        rows.append(tuple(row))
        for life in ends.get(i, ()):
            held[column[life.holder]] -= life.bytes
    if rows and ends_higher(program, among):
        rows[-1] = _end_row(program, reserve_bytes, among)
    totals = [sum(row) for row in rows] or [sum(held)]
    peak = max(range(len(totals)), key=totals.__getitem__)
    top = rows[peak] if rows else tuple(held)
    return Memory(
        peak if rows else -1,
        totals[peak],
        state,
        max((row[column["activations"]] for row in rows), default=0),
        _list_holders(top),
        tuple(Moment(graph.nodes[i].name, graph.nodes[i].phase, totals[i], _list_holders(rows[i])) for i in _kept(totals if rows else [])),
    )


def _end_row(program: Program, reserve_bytes: int, among: Among) -> tuple[int, ...]:
    """What is held when the step ends, by holder."""
    held = {**dict.fromkeys(HOLDERS, 0), "reserve": reserve_bytes, "temporaries": among.given_bytes}
    for life in list_lives(program):
        held[life.holder] += life.bytes if life.leaves else 0
    return tuple(held.values())


def _kept(totals: list[int]) -> list[int]:
    """The indices of the moments to keep: all, or the highest of each of `MAX_MOMENTS` runs."""
    if len(totals) <= MAX_MOMENTS:
        return list(range(len(totals)))
    cuts = [k * len(totals) // MAX_MOMENTS for k in range(MAX_MOMENTS + 1)]
    return [max(range(a, b), key=totals.__getitem__) for a, b in zip(cuts, cuts[1:])]


def _list_holders(row: tuple[int, ...]) -> tuple[Holder, ...]:
    return tuple(Holder(name, size) for name, size in zip(HOLDERS, row) if size)
