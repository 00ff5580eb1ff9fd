"""The known schedules: GPipe, 1F1B, interleaved 1F1B, zero bubble, and the forward alone.

In: a kind, how many ranks, microbatches and chunks a rank. Out: an `Order`, or the `Schedule` with its actions. Stage s lives on rank
s mod R, so with one chunk a rank the stages are the ranks. Each is the order its authors give; whether it suits the durations at hand is a
question for `timeline`.

* `gpipe`: all forwards, then all backwards, both by ascending microbatch (GPipe, Huang et al. 2019).
* `1f1b`: rank r runs R - r - 1 forwards ahead, then one forward and one backward in turn (Narayanan et al. 2021, section 2.2.1).
* `interleaved`: the same over v chunks a rank, R microbatches of one chunk at a time (ibid., section 2.2.2).
* `zero-bubble`: ZB-H1 (Qi et al. 2024, section 2.3): 1F1B with the backward split; rank r's weight gradients run r microbatches late, so
  every rank holds as much as the first one, and the last ranks do weights while others still pass gradients back.
  Its bubble is the published one where the weight gradient takes no longer than the forward and the input gradient each.
* `forward-only`: no backward; for inference.

A kind may also be a grid: the text of a CSV (`schedule.parse_csv`) that somebody wrote; with sends and receives or without.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ...constraints import FORWARD_ONLY, SCHEDULES
from ...errors import ScheduleError
from .check import check_schedule, without_sends
from .order import Order, order_of, schedule_of
from .schedule import Schedule, parse_csv

KINDS = (*SCHEDULES, FORWARD_ONLY)


def is_grid(kind: str) -> bool:
    """True where a kind is no name but a grid."""
    return kind not in KINDS and re.search(r"\dF\d", kind) is not None


def kind_name(kind: str) -> str:
    """A kind for people: its name, `own` where it is a grid."""
    return "own" if is_grid(kind) else kind


def splits_backward(kind: str) -> bool:
    """True where the backward for the weights is an action of its own."""
    return kind == "zero-bubble" or is_grid(kind) and re.search(r"\dW\d", kind) is not None


def runs_backward(kind: str) -> bool:
    """False where it is for inference: all actions are forwards."""
    return re.search(r"\d[BI]\d", kind) is not None if is_grid(kind) else kind != FORWARD_ONLY


def grid_sizes(kind: str) -> tuple[int, int, int]:
    """(ranks, microbatches, chunks a rank) of a grid.

    Raises:
        ScheduleError: it cannot run.
    """
    schedule = _read_grid(kind)
    return schedule.num_ranks, schedule.num_microbatches, schedule.num_stages // schedule.num_ranks


@lru_cache(maxsize=8)
def _read_grid(text: str) -> Schedule:
    schedule = parse_csv(text, "the schedule of your own")
    check_schedule(schedule)
    for stage, rank in enumerate(schedule.rank_of):
        if rank != stage % schedule.num_ranks or schedule.num_stages % schedule.num_ranks:
            raise ScheduleError(
                f"{schedule.name}: stage {stage} of {schedule.num_stages} is on rank {rank} of {schedule.num_ranks}; expected as many stages on each, "
                f"stage s on rank s modulo {schedule.num_ranks}"
            )
    return without_sends(schedule)


def why_impossible(kind: str, num_ranks: int, num_microbatches: int, chunks: int = 1) -> str | None:
    """Why there is no such schedule, and what fits; None where there is one."""
    if is_grid(kind):
        try:
            sizes = grid_sizes(kind)
        except ScheduleError as error:
            return str(error)
        told = f"the schedule of your own has {sizes[0]} ranks, {sizes[1]} microbatches, {sizes[2]} chunks a rank"
        return None if sizes == (num_ranks, num_microbatches, chunks) else f"{told}, not {num_ranks}, {num_microbatches}, {chunks}"
    if kind not in KINDS:
        close = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.6)
        return f"unknown schedule {kind!r}; " + (f"did you mean {close[0]}?" if close else f"known are {', '.join(KINDS)}")
    for count, what in ((num_ranks, "ranks"), (num_microbatches, "microbatches"), (chunks, "chunks a rank")):
        if count < 1:
            return f"{kind}: expected at least 1 of {what}, found {count}"
    if kind in ("gpipe", "1f1b", "zero-bubble") and chunks > 1:
        return f"{kind}: has one chunk a rank, found {chunks}; take interleaved, or chunks=1"
    if kind != "interleaved":
        return None
    if num_ranks < 2:
        return "interleaved: needs at least 2 ranks, found 1; take 1f1b"
    if chunks < 2:
        return f"interleaved: needs at least 2 chunks a rank, found {chunks}; take 1f1b, or chunks=2"
    if num_microbatches % num_ranks:
        low = num_microbatches // num_ranks * num_ranks
        fits = f"{low} or {low + num_ranks}" if low else str(num_ranks)
        return (
            f"interleaved: needs a multiple of {num_ranks} microbatches (it runs one microbatch a rank, then the next chunk), "
            f"found {num_microbatches}; {fits} fit{'' if low else 's'}, or take 1f1b"
        )
    return None


def build_order(kind: str, num_ranks: int, num_microbatches: int, chunks: int = 1) -> Order:
    """A schedule as rows of integers.

    Args:
        kind: one of `KINDS`, or a grid.
        chunks: stages on each rank; more than 1 only for `interleaved`, `forward-only` and grids.

    Raises:
        ScheduleError: there is none (`why_impossible`).
    """
    why = why_impossible(kind, num_ranks, num_microbatches, chunks)
    if why is not None:
        raise ScheduleError(why)
    if is_grid(kind):
        return replace(order_of(_read_grid(kind)), name="own")
    size = num_ranks * chunks * num_microbatches
    rows = []
    for rank in range(num_ranks):
        forward = _looped(rank, num_ranks, num_microbatches, range(chunks), 0)
        backward = _looped(rank, num_ranks, num_microbatches, range(chunks - 1, -1, -1), size)
        if kind == FORWARD_ONLY:
            rows.append(tuple(forward))
        elif kind == "zero-bubble":
            rows.append(tuple(_weave(forward, backward, num_ranks - 1 - rank, [code + size for code in backward], rank)))
        else:
            ahead = len(forward) if kind == "gpipe" else num_ranks - 1 - rank
            if kind == "interleaved":
                ahead = 2 * ahead + (chunks - 1) * num_ranks
            rows.append(tuple(_weave(forward, backward, ahead)))
    split = frozenset(range(size, 2 * size)) if kind == "zero-bubble" else frozenset()
    return Order(kind, num_microbatches, tuple(range(num_ranks)) * chunks, tuple(rows), split)


def build_schedule(kind: str, num_ranks: int, num_microbatches: int, chunks: int = 1) -> Schedule:
    """A schedule with its actions; arguments and errors as of `build_order`."""
    return schedule_of(build_order(kind, num_ranks, num_microbatches, chunks))


def _looped(rank: int, num_ranks: int, num_microbatches: int, chunks: Sequence[int], base: int) -> list[int]:
    """A rank's forwards (or backwards) over its chunks: a round of R microbatches of one chunk, then of the next."""
    first = [base + (chunk * num_ranks + rank) * num_microbatches for chunk in chunks]
    if len(first) == 1:
        return list(range(first[0], first[0] + num_microbatches))
    starts = range(0, num_microbatches, num_ranks)
    return [code for m in starts for f in first for code in range(f + m, f + min(m + num_ranks, num_microbatches))]


def _weave(forward: list[int], backward: list[int], ahead: int, weights: Sequence[int] = (), late: int = 0) -> list[int]:
    """`ahead` forwards, then forward and backward in turn, then the backwards left; each weight gradient `late` backwards after its own."""
    ahead = min(ahead, len(forward))
    row = forward[:ahead]
    turns = len(forward) - ahead
    for j, code in enumerate(backward):
        if j < turns:
            row.append(forward[ahead + j])
        row.append(code)
        if weights and j >= late:
            row.append(weights[j - late])
    row.extend(weights[max(0, len(weights) - late) :])
    return row
