"""The file of a profile: JSON, one row a line, whole or not there.

In: a path. Out: `ProfileRows`, checked: a profile that is damaged, of another format version or of another machine is an error that says
what differs. Law: what is saved loads back equal; a file is written beside and moved into place, so it is never half-written.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from dataclasses import asdict, fields

from ..errors import ClusterError
from ..graph.tensor import DTYPE_BYTES
from .rows import COMM_KINDS, MEETING, SHAPE_NAMES, CommRow, Machine, OpRow, ProfileRows, op_work, row_key

FORMAT = "autopar-profile-6"  # since 3: matmuls by the library that has them in programs (`graph.cpu_matmul`), those that are torch's beside them (5); gathers and reduce-scatters of a CPU as `graph.cpu_exchange` does them (6)
_EARLIER = tuple(f"autopar-profile-{number}" for number in range(1, 6))
_AGAIN = "run `autopar profile` again, or delete the file"
_LEAST_S, _MOST_S = 1e-9, 1e4  # no clock measures less, and no profile waits longer
_MOST_OP_S = {"launch": 0.1, "": 60.0}  # an op that does nothing, and any other of the grid, of which a profile measures some hundred in three minutes
_OP_KEYS, _COMM_KEYS = (tuple(f.name for f in fields(kind)) for kind in (OpRow, CommRow))
# What no machine is: least and most FLOP/s of a matmul of _LARGE_FLOPS and more, least and most bytes/s of a copy of _LARGE_BYTES and more. Seconds in another unit are a thousand times off.
_LARGE_FLOPS, _LARGE_BYTES = 1e8, 2**24
_IMPOSSIBLE = {True: ((2e8, 2e14), (1e8, 2e13)), False: ((1e11, 2e16), (1e10, 1e14))}  # on a CPU; on a GPU


def save_profile(rows: ProfileRows, path: str | os.PathLike[str]) -> None:
    """Write the rows as JSON, whole or not at all."""
    write_profile(rows.machine, rows.finished, [encode_row(r) for r in rows.ops], [encode_row(r) for r in rows.comms], path)


def write_profile(machine: Machine, finished: bool, ops: list[str], comms: list[str], path: str | os.PathLike[str]) -> None:
    """`save_profile` of rows that are text already: profiling saves after every row, and rows do not change.

    Args:
        ops, comms: from `encode_row`.
    """
    path = os.fspath(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    head = json.dumps({"format": FORMAT, "machine": asdict(machine), "finished": finished}, indent=1)
    lists = ",\n".join(
        f' "{name}": [' + ",".join(f"\n  {line}" for line in lines) + "\n ]" for name, lines in (("ops", ops), ("comms", comms))
    )
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(f"{head[:-2]},\n{lists}\n}}\n")
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.remove(part)
        raise


def encode_row(row: OpRow | CommRow) -> str:
    """One row as JSON text."""
    return json.dumps({name: value for name, value in asdict(row).items() if value not in ("", None)}, allow_nan=False)


class EarlierFormat(ClusterError):
    """An earlier autopar wrote the file."""


def load_profile(path: str | os.PathLike[str], machine: Machine | None = None) -> ProfileRows | None:
    """The rows of a file; None where there is no such file.

    Args:
        machine: on which the rows must have been measured (versions may differ); None: any.
    Raises:
        ClusterError: the file is there but is not a profile (an `EarlierFormat`, too), or of another machine; says what is wrong and how to make it again.
    """
    path = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClusterError(f"{path}: not a profile: {error}; {_AGAIN}") from None
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{path}: not a profile: cut short or damaged ({error}); {_AGAIN}") from None
    try:
        return _parse_rows(data, machine)
    except _OtherMachine as error:
        raise ClusterError(f"{path}: a profile of another machine: {error}; {_AGAIN}") from None
    except (TypeError, ValueError) as error:
        kind = EarlierFormat if isinstance(data, dict) and data.get("format") in _EARLIER else ClusterError
        raise kind(f"{path}: not a profile: {error}; {_AGAIN}") from None


def machine_difference(here: Machine, found: Machine, names: tuple[str, ...] = tuple(f.name for f in fields(Machine))) -> str:
    """What differs between two machines; "" where nothing does."""
    pairs = ((name, getattr(here, name), getattr(found, name)) for name in names)
    return "; ".join(f"{name}: expected {expected!r}, found {other!r}" for name, expected, other in pairs if expected != other)


class _OtherMachine(Exception):
    """Said before a row is looked at, for what a row may be depends on the device."""


def _parse_rows(data: object, asked: Machine | None) -> ProfileRows:
    found = data.get("format") if isinstance(data, dict) else type(data).__name__
    if not isinstance(data, dict) or found != FORMAT:
        raise ValueError(f"expected format {FORMAT!r}, found {found!r}" + (" of an earlier autopar" if found in _EARLIER else ""))
    data = _Object(data, "")
    _check_keys(data, ("format", "machine", "finished", "ops", "comms"), "")
    machine = _object(data["machine"], "machine")
    _check_keys(machine, [f.name for f in fields(Machine)], "machine.")
    who = Machine(
        *(_text(machine, f.name, "machine") if f.name != "cores" else _whole(machine, "cores", "machine") for f in fields(Machine))
    )
    if asked is not None and (differing := machine_difference(asked, who, ("device", "processor", "cores"))):
        raise _OtherMachine(differing)
    ops = tuple(_parse_op(row, f"ops[{k}]", who.device == "cpu") for k, row in enumerate(_list(data, "ops")))
    comms = tuple(_parse_comm(row, f"comms[{k}]") for k, row in enumerate(_list(data, "comms")))
    for name, rows in (("ops", ops), ("comms", comms)):
        seen: dict[tuple, int] = {}
        for k, row in enumerate(rows):
            if (first := seen.setdefault(row_key(row), k)) != k:
                raise ValueError(f"{name}[{k}]: measures the same as {name}[{first}]")
    if not isinstance(data["finished"], bool):
        raise ValueError(f"finished: expected true or false, found {data['finished']!r}")
    return ProfileRows(who, ops, comms, data["finished"])


def _parse_op(row: object, where: str, on_cpu: bool) -> OpRow:
    row = _object(row, where)
    _check_keys(row, _OP_KEYS, f"{where}.")
    shape = row["shape"]
    if not isinstance(shape, list) or not shape:
        raise ValueError(f"{where}.shape: expected a list of positive whole numbers, found {shape!r}")
    sizes = tuple(_check_whole(n, f"{where}.shape") for n in shape)
    family, dtype = _one_of(row, "family", where, SHAPE_NAMES), _one_of(row, "dtype", where, DTYPE_BYTES)
    if len(sizes) != len(SHAPE_NAMES[family]):
        raise ValueError(f"{where}.shape: expected ({', '.join(SHAPE_NAMES[family])}) of a {family}, found {shape!r}")
    found = OpRow(family, dtype, sizes, _whole(row, "ranks", where), *_figures(row, where))
    _check_speed(found, where, on_cpu)
    return found


def _check_speed(row: OpRow, where: str, on_cpu: bool) -> None:
    """Raise what tells that a row's seconds are of another unit, or stand for a measurement that failed."""
    most_s = _MOST_OP_S["launch" if row.family == "launch" else ""]
    if row.seconds is not None and row.seconds > most_s:
        raise ValueError(f"{where}.seconds: {row.seconds:g} s of a {row.family} in {row.dtype}: expected at most {most_s:g}: are they seconds, and were they measured?")
    if row.seconds is None or not row.family.startswith(("matmul", "copy")):
        return
    flops, moved = op_work(row.family, row.dtype, row.shape)
    work, large, what = (flops, _LARGE_FLOPS, "FLOP/s") if flops else (moved, _LARGE_BYTES, "bytes/s")
    least, most = _IMPOSSIBLE[on_cpu][not flops]
    if work >= large and not least <= work / row.seconds <= most:
        shape = " x ".join(map(str, row.shape))
        raise ValueError(f"{where}.seconds: {row.seconds:g} s of a {row.family} of {shape} in {row.dtype} would be {work / row.seconds:.1e} {what}, expected {least:.0e} to {most:.0e}: are they seconds?")



