"""The peak of memory while something runs, as the CPU's allocator sees it: the scratch inside ops counts, too.

torch's profiler reports every allocation of this thread with the sum of what is held; releases count whoever makes them (gloo's threads let go of
what was sent). What was there before is not counted, nor is its release. All this costs time: what is weighed is not timed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from torch.autograd.profiler import profile

T = TypeVar("T")
_REPORT, _HELD = "[memory]", "Total Allocated"  # an allocator's event in the trace that torch writes; seen in torch 2.13


def measure_cpu_peak(run: Callable[[], T]) -> tuple[T, int]:
    """Run it; also the most bytes of CPU memory that were held at once beyond what was held before."""
    with profile(profile_memory=True) as profiler:
        result = run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return result, max((int(e["args"][_HELD]) for e in events if e.get("name") == _REPORT), default=0)
