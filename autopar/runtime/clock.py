"""Clocks: when the work that was asked for so far is done. On a CPU that is now; on CUDA it is when the stream gets there, so that stamps
cost no waiting and only what the device does is timed."""

from __future__ import annotations

import time
from typing import Protocol, Union

import torch

Stamp = Union[float, "torch.cuda.Event"]


_CYCLES = 2e9  # per second, of a GPU's clock at its fastest


class Clock(Protocol):
    """Of one device."""

    def hold(self, seconds: float) -> None:
        """Let the device wait about so long: what is asked for meanwhile then runs at once, whatever asking takes."""

    def stamp(self) -> Stamp:
        """The end of all work asked for so far."""

    def seconds(self, begin: Stamp, end: Stamp) -> float:
        """Between two stamps; waits until the later one is past."""


class HostClock:
    """Of work that is done when its call returns."""

    def hold(self, seconds: float) -> None:
        pass

    def stamp(self) -> Stamp:
        return time.perf_counter()

    def seconds(self, begin: Stamp, end: Stamp) -> float:
        assert isinstance(begin, float) and isinstance(end, float)
        return end - begin


class CudaClock:
    """Of the current stream of the current device."""

    def hold(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * _CYCLES))

    def stamp(self) -> Stamp:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Stamp, end: Stamp) -> float:
        assert not isinstance(begin, float) and not isinstance(end, float)
        end.synchronize()
        return begin.elapsed_time(end) / 1e3  # milliseconds


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
