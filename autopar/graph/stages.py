"""Stages: a step cut into parts that run on different devices, one after the other, microbatch by microbatch.

In: the graph of a step (in turns, where there are several microbatches) and the forward nodes at which a new stage begins. Out: for each stage a
graph of its own with the forward, backward and update of its part. The law of who runs where:

    forward     by position: all forward nodes between two cuts. What depends on batch inputs and constants alone, or is prepared before the
                turns, runs on every stage that reads it
    backward    where the forward nodes of its module run; where those are on several stages, with the saved values that it reads
    update      with the state that it writes, reads, or has the gradient of; what has none with the largest of what it reads; what depends on constants
                alone (a learning rate that is a tensor) runs on every stage that reads it
    states      with their first reader in the forward pass; a parameter that is read on several stages (tied embeddings) is stored on each, is
                updated on the first, and is sent to the others then; its gradient is summed over the turns where its parts are made, and crosses once
    outputs     leave where they are made, of several stages on the first

Names are unique over all stages: what a stage only has a copy of (received, tied, or run on several stages) is called `NAME#stage` there.

A value that a later part needs crosses: `pipe.send(x)` where it is made, `pipe.receive()` where it is read, once per value and receiving stage.

It decides nothing: the cuts are given (`solver.stage_cuts` chooses them).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ..errors import PlanError
from .graph import Graph, producer_table, use_table, value_table
from .node import Const, Node, Phase, Ref
from .parted_sums import parted_sum, sum_parts
from .parted_totals import part_totals
from .repeats import block_of, block_path
from .tensor import STATE_KINDS, Kind, Value
from .turns import GROWN, LOOP, RECEIVE, SEND, count_microbatches

COPY = "#"


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value made on stage `source` and read on stage `target`. `name`: of the value there; `sent`: of the piece that leaves."""

    value: str
    source: int
    target: int
    sent: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its graph, in which what comes in and goes out is a node, and the crossings at both ends."""

    graph: Graph
    received: tuple[Crossing, ...]
    sent: tuple[Crossing, ...]


def list_units(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The forward pass as a row of units between which it may be cut: runs of nodes of one block (`h.3`), and of what lies between.

    Returns:
        indices of the forward nodes of each unit, in order. Nodes that run on every stage that reads them are in none.
    """
    free = _free_nodes(graph)
    units: list[tuple[tuple, list[int]]] = []
    for i, node in enumerate(graph.nodes):
        if node.phase is not Phase.FORWARD or i in free:
            continue
        key = _unit_of(node.path, graph.sequences)
        if units and (units[-1][0] == key or key == ("",)):
            units[-1][1].append(i)
        else:
            units.append((key, [i]))
    return tuple(tuple(nodes) for _, nodes in units)


def _unit_of(path: str, sequences: Sequence[str]) -> tuple[str, ...]:
    """The path as far as the block's number, or its first number where it is in none, or its first name where there is none."""
    block = block_of(path, sequences) or block_of(path)
    if block is not None:
        return tuple(block_path(*block).split("."))
    parts = path.split(".")
    return (parts[0],) if len(parts) == 1 else tuple(parts[:2])


def _free_nodes(graph: Graph) -> set[int]:
    """Nodes of the forward pass that depend on batch inputs and constants alone, or run before the turns."""
    values = value_table(graph)
    free_values = {name for name in graph.inputs if values[name].kind is Kind.BATCH}
    found = set()
    for i, node in enumerate(graph.nodes):
        if node.phase is Phase.PREPARE or (node.phase is Phase.FORWARD and all(name in free_values for name in node.inputs)):
            found.add(i)
            free_values.update(o for o in node.outputs if o)
    return found


def stage_table(graph: Graph, starts: Sequence[str]) -> tuple[int, ...]:
    """The stage of each node; -1 for those that run on every stage that reads them.

    Args:
        starts: the forward nodes at which the second and every later stage begins, in order.
    Raises:
        PlanError: a start is no forward node, or they are not in order.
    """
    index = {node.name: i for i, node in enumerate(graph.nodes)}
    places = []
    for name in starts:
        if name not in index or graph.nodes[index[name]].phase is not Phase.FORWARD:
            raise PlanError(f"{graph.name}: a stage begins at {name!r}, which is no node of the forward pass")
        places.append(index[name])
    if places != sorted(set(places)):
        raise PlanError(f"{graph.name}: stages begin at {', '.join(starts)}, which is not the order of the forward pass")
    return _Table(graph, places).fill()


