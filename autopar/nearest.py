"""The nearest change that fits, where no plan fits the memory: each is checked by solving with it.

In: what was asked, the shortage, and the means to trace and solve (`api`). Out: the shortage with a list of `Change`s.
The ladder:

    a word less     each of the user's constraints left out, one at a time (`recompute=none` is one); all of them, if one is not enough
    more memory     the least bytes for which a plan is found; the smallest plan that the search has seen is one
    a lower batch   halves: the largest that fits
    more devices    of the same kind: twice the hosts (or the devices of a single small host)
    lower precision bf16 where fp32 was asked for

All share as much time as the solver had for the question itself; what that is too short for is said to be untried.
Invariant: nothing is said to fit without a plan that does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import gcd

from .cluster import Cluster
from .constraints import Constraints, parse_lines, print_constraints
from .errors import AutoparError
from .graph.case import Case
from .graph.choice import Assignment
from .options import Options
from .solver.infeasible import FITS, LATE, NOT_FOUND, REFUSED, TOO_LARGE, Change, MemoryShortage, add_changes, print_bytes, round_up
from .solver.steer import prepare_steer
from .trace.workload import Workload, find_tensors, map_tensors

_LEAST_S, _MOST_S = 1.0, 10.0  # that one solve is given: whether a plan fits is asked, not which is best
_NO_LIMIT, _MOST_LIMITS = 1 << 60, 3  # bytes; limits that are tried for the least memory
_MOST_WORDS = 6  # of the user's, that are left out one at a time
_ROOM = 1.1  # a batch is tried if its bytes, taken to shrink in proportion, exceed the limit by no more
_MOST_DEVICES = 8  # of a host
_MOST_TOLD = 160  # characters of a refusal


@dataclass(frozen=True)
class Setting:
    """All that a change may change. `case` is the step of `workload` in `precision`, without the user's constraints."""

    workload: Workload
    precision: str
    cluster: Cluster
    options: Options
    case: Case


@dataclass(frozen=True)
class Means:
    """What compiling does, once more with something changed.

    Args:
        trace: the case of a workload in a precision.
        solve: (seconds of a step, bytes at the peak) of the best plan found in `options.time_limit_s`; raises as `solver.search.search` does.
        estimate: the same of an assignment.
    """

    trace: Callable[[Workload, str], Case]
    solve: Callable[[Setting], tuple[float, int]]
    estimate: Callable[[Setting, Assignment], tuple[float, int]]


def find_nearest(error: MemoryShortage, asked: Setting, means: Means, report: Callable[[str], None]) -> MemoryShortage:
    """Climb the ladder.

    Args:
        report: told what is going on, one line each.
    """
    return add_changes(error, list(_Ladder(error, asked, means, report).climb()))


