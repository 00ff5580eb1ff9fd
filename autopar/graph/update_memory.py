"""What an update holds: bytes while it runs, lot by lot, as the emitted program runs it.

In: a program whose collectives were started ahead (`graph.overlap`), and what holds messages that the backward pass left under way. Out: bytes held while each node of the update runs. The law
(`graph.liveness`) knows one parameter's update after the other, in the order of the graph; the program updates equal parameters together (`codegen.update`), a lot at a time (`graph.update_lots`), in the
order in which their gradients were made, and starts the reductions of the next lot and the gathers of this one meanwhile (`codegen.parcels`). Invariant: what is held before the update, and after it, is as the law says.

    start        all tensors of the lot, as one or more messages (`graph.messages`). What it reads goes when it was packed, else when the message is there
    wait         the first one is for all messages of that start. A tensor of a gathered message is unpacked, which stays until the last is; one piece alone lies as it should
    gloo         beside what a reduce-scatter reads there is as much that the other ranks sent, packed or not; a gather's pieces are packed into its result
    temporaries  kernels make them for one parameter after the other: those of the largest count
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .graph import producer_table, value_table
from .liveness import bytes_over_time, held_bases, list_readers, live_ranges
from .messages import find_in_place, is_one_piece, list_ends, split_starts
from .node import Node
from .program import CUTS, STARTS, WAIT, Program
from .tensor import size_bytes
from .update_lots import list_lots, lot_bytes
from .update_order import as_they_come, list_calls, list_update, sends_in_lots
from .update_parts import Part

_LEAVES = -1  # stands for a node that needs what is still there after the step


class Flight:
    """Messages under way: the bytes that they hold beside what the law counts, and the values that they read where these lie, until the first of their tensors is waited for."""

    __slots__ = ("held", "reads")

    def __init__(self) -> None:
        self.held, self.reads = 0, list[str]()


class _Gathered:
    """A gathered message that is to be unpacked: its bytes, and how many of its tensors nobody has waited for yet."""

    __slots__ = ("bytes", "left")

    def __init__(self, size: int, count: int) -> None:
        self.bytes, self.left = size, count


def held_in_update(program: Program, on_gloo: bool, flights: Mapping[str, Flight]) -> dict[int, int]:
    """Node of the update -> bytes held while it runs; none where no collective is started in it or for it.

    Args:
        on_gloo: whether collectives run on it.
        flights: value that the update waits for -> what brings it, started before.
    """
    groups = list_update(program)
    places = [i for group in groups for part in group for i in part.nodes]
    if not flights and not any(program.graph.nodes[i].op in STARTS for i in places):
        return {}
    walk = _Walk(program, on_gloo, places, flights)
    for group in groups:
        walk.run_group(group)
    return walk.held


class _Walk:
    """A device on its way through the update: the bytes that are `live`, and those that were `held` while each node ran."""

    def __init__(self, program: Program, on_gloo: bool, places: Sequence[int], flights: Mapping[str, Flight]) -> None:
        graph, lives, inside = program.graph, live_ranges(program.graph), {*places}
        self.program, self.graph, self.nodes, self.on_gloo = program, graph, graph.nodes, on_gloo
        self.values, self.base, self.makers = value_table(graph), held_bases(graph), producer_table(graph)
        self.needs = {name: {last if last in inside else _LEAVES} for name, (first, last) in lives.items() if first in inside or last in inside}
        for name, readers in list_readers(graph, self.base).items():
            if name in self.needs:
                self.needs[name].update(inside.intersection(readers))
        self.needed: dict[int, list[str]] = {}  # node -> what comes or goes with the update and it needs
        for name, nodes in self.needs.items():
            for i in nodes:
                self.needed.setdefault(i, []).append(name)
        self.there = {name for name in self.needs if lives[name][0] not in inside}
        begin = min(places)
        self.live = bytes_over_time(graph, lives)[begin] + sum({id(one): one.held for one in flights.values()}.values())
        self.live += sum(map(self._size, self.there)) - sum(self._size(name) for name in self.needs if lives[name][0] <= begin <= lives[name][1])
        self.flights, self.messages = dict(flights), dict[str, _Gathered]()
        self.readers: dict[str, int] = {}  # value -> how many messages read it where it lies
        self.own: dict[str, int] = {}  # temporary of the function that runs -> the place of its part
        self.made: list[int] = []  # bytes of temporaries, by part
        self.held: dict[int, int] = {}

    def run_group(self, group: Sequence[Part]) -> None:
        """Equal parts."""
        if len(group) == 1:
            self._run([group[0].nodes])
        elif sends_in_lots(self.graph, group):
            for call in list_calls(self.graph, self.makers, group):
                self._run(call)
        else:
            temporaries = any(self.values[name].shape for name in self._temporaries([group[0].nodes]))
            most = lot_bytes(self.graph, group, temporaries)
            for lot in list_lots(self.graph, as_they_come(self.graph, self.makers, group), most) if most else [group]:
                self._run([part.nodes for part in lot])

    def _temporaries(self, columns: Sequence[Sequence[int]]) -> dict[str, int]:
        """What the ops of a function make for each other, without what is sent or comes -> the place of its part."""
        ops = [(k, {*column}, self.nodes[i]) for k, column in enumerate(columns) for i in column if not self.nodes[i].op.startswith("comm.")]
        return {name: k for k, own, node in ops for name in node.outputs if name in self.needs and self.needs[name] <= own}

    def _run(self, columns: Sequence[Sequence[int]]) -> None:
        """A function: of each part its nodes, each of which runs for all parts before the next; pieces of states are cut first (`graph.fuse` puts kernels where the last of their ops was)."""
        columns = [sorted(column, key=lambda i: self.nodes[i].op not in CUTS or self.nodes[i].inputs[0] in self.makers) for column in columns]
        self.own, self.made = self._temporaries(columns), [0] * len(columns)
        for column in columns:
            self._hold_arguments(column)
        for row in zip(*columns):
            op = self.nodes[row[0]].op
            if op in STARTS:
                self._start(row)
            elif op == WAIT:
                for i in row:
                    self._wait(i)
            else:
                self._take(name for i in row for name in self.nodes[i].outputs)
            self._note(row)
            for i in row:
                for name in self.needed.get(i, ()):
                    self.needs[name].discard(i)
                    self._drop(name)

    def _hold_arguments(self, column: Sequence[int]) -> None:
        """What a kernel is given is its caller's until it returns: what others made, or brought, is needed until the last op has run."""
        ops = [i for i in column if not self.nodes[i].op.startswith(("comm.", "state."))]
        made = {name for i in ops for name in self.nodes[i].outputs}
        for name in {self.base[name] for i in ops for name in self.nodes[i].inputs if name in self.base} - made:
            if name in self.needs and self.needs[name]:
                self.needs[name].add(ops[-1])
                self.needed.setdefault(ops[-1], []).append(name)

    def _start(self, row: Sequence[int]) -> None:
        """One collective for all: what it brings is there from now on, but what must be unpacked."""
        ends = list_ends(self.nodes[i] for i in row)
        if self.nodes[row[0]].op == "comm.start_all_reduce":
            self._start_all_reduce(row, ends)
            return
        gathers, flight = self.nodes[row[0]].op == "comm.start_all_gather", Flight()
        for places in split_starts(ends, self.values, self.on_gloo):
            reads, brings = ([names[k] for names, k in ((getattr(ends[p][0], side), ends[p][1]) for p in places)] for side in ("inputs", "outputs"))
            sent = sum(map(self._size, reads))
            lies_right = len(places) == 1 and is_one_piece(self.program.mesh, *ends[places[0]], self.values)
            if gathers and not lies_right:
                message = _Gathered(sum(map(self._size, brings)), len(brings))
                self.live += message.bytes
                self.messages.update(dict.fromkeys(brings, message))
            else:
                self._take(map(self.base.__getitem__, brings))
            packs = len(places) > 1 or not (gathers or lies_right)
            if not (gathers and self.on_gloo):
                flight.held += sent * (packs + self.on_gloo)
                for name in map(self.base.__getitem__, reads if not packs else ()):
                    self.readers[name] = self.readers.get(name, 0) + 1
                    flight.reads.append(name)
        self.live += flight.held
        self.flights.update((name, flight) for node, _ in ends for name in node.outputs)

    def _start_all_reduce(self, row: Sequence[int], ends: Sequence[tuple[Node, int]]) -> None:
        """What it may write over becomes the sum, if it travels alone; else it is packed, and the sums lie there."""
        for node, k in (ends[place] for place in find_in_place(ends, self.values, self.on_gloo)):
            read = self.base[node.inputs[k]]
            if self.needs.get(read, {_LEAVES}) <= {*row}:
                self.needs[read].clear()
                self._drop(read)
        self._take(self.base[name] for node, _ in ends for name in node.outputs)

    def _wait(self, i: int) -> None:
        name = self.nodes[i].inputs[0]
        flight, message = self.flights.get(name), self.messages.pop(name, None)
        if flight is not None:
            self.live -= flight.held
            for read in flight.reads:
                self.readers[read] -= 1
                self._drop(read)
            flight.held, flight.reads = 0, []
        if message is not None:
            self._take([self.base[name]])
            message.left -= 1
            self._note([i])
            self.live -= 0 if message.left else message.bytes

    def _take(self, names: Iterable[str]) -> None:
        """Values whose bytes come now, if they are not there."""
        for name in names:
            if name in self.needs and name not in self.there:
                self.there.add(name)
                if name in self.own:
                    self.made[self.own[name]] += self._size(name)
                else:
                    self.live += self._size(name)

    def _drop(self, name: str) -> None:
        """A value, if nobody needs it any more."""
        if name in self.there and not self.needs[name] and not self.readers.get(name):
            self.there.discard(name)
            if name in self.own:
                self.made[self.own[name]] -= self._size(name)
            else:
                self.live -= self._size(name)

    def _note(self, row: Sequence[int]) -> None:
        now = self.live + max(self.made, default=0)
        self.held.update((i, max(now, self.held.get(i, 0))) for i in row)

    def _size(self, name: str) -> int:
        return size_bytes(self.values[name])
