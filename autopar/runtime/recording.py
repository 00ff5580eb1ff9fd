"""Recording: the steps of an executable, with what each took: phase by phase, collective by collective, and the most memory held.

In: an `Executable`. Out: this rank's `RankRun`, and the `Run` that all ranks' make. The emitted program knows nothing of it: while a step is
recorded, the functions of sections that its `step` calls (`prepare`, `forward`, `backward`, `update`; in stages `backward_input_1` and the
like) and its comm are their timed twins. So a program that was edited until it has no such functions is timed whole. Nothing is changed
between steps, and nothing once `MAX_STEPS` are recorded.

The first `WARMUP` steps are not counted. The second one weighs memory: on a CPU through the profiler, which slows it; on CUDA the
allocator's peak counts from there on.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from inspect import signature
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..errors import RunError
from ..graph.machine import describe_machine
from ..graph.mesh import print_mesh
from ..graph.node import Phase
from ..graph.run import ActionTimes, CommTimes, RankRun, Run, plan_key
from ..graph.run_file import save_run
from .clock import Stamp, clock_of
from .comm import Comm
from .executable import Executable
from .peak import measure_cpu_peak
from .spec import ProgramSpec
from .stages import STAGES
from .timed_comm import Call, TimedComm

WARMUP = 2
MAX_STEPS = 200  # what a longer run does is no longer recorded: the file stays small


@dataclass(slots=True)
class _Sum:
    """Of the collectives of one kind: as in `CommTimes`. `ahead`: whether any was waited for later than it was started."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    flight_s: float = 0.0
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    """What one step took: seconds, of each (phase, turn), and of each (phase, kind, axis)."""

    seconds: float
    actions: dict[tuple[str, int], float]
    comms: dict[tuple[str, str, str], _Sum]


