"""Rewrites: which states a kernel outside of the update rewrites where they are (momentum encoders, running sums and counts, a centre).

In: a program's local graph, the section of each node, the groups that become kernels. Out: the states and their new versions, and nodes that are a kernel by themselves for that. Invariant: the group works element
by element, what it makes of the state on the state's shape, nobody reads the old version (or a view of it) after the kernel, and what reads the new version may read the state from then on: a state has one new version a step, `graph.partition` puts its
`state.write` behind all that read the old one (what the backward pass runs again, too), and one of the turns behind them all, in the update. So a write that stands in the section of what it writes is once a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .graph import Graph, producer_table, use_table, value_table
from .liveness import storage_bases
from .node import Node, Phase, packet_of
from .program import WAIT
from .repeats import block_of, blocks_in_step
from .sections import Section
from .tensor import num_elements
from .turns import GROWN, RECEIVE, SEND, TAKE
from .unheld import ELEMENTWISE
from .written_over import gives_back

_EARLY = (Phase.PREPARE, Phase.FORWARD)
_TRAVEL = frozenset((WAIT, SEND, RECEIVE, TAKE, *GROWN, "comm.all_reduce", "comm.start_all_reduce"))  # what these read is read for longer than they run, or is theirs; gathers read states, as of parameters
_PRODUCTS = frozenset(("autopar.linear", "autopar.embedding", "autopar.attention"))


def find_rewrites(graph: Graph, sections: Sequence[Section], groups: Sequence[Sequence[int]]) -> tuple[dict[str, int], tuple[tuple[int, ...], ...]]:
    """What kernels of the forward pass, or of what stands before the turns, put where the old version is.

    Args:
        groups: that become kernels.

    Returns:
        new version -> its `state.write`, and the nodes in no group that are kernels of one node for this.
    """
    writes = [i for i, node in enumerate(graph.nodes) if node.op == "state.write" and node.phase in _EARLY]
    if not writes:
        return {}, ()
    group_of = {i: nodes for nodes in groups for i in nodes}
    makers, finder = producer_table(graph), _Finder(graph, sections, group_of)
    found: dict[str, int] = {}
    for i in writes:
        new = graph.nodes[i].inputs[1]
        if new in makers and new not in found and finder.may_rewrite(i):
            found[new] = i
    lone = {makers[new][0] for new in found} - group_of.keys()
    return found, tuple((i,) for i in sorted(lone))


class _Finder:
    """Of one graph; asked for each `state.write`."""

    def __init__(self, graph: Graph, sections: Sequence[Section], group_of: Mapping[int, Sequence[int]]) -> None:
        self.graph, self.sections, self.group_of = graph, sections, group_of
        self.values, self.makers, self.uses, self.base = value_table(graph), producer_table(graph), use_table(graph), storage_bases(graph)
        self.readers: dict[str, list[int]] = {}  # of storages: all that read them, and the views
        for i, node in enumerate(graph.nodes):
            for name in dict.fromkeys(self.base[n] for n in node.inputs):
                self.readers.setdefault(name, []).append(i)
        self.ends = {self.base[name] for name in (graph.loss, *graph.outputs, *(g for _, g in graph.grads)) if name}
        self.places = [place or block_of(node.path) for place, node in zip(blocks_in_step(graph), graph.nodes)]
        self.waits: dict[int, set[int]] = {}  # unit -> those that it waits for; a unit is the first node of a group, or a node

    def may_rewrite(self, write: int) -> bool:
        """True where the kernel that makes a state's new version may put it where the old one is."""
        graph, (old, new) = self.graph, self.graph.nodes[write].inputs
        maker = self.makers[new][0]
        members = self.group_of.get(maker, (maker,))
        own, section = {*members}, self.sections[maker]
        alike = (self.values[old].shape, self.values[old].dtype) == (self.values[new].shape, self.values[new].dtype)
        if not alike or self.sections[write] != section or graph.nodes[write].phase is not graph.nodes[maker].phase or new in self.ends or self.base[new] != new:
            return False
        if not self.values[new].shape or not self._works_there(members, old, new):
            return False
        after = [i for i in self.readers[new] if i != write and i not in own]
        if any(graph.nodes[i].op == "state.write" or graph.nodes[i].phase is Phase.UPDATE or graph.nodes[i].op in _TRAVEL for i in after):
            return False
        if self.places[maker] is not None and any(self.places[i] != self.places[maker] for i in after):
            return False  # blocks pass on what has a name
        before = [i for i in self.readers[old] if i != write and i not in own]
        if any(self.sections[i] != section or not self._reads_at_once(graph.nodes[i]) for i in before):
            return False
        return not before or self._comes_first(before, members)

    def _works_there(self, members: Sequence[int], old: str, new: str) -> bool:
        """True where all of a group works element by element, on nothing larger than the state, and what is made of the old version has its shape and is read as it lies."""
        shape, whole = self.values[new].shape, num_elements(self.values[new].shape)
        made: set[str] = set()  # of the old version
        for i in members:
            node = self.graph.nodes[i]
            if packet_of(node.op) not in ELEMENTWISE or len(node.outputs) != 1 or num_elements(self.values[node.outputs[0]].shape) > whole:
                return False
            bases = {self.base[name] for name in node.inputs}
            if old in bases or bases & made:
                straight = all(name == self.base[name] for name in node.inputs if self.base[name] == old or self.base[name] in made)
                if not straight or self.values[node.outputs[0]].shape != shape:
                    return False
                made.update(node.outputs)
        return self.values[old].shape == shape

    def _reads_at_once(self, node: Node) -> bool:
        """True for a view, whose readers are asked for themselves, and for an op that leaves nothing that may lie where the state does."""
        return node.op.startswith("aten.") and not gives_back(node, self.values) or node.op in _PRODUCTS

    def _comes_first(self, before: Sequence[int], members: Sequence[int]) -> bool:
        """True where all that read the old version can run before the kernel; they do from now on."""
        if not self.waits:
            for i, node in enumerate(self.graph.nodes):
                self.waits.setdefault(self._unit(i), set()).update({self._unit(self.makers[name][0]) for name in node.inputs if name in self.makers} - {self._unit(i)})
        kernel, first = self._unit(members[0]), {self._unit(i) for i in before}
        todo, seen = [*first], set(first)
        while todo:
            unit = todo.pop()
            if unit == kernel:
                return False
            fresh = self.waits[unit] - seen
            seen |= fresh
            todo += fresh
        self.waits[kernel] |= first
        return True

    def _unit(self, i: int) -> int:
        return self.group_of[i][0] if i in self.group_of else i