class _Table:
    """Assigns nodes to stages; lives for one call."""

    def __init__(self, graph: Graph, places: list[int]) -> None:
        self.graph, self.places = graph, places
        self.values, self.makers = value_table(graph), producer_table(graph)
        self.free = _free_nodes(graph)
        self.stage = [-1] * len(graph.nodes)

    def fill(self) -> tuple[int, ...]:
        by_path: dict[str, set[int]] = defaultdict(set)
        current = 0
        for i, node in enumerate(self.graph.nodes):
            if node.phase is Phase.FORWARD:
                while current < len(self.places) and i >= self.places[current]:
                    current += 1
                if i not in self.free:
                    self.stage[i] = current
                    by_path[node.path].add(current)
        home = state_stages(self.graph, self.stage)
        for i, node in enumerate(self.graph.nodes):
            if node.phase is Phase.BACKWARD:
                self.stage[i] = self._backward(node, by_path.get(node.path, set()))
        written = {new: home[self._state(old)] for old, new in self.graph.updates}
        grads = {grad: home[self._state(param)] for param, grad in self.graph.grads}
        constant: set[str] = set()
        for i, node in enumerate(self.graph.nodes):
            if node.phase is Phase.UPDATE:
                writes = [written[name] for name in node.outputs if name in written]
                if not writes and all(name in constant for name in node.inputs):
                    constant.update(o for o in node.outputs if o)
                    continue
                owners = [home[state] for name in node.inputs if (state := self._state(name)) in home] or [grads[name] for name in node.inputs if name in grads]
                self.stage[i] = min(writes or owners or self._largest(node) or [0])
        return tuple(self.stage)

    def _largest(self, node: Node) -> list[int]:
        """The stages that make its largest inputs."""
        made = [(prod(self.values[name].shape), s) for name in node.inputs if (s := self._made(name)) >= 0]
        return [s for size, s in made if size == max(made)[0]]

    def _state(self, name: str) -> str:
        return self.values[name].storage.rpartition(":")[2] if self.values[name].kind in STATE_KINDS else ""

    def _made(self, name: str) -> int:
        return self.stage[self.makers[name][0]] if name in self.makers else -1

    def _backward(self, node: Node, there: set[int]) -> int:
        """With the forward nodes of its module, of several stages with the values that it reads; never after a stage whose backward it reads, which runs later."""
        saved = [s for name in node.inputs if (s := self._made(name)) >= 0 and self.graph.nodes[self.makers[name][0]].phase is Phase.FORWARD]
        coming = [s for name in node.inputs if (s := self._made(name)) >= 0 and self.graph.nodes[self.makers[name][0]].phase is Phase.BACKWARD]
        if len(there) == 1:
            return min(*there, *coming, len(self.places))
        inside = [s for s in saved if not there or s in there]
        if inside:
            return min(max(inside), *coming) if coming else max(inside)
        if coming:
            return max([s for s in there if s <= min(coming)], default=min(coming))
        return max(there) if there else len(self.places)


def state_stages(graph: Graph, stage: Sequence[int]) -> dict[str, int]:
    """State (by the last part of its storage: optimizer states go with their parameter) -> the first stage that reads it in the forward pass."""
    values, uses = value_table(graph), use_table(graph)
    found: dict[str, int] = {}
    states = [name for name in graph.inputs if values[name].kind in STATE_KINDS]
    for name in sorted(states, key=lambda name: values[name].kind not in (Kind.PARAM, Kind.BUFFER)):
        key = values[name].storage.rpartition(":")[2]
        if key not in found:
            found[key] = next((stage[i] for i in sorted(_forward_readers(graph, uses, name)) if stage[i] >= 0), 0)
    return found


