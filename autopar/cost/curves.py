"""Measured curves of collectives: seconds by bytes for one device, kind, group and network; read, smoothed, moved and continued.

In: `data/collectives.csv`, published nccl-tests and rccl-tests. Out: `Curve`s, and `Knots`: increasing bytes with seconds that never fall,
between which a logarithm of seconds is a straight line over the logarithm of bytes. Of a cluster nothing is known here but which links are slower.

Bytes are nccl-tests' `size`: of an all_reduce the buffer, of an all_gather the gathered whole, of a reduce_scatter the whole input, of an
all_to_all one rank's buffer, of a send_recv the message. Bus bandwidth is nccl-tests', doc/PERFORMANCE.md: what one rank's port carries.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from math import ceil, inf

import numpy as np

from ..cluster import list_links
from .monotone import pool_falls

# Vidur's profile (`profiling/collectives/collectives_wrapper.py`): torch's profiler over eleven calls of `torch.distributed` in each of the ranks' own processes, without a CUDA graph; the
# median time of their NCCL kernels.
_WAITS = "microsoft/vidur"
# The longest time of its smallest message, 2 KiB (16 A100): a kernel that takes longer than a call is started before the one before it is over, and nobody waits.
LONGEST_WAIT_S = 65e-6
# stas00/ml-engineering's `all_reduce_bench.py`: one call of torch.distributed per trial between two events, each after a barrier; later versions queue ten, to hide "some 20-30us" per call
# (its header). So all its rows have what a call costs and how far apart ranks come, on top of the collective: 10 to 14 us among 8 H200 where H100s of the same links have nccl-tests'.
_CALLS = "stas00/ml-engineering network"
# What rows say where a wait like the longest seen would be this share of them is no time of the collective.
_MOST_WAIT = 1 / 20
# Rows of single calls yield to nccl-tests' of the same group, on a link that is no faster, where these are shorter by more than this.
_AS_LONG = 1.02
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
    """The curves of the package, in file order, without the rows of which others prove that ranks waited (`drop_waits`)."""
    return drop_waits(read_curves())


def read_curves() -> tuple[Curve, ...]:
    """All rows of the package, as they were published."""
    with resources.files("autopar.cost").joinpath("data/collectives.csv").open(encoding="utf-8", newline="") as file:
        return group_curves(csv.DictReader(file))


def drop_waits(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """The curves without rows that are no times of the collective.

    nccl-tests starts a collective many times in a row and divides. A profile of kernels started one by one from Python (`_WAITS`) has in a short one's time what it stood still until the last
    rank had started it, too: 7 us or 40 at random. A wait adds and never takes away. So a row, no longer than a wait may be, is left out where others prove that the collective takes less:

        a larger message of the same group took less;
        several smaller ones that hold as much took less one after the other;
        the same message took less among more ranks on each host, on as many hosts.

    Where every row has the cost of a call (`_CALLS`), one is left out where nccl-tests has the same message of the same group in less on a link that is no faster; and where a wait like the
    longest of its curve (how much less a larger message took) would be more than a twentieth of it (`_MOST_WAIT`).
    """
    found = [_without_calls(curve, curves) if curve.source == _CALLS and curve.bytes else curve for curve in curves]
    for at in sorted(range(len(found)), key=lambda k: -found[k].ranks):  # the larger groups first: what is left of them judges the smaller ones
        curve = found[at]
        if not curve.source.startswith(_WAITS):
            continue
        larger = [join_points([c]) for c in found if c.bytes and _is_larger(c, curve)]
        kept: list[tuple[float, float]] = []
        for k, (size, seconds) in enumerate(zip(curve.bytes, curve.seconds)):
            pieces = (ceil(size / b) * s for b, s in kept)
            least = min([inf, *curve.seconds[k + 1 :], *pieces, *(_between(points, size) for points in larger)])
            if seconds > LONGEST_WAIT_S or seconds <= least:
                kept.append((size, seconds))
        found[at] = replace(curve, bytes=tuple(b for b, _ in kept), seconds=tuple(s for _, s in kept))
    return tuple(found)


def _without_calls(curve: Curve, curves: Sequence[Curve]) -> Curve:
    """A curve of single calls, without rows that nccl-tests undercut or that a wait is too large a part of."""
    speeds = {link.name: link.bandwidth_bytes_per_s for link in list_links()}
    same = [c for c in curves if c.bytes and "nccl-tests" in c.source and case_of(c)[2:] == case_of(curve)[2:]]
    others = [join_points([c]) for c in same if speeds.get(c.inside, inf) <= speeds.get(curve.inside, 0.0)]
    larger = [min(curve.seconds[k:]) for k in range(len(curve.seconds))]
    least = max(s - m for s, m in zip(curve.seconds, larger)) / _MOST_WAIT
    kept = [(b, s) for b, s in zip(curve.bytes, curve.seconds) if s > least and s <= _AS_LONG * min([inf, *(_between(points, b) for points in others)])]
    return replace(curve, bytes=tuple(b for b, _ in kept), seconds=tuple(s for _, s in kept))


def _is_larger(curve: Curve, than: Curve) -> bool:
    """A group of the same kind on as many hosts of the same device, with more ranks on each, over the same ports."""
    names = ("device", "inside", "kind", "algorithm", "nics", "nic_bytes_per_s")
    alike = all(getattr(curve, name) == getattr(than, name) for name in names)
    return alike and curve.per_host > than.per_host and curve.ranks * than.per_host == than.ranks * curve.per_host


def case_of(curve: Curve) -> tuple[object, ...]:
    """Equal for curves of the same device, kind, group and network."""
    return curve.device, curve.inside, curve.kind, curve.algorithm, curve.ranks, curve.per_host, curve.nics, curve.nic_bytes_per_s


def _between(points: tuple[np.ndarray, np.ndarray], size: float) -> float:
    """Seconds of a message between rows; infinity outside of them."""
    sizes, seconds = points
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(seconds), left=np.inf, right=np.inf)))


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


def wait_bytes(knots: Knots) -> float:
    """Messages up to these take no longer than a wait may (`LONGEST_WAIT_S`); 0: none."""
    wait = np.log(LONGEST_WAIT_S)
    last = int(np.searchsorted(knots.log_seconds, wait, side="right")) - 1
    if last < 0:
        return 0.0
    slope = np.diff(knots.log_seconds[last : last + 2]) / np.diff(knots.log_bytes[last : last + 2]) if last + 1 < knots.log_seconds.size else np.ones(1)
    return float(np.exp(knots.log_bytes[last] + (wait - knots.log_seconds[last]) / slope[0]))


def cap_knots(knots: Knots, others: Sequence[Knots], below: float) -> Knots:
    """Seconds no more than those of other curves, of messages below so many bytes; of messages below the smallest of one no more than of that."""
    curves = (knots, *(other for other in others if not _is_within(knots, other)))
    if len(curves) == 1:
        return knots
    logs = np.unique(np.concatenate([k.log_bytes for k in curves]))
    each = _log_seconds(curves, logs)
    least = np.argmin(each, axis=0)
    turns = np.flatnonzero(least[:-1] != least[1:])  # where another curve is the least, the two cross
    ahead, behind = ((each[least[turns], k] - each[least[turns + 1], k]) for k in (turns, turns + 1))
    share = np.where(ahead < behind, ahead / np.where(ahead < behind, ahead - behind, 1.0), 0.0)
    logs = np.union1d(logs, logs[turns] + (logs[turns + 1] - logs[turns]) * share)
    each = _log_seconds(curves, logs)
    return Knots(logs, np.maximum.accumulate(np.where(np.exp(logs) < below * (1 - 1e-9), each.min(axis=0), each[0])))


def _log_seconds(curves: Sequence[Knots], logs: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(logs, k.log_bytes, k.log_seconds) + np.maximum(0.0, logs - k.log_bytes[-1]) for k in curves])


def raise_knots(knots: Knots, least: Knots, below: float) -> Knots:
    """Seconds no less than those of another curve, of messages below so many bytes, but no more than of these."""
    if _is_within(least, knots):
        return knots
    logs, own, bound = _both(knots, least)
    if below < inf:
        bound = np.minimum(bound, np.log(knots_seconds(knots, np.array(below))))
    return Knots(logs, np.maximum.accumulate(np.where(np.exp(logs) < below * (1 - 1e-9), np.maximum(own, bound), own)))


def _is_within(knots: Knots, other: Knots) -> bool:
    """Nowhere above another curve: between knots of either both are straight."""
    ours, theirs = _log_seconds([knots], other.log_bytes)[0], _log_seconds([other], knots.log_bytes)[0]
    return not np.any(knots.log_seconds > theirs) and not np.any(ours > other.log_seconds)


def _both(one: Knots, other: Knots) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bytes, seconds of each) of two curves at the knots of both and where they cross, in logarithms: between these the lesser and the larger are straight lines, too."""
    logs = np.union1d(one.log_bytes, other.log_bytes)
    ahead = np.subtract(*(np.log(knots_seconds(k, np.exp(logs))) for k in (one, other)))
    crosses = np.flatnonzero(ahead[:-1] * ahead[1:] < 0)
    where = logs[crosses] + (logs[crosses + 1] - logs[crosses]) * ahead[crosses] / (ahead[crosses] - ahead[crosses + 1])
    logs = np.union1d(logs, where)
    first, second = (np.log(knots_seconds(k, np.exp(logs))) for k in (one, other))
    return logs, first, second
