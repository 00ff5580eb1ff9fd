"""Inline: ops of a loop over numbered modules that is written in a model's own forward are ops of the blocks in which they run.

    for block in self.blocks:                          # entries are ModuleDicts, or modules that leave the residual to the model
        x = x + block["out"](attend(block["qkv"](x)))  # torch says: the attention and the sum are of the model; here: of blocks.0, blocks.1, ...

In: the records of a forward pass. Out: them with the paths that they would have if each turn of the loop were a module, so that the spelling does not matter.
An op is inline where its path is that of a module around the container, or of a shared module without parameters (an activation, a dropout).

    inside       between the first and the last op of a block's own modules: the block's
    between      from the last op of one block to the first of the next: the same ops in all turns, or nothing is changed. The last of them are the next block's as far as
                 they stand before the first block, too (h), the others the former's as far as they stand after the last block, too (t); h + t are all of them.
                 The same line of the source makes them the same where that leaves a way, else the same ops. Of several ways the one in which the fewest values
                 cross, then the one that leaves most to the former.
    other modules between blocks keep their paths: what follows a block up to there is of it, what leads from there to the next is of that. So it is of lists side by
    side (`self.qkv[i]`, `self.out[i]`), which are judged together (`graph.in_step`).

It moves nothing, and leaves containers alone whose entries are no blocks by themselves (`graph.sequences`) or do not run one after the other.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ..graph.in_step import find_leads
from ..graph.node import Phase
from ..graph.repeats import block_of, block_path
from ..graph.sequences import are_blocks, are_by_hand, find_by_hand
from .private import storage_key
from .tape import Record, Slot, Tape, find_slots

_Key = tuple
_CASTS = frozenset(("aten::_to_copy", "aten::clone", "aten::_unsafe_view", "aten::detach"))


@dataclass(frozen=True, slots=True)
class _Turn:
    """One block: its family and number, and the first and the last of its own records."""

    family: str
    number: int
    first: int
    last: int

    @property
    def path(self) -> str:
        return block_path(self.family, self.number)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Inline records beside blocks: those right behind one, those right before the next; one and the same list where no other module runs between."""

    behind: tuple[int, ...]
    before: tuple[int, ...]
    is_one: bool


def name_inline(tape: Tape, states: Collection[str], matrices: Collection[torch.Tensor]) -> list[Record]:
    """The records of a forward pass, inline ones with the paths of their blocks.

    Args:
        tape: has recorded the forward pass, nothing else.
        states: names of parameters and buffers.
        matrices: parameters of two dims or more.
    """
    paths = _Inline(tape, states, matrices).find()
    return [replace(record, path=paths[i]) if i in paths else record for i, record in enumerate(tape.records)]


