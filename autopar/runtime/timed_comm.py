"""A `Comm` that tells how long each collective took, and each receive: packing and the waiting for other ranks included. Local cuts count as compute, and
so does a send, which waits for nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .clock import Clock, Stamp
from .comm import Comm
from .messages import Arrival, Key
from .stages import STAGES


@dataclass(frozen=True, slots=True)
class Call:
    """One collective: the phase in which it ran, and the rank's tensor, the larger of before and after."""

    phase: str
    kind: str
    axis: str
    bytes: int
    begin: Stamp
    end: Stamp


class TimedComm:
    """Does what `comm` does.

    Args:
        phase: in which phase of the step a call is.
        tell: gets every collective.
    """

    def __init__(self, comm: Comm, clock: Clock, phase: Callable[[], str], tell: Callable[[Call], None]) -> None:
        self.rank, self.mesh, self.device = comm.rank, comm.mesh, comm.device
        self._comm, self._clock, self._phase, self._tell = comm, clock, phase, tell

    def coordinate(self, axis: str) -> int:
        return self._comm.coordinate(axis)

    def all_gather(self, x: Tensor, axis: str, dim: int, stride: int) -> Tensor:
        return self._time("all_gather", axis, x, lambda: self._comm.all_gather(x, axis, dim, stride))

    def reduce_scatter(self, x: Tensor, axis: str, dim: int, stride: int, op: str = "sum") -> Tensor:
        return self._time("reduce_scatter", axis, x, lambda: self._comm.reduce_scatter(x, axis, dim, stride, op))

    def all_reduce(self, x: Tensor, axis: str, op: str = "sum") -> Tensor:
        return self._time("all_reduce", axis, x, lambda: self._comm.all_reduce(x, axis, op))

    def all_to_all(self, x: Tensor, axis: str, from_dim: int, from_stride: int, to_dim: int, to_stride: int) -> Tensor:
        return self._time("all_to_all", axis, x, lambda: self._comm.all_to_all(x, axis, from_dim, from_stride, to_dim, to_stride))

    def slice(self, x: Tensor, axis: str, dim: int, stride: int) -> Tensor:
        return self._comm.slice(x, axis, dim, stride)

    def keep(self, x: Tensor, axis: str) -> Tensor:
        return self._comm.keep(x, axis)

    def broadcast(self, x: Tensor, axis: str, source: int) -> Tensor:
        return self._time("broadcast", axis, x, lambda: self._comm.broadcast(x, axis, source))

    def open_links(self, links: Sequence[tuple[int, int]]) -> None:
        self._comm.open_links(links)

    def begin_step(self, arrivals: Mapping[int, Sequence[Arrival]]) -> None:
        self._comm.begin_step(arrivals)

    def send(self, x: Tensor, target: int, key: Key) -> None:
        self._comm.send(x, target, key)

    def expect(self, source: int, key: Key) -> None:
        self._comm.expect(source, key)

    def receive(self, source: int, key: Key) -> Tensor:
        begin = self._clock.stamp()
        x = self._comm.receive(source, key)
        self._tell(Call(self._phase(), "receive", STAGES, x.numel() * x.element_size(), begin, self._clock.stamp()))
        return x

    def end_step(self) -> None:
        self._comm.end_step()

    def collect(self, value: Any) -> list[Any]:
        return self._comm.collect(value)

    def share(self, value: Any) -> Any:
        return self._comm.share(value)

    def barrier(self) -> None:
        self._comm.barrier()

    def _time(self, kind: str, axis: str, x: Tensor, collective: Callable[[], Tensor]) -> Tensor:
        begin = self._clock.stamp()
        result = collective()
        end = self._clock.stamp()
        size = max(x.numel() * x.element_size(), result.numel() * result.element_size())
        self._tell(Call(self._phase(), kind, axis, size, begin, end))
        return result
