"""Running: what a loop over blocks makes beside them, turn by turn, of what the turn before made of it: `aux = aux + a`, `skip = skip + s`.

In: the records of a forward pass, and where the turns of a loop begin. Out: the inline ones that are such steps, each with its turn.

    idle         inline, and no module of the row, nor one between its blocks, reads what is made of it
    a step       idle, and reads a value of an earlier turn that these do not read, either, or a step of its own; what was made before the loop counts where one turn alone reads it
                 (`zeros`), else it is a constant
    the first    turn has no step to go on from: it does what its readers tell as far as the second turn does not do the same beside its steps (`0. + a`, but not the op that made `a`)
    the last     turn ends where the model goes on: behind it what is large is a step as far as the turn before has the same

Values are told by their tensors: what is written through a view is told by the view.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

import torch

from ..graph.small_reductions import SMALL_BYTES
from .tape import Tape, find_slots


@dataclass(frozen=True, slots=True)
class Running:
    """Steps: record -> its turn. `numbers` are small (`SMALL_BYTES`), `tensors` are not."""

    numbers: dict[int, int]
    tensors: dict[int, int]

    def __contains__(self, i: int) -> bool:
        return i in self.numbers or i in self.tensors


def find_running(tape: Tape, order: Sequence[int], inline: Collection[int], firsts: Sequence[int], last: int, key: Callable[[int], Hashable]) -> Running:
    """The steps beside the blocks of a row.

    Args:
        order: records of the forward pass up to what may be of the row, in order.
        inline: those of them that are no module's of the row, nor of one between.
        firsts: the first record of each block's own modules.
        last: the last of the last block's.
        key: what an op does.
    """
    reads = {i: find_slots(tape.records[i]) for i in order}
    turns = {i: bisect.bisect_right(firsts, i) - 1 for i in order}
    idle, needed = _find_idle(tape, order, inline, reads, last)
    sources, readers = _follow(tape, order, idle, needed, reads)
    found: dict[int, int] = {}
    for i in order:
        if i in idle and turns[i] >= 0 and any(source in found or _goes_on(turns[source], turns[i], {turns[k] for k in readers[source]}) for source in sources[i]):
            found[i] = turns[i]
    if found:
        second = Counter(key(i) for i in order if turns[i] == 1 and i in inline and i not in found)
        more = Counter(key(i) for i in order if turns[i] == 0 and i in inline and i not in found) - second
        for i in reversed([i for i in order if turns[i] == 0 and i in idle and i not in found]):
            if more[key(i)] and any(k in found for k in readers.get(i, ())):
                more[key(i)] -= 1
                found[i] = 0
    numbers = {i: turn for i, turn in found.items() if all(_bytes(tape.tensors[u]) <= SMALL_BYTES for u in tape.records[i].outs if u >= 0)}
    left = Counter(key(i) for i, turn in found.items() if turn == len(firsts) - 2)
    tensors: dict[int, int] = {}
    for i, turn in found.items():
        if i in numbers:
            continue
        if turn == len(firsts) - 1 and i > last:
            if not left[key(i)]:
                continue
            left[key(i)] -= 1
        tensors[i] = turn
    return Running(numbers, tensors)


def _find_idle(tape: Tape, order: Sequence[int], inline: Collection[int], reads: dict[int, list[int]], last: int) -> tuple[set[int], set[int]]:
    """The idle records, and the tensors that others read."""
    idle = {i for i in order if i > last and i in inline}
    needed: set[int] = set()
    for i in reversed(order):
        if i <= last and i in inline and needed.isdisjoint(tape.records[i].outs):
            idle.add(i)
        elif i <= last:
            needed.update(reads[i])
    return idle, needed


def _follow(tape: Tape, order: Sequence[int], idle: Collection[int], needed: Collection[int], reads: dict[int, list[int]]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Of each idle record, those that made what it reads beside what is needed; and of these, the idle ones that read it."""
    made: dict[int, int] = {}
    sources: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for i in order:
        if i in idle:
            sources[i] = [made[uid] for uid in reads[i] if uid in made]
            for source in sources[i]:
                readers.setdefault(source, []).append(i)
        made.update((uid, i) for uid in tape.records[i].outs if uid not in needed)
    return sources, readers


def _goes_on(source: int, turn: int, readers: Collection[int]) -> bool:
    """Whether a value of one turn, read in these, is gone on with in another."""
    return source < turn and (source >= 0 or len(readers) == 1)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
