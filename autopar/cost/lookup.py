"""Lookup: seconds of an op or a collective at any shape, between the rows that `autopar profile` measured.

In: `ProfileRows`, a family, a dtype, local shapes. Out: seconds, and how far beyond what was measured they reach. Invariant: at a measured
shape the answer is the measured seconds. Torch-free.

    log seconds(x) = log work(x) + offset + sum_i weight_i |z(x) - z_i|        z: the logarithms of the shape, held inside the measured box

`work` is a roofline of the rows' own best rates: max(FLOPs / rate, bytes / bandwidth) + launch (an op without FLOPs: the best bandwidth of
its own rows, and what its smallest row takes beyond it); the rest of the formula is what the machine makes of it, interpolated. With one
number in a shape (bytes) the sum is straight lines between neighbours in log space; with several it is their usual generalisation, the
linear radial basis function (Wendland 2004, "Scattered Data Approximation", chapter 8), which needs no full grid of points. Outside the
box the efficiency of its edge stands, and the work decides: nothing is guessed but proportionality.

Collectives: straight lines in log space over bytes; below the smallest size its seconds stand, above the largest seconds are proportional.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import ClusterError
from .rows import (
    SHAPE_NAMES,
    CommRow,
    Group,
    OpRow,
    ProfileRows,
    Shape,
    launch_seconds,
    memory_bytes_per_s,
    nearest_count,
    op_work,
    source_text,
)

_AGAIN = "run `autopar profile`"


Reach = tuple[float, str]  # the factor by which a shape lies outside of the rows that price it, 1.0 inside; and their family or kind


class Found(NamedTuple):
    """An answer.

    Args:
        extrapolated: the factor by which the shape lies outside what was measured; 1.0 inside.
        source: one line for people; tells a failed measurement at this very shape.
    """

    seconds: float
    extrapolated: float
    source: str


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """The rows of one family and dtype at one number of ranks, made ready to be asked about many shapes.

    Args:
        points: (rows, dims) logarithms of the measured shapes.
        seconds: (rows,) as measured, times `share`'s inverse where the rows are of fewer ranks.
        weights, offset: of the formula above.
        rate, bytes_per_s, launch_s: of `work`.
        failed: (shape, message) of rows that could not be measured.
        beyond: factor by which the number of ranks, or the group, lies outside what was measured.
        source: one line for people.
    """

    family: str
    dtype: str
    points: np.ndarray
    seconds: np.ndarray
    weights: np.ndarray
    offset: float
    rate: float
    bytes_per_s: float
    launch_s: float
    failed: tuple[tuple[Shape, str], ...]
    beyond: float
    source: str


def op_tables(rows: ProfileRows, ranks: int) -> dict[tuple[str, str], Table]:
    """The table of every (family, dtype) of which something was measured, for so many ranks at once."""
    pairs = dict.fromkeys((r.family, r.dtype) for r in rows.ops if r.seconds is not None)
    return {pair: op_table(rows, *pair, ranks) for pair in pairs}


def op_table(rows: ProfileRows, family: str, dtype: str, ranks: int) -> Table:
    """The rows of one family and dtype for so many ranks at once, ready for `table_seconds`.

    Raises:
        ClusterError: nothing was measured of it, or all of it failed; says which, and why.
    """
    ours = [r for r in rows.ops if (r.family, r.dtype) == (family, dtype)]
    counts = tuple(sorted({r.ranks for r in ours if r.seconds is not None}))
    if not counts:
        raise ClusterError(_nothing(rows, ours, family, dtype))
    count, share = nearest_count(rows, counts, ranks)
    at = [r for r in ours if r.ranks == count and r.seconds is not None]
    failed = tuple((r.shape, r.error) for r in ours if r.ranks == count and r.seconds is None)
    beside = [r for r in rows.ops if r.ranks == count]
    shapes = np.array([r.shape for r in at], dtype=float)
    seconds = np.array([r.seconds for r in at], dtype=float)
    flops, moved = _works(family, dtype, shapes)
    rate = float(np.max(flops / seconds))
    bandwidth = (memory_bytes_per_s(beside) or float("inf")) if rate else float(np.max(moved / seconds))
    launch_s = min(launch_seconds(beside), float(seconds.min()))
    if not rate:  # a group of several ops starts several
        smallest = int(moved.argmin())
        launch_s = max(launch_s, float(seconds[smallest] - moved[smallest] / bandwidth))
    points = np.log(shapes)
    rest = np.log(seconds) - np.log(_roofline(flops, moved, rate, bandwidth, launch_s))
    weights, offset = _fit(points, rest)
    source = source_text(rows, at, count, ranks)
    return Table(
        family,
        dtype,
        points,
        seconds / share,
        weights,
        offset,
        rate * share,
        bandwidth * share,
        launch_s / share,
        failed,
        1 / share,
        source,
    )


def _nothing(rows: ProfileRows, ours: list[OpRow], family: str, dtype: str) -> str:
    machine = rows.machine.device
    if ours:
        return (
            f"profile of {machine}: {family} in {dtype} has no seconds: all {len(ours)} measurements failed, the first, {ours[0].shape} at "
            f"{ours[0].ranks} at once, with {ours[0].error!r}; {_AGAIN} again where it can work"
        )
    there = sorted(
        {f"{r.family} {r.dtype}" for r in rows.ops if r.seconds is not None and (r.family == family or family not in SHAPE_NAMES)}
    )
    unfinished = "" if rows.finished else " (this profile is not finished)"
    like = ", ".join(there) or "nothing like it"
    return f"profile of {machine}: {family} in {dtype} was not measured{unfinished}; measured: {like}; {_AGAIN}"


def table_seconds(table: Table, shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of many shapes, and the factor by which each lies outside what was measured.

    Args:
        shapes: (number, dims); about a microsecond each.
    Raises:
        ClusterError: the shapes have not the dims of the family, or a dim is not positive.
    """
    shapes = np.asarray(shapes, dtype=float)
    names = SHAPE_NAMES[table.family]
    if shapes.ndim != 2 or shapes.shape[1] != len(names) or not (shapes > 0).all():
        raise ClusterError(f"{table.family}: expected shapes of positive ({', '.join(names)}), found an array of {shapes.shape}")
    flops, moved = _works(table.family, table.dtype, shapes)
    work = _roofline(flops, moved, table.rate, table.bytes_per_s, table.launch_s)
    asked = np.log(shapes)
    inside = np.clip(asked, table.points.min(axis=0), table.points.max(axis=0))
    distance = _distances(inside, table.points)
    seconds = work * np.exp(table.offset + distance @ table.weights)
    nearest = distance.argmin(axis=1)
    exact = (asked == table.points[nearest]).all(axis=1)
    outside = np.abs(asked - inside).max(axis=1)
    # all dims inside, yet more (or less) work at once than anything measured: the far corner of a box is often empty
    amount, measured = (flops, _works(table.family, table.dtype, np.exp(table.points))[0]) if table.rate else (moved, None)
    if measured is None:
        measured = _works(table.family, table.dtype, np.exp(table.points))[1]
    amount = np.log(amount)
    held = np.clip(amount, np.log(measured.min()), np.log(measured.max()))
    outside = np.maximum(outside, np.abs(amount - held))
    outside = np.where(outside < 1e-9, 0.0, outside)  # rounding of the logarithms
    return np.where(exact, table.seconds[nearest], seconds), np.exp(outside) * table.beyond


