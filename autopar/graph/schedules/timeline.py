"""Time of a schedule: what it takes, and what no schedule can undercut.

In: an `Order` and the `Durations` of its stages. Out: a `Timeline`: the makespan, and how long each rank works and waits. Each rank does
its list in order; an action starts when the rank is free and its input has arrived. Durations are the same for all microbatches. Sends
between stages of one rank take nothing. Links have no queue: a send takes its seconds whatever else is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ScheduleError
from .check import check_schedule
from .order import Order, schedule_of


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of each stage for one microbatch.

    Args:
        forward_s, backward_s: per stage; the backward is the full one.
        weight_s: per stage, the part of backward_s that is for the weights; only schedules that split the backward need it.
        send_s: per boundary (stage s to s + 1), what an activation takes to the next stage's rank; empty where sends cost nothing.
        send_back_s: per boundary, what a gradient takes from stage s + 1 to s; `send_s` where empty.
        blocking: the sender waits until its send is over. Where False a send runs beside the sender's next action, and only the receiver
            sees its time.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...] = ()
    send_s: tuple[float, ...] = ()
    send_back_s: tuple[float, ...] = ()
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """When a schedule's ranks work.

    Args:
        makespan_s: from the first start to the last end.
        busy_s: rank -> seconds in its actions (and in sends that it waits for).
        end_s: rank -> the end of its last action.
    """

    makespan_s: float
    busy_s: tuple[float, ...]
    end_s: tuple[float, ...]

    @property
    def idle_s(self) -> tuple[float, ...]:
        """Rank -> its bubble: what it waits between the first start and the last end of all."""
        return tuple(self.makespan_s - busy for busy in self.busy_s)

    @property
    def bubble(self) -> float:
        """The share of all ranks' time in which they wait."""
        return 1 - sum(self.busy_s) / (len(self.busy_s) * self.makespan_s) if self.makespan_s else 0.0


def simulate(order: Order, durations: Durations) -> Timeline:
    """The timeline of a schedule.

    Raises:
        ScheduleError: the durations do not fit its stages, or it cannot run (as `check` says it).
    """
    take, lag, ends = _run(order, durations)
    busy = [sum(map(take.__getitem__, row)) for row in order.rows]
    if durations.blocking:
        busy = [b + sum(map(lag.__getitem__, row)) for b, row in zip(busy, order.rows)]
        last = tuple(ends[row[-1]] + lag[row[-1]] for row in order.rows)
    else:
        last = tuple(ends[row[-1]] for row in order.rows)
    return Timeline(max(last), tuple(busy), last)