class Recorder:
    """Runs the steps of one rank and remembers what they took.

    Args:
        executable: whose steps; no other step may run meanwhile.
        path: of the file that rank 0 writes.
    """

    def __init__(self, executable: Executable, path: str | os.PathLike[str]) -> None:
        assert executable.comm is not None
        self._executable, self._comm, self._path = executable, executable.comm, path
        self._clock = clock_of(executable.comm.device)
        self._warmup: list[float] = []
        self._steps: list[_Step] = []
        self._batch_bytes = 0
        self._peak: int | None = None
        self._phase = ""
        self._begin: Stamp = 0.0
        self._spans: list[tuple[str, int, Stamp, Stamp]] = []
        self._calls: list[Call] = []

    @property
    def full(self) -> bool:
        """True when `MAX_STEPS` steps are recorded: further ones run as if nobody looked."""
        return len(self._steps) >= MAX_STEPS

    def step(self, *batch: Tensor) -> Any:
        """One step.

        Args:
            batch: this rank's own parts, as `Executable.local_batch` gives them.
        Returns:
            what `Executable.step` returns.
        """
        if self.full:
            return self._executable.step(*batch)
        number = len(self._warmup) + len(self._steps)
        if number == WARMUP - 1:
            self._batch_bytes = sum(x.numel() * x.element_size() for x in batch)
            return self._weigh(batch)
        if number < WARMUP:
            seconds, result = self._time(batch)
            self._warmup.append(seconds)
            return result
        self._spans, self._calls = [], []
        with self._watched():
            seconds, result = self._time(batch)
        self._steps.append(self._sum_up(seconds))
        return result

    def _time(self, batch: tuple[Tensor, ...]) -> tuple[float, Any]:
        self._begin = self._clock.stamp()
        result = self._executable.step(*batch)
        return self._clock.seconds(self._begin, self._clock.stamp()), result

    def _weigh(self, batch: tuple[Tensor, ...]) -> Any:
        if self._comm.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._comm.device)
            seconds, result = self._time(batch)
        else:
            (seconds, result), extra = measure_cpu_peak(lambda: self._time(batch))
            self._peak = self._state_bytes() + self._batch_bytes + extra
        self._warmup.append(seconds)
        return result

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """The program's sections and the comm tell what they take."""
        places = [(table, name, table[name]) for table, name in list_sections(self._executable.program, self._comm)]
        self._executable.comm = TimedComm(self._comm, self._clock, lambda: self._phase, self._calls.append)
        for table, name, run in places:
            table[name] = self._timed(name, run)
        try:
            yield
        finally:
            for table, name, run in places:
                table[name] = run
            self._executable.comm = self._comm

    def _timed(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        named = list(signature(run).parameters)
        place = named.index("turn") if "turn" in named else None

        def timed(*args: Any, **keywords: Any) -> Any:
            outer, self._phase = self._phase, name
            begin = self._clock.stamp()
            try:
                return run(*args, **keywords)
            finally:
                turn = 0 if place is None else keywords.get("turn", args[place] if place < len(args) else 0)
                self._spans.append((name, turn, begin, self._clock.stamp()))
                self._phase = outer

        return timed

    def _sum_up(self, seconds: float) -> _Step:
        actions: dict[tuple[str, int], float] = {}
        for name, turn, begin, end in self._spans:
            actions[name, turn] = actions.get((name, turn), 0.0) + self._clock.seconds(begin, end)
        comms: dict[tuple[str, str, str], _Sum] = {}
        for call, hidden_s in zip(self._calls, self._hidden()):
            row = comms.setdefault((call.phase, call.kind, call.axis), _Sum())
            row.calls += 1
            row.bytes += call.bytes
            row.flight_s += hidden_s
            row.ahead = row.ahead or len(call.stops) > 1
            for phase, begin, end in call.stops:
                stopped_s = self._clock.seconds(begin, end)
                row.flight_s += stopped_s
                comms.setdefault((phase, call.kind, call.axis), _Sum()).seconds += stopped_s
        return _Step(seconds, actions, comms)

    def _hidden(self) -> list[float]:
        """Of each call how long it was under way while the rank did not stand still for any."""

        def at(stamp: Stamp) -> float:
            return self._clock.seconds(self._begin, stamp)

        spans = [(call.axis, at(call.begin), min(at(call.come), at(call.end))) for call in self._calls]
        return hidden_seconds(spans, [(at(begin), at(end)) for call in self._calls for _, begin, end in call.stops])

    def _state_bytes(self) -> int:
        return sum(self._executable.num_bytes().values())

    def finish(self) -> RankRun:
        """What this rank measured; what a step did not do took it no time."""
        if self._comm.device.type == "cuda" and len(self._warmup) == WARMUP:
            self._peak = torch.cuda.max_memory_allocated(self._comm.device)
        actions = dict.fromkeys(key for step in self._steps for key in step.actions)
        comms = dict.fromkeys(key for step in self._steps for key in step.comms)
        last = self._steps[-1].comms if self._steps else {}
        ahead = {key[1:] for step in self._steps for key, row in step.comms.items() if row.ahead}
        none = _Sum()
        return RankRun(
            self._comm.rank,
            tuple(self._warmup),
            tuple(step.seconds for step in self._steps),
            tuple(ActionTimes(*key, tuple(step.actions.get(key, 0.0) for step in self._steps)) for key in actions),
            tuple(_comm_times(key, last.get(key, none), [step.comms.get(key, none) for step in self._steps], key[1:] in ahead) for key in comms),
            self._state_bytes(),
            self._batch_bytes,
            self._peak,
        )

    def write(self) -> RunError | None:
        """Rank 0 writes what all ranks measured, whole or not at all. All ranks must call it together.

        Returns:
            why it could not be written, on rank 0: training need not end for it.
        """
        parts = self._comm.collect(self.finish())
        if self._comm.rank != 0:
            return None
        device = self._comm.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        plan = _read_plan(self._executable.files.get("plan.json", ""))
        model = plan.get("model")
        run = Run(
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            __version__,
            describe_machine(name, str(torch.__version__)),
            str(model.get("name") or "unnamed") if isinstance(model, dict) else "unnamed",
            plan_key(plan) if plan else "",
            print_mesh(self._comm.mesh),
            tuple(parts),
        )
        try:
            save_run(run, self._path)
        except RunError as error:
            return error
        return None


def hidden_seconds(spans: Sequence[tuple[str, float, float]], stops: Sequence[tuple[float, float]]) -> list[float]:
    """How long each of some messages was under way while its rank did something else.

    Args:
        spans: (axis, start, come) of each. What lies along one axis travels one after the other, so a message that is started while another is under way counts from when
            that has come.
        stops: (begin, end) of when the rank stood still for any of them.
    Returns:
        seconds, in the order of `spans`.
    """
    still: list[tuple[float, float]] = []  # in order, apart from each other
    for begin, end in sorted(stops):
        if still and begin <= still[-1][1]:
            still[-1] = still[-1][0], max(still[-1][1], end)
        else:
            still.append((begin, end))
    found, free = [0.0] * len(spans), dict[str, float]()
    for k in sorted(range(len(spans)), key=lambda k: spans[k][1]):
        axis, start, come = spans[k]
        start = max(start, free.get(axis, start))
        if start < come:
            free[axis] = come
            first = bisect_right(still, (start, start)) - 1
            beside = takewhile(lambda stop: stop[0] < come, still[max(0, first) :])
            found[k] = come - start - sum(max(0.0, min(end, come) - max(begin, start)) for begin, end in beside)
    return [max(0.0, seconds) for seconds in found]


def _comm_times(key: tuple[str, str, str], last: _Sum, steps: list[_Sum], ahead: bool) -> CommTimes:
    """Args: ahead: whether any collective of this kind and axis was waited for later than it was started."""
    return CommTimes(*key, last.calls, last.bytes, tuple(s.seconds for s in steps), tuple(s.flight_s for s in steps) if ahead else ())


def list_sections(program: ProgramSpec, comm: Comm) -> list[tuple[dict[str, Any], str]]:
    """Where this rank's step looks up the functions of its sections: (table, name)."""
    if program.pipeline is None:
        tables = [program.step.__globals__]
    else:
        module = program.pipeline.stages[comm.coordinate(STAGES)].module
        tables = [vars(module), module.SECTIONS]
    phases = [phase.value for phase in Phase]
    names = [(tables[0], name) for name in (phases if len(tables) == 1 else ("prepare", "update")) if callable(tables[0].get(name))]
    return [*names, *((table, name) for table in tables[1:] for name in table)]


def _read_plan(text: str) -> dict[str, Any]:
    """The plan beside the program as JSON data; empty where there is none that can be read."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
