"""What a training step holds at its peak, by one measure for whoever makes it: everything that its making and its steps got from the allocator.

In: a function that makes a step (its parameters, states and batch with it). Out: the step, the values of its first calls, and the most bytes that it held
during the last two of them: what is let go when a message has arrived is let go at another time in each. On CUDA it is the caching allocator's own count. On the
CPU torch's profiler tells of every allocation through torch's allocator; what gloo takes by itself is in nobody's sum. What was there before is not counted. Nothing is timed here.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd.profiler import profile, record_function

from autopar.runtime.peak import counting_all

Step = Callable[[], torch.Tensor]  # one training step; returns its loss
_WEIGHED, _REPORT, _HELD = "steps that are weighed", "[memory]", "Total Allocated"  # in the trace that torch writes; seen in torch 2.13


def weigh(build: Callable[[], Step], num_steps: int, device: torch.device) -> tuple[Step, list[float], int]:
    """Make a step and run it.

    Args:
        build: makes the step, and all that it needs, on `device`.
        num_steps: the first ones make what is made lazily; the last two are weighed.
    Returns:
        the step; the loss of each call; bytes.
    """
    gc.collect()
    return _weigh_cuda(build, num_steps, device) if device.type == "cuda" else _weigh_cpu(build, num_steps)


def _weigh_cuda(build: Callable[[], Step], num_steps: int, device: torch.device) -> tuple[Step, list[float], int]:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    step = build()
    losses = [float(step()) for _ in range(num_steps - 2)]
    torch.cuda.reset_peak_memory_stats(device)
    losses += [float(step()) for _ in range(2)]
    return step, losses, torch.cuda.max_memory_allocated(device) - before


def _weigh_cpu(build: Callable[[], Step], num_steps: int) -> tuple[Step, list[float], int]:
    with counting_all(), profile(profile_memory=True) as profiler:
        step = build()
        losses = [float(step()) for _ in range(num_steps - 2)]
        with record_function(_WEIGHED):
            losses += [float(step()) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    [weighed] = (e for e in events if e.get("name") == _WEIGHED)
    memory = sorted((e["ts"], k, int(e["args"][_HELD]), int(e["args"]["Bytes"])) for k, e in enumerate(events) if e.get("name") == _REPORT)
    _, _, held, size = memory[0]
    return step, losses, max(total for ts, _, total, _ in memory if weighed["ts"] <= ts <= weighed["ts"] + weighed["dur"]) - (held - size)
