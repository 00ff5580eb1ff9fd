"""A `Comm` that tells how long each collective took, and each receive: packing and the waiting for other ranks included. Local cuts count as compute, and
so does a send, which waits for nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.mesh import joint_name
from .clock import Clock, Stamp
from .comm import Axes, Comm
from .messages import Arrival, Key
from .pending import Bucket, Digits, Pending
from .stages import STAGES


@dataclass(frozen=True, slots=True)
class Call:
    """One collective: the phase in which it ran (or was started), and the rank's tensors, the larger of before and after.

    Args:
        begin, end: of a started one, from its start until the last of its tensors has been waited for.
        axis: of several at once `dp+tp`.
        stops: (phase, begin, end) of each time that the rank stood still for it, its packing included.
        come: when the messages were there; `end` where they were waited for, or nobody can tell (on CUDA).
    """

    phase: str
    kind: str
    axis: str
    bytes: int
    begin: Stamp
    end: Stamp
    stops: tuple[tuple[str, Stamp, Stamp], ...]
    come: Stamp


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

    def all_gather(self, x: Tensor, axis: str, dim: int, stride: int, short: int = 0) -> Tensor:
        return self._time("all_gather", axis, x, lambda: self._comm.all_gather(x, axis, dim, stride, short))

    def reduce_scatter(self, x: Tensor, axis: str, dim: int, stride: int, op: str = "sum") -> Tensor:
        return self._time("reduce_scatter", axis, x, lambda: self._comm.reduce_scatter(x, axis, dim, stride, op))

    def all_reduce(self, x: Tensor, axis: str, op: str = "sum", own: bool = False) -> Tensor:
        return self._time("all_reduce", axis, x, lambda: self._comm.all_reduce(x, axis, op, own))

    def all_to_all(self, x: Tensor, axis: str, from_dim: int, from_stride: int, to_dim: int, to_stride: int) -> Tensor:
        return self._time("all_to_all", axis, x, lambda: self._comm.all_to_all(x, axis, from_dim, from_stride, to_dim, to_stride))

    def start_all_gather(self, xs: Sequence[Tensor], axis: Axes, dim: Sequence[Digits], stride: Sequence[Digits], short: Sequence[Digits] = ()) -> list[Pending]:
        return self._follow("all_gather", axis, xs, lambda: self._comm.start_all_gather(xs, axis, dim, stride, short))

    def start_reduce_scatter(
        self, xs: Sequence[Tensor], axis: Axes, dim: Sequence[Digits], stride: Sequence[Digits], op: str = "sum", alone: bool = False
    ) -> list[Pending]:
        return self._follow("reduce_scatter", axis, xs, lambda: self._comm.start_reduce_scatter(xs, axis, dim, stride, op, alone))

    def start_all_reduce(self, xs: Sequence[Tensor], axis: Axes, op: str = "sum", own: Sequence[int] = (), bucket: Bucket | None = None) -> list[Pending]:
        return self._follow("all_reduce", axis, xs, lambda: self._comm.start_all_reduce(xs, axis, op, own, bucket))

    def open_bucket(self, shapes: Sequence[Sequence[int]], dtype: torch.dtype, own: Sequence[int] = ()) -> Bucket:
        return self._comm.open_bucket(shapes, dtype, own)

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

    def let_arrive(self, target: int, most: int) -> None:
        self._comm.let_arrive(target, most)

    def receive(self, source: int, key: Key) -> Tensor:
        begin = self._clock.stamp()
        x = self._comm.receive(source, key)
        self._tell_blocking("receive", STAGES, _size(x), begin)
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
        self._tell_blocking(kind, axis, max(_size(x), _size(result)), begin)
        return result

    def _tell_blocking(self, kind: str, axis: str, size: int, begin: Stamp) -> None:
        phase, end = self._phase(), self._clock.stamp()
        self._tell(Call(phase, kind, axis, size, begin, end, ((phase, begin, end),), end))

    def _follow(self, kind: str, axis: Axes, xs: Sequence[Tensor], collective: Callable[[], list[Pending]]) -> list[Pending]:
        """Start a collective; it is told of when all its tensors have been waited for, one of no tensors never."""
        phase, begin = self._phase(), self._clock.stamp()
        started = collective()
        stops = [(phase, begin, self._clock.stamp())]
        sent, sizes = sum(map(_size, xs)), list[int]()
        along = axis if isinstance(axis, str) else joint_name(self._comm.mesh, axis)
        came, expected = self._listen(started)

        def wait(pending: Pending) -> Tensor:
            since = self._clock.stamp()
            x = pending.wait()
            stops.append((self._phase(), since, self._clock.stamp()))
            sizes.append(_size(x))
            if len(sizes) == len(started):
                end = stops[-1][2]
                come = stops[0][2] if not expected else came[-1] if len(came) == expected else end
                self._tell(Call(phase, kind, along, max(sent, sum(sizes)), begin, end, tuple(stops), come))
            return x

        return [Pending(lambda pending=pending: wait(pending)) for pending in started]

    def _listen(self, started: Sequence[Pending]) -> tuple[list[Stamp], int]:
        """A list that fills with when messages come, and how many of them there will be; 0 where all is here. On CUDA it stays empty: a work's future is done when it is asked for."""
        came: list[Stamp] = []
        flights = dict.fromkeys(pending.flight for pending in started if pending.flight is not None)
        if self.device.type != "cpu":
            return came, len(flights)
        return came, sum(flight.listen(lambda: came.append(self._clock.stamp())) for flight in flights)


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()
