"""Messages between two ranks, whatever carries them: what was agreed, what is still to come, what is still on its way out.

In: the links and, for each step, what comes in, in the order of sending. Out: which receives to post, and errors where a rank does not keep
to what was agreed. Knows neither torch.distributed nor threads of ranks; moves nothing itself.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import Tensor

from ..errors import ProgramError, RankError

Key = tuple[int, int]
"""(number of the message between these two stages, turn); turn -1: once a step."""

_FOREVER = timedelta(days=1)
_AT_ONCE = timedelta(milliseconds=1)
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message that comes from a given rank: its key, shape and dtype (`float32`)."""

    key: Key
    shape: tuple[int, ...]
    dtype: str


def arrival_of(key: Key, x: Tensor) -> Arrival:
    """What a rank must have announced to receive x under this key."""
    return Arrival(key, tuple(x.shape), str(x.dtype).removeprefix("torch."))


def message_text(key: Key) -> str:
    """`message 3 of turn 0`; `message 3` where it goes once a step."""
    number, turn = key
    return f"message {number}" + (f" of turn {turn}" if turn >= 0 else "")


def arrival_text(arrival: Arrival) -> str:
    """`message 3 of turn 0, float32[2, 4]`."""
    return f"{message_text(arrival.key)}, {arrival.dtype}{list(arrival.shape)}"


class Ledger:
    """What one rank has agreed with the others, and how far this step has come.

    Raises (every method):
        ProgramError: the program does not keep to what was agreed.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        self._links: set[tuple[int, int]] = set()
        self.running = False
        self.step = 0  # how many have begun
        self._announced: dict[tuple[int, Key], Arrival] = {}
        self._waiting: dict[int, deque[Arrival]] = {}  # by source: not asked for yet
        self._here: dict[tuple[int, Key], Any] = {}
        self._sent: set[tuple[int, Key]] = set()

    def open(self, links: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Add links; returns those between two ranks that were not open before, in the order of the list.

        Raises:
            RankError: a rank is not one of the mesh.
        """
        for link in links:
            if not all(0 <= r < self._num_ranks for r in link):
                raise RankError(f"rank {self._rank}: link {link}: expected two ranks of the mesh, 0 to {self._num_ranks - 1}")
        new = [(a, b) for a, b in dict.fromkeys(links) if a != b and (a, b) not in self._links]
        self._links.update(links)
        return new

    def begin(self, arrivals: Mapping[int, Sequence[Arrival]]) -> None:
        """A new step, also where the one before was not ended."""
        announced: dict[tuple[int, Key], Arrival] = {}
        for source, sequence in arrivals.items():
            self._check_link(source, self._rank)
            for arrival in sequence:
                if (source, arrival.key) in announced:
                    raise ProgramError(f"rank {self._rank}: {message_text(arrival.key)} from rank {source} is announced twice in one step")
                announced[source, arrival.key] = arrival
        self._announced = announced
        self._waiting = {source: deque(sequence) for source, sequence in arrivals.items()}
        self._here, self._sent = {}, set()
        self.running = True
        self.step += 1

    def send(self, target: int, key: Key) -> None:
        """Note that a message goes out, once."""
        self._check_link(self._rank, target)
        if not self.running:
            raise ProgramError(f"rank {self._rank} sends {message_text(key)} to rank {target} outside of a step: begin_step comes first")
        if (target, key) in self._sent:
            raise ProgramError(f"rank {self._rank} sends {message_text(key)} to rank {target} twice in one step")
        self._sent.add((target, key))

    def due(self, source: int, key: Key) -> list[Arrival]:
        """The arrivals from this source up to this one that were not due before, in the order of sending. None from itself."""
        wanted = self.announced(source, key)
        if source == self._rank:
            return []
        waiting = self._waiting[source]
        return [waiting.popleft() for _ in range(waiting.index(wanted) + 1)] if wanted in waiting else []

    def announced(self, source: int, key: Key) -> Arrival:
        """What was announced under this key, and is not received yet."""
        if (source, key) not in self._announced:
            what = f"{message_text(key)} from rank {source}"
            raise ProgramError(f"rank {self._rank} receives {what}: it was not announced in this step, or was received before")
        return self._announced[source, key]

    def put(self, source: int, key: Key, thing: Any) -> None:
        """Keep what belongs to a message that is due."""
        self._here[source, key] = thing

    def put_own(self, found: Arrival, thing: Any) -> None:
        """Keep what this rank sends to itself."""
        self.check(self._rank, self.announced(self._rank, found.key), found)
        self.put(self._rank, found.key, thing)

    def take(self, source: int, key: Key) -> Any:
        """What was put under this key, once."""
        if (source, key) not in self._here:
            raise ProgramError(f"rank {self._rank} receives {message_text(key)} from itself before it was sent")
        del self._announced[source, key]
        return self._here.pop((source, key))

    def put_and_not_taken(self) -> list[Any]:
        """What an aborted step leaves."""
        return list(self._here.values())

    def check(self, source: int, expected: Arrival, found: Arrival) -> None:
        """The next message must be the one that was announced."""
        if found != expected:
            both = f"expected {arrival_text(expected)}; found {arrival_text(found)}"
            raise ProgramError(f"rank {self._rank}: the next message from rank {source}: {both}")

    def end(self) -> None:
        """The step is over for this rank: nothing that was announced may be missing."""
        if self._announced:
            (source, _), arrival = next(iter(self._announced.items()))
            more = f" ({len(self._announced)} such messages)" if len(self._announced) > 1 else ""
            raise ProgramError(f"rank {self._rank} never received {arrival_text(arrival)} from rank {source}, which it announced{more}")
        self.running = False

    def _check_link(self, source: int, target: int) -> None:
        if (source, target) not in self._links:
            raise ProgramError(f"rank {self._rank}: no link from rank {source} to rank {target}: open_links was not given it")


