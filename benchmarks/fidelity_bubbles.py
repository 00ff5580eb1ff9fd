"""Bubble rates: schedules simulated with published profiled times, beside the rates that were measured.

In: pipeline_bubbles.csv. Out: three groups: 1F1B, which is judged, the other schedules, and rows without times. A rate is the share of the step in which a stage
does no work, (cost - m (T_F + T_B + T_W)) / cost; cost: the longest span of a rank from its first action to its last. A send takes T_comm and runs beside the sender's next action; who receives
waits for it. All stages take the profiled times as they are printed. ZB-1p and ZB-2p are searched (`zero_bubble`).

Where a table prints rates and no times (Table 8), two rates tell two times, in parts of T_F + T_B + T_W: 1F1B's tells T_comm, ZB-H1's then T_W; T_F = T_B is assumed, which
they do not depend on. The other schedules' rates of the same model, p and m are then predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autopar.errors import ScheduleError
from autopar.graph.schedules.known import build_order
from autopar.graph.schedules.order import Order
from autopar.graph.schedules.timeline import Durations
from benchmarks.fidelity_table import ABSOLUTE, Aim, Group, Judged
from benchmarks.published import BubbleRate, Published
from benchmarks.zero_bubble import Passes, build_grid, kept_share, longest_span

_KINDS = {"1F1B": "1f1b", "1F1B-I": "interleaved", "ZB-H1": "zero-bubble", "ZB-V": "zbv", "GPipe": "gpipe"}  # as the paper names them -> as `known` does
_AUTO = {"ZB-1p": 1, "ZB-2p": 2}  # searched; microbatches that fit, in ranks
_SOLVED_FROM = ("1F1B", "ZB-H1")
_HALVINGS = 40
_DECIMALS = 5e-4  # right to 3 decimals


def judge_bubbles(tables: Published) -> tuple[Group, ...]:
    """1F1B, the rest, and what has no times."""
    timed = [row for row in tables.bubbles if row.TF_ms is not None]
    rows = [(row.schedule, judge_rate(row, tables)) for row in timed]
    untimed = [judge_untimed(row, tables) for row in tables.bubbles if row.TF_ms is None]
    aim = Aim("Zero Bubble's 1F1B bubble rates from its profiled times, to 3 decimals", ABSOLUTE, worst=_DECIMALS)
    others = Aim("other schedules from the same times; nothing is asked", ABSOLUTE)
    solved = Aim("rows without times, from those that 1F1B's and ZB-H1's rates tell; nothing is asked", ABSOLUTE)
    return (
        Group("bubbles 1F1B", aim, tuple(r for kind, r in rows if kind == "1F1B")),
        Group("bubbles others", others, tuple(r for kind, r in rows if kind != "1F1B")),
        Group("bubbles untimed", solved, tuple(untimed)),
    )


def judge_rate(row: BubbleRate, tables: Published) -> Judged:
    """One row, from its own times."""
    try:
        return Judged(row.row_id, row.bubble_rate, predict_rate(row, tables), "of the step")
    except (ValueError, ScheduleError) as error:
        return Judged(row.row_id, row.bubble_rate, None, "of the step", str(error))


def judge_untimed(row: BubbleRate, tables: Published) -> Judged:
    """One row without times, from the times that two other rows tell."""
    if row.schedule in _SOLVED_FROM:
        return Judged(row.row_id, row.bubble_rate, None, "of the step", f"{row.schedule} is what the times are solved from")
    try:
        return judge_rate(solve_times(row, tables), tables)
    except ValueError as error:
        return Judged(row.row_id, row.bubble_rate, None, "of the step", str(error))


def solve_times(row: BubbleRate, tables: Published) -> BubbleRate:
    """The row with times in parts of T_F + T_B + T_W, as the rates of 1F1B and ZB-H1 of its model, stages and microbatches tell them.

    Raises:
        ValueError: one of the two is not printed.
    """
    alike = {r.schedule: r.bubble_rate for r in tables.bubbles if (r.source_id, r.locator, r.model, r.p, r.m) == (row.source_id, row.locator, row.model, row.p, row.m)}
    rates = [alike.get(name) for name in _SOLVED_FROM]
    if rates[0] is None or rates[1] is None:
        raise ValueError(f"neither times nor the rates of {' and '.join(_SOLVED_FROM)} are printed")

    def rate_of(schedule: str, weight: float, send: float) -> float:
        rest = (1 - weight) / 2
        return predict_rate(replace(row, schedule=schedule, TF_ms=rest, TB_ms=rest, TW_ms=weight, Tcomm_ms=send), tables)

    send = _root(lambda s: rate_of("1F1B", 0.3, s) - rates[0], 0.0, 0.5)
    weight = _root(lambda w: rates[1] - rate_of("ZB-H1", w, send), 0.0, 0.5)
    return replace(row, TF_ms=(1 - weight) / 2, TB_ms=(1 - weight) / 2, TW_ms=weight, Tcomm_ms=send)


def _root(grows: Callable[[float], float], low: float, high: float) -> float:
    """Where a growing function is 0."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if grows(middle) > 0 else (middle, high)
    return (low + high) / 2