class _Inline:
    """Looks at one tape; lives for one call."""

    def __init__(self, tape: Tape, states: Collection[str], matrices: Collection[torch.Tensor]) -> None:
        self.tape, self.records = tape, tape.records
        self.holders = {name[:k] for name in states for k in range(len(name)) if name[k] == "."}  # modules with something in them
        self.matrices = {storage_key(p) for p in matrices}
        self.own = [i for i, r in enumerate(self.records) if r.phase is Phase.FORWARD and not r.in_autograd]

    def find(self) -> dict[int, str]:
        """New paths by the number of the record."""
        found: dict[int, str] = {}
        turns = self._turns()
        for family in dict.fromkeys(turn.family for turn in turns):
            mine = [turn for turn in turns if turn.family == family]
            found |= self._place(family, mine, frozenset(turn.last for turn in turns if turn.family != family))
        return found

    # -- blocks ----------------------------------------------------------------------------------------------------------------------

    def _turns(self) -> list[_Turn]:
        """Blocks of containers that are rows of blocks by what their own modules do, in order; of containers whose blocks run one after the other."""
        passed: set[str] = set()
        while True:
            rows: dict[str, dict[int, list[int]]] = {}
            for i in self.own:
                place = block_of(self.records[i].path, passed)
                if place is not None:
                    rows.setdefault(place[0], {}).setdefault(place[1], []).append(i)
            leads = find_leads(place for i in self.own if (place := block_of(self.records[i].path, passed)) is not None)
            together: dict[str, dict[int, list[int]]] = {}
            for family, row in rows.items():
                for number, at in row.items():
                    together.setdefault(leads[family], {}).setdefault(number, []).extend(at)
            fresh = {family for family in rows if not self._is_row(together[leads[family]].values())}
            if not fresh:
                break
            passed |= fresh
        by_hand = find_by_hand([self.records[i].path for i in self.own], passed, self._is_row_by_hand)
        for i in self.own:
            if (place := block_of(self.records[i].path, by_hand)) is not None and place[0] in by_hand:
                rows.setdefault(place[0], {}).setdefault(place[1], []).append(i)
        turns = sorted((_Turn(f, number, at[0], at[-1]) for f, row in rows.items() for number, at in row.items()), key=lambda t: t.first)
        mixed = {t.family for a, b in zip(turns, turns[1:]) if b.first < a.last for t in (a, b)}
        return [turn for turn in turns if turn.family not in mixed]

    def _is_row(self, entries: Collection[list[int]]) -> bool:
        works = [Counter(self.records[i].op._schema.name for i in at if not _is_view(self.records[i])) for at in entries]
        return are_blocks(works, [work.total() > 1 and self._reads_matrix(at) for work, at in zip(works, entries)])

    def _is_row_by_hand(self, entries: list[list[int]]) -> bool:
        """Of places in `own`."""
        rows = [[self.own[k] for k in at] for at in entries]
        works = [Counter((self.records[i].op, tuple(tuple(self.tape.tensors[u].shape) for u in self.records[i].outs if u >= 0)) for i in at if not _is_view(self.records[i])) for at in rows]
        return are_by_hand(works, [work.total() > 1 and self._reads_matrix(at) for work, at in zip(works, rows)])

    def _reads_matrix(self, at: Sequence[int]) -> bool:
        return any(storage_key(self.tape.tensors[u]) in self.matrices for i in at for u in find_slots(self.records[i]))

    # -- what is inline --------------------------------------------------------------------------------------------------------------

    def _is_inline(self, path: str, family: str) -> bool:
        if not path or path == family or family.startswith(f"{path}."):
            return True
        return path not in self.holders and not any(part.isdigit() for part in path.split("."))

    def _name(self, path: str, turn: _Turn) -> str:
        around = not path or path == turn.family or turn.family.startswith(f"{path}.")
        return turn.path if around else f"{turn.path}.{path}"

    def _between(self, start: int, end: int) -> list[int]:
        return self.own[bisect.bisect_right(self.own, start) : bisect.bisect_left(self.own, end)]

    def _gaps(self, family: str, turns: Sequence[_Turn], ends_of_others: Collection[int]) -> list[_Gap]:
        """Before the first block, between each two, and behind the last; what is right behind a block of another row is that one's."""
        ends = [(-1, turns[0].first), *((a.last, b.first) for a, b in zip(turns, turns[1:])), (turns[-1].last, len(self.records))]
        found = []
        for start, end in ends:
            between = self._between(start, end)
            others = [k for k, i in enumerate(between) if not self._is_inline(self.records[i].path, family)]
            behind, before = (between[: others[0]], between[others[-1] + 1 :]) if others else (between, between)
            found.append(_Gap(tuple(behind), () if others and between[others[-1]] in ends_of_others else tuple(before), not others))
        return found

    def _place(self, family: str, turns: Sequence[_Turn], ends_of_others: Collection[int]) -> dict[int, str]:
        """New paths of what is inline in a row; {} where its turns are not the same."""
        gaps = self._gaps(family, turns, ends_of_others)
        split = next((found for key in (self._key_with_line, self._key) if (found := self._split(turns, gaps, key)) is not None), None)
        if split is None:
            return {}
        num_before, num_behind = split
        found: dict[int, str] = {}
        for k, turn in enumerate(turns):
            head = gaps[k].before[len(gaps[k].before) - num_before :]
            inside = [i for i in self._between(turn.first, turn.last) if self._is_inline(self.records[i].path, family)]
            for i in (*head, *inside, *gaps[k + 1].behind[:num_behind]):
                found[i] = self._name(self.records[i].path, turn)
        return found

    # -- where turns begin -------------------------------------------------------------------------------------------------------------

    def _split(self, turns: Sequence[_Turn], gaps: Sequence[_Gap], key: Callable[[int], _Key]) -> tuple[int, int] | None:
        """How many records before and behind each block are its own; None where turns are not the same."""
        if len(turns) == 1:  # nothing says where it begins
            return 0, 0
        inner = gaps[1:-1]
        behind, before = ([key(i) for i in side] for side in (inner[0].behind, inner[0].before))
        if any(g.is_one != inner[0].is_one or [key(i) for i in g.behind] != behind or [key(i) for i in g.before] != before for g in inner):
            return None
        most_before = _common(reversed(before), reversed([key(i) for i in gaps[0].before]))
        most_behind = _common(behind, [key(i) for i in gaps[-1].behind])
        if not inner[0].is_one:
            return (len(before), len(behind)) if most_before == len(before) and most_behind == len(behind) else None
        ways = range(len(behind) - most_behind, most_before + 1)
        if not ways:
            return None
        num_before = min(ways, key=lambda n: (self._num_crossing(turns[0], inner[0].behind, n, turns[1]), n)) if len(ways) > 1 else ways[0]
        return num_before, len(behind) - num_before

    def _num_crossing(self, one: _Turn, between: Sequence[int], num_before: int, other: _Turn) -> int:
        """Values that the second block reads of the first."""
        start = between[len(between) - num_before] if num_before else other.first
        made = {uid for i in range(one.first, start) for uid in self.records[i].outs}
        return len(made.intersection(uid for i in range(start, other.last + 1) for uid in find_slots(self.records[i])))

    def _key(self, i: int) -> _Key:
        record = self.records[i]
        return record.op, record.path, *(self._show(v) for v in record.args), *((k, self._show(v)) for k, v in record.kwargs.items())

    def _key_with_line(self, i: int) -> _Key:
        return self.records[i].source, *self._key(i)

    def _show(self, value: object) -> object:
        if isinstance(value, Slot):
            tensor = self.tape.tensors[value.uid]
            return tuple(tensor.shape), tensor.dtype
        if isinstance(value, (list, tuple)):
            return tuple(map(self._show, value))
        return type(value), repr(value)


def _is_view(record: Record) -> bool:
    aliased = any(r.alias_info is not None and not r.alias_info.is_write for r in record.op._schema.returns)
    return aliased or record.op._schema.name in _CASTS


def _common(a: Iterator, b: Iterator) -> int:
    """How many items are the same at the beginning."""
    count = 0
    for x, y in zip(a, b):
        if x != y:
            break
        count += 1
    return count
