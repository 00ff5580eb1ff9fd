"""All ranks in one process: each is a thread, each collective a meeting. For `autopar verify` and for tests.

Sums run in rank order, so results are deterministic. A rank that fails, or leaves while others wait for it, ends all of them: nothing
hangs. Ranks of one group must say the same thing, else the meeting names what each said.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import RankError
from ..graph.mesh import Mesh, axis_groups, num_ranks
from .comm import Placed
from .digits import merge_digit, take_digit

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

    def leave(self, rank: int, failed: bool) -> None:
        with self.lock:
            self.left.add(rank)
            self.failed = self.failed or failed
            for meeting in {self.everyone, *self.meetings.values()}:
                meeting.changed.notify_all()


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


class ThreadComm(Placed):
    """A rank that is a thread. Made by `run_ranks`."""

    def __init__(self, mesh: Mesh, rank: int, world: _World, device: torch.device) -> None:
        super().__init__(mesh, rank, device)
        self._world = world

    def all_gather(self, x: Tensor, axis: str, dim: int, stride: int) -> Tensor:
        return self._meet(f"all_gather({axis}, {dim}, {stride}) of {_text(x)}", axis, x, lambda xs: merge_digit(torch.stack(xs), dim, stride))

    def reduce_scatter(self, x: Tensor, axis: str, dim: int, stride: int, op: str = "sum") -> Tensor:
        size, c = self._size[axis], self._coordinate[axis]
        return self._meet(
            f"reduce_scatter({axis}, {dim}, {stride}, {op}) of {_text(x)}", axis, x, lambda xs: _reduce([take_digit(t, dim, stride, size, c) for t in xs], op)
        )

    def all_reduce(self, x: Tensor, axis: str, op: str = "sum") -> Tensor:
        return self._meet(f"all_reduce({axis}, {op}) of {_text(x)}", axis, x, lambda xs: _reduce(xs, op))

    def all_to_all(self, x: Tensor, axis: str, from_dim: int, from_stride: int, to_dim: int, to_stride: int) -> Tensor:
        size, c = self._size[axis], self._coordinate[axis]
        return self._meet(
            f"all_to_all({axis}, {from_dim}, {from_stride}, {to_dim}, {to_stride}) of {_text(x)}",
            axis,
            x,
            lambda xs: merge_digit(torch.stack([take_digit(t, to_dim, to_stride, size, c) for t in xs]), from_dim, from_stride),
        )

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
