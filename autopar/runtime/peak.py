"""The peak of memory while something runs, as the CPU's allocator sees it: the scratch inside ops counts, too.

torch's profiler reports every allocation of this thread with the sum of what is held. What was there before is not counted, nor is its release. All this costs
time: what is weighed is not timed.

A release by a thread that is not profiled is in no sum of the profiler unless torch is told to count all: gloo's threads are often the last to let go of a buffer, and
without that the sum grows with every collective (torch 2.13, all_gather of 16 MiB: by up to 16 MiB each). The switch is a flag of its C++ library.

The sum is the process's: what was taken while it was counted and let go later stays in it for ever, so what it is when a run begins is no byte of that run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from torch.autograd.profiler import profile

T = TypeVar("T")
_COUNT_ALL = "FLAGS_caffe2_report_cpu_memory_usage"  # seen in torch 2.13
_REPORT, _HELD, _TAKEN = "[memory]", "Total Allocated", "Bytes"  # an allocator's event in the trace that torch writes; seen in torch 2.13


def measure_cpu_peak(run: Callable[[], T]) -> tuple[T, int]:
    """Run it; also the most bytes of CPU memory that were held at once beyond what was held before."""
    with counting_all(), profile(profile_memory=True) as profiler:
        result = run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    reports = [event["args"] for event in sorted((e for e in events if e.get("name") == _REPORT), key=lambda e: e["ts"])]
    before = int(reports[0][_HELD]) - int(reports[0][_TAKEN]) if reports else 0
    return result, max(before, *(int(report[_HELD]) for report in reports)) - before if reports else 0


@contextlib.contextmanager
def counting_all() -> Iterator[None]:
    """Inside, torch's allocator for the CPU counts what any thread takes and gives back; where this torch has no such switch, what profiled ones do."""
    try:
        flag = ctypes.c_bool.in_dll(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so")), _COUNT_ALL)
    except (OSError, ValueError):
        yield
        return
    flag.value = True
    try:
        yield
    finally:
        flag.value = False