def op_seconds(rows: ProfileRows, family: str, dtype: str, shape: Shape, ranks: int) -> Found:
    """Seconds of one op at one local shape, for so many ranks at once. For many shapes: `op_table`, then `table_seconds`.

    Raises:
        ClusterError: nothing of the family and dtype was measured.
    """
    return table_found(op_table(rows, family, dtype, ranks), shape)


def table_found(table: Table, shape: Shape) -> Found:
    """`table_seconds` of one shape, with its source."""
    seconds, extrapolated = table_seconds(table, np.array([shape]))
    message = dict(table.failed).get(tuple(shape))
    failed = "" if message is None else f"; measuring this shape failed ({message}): from the others"
    return Found(float(seconds[0]), float(extrapolated[0]), table.source + failed)


def _works(family: str, dtype: str, shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`op_work` of many shapes: it is arithmetic, so columns do as well as numbers."""
    flops, moved = op_work(family, dtype, tuple(shapes.T))
    return np.broadcast_to(np.asarray(flops, dtype=float), len(shapes)), np.broadcast_to(np.asarray(moved, dtype=float), len(shapes))


def _roofline(flops: np.ndarray, moved: np.ndarray, rate: float, bandwidth: float, launch_s: float) -> np.ndarray:
    return np.maximum(flops / rate if rate else 0.0, moved / bandwidth) + launch_s


def _distances(asked: np.ndarray, points: np.ndarray) -> np.ndarray:
    """(asked, points) lengths, a dim at a time: exactly 0 where they are equal, and no array of three axes."""
    square = np.zeros((len(asked), len(points)))
    for dim in range(points.shape[1]):
        apart = asked[:, dim, None] - points[None, :, dim]
        square += apart * apart
    return np.sqrt(square)


def _fit(points: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights that sum to 0 and an offset with which the formula passes through all points (|z| is conditionally definite: there is one
    answer)."""
    count = len(points)
    system = np.ones((count + 1, count + 1))
    system[:count, :count] = _distances(points, points)
    system[count, count] = 0.0
    solved = np.linalg.solve(system, np.append(rest, 0.0))
    return solved[:count], float(solved[count])


# --- collectives ------------------------------------------------------------------------------------------------------------------


def comm_seconds(rows: ProfileRows, kind: str, group: Group, ranks: int, num_bytes: int, per_host: int = 0) -> Found:
    """Seconds of one collective. For many sizes: `measured_comm`, then `measured_comm_seconds`.

    Args:
        kind, group, per_host, num_bytes: as of `CommRow`; per_host 0: all ranks are on one host.
    Raises:
        ClusterError: nothing of the kind was measured.
    """
    table = measured_comm(rows, kind, group, ranks, per_host)
    seconds, extrapolated = measured_comm_seconds(table, np.array([num_bytes]))
    message = dict(table.failed).get(num_bytes)
    failed = "" if message is None else f"; measuring this size failed ({message}): from the others"
    return Found(float(seconds[0]), float(extrapolated[0]), table.source + failed)


@dataclass(frozen=True, eq=False, slots=True)
class MeasuredComm:
    """The rows of one kind of collective along one group, ascending in bytes, made ready to be asked about many sizes."""

    num_bytes: np.ndarray
    seconds: np.ndarray
    failed: tuple[tuple[int, str], ...]
    beyond: float
    source: str


def measured_comm(rows: ProfileRows, kind: str, group: Group, ranks: int, per_host: int = 0) -> MeasuredComm:
    """The rows of one kind along one group. Where the group was not measured, one of as many ranks at another distance stands for it, else
    the nearest in size, its seconds scaled by the hops of a ring, (n-1); the source says so, and the table how far that reaches.

    Raises:
        ClusterError: nothing of the kind was measured, or all of it failed.
    """
    ours = [r for r in rows.comms if r.kind == kind and not r.beside and (r.per_host == (per_host or r.ranks))]
    good = [r for r in ours if r.seconds is not None]
    if not good:
        raise ClusterError(_no_comm(rows, ours, kind, per_host))
    groups = {r.group for r in good}
    taken = min(groups, key=lambda g: (abs(np.log(g[0] / group[0])), g[1] != group[1], abs(g[1] - group[1])))
    counts = tuple(sorted({r.ranks for r in good if r.group == taken}))
    count, share = nearest_count(rows, counts, ranks)
    at = sorted((r for r in good if r.group == taken and r.ranks == count), key=lambda r: r.num_bytes)
    failed = tuple((r.num_bytes, r.error) for r in ours if r.seconds is None and r.group == taken and r.ranks == count)
    scale = (group[0] - 1) / (taken[0] - 1) if kind != "send_recv" and group[0] > 1 else 1.0
    instead = "" if taken == group else f", groups {_group_text(taken)} for {_group_text(group)}"
    beyond = max(group[0] / taken[0], taken[0] / group[0]) / share
    sizes, seconds = np.array([r.num_bytes for r in at], dtype=float), np.array([r.seconds for r in at], dtype=float)
    return MeasuredComm(sizes, seconds * scale / share, failed, float(beyond), source_text(rows, at, count, ranks) + instead)


def _group_text(group: Group) -> str:
    return f"of {group[0]} ranks {group[1]} apart"


def _no_comm(rows: ProfileRows, ours: Iterable[CommRow], kind: str, per_host: int) -> str:
    machine = rows.machine.device
    if row := next(iter(ours), None):
        return f"profile of {machine}: {kind} has no seconds: measuring failed, first with {row.error!r}; {_AGAIN} again where it can work"
    there = ", ".join(
        dict.fromkeys(f"{r.kind} with {r.per_host} ranks a host" for r in rows.comms if r.seconds is not None and not r.beside)
    )
    wanted = f" with {per_host} ranks a host" if per_host else ""
    return (
        f"profile of {machine}: {kind}{wanted} was not measured; measured: {there or 'no collective'}; {_AGAIN} with these ranks (torchrun)"
    )


def measured_comm_seconds(table: MeasuredComm, num_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of many sizes, and the factor by which each lies outside what was measured."""
    asked = np.maximum(np.asarray(num_bytes, dtype=float), 1.0)
    low, high = table.num_bytes[0], table.num_bytes[-1]
    seconds = np.exp(np.interp(np.log(asked), np.log(table.num_bytes), np.log(table.seconds))) * np.maximum(1.0, asked / high)
    place = np.minimum(np.searchsorted(table.num_bytes, asked), len(table.num_bytes) - 1)
    exact = table.num_bytes[place] == asked
    return np.where(exact, table.seconds[place], seconds), np.maximum(np.maximum(low / asked, asked / high), 1.0) * table.beyond


def exposed_share(rows: ProfileRows, kind: str, group: Group, ranks: int, num_bytes: int) -> Found | None:
    """Of the seconds of a collective beside compute, the share that lengthens the compute all the same, at the nearest size measured; 1:
    nothing hides, and more where both together take longer than one after the other. None where none was measured beside compute.

    Returns:
        the share in the place of the seconds.
    """
    beside = [r for r in rows.comms if r.kind == kind and r.group == group and r.beside and r.seconds is not None]
    if not beside:
        return None
    count, _ = nearest_count(rows, tuple(sorted({r.ranks for r in beside})), ranks)
    row = min((r for r in beside if r.ranks == count), key=lambda r: abs(np.log(r.num_bytes / num_bytes)))
    assert row.seconds is not None
    alone = comm_seconds(rows, kind, group, row.ranks, row.num_bytes, 0 if row.per_host == row.ranks else row.per_host)
    share = max(0.0, (row.seconds - row.beside_s) / alone.seconds)
    return Found(share, max(row.num_bytes / num_bytes, num_bytes / row.num_bytes), source_text(rows, [row], count, ranks))
