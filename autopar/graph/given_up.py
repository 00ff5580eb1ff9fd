"""Given up: arguments of a kernel of the update that nobody reads afterwards: it may write over them.

An optimizer that edits gradients before a number of all of them is known (Grokfast, then clipping by a norm) has the edited ones leave one kernel for another, for all parameters at once.
Made beside the raw ones, which are read no more, they would be held twice.

In: a program's graph, a group of its nodes as a kernel. Out: numbers of arguments. On a CPU an op of the kernel may put there what it makes, and of a list of arguments, one of each parameter, each is let go
when the ops have run. On a GPU a kernel that works element by element makes a result of an argument's shape and dtype in its place (`kernel.places_given_up`): each element is read where its place is written. The law:

    whose      only nodes of the group read it, and nodes of the update for which the group waits, none of which shares its bytes; it leaves the step nowhere, and is no state
    own        its bytes are nobody else's: an op made it anew, or a sum over ranks or turns
    where      a kernel that leaves tensors for what waits for a number of all parameters: of others there is one parameter's at a time
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .graph import Graph
from .kernel import JOINS, Kernel, joined_numbers
from .liveness import is_view
from .node import Node, Phase, packet_of
from .own import MAKES_ANEW
from .program import CUTS, WAIT
from .turns import GROWN, RECEIVE

_REDUCES = ("comm.all_reduce", "comm.reduce_scatter", "comm.start_all_reduce", "comm.start_reduce_scatter")
_SUMS = "aten.sum"  # of a bias's gradient

_Uses = Mapping[str, Sequence[tuple[int, int]]]


def list_given_up(
    graph: Graph, makers: Mapping[str, tuple[int, int]], uses: _Uses, ends: Collection[str], members: Sequence[int], kernel: Kernel, arguments: Sequence[str], outside: Sequence[str]
) -> frozenset[int]:
    """Numbers of the arguments of a kernel of these nodes that it may write over.

    Args:
        makers, uses: of the graph (`producer_table`, `use_table`).
        ends: values that leave the step.
        arguments, outside: the values that the kernel reads and makes, as it counts them.
    """
    shapes, into = {v.name: v.shape for v in kernel.graph.values}, dict(kernel.into)
    left = [name for k, (name, inner) in enumerate(zip(outside, kernel.graph.outputs)) if k not in into and shapes[inner]]
    if not left or kernel.graph.nodes[0].phase is not Phase.UPDATE or joined_numbers(kernel):
        return frozenset()
    before = list_leading(graph, makers, members)
    later = list_leading(graph, makers, [i for name in left for i, _ in uses[name]]) - before
    if not any(packet_of(graph.nodes[i].op) in JOINS or graph.nodes[i].op == RECEIVE for i in later):
        return frozenset()
    found = set()
    for number, (name, inner) in enumerate(zip(arguments, kernel.graph.inputs)):
        if not shapes[inner] or name in ends or not _is_own(graph, makers, uses, name):
            continue
        others = {i for i, _ in uses[name]}.difference(members)
        if others <= before and not any(_may_share(graph.nodes[i]) for i in others):
            found.add(number)
    return frozenset(found)


def list_leading(graph: Graph, makers: Mapping[str, tuple[int, int]], members: Sequence[int]) -> set[int]:
    """The nodes of the update that a group waits for: what they read of a state they have read when it is rewritten."""
    found: set[int] = set()
    todo = [*members]
    while todo:
        for name in graph.nodes[todo.pop()].inputs:
            i = makers[name][0] if name in makers else -1
            if i >= 0 and i not in found and graph.nodes[i].phase is Phase.UPDATE:
                found.add(i)
                todo.append(i)
    return found - {*members}


def _may_share(node: Node) -> bool:
    """True where what a node makes may lie where what it reads lies: a conversion to its own dtype gives back what it got."""
    return is_view(node.op) or not node.op.startswith("aten.") or packet_of(node.op) == "aten._to_copy"


def _is_own(graph: Graph, makers: Mapping[str, tuple[int, int]], uses: _Uses, name: str) -> bool:
    """True for a value whose bytes are nobody else's."""
    while name in makers:
        node = graph.nodes[makers[name][0]]
        if node.op in _REDUCES or node.op in GROWN or node.op in MAKES_ANEW or packet_of(node.op) == _SUMS:
            return True
        if node.op != WAIT and node.op not in CUTS or len(uses[node.inputs[0]]) != 1:
            return False
        name = node.inputs[0]
    return False