def _parse_comm(row: object, where: str) -> CommRow:
    row = _object(row, where)
    _check_keys(row, _COMM_KEYS, f"{where}.")
    group = row["group"]
    if not isinstance(group, list) or len(group) != 2:
        raise ValueError(f"{where}.group: expected [ranks, distance], found {group!r}")
    size, stride = (_check_whole(n, f"{where}.group") for n in group)
    ranks = _whole(row, "ranks", where)
    if size < 2 or ranks % size or size * stride > ranks:
        raise ValueError(f"{where}.group: expected [ranks, distance] of equal groups that are all {ranks} ranks, found {group!r}")
    beside = row["beside"]
    if not isinstance(beside, bool):
        raise ValueError(f"{where}.beside: expected true or false, found {beside!r}")
    seconds, spread, repeats, date, error = _figures(row, where)
    compute_s = _number(row, "beside_s", where) if beside and not error else 0.0
    counts = (_whole(row, name, where) for name in ("ranks", "per_host", "num_bytes"))
    return CommRow(
        _one_of(row, "kind", where, (*COMM_KINDS, MEETING)), (size, stride), *counts, compute_s, seconds, spread, repeats, date, error, beside
    )


def _figures(row: dict, where: str) -> tuple[float | None, float, int, str, str]:
    """Seconds, spread, repeats, date, error."""
    if "error" in row:
        return None, 0.0, 0, _text(row, "date", where), _text(row, "error", where)
    spread = row["spread"]
    if not _is_number(spread) or spread < 0:
        raise ValueError(f"{where}.spread: expected a number that is not negative, found {spread!r}")
    seconds = _number(row, "seconds", where)
    if not _LEAST_S <= seconds <= _MOST_S:
        raise ValueError(f"{where}.seconds: expected the seconds of one op or collective, {_LEAST_S:g} to {_MOST_S:g}, found {seconds:g}")
    return seconds, float(spread), _whole(row, "repeats", where), _text(row, "date", where), ""


