"""Zero Bubble's automatic schedule ZB-2p as a grid, actions chosen one by one within a limit of memory; and what a step takes that nothing ends together.

In: ranks, microbatches, how long the passes take, how many microbatches' activations fit. Out: the text of a grid (`graph.schedules.schedule.parse_csv`).
The paper searches such an order with a heuristic of a few knobs, and an integer program (Qi et al. 2024, section 3.1). This is a list schedule after the
same rules, its one knob tried at four values: whoever is free takes a backward that is there, else a forward if memory has room, else a weight
gradient where it would wait for longer than a share of that. It has fewer bubbles than ZB-H1 and than ZB-H2 (both by hand); the paper's
program may leave fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from autopar.graph.schedules.known import build_order
from autopar.graph.schedules.order import Order
from autopar.graph.schedules.timeline import Durations, action_times

_WAITS = (0.0, 0.3, 0.6, 1.0)  # a weight gradient is run where the wait would be longer than this share of it


@dataclass(frozen=True, slots=True)
class Passes:
    """Of one microbatch on one rank: seconds, and what its input gradient leaves held for the weights' (a share of its activations).

    Args:
        send_s: until another rank has what a pass gives it.
    """

    forward_s: float
    input_s: float
    weight_s: float
    send_s: float
    kept: float


def known_passes(hidden: int, heads: int, seq: int) -> Passes:
    """The passes of a GPT's layer in units of its tokens' work, sends left out.

    Source: Qi et al. 2024, Table 1: F is b s h (24 h + 4 s) FLOPs, B b s h (24 h + 8 s), W b s h (24 h); activations (34 + 5 a s / h) s b h, of which 32 s b h
    are for W.
    """
    return Passes(24 * hidden + 4 * seq, 24 * hidden + 8 * seq, 24 * hidden, 0.0, 32 / (34 + 5 * heads * seq / hidden))


@dataclass(slots=True)
class _Rank:
    """How far a rank is: passes done by kind, when it is free, what it holds, its cells."""

    forwards: int = 0
    inputs: int = 0
    weights: int = 0
    free_s: float = 0.0
    held: float = 0.0
    cells: list[str] = field(default_factory=list)


def build_grid(num_ranks: int, num_microbatches: int, passes: Passes, limit: float) -> str:
    """The grid of the shortest span: a row a rank; `I` is the input gradient, `W` the weights'.

    Args:
        limit: microbatches whose activations a rank may hold, 1 at least.
    """
    each = (passes.forward_s, passes.input_s + passes.weight_s, passes.weight_s)
    times = Durations(*((seconds,) * num_ranks for seconds in each), (passes.send_s,) * (num_ranks - 1))
    grids = [_list_passes(num_ranks, num_microbatches, passes, limit, wait * passes.weight_s) for wait in _WAITS]
    return min(grids, key=lambda grid: longest_span(build_order(grid, num_ranks, num_microbatches), times))


def longest_span(order: Order, times: Durations) -> float:
    """Seconds from a rank's first action to its last one's end, of the rank with the most: a step where no rank waits for others to end it."""
    return max(row[-1][1] - row[0][0] for row in action_times(order, times))


def _list_passes(num_ranks: int, num_microbatches: int, passes: Passes, limit: float, wait_s: float) -> str:
    ranks = [_Rank() for _ in range(num_ranks)]
    came = [[0.0] * num_microbatches if r == 0 else [inf] * num_microbatches for r in range(num_ranks)]  # when a forward's input is there
    back = [[inf] * num_microbatches for _ in range(num_ranks)]  # when an input gradient's is
    left = 3 * num_ranks * num_microbatches
    while left:
        starts = [_next(rank, came[r], back[r], num_microbatches, limit, wait_s) for r, rank in enumerate(ranks)]
        r = min(range(num_ranks), key=lambda k: starts[k][0])
        start, kind = starts[r]
        rank, left = ranks[r], left - 1
        if kind == "F":
            m, rank.forwards, rank.held = rank.forwards, rank.forwards + 1, rank.held + 1
            rank.free_s = start + passes.forward_s
            if r + 1 < num_ranks:
                came[r + 1][m] = rank.free_s + passes.send_s
            else:
                back[r][m] = rank.free_s
        elif kind == "I":
            m, rank.inputs, rank.held = rank.inputs, rank.inputs + 1, rank.held - (1 - passes.kept)
            rank.free_s = start + passes.input_s
            if r:
                back[r - 1][m] = rank.free_s + passes.send_s
        else:
            m, rank.weights, rank.held = rank.weights, rank.weights + 1, rank.held - passes.kept
            rank.free_s = start + passes.weight_s
        rank.cells.append(f"{r}{kind}{m}")
    return "\n".join(",".join(rank.cells) for rank in ranks)


def _next(rank: _Rank, came: list[float], back: list[float], count: int, limit: float, wait_s: float) -> tuple[float, str]:
    """When a rank starts its next pass, and which; infinite: it waits for somebody who has not started."""
    forward = came[rank.forwards] if rank.forwards < count and rank.held + 1 <= limit + 1e-9 else inf
    inputs = back[rank.inputs] if rank.inputs < count else inf
    if inputs <= rank.free_s:
        return rank.free_s, "I"
    if forward <= rank.free_s:
        return rank.free_s, "F"
    if rank.weights < rank.inputs and min(inputs, forward) - rank.free_s >= wait_s:
        return rank.free_s, "W"
    return (inputs, "I") if inputs <= forward else (forward, "F")
