"""Schedules: which action each rank of a pipeline does when, as data.

In: a grid as text (CSV, one row a rank), or lists of actions. Out: a `Schedule`, and its text: CSV that parses back, or a grid with one
column a slot. The words are those of torch.distributed.pipelining: `2F0` is the forward of stage 2 on microbatch 0, `B` the full backward,
`I` the backward for the input alone, `W` the rest of it, for the weights; `2SEND_F0` sends what `2F0` made, `3RECV_F0` receives it. A CSV
written by torch (compute only, or with sends and receives) is read as it stands; its UNSHARD, RESHARD and REDUCE_GRAD are passed over: when
parameters are gathered and gradients reduced is said by the plan; and the two of an OVERLAP_F_B are one after the other, for a rank does one thing at a time.

A stage lives on one rank, a rank may hold several. Each rank does its list in order; when, is up to the inputs. This file checks form
only: `check` says whether a schedule can run, `timeline` how long it takes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from ...errors import ScheduleError


class ActionKind(str, Enum):
    """What an action does, by torch's letters."""

    F = "F"
    B = "B"
    I = "I"  # noqa: E741
    W = "W"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"


COMPUTE = (ActionKind.F, ActionKind.B, ActionKind.I, ActionKind.W)
SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)
RECEIVES = (ActionKind.RECV_F, ActionKind.RECV_B)


@dataclass(frozen=True, slots=True)
class Action:
    """One action of the rank that holds a stage."""

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """What every rank does, in order.

    Args:
        name: what it is called in print: its kind, or the file it came from.
        num_microbatches: each stage runs every one of them once.
        rank_of: stage -> the rank that holds it.
        actions: rank -> its list.
    """

    name: str
    num_microbatches: int
    rank_of: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        return len(self.rank_of)


@lru_cache(maxsize=64)
def numbers_on_ranks(rank_of: tuple[int, ...]) -> tuple[int, ...]:
    """Of each stage its number among those of its rank, in the order of the model."""
    return tuple(rank_of[:stage].count(rank) for stage, rank in enumerate(rank_of))


# (rank, index in its list)
Place = tuple[int, int]

_CELL = re.compile(r"(\d+)(SEND_F|RECV_F|SEND_B|RECV_B|[FBIW])(\d+)")
_OVERLAPPED = re.compile(r"\((.*)\)OVERLAP_F_B")
_PASSED_OVER = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD)\d*")


def parse_action(text: str) -> Action | None:
    """`2F0` as an action; None where the text is none."""
    found = _CELL.fullmatch(text.strip())
    return Action(int(found[1]), ActionKind(found[2]), int(found[3])) if found else None


def parse_csv(text: str, name: str = "custom") -> Schedule:
    """A schedule from CSV: one row a rank, one action a cell; empty cells are waiting and mean nothing.

    Args:
        text: the file's content.
        name: the schedule's name, and the place that errors name.

    Raises:
        ScheduleError: a cell is no action, a stage is on two ranks or on none, no rank has an action. Whether it runs: `check`.
    """
    rows = []
    home: dict[int, int] = {}
    for row, cells in enumerate(csv.reader(io.StringIO(text.removeprefix("\ufeff")))):
        actions = []
        for column, cell in enumerate(cells):
            if not cell.strip() or _PASSED_OVER.fullmatch(cell.strip()):
                continue
            where = f"{name}: row {row + 1}, column {column + 1}"
            both = _OVERLAPPED.fullmatch(cell.strip())
            for part in both[1].split(";") if both else (cell,):
                action = parse_action(part)
                if action is None:
                    kinds = " ".join(kind.value for kind in ActionKind)
                    cure = "; put commas between actions" if re.search(r"\dF\d+\s*[;\t ]", cell) and not both else ""
                    raise ScheduleError(f"{where}: expected an action as 2F0 (stage, one of {kinds}, microbatch), found {cell.strip()!r}{cure}")
                rank = home.setdefault(action.stage, row)
                if rank != row:
                    cure = f"a stage lives on one rank: move {action} to that row"
                    raise ScheduleError(f"{where}: {action}: stage {action.stage} is on rank {rank} already; {cure}")
                actions.append(action)
        rows.append(tuple(actions))
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise ScheduleError(f"{name}: no row has an action; write one row a rank, as 0F0,0F1,0B0,0B1")
    for row, actions in enumerate(rows):
        if not actions:
            raise ScheduleError(f"{name}: row {row + 1}: rank {row} has no action; give it a stage, or leave the row out")
    if max(home) >= len(home):
        missing = next(s for s in range(len(home)) if s not in home)
        last = max(home)
        found = next(a for a in rows[home[last]] if a.stage == last)
        raise ScheduleError(
            f"{name}: no rank has an action of stage {missing}, but row {home[last] + 1} has {found} of stage {last}; number the stages from 0 without a gap"
        )
    microbatches = 1 + max(action.microbatch for actions in rows for action in actions)
    return Schedule(name, microbatches, tuple(home[s] for s in range(len(home))), tuple(rows))


