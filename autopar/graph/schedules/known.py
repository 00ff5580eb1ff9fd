"""The known schedules: GPipe, 1F1B, interleaved 1F1B, zero bubble, and the forward alone.

In: a kind, how many ranks, microbatches and chunks a rank. Out: an `Order`, or the `Schedule` with its actions. Stage s lives on rank
s mod R, so with one chunk a rank the stages are the ranks; but of ZB-V there and back (`chunk_ranks`). Each is the order its authors give;
whether it suits the durations at hand is a question for `timeline`.

* `gpipe`: all forwards, then all backwards, both by ascending microbatch (GPipe, Huang et al. 2019).
* `1f1b`: rank r runs R - r - 1 forwards ahead, then one forward and one backward in turn (Narayanan et al. 2021, section 2.2.1).
* `interleaved`: the same over v chunks a rank, R microbatches of one chunk at a time (ibid., section 2.2.2).
* `zero-bubble`: ZB-H1 (Qi et al. 2024, section 2.3): 1F1B with the backward split; rank r's weight gradients run r microbatches late, so
  every rank holds as much as the first one, and the last ranks do weights while others still pass gradients back.
  Its bubble is the published one where the weight gradient takes no longer than the forward and the input gradient each.
* `zbv`: ZB-V (ibid., section 6): two chunks a rank, placed there and back (rank r has stages r and 2R - 1 - r), so the first rank has the loss, too, and
  starts backwards first. Nobody waits but to begin with (from 2R - 1 microbatches on) where forward, input gradient and weight gradient of all chunks take equally long, and
  every rank holds as much as the first one of 1F1B. The order is the one of the authors, as torch.distributed.pipelining has it (`ScheduleZBVZeroBubble`).
* `forward-only`: no backward; for inference.

A kind may also be a grid: the text of a CSV (`schedule.parse_csv`) that somebody wrote; with sends and receives or without.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ...constraints import FORWARD_ONLY, IN_CHUNKS, SCHEDULES
from ...errors import ScheduleError
from .check import check_schedule, split_backwards, without_sends
from .order import Order, order_of, schedule_of
from .schedule import Schedule, parse_csv

KINDS = (*SCHEDULES, FORWARD_ONLY)
ZBV = "zbv"
_FORWARD, _INPUT, _WEIGHT = range(3)  # the turns of codes (`order`)


def is_grid(kind: str) -> bool:
    """True where a kind is no name but a grid."""
    return kind not in KINDS and re.search(r"\dF\d", kind) is not None


def kind_name(kind: str) -> str:
    """A kind for people: its name, `own` where it is a grid."""
    return "own" if is_grid(kind) else kind


def chunk_ranks(kind: str, num_ranks: int, chunks: int) -> tuple[int, ...]:
    """Which rank runs each chunk of the model, in order: a fact of the schedule, said here alone. They go round the ranks, or there and back."""
    there = tuple(range(num_ranks))
    return (*there, *reversed(there)) if goes_back(kind) else there * chunks


def goes_back(kind: str) -> bool:
    """True where the second half of the model is on the ranks in reverse."""
    return kind == ZBV or is_grid(kind) and _is_v(_read_grid(kind).rank_of)


def _is_v(rank_of: tuple[int, ...]) -> bool:
    return len(rank_of) > 2 and rank_of == (*range(len(rank_of) // 2), *reversed(range(len(rank_of) // 2)))


def splits_backward(kind: str) -> bool:
    """True where the backward for the weights is an action of its own."""
    return kind in ("zero-bubble", ZBV) or is_grid(kind) and re.search(r"\dW\d", kind) is not None


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
    for stage, rank in enumerate(schedule.rank_of if not _is_v(schedule.rank_of) else ()):
        if rank != stage % schedule.num_ranks or schedule.num_stages % schedule.num_ranks:
            raise ScheduleError(
                f"{schedule.name}: stage {stage} of {schedule.num_stages} is on rank {rank} of {schedule.num_ranks}; expected as many stages on each, "
                f"stage s on rank s modulo {schedule.num_ranks} (or two on each, there and back)"
            )
    return split_backwards(without_sends(schedule)) if splits_backward(text) else without_sends(schedule)


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
        return f"{kind}: has one chunk a rank, found {chunks}; take interleaved, or vpp=1"
    if kind not in IN_CHUNKS:
        return None
    if num_ranks < 2:
        return f"{kind}: needs at least 2 ranks, found 1; take 1f1b"
    if kind == ZBV:
        return None if chunks == 2 else f"zbv: has two chunks a rank, found {chunks}; take vpp=2, or {'interleaved' if chunks > 2 else 'zero-bubble'}"
    if chunks < 2:
        return f"interleaved: needs at least 2 chunks a rank, found {chunks}; take 1f1b, or vpp=2"
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
        chunks: stages on each rank; more than 1 only for `interleaved`, `zbv`, `forward-only` and grids.

    Raises:
        ScheduleError: there is none (`why_impossible`).
    """
    why = why_impossible(kind, num_ranks, num_microbatches, chunks)
    if why is not None:
        raise ScheduleError(why)
    if is_grid(kind):
        return replace(order_of(_read_grid(kind)), name="own")
    size = num_ranks * chunks * num_microbatches
    ranks, split = chunk_ranks(kind, num_ranks, chunks), frozenset(range(size, 2 * size)) if splits_backward(kind) else frozenset()
    if kind == ZBV:
        return Order(kind, num_microbatches, ranks, tuple(_zbv(rank, num_ranks, num_microbatches) for rank in range(num_ranks)), split)
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
    return Order(kind, num_microbatches, ranks, tuple(rows), split)


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


def _zbv(rank: int, num_ranks: int, num_microbatches: int) -> tuple[int, ...]:
    """A rank's row of ZB-V: that of 2R - 1 microbatches at least, without those that are too many.

    Source: Qi et al. 2024, section 6, in the order of torch's `ScheduleZBVZeroBubble`.
    """
    size = 2 * num_ranks * num_microbatches
    stages = (rank, 2 * num_ranks - 1 - rank)
    most = max(2 * num_ranks - 1, num_microbatches)
    row: list[int] = []
    done: dict[tuple[int, int], int] = {}

    def run(turn: int, *chunks: int) -> None:
        for chunk in chunks:
            microbatch = done[turn, chunk] = done.get((turn, chunk), -1) + 1
            if microbatch < num_microbatches:
                row.append(turn * size + stages[chunk] * num_microbatches + microbatch)

    def back(chunk: int) -> None:
        run(_INPUT, chunk)
        run(_WEIGHT, chunk)

    run(_FORWARD, *(0,) * (2 * (num_ranks - rank) - 1), *(1, 0) * rank)
    for _ in range(num_ranks - rank):
        run(_FORWARD, 1)
        back(1)
    while done[_FORWARD, 1] < done[_FORWARD, 0] or done[_FORWARD, 0] < most - 1:
        run(_FORWARD, *(0,) * (done[_FORWARD, 0] < most - 1))
        back(0)
        run(_FORWARD, 1)
        back(1)
    run(_INPUT, *(0, 1) * rank)
    for _ in range(num_ranks - rank):
        back(0)
    run(_WEIGHT, *(1,) * (most - 1 - done.get((_WEIGHT, 1), -1)))
    run(_WEIGHT, *(0,) * (most - 1 - done.get((_WEIGHT, 0), -1)))
    return tuple(row)


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
