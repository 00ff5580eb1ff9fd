"""Lookup: exact where measured, between neighbours elsewhere, and honest about the rest."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from autopar.cost.lookup import (
    comm_seconds,
    exposed_share,
    measured_comm,
    measured_comm_seconds,
    op_seconds,
    op_table,
    op_tables,
    table_seconds,
)
from autopar.cost.profile_grid import op_jobs
from autopar.cost.rows import ProfileRows
from autopar.errors import ClusterError

from .test_rows import MACHINE, ROWS, comm, op

LAUNCH, RATE, BANDWIDTH = 2e-6, 40e9, 10e9


def true_matmul_s(shape):
    """A machine of which the small and the thin reach less, as real ones do."""
    m, n, k = shape
    reached = np.prod([d / (d + 32) for d in shape])
    return max(2 * m * n * k / (RATE * reached), 4 * (m * k + n * k + m * n) / BANDWIDTH) + LAUNCH


POINTS = [job.shape for job in op_jobs("cpu") if (job.family, job.dtype) == ("matmul", "float32")]
MATMULS = ProfileRows(
    MACHINE,
    (
        op("launch", "float32", (8,), 2, LAUNCH), op("copy", "float32", (2**26,), 2, 2**26 / BANDWIDTH),
        *(op("matmul", "float32", s, 2, true_matmul_s(s)) for s in POINTS),
        *(op("gelu", "float32", (2**n,), 2, 1e-6 * 2 ** (n - 10)) for n in (10, 14, 20)),
        op("gelu", "float32", (2**26,), 2, None, "MemoryError: no memory"), op("cast", "float32", (2**14,), 2, None, "TypeError: not here"),
    ),
    (),
)  # fmt: skip


def test_measured_points_are_exact():
    for row in (*MATMULS.ops, *ROWS.ops):
        if row.seconds is not None:
            rows = MATMULS if row in MATMULS.ops else ROWS
            assert op_seconds(rows, row.family, row.dtype, row.shape, row.ranks)[:2] == (row.seconds, 1.0)


def test_matmuls_between_the_points():
    rng = np.random.default_rng(3)
    shapes = np.exp(rng.uniform(np.log(32), np.log(1024), (300, 3))).round().astype(int)
    seconds, extrapolated = table_seconds(op_table(MATMULS, "matmul", "float32", 2), shapes)
    error = np.abs(np.log(seconds / [true_matmul_s(s) for s in shapes]))
    assert np.median(error) < 0.08 and np.quantile(error, 0.9) < 0.25
    assert (extrapolated == 1.0).mean() > 0.95


def test_one_number_is_between_its_neighbours_and_a_launch_with_bytes_comes_out():
    rows = replace(MATMULS, ops=(op("pointwise", "float32", (100,), 2, 1e-3), op("pointwise", "float32", (10000,), 2, 4e-3)))
    found = op_seconds(rows, "pointwise", "float32", (1000,), 2)
    assert 1e-3 < found.seconds < 4e-3 and found.extrapolated == 1.0
    for launches in (1, 8):
        model = [op("adamw", "float32", (2**n,), 2, launches * LAUNCH + 40 * 2**n / BANDWIDTH) for n in (8, 12, 16, 22)]
        rows = replace(MATMULS, ops=(*MATMULS.ops[:2], *model))
        for n in (9, 10, 13, 14, 18):
            expected = launches * LAUNCH + 40 * 2**n / BANDWIDTH
            assert op_seconds(rows, "adamw", "float32", (2**n,), 2).seconds == pytest.approx(expected, rel=0.1)


def test_outside_the_work_decides_and_the_factor_is_told():
    largest = op_seconds(MATMULS, "matmul", "float32", (1024, 1024, 1024), 2)
    found = op_seconds(MATMULS, "matmul", "float32", (8192, 4096, 4096), 2)
    assert found.extrapolated == pytest.approx(8 * 4 * 4)  # the work is further out than any dim
    assert found.seconds == pytest.approx(largest.seconds * 128, rel=0.3)
    assert op_seconds(MATMULS, "matmul", "float32", (4096, 4096, 4096), 2).extrapolated == pytest.approx(64), (
        "inside every dim, yet never measured"
    )
    assert op_seconds(MATMULS, "matmul", "float32", (16, 16, 8), 2).extrapolated == pytest.approx(2)
    found = op_seconds(MATMULS, "gelu", "float32", (2**23,), 2)
    assert found[:2] == (pytest.approx(8 * 1e-6 * 2**10, rel=1e-2), pytest.approx(8))


def test_one_row_alone_gives_its_rate():
    lone = replace(MATMULS, ops=(op("matmul", "float32", (64, 64, 64), 2, 1e-3),))
    assert op_seconds(lone, "matmul", "float32", (128, 64, 64), 2)[:2] == (pytest.approx(2e-3), pytest.approx(2.0))


def test_other_numbers_of_ranks_share():
    shape = (512, 512, 512)
    assert op_seconds(ROWS, "matmul", "float32", shape, 8).seconds == pytest.approx(
        2 * op_seconds(ROWS, "matmul", "float32", shape, 4).seconds
    )
    found = op_seconds(ROWS, "matmul", "float32", shape, 8)
    assert found.extrapolated == 2.0 and "4 at once, scaled to 8" in found.source
    gpu = replace(ROWS, machine=replace(MACHINE, device="NVIDIA H200"), ops=tuple(r for r in ROWS.ops if r.ranks == 1))
    found = op_seconds(gpu, "matmul", "float32", shape, 8)
    assert found[:2] == (op_seconds(ROWS, "matmul", "float32", shape, 1).seconds, 1.0), "GPUs do not share"
    assert found.source == "measured 2026-11-20 on NVIDIA H200, torch 2.13.0"


def test_a_failed_measurement_says_so():
    found = op_seconds(MATMULS, "gelu", "float32", (2**26,), 2)
    assert "measuring this shape failed (MemoryError: no memory): from the others" in found.source and found.extrapolated == pytest.approx(
        64
    )
    with pytest.raises(ClusterError) as error:
        op_seconds(MATMULS, "cast", "float32", (2**14,), 2)
    assert str(error.value) == (
        "profile of cpu: cast in float32 has no seconds: all 1 measurements failed, the first, (16384,) at 2 at once, with "
        "'TypeError: not here'; run `autopar profile` again where it can work"
    )


def test_what_was_not_measured_is_an_error():
    with pytest.raises(ClusterError) as error:
        op_seconds(replace(MATMULS, finished=False), "matmul", "float16", (1, 1, 1), 2)
    assert str(error.value) == (
        "profile of cpu: matmul in float16 was not measured (this profile is not finished); measured: matmul float32; run `autopar profile`"
    )
    with pytest.raises(ClusterError, match=r"matmul: expected shapes of positive \(m, n, k\), found an array of \(1, 2\)"):
        op_seconds(MATMULS, "matmul", "float32", (3, 4), 2)
    with pytest.raises(ClusterError, match=r"matmul: expected shapes of positive \(m, n, k\)"):
        op_seconds(MATMULS, "matmul", "float32", (3, 4, 0), 2)


def test_tables_hold_what_was_measured():
    assert set(op_tables(MATMULS, 2)) == {("matmul", "float32"), ("gelu", "float32"), ("launch", "float32"), ("copy", "float32")}


def test_many_shapes_take_a_few_microseconds_each():
    table = op_table(MATMULS, "matmul", "float32", 2)
    shapes = np.random.default_rng(0).integers(16, 4096, (20000, 3))
    began = time.process_time()
    table_seconds(table, shapes)
    assert (time.process_time() - began) / len(shapes) < 10e-6


def test_collectives_between_sizes_and_outside():
    rows = ROWS.comms
    for row in rows:
        if row.seconds is not None and not row.beside:
            assert comm_seconds(ROWS, row.kind, row.group, row.ranks, row.num_bytes)[:2] == (row.seconds, 1.0)
    small, middle, large = (r.seconds for r in rows[:3])
    assert comm_seconds(ROWS, "all_gather", (2, 1), 2, 2**12).seconds == pytest.approx((small * middle) ** 0.5)
    assert comm_seconds(ROWS, "all_gather", (2, 1), 2, 2**24)[:2] == (pytest.approx(2 * large), 2.0)
    assert comm_seconds(ROWS, "all_gather", (2, 1), 2, 2**6)[:2] == (pytest.approx(small), 4.0)
    seconds, _ = measured_comm_seconds(measured_comm(ROWS, "all_gather", (2, 1), 2), np.array([2**8, 2**12, 0]))
    assert seconds == pytest.approx([small, (small * middle) ** 0.5, small])


def test_other_groups_stand_in_and_are_named():
    found = comm_seconds(ROWS, "all_gather", (2, 2), 4, 2**16)
    assert "2 at once, scaled to 4, groups of 2 ranks 1 apart for of 2 ranks 2 apart" in found.source and found.extrapolated == 2.0
    found = comm_seconds(ROWS, "all_gather", (8, 1), 8, 2**16)
    assert (
        found.seconds == pytest.approx(comm_seconds(ROWS, "all_gather", (4, 1), 4, 2**16).seconds * 7 / 3 * 2) and found.extrapolated == 4.0
    )


def test_collectives_that_were_not_measured_or_failed():
    with pytest.raises(ClusterError) as error:
        comm_seconds(ROWS, "all_reduce", (2, 2), 4, 1024)
    assert str(error.value) == (
        "profile of cpu: all_reduce has no seconds: measuring failed, first with 'RuntimeError: no route'; "
        "run `autopar profile` again where it can work"
    )
    with pytest.raises(ClusterError) as error:
        comm_seconds(ROWS, "all_to_all", (4, 1), 4, 1024)
    assert str(error.value) == (
        "profile of cpu: all_to_all was not measured; measured: all_gather with 2 ranks a host, all_gather with 4 ranks a host; "
        "run `autopar profile` with these ranks (torchrun)"
    )
    failed = replace(ROWS, comms=(*ROWS.comms, comm("all_gather", (4, 1), 4, 2**20, None, "RuntimeError: lost")))
    assert "measuring this size failed (RuntimeError: lost): from the others" in comm_seconds(failed, "all_gather", (4, 1), 4, 2**20).source


def test_what_a_collective_beside_compute_still_costs():
    alone = comm("all_reduce", (4, 1), 4, 1024, 4e-3)
    found = exposed_share(replace(ROWS, comms=(*ROWS.comms, alone)), "all_reduce", (4, 1), 4, 2048)
    assert found is not None and found[:2] == (pytest.approx((3e-3 - 1e-3) / 4e-3), 2.0)
    assert exposed_share(ROWS, "all_gather", (4, 1), 4, 1024) is None