def print_csv(schedule: Schedule) -> str:
    """The text from which `parse_csv` makes the same schedule (but its name)."""
    return "".join(",".join(map(str, actions)) + "\n" for actions in schedule.actions)


def inputs_of(action: Action, num_stages: int) -> tuple[Action, ...]:
    """The actions of which one must be done before this one starts: what the data says, whichever list they are in.

    The backward of a stage follows the one of the next stage, split or not; the last stage's follows its own forward. Of a receive it is
    the send. An action that a rank's own list must hold before (the receive before its reader) is not named: `check` looks at it.
    """
    s, k, m = action.stage, action.kind, action.microbatch
    if k is ActionKind.F:
        return (Action(s - 1, ActionKind.F, m),) if s else ()
    if k is ActionKind.W:
        return (Action(s, ActionKind.I, m),)
    if k in (ActionKind.B, ActionKind.I):
        if s == num_stages - 1:
            return (Action(s, ActionKind.F, m),)
        return Action(s + 1, ActionKind.B, m), Action(s + 1, ActionKind.I, m)
    if k is ActionKind.SEND_F:
        return (Action(s, ActionKind.F, m),)
    if k is ActionKind.SEND_B:
        return Action(s, ActionKind.B, m), Action(s, ActionKind.I, m)
    return (Action(s - 1, ActionKind.SEND_F, m) if k is ActionKind.RECV_F else Action(s + 1, ActionKind.SEND_B, m),)


@dataclass(frozen=True, slots=True)
class Slots:
    """When each action runs if all take one slot.

    Args:
        slots: rank -> the slot of each action of its list.
        stuck: the first action of each rank that never gets its inputs; what follows stands in the slots after it, for print.
    """

    slots: tuple[tuple[int, ...], ...]
    stuck: tuple[Place, ...]


def settle_slots(schedule: Schedule) -> Slots:
    """Run the lists in order, each action as soon as its inputs are there; nothing is asked of the schedule."""
    done: dict[Action, int] = {}
    waiting: dict[Action, list[int]] = {}
    slots: list[list[int]] = [[] for _ in schedule.actions]
    ready = list(range(schedule.num_ranks))
    while ready:
        rank = ready.pop()
        mine, row = slots[rank], schedule.actions[rank]
        while len(mine) < len(row):
            action = row[len(mine)]
            inputs = inputs_of(action, schedule.num_stages)
            made = [done[i] for i in inputs if i in done]
            if inputs and not made:
                for i in inputs:
                    waiting.setdefault(i, []).append(rank)
                break
            slot = max([1 + mine[-1] if mine else 0, *(1 + m for m in made)])
            mine.append(slot)
            done.setdefault(action, slot)
            # a rank that waits for either of two inputs may stand in both lists: running it again where it stopped is harmless
            ready.extend(waiting.pop(action, ()))
    stuck = tuple((rank, len(mine)) for rank, mine in enumerate(slots) if len(mine) < len(schedule.actions[rank]))
    for rank, first in stuck:
        start = 1 + slots[rank][-1] if first else 0
        slots[rank].extend(range(start, start + len(schedule.actions[rank]) - first))
    return Slots(tuple(map(tuple, slots)), stuck)


def print_schedule(schedule: Schedule, marks: Collection[Place] = (), around: int | None = None) -> str:
    """The grid: rows are ranks, columns are slots, an empty slot is a dot.

    Args:
        marks: places in the lists, printed as `>1B0<`.
        around: show that many ranks and slots on each side of the marks, not the whole grid (no effect without marks).
    """
    settled = settle_slots(schedule)
    ranks, columns = range(schedule.num_ranks), range(1 + max((s[-1] for s in settled.slots if s), default=0))
    if marks and around is not None:
        at = [settled.slots[rank][i] for rank, i in marks if i < len(settled.slots[rank])] or [0]
        ranks = range(max(0, min(r for r, _ in marks) - around), min(len(ranks), max(r for r, _ in marks) + around + 1))
        columns = range(max(0, min(at) - around), min(len(columns), max(at) + around + 1))
    rows = [["slot", *map(str, columns)]]
    for rank in ranks:
        cells = dict(_cells(schedule, settled, rank, marks))
        rows.append([f"rank {rank}", *(cells.get(slot, ".") for slot in columns)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    counts = ((schedule.num_ranks, "rank"), (schedule.num_stages, "stage"), (schedule.num_microbatches, "microbatch"))
    head = f"{schedule.name}: {', '.join(_count(*count) for count in counts)}"
    return "\n".join([head, *("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows)]) + "\n"


def _cells(schedule: Schedule, settled: Slots, rank: int, marks: Collection[Place]) -> Iterator[tuple[int, str]]:
    for i, (slot, action) in enumerate(zip(settled.slots[rank], schedule.actions[rank])):
        yield slot, f">{action}<" if (rank, i) in marks else str(action)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"