def _forward_readers(graph: Graph, uses: dict[str, tuple[tuple[int, int], ...]], name: str) -> list[int]:
    """The forward nodes that read a value, also through what is prepared from it."""
    found, todo, seen = [], [name], {name}
    while todo:
        for i, _ in uses[todo.pop()]:
            node = graph.nodes[i]
            if node.phase is Phase.FORWARD:
                found.append(i)
            elif node.phase is Phase.PREPARE:
                fresh = [o for o in node.outputs if o and o not in seen]
                seen.update(fresh)
                todo += fresh
    return found


def cut_stages(graph: Graph, starts: Sequence[str], ranks: Sequence[int] | None = None) -> tuple[Stage, ...]:
    """The stages of a graph.

    Args:
        ranks: that run the parts between the starts, in order (`schedules.known.chunk_ranks`); the parts of one rank come as one stage. None: each its own.
    Raises:
        PlanError: as in `stage_table`.
    """
    ranks = range(len(starts) + 1) if ranks is None else ranks
    count = max(ranks) + 1
    graph, table = sum_at_home(graph, starts, ranks)
    cut = Cutter(graph, tuple(ranks[s] if s >= 0 else s for s in table), count)
    return tuple(cut.build(s) for s in range(count))


def sum_at_home(graph: Graph, starts: Sequence[str], ranks: Sequence[int]) -> tuple[Graph, tuple[int, ...]]:
    """The graph in which stages add up at home what they can, and its stages.

    `accumulate(x + y)`, of a parameter that several stages read, becomes `accumulate(x) + accumulate(y)` where x and y are made on different stages:
    what crosses then is the sum, once. Of a number that is made of all parameters each stage makes what its own need (`parted_totals`).
    """
    while True:
        table = stage_table(graph, starts)
        found = parted_sum(graph, [ranks[s] if s >= 0 else s for s in table], starts)
        if found is None:
            break
        graph = sum_parts(graph, *found)
    apart = part_totals(graph, [ranks[s] if s >= 0 else s for s in table])
    return apart, table if apart is graph else stage_table(apart, starts)