class _Ladder:
    """One climb; knows what time is left and how many rungs share it."""

    def __init__(self, error: MemoryShortage, asked: Setting, means: Means, report: Callable[[str], None]) -> None:
        self.error, self.asked, self.means, self.report = error, asked, means, report
        self.deadline = time.monotonic() + asked.options.time_limit_s
        self.rungs = 0

    def climb(self) -> Iterator[Change]:
        words = print_constraints(self.asked.options.constraints)
        factors = self.batch_factors()
        self.rungs = min(len(words), _MOST_WORDS) + 1 + bool(factors) + (self.asked.precision == "fp32")
        yield from self.drop_words(words)
        yield self.more_memory()
        if factors:
            yield self.smaller_batch(factors)
        cluster, told = double(self.asked.cluster)
        yield self.try_change(told, 2.0, lambda: replace(self.asked, cluster=cluster))
        if self.asked.precision == "fp32":
            yield self.try_change("--precision bf16", 2.0, self.in_bf16)

    def try_change(self, what: str, size: float, change: Callable[[], Setting], parts: int | None = None) -> Change:
        """Solve with a change, in one of `parts` (None: as many as there are rungs left) of the time that is left."""
        left = self.deadline - time.monotonic()
        share = left / (parts or max(1, self.rungs))
        if parts is None:
            self.rungs -= 1
        if left <= 0:
            return Change(what, size, LATE)
        self.report(f"nothing fits; trying {what}")
        began = time.monotonic()
        try:
            setting = change()
            room = min(max(_LEAST_S, share - (time.monotonic() - began)), _MOST_S)
            step_s, _ = self.means.solve(replace(setting, options=replace(setting.options, time_limit_s=room)))
        except MemoryShortage as error:
            return Change(what, size, TOO_LARGE if error.proven else NOT_FOUND, minimum_bytes=error.minimum_bytes)
        except AutoparError as error:
            return Change(what, size, REFUSED, told=_shorten(str(error)))
        return Change(what, size, FITS, step_s)

    # --- the rungs

    def drop_words(self, words: tuple[str, ...]) -> Iterator[Change]:
        """Each word of the user's left out; all of them, where that is not the same and no single one is enough."""
        enough = False
        for k, word in enumerate(words[:_MOST_WORDS]):
            made = self.try_change(f"without {word}", 1.0, lambda k=k: self.with_words((*words[:k], *words[k + 1 :])))
            enough = enough or made.status == FITS
            yield made
        if len(words) > 1 and not enough:
            self.rungs += 1
            yield self.try_change(f"without {', '.join(words)}", 1.0, lambda: self.with_words(()))

    def with_words(self, words: tuple[str, ...]) -> Setting:
        constraints = parse_lines(words) if words else Constraints()
        return replace(self.asked, options=replace(self.asked.options, constraints=constraints))

    def more_memory(self) -> Change:
        """The least bytes for which a plan is known: the smallest found so far, the fastest of all, then some between these and the limit."""
        known_s = self.error.step_s
        step_s, need = (known_s, self.error.minimum_bytes) if known_s is not None else self.means.estimate(self.asked, self.error.assignment)
        limit, until = _NO_LIMIT, time.monotonic() + (self.deadline - time.monotonic()) / max(1, self.rungs)
        self.rungs -= 1
        for _ in range(_MOST_LIMITS):
            left = until - time.monotonic()
            if left <= 0 or limit <= self.error.limit_bytes:
                break
            self.report(f"nothing fits; looking for a plan of less than {print_bytes(need)}")
            options = replace(self.asked.options, memory_bytes=limit, time_limit_s=min(max(_LEAST_S, left), _MOST_S))
            try:
                found_s, held = self.means.solve(replace(self.asked, options=options))
            except AutoparError:
                break
            if held < need:
                step_s, need = found_s, held
            limit = (self.error.limit_bytes + need) // 2
        own = self.asked.cluster.device
        wanted = f"--memory {round_up(need)}" if need <= own.memory_bytes or own.kind == "cpu" else f"devices of {round_up(need)} instead of {print_bytes(own.memory_bytes)}"
        return Change(wanted, need / self.error.limit_bytes, FITS, step_s)

    def smaller_batch(self, factors: tuple[int, ...]) -> Change:
        """The largest half, quarter, ... of the batch that fits: first that which should fit by proportion, then its neighbours."""
        self.rungs -= 1
        share = (self.deadline - time.monotonic()) / (self.rungs + 1)
        until = time.monotonic() + share
        tried: dict[int, Change] = {}

        def attempt(k: int) -> Change:
            if k not in tried:
                parts = max(2, round(2 * (self.deadline - time.monotonic()) / share)) if share > 0 else 2  # two of them fit into the share
                tried[k] = self.try_change(self.print_batch(k), float(k), lambda: self.with_batch(k), parts)
            return tried[k]

        at = self.guess(factors)
        while attempt(factors[at]).status != FITS and at + 1 < len(factors) and time.monotonic() < until:
            at += 1
        while tried[factors[at]].status == FITS and at > 0 and factors[at - 1] not in tried and time.monotonic() < until:
            if attempt(factors[at - 1]).status != FITS:
                break
            at -= 1
        return tried[factors[at]]

    def guess(self, factors: tuple[int, ...]) -> int:
        """The first that should fit if what is no state shrinks in proportion."""
        fixed = sum(size for name, size in self.error.holders if name in _FIXED)
        grows = self.error.minimum_bytes - fixed
        return next((i for i, k in enumerate(factors) if fixed + grows / k <= self.error.limit_bytes * _ROOM), len(factors) - 1)

    def in_bf16(self) -> Setting:
        return replace(self.asked, precision="bf16", case=self.means.trace(self.asked.workload, "bf16"))

    # --- the batch

    def batch_places(self) -> tuple[tuple[str, int, int], ...]:
        """(input, dim, size) where the batch enters."""
        case = self.asked.case
        return prepare_steer(case.graph, case.sites, case.signatures, case.cuts, Constraints()).roles.batch

    def batch_factors(self) -> tuple[int, ...]:
        """2, 4, 8, ... as long as the batch divides and two samples are left: with one, nothing says which dim is the batch."""
        sizes = gcd(*(size for _, _, size in self.batch_places()))
        found = []
        while sizes and sizes % (4 << len(found)) == 0:
            found.append(2 << len(found))
        return tuple(found)

    def print_batch(self, k: int) -> str:
        size = self.batch_places()[0][2]
        return f"batch {size // k} instead of {size}"

    def with_batch(self, k: int) -> Setting:
        """The same step on one k-th of the samples."""
        places = {name: (dim, size // k) for name, dim, size in self.batch_places()}

        def cut(prefix: str, value: object) -> object:
            table = dict(find_tensors(prefix, value))
            table |= {name: table[name].narrow(dim, 0, size).clone() for name, (dim, size) in places.items() if name in table}
            return map_tensors(prefix, value, table)

        w = self.asked.workload
        workload = replace(w, example_inputs=cut("input:", w.example_inputs), example_targets=cut("target:", w.example_targets))
        return replace(self.asked, workload=workload, case=self.means.trace(workload, self.asked.precision))


_FIXED = ("parameters", "gradients", "optimizer", "buffers", "reserve")  # holders that do not shrink with the batch


def double(cluster: Cluster) -> tuple[Cluster, str]:
    """Twice the devices, and how people would ask for them."""
    hosts, devices, spec = cluster.num_hosts, cluster.devices_per_host, cluster.spec
    inside = hosts == 1 and (cluster.device.kind == "cpu" or 2 * devices <= _MOST_DEVICES)
    made = replace(cluster, devices_per_host=2 * devices) if inside else replace(cluster, num_hosts=2 * hosts)
    match = re.fullmatch(r"(?:(?:\d+x)?\d+x)([A-Za-z].*)", spec)
    if spec.startswith("cpu:") and inside:
        text = f"cpu:{2 * devices}"
    elif match:
        text = f"{made.devices_per_host}x{match[1]}" if made.num_hosts == 1 else f"{made.num_hosts}x{made.devices_per_host}x{match[1]}"
    else:
        return made, f"{2 * devices} devices instead of {devices}" if inside else f"{2 * hosts} hosts instead of {hosts}"
    return replace(made, spec=text), f"{text} instead of {spec}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_TOLD else text[: _MOST_TOLD - 3].rstrip() + "..."
