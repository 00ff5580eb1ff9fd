"""Measured curves of collectives: seconds by bytes for one device, kind, group and network; read, smoothed, moved and continued.

In: `data/collectives.csv`, published nccl-tests and rccl-tests. Out: `Curve`s, and `Knots`: increasing bytes with seconds that never fall,
between which a logarithm of seconds is a straight line over the logarithm of bytes. Nothing here knows of a cluster.

Bytes are nccl-tests' `size`: of an all_reduce the buffer, of an all_gather the gathered whole, of a reduce_scatter the whole input, of an
all_to_all one rank's buffer, of a send_recv the message. Bus bandwidth is nccl-tests', doc/PERFORMANCE.md: what one rank's port carries.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from .monotone import pool_falls

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


@dataclass(frozen=True, slots=True)
class Curve:
    """One measured case.

    Args:
        device, inside: the device and the link inside its host, as presets name them.
        algorithm: "ring" where the source switched others off; "": the library's own choice.
        ranks, per_host: of the group, and of the group on one host.
        nics, nic_bytes_per_s: ports per host that the group may use, and the data sheet's figure of one; 0 inside a host.
        bytes, seconds: as printed; none where only the largest bus bandwidth is.
        bus_bytes_per_s: at the largest size.
    """

    device: str
    inside: str
    kind: str
    algorithm: str
    ranks: int
    per_host: int
    nics: int
    nic_bytes_per_s: float
    bytes: tuple[float, ...]
    seconds: tuple[float, ...]
    bus_bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class Knots:
    """Natural logarithms of bytes, increasing, and of seconds, never falling."""

    log_bytes: np.ndarray
    log_seconds: np.ndarray


def bus_factor(kind: str, ranks: int) -> float:
    """Bytes on a rank's port per byte of nccl-tests' `size`: bus bandwidth is this over seconds."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "send_recv": 1.0}.get(kind, share)


@lru_cache(maxsize=1)
def published_curves() -> tuple[Curve, ...]:
    """The curves of the package, in file order."""
    with resources.files("autopar.cost").joinpath("data/collectives.csv").open(encoding="utf-8", newline="") as file:
        return group_curves(csv.DictReader(file))


def group_curves(rows: Iterable[dict[str, str]]) -> tuple[Curve, ...]:
    """Rows of the file as curves: one per device, kind, algorithm, group, network and source."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    names = ("device", "inside", "collective", "algorithm", "ranks", "per_host", "nics", "nic_bytes_per_s", "source")
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    curves = []
    for (device, inside, kind, algorithm, ranks, per_host, nics, nic, source), group in found.items():
        points = sorted((float(row["bytes"]), float(row["seconds"])) for row in group if row["bytes"])
        sizes, seconds = tuple(b for b, _ in points), tuple(s for _, s in points)
        printed = [float(row["bus_bytes_per_s"]) for row in group if row["bus_bytes_per_s"]]
        bus = printed[0] if printed else sizes[-1] * bus_factor(kind, int(ranks)) / seconds[-1]
        curves.append(
            Curve(device, inside, kind, algorithm, int(ranks), int(per_host), int(nics), float(nic), sizes, seconds, bus, source)
        )
    return tuple(curves)


def join_points(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, seconds) of curves of one case: each adds the sizes that lie outside of what those before it cover."""
    points: list[tuple[float, float]] = []
    for curve in curves:
        low, high = (points[0][0], points[-1][0]) if points else (np.inf, -np.inf)
        points = sorted(points + [p for p in zip(curve.bytes, curve.seconds) if not low <= p[0] <= high])
    return np.array([b for b, _ in points]), np.array([s for _, s in points])


def smooth_points(sizes: np.ndarray, seconds: np.ndarray) -> Knots:
    """The nearest curve, in logarithms, that never falls."""
    return Knots(np.log(sizes), np.array(pool_falls(np.log(seconds))))


def knots_seconds(knots: Knots, sizes: np.ndarray) -> np.ndarray:
    """Seconds at any bytes: below the smallest knot its seconds, beyond the largest its bus bandwidth."""
    logs = np.log(np.maximum(sizes, 1e-300))
    inside = np.interp(logs, knots.log_bytes, knots.log_seconds)
    return np.exp(inside + np.maximum(0.0, logs - knots.log_bytes[-1]))


def move_knots(knots: Knots, latency: float, volume: float) -> Knots:
    """The curve of a like collective: `latency` times the seconds of small messages, `volume` times those of large ones.

    T(b) = latency x T0(b x volume / latency). For a ring this is exact: it takes latency-times as many steps of the same chunk.
    """
    return Knots(knots.log_bytes + np.log(latency / volume), knots.log_seconds + np.log(latency))


def move_through(knots: Knots, latency: float, volume: float, size: float, seconds: float) -> Knots:
    """`move_knots` with the volume that brings the curve through one measured point.

    Args:
        volume: for a point in the flat part of the curve, which says nothing of it; the moved curve is then scaled as a whole.
    """
    steep = np.flatnonzero(knots.log_seconds < knots.log_seconds[-1])
    wanted = np.log(seconds / latency)
    if not len(steep) or wanted <= knots.log_seconds[0]:
        moved = move_knots(knots, latency, volume)
        return Knots(moved.log_bytes, moved.log_seconds + np.log(seconds / knots_seconds(moved, np.array([size]))[0]))
    beyond = max(0.0, wanted - knots.log_seconds[-1])
    # strictly rising for the inverse: of a flat stretch the last knot stands
    last = np.append(np.diff(knots.log_seconds) > 0, True)
    log_size = np.interp(wanted, knots.log_seconds[last], knots.log_bytes[last]) + beyond
    return move_knots(knots, latency, float(np.exp(log_size) * latency / size))


def continue_points(middle: Knots, below: Knots | None, above: Knots | None) -> Knots:
    """A measured curve, and outside of it others that go through its first and its last knot."""
    pieces = [middle]
    if below is not None:
        keep = below.log_bytes < middle.log_bytes[0]
        pieces.insert(0, Knots(below.log_bytes[keep], below.log_seconds[keep]))
    if above is not None:
        keep = above.log_bytes > middle.log_bytes[-1]
        pieces.append(Knots(above.log_bytes[keep], above.log_seconds[keep]))
    log_bytes = np.concatenate([p.log_bytes for p in pieces])
    return Knots(log_bytes, np.maximum.accumulate(np.concatenate([p.log_seconds for p in pieces])))
