"""All ranks in one process: each is a thread, each collective a meeting. For `autopar verify` and for tests.

Sums run in rank order, so results are deterministic. A rank that fails, or leaves while others wait for it, ends all of them: nothing
hangs. What is started is done at once. Ranks of one group must say the same thing, else the meeting names what each said. Messages between two ranks must come as announced,
and in that order.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import ProgramError, RankError
from ..graph.mesh import Mesh, axis_groups, num_ranks
from .comm import Axes, Placed
from .digits import merge_digit, take_digit
from .messages import Arrival, Key, Ledger, arrival_of, arrival_text
from .pending import Bucket, Digits, Pending, each_digit, here

T = TypeVar("T")


class _OtherRankFailed(RankError):
    """This rank only stopped because another one failed."""


class _World:
    """What the threads share: one lock, who left, who failed."""

    def __init__(self, mesh: Mesh) -> None:
        self.lock = threading.Lock()
        self.left: set[int] = set()
        self.failed = False
        self.everyone = _Meeting(self, tuple(range(num_ranks(mesh))))
        self.meetings = {
            (axis.name, rank): meeting
            for index, axis in enumerate(mesh.axes)
            for meeting in (_Meeting(self, ranks) for ranks in axis_groups(mesh, index))
            for rank in meeting.ranks
        }
        self.mail = _Mail(self)

    def leave(self, rank: int, failed: bool) -> None:
        with self.lock:
            self.left.add(rank)
            self.failed = self.failed or failed
            for meeting in {self.everyone, *self.meetings.values()}:
                meeting.changed.notify_all()
            self.mail.changed.notify_all()


class _Meeting:
    """A place where the ranks of one group put a value each and all read all of them."""

    def __init__(self, world: _World, ranks: tuple[int, ...]) -> None:
        self.world, self.ranks = world, ranks
        self.changed = threading.Condition(world.lock)
        self.posted: dict[int, tuple[str, Any]] = {}
        self.readers = 0  # 0 while values are being put, else how many ranks still have to read

    def exchange(self, rank: int, what: str, value: Any) -> list[Any]:
        """Everyone's value, in rank order."""
        with self.changed:
            self._wait(lambda: self.readers == 0, rank, what)
            self.posted[rank] = (what, value)
            if len(self.posted) == len(self.ranks):
                self.readers = len(self.ranks)
                self.changed.notify_all()
            self._wait(lambda: self.readers > 0, rank, what)
            said = [self.posted[r] for r in self.ranks]
            self.readers -= 1
            if self.readers == 0:
                self.posted = {}
                self.changed.notify_all()
        if len({text for text, _ in said}) > 1:
            raise RankError("ranks disagree: " + "; ".join(f"rank {r}: {text}" for r, (text, _) in zip(self.ranks, said)))
        return [v for _, v in said]

    def _wait(self, ready: Callable[[], bool], rank: int, what: str) -> None:
        while not ready():
            if self.world.failed:
                raise _OtherRankFailed(f"rank {rank}: {what}: another rank failed")
            gone = [r for r in self.ranks if r in self.world.left and r not in self.posted]
            if gone:
                raise RankError(f"rank {rank} waits in {what}, but rank {gone[0]} has finished")
            self.changed.wait()


@dataclass(frozen=True, slots=True)
class _Letter:
    step: int
    arrival: Arrival
    x: Tensor