class _Object(dict):
    """An object of the file that says where it is when it lacks something."""

    def __init__(self, row: dict, where: str) -> None:
        super().__init__(row)
        self._where = where

    def __missing__(self, name: str) -> object:
        raise ValueError(f"{self._where}{name}: expected, and not there")


def _object(row: object, where: str) -> _Object:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object, found {row!r}")
    return _Object(row, f"{where}.")


def _check_keys(row: dict, known: Collection[str], where: str) -> None:
    for name in row:
        if name not in known:
            raise ValueError(f"{where}{name}: unknown; expected {', '.join(known)}")


def _list(data: dict, name: str) -> list:
    found = data[name]
    if not isinstance(found, list):
        raise ValueError(f"{name}: expected a list, found {found!r}")
    return found


def _text(row: dict, name: str, where: str) -> str:
    found = row[name]
    if not isinstance(found, str) or not found:
        raise ValueError(f"{where}.{name}: expected text, found {found!r}")
    return found


def _one_of(row: dict, name: str, where: str, known: Collection[str]) -> str:
    found = _text(row, name, where)
    if found not in known:
        raise ValueError(f"{where}.{name}: expected one of {', '.join(known)}, found {found!r}")
    return found


def _is_number(found: object) -> bool:
    return isinstance(found, (int, float)) and not isinstance(found, bool) and abs(found) <= sys.float_info.max


def _number(row: dict, name: str, where: str) -> float:
    found = row[name]
    if not _is_number(found) or found <= 0:
        raise ValueError(f"{where}.{name}: expected a positive number, found {found!r}")
    return float(found)


def _whole(row: dict, name: str, where: str) -> int:
    return _check_whole(row[name], f"{where}.{name}")


def _check_whole(found: object, where: str) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ValueError(f"{where}: expected a positive whole number, found {found!r}")
    return found
