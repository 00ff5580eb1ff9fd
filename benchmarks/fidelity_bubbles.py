"""Bubble rates: schedules simulated with published profiled times, beside the rates that were measured.

In: pipeline_bubbles.csv. Out: two groups: 1F1B, which is judged, and the other schedules. A rate is the share of the step in which a stage
does no work, (cost - m (T_F + T_B + T_W)) / cost. A send takes T_comm and runs beside the sender's next action; who receives waits for it.
All stages take the profiled times as they are printed.
"""

from __future__ import annotations

from autopar.errors import ScheduleError
from autopar.graph.schedules.known import build_order
from autopar.graph.schedules.timeline import Durations, simulate
from benchmarks.fidelity_table import ABSOLUTE, Aim, Group, Judged
from benchmarks.published import BubbleRate, Published

_KINDS = {"1F1B": "1f1b", "1F1B-I": "interleaved", "ZB-H1": "zero-bubble", "GPipe": "gpipe"}  # as the paper names them -> as `known` does
_DECIMALS = 5e-4  # right to 3 decimals


def judge_bubbles(tables: Published) -> tuple[Group, ...]:
    """1F1B, and the rest."""
    rows = [(row.schedule, judge_rate(row, tables)) for row in tables.bubbles]
    aim = Aim("Zero Bubble's 1F1B bubble rates from its profiled times, to 3 decimals", ABSOLUTE, worst=_DECIMALS)
    others = Aim("other schedules from the same times; nothing is asked", ABSOLUTE)
    return (
        Group("bubbles 1F1B", aim, tuple(r for kind, r in rows if kind == "1F1B")),
        Group("bubbles others", others, tuple(r for kind, r in rows if kind != "1F1B")),
    )


def judge_rate(row: BubbleRate, tables: Published) -> Judged:
    """One row."""
    try:
        return Judged(row.row_id, row.bubble_rate, predict_rate(row, chunks_of(row, tables)), "of the step")
    except (ValueError, ScheduleError) as error:
        return Judged(row.row_id, row.bubble_rate, None, "of the step", str(error))


def predict_rate(row: BubbleRate, chunks: int | None) -> float:
    """The simulated rate.

    Args:
        chunks: of a rank, where the schedule interleaves; None: not known.
    Raises:
        ValueError: something is not printed, or we have no such schedule.
        ScheduleError: the schedule cannot be with these numbers.
    """
    kind = _KINDS.get(row.schedule)
    if kind is None:
        raise ValueError(f"schedule {row.schedule} is not among ours ({', '.join(sorted(_KINDS))})")
    times = [(name, getattr(row, name)) for name in ("TF_ms", "TB_ms", "TW_ms", "Tcomm_ms")]
    missing = [name for name, value in (*times, ("p", row.p), ("m", row.m)) if value is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} not printed")
    forward, back, weight, send = (float(value) / 1e3 for _, value in times)
    if kind == "interleaved" and chunks is None:
        raise ValueError("how many chunks a rank runs is not printed, and no run of this model tells its layers")
    assert row.p is not None and row.m is not None
    each = chunks if kind == "interleaved" and chunks is not None else 1
    stages = row.p * each
    durations = Durations((forward / each,) * stages, ((back + weight) / each,) * stages, (weight / each,) * stages, (send,) * (stages - 1))
    cost = simulate(build_order(kind, row.p, row.m, each), durations).makespan_s
    return 1 - row.m * (forward + back + weight) / cost


def chunks_of(row: BubbleRate, tables: Published) -> int | None:
    """Chunks a rank of the interleaved rows: as many as there are layers, the embedding and the head counted as one each.

    Source: notes of its runs in throughput.csv (the first and the last stage have one layer less), which print the layers.
    """
    layers = next(
        (r.layers for r in tables.runs if r.source_id == row.source_id and r.model.split()[-1:] == [row.model] and r.layers), None
    )
    return (layers + 2) // row.p if layers is not None and row.p and (layers + 2) % row.p == 0 else None