class Lost(RuntimeError):
    """A message that was sent (`what`) did not arrive; the text says why."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(why)
        self.what = what


@dataclass(frozen=True, eq=False, slots=True)
class _Held:
    """What is on its way."""

    target: int
    x: Tensor
    work: Any


class QueriedSends:
    """Holds what was sent until it is gone, where the work knows that it is (nccl). Freed memory is reused in the order of the stream."""

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()

    def hold(self, target: int, what: str, x: Tensor, work: Any) -> None:
        """Keep x, which was just sent."""
        self.let_go()
        self._held.append(_Held(target, x, work))

    def let_go(self) -> None:
        """Free what is gone."""
        self._held = deque(row for row in self._held if not row.work.is_completed())

    def let_arrive(self, target: int, most: int, timeout_s: float) -> None:
        """Let the current stream wait until at most so many to this rank are left."""
        mine = [row for row in self._held if row.target == target]
        for row in mine[: max(0, len(mine) - most)]:
            row.work.wait()
            self._held.remove(row)

    def finish(self, timeout_s: float) -> None:
        """Let the current stream wait for all that is left."""
        for row in self._held:
            row.work.wait()
        self._held.clear()


class WaitedSends:
    """Holds what was sent until it is gone, where `is_completed` is false until somebody waited (gloo): a thread per target waits.

    A thread lives only while something is on its way. It must not be inside gloo when the interpreter ends (that aborts the process), so
    what is left then is given up.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[int, deque[tuple[str, Tensor, Any]]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._gone: list[Tensor] = []  # freed by the thread that made them: torch's memory profiler sees only what that one does
        self._lost: tuple[str, str] | None = None
        atexit.register(self.close)

    def hold(self, target: int, what: str, x: Tensor, work: Any) -> None:
        """Keep x, which was just sent.

        Raises:
            Lost: an earlier message did not arrive.
        """
        with self._changed:
            self._held.setdefault(target, deque()).append((what, x, work))
            if target not in self._threads:
                thread = threading.Thread(target=self._wait_in_order, args=(target,), name=f"sends to rank {target}", daemon=True)
                self._threads[target] = thread
                thread.start()
        self.let_go()

    def let_go(self) -> None:
        """Free what is gone.

        Raises:
            Lost: a message did not arrive.
        """
        with self._changed:
            self._gone = []
        if self._lost:
            raise Lost(*self._lost)

    def let_arrive(self, target: int, most: int, timeout_s: float) -> None:
        """Wait until at most so many to this rank are left.

        Raises:
            Lost: a message did not arrive, or not within the timeout.
        """
        with self._changed:
            in_time = self._changed.wait_for(lambda: bool(self._lost) or len(self._held.get(target, ())) <= most, timeout_s)
        self.let_go()
        if not in_time:
            raise Lost(self._held[target][0][0], f"not received within {timeout_s:g} s")

    def finish(self, timeout_s: float) -> None:
        """Wait for all that is left.

        Raises:
            Lost: a message did not arrive, or not within the timeout.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._lost) or not self._threads, timeout_s)
        self.let_go()
        with self._changed:
            for held in self._held.values():
                if held:
                    raise Lost(held[0][0], f"not received within {timeout_s:g} s")

    def close(self) -> None:
        """Give up what is left."""
        end = time.monotonic() + _CLOSE_S
        while self._threads and time.monotonic() < end:
            with self._changed:
                works = [held[0][2] for held in self._held.values() if held]
            for work in works:
                try:
                    work.wait(_AT_ONCE)  # too late for gloo: it closes all connections, and the threads wake up
                except RuntimeError:
                    pass
            for thread in list(self._threads.values()):
                thread.join(0.1)

    def _wait_in_order(self, target: int) -> None:
        while True:
            with self._changed:
                if not self._held[target]:
                    del self._threads[target]
                    self._changed.notify_all()
                    return
                what, x, work = self._held[target][0]
            lost = None
            try:
                work.wait(_FOREVER)  # it may lie there while its receiver is busy; `finish` has the timeout
            except RuntimeError as error:
                lost = what, str(error).strip().splitlines()[0]
            with self._changed:
                self._lost = self._lost or lost
                self._gone.append(x)
                self._held[target].popleft()
                del x, work
                self._changed.notify_all()
