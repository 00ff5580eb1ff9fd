"""Sendings: what of a plan's communication travels together, in which dtype, from where on and until when, as the program does it.

In: a program as it was partitioned, and the same one overlapped. Out: a `Sending` for each communication of the first. Invariant: those of one message are of one kind, axis and dtype; a
message that blocks starts where its result is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .graph import producer_table, value_table
from .messages import list_ends, split_starts
from .node import Node, Phase, get_arg
from .program import STARTS, WAIT, Program
from .update_order import list_calls, list_steps, list_update, sends_in_lots


@dataclass(frozen=True, slots=True)
class Sending:
    """How one communication travels.

    Args:
        message: the name of the first communication of its message; its own where it goes alone.
        dtype: what it sends.
        starts_at: the node of the whole graph before which it starts; "": after the last.
        waits_at: the node before which the program waits for it; "": at the end of the step.
    """

    message: str
    dtype: str
    starts_at: str
    waits_at: str


def list_sendings(program: Program, overlapped: Program, on_cpu: bool) -> dict[str, Sending]:
    """Communication of a program -> how it travels.

    Args:
        program: as `graph.partition` makes it.
        overlapped: the same one as it is emitted (`graph.overlap_memory.overlap_within`).
        on_cpu: whether what is large goes alone (`graph.messages`).
    """
    values, walk = value_table(program.graph), _Walk(program, overlapped, on_cpu)
    stays = {node.name for node in overlapped.graph.nodes}
    found: dict[str, Sending] = {}
    first: dict[object, Node] = {}
    same: dict[str, str] = {}  # value -> an equal one that was brought before
    for node, origin in zip(program.graph.nodes, program.origins):
        if node.op.startswith("comm."):
            read = same.get(node.inputs[0], node.inputs[0])
            once = first.setdefault((node.op, node.args, read), node)
            if node.name in walk.trips or node.name in stays or once is node:
                message, starts, waits = walk.trips.get(node.name, (node.name, origin.node, origin.node))
                found[node.name] = Sending(message, values[read].dtype, starts, waits)
            else:  # not reduced again
                same[node.outputs[0]] = once.outputs[0]
                found[node.name] = found[once.name]
    return found


class _Walk:
    """The overlapped program in the order in which it runs; `trips`: communication -> the first of its message, the nodes before which it starts and is waited for."""

    def __init__(self, program: Program, overlapped: Program, on_cpu: bool) -> None:
        self.before, self.makers, self.on_cpu = program.graph, producer_table(program.graph), on_cpu
        self.graph, self.origins, self.values = overlapped.graph, overlapped.origins, value_table(overlapped.graph)
        self.trips: dict[str, tuple[str, str, str]] = {}
        self.waits = {node.inputs[0]: (i, node.outputs[0]) for i, node in enumerate(self.graph.nodes) if node.op == WAIT}
        steps = _list_steps(overlapped)
        nexts = self._next_nodes(steps)
        for step in steps:
            self._follow(step, nexts)

    def _next_nodes(self, steps: Sequence[Sequence[int]]) -> dict[int, str]:
        """Node of the program -> the next one in order, or itself, that is an op of the whole graph; "" behind the last."""
        found, here = {}, ""
        for i in reversed([i for step in steps for i in step]):
            if not self.graph.nodes[i].op.startswith(("comm.", "state.")):
                here = self.origins[i].node
            found[i] = here
        return found

    def _follow(self, step: Sequence[int], nexts: Mapping[int, str]) -> None:
        """Starts that are one message, or several where some of it goes alone."""
        ends = list_ends(node for node in (self.graph.nodes[i] for i in step) if node.op in STARTS)
        for places in split_starts(ends, self.values, self.on_cpu) if ends else ():
            first = ""
            for node, k in (ends[place] for place in places):
                wait, brought = self.waits[node.outputs[k]]
                axis = get_arg(node, "axis")
                for name in self._list_joined(brought, len(axis) if isinstance(axis, tuple) else 1):
                    first = first or name
                    self.trips[name] = first, nexts[step[0]], nexts[wait]

    def _list_joined(self, brought: str, count: int) -> Iterable[str]:
        """The communications of the partitioned program that are one, by what the last of so many makes."""
        found = []
        for _ in range(count):
            node = self.before.nodes[self.makers[brought][0]]
            found.append(node.name)
            brought = node.inputs[0]
        return reversed(found)


def _list_steps(overlapped: Program) -> list[list[int]]:
    """All nodes in the order in which they run; starts that are one message together, else each alone."""
    graph = overlapped.graph
    found = [[i] for i, node in enumerate(graph.nodes) if node.phase is not Phase.UPDATE]
    makers = producer_table(graph)
    for group in list_update(overlapped):
        calls = list_calls(graph, makers, group) if sends_in_lots(graph, group) else ([part.nodes] for part in group)
        found += (step for call in calls for step in list_steps(graph, call))
    return found
