"""Streams: how long one pass of a stage takes on a device that computes and communicates at the same time.

In: what the device does, in program order, each piece with its seconds. Out: when each piece runs, and what the compute stream waited for. The
rules are those by which plans are priced (docs/design/cost.md), applied to the order in which things happen:

    compute    one after the other
    blocking   a collective that the next node waits for: starts when compute gets there, compute waits for its end
    prefetch   brings a stored state: may start as soon as compute enters the block before its reader's, within a long stretch in no block where the program starts it; the reader waits for its end
    early      gathers in the backward pass what was there before it: may start behind the last collective that blocks along any of its axes in its block, where there is none as soon as compute enters
               that; the reader waits for its end
    trailing   reduces a final gradient: starts when it is there, nobody waits for it before the pass is over; a pass that runs once a turn ends with it

Collectives along one mesh axis run one after the other, in the order in which they may start; those of another axis have a stream of their own, as its process
group has. While any runs beside compute, compute is slower by `share` of its time: a collective of t seconds that is wholly hidden lengthens the pass by share * t.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Role(enum.Enum):
    """What a piece of work waits for, and who waits for it."""

    COMPUTE = "compute"
    BLOCKING = "blocking"
    PREFETCH = "prefetch"
    EARLY = "early"
    TRAILING = "trailing"


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that a device does in a pass.

    Args:
        block: of the numbered module it belongs to, any text that changes from block to block; "" outside of them.
        axes: of a collective, along which it runs: it waits for what runs along any of them.
        starts_at: of a prefetch in no block, the piece of work before which the program starts it (`graph.run_pieces`), where that is within what is in no block; "": as soon as it may.
    """

    name: str
    role: Role
    seconds: float
    block: str = ""
    axes: tuple[str, ...] = ("",)
    starts_at: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """When a piece ran, in seconds from the begin of its pass; for compute also `slowed_s`: of its time, what communication beside it took."""

    piece: Piece
    start_s: float
    end_s: float
    slowed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass.

    Args:
        seconds: until the compute stream is done.
        left: (axis, seconds that trailing collectives still run along it then), none of 0.
        ran: in the order of their starts on each stream.
        waits: (name of a collective, seconds that compute stood still for it or was slowed by it), in program order, none of 0.
    """

    seconds: float
    left: tuple[tuple[str, float], ...]
    ran: tuple[Ran, ...]
    waits: tuple[tuple[str, float], ...]

    @property
    def left_s(self) -> float:
        """Until all of them are over."""
        return max((seconds for _, seconds in self.left), default=0.0)


TRAIL = "reductions that trail"


def run_pass(pieces: Sequence[Piece], share: float, waits_for_all: bool = False) -> Pass:
    """Run a pass.

    Args:
        share: of a hidden collective's seconds that lengthen compute; 1: nothing hides.
        waits_for_all: it ends when what trails is over, as programs do that add up what each turn brings.
    """
    stream = CommStreams(share)
    early = _issue_places(pieces)
    now, done_at = 0.0, {}
    ran: list[Ran] = []
    waits: dict[str, float] = {}
    for i, piece in enumerate(pieces):
        for k in early.get(i, ()):
            done_at[k] = stream.start(pieces[k], now)
        if piece.role is Role.COMPUTE:
            end, slowed = stream.compute(now, piece.seconds, waits)
            ran.append(Ran(piece, now, end, slowed))
            now = end
        elif piece.role is Role.TRAILING:
            stream.start(piece, now)
        else:
            end = done_at[i] if i in done_at else stream.start(piece, now)
            if end > now:
                waits[piece.name] = waits.get(piece.name, 0.0) + end - now
                now = end
    if waits_for_all and stream.over_s() > now:
        waits[TRAIL], now = stream.over_s() - now, stream.over_s()
    left = tuple((axis, free_s - now) for axis, free_s in stream.free_s.items() if free_s > now)
    return Pass(now, left, tuple(sorted((*ran, *stream.ran), key=lambda r: r.start_s)), tuple((n, s) for n, s in waits.items() if s > 0))


def _issue_places(pieces: Sequence[Piece]) -> dict[int, list[int]]:
    """Place -> the collectives that may start when compute gets there: of a state at the begin of the block before the one that reads, else in that block behind the last one that blocks."""
    begins: list[int] = []
    segment: list[int] = []
    last = None
    for i, piece in enumerate(pieces):
        if last is None or piece.block != last:
            begins.append(i)
            last = piece.block
        segment.append(len(begins) - 1)
    found: dict[int, list[int]] = {}
    behind: dict[str, int] = {}  # axis -> where the next one along it may start
    at = {piece.name: i for i, piece in enumerate(pieces)}
    for i, piece in enumerate(pieces):
        if piece.role is Role.PREFETCH:
            later = at.get(piece.starts_at, 0)  # than all that it could
            start = later if begins[segment[i]] < later <= i else begins[max(0, segment[i] - 1)]
            found.setdefault(start, []).append(i)
        elif piece.role is Role.EARLY:
            start = max(begins[segment[i]], *(behind.get(axis, 0) for axis in piece.axes))
            found.setdefault(start, []).append(i)
            behind.update(dict.fromkeys(piece.axes, start))
        elif piece.role is Role.BLOCKING:
            behind.update(dict.fromkeys(piece.axes, i + 1))
    return found


class CommStreams:
    """The communication streams, one for each axis.

    Args:
        free_s: of each, when it has nothing more to do.
    """

    def __init__(self, share: float) -> None:
        self.share, self.free_s = share, dict[str, float]()
        self.ran: list[Ran] = []
        self.busy: list[tuple[float, float, str]] = []  # when any of them runs, in order, nothing twice
        self.first = 0  # of `busy`, what compute has not passed yet

    def start(self, piece: Piece, now: float) -> float:
        """Queue a collective that may start now; returns its end."""
        begin = max(now, *(self.free_s.get(axis, 0.0) for axis in piece.axes))
        end = begin + piece.seconds
        self.free_s.update((axis, end) for axis in piece.axes)
        if piece.seconds > 0:
            self._occupy(begin, end, piece.name)
            self.ran.append(Ran(piece, begin, end))
        return end

    def over_s(self) -> float:
        """When all is done."""
        return max(self.free_s.values(), default=0.0)

    def _occupy(self, begin: float, end: float, name: str) -> None:
        """Add what of it no other collective fills."""
        at = len(self.busy)
        while at > self.first and self.busy[at - 1][1] > begin:
            at -= 1
        later, fresh = self.busy[at:], []
        for start, stop, _ in later:
            if begin < min(start, end):
                fresh.append((begin, min(start, end), name))
            begin = max(begin, stop)
        if begin < end:
            fresh.append((begin, end, name))
        self.busy[at:] = sorted((*later, *fresh))

    def compute(self, now: float, seconds: float, waits: dict[str, float]) -> tuple[float, float]:
        """(when so much compute is done, by how much it was slowed)."""
        if self.share >= 1.0:  # nothing hides: what runs beside stops it
            for begin, end, name in self.busy[self.first :]:
                if end > now:
                    waits[name] = waits.get(name, 0.0) + end - max(now, begin)
            self.first = len(self.busy)
            begin = max(now, self.over_s())
            return begin + seconds, begin - now
        left, at, slowed = seconds, now, 0.0
        while left > 0 and self.first < len(self.busy):
            begin, end, name = self.busy[self.first]
            if end <= at:
                self.first += 1
                continue
            if begin > at:  # alone until then
                alone = min(left, begin - at)
                left, at = left - alone, at + alone
                continue
            beside = min(left / (1.0 - self.share), end - at)
            lost = beside * self.share
            waits[name] = waits.get(name, 0.0) + lost
            left, at, slowed = left - (beside - lost), at + beside, slowed + lost
            if left < 1e-15 * seconds:
                left = 0.0
        return at + left, slowed
