"""A replayed step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

In: a `Simulation`. Out: the JSON of Chrome's trace event format: a process per stage, with rows for its actions, its compute and its communication, and
a counter for its memory. Times are microseconds, as the format has them. Every piece of every action is drawn where that is not too many; else those of
the first action of each kind on each stage, and it is said how many were left out.

Format: "Trace Event Format", the Chromium project's document (complete events `X`, counters `C`, metadata `M`).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..cost.simulate import Action, Simulation, list_ran
from ..cost.streams import Ran, Role
from ..graph.node import Phase
from .html import write_page

MOST_EVENTS = 200_000
_ROWS = ("actions", "compute")  # and one for each axis along which something is sent


def trace_events(simulation: Simulation, name: str) -> dict[str, Any]:
    """The document.

    Args:
        name: of the model, for the title.
    """
    events: list[dict[str, Any]] = []
    stages = sorted({a.stage for a in simulation.actions})
    for stage in stages:
        events.append({"ph": "M", "name": "process_name", "pid": stage, "args": {"name": f"stage {stage}" if len(stages) > 1 else "every device"}})
        axes = _axes(simulation, stage)
        rows = (*_ROWS, *(f"communication along {axis}" if axis else "communication" for axis in axes))
        events += [{"ph": "M", "name": "thread_name", "pid": stage, "tid": row, "args": {"name": what}} for row, what in enumerate(rows)]
    drawn = {id(a) for a in simulation.actions}
    if sum(len(list_ran(simulation, a)) for a in simulation.actions) > MOST_EVENTS:
        first: dict[tuple[int, str, Phase], Action] = {}
        for action in simulation.actions:
            first.setdefault((action.stage, action.name[:1], action.phase), action)
        drawn = {id(a) for a in first.values()}
    for action in simulation.actions:
        events.append(_event(action.name, action.phase.value, action.stage, 0, action.start_s, action.end_s))
        if id(action) in drawn:
            events += _pieces(simulation, action)
    events += [
        {"ph": "C", "name": "memory", "pid": held.stage, "ts": held.time_s * 1e6, "args": {"bytes": held.bytes}} for held in simulation.memory
    ]
    other = {"model": name, "step_s": simulation.step_s, "actions_drawn_in_pieces": len(drawn), "actions": len(simulation.actions)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _pieces(simulation: Simulation, action: Action) -> list[dict[str, Any]]:
    """What runs in an action, stretched to its length: the pieces of one chunk of several, or of half of a backward pass, follow each other without those of the others between them."""
    ran, axes = [r for r in list_ran(simulation, action) if r.end_s > r.start_s], _axes(simulation, action.stage)
    shift = _closed_up(ran) if action.place is not None else (lambda seconds: seconds)
    whole = max((shift(r.end_s) for r in ran), default=0.0) if action.place is not None else simulation.stages[action.stage].seconds(action.phase)
    scale = (action.end_s - action.start_s) / whole if whole > 0 else 0.0
    return [
        _event(
            r.piece.name, r.piece.role.value, action.stage, 1 if r.piece.role is Role.COMPUTE else len(_ROWS) + axes.index(r.piece.axes[0]),
            action.start_s + scale * shift(r.start_s), action.start_s + scale * shift(r.end_s),
        )
        for r in ran
    ]  # fmt: skip


def _closed_up(ran: Sequence[Ran]) -> Callable[[float], float]:
    """Time of a pass -> that time without what comes before it when none of these pieces runs."""
    spans: list[list[float]] = []  # begin, end, and what was left out before
    for start, end in sorted((r.start_s, r.end_s) for r in ran):
        if spans and start <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([start, end, (spans[-1][2] + start - spans[-1][1]) if spans else start])
    begins = [span[0] for span in spans]
    return lambda seconds: seconds - spans[max(0, bisect_right(begins, seconds) - 1)][2]


def _axes(simulation: Simulation, stage: int) -> list[str]:
    """The axes along which the stage sends anything."""
    ran = (r.piece for one in simulation.stages[stage].passes for r in one.ran)
    return sorted({piece.axes[0] for piece in ran if piece.role is not Role.COMPUTE})


def _event(name: str, category: str, stage: int, row: int, start_s: float, end_s: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "pid": stage, "tid": row, "ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6}


def save_trace(simulation: Simulation, name: str, path: str | Path) -> str:
    """Write the document, whole or not at all.

    Returns:
        what was left out; "" where nothing was.
    """
    document = trace_events(simulation, name)
    write_page(json.dumps(document), path, "--trace")
    other = document["otherData"]
    drawn, count = other["actions_drawn_in_pieces"], other["actions"]
    return f"{drawn} of {count:,} actions are drawn with what runs in them, the first of each kind on each stage; the others as one bar" if drawn < count else ""
