"""Zero Bubble's automatic schedules ZB-1p and ZB-2p as grids, found as the paper finds them; and what a step takes that nothing ends together.

In: how long each rank's passes take, microbatches, how many microbatches' activations fit. Out: the text of a grid (`graph.schedules.schedule.parse_csv`).

Source: the heuristic of Qi et al. 2024, section 3.1. Before its first backward a rank runs as many forwards as memory and the time until the first gradient allow. From then on
ranks alternate one forward and one input gradient. A weight gradient goes where a gap is longer than it; into a shorter gap where that gap would make this rank the one
with the most bubbles; and wherever memory is full. A rank stays one forward ahead of the next one; where it is further ahead it may leave one out. What is left of weight gradients
stands at the end. Three yes-or-no knobs, all eight tried, the shortest span taken: `_Knobs`. The integer program that the paper may run afterwards is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf

from autopar.graph.schedules.known import build_order
from autopar.graph.schedules.order import Order
from autopar.graph.schedules.timeline import Durations, action_times

_SLACK = 1e-9  # of a microbatch's activations


@dataclass(frozen=True, slots=True)
class Passes:
    """Of one microbatch on one rank: seconds, and what its input gradient leaves held for the weights' (a share of its activations)."""

    forward_s: float
    input_s: float
    weight_s: float
    kept: float


def kept_share(hidden: int, heads: int, seq: int) -> float:
    """Of a GPT layer's activations the share that waits for its weights' gradients.

    Source: Qi et al. 2024, Table 1: activations (34 + 5 a s / h) s b h, of which 32 s b h are for W.
    """
    return 32 / (34 + 5 * heads * seq / hidden)


def build_grid(ranks: Sequence[Passes], num_microbatches: int, limit: float, send_s: float = 0.0) -> str:
    """The grid of the shortest span: a row a rank; `I` is the input gradient, `W` the weights'.

    Args:
        limit: microbatches whose activations a rank may hold, 1 at least.
        send_s: until another rank has what a pass gives it.
    """
    each = ([p.forward_s for p in ranks], [p.input_s + p.weight_s for p in ranks], [p.weight_s for p in ranks])
    times = Durations(*map(tuple, each), (send_s,) * (len(ranks) - 1))
    found = [_Search(ranks, num_microbatches, limit, send_s, _Knobs(*knobs)).run() for knobs in product((True, False), repeat=3)]
    return min(found, key=lambda grid: longest_span(build_order(grid, len(ranks), num_microbatches), times))


def longest_span(order: Order, times: Durations) -> float:
    """Seconds from a rank's first action to its last one's end, of the rank with the most: a step where no rank waits for others to end it."""
    return max(row[-1][1] - row[0][0] for row in action_times(order, times))


@dataclass(frozen=True, slots=True)
class _Knobs:
    """What is tried both ways.

    Args:
        late_first: a rank's last forward before its first backward may delay that.
        leave_out: a rank two forwards ahead leaves one out where that makes no new longest bubble.
        fill_short: a weight gradient also goes into a short gap of a rank that has fewer bubbles than others.
    """

    late_first: bool
    leave_out: bool
    fill_short: bool


@dataclass(slots=True)
class _Rank:
    """How far a rank is: when each forward and input gradient ended, weight gradients done, when it is free, what it holds, its bubbles, its cells."""

    forwards: list[float] = field(default_factory=list)
    inputs: list[float] = field(default_factory=list)
    weights: int = 0
    free_s: float = 0.0
    held: float = 0.0
    idle_s: float = 0.0
    cells: list[str] = field(default_factory=list)