def predict_rate(row: BubbleRate, tables: Published) -> float:
    """The simulated rate.

    Raises:
        ValueError: something is not printed, or we have no such schedule.
        ScheduleError: the schedule cannot be with these numbers.
    """
    kind = _KINDS.get(row.schedule)
    if kind is None and row.schedule not in _AUTO:
        raise ValueError(f"schedule {row.schedule} is not among ours ({', '.join(sorted([*_KINDS, *_AUTO]))})")
    times = [(name, getattr(row, name)) for name in ("TF_ms", "TB_ms", "TW_ms", "Tcomm_ms")]
    missing = [name for name, value in (*times, ("p", row.p), ("m", row.m)) if value is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} not printed")
    forward, back, weight, send = (float(value) / 1e3 for _, value in times)
    assert row.p is not None and row.m is not None
    if kind is None:
        passes = [Passes(forward, back, weight, _kept(row, tables))] * row.p
        return rate_of_order(build_order(build_grid(passes, row.m, _AUTO[row.schedule] * row.p, send), row.p, row.m), row, 1)
    chunks = 2 if kind == "zbv" else chunks_of(row, tables) if kind == "interleaved" else 1
    if chunks is None:
        raise ValueError("how many chunks a rank runs is not printed, and no run of this model tells its layers")
    return rate_of_order(build_order(kind, row.p, row.m, chunks), row, chunks)


def rate_of_order(order: Order, row: BubbleRate, chunks: int) -> float:
    """The rate of an order with the times of a row that prints them all."""
    forward, back, weight, send = (float(value or 0.0) / 1e3 for value in (row.TF_ms, row.TB_ms, row.TW_ms, row.Tcomm_ms))
    stages = order.num_stages
    durations = Durations((forward / chunks,) * stages, ((back + weight) / chunks,) * stages, (weight / chunks,) * stages, (send,) * (stages - 1))
    return 1 - order.num_microbatches * (forward + back + weight) / longest_span(order, durations)


def _kept(row: BubbleRate, tables: Published) -> float:
    """The share of a microbatch's activations that its weights' gradients wait for."""
    run = next((r for r in tables.runs if r.source_id == row.source_id and r.model.split()[-1:] == [row.model] and r.hidden and r.heads and r.seq_len), None)
    if run is None:
        raise ValueError("no run of this model tells its sizes, so what an input gradient gives back is not known")
    return kept_share(run.hidden, run.heads, run.seq_len)


def chunks_of(row: BubbleRate, tables: Published) -> int | None:
    """Chunks a rank of the interleaved rows: as many as there are layers, the embedding and the head counted as one each.

    Source: notes of its runs in throughput.csv (the first and the last stage have one layer less), which print the layers.
    """
    layers = next(
        (r.layers for r in tables.runs if r.source_id == row.source_id and r.model.split()[-1:] == [row.model] and r.layers), None
    )
    return (layers + 2) // row.p if layers is not None and row.p and (layers + 2) % row.p == 0 else None
