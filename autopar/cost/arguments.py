"""Arguments: what a program holds because groups run as kernels, where the law of memory (`graph.liveness`) knows their ops one by one.

In: a program, the section of each node, bytes held over time. Out: bytes held over time. A kernel's arguments are its caller's until it returns, on every device. What its ops make for each other
a GPU never holds; on a CPU, whose kernels are ops of plain torch, an op writes over what it is the last to read (`graph.written_over`). A kernel runs where `graph.fuse` puts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from ..graph.cuts import resolve_known
from ..graph.fusion import find_groups
from ..graph.graph import Graph, value_table
from ..graph.held_longer import HeldLonger
from ..graph.liveness import held_bases, is_view, list_readers, live_ranges
from ..graph.node import Phase, Ref, get_arg
from ..graph.program import Program
from ..graph.rules import RULES
from ..graph.sections import Section
from ..graph.tensor import size_bytes
from ..graph.written_over import list_replaceable, reads_once

_NEAR = 0.7  # of the peak: groups whose nodes hold less are not looked for, as none holds so much for its arguments that it would pass the peak


def with_arguments(program: Program, sections: Sequence[Section], held: Sequence[int], on_cpu: bool) -> list[int]:
    """Bytes held while each node runs, as the kernels of forward and backward hold them. Those of the update rewrite what they are given, as the law says.

    Args:
        sections: of each node.
        held: by the law, and whatever else is held.
        on_cpu: whether kernels are ops of plain torch, one after the other.
    """
    graph = program.graph
    least = _NEAR * max(held, default=0)
    near = {i for i, size in enumerate(held) if size >= least and graph.nodes[i].phase is not Phase.UPDATE}
    if not near:
        return list(held)
    law = _Law(graph)
    change = [0] * (len(held) + 1)
    for members in find_groups(graph, *resolve_known(graph, RULES), near, sections):
        for first, last, size in law.rows(members, on_cpu) if graph.nodes[members[0]].phase is not Phase.UPDATE else ():
            change[first] += size
            change[last + 1] -= size
    return [size + more for size, more in zip(held, accumulate(change))]


class _Law:
    """Of one graph: what it says of each value, and what a group changes of that."""

    def __init__(self, graph: Graph) -> None:
        self.nodes, self.values, self.lives, self.base = graph.nodes, value_table(graph), live_ranges(graph), held_bases(graph)
        self.readers, self.longer = list_readers(graph, self.base), HeldLonger(graph)
        self.viewed = {self.base[node.inputs[0]] for node in graph.nodes if node.inputs and is_view(node.op)}

    def rows(self, members: Sequence[int], on_cpu: bool) -> Iterator[tuple[int, int, int]]:
        """(first node, last node, bytes more or less) of a group."""
        inside, lives = set(members), self.lives
        made = {out for i in members for out in self.nodes[i].outputs if out in lives}
        read = {self.base[name] for i in members for name in self.nodes[i].inputs} & lives.keys() - made
        own = {name for name in made if inside.issuperset(self.readers.get(name, ())) and lives[name][1] <= members[-1]}
        place = self._place(members, made)
        for name in read:
            last, size = lives[name][1], size_bytes(self.values[name])
            if members[0] <= last < place:
                yield last + 1, place, size
            elif place < last <= members[-1] and inside.issuperset(i for i in self.readers[name] if i > place):
                yield place + 1, last, -size
        for name in made - own:
            first, size = lives[name][0], size_bytes(self.values[name])
            yield (place, first - 1, size) if place < first else (first, place - 1, -size)
        yield from ((*lives[name], -size_bytes(self.values[name])) for name in own)
        if on_cpu:
            yield place, place, self._inside(members, made, own)

    def _place(self, members: Sequence[int], made: set[str]) -> int:
        """Where it runs: as `graph.fuse` puts it, and before all that read what it makes."""
        found = self.longer.place(members)
        others = (i - 1 for name in made for i in self.readers.get(name, ()) if i not in members)
        return min((members[-1] if found is None else found, *others))

    def _inside(self, members: Sequence[int], made: set[str], own: set[str]) -> int:
        """Bytes that a kernel holds for itself at most, beside all its results, while its ops run one after the other."""
        replaced = self._replaced(members, own - self.viewed)
        rows = [sum(size_bytes(self.values[name]) for name in own if self.lives[name][0] <= i <= self.lives[name][1]) - replaced.get(i, 0) for i in members]
        later = [sum(size_bytes(self.values[name]) for name in made - own if self.lives[name][0] > i) for i in members]
        return max(0, *(row - size for row, size in zip(rows, later)))

    def _replaced(self, members: Sequence[int], own: set[str]) -> dict[int, int]:
        """Bytes of what its ops write over, by op."""
        found: dict[int, int] = {}
        for i in members:
            node = self.nodes[i]
            for operand in (get_arg(node, key) for key in list_replaceable(node)):
                old = node.inputs[operand.index] if isinstance(operand, Ref) else ""
                if old in own and self.lives[old][1] == i and reads_once(node, old) and self._kind(old) == self._kind(node.outputs[0]):
                    found[i] = size_bytes(self.values[old])
                    break
        return found

    def _kind(self, name: str) -> tuple[tuple[int, ...], str]:
        return self.values[name].shape, self.values[name].dtype