class _Search:
    """One run of the heuristic."""

    def __init__(self, passes: Sequence[Passes], count: int, limit: float, send_s: float, knobs: _Knobs) -> None:
        self.passes, self.count, self.limit, self.send_s, self.knobs = passes, count, limit, send_s, knobs
        self.ranks = [_Rank() for _ in passes]

    def run(self) -> str:
        """The grid."""
        self._warm_up()
        last = len(self.ranks) - 1
        for m in range(1, self.count):
            for r in self._forwards_now():
                self._make_room(r)
                self._fill(r, self._forward_comes(r))
                self._forward(r)
            for r in range(last, -1, -1):
                if r == 0 and len(self.ranks[0].forwards) == self.count:  # nobody waits for its input gradients
                    self._weights(0, m)
                self._fill(r, self._gradient_comes(r))
                self._input(r)
        for r in range(last + 1):
            self._weights(r, self.count)
        return "\n".join(",".join(rank.cells) for rank in self.ranks)

    # phases

    def _warm_up(self) -> None:
        """Forwards until the first gradient is there, and the first input gradients."""
        for r in range(len(self.ranks)):
            self._forward(r)
        more, comes = [0] * len(self.ranks), -inf
        for r in range(len(self.ranks) - 1, -1, -1):
            rank, own = self.ranks[r], self.passes[r]
            ends = rank.free_s
            while rank.held + more[r] + 1 <= self.limit + _SLACK and 1 + more[r] < self.count:
                if (ends if self.knobs.late_first else ends + own.forward_s) >= comes + _SLACK * own.forward_s:
                    break
                ends, more[r] = ends + own.forward_s, more[r] + 1
            comes = max(ends, comes) + own.input_s + self.send_s
        for r in range(1, len(more)):
            all_run = more[r] >= self.count - 1 and more[r - 1] >= self.count - 1
            more[r] = more[r] if all_run else min(more[r], max(0, more[r - 1] - 1))
        for r, num in enumerate(more):
            for _ in range(num):
                self._forward(r)
        for r in range(len(self.ranks) - 1, -1, -1):
            self._input(r)

    def _forwards_now(self) -> list[int]:
        """The ranks that run a forward in this round; where one leaves it out those before it do, too."""
        now = [r for r, rank in enumerate(self.ranks) if len(rank.forwards) < self.count]
        out = max((r for r in now if self.knobs.leave_out and self._leaves_out(r)), default=-1)
        return [r for r in now if r > out]

    def _leaves_out(self, r: int) -> bool:
        """Whether a rank that is two forwards ahead has time enough to run this one later."""
        rank, own = self.ranks[r], self.passes[r]
        if r + 1 == len(self.ranks) or len(rank.forwards) < len(self.ranks[r + 1].forwards) + 2:
            return False
        after = self.passes[r + 1]
        gradient_s = self.ranks[r + 1].free_s + after.forward_s + after.input_s + self.send_s
        if rank.free_s >= gradient_s:
            return True
        room = min(self._weights_for_room(r), len(rank.inputs) - rank.weights)
        if rank.free_s + own.forward_s + room * own.weight_s <= gradient_s:
            return False
        return gradient_s - rank.free_s <= self._most_idle_s() - rank.idle_s

    def _fill(self, r: int, comes_s: float) -> None:
        """Weight gradients until what a rank waits for is there."""
        rank, own = self.ranks[r], self.passes[r]
        while rank.weights < len(rank.inputs) and rank.free_s + own.weight_s <= comes_s:
            self._weight(r)
        gap_s = comes_s - rank.free_s
        if rank.weights < len(rank.inputs) and gap_s > 0 and (self.knobs.fill_short or gap_s > self._most_idle_s() - rank.idle_s):
            self._weight(r)

    def _make_room(self, r: int) -> None:
        for _ in range(self._weights_for_room(r)):
            self._weight(r)

    def _weights_for_room(self, r: int) -> int:
        """Weight gradients until one microbatch more fits."""
        over, num = self.ranks[r].held + 1 - self.limit, 0
        while over - num * self.passes[r].kept > _SLACK:
            num += 1
        return num

    # passes

    def _forward_comes(self, r: int) -> float:
        return self.ranks[r - 1].forwards[len(self.ranks[r].forwards)] + self.send_s if r else -inf

    def _gradient_comes(self, r: int) -> float:
        return self.ranks[r + 1].inputs[len(self.ranks[r].inputs)] + self.send_s if r + 1 < len(self.ranks) else -inf

    def _forward(self, r: int) -> None:
        rank = self.ranks[r]
        self._place(rank, self._forward_comes(r), self.passes[r].forward_s, f"{r}F{len(rank.forwards)}", 1.0)
        rank.forwards.append(rank.free_s)

    def _input(self, r: int) -> None:
        rank = self.ranks[r]
        self._place(rank, self._gradient_comes(r), self.passes[r].input_s, f"{r}I{len(rank.inputs)}", self.passes[r].kept - 1)
        rank.inputs.append(rank.free_s)

    def _weight(self, r: int) -> None:
        rank = self.ranks[r]
        self._place(rank, -inf, self.passes[r].weight_s, f"{r}W{rank.weights}", -self.passes[r].kept)
        rank.weights += 1

    def _weights(self, r: int, upto: int) -> None:
        while self.ranks[r].weights < upto:
            self._weight(r)

    @staticmethod
    def _place(rank: _Rank, comes_s: float, seconds: float, cell: str, holds: float) -> None:
        start = max(rank.free_s, comes_s)
        if rank.cells:
            rank.idle_s += start - rank.free_s
        rank.free_s, rank.held = start + seconds, rank.held + holds
        rank.cells.append(cell)

    def _most_idle_s(self) -> float:
        return max(rank.idle_s for rank in self.ranks)
