"""Measured: what `autopar profile` found on this machine, asked in the words of a graph: a node's op and local sizes, a collective's bytes.

In: `MeasuredRows`, an op with its local sizes. Out: seconds, or None where the profile does not know the op (then `cost.ops` has its
formula). A node is a few parts, each a family of `cost.rows` at a shape (`measured_parts`):

    seconds(part) = table(family, shape); where bytes decide, no less than start + bytes / memory bandwidth
    seconds(node) = max( sum_parts times x seconds,  start + sum_parts times x least )

A profile runs an op again and again on the same operands, which stay in the cache where they fit; a step touches each tensor about once,
and all of them are more than a cache holds. So what moves bytes is never faster than the bandwidth of the largest rows (a model that fits
into the cache whole is priced too high). `least` is linear in the part's work, at the best rate of any row of its family: n devices never
take less than the n-th part of it. So a bound that divides it among devices stays below every price, though small pieces are faster than
the curve of large ones says. Collectives: their own rows, by size and group.

Law: positive; what is told from bytes alone never falls with more of them (rows that do are averaged: `rising`). Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log
from statistics import fmean

import numpy as np

from ..errors import ClusterError
from ..graph.rule import Site
from ..graph.tensor import DTYPE_BYTES
from .lookup import MeasuredComm, Reach, Table, measured_comm, measured_comm_seconds, op_table, table_seconds
from .measured_parts import Part, node_parts
from .monotone import pool_falls
from .rows import MEETING, Group, OpRow, ProfileRows, nearest_count, op_work


@dataclass(frozen=True, eq=False, slots=True)
class MeasuredRows:
    """The rows of a profile for one number of ranks at once.

    Args:
        start_s: of the smallest op.
        memory_bytes_per_s: of what no cache holds.
    """

    rows: ProfileRows
    ranks: int
    start_s: float
    memory_bytes_per_s: float


@lru_cache(maxsize=16)
def measured_rows(rows: ProfileRows, ranks: int, start_s: float, memory_bytes_per_s: float) -> MeasuredRows | None:
    """One object for equal profiles: tables are kept by it. None where nothing was measured.

    Args:
        ranks: on one host, all at once.
        start_s, memory_bytes_per_s: `rows.measured_device` at this number of ranks.
    """
    if all(row.seconds is None for row in (*rows.ops, *rows.comms)):
        return None
    return MeasuredRows(replace(rows, ops=tuple(_rising_rows(rows.ops))), ranks, start_s, memory_bytes_per_s)


def _rising_rows(ops: Sequence[OpRow]) -> list[OpRow]:
    """The rows, those of families that bytes or elements alone describe made to rise with them."""
    lines: dict[tuple[str, str, int], list[OpRow]] = {}
    kept = []
    for row in ops:
        if len(row.shape) == 1 and row.seconds is not None:
            lines.setdefault((row.family, row.dtype, row.ranks), []).append(row)
        else:
            kept.append(row)
    for line in lines.values():
        line.sort(key=lambda row: row.shape)
        kept += [replace(row, seconds=s) for row, s in zip(line, rising([row.seconds or 0.0 for row in line]))]
    return kept


def rising(seconds: Sequence[float]) -> list[float]:
    """The nearest sequence, in logarithms, that never falls."""
    logs = [log(value) for value in seconds]
    pooled = pool_falls(logs)
    return [value if mean == own else exp(mean) for value, own, mean in zip(seconds, logs, pooled)]


# --- ops --------------------------------------------------------------------------------------------------------------------------


def node_seconds(
    measured: MeasuredRows, op: str, site: Site | None, dtype: str, elements: np.ndarray, num_inputs: int, flops: np.ndarray,
    moved: np.ndarray,
) -> np.ndarray | None:
    """Seconds of one node per case; None where the profile does not know it.

    Args:
        site: with whole shapes; None: nothing but sizes is known.
        dtype: in which it computes.
        elements: (operands, cases) local sizes of inputs and seen outputs.
        flops, moved: (cases,) local.
    """
    parts = node_parts(op, site, elements, num_inputs, flops, moved)
    tables = _tables(measured, parts, dtype)
    if tables is None:
        return None
    found = sum(part.times * _table_cases(measured, *table, part.shapes) for part, table in zip(parts, tables))
    return np.maximum(found, measured.start_s + _least(measured, parts, tables))


def node_reach(
    measured: MeasuredRows, op: str, site: Site | None, dtype: str, elements: np.ndarray, num_inputs: int, flops: np.ndarray, moved: np.ndarray
) -> Reach:
    """Of the part of a node that takes most: how far outside of the rows its shape lies. Arguments as of `node_seconds`, one case."""
    parts = node_parts(op, site, elements, num_inputs, flops, moved)
    tables = _tables(measured, parts, dtype)
    if not tables:
        return 1.0, ""
    part, (table, _) = max(zip(parts, tables), key=lambda pair: float(np.ravel(pair[0].times * _table_cases(measured, *pair[1], pair[0].shapes))[0]))
    return _cached_reach(table, tuple(np.round(part.shapes, 6).tolist()[0])), table.family


@lru_cache(maxsize=1 << 16)
def _cached_reach(table: Table, shape: tuple[float, ...]) -> float:
    return float(table_seconds(table, np.array([shape]))[1][0])


def node_least_s(
    measured: MeasuredRows, op: str, site: Site, dtype: str, elements: np.ndarray, num_inputs: int, flops: np.ndarray, moved: np.ndarray
) -> np.ndarray | None:
    """What no device takes less than the n-th part of, where n share the node; its start aside. Arguments as of `node_seconds`, whole."""
    parts = node_parts(op, site, elements, num_inputs, flops, moved)
    tables = _tables(measured, parts, dtype)
    return None if tables is None else _least(measured, parts, tables)


def copy_seconds(measured: MeasuredRows, num_bytes: np.ndarray) -> np.ndarray | None:
    """Seconds of moving so many bytes (read and written) into a tensor that is made for them; nothing for none."""
    table = _table(measured, "pointwise", "float32")
    if table is None:
        return None
    num_bytes = np.asarray(num_bytes, dtype=float)
    flat = np.maximum(num_bytes.reshape(-1, 1), 1.0)
    found = np.maximum(table_seconds(table, flat)[0], measured.start_s + flat[:, 0] / measured.memory_bytes_per_s)
    return np.where(num_bytes > 0, found.reshape(num_bytes.shape), 0.0)


def traffic_least_s(measured: MeasuredRows, num_bytes: float) -> float | None:
    """As `node_least_s`, of `copy_seconds`."""
    part = Part("pointwise", np.array([[max(1.0, num_bytes)]]))
    tables = _tables(measured, [part], "float32")
    return None if tables is None else float(_least(measured, [part], tables)[0]) if num_bytes else 0.0


def copy_reach(measured: MeasuredRows, num_bytes: float) -> Reach:
    """As `node_reach`, of `copy_seconds`."""
    table = _table(measured, "pointwise", "float32")
    return (_cached_reach(table, (max(1.0, num_bytes),)), table.family) if table is not None else (1.0, "")


def write_seconds(measured: MeasuredRows, local_bytes: int) -> float | None:
    """Seconds of copying so many bytes into storage that is there."""
    found = _write_parts(measured, local_bytes)
    if found is None:
        return None
    seconds = float(_table_cases(measured, *found[1], found[0].shapes)[0])
    return max(seconds, measured.start_s + _write_least(measured, found))


def write_least_s(measured: MeasuredRows, num_bytes: int) -> float | None:
    """As `node_least_s`, of a write."""
    found = _write_parts(measured, num_bytes)
    return None if found is None else _write_least(measured, found)


def _write_parts(measured: MeasuredRows, num_bytes: int) -> tuple[Part, tuple[Table, float]] | None:
    part = Part("copy", np.array([[max(1.0, 2.0 * num_bytes)]]))
    tables = _tables(measured, [part], "float32")
    return None if tables is None else (part, tables[0])


def _write_least(measured: MeasuredRows, found: tuple[Part, tuple[Table, float]]) -> float:
    return float(_least(measured, [found[0]], [found[1]])[0])


def _tables(measured: MeasuredRows, parts: Sequence[Part], dtype: str) -> list[tuple[Table, float]] | None:
    """Per part its table, and how many times longer than that the dtype takes; None where one is missing."""
    found = []
    for part in parts:
        table, slower = _table(measured, part.family, dtype), 1.0
        if table is None:  # as float32, at the same bytes a second
            table = _table(measured, part.family, "float32")
            slower = 1.0 if part.shapes.shape[1] == 1 else max(1.0, DTYPE_BYTES[dtype] / 4)
        if table is None:
            return None
        found.append((table, slower))
    return found


@lru_cache(maxsize=4096)
def _table(measured: MeasuredRows, family: str, dtype: str) -> Table | None:
    try:
        return op_table(measured.rows, family, dtype, measured.ranks)
    except ClusterError:  # not measured, or only errors
        return None


def _table_cases(measured: MeasuredRows, table: Table, slower: float, shapes: np.ndarray) -> np.ndarray:
    return slower * np.array([_cached_seconds(measured, table, tuple(shape)) for shape in np.round(shapes, 6).tolist()])


@lru_cache(maxsize=1 << 16)
def _cached_seconds(measured: MeasuredRows, table: Table, shape: tuple[float, ...]) -> float:
    found = float(table_seconds(table, np.array([shape]))[0][0])
    if table.rate:
        return found
    return max(found, measured.start_s + op_work(table.family, table.dtype, shape)[1] / measured.memory_bytes_per_s)


def _least(measured: MeasuredRows, parts: Sequence[Part], tables: Sequence[tuple[Table, float]]) -> np.ndarray:
    total = np.zeros(len(parts[0].shapes) if parts else 1)
    for part, (table, slower) in zip(parts, tables):
        flops, moved = op_work(table.family, table.dtype, tuple(part.shapes.T))
        total = total + part.times * slower * (flops if table.rate else moved) / _best_rate(measured, table)
    return total


@lru_cache(maxsize=4096)
def _best_rate(measured: MeasuredRows, table: Table) -> float:
    """The most work per second that any row reached, its start aside (but no more than half of it: the smallest are nothing but start)."""
    shapes = np.exp(table.points)
    flops, moved = op_work(table.family, table.dtype, tuple(shapes.T))
    return float(np.max((flops if table.rate else moved) / np.maximum(table.seconds - measured.start_s, table.seconds / 2)))


# --- collectives ------------------------------------------------------------------------------------------------------------------


def wire_seconds(measured: MeasuredRows, kind: str, group: Group, num_bytes: np.ndarray) -> np.ndarray | None:
    """Seconds of one collective per entry of `num_bytes`; None where the profile has none of its kind.

    Args:
        kind, group, num_bytes: as of `rows.CommRow`.
    """
    table = _measured_comm(measured, kind, group)
    return None if table is None else measured_comm_seconds(table, num_bytes)[0]


def wire_reach(measured: MeasuredRows, kind: str, group: Group, num_bytes: float) -> Reach:
    """As `node_reach`, of `wire_seconds`; what is smaller than all rows travels with others."""
    table = _measured_comm(measured, kind, group)
    return (float(measured_comm_seconds(table, np.array([max(num_bytes, table.num_bytes[0])]))[1][0]), kind) if table is not None else (1.0, "")


@lru_cache(maxsize=256)
def meeting_seconds(measured: MeasuredRows, group: Group) -> float:
    """What a collective that the ranks of a group wait for takes longer after compute than one after the other, whatever its size: the mean of what was measured, which
    is never below nothing; 0 where nothing was."""
    at = [r for r in measured.rows.comms if r.kind == MEETING and r.group == group and r.seconds is not None]
    count, _ = nearest_count(measured.rows, tuple(sorted({r.ranks for r in at})), measured.ranks)
    longer = []
    for row in at:
        alone = wire_seconds(measured, "all_reduce", group, np.array([row.num_bytes])) if row.ranks == count else None
        if alone is not None and row.seconds is not None:
            longer.append(max(0.0, row.seconds - row.beside_s - float(alone[0])))
    return fmean(longer) if longer else 0.0


@lru_cache(maxsize=1024)
def _measured_comm(measured: MeasuredRows, kind: str, group: Group) -> MeasuredComm | None:
    try:
        table = measured_comm(measured.rows, kind, group, measured.ranks)
    except ClusterError:
        return None
    return replace(table, seconds=np.array(rising(table.seconds.tolist())))