def action_times(order: Order, durations: Durations) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Rank -> (start, end) of each action of its list; arguments and errors as of `simulate`."""
    take, _, ends = _run(order, durations)
    return tuple(tuple((ends[code] - take[code], ends[code]) for code in row) for row in order.rows)


def critical_path(order: Order, durations: Durations, rank: int) -> tuple[tuple[int, int], ...]:
    """(forwards, backwards) of each stage on the longest chain of actions up to the last one of a rank: whatever stages take, that action ends no earlier
    than these do one after another. Not for split backwards, nor where sends take time."""
    take, _, ends = _run(order, durations)
    needs, size = _needs(order), order.num_stages * order.num_microbatches
    before = {code: earlier for row in order.rows for earlier, code in zip((-1, *row), row)}
    counts = [[0, 0] for _ in range(order.num_stages)]
    code = order.rows[rank][-1]
    while code >= 0:
        counts[code % size // order.num_microbatches][code // size] += 1
        code = max(before[code], needs[code], key=lambda c: ends[c] if c >= 0 else -1.0)
    return tuple((f, b) for f, b in counts)


def _run(order: Order, durations: Durations) -> tuple[list[float], list[float], list[float]]:
    """Over codes: what each takes, how long its output is under way, when it ends."""
    take, lag = _tables(order, durations)
    needs = _needs(order)
    count = len(order.rows)
    ends = [-1.0] * len(take)
    waits = [-1] * len(take)  # code -> the rank that stopped for it: each output has one reader on another rank
    places, clocks = [0] * count, [0.0] * count
    blocking = durations.blocking
    ready = list(range(count))
    while ready:
        rank = ready.pop()
        row, place, now = order.rows[rank], places[rank], clocks[rank]
        for place in range(place, len(row)):
            code = row[place]
            need = needs[code]
            if need >= 0:
                end = ends[need]
                if end < 0:
                    waits[need] = rank
                    break
                arrival = end + lag[need]
                if arrival > now:
                    now = arrival
            now += take[code]
            ends[code] = now
            if blocking:
                now += lag[code]
            waiting = waits[code]
            if waiting >= 0:
                ready.append(waiting)
        else:
            place = len(row)
        places[rank], clocks[rank] = place, now
    if any(place < len(row) for place, row in zip(places, order.rows)):
        check_schedule(schedule_of(order))
        raise ScheduleError(f"{order.name}: the ranks wait for each other")
    return take, lag, ends


def _needs(order: Order) -> list[int]:
    """Code -> the code whose output it waits for, -1 for none. What its own rank did before is not asked again: `check`."""
    count = order.num_microbatches
    size = order.num_stages * count
    forward = [-1] * count + list(range(size - count))
    backward = [*range(size + count, 2 * size), *range(size - count, size)]
    return forward + backward + [-1] * size


def _tables(order: Order, durations: Durations) -> tuple[list[float], list[float]]:
    """Code -> seconds that it takes, and seconds until the rank that reads its output has it."""
    stages, count = order.num_stages, order.num_microbatches
    weights = check_durations(order, durations)
    send, back = durations.send_s or (0.0,) * (stages - 1), durations.send_back_s or durations.send_s or (0.0,) * (stages - 1)
    crosses = [a != b for a, b in zip(order.rank_of, order.rank_of[1:])]
    forward_lag = [*(s * c for s, c in zip(send, crosses)), 0.0]
    backward_lag = [0.0, *(s * c for s, c in zip(back, crosses))]
    everything_split = len(order.split) == stages * count
    backward = [b - w for b, w in zip(durations.backward_s, weights)] if everything_split else durations.backward_s
    take = [d for part in (durations.forward_s, backward, weights) for d in part for _ in range(count)]
    lag = [d for part in (forward_lag, backward_lag, (0.0,) * stages) for d in part for _ in range(count)]
    if not everything_split:
        size = stages * count
        for code in order.split:
            take[code] -= weights[(code - size) // count]
    return take, lag


def check_durations(order: Order, durations: Durations) -> tuple[float, ...]:
    """The seconds of the weight gradients, after a look at all.

    Raises:
        ScheduleError: a length is wrong, seconds are negative, or the schedule splits the backward and nobody says how.
    """
    stages = order.num_stages
    lengths = (("forward_s", stages), ("backward_s", stages), ("weight_s", stages), ("send_s", stages - 1), ("send_back_s", stages - 1))
    for name, expected in lengths:
        given = getattr(durations, name)
        if len(given) != expected and (given or name in ("forward_s", "backward_s")):
            raise ScheduleError(f"{order.name}: {name}: expected {expected} numbers for {stages} stages, found {len(given)}")
        if any(not d >= 0 for d in given):
            raise ScheduleError(f"{order.name}: {name}: expected seconds of at least 0, found {min(given)}")
    for stage, (weight, backward) in enumerate(zip(durations.weight_s, durations.backward_s)):
        if weight > backward:
            raise ScheduleError(f"{order.name}: weight_s of stage {stage} is {weight}, more than its full backward of {backward}")
    if order.split and not durations.weight_s:
        raise ScheduleError(f"{order.name}: splits the backward, so it needs weight_s: the part of backward_s that is for the weights")
    return durations.weight_s or (0.0,) * stages


def least_makespan(rank_of: Sequence[int], num_microbatches: int, durations: Durations, split: bool = False) -> float:
    """Seconds that no schedule undercuts which runs every microbatch through every stage, forward and backward, within one step.

    With n = the lowest stage on a rank: nothing starts there before one microbatch has passed the stages below n, so the rank idles for
    head = sum_{i<n} (F_i + send_i). With full backwards its last action is a backward (every forward there has its own after it), of a
    stage at or above n, and after it that microbatch still has the stages below n to go back through: tail = sum_{i<n} (B_i + send_back_i).
    In between the rank does all its work, M * sum (F_s + B_s) over its stages, one at a time. Hence head + work + tail for every rank, and
    the largest is a bound. For equal stages it is what 1F1B and GPipe take, (M + S - 1) (F + B), and interleaving too.

    With split backwards the last action may be a weight gradient, which nobody waits for. Then there are two bounds on each rank: head +
    all its work; and head + M * sum (F_s + I_s) + sum_{i<n} (I_i + send_back_i) + W_0: its last input gradient, the way back from it, and
    the first stage's weights, which wait for that. And for every schedule: a microbatch alone takes sum (F_i + send_i) + sum (B_i +
    send_back_i), where of split backwards only the first stage's W counts, that of the others can run beside.

    Args:
        rank_of: stage -> rank.
        split: the schedule may split backwards; else weight_s is not read.
    """
    stages = len(rank_of)
    crosses = [a != b for a, b in zip(rank_of, rank_of[1:])]
    send = [s * c for s, c in zip(durations.send_s or (0.0,) * (stages - 1), crosses)]
    back = [s * c for s, c in zip(durations.send_back_s or durations.send_s or (0.0,) * (stages - 1), crosses)]
    weights = durations.weight_s if split and durations.weight_s else (0.0,) * stages
    inputs = [b - w for b, w in zip(durations.backward_s, weights)]
    best = sum(durations.forward_s) + sum(inputs) + weights[0] + sum(send) + sum(back)
    work = dict.fromkeys(rank_of, 0.0)
    own_weights = dict.fromkeys(rank_of, 0.0)
    for stage, rank in enumerate(rank_of):
        work[rank] += num_microbatches * (durations.forward_s[stage] + inputs[stage])
        own_weights[rank] += num_microbatches * weights[stage]
    head = tail = 0.0
    seen: set[int] = set()
    for stage, rank in enumerate(rank_of):
        if rank not in seen:
            seen.add(rank)
            best = max(best, head + work[rank] + max(own_weights[rank], tail + weights[0]))
        if stage < stages - 1:
            head += durations.forward_s[stage] + send[stage]
            tail += inputs[stage] + back[stage]
    return best
