"""Rows: what `autopar profile` measured on a machine, and how a cluster of `cpu` ranks reads them.

Ranks of one machine contend for its cores and its memory, so every row says how many ran at once; figures are per rank. In: a JSON
file. Out: `ProfileRows`. Between the measured counts the nearest smaller one stands, scaled as if its total were shared out.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from ..cluster import Device, Link
from ..errors import ClusterError

FORMAT = "autopar-profile-1"


@dataclass(frozen=True, slots=True)
class ComputeRow:
    """What one of `ranks` processes that run at once reaches."""

    ranks: int
    flops_per_s: tuple[tuple[str, float], ...]
    memory_bytes_per_s: float
    launch_s: float


@dataclass(frozen=True, slots=True)
class LinkRow:
    """The loopback link between `ranks` processes: seconds per hop; bytes per second that one sends."""

    ranks: int
    latency_s: float
    bandwidth_bytes_per_s: float


_Row = TypeVar("_Row", ComputeRow, LinkRow)


@dataclass(frozen=True, slots=True)
class ProfileRows:
    """One measured machine."""

    date: str
    machine: str
    torch: str
    cores: int
    compute: tuple[ComputeRow, ...]
    links: tuple[LinkRow, ...]


def measured_device(rows: ProfileRows, device: Device, ranks: int) -> Device:
    """The device with the figures measured at this number of ranks."""
    row = _nearest(rows.compute, ranks)
    share = min(1.0, row.ranks / ranks)
    return replace(
        device,
        flops_per_s=tuple((dtype, rate * share) for dtype, rate in row.flops_per_s),
        memory_bytes_per_s=row.memory_bytes_per_s * share,
        launch_s=row.launch_s / share,
        source=_source(rows, row.ranks, ranks),
    )


def measured_link(rows: ProfileRows, link: Link, ranks: int) -> Link:
    """The loopback link with the figures measured at this number of ranks."""
    if not rows.links:
        return link
    row = _nearest(rows.links, ranks)
    share = min(1.0, row.ranks / ranks)
    source = _source(rows, row.ranks, ranks)
    return replace(link, latency_s=row.latency_s / share, bandwidth_bytes_per_s=row.bandwidth_bytes_per_s * share, source=source)


def _source(rows: ProfileRows, measured: int, wanted: int) -> str:
    scaled = "" if measured == wanted else f", scaled to {wanted}"
    return f"measured {rows.date} on {rows.machine}, torch {rows.torch}, {measured} at once{scaled}"


def _nearest(rows: tuple[_Row, ...], ranks: int) -> _Row:
    smaller = [r for r in rows if r.ranks <= ranks]
    return max(smaller, key=lambda r: r.ranks) if smaller else min(rows, key=lambda r: r.ranks)


def save_profile(rows: ProfileRows, path: str | os.PathLike[str]) -> None:
    """Write the rows as JSON, whole or not at all."""
    path = os.fspath(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, **asdict(rows)}, file, indent=1)
    os.replace(part, path)


def load_profile(path: str | os.PathLike[str]) -> ProfileRows | None:
    """The rows of a file; None where there is no such file.

    Raises:
        ClusterError: the file is there but is not a profile; says what is wrong and how to make it again.
    """
    path = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path}: not a profile: {error}; run `autopar profile` again, or delete the file") from None
    try:
        return _parse_rows(data)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ClusterError(f"{path}: not a profile: {what}; run `autopar profile` again, or delete the file") from None


def _parse_rows(data: dict) -> ProfileRows:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"expected format {FORMAT!r}, found {found!r}")
    compute = tuple(
        ComputeRow(
            _positive_int(row, "ranks"),
            tuple((str(dtype), _check_positive(rate, f"flops_per_s of {dtype}")) for dtype, rate in row["flops_per_s"]),
            _positive(row, "memory_bytes_per_s"),
            _positive(row, "launch_s"),
        )
        for row in data["compute"]
    )
    if not compute or not all(row.flops_per_s for row in compute):
        raise ValueError("no compute rows")
    links = tuple(
        LinkRow(_positive_int(row, "ranks"), _positive(row, "latency_s"), _positive(row, "bandwidth_bytes_per_s")) for row in data["links"]
    )
    return ProfileRows(str(data["date"]), str(data["machine"]), str(data["torch"]), _positive_int(data, "cores"), compute, links)


def _check_positive(found: object, what: str) -> float:
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not math.isfinite(found) or found <= 0:
        raise ValueError(f"{what}: expected a positive number, found {found!r}")
    return float(found)


def _positive(row: dict, name: str) -> float:
    return _check_positive(row[name], name)


def _positive_int(row: dict, name: str) -> int:
    found = row[name]
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ValueError(f"{name}: expected a positive whole number, found {found!r}")
    return found
