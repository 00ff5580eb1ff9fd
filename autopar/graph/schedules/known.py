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
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ...constraints import SCHEDULES
from ...errors import ScheduleError
from .order import Order, schedule_of
from .schedule import Schedule

KINDS = (*SCHEDULES, "forward-only")


def why_impossible(kind: str, num_ranks: int, num_microbatches: int, chunks: int = 1) -> str | None:
    """Why there is no such schedule, and what fits; None where there is one."""
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
        kind: one of `KINDS`.
        chunks: stages on each rank; more than 1 only for `interleaved` and `forward-only`.

    Raises:
        ScheduleError: there is none (`why_impossible`).
    """
    why = why_impossible(kind, num_ranks, num_microbatches, chunks)
    if why is not None:
        raise ScheduleError(why)
    size = num_ranks * chunks * num_microbatches
    rows = []
    for rank in range(num_ranks):
        forward = _looped(rank, num_ranks, num_microbatches, range(chunks), 0)
        backward = _looped(rank, num_ranks, num_microbatches, range(chunks - 1, -1, -1), size)
        if kind == "forward-only":
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
