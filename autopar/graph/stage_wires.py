"""Wires: what a stage sends to others and receives in each turn, by the nodes of its graph and the actions of the schedule.

In: the graphs of stages (`graph.stages`), the order of their actions. Out: for each action of a stage what it holds for other turns: `TurnHeld`, of which `cost.memory` makes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .graph import Graph
from .node import Node, Phase, get_arg
from .schedules.held import list_flying
from .schedules.order import Order
from .schedules.schedule import numbers_on_ranks
from .schedules.under_way import Wire, count_under_way
from .turns import LOOP, RECEIVE, SEND


@dataclass(frozen=True, slots=True)
class TurnHeld:
    """What a stage holds while it runs an action of this phase.

    Args:
        in_flight: of each of its chunks the microbatches between their forward and their backward, the one at hand included.
        messages: (send or receive node, how many of its messages are held for other turns or for this one, before they are received).
        own: the sends and receives of the action itself.
    """

    phase: Phase
    in_flight: tuple[int, ...]
    messages: tuple[tuple[str, int], ...]
    own: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a wire: a node, the number of its chunk on its stage, its phase."""

    node: str
    chunk: int
    phase: Phase


def list_turns_held(
    stages: Sequence[Graph], here: int, order: Order, number: int, chunks: Sequence[Mapping[str, int]] = ()
) -> tuple[TurnHeld, ...]:
    """What a stage holds in each of its actions, and after them (as of phase UPDATE); equal ones once.

    Args:
        stages: the graphs of the model's stages, or of those of a shorter one in which each kind of stage stands once.
        here: the stage among them.
        order: of the model's own schedule.
        number: which stage of the model it is.
        chunks: per stage, node -> its chunk on that stage; () where each has one.
    """
    ends = _list_ends(stages, here, chunks)
    ranks_here = _ranks_of(order, len(stages))
    wires, nodes = [], []
    tables: dict[int, dict[int, int]] = {}  # rank -> action -> its place

    def list_places(end: _End, chunk: int) -> list[int | None]:
        rank = order.rank_of[chunk]
        if rank not in tables:
            tables[rank] = {code: place for place, code in enumerate(order.rows[rank])}
        return [tables[rank].get(_code(order, end.phase, chunk, m)) for m in range(order.num_microbatches)]

    for mine, other, rank, sends in ends:
        far = _far_chunk(order, number, mine, (here, rank, other), ranks_here)
        if far is None:
            continue
        places = zip(list_places(mine, _chunk_of(order, number, mine.chunk)), list_places(other, far))
        pairs = [(a, b) for a, b in places if a is not None and b is not None]
        sent, received = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        wires.append(Wire(number, order.rank_of[far], sent, received) if sends else Wire(order.rank_of[far], number, received, sent))
        nodes.append(mine)
    counts = count_under_way(order, number, wires)
    found: dict[TurnHeld, None] = {}
    for place, (phase, chunk, flying) in enumerate(_list_flying(order, number)):
        held = tuple((end.node, row[place]) for end, row in zip(nodes, counts) if row[place])
        found[TurnHeld(phase, flying, held, tuple(end.node for end in nodes if (end.phase, end.chunk) == (phase, chunk)))] = None
    return tuple(found)


def _list_ends(stages: Sequence[Graph], here: int, chunks: Sequence[Mapping[str, int]]) -> list[tuple[_End, _End, int, bool]]:
    """(own end, other end, the other's stage, whether this one sends) of what crosses in each turn."""
    tables = [{node.name: node for node in graph.nodes if node.op in (SEND, RECEIVE) and node.phase in LOOP} for graph in stages]

    def end(stage: int, node: Node) -> _End:
        return _End(node.name, chunks[stage].get(node.name, 0) if chunks else 0, node.phase)

    found = []
    for source, table in enumerate(tables):
        for node in table.values():
            target = _stage_of(node)
            value = node.name.removeprefix("send_").removesuffix(f"_to_{target}")  # as `graph.stages` names both ends
            taken = tables[target].get(f"receive_{value}_on_{target}") if node.op == SEND and here in (source, target) else None
            if taken is not None:
                sends = source == here
                ends = (end(source, node), end(target, taken)) if sends else (end(target, taken), end(source, node))
                found.append((*ends, target if sends else source, sends))
    return found


def _stage_of(node: Node) -> int:
    found = get_arg(node, "stage", -1)
    assert isinstance(found, int)
    return found


def _ranks_of(order: Order, num_here: int) -> tuple[int, ...]:
    """The stage of each chunk of a model with so many stages, placed as those of the order are."""
    count = len(order.rows)
    if num_here == count:
        return order.rank_of
    there = tuple(range(num_here))
    goes_back = order.num_stages > count and order.rank_of[count] == count - 1
    return tuple(rank for k in range(order.num_stages // count) for rank in (reversed(there) if goes_back and k % 2 else there))


def _chunk_of(order: Order, rank: int, number: int) -> int:
    """The chunk of the model that has this number on a rank."""
    return [chunk for chunk, own in enumerate(order.rank_of) if own == rank][number]


def _far_chunk(order: Order, number: int, mine: _End, to: tuple[int, int, _End], ranks_here: Sequence[int]) -> int | None:
    """The chunk of the model at the other end; None where the shorter model does not say it."""
    here, rank, other = to
    if len(set(ranks_here)) == len(order.rows):
        return _chunk_of(order, rank, other.chunk)
    numbers = numbers_on_ranks(tuple(ranks_here))
    places = {(r, n): chunk for chunk, (r, n) in enumerate(zip(ranks_here, numbers))}
    far = _chunk_of(order, number, mine.chunk) + places[rank, other.chunk] - places[here, mine.chunk]
    return far if abs(places[rank, other.chunk] - places[here, mine.chunk]) == 1 and 0 <= far < order.num_stages else None


def _code(order: Order, phase: Phase, chunk: int, microbatch: int) -> int:
    size = order.num_stages * order.num_microbatches
    return (phase is Phase.BACKWARD) * size + chunk * order.num_microbatches + microbatch


def _list_flying(order: Order, rank: int) -> list[tuple[Phase, int, tuple[int, ...]]]:
    """(phase, number of the chunk, microbatches of each chunk in flight) of each action of a rank, and after them."""
    count, size, numbers = order.num_microbatches, order.num_stages * order.num_microbatches, numbers_on_ranks(order.rank_of)
    actions = [(Phase.FORWARD if code < size else Phase.BACKWARD, numbers[code % size // count]) for code in order.rows[rank]]
    return [(phase, chunk, flying) for (phase, chunk), flying in zip([*actions, (Phase.UPDATE, 0)], list_flying(order, rank))]
