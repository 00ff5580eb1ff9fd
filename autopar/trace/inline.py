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
    other modules between blocks keep their paths: what follows a block up to there is of it, what leads from there to the next is of that.
    running      what a turn makes of what the turn before made of it, and no block reads (`aux = aux + a`; `trace.running`): the first turn has it in another form or not at all
                 (`0. + a`, `a`), so it does not say whether turns are the same. Numbers stay the model's, beside the loop; what is larger is the block's, which need not hold `a` then.

Lists side by side (`self.qkv[i]`, `self.out[i]`; `graph.in_step`) are one row of such blocks: what is inline in a turn is of the list whose module ran last, before the first of them of the first.

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
from .running import Running, find_running
from .tape import Record, Slot, Tape, find_slots, returns_views

_Key = tuple
_CASTS = frozenset(("aten::_to_copy", "aten::clone", "aten::_unsafe_view", "aten::detach"))


@dataclass(frozen=True, slots=True)
class _Turn:
    """One block of a row.

    Args:
        families: the containers that the row is spelled in.
        first, last: of the records of its own modules.
        modules: where a module of the row begins, and its path, in order.
    """

    families: tuple[str, ...]
    first: int
    last: int
    modules: tuple[tuple[int, str], ...]

    def path_at(self, i: int) -> str:
        """The path of the module that ran last before this record; of the first where none did."""
        return self.modules[max(bisect.bisect_right(self.modules, i, key=lambda m: m[0]) - 1, 0)][1]


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
        for families in dict.fromkeys(turn.families for turn in turns):
            mine = [turn for turn in turns if turn.families == families]
            found |= self._place(mine, frozenset(turn.last for turn in turns if turn.families != families))
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
        places = {i: place for i in self.own if (place := block_of(self.records[i].path, passed | by_hand)) is not None}
        leads = find_leads(places.values())
        members: dict[str, list[str]] = {}
        for family, lead in leads.items():
            members.setdefault(lead, []).append(family)
        blocks: dict[tuple[str, int], list[int]] = {}
        for i, (family, number) in places.items():
            blocks.setdefault((leads[family], number), []).append(i)
        turns = [_Turn(tuple(members[lead]), at[0], at[-1], _modules([(i, block_path(*places[i])) for i in at])) for (lead, _), at in blocks.items()]
        mixed = {t.families for a, b in zip(turns, turns[1:]) if b.first < a.last for t in (a, b)}
        return [turn for turn in turns if turn.families not in mixed]

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

    def _is_inline(self, i: int, families: Sequence[str]) -> bool:
        path = self.records[i].path
        return _is_around(path, families) or path not in self.holders and not any(part.isdigit() for part in path.split("."))

    def _name(self, i: int, turn: _Turn) -> str:
        path, block = self.records[i].path, turn.path_at(i)
        return block if _is_around(path, turn.families) else f"{block}.{path}"

    def _between(self, start: int, end: int) -> list[int]:
        return self.own[bisect.bisect_right(self.own, start) : bisect.bisect_left(self.own, end)]

    def _gaps(self, turns: Sequence[_Turn], inline: Collection[int], running: Running, ends_of_others: Collection[int]) -> list[_Gap]:
        """Before the first block, between each two, and behind the last; what is right behind a block of another row is that one's."""
        ends = [(-1, turns[0].first), *((a.last, b.first) for a, b in zip(turns, turns[1:])), (turns[-1].last, len(self.records))]
        found = []
        for start, end in ends:
            between = [i for i in self._between(start, end) if i not in running]
            others = [k for k, i in enumerate(between) if i not in inline]
            behind, before = (between[: others[0]], between[others[-1] + 1 :]) if others else (between, between)
            found.append(_Gap(tuple(behind), () if others and between[others[-1]] in ends_of_others else tuple(before), not others))
        return found

    def _place(self, turns: Sequence[_Turn], ends_of_others: Collection[int]) -> dict[int, str]:
        """New paths of what is inline in a row; {} where its turns are not the same."""
        inline = {i for i in self.own if self._is_inline(i, turns[0].families)}
        running = find_running(self.tape, self.own, inline, [turn.first for turn in turns], turns[-1].last, self._key) if len(turns) > 1 else Running({}, {})
        gaps = self._gaps(turns, inline, running, ends_of_others)
        split = next((found for key in (self._key_with_line, self._key) if (found := self._split(turns, gaps, key)) is not None), None)
        if split is None:
            return {}
        num_before, num_behind = split
        found = {i: self._name(i, turns[turn]) for i, turn in running.tensors.items()}
        for k, turn in enumerate(turns):
            head = gaps[k].before[len(gaps[k].before) - num_before :]
            inside = [i for i in self._between(turn.first, turn.last) if i in inline and i not in running]
            for i in (*head, *inside, *gaps[k + 1].behind[:num_behind]):
                found[i] = self._name(i, turn)
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


def _is_around(path: str, families: Sequence[str]) -> bool:
    """Whether it is the path of such a container, or of a module around one."""
    return not path or any(path == family or family.startswith(f"{path}.") for family in families)


def _modules(paths: Sequence[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """Of the paths of blocks at which records are, each with the first of the records in a row that are there."""
    return tuple(here for before, here in zip([(-1, ""), *paths], paths) if here[1] != before[1])


def _is_view(record: Record) -> bool:
    return returns_views(record.op) or record.op._schema.name in _CASTS


def _common(a: Iterator, b: Iterator) -> int:
    """How many items are the same at the beginning."""
    count = 0
    for x, y in zip(a, b):
        if x != y:
            break
        count += 1
    return count
