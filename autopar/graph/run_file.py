"""The file of a run, `run.json`: whole or not there.

In: a `Run`. Out: JSON, one action or collective a line. And the way back, checked: what is cut short, foreign, or has times that no clock gives
is one `RunError` that says file, entry, expected and found, and what to do. Law: what is saved loads back equal.
"""

from __future__ import annotations

import json
import sys
import os
from dataclasses import asdict, fields
from pathlib import Path

from ..errors import RunError
from .machine import Machine
from .node import Phase
from .run import FORMAT, ActionTimes, CommTimes, RankRun, Run

_CURE = "record it again with `autopar run DIR`"
_PHASES = tuple(phase.value for phase in Phase)
_LONGER = 1.5  # than their steps no actions take together: clocks differ, units by a thousand
_APART = 10.0  # by so much no two ranks of a run differ: one has seconds in another unit


def save_run(run: Run, path: str | os.PathLike[str]) -> None:
    """Write the run as JSON, whole or not at all; what was there stays until then.

    Raises:
        RunError: the file cannot be written.
    """
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            with open(unfinished, "x", encoding="utf-8") as file:
                file.write(_print_run(run))
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunError(f"{path}: the run cannot be written: {error.strerror or error}; choose another place with --record") from None


def _print_run(run: Run) -> str:
    head = {"format": FORMAT, **{f.name: getattr(run, f.name) for f in fields(Run) if f.name not in ("machine", "ranks")}, "machine": asdict(run.machine)}
    ranks = []
    for rank in run.ranks:
        lines = []
        for f in fields(RankRun):
            value = getattr(rank, f.name)
            if f.name in ("actions", "comms"):
                lines.append(f'   "{f.name}": [' + ",".join(f"\n    {json.dumps(asdict(row), allow_nan=False)}" for row in value) + "]")
            else:
                lines.append(f'   "{f.name}": {json.dumps(value, allow_nan=False)}')
        ranks.append("  {\n" + ",\n".join(lines) + "\n  }")
    return f'{json.dumps(head, indent=1)[:-2]},\n "ranks": [\n' + ",\n".join(ranks) + "\n ]\n}\n"


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read and check a run.

    Raises:
        RunError: the file is missing, cut short, of another format, or has entries that cannot be.
    """
    where = os.fspath(path)
    try:
        data = json.loads(Path(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise RunError(f"{where}: cannot be read: {error.strerror}; expected a run that `autopar run DIR` recorded (DIR/run.json)") from None
    except json.JSONDecodeError as error:
        raise RunError(f"{where}: line {error.lineno}, column {error.colno}: not JSON ({error.msg}): cut short or damaged; {_CURE}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where}: not a run ({error}); {_CURE}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = repr(data.get("format")) if isinstance(data, dict) and "format" in data else "no such key"
        raise RunError(f"{where}: format: expected {FORMAT!r}, found {found}: not a run that `autopar run` of this version recorded; {_CURE}")
    try:
        return _parse_run(data)
    except _Wrong as wrong:
        raise RunError(f"{where}: {wrong}; {_CURE}") from None


class _Wrong(Exception):
    """One entry is not what it should be; the text says where."""


def _parse_run(data: dict[str, object]) -> Run:
    machine = _Entry(data, "").entry("machine")
    top = _Entry(data, "")
    who = Machine(machine.text("device"), machine.text("processor"), machine.count("cores", 1), machine.text("torch"), machine.text("python"))
    ranks = tuple(_parse_rank(entry) for entry in top.entries("ranks"))
    if not ranks:
        raise _Wrong("ranks: expected at least one, found none")
    for k, rank in enumerate(ranks):
        if rank.rank != k:
            raise _Wrong(f"ranks[{k}].rank: expected {k}, found {rank.rank}")
        if len(rank.step_s) != len(ranks[0].step_s):
            raise _Wrong(f"ranks[{k}].step_s: expected {len(ranks[0].step_s)} steps as of rank 0, found {len(rank.step_s)}")
    took = [sum(rank.step_s) for rank in ranks]
    if max(took) > _APART * min(took):
        slow, fast = took.index(max(took)), took.index(min(took))
        raise _Wrong(f"ranks[{slow}].step_s: expected about the seconds of the other ranks, which wait for each other in every step, found {took[slow]:.4g} in all where rank {fast} took {took[fast]:.4g}")
    return Run(top.text("date"), top.text("autopar"), who, top.text("model"), top.text("plan", True), top.text("mesh", True), ranks)


def _parse_rank(entry: _Entry) -> RankRun:
    steps = entry.seconds("step_s", None, positive=True)
    count = len(steps)
    actions = tuple(ActionTimes(_parse_phase(e), e.count("turn"), e.seconds("seconds", count)) for e in entry.entries("actions"))
    comms = tuple(_parse_comm(e, count) for e in entry.entries("comms"))
    for name, rows, keys in (("actions", actions, [(a.phase, a.turn) for a in actions]), ("comms", comms, [(c.phase, c.kind, c.axis) for c in comms])):
        twice = next((k for k, key in enumerate(keys) if key in keys[:k]), None)
        if twice is not None:
            raise _Wrong(f"{entry.where}{name}[{twice}]: {' '.join(map(str, keys[twice]))} is there already, as {name}[{keys.index(keys[twice])}]")
        took = sum(sum(row.seconds) for row in rows)
        if took > _LONGER * sum(steps):
            longest = max(range(len(rows)), key=lambda k: sum(rows[k].seconds))
            raise _Wrong(
                f"{entry.where}{name}: expected no more seconds than the steps they are part of, {sum(steps):.4g}, found {took:.4g}, most of them in {name}[{longest}] ({' '.join(map(str, keys[longest]))})"
            )
    states, peak = entry.count("state_bytes"), None if entry.get("peak_bytes") is None else entry.count("peak_bytes")
    if peak is not None and peak < states:
        raise _Wrong(f"{entry.where}peak_bytes: expected at least state_bytes, {states}, which are held all the time, found {peak}")
    warmup = entry.seconds("warmup_s", None, positive=True)
    return RankRun(entry.count("rank"), warmup, steps, actions, comms, states, entry.count("batch_bytes"), peak)


def _parse_phase(entry: _Entry, empty: bool = False) -> str:
    found = entry.text("phase", empty)
    if found and found.partition("_")[0] not in _PHASES:
        raise _Wrong(f"{entry.where}phase: expected one of {', '.join(_PHASES)}, or a section of one (forward_1), found {_show(found)}")
    return found


def _parse_comm(entry: _Entry, count: int) -> CommTimes:
    flights = entry.seconds("flight_s", count) if entry.get("flight_s") else ()
    names = _parse_phase(entry, True), entry.text("kind"), entry.text("axis")
    return CommTimes(*names, entry.count("calls"), entry.count("bytes"), entry.seconds("seconds", count), flights)


class _Entry:
    """A JSON object and where it stands."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, dict):
            raise _Wrong(f"{where}: expected an object, found {_show(data)}")
        self.data, self.where = data, f"{where}." if where else ""

    def get(self, name: str) -> object:
        if name not in self.data:
            raise _Wrong(f"{self.where}{name}: missing")
        return self.data[name]

    def text(self, name: str, empty: bool = False) -> str:
        found = self.get(name)
        if not isinstance(found, str) or not (found or empty):
            raise _Wrong(f"{self.where}{name}: expected a text, found {_show(found)}")
        return found

    def count(self, name: str, least: int = 0) -> int:
        found = self.get(name)
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found < 2**63:
            wanted = "below 2^63" if isinstance(found, int) and found >= least else f"of at least {least}"
            raise _Wrong(f"{self.where}{name}: expected a whole number {wanted}, found {_show(found)}")
        return found

    def entry(self, name: str) -> _Entry:
        return _Entry(self.get(name), f"{self.where}{name}")

    def entries(self, name: str) -> list[_Entry]:
        return [_Entry(row, f"{self.where}{name}[{k}]") for k, row in enumerate(self._list(name))]

    def seconds(self, name: str, count: int | None, positive: bool = False) -> tuple[float, ...]:
        """A list of seconds, one per timed step where `count` says how many these are."""
        rows = self._list(name)
        for k, found in enumerate(rows):
            number = isinstance(found, (int, float)) and not isinstance(found, bool) and abs(found) <= sys.float_info.max
            if not number or found < 0 or (positive and found == 0):
                raise _Wrong(f"{self.where}{name}[{k}]: expected {'a positive' if positive else 'a'} number of seconds, found {_show(found)}")
        if count is not None and len(rows) != count:
            raise _Wrong(f"{self.where}{name}: expected {count} entries, one per timed step, found {len(rows)}")
        return tuple(float(s) for s in rows)

    def _list(self, name: str) -> list:
        found = self.get(name)
        if not isinstance(found, list):
            raise _Wrong(f"{self.where}{name}: expected a list, found {_show(found)}")
        return found


def _show(found: object) -> str:
    """What was found, short enough for one line."""
    if isinstance(found, (dict, list)):
        return f"{'an object' if isinstance(found, dict) else 'a list'} of {len(found)}"
    text = json.dumps(found)
    return text if len(text) <= 60 else text[:57] + "..."
