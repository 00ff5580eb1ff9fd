"""Memory over time: which bytes one device holds while each node of a program runs, and who holds them.

In: a `Program`. Out: `Moment`s, one per node. Which values own bytes and for how long is the law of `graph.liveness`; this file adds who
holds them, the buffer through which a collective packs or unpacks where its split is not outermost (as `runtime.comm` does), and what
the device and its allocator keep for themselves (`reserve_bytes`). Scratch space inside an op is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from ..graph.chunk_times import NO_CHUNKS
from ..graph.flying import kept_by_chunk, list_kept, weigh_flying
from ..graph.graph import Graph, value_table
from ..graph.liveness import held_bases, live_ranges
from ..graph.node import Node, Phase, get_arg
from ..graph.plan import Holder, Moment
from ..graph.program import Program
from ..graph.reshard import StepKind
from ..graph.stage_programs import program_chunks
from ..graph.stage_wires import TurnHeld
from ..graph.tensor import STATE_KINDS, Kind, Value, size_bytes
from ..graph.turns import LOOP, RECEIVE, SEND, loop_span
from .wires import Ends, step_held_bytes

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
        given_bytes: of what other stages return: every rank has all outputs, whole, when the step ends.
        held: what it holds for other turns, in each of its actions.
        chunk_of: (node of its graph, its chunk), where it runs several.
    """

    given_bytes: int = 0
    held: tuple[TurnHeld, ...] = ()
    chunk_of: tuple[tuple[str, int], ...] = ()


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
    return {name: ceil((in_flight - 1) * size) for name, size in list_kept(program.graph).items()} if in_flight > 1 else {}


def kept_of_chunks(program: Program, among: Among) -> tuple[int, ...]:
    """Bytes that each chunk of a stage keeps of one microbatch."""
    return kept_by_chunk(program.graph, program_chunks(program, dict(among.chunk_of)) if among.chunk_of else NO_CHUNKS)


def queued_bytes(program: Program, in_flight: float, among: Among) -> list[int]:
    """Bytes of messages beside the program's own values while each node runs, at the action of its phase where they and what microbatches in flight keep
    are most: what is sent and not taken yet, and what has come and is not received yet.

    Args:
        in_flight: as of `estimate_memory`, which counts so many in every action: where there are fewer, messages have their room.
    """
    graph, values = program.graph, value_table(program.graph)
    found = [0] * len(graph.nodes)
    at = {node.name: i for i, node in enumerate(graph.nodes) if node.op in (SEND, RECEIVE)}
    if not at:
        return found
    lives, base = {life.name: life for life in list_lives(program)}, held_bases(graph)
    waiting = waiting_bytes(program, in_flight)
    chunks = kept_of_chunks(program, among)
    sizes = {name: size_bytes(values[graph.nodes[i].outputs[0]]) for name, i in at.items()}
    owners = {name: base[graph.nodes[i].inputs[0]] for name, i in at.items() if graph.nodes[i].op == SEND}
    for name, owner in owners.items():
        sizes[name] *= owner in lives  # a state is there anyway
    others: dict[tuple[Phase, tuple[str, ...]], int] = {}
    for row in among.held:
        fewer = ceil((max(in_flight, 1.0) - max(weigh_flying(row.in_flight, chunks), 1.0)) * sum(chunks)) if row.phase in LOOP and in_flight > 1 else 0
        bytes_ = sum(count * sizes[name] for name, count in row.messages if name in sizes and owners.get(name) not in waiting) - fewer
        others[row.phase, row.own] = max(bytes_, others.get((row.phase, row.own), bytes_))
    for (phase, own), bytes_ in others.items():
        change = [0] * (len(graph.nodes) + 1)
        for name in own:
            if name in owners:
                change[max(at[name], lives[owners[name]].last) + 1 if owners[name] in lives else -1] += sizes[name]
            elif name in at:
                change[0] += sizes[name]
                change[at[name]] -= sizes[name]
        for i, node in enumerate(graph.nodes):
            bytes_ += change[i]
            if node.phase is phase:
                found[i] = max(found[i], bytes_)
    _add_late(graph, at, sizes, found)
    return found


def _add_late(graph: Graph, at: Mapping[str, int], sizes: Mapping[str, int], found: list[int]) -> None:
    """Add what is sent once a step, from there until something comes back from the same stage: it may not be taken before."""
    for name, first in at.items():
        node = graph.nodes[first]
        if node.op == SEND and node.phase is Phase.UPDATE:
            back = (i for n, i in at.items() if i > first and graph.nodes[i].op == RECEIVE and get_arg(graph.nodes[i], "stage") == get_arg(node, "stage"))
            for i in range(first + 1, min(back, default=len(found))):
                found[i] += sizes[name]


def scratch_bytes(program: Program, node: Node, values: dict[str, Value]) -> int:
    """Bytes that a collective holds beside its input and output while it runs."""
    if not node.op.startswith("comm."):
        return 0
    kind, size, ends = comm_step(program, node)
    return step_held_bytes(kind, values[node.inputs[0]].shape, values[node.outputs[0]].shape, values[node.inputs[0]].dtype, size, ends)


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
    over = sum(life.bytes for life in list_lives(program) if life.last == last and not life.leaves) + beside_bytes(program, last, 1.0, among)
    return among.given_bytes > over


def beside_bytes(program: Program, at: int, in_flight: float, among: Among) -> int:
    """What is held while a node runs, beside values."""
    return scratch_bytes(program, program.graph.nodes[at], value_table(program.graph)) + queued_bytes(program, in_flight, among)[at]


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
    queued = queued_bytes(program, in_flight, among)
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
