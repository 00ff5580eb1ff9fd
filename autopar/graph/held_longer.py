"""Held longer: what a group keeps in memory that its nodes, one by one, would not.

In: a graph, nodes of it that would run as one. Out: where they run, or that they had better run one by one. A group runs where its last node stood: what an earlier node of it is the last to read
waits until then, and what that node makes and only the group reads is never there. Or it runs where all that it reads is there: what its later nodes make is there earlier. Neither may hold more, while
others make as much, than its nodes one by one: a weight that is used twenty times has twenty gradients, each made between two sums of those before, and as one group the sums would hold all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .graph import Graph, final_values, producer_table, value_table
from .liveness import is_view, list_readers, storage_bases
from .tensor import size_bytes

_MUCH = 1.25  # times what it spares: less is not worth a kernel


class HeldLonger:
    """Of one graph; asked for many groups."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._base, self._makers = graph, storage_bases(graph), producer_table(graph)
        self._sizes = {name: size_bytes(value) for name, value in value_table(graph).items()}
        self._readers = list_readers(graph, self._base)  # and the end, where a value stays
        for name in (*graph.inputs, *final_values(graph), *(grad for _, grad in graph.grads)):
            self._readers.setdefault(self._base[name], []).append(len(graph.nodes))

    def place(self, members: Sequence[int], joining: Collection[int] = ()) -> int | None:
        """The node in whose place a group runs: the last one, or the first one that all it reads comes before; None where it would hold more in either.

        Args:
            members: its nodes, in graph order.
            joining: nodes that may yet be of the group: what they make does not count.
        """
        last = members[-1]
        if last - members[0] < len(members):
            return last
        nodes = self._graph.nodes
        made = {out: i for i in members for out in nodes[i].outputs if out and self._base[out] == out}
        read = {name for i in members for name in nodes[i].inputs}
        bases = {self._base[name] for name in read}
        if not self._holds_more(members, last, made, bases, joining):
            return last
        before = max((self._makers[name][0] for name in read if self._base[name] not in made and name in self._makers), default=-1)
        ready = next((i for i in members if i > before), last)
        return ready if ready < last and not self._holds_more(members, ready, made, bases, joining) else None

    def _holds_more(self, members: Sequence[int], place: int, made: dict[str, int], read: set[str], joining: Collection[int]) -> bool:
        own = set(members)
        for before, after in zip(members, members[1:]):
            if after - before == 1:
                continue
            if after <= place:
                more = sum(self._sizes[name] for name in read if name not in made and self._readers[name][-1] <= before)
                less = sum(self._sizes[name] for name, i in made.items() if i <= before and self._last(name, i) >= after)
            else:
                more = sum(self._sizes[name] for name, i in made.items() if i >= after and not own.issuperset(self._readers.get(name, ())))
                less = sum(self._sizes[name] for name in read if made.get(name, -1) <= before and after <= self._readers[name][-1] and self._readers[name][-1] in own)
            if more > _MUCH * less and self._made_between(members, before, after, after <= place, joining) >= more - less:
                return True
        return False

    def _last(self, name: str, maker: int) -> int:
        return self._readers[name][-1] if name in self._readers else maker

    def _made_between(self, members: Sequence[int], before: int, after: int, waits: bool, joining: Collection[int]) -> int:
        """Bytes that others make between two nodes; where the group `waits`, those that read what it makes come after it."""
        later, total = set(members), 0
        for i in range(members[0], after):
            node = self._graph.nodes[i]
            if i in later or is_view(node.op):
                continue
            if waits and any(self._base[name] in self._makers and self._makers[self._base[name]][0] in later for name in node.inputs):
                later.add(i)
            elif i > before and i not in joining:
                total += sum(self._sizes[out] for out in node.outputs if out)
        return total
