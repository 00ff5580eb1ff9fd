"""Made again: what an update reads before and after a number that is made of all gradients is made twice, where that costs next to nothing.

Clipping by one norm reads every gradient for the norm, and again when it is known. Where both read something that cheap arithmetic makes of the gradient (unscaled, widened, with a decay added, clipped by
value), one node for both would be written, held until the norm is there (4 bytes a parameter), and read. In its reader's kernel the arithmetic costs nothing, and the gradient is there anyway.

In: nodes in order. Out: the same nodes, and copies of some. The law:

    level    how many numbers of larger values a node of the update waits for, one after the other; as late as those that read it allow
    copied   what cheap nodes one after the other make, element by element, if a node of a later level reads it: each such level has a copy of its own
    of what  gradients and whatever else the update finds, states that are not rewritten before that level, numbers, and what else the update makes (a mean of each row): that is written for the copy
    price    the copy reads, and has written, fewer bytes than the value is written with and read; what is read at that level anyway is free

Numbers stay those of the model: the same ops on the same values. What is compared later is not made again, for another kernel may round it otherwise; a cast to a wider dtype is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from math import prod

import torch

from ...graph.liveness import is_view
from ...graph.node import Phase, packet_of
from .draft import DraftNode, Val, node_inputs, resolve_op, stand_in

_CAST = "aten._to_copy"
_CHEAP = frozenset(f"aten.{name}" for name in "_to_copy abs add addcmul clamp clamp_max clamp_min div lerp masked_fill maximum minimum mul nan_to_num neg rsub sub where".split())
_COMPARISONS = frozenset(f"aten.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
_REDUCTIONS = frozenset(f"aten.{name}" for name in ("sum", "mean", "amax", "amin", "any", "all", "count_nonzero"))
_DEEPEST = 6  # nodes after one another: on a CPU each is a pass over a piece


def make_again(nodes: Sequence[DraftNode], updates: Mapping[str, Val], roots: Sequence[Val]) -> list[DraftNode]:
    """The nodes with their copies, in an order in which they can run.

    Args:
        updates: (storage, final value) of each state that changes.
        roots: what the step returns: it is held as it is.
    """
    return _Copies(nodes, updates, roots).run()


class _Copies:
    """Of an update the levels of its nodes, and what was copied so far. Lives for one call."""

    def __init__(self, nodes: Sequence[DraftNode], updates: Mapping[str, Val], roots: Sequence[Val]) -> None:
        self.nodes = nodes
        self.maker = {id(v): node for node in nodes if node.phase is Phase.UPDATE for v in node.outs if v is not None}
        self.level = _find_levels(nodes, self.maker)
        self.rewritten = {storage: self.level.get(id(v.node), 0) for storage, v in updates.items()}
        self.kept = {id(v) for v in roots} | self._list_kept()
        self.there = {(id(v), self.level[id(node)]) for node in nodes if id(node) in self.level for v in node_inputs(node) if not self._is_cheap(v)}
        self.copies: dict[int, dict[int, Val]] = {}  # level -> value -> its copy

    def run(self) -> list[DraftNode]:
        found: list[DraftNode] = []
        for node in self.nodes:
            if (level := self.level.get(id(node), 0)) > 0:
                copies = self.copies.setdefault(level, {})
                for v in node_inputs(node):
                    if self._is_early(v, level) and (id(v) in copies or self._pays(v, level)):
                        self._copy(v, level, found)
                node.args = tuple((key, stand_in(value, copies)) for key, value in node.args)
            found.append(node)
        copied = set[int]().union(*self.copies.values())
        return _Order(found, self.level).run({id(self.maker[v]) for v in copied})

    def _list_kept(self) -> set[int]:
        """What a later level needs as it was: a matmul reads it there, or it is compared."""
        found: set[int] = set()
        for node in reversed([node for node in self.nodes if id(node) in self.level]):
            passes_on = packet_of(node.op) == _CAST and any(id(v) in found for v in node.outs)
            for v in node_inputs(node):
                made = self.maker.get(id(v))
                if made is None or _is_widening(made) and _runs_in_kernels(node):
                    continue
                later = self.level[id(node)] > self.level[id(made)]
                if passes_on or later and (packet_of(node.op) in _COMPARISONS or not _runs_in_kernels(node)):
                    found.add(id(v))
        return found

    def _is_cheap(self, v: Val) -> bool:
        """True for what a cheap node of the update makes, element by element."""
        node = self.maker.get(id(v))
        if node is None or not v.shape or id(v) in self.kept or packet_of(node.op) not in _CHEAP or len(node.outs) != 1:
            return False
        return bool(node_inputs(node)) and (packet_of(node.op) != _CAST or _is_widening(node))

    def _is_early(self, v: Val, level: int) -> bool:
        """True for what is cheap and made before a level begins."""
        return self._is_cheap(v) and self.level[id(self.maker[id(v)])] < level

    def _pays(self, v: Val, level: int) -> bool:
        """True where a copy for a level moves fewer bytes than a value that is written and read."""
        read = self._list_read(v, level)
        if read is None:
            return False
        moved = sum(_size_bytes(r) * (1 + (id(r) in self.maker)) for r in read.values() if r.shape and (id(r), level) not in self.there)
        if moved >= 2 * _size_bytes(v):
            return False
        self.there.update((name, level) for name in read)
        return True

    def _list_read(self, v: Val, level: int, depth: int = 0) -> dict[int, Val] | None:
        """What a copy of a value reads, by its id; None where something is not there any more, or the way to it is too long."""
        if id(v) in self.copies[level]:
            return {}
        if not self._is_early(v, level):
            return {id(v): v} if v.entry == "" or self.rewritten.get(v.entry, level) >= level else None
        if depth == _DEEPEST:
            return None
        found: dict[int, Val] = {}
        for each in node_inputs(self.maker[id(v)]):
            if (read := self._list_read(each, level, depth + 1)) is None:
                return None
            found |= read
        return found

    def _copy(self, v: Val, level: int, found: list[DraftNode]) -> None:
        """Write the copy of a value for a level, after those of what it is made of."""
        copies = self.copies[level]
        if id(v) in copies or not self._is_early(v, level):
            return
        first = self.maker[id(v)]
        for each in node_inputs(first):
            self._copy(each, level, found)
        again = DraftNode(first.op, tuple((key, stand_in(value, copies)) for key, value in first.args), first.phase, first.path, first.source)
        again.outs = [copies.setdefault(id(v), Val(v.shape, v.dtype, again, 0, v.entry, v.kind))]
        self.maker[id(copies[id(v)])], self.level[id(again)] = again, level
        found.append(again)


class _Order:
    """Nodes in another order: what was copied is made where it is first read, and all of its level that follows of it at once, so of one parameter after the other it is made, read and gone."""

    def __init__(self, nodes: Sequence[DraftNode], level: Mapping[int, int]) -> None:
        self.nodes, self.level = nodes, level
        self.place = {id(node): k for k, node in enumerate(nodes)}
        self.readers: dict[int, list[DraftNode]] = {}
        for node in nodes:
            for v in node_inputs(node):
                self.readers.setdefault(id(v), []).append(node)
        self.ahead = {id(v) for node in nodes for v in node.outs if v is not None}  # values that are still to be made
        self.waiting: dict[int, DraftNode] = {}
        self.done: set[int] = set()
        self.found: list[DraftNode] = []

    def run(self, copied: Collection[int]) -> list[DraftNode]:
        for node in self.nodes:
            if id(node) in copied:
                self.waiting[id(node.outs[0])] = node
            elif id(node) not in self.done:
                self._follow([*self._write(node), node])
        return self.found

    def _write(self, node: DraftNode) -> list[DraftNode]:
        """Write a node after what waited for it, which is returned."""
        first: list[DraftNode] = []
        for v in node_inputs(node):
            if id(v) in self.waiting:
                each = self.waiting.pop(id(v))
                first += [*self._write(each), each]
        self.found.append(node)
        self.done.add(id(node))
        self.ahead.difference_update(map(id, node.outs))
        return first

    def _follow(self, written: Sequence[DraftNode]) -> None:
        """Write what reads these, if something had waited, and waits for nothing else, as it stood."""
        ready: list[int] = []
        todo = [*written] if len(written) > 1 else []
        while todo or ready:
            for node in todo:
                for reader in (reader for v in node.outs for reader in self.readers.get(id(v), ())):
                    if self._is_ready(reader) and self.level.get(id(reader)) == self.level[id(node)]:
                        heappush(ready, self.place[id(reader)])
            node = self.nodes[heappop(ready)] if ready else None
            todo = [] if node is None or id(node) in self.done else [*self._write(node), node]

    def _is_ready(self, node: DraftNode) -> bool:
        """True for what is still to be written where it stands and could be now."""
        there = all(id(v) not in self.ahead or id(v) in self.waiting for v in node_inputs(node))
        return there and id(node) not in self.done and not any(id(v) in self.waiting for v in node.outs)


def _find_levels(nodes: Sequence[DraftNode], maker: Mapping[int, DraftNode]) -> dict[int, int]:
    """The level of each node of the update."""
    update = [node for node in nodes if node.phase is Phase.UPDATE]
    ends = {id(node) for node in update if _makes_number(node)}
    before = {id(node): [maker[id(v)] for v in node_inputs(node) if id(v) in maker] for node in update}
    level: dict[int, int] = {}
    for node in update:
        level[id(node)] = max((level[id(k)] + (id(k) in ends) for k in before[id(node)]), default=0)
    latest: dict[int, int] = {}
    for node in reversed(update):
        here = latest.setdefault(id(node), level[id(node)])
        for k in before[id(node)]:
            latest[id(k)] = min(latest.get(id(k), here), here - (id(k) in ends))
    return latest


def _makes_number(node: DraftNode) -> bool:
    """True for a number that is made of something larger."""
    return any(v.shape for v in node_inputs(node)) and any(v is not None and not v.shape for v in node.outs)


def _runs_in_kernels(node: DraftNode) -> bool:
    """True for what works element by element, sums up, or is a view."""
    return packet_of(node.op) in _REDUCTIONS or is_view(node.op) or node.op.startswith("aten.") and torch.Tag.pointwise in resolve_op(node.op).tags


def _is_widening(node: DraftNode) -> bool:
    """True for a cast to a wider dtype."""
    if packet_of(node.op) != _CAST or node.outs[0] is None:
        return False
    read, made = node_inputs(node)[0].dtype, node.outs[0].dtype
    return read.is_floating_point and made.is_floating_point and read.itemsize < made.itemsize


def _size_bytes(v: Val) -> int:
    return prod(v.shape) * v.dtype.itemsize