class Cutter:
    """Takes stages out of a graph, those that are asked for.

    Args:
        stage: of each node (`stage_table`).
        count: of stages.
    """

    def __init__(self, graph: Graph, stage: tuple[int, ...], count: int) -> None:
        self.graph, self.stage = graph, stage
        self.values, self.makers, self.uses = value_table(graph), producer_table(graph), use_table(graph)
        self.home = state_stages(graph, stage)
        self.updated, self.turns = dict(graph.updates), count_microbatches(graph)
        self.members = self._list_members(count)
        self._homes: dict[int, int] = {}  # node -> the first stage that runs it
        self.received: list[dict[str, Crossing]] = [{} for _ in range(count)]
        self.sent: list[dict[str, list[Crossing]]] = [{} for _ in range(count)]
        self.late: list[dict[str, Crossing]] = [{} for _ in range(count)]  # new versions of states that another stage makes
        self.after: set[tuple[int, str]] = set()  # (target, value) of what is read there only after the turns, and crosses then
        self.entering: list[dict[str, None]] = [{} for _ in range(count)]
        for name in graph.inputs:
            if self.values[name].kind in STATE_KINDS and name not in self._read_inputs():
                self.entering[self._home(name)][name] = None
            elif name in graph.outputs and name not in self._read_inputs():
                self.entering[0][name] = None
        for s, mine in enumerate(self.members):
            for i in mine:
                for name in graph.nodes[i].inputs:
                    self._note(s, name, graph.nodes[i].phase)
            for name in self.entering[s]:
                self._note_new(s, name)
        self._settle_homes()

    def _settle_homes(self) -> None:
        """A state that the forward pass does not read is at home on the first stage that has it."""
        for name in self.graph.inputs:
            holders = [s for s, entering in enumerate(self.entering) if name in entering]
            if holders and self.values[name].kind in STATE_KINDS and self._home(name) not in holders:
                self.home[self.values[name].storage.rpartition(":")[2]] = holders[0]

    def _read_inputs(self) -> set[str]:
        if not hasattr(self, "_read"):
            self._read = {name for node in self.graph.nodes for name in node.inputs if name not in self.makers}
        return self._read

    def _note(self, s: int, name: str, phase: Phase) -> None:
        """Stage `s` reads this value, first in this phase."""
        if name not in self.makers:
            self.entering[s][name] = None
            return
        made = self.stage[self.makers[name][0]]
        if made >= 0 and made != s and name not in self.received[s]:
            self._cross(name, made, s, self.received)
            if phase is Phase.UPDATE:
                self.after.add((s, name))

    def _note_new(self, s: int, name: str) -> None:
        """Stage `s` has this input; of a state that another stage makes anew it gets the new version."""
        new = self.updated.get(name)
        made = self.stage[self.makers[new][0]] if new in self.makers else -1
        if made >= 0 and made != s and new not in self.received[s]:
            self._cross(new, made, s, self.late)
            self.after.add((s, new))

    def _cross(self, name: str, source: int, target: int, table: list[dict[str, Crossing]]) -> None:
        crossing = table[target][name] = Crossing(name, source, target, f"{name}_to_{target}")
        self.sent[source].setdefault(name, []).append(crossing)

    def _list_members(self, count: int) -> list[list[int]]:
        """Nodes of each stage, with those that run on every stage that reads them."""
        found: list[set[int]] = [set() for _ in range(count)]
        for i, s in enumerate(self.stage):
            if s >= 0:
                found[s].add(i)
        everywhere = {old: i for old, new in self.graph.updates if new in self.makers and self.stage[i := self.makers[new][0]] < 0}
        for old, i in everywhere.items():  # what is prepared for a state alone
            found[self._home(old)].add(i)
        for mine in found:
            self._add_free(mine, [name for i in mine for name in self.graph.nodes[i].inputs], everywhere)
        for name in self.graph.outputs:
            i = self.makers[name][0] if name in self.makers else -1
            if i >= 0 and not any(i in mine for mine in found):  # the user alone wants it
                wanted: set[int] = set()
                self._add_free(wanted, [name], everywhere)
                states = [n for k in wanted for n in self.graph.nodes[k].inputs if self.values[n].kind in STATE_KINDS]
                found[max(map(self._home, states), default=0)] |= wanted
        return [sorted(mine) for mine in found]

    def _add_free(self, mine: set[int], todo: list[str], everywhere: dict[str, int]) -> None:
        """Add the nodes that make these values and run on every stage that reads them."""
        while todo:
            name = todo.pop()
            i = self.makers[name][0] if name in self.makers else everywhere.get(name, -1)
            if i >= 0 and self.stage[i] < 0 and i not in mine:
                mine.add(i)
                todo += self.graph.nodes[i].inputs

    def _home(self, name: str) -> int:
        return self.home.get(self.values[name].storage.rpartition(":")[2], 0)

    def is_tied(self, name: str, s: int) -> bool:
        """True where a state is read on stage `s` and updated on another."""
        return self.values[name].kind in STATE_KINDS and self._home(name) != s

    def build(self, s: int) -> Stage:
        """The graph of stage `s`."""
        graph = self.graph
        entering = [name for name in graph.inputs if name in self.entering[s]]
        nodes, values = self._lay_out(s)
        made = {out for node in nodes for out in node.outputs}
        inside = set(entering)
        updates = tuple((old, new) for old, new in graph.updates if old in inside and new in made)
        grads = tuple((p, g) for p, g in graph.grads if g in made and s == self._grad_home(p, g))
        loss = graph.loss if graph.loss in made else ""
        outputs = tuple(o for o in graph.outputs if s == self._output_home(o))
        everything = (*(self.values[name] for name in entering), *values)
        cut = Graph(graph.name, everything, nodes, tuple(entering), updates, loss, outputs, grads, graph.sequences)
        received = (*self.received[s].values(), *self.late[s].values())
        return Stage(self._rename(cut, s), received, tuple(c for rows in self.sent[s].values() for c in rows))

    def _output_home(self, name: str) -> int:
        """The stage that has an output for the user: of several that make it the first."""
        return max(self._first_stage(name), 0)

    def _grad_home(self, param: str, grad: str) -> int:
        """The stage that has a gradient for the user: its parameter's, unless nothing there reads it."""
        home, made = self._home(param), self.stage[self.makers[grad][0]]
        return home if made < 0 or grad in self.received[home] else made

    def _rename(self, cut: Graph, s: int) -> Graph:
        """Copies bear the number of their stage."""
        values = {v.name: f"{v.name}{COPY}{s}" for v in cut.values if self._first_stage(v.name) not in (s, -1)}
        copied = {node.name for node in cut.nodes if node.outputs and node.op != RECEIVE and any(o in values for o in node.outputs)}

        def name(old: str) -> str:
            return values.get(old, old)

        nodes = tuple(
            replace(
                node, name=f"{node.name}{COPY}{s}" if node.name in copied else node.name,
                inputs=tuple(map(name, node.inputs)), outputs=tuple(map(name, node.outputs)),
            )  # fmt: skip
            for node in cut.nodes
        )
        return replace(
            cut,
            values=tuple(replace(v, name=name(v.name), storage=v.storage if v.kind in STATE_KINDS else name(v.storage)) for v in cut.values),
            nodes=nodes,
            inputs=tuple(map(name, cut.inputs)),
            updates=tuple((name(old), name(new)) for old, new in cut.updates),
            grads=tuple((name(p), name(g)) for p, g in cut.grads),
            loss=name(cut.loss),
            outputs=tuple(map(name, cut.outputs)),
        )

    def _first_stage(self, name: str) -> int:
        """Where a value is that has its own name; -1: on the one stage that has it."""
        if name in self.makers:
            i = self.makers[name][0]
            return self.stage[i] if self.stage[i] >= 0 else self._first_member(i)
        if name not in self.values:
            return -1
        if self.values[name].kind in STATE_KINDS:
            return self._home(name)
        return next((s for s, entering in enumerate(self.entering) if name in entering), -1)

    def _first_member(self, i: int) -> int:
        if not self._homes:
            for s in reversed(range(len(self.members))):
                self._homes.update((k, s) for k in self.members[s])
        return self._homes[i]

    def _lay_out(self, s: int) -> tuple[tuple[Node, ...], tuple[Value, ...]]:
        """Nodes in order: a receive right before its first reader, a send right after what it sends is made, or after the turns where it is read then."""
        graph, waiting = self.graph, set(self.received[s])
        nodes: list[Node] = []
        values: list[Value] = []

        def send(name: str, near: Node) -> None:
            late = near.phase is Phase.UPDATE
            for crossing in self.sent[s].get(name, ()):
                if ((crossing.target, name) in self.after) is not late:
                    continue
                args = (("x", Ref(0)), ("stage", crossing.target))
                nodes.append(Node(f"send_{crossing.sent}", SEND, (name,), args, (crossing.sent,), near.phase, near.path, near.source))
                values.append(replace(self.values[name], name=crossing.sent, storage=crossing.sent, kind=Kind.ACTIVATION))

        def receive(crossing: Crossing, near: Node) -> None:
            value = self.values[crossing.value]
            args = (("shape", value.shape), ("dtype", Const("dtype", f"torch.{value.dtype}")), ("stage", crossing.source))
            args = (*args, ("count", self.turns)) if near.phase in LOOP else args
            nodes.append(Node(f"receive_{value.name}_on_{s}", RECEIVE, (), args, (value.name,), near.phase, near.path, near.source))
            values.append(value)

        waiting_sends: list[tuple[str, Node]] = []
        for i in self.members[s]:
            node = graph.nodes[i]
            if node.phase is Phase.UPDATE:
                while waiting_sends:
                    send(*waiting_sends.pop(0))
            for name in node.inputs:
                if name in waiting:
                    waiting.remove(name)
                    receive(self.received[s][name], node)
            nodes.append(node)
            values += [self.values[o] for o in node.outputs if o]
            for name in node.outputs:
                send(name, node)
                if node.phase is not Phase.UPDATE:
                    waiting_sends.append((name, replace(node, phase=Phase.UPDATE)))
        for name, node in waiting_sends:
            send(name, node)
        for crossing in self.late[s].values():
            receive(crossing, replace(nodes[-1], phase=Phase.UPDATE))
        return tuple(nodes), tuple(values)


def crosses_in_turn(graph: Graph, crossing: Crossing) -> bool:
    """True where it is sent once per turn, not once per step."""
    return any(crossing.value in node.outputs and node.phase in LOOP and node.op not in GROWN for node in graph.nodes)
