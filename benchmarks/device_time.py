"""Where the device's time of a step goes: its kernels, by torch's profiler.

In: a step that runs on a CUDA device. Out: lines; how long the device was busy in a step, and the kernels that took most of that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

_STEPS = 2
_WIDTH = 110  # characters of a kernel's name


def list_device_time(step: Callable[[], object], most: int = 14) -> Iterable[str]:
    """The `most` kernels with the longest time in all, per step; of each its calls, and the time of one."""
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_STEPS):
            step()
        torch.cuda.synchronize()
    took: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            took[event.name].append(event.device_time)
    busy = sum(sum(times) for times in took.values())
    calls = sum(len(times) for times in took.values())
    yield f"device busy {busy / _STEPS / 1e3:.2f} ms a step, in {calls // _STEPS} kernels and copies"
    for name, times in sorted(took.items(), key=lambda item: -sum(item[1]))[:most]:
        yield f"{sum(times) / _STEPS / 1e3:9.3f} ms {sum(times) / busy:6.1%} {len(times) // _STEPS:5} x {sum(times) / len(times):9.1f} us  {name[:_WIDTH]}"