class _Mail:
    """A box for every pair of ranks, in which the first letter is the next to be read."""

    def __init__(self, world: _World) -> None:
        self.world = world
        self.changed = threading.Condition(world.lock)
        self.boxes: defaultdict[tuple[int, int], deque[_Letter]] = defaultdict(deque)  # by source and target
        self.ended: dict[int, int] = {}  # rank -> the last step that it ended
        self.asked: defaultdict[tuple[int, int, int], int] = defaultdict(int)  # by source, target and step: letters that are awaited and not read
        self.readers: dict[int, tuple[int, str]] = {}  # rank that waits -> from which rank, and what for

    def post(self, rank: int, target: int, letter: _Letter) -> None:
        with self.changed:
            self.boxes[rank, target].append(letter)
            self.changed.notify_all()

    def ask(self, rank: int, source: int, step: int, count: int) -> None:
        """So many more letters may come: who sends them need not hold them."""
        with self.changed:
            self.asked[source, rank, step] += count
            self.changed.notify_all()

    def read(self, rank: int, source: int, step: int, what: str) -> _Letter:
        """The next letter of this step. Those of a step before are of one that was aborted."""
        with self.changed:
            box = self.boxes[source, rank]
            try:
                while not box or box[0].step < step:
                    if box:
                        box.popleft()
                        continue
                    self.readers[rank] = source, what
                    self._check_reader(rank, source, step, what)
                    self.changed.wait()
            finally:
                self.readers.pop(rank, None)
            if box[0].step > step:
                raise RankError(f"rank {rank} waits in {what}, but rank {source} is in a later step")
            self.asked[source, rank, step] -= 1
            self.changed.notify_all()
            return box.popleft()

    def end(self, rank: int, step: int) -> None:
        """Wait until all letters from this rank are read."""
        with self.changed:
            self.ended[rank] = step
            self.changed.notify_all()
            targets = [t for s, t in self.boxes if s == rank]
        for target in targets:
            self.let_read(rank, target, step, 0)
            with self.changed:
                self.asked.pop((rank, target, step), None)

    def let_go(self, rank: int, target: int, step: int, most: int) -> None:
        """Wait until at most so many letters of this step from this rank to that one are not asked for."""
        self.let_read(rank, target, step, most, self.asked)

    def let_read(self, rank: int, target: int, step: int, most: int, asked: Mapping[tuple[int, int, int], int] | None = None) -> None:
        """Wait until at most so many letters of this step from this rank to that one are not read, those that are asked for aside."""
        with self.changed:
            while len(unread := [a.arrival for a in self.boxes[rank, target] if a.step == step]) > most + (asked or {}).get((rank, target, step), 0):
                what = f"send of {arrival_text(unread[0])} to rank {target}"
                if self.world.failed:
                    raise _OtherRankFailed(f"rank {rank}: {what}: another rank failed")
                if self.ended.get(target, 0) >= step:
                    raise ProgramError(f"rank {rank}: {what}: rank {target} has ended the step and did not receive it")
                if target in self.world.left:
                    raise RankError(f"rank {rank} waits in {what}, but rank {target} has finished")
                self.changed.wait()

    def _check_reader(self, rank: int, source: int, step: int, what: str) -> None:
        if self.world.failed:
            raise _OtherRankFailed(f"rank {rank}: {what}: another rank failed")
        if self.ended.get(source, 0) >= step:
            raise RankError(f"rank {rank} waits in {what}, but rank {source} has ended the step")
        if source in self.world.left:
            raise RankError(f"rank {rank} waits in {what}, but rank {source} has finished")
        ring = [rank]
        while source in self.readers and source not in ring and not self.boxes[self.readers[source][0], source]:
            ring.append(source)
            source = self.readers[source][0]
        if source == rank:
            raise RankError("ranks wait for each other: " + "; ".join(f"rank {r} in {self.readers[r][1]}" for r in ring))


class ThreadComm(Placed):
    """A rank that is a thread. Made by `run_ranks`."""

    def __init__(self, mesh: Mesh, rank: int, world: _World, device: torch.device) -> None:
        super().__init__(mesh, rank, device)
        self._world = world
        self._ledger = Ledger(rank, num_ranks(mesh))
        self._asked: defaultdict[int, deque[Arrival]] = defaultdict(deque)  # by source

    def all_gather(self, x: Tensor, axis: str, dim: int, stride: int, short: int = 0) -> Tensor:
        return self._meet(f"all_gather({axis}, {dim}, {stride}) of {_text(x)}", axis, x, lambda xs: merge_digit(torch.stack(xs), dim, stride, short))

    def reduce_scatter(self, x: Tensor, axis: str, dim: int, stride: int, op: str = "sum") -> Tensor:
        size, c = self._size[axis], self._coordinate[axis]
        return self._meet(
            f"reduce_scatter({axis}, {dim}, {stride}, {op}) of {_text(x)}", axis, x, lambda xs: _reduce([take_digit(t, dim, stride, size, c) for t in xs], op)
        )

    def all_reduce(self, x: Tensor, axis: str, op: str = "sum", own: bool = False) -> Tensor:
        return self._meet(f"all_reduce({axis}, {op}) of {_text(x)}", axis, x, lambda xs: _reduce(xs, op))

    def all_to_all(self, x: Tensor, axis: str, from_dim: int, from_stride: int, to_dim: int, to_stride: int) -> Tensor:
        size, c = self._size[axis], self._coordinate[axis]
        return self._meet(
            f"all_to_all({axis}, {from_dim}, {from_stride}, {to_dim}, {to_stride}) of {_text(x)}",
            axis,
            x,
            lambda xs: merge_digit(torch.stack([take_digit(t, to_dim, to_stride, size, c) for t in xs]), from_dim, from_stride),
        )

    def start_all_gather(self, xs: Sequence[Tensor], axis: Axes, dim: Sequence[Digits], stride: Sequence[Digits], short: Sequence[Digits] = ()) -> list[Pending]:
        if not short:
            return here([self._one_by_one(x, axis, self.all_gather, d, s) for x, d, s in zip(xs, dim, stride, strict=True)])
        return here([self._one_by_one(x, axis, self.all_gather, *digits) for x, *digits in zip(xs, dim, stride, short, strict=True)])

    def start_reduce_scatter(
        self, xs: Sequence[Tensor], axis: Axes, dim: Sequence[Digits], stride: Sequence[Digits], op: str = "sum", alone: bool = False
    ) -> list[Pending]:
        scatter = functools.partial(self.reduce_scatter, op=op)
        return here([self._one_by_one(x, axis, scatter, d, s) for x, d, s in zip(xs, dim, stride, strict=True)])

    def start_all_reduce(self, xs: Sequence[Tensor], axis: Axes, op: str = "sum", own: Sequence[int] = (), bucket: Bucket | None = None) -> list[Pending]:
        return here([self._one_by_one(x, axis, functools.partial(self.all_reduce, op=op)) for x in xs])

    def _one_by_one(self, x: Tensor, axis: Axes, collective: Callable[..., Tensor], *digits: Digits) -> Tensor:
        """Along one axis after the other."""
        for name, *own in zip(self._along(axis).axes, *map(each_digit, digits)):
            x = collective(x, name, *own)
        return x

    def broadcast(self, x: Tensor, axis: str, source: int) -> Tensor:
        sends = self._coordinate[axis] == source
        return self._meet(
            f"broadcast({axis}, {source}) of {_text(x)}",
            axis,
            x,
            lambda xs: x.contiguous() if sends else xs[source].clone(memory_format=torch.contiguous_format),
        )

    def open_links(self, links: Sequence[tuple[int, int]]) -> None:
        self._ledger.open(links)

    def begin_step(self, arrivals: Mapping[int, Sequence[Arrival]]) -> None:
        self._ledger.begin(arrivals)
        self._asked.clear()

    def send(self, x: Tensor, target: int, key: Key) -> None:
        self._ledger.send(target, key)
        arrival, copy = arrival_of(key, x), x.clone(memory_format=torch.contiguous_format)
        if target == self.rank:
            self._ledger.put_own(arrival, copy)
        else:
            self._world.mail.post(self.rank, target, _Letter(self._ledger.step, arrival, copy))

    def let_arrive(self, target: int, most: int) -> None:
        self._world.mail.let_go(self.rank, target, self._ledger.step, most)

    def expect(self, source: int, key: Key) -> None:
        due = self._ledger.due(source, key)
        self._asked[source] += due
        if due:
            self._world.mail.ask(self.rank, source, self._ledger.step, len(due))

    def receive(self, source: int, key: Key) -> Tensor:
        self.expect(source, key)
        wanted, asked = self._ledger.announced(source, key), self._asked[source]
        while wanted in asked:
            arrival = asked.popleft()
            what = f"receive of {arrival_text(arrival)} from rank {source}"
            letter = self._world.mail.read(self.rank, source, self._ledger.step, what)
            self._ledger.check(source, arrival, letter.arrival)
            self._ledger.put(source, arrival.key, letter.x)
        return self._ledger.take(source, key)

    def end_step(self) -> None:
        self._ledger.end()
        self._world.mail.end(self.rank, self._ledger.step)

    def collect(self, value: Any) -> list[Any]:
        return self._world.everyone.exchange(self.rank, "collect", value)

    def share(self, value: Any) -> Any:
        return self._world.everyone.exchange(self.rank, "share", value)[0]

    def barrier(self) -> None:
        self._world.everyone.exchange(self.rank, "barrier", None)

    def _meet(self, what: str, axis: str, x: Tensor, combine: Callable[[list[Tensor]], Tensor]) -> Tensor:
        meeting = self._world.meetings[axis, self.rank]
        result = combine(meeting.exchange(self.rank, what, x))
        meeting.exchange(self.rank, what, None)  # nobody may write to its input before all have read it
        return result


def solo_comm(mesh: Mesh = Mesh(()), device: torch.device | None = None) -> ThreadComm:
    """The comm of a mesh of one rank: no thread, no process group."""
    if num_ranks(mesh) != 1:
        raise RankError(f"expected a mesh of one rank, found {num_ranks(mesh)}")
    return ThreadComm(mesh, 0, _World(mesh), device or torch.device("cpu"))


def run_ranks(mesh: Mesh, rank_main: Callable[[ThreadComm], T], device: torch.device | None = None) -> list[T]:
    """Run `rank_main(comm)` as every rank of the mesh, without gradients, and return the results in rank order.

    Raises:
        whatever the first failing rank raised; the others are stopped.
    """
    world = _World(mesh)
    count = num_ranks(mesh)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def main(rank: int) -> None:
        failed = True
        try:
            with torch.no_grad():
                results[rank] = rank_main(ThreadComm(mesh, rank, world, device or torch.device("cpu")))
            failed = False
        except BaseException as error:  # handed to the caller's thread below
            errors.append(error)
        finally:
            world.leave(rank, failed)

    threads = [threading.Thread(target=main, args=(rank,), name=f"rank {rank}") for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, _OtherRankFailed)), errors[0])
    return results


def _reduce(tensors: list[Tensor], op: str) -> Tensor:
    total = tensors[0].clone(memory_format=torch.contiguous_format)
    for x in tensors[1:]:
        if op == "min":
            torch.minimum(total, x, out=total)
        elif op == "max" or total.dtype == torch.bool:
            torch.maximum(total, x, out=total)
        else:
            total += x
    return total


def _text(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
