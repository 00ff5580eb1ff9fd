"""Linear and integer programs in bulk, solved with HiGHS. The only file that knows ortools.

In: a `LinearProgram` of numpy arrays. Out: a `Solution` with the solver's own bound. Minimisation only. The caller scales: HiGHS works
with absolute tolerances of 1e-7 to 1e-6, so objective and rows should be of the order of 1 to 1e4.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt


@dataclass(frozen=True, slots=True)
class Rows:
    """Constraints `lower <= A x <= upper`, A by coordinates."""

    lower: np.ndarray
    upper: np.ndarray
    row: np.ndarray
    column: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """minimise cost . x, 0 <= x <= upper, rows; the columns of `integer` are whole numbers."""

    cost: np.ndarray
    upper: np.ndarray
    integer: np.ndarray
    rows: Rows


@dataclass(frozen=True, slots=True)
class Solution:
    """`values` is None where none was found; `bound` is a valid lower bound of the program (-inf where there is none)."""

    status: str  # "optimal", "feasible", "infeasible", "unknown"
    values: np.ndarray | None
    objective: float
    bound: float


def join_rows(parts: list[Rows]) -> Rows:
    """Rows of several parts, one after another."""
    offsets = np.cumsum([0, *(len(p.lower) for p in parts)])
    return Rows(
        np.concatenate([p.lower for p in parts]),
        np.concatenate([p.upper for p in parts]),
        np.concatenate([p.row + o for p, o in zip(parts, offsets)]),
        np.concatenate([p.column for p in parts]),
        np.concatenate([p.value for p in parts]),
    )


def solve_program(
    program: LinearProgram, *, relaxed: bool, time_limit_s: float, relative_gap: float = 1e-4
) -> Solution:
    """Solve.

    Args:
        relaxed: drop the integrality (a plain LP).
        relative_gap: a MIP may stop at this gap.
    """
    model = mathopt.Model.from_model_proto(_to_proto(program, relaxed))
    limit = timedelta(seconds=max(0.05, time_limit_s))
    parameters = mathopt.SolveParameters(time_limit=limit, relative_gap_tolerance=None if relaxed else relative_gap, absolute_gap_tolerance=None if relaxed else 0.0)
    with _quiet_stdout():
        result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=parameters)
    return _read(result, len(program.cost))


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """HiGHS 1.x prints some debugging lines with printf, whatever it is told; they go to stderr, for stdout may be somebody's JSON."""
    try:
        saved = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    libc = ctypes.CDLL(None)
    try:
        libc.fflush(None)
        os.dup2(2, 1)
        yield
    finally:
        libc.fflush(None)
        os.dup2(saved, 1)
        os.close(saved)


def _to_proto(program: LinearProgram, relaxed: bool) -> model_pb2.ModelProto:
    proto = model_pb2.ModelProto()
    count, rows = len(program.cost), program.rows
    proto.variables.ids.extend(range(count))
    proto.variables.lower_bounds.extend(np.zeros(count))
    proto.variables.upper_bounds.extend(program.upper)
    proto.variables.integers.extend([False] * count if relaxed else program.integer.tolist())
    priced = np.flatnonzero(program.cost)
    proto.objective.linear_coefficients.ids.extend(priced.tolist())
    proto.objective.linear_coefficients.values.extend(program.cost[priced])
    proto.linear_constraints.ids.extend(range(len(rows.lower)))
    proto.linear_constraints.lower_bounds.extend(rows.lower)
    proto.linear_constraints.upper_bounds.extend(rows.upper)
    # one entry per (row, column), in order, as MathOpt wants them
    key = rows.row.astype(np.int64) * count + rows.column
    unique, where = np.unique(key, return_inverse=True)
    summed = np.bincount(where, weights=rows.value, minlength=len(unique))
    kept = summed != 0
    unique, summed = unique[kept], summed[kept]
    proto.linear_constraint_matrix.row_ids.extend((unique // count).tolist())
    proto.linear_constraint_matrix.column_ids.extend((unique % count).tolist())
    proto.linear_constraint_matrix.coefficients.extend(summed)
    return proto


def _read(result: mathopt.SolveResult, count: int) -> Solution:
    reason = result.termination.reason
    names = {mathopt.TerminationReason.OPTIMAL: "optimal", mathopt.TerminationReason.FEASIBLE: "feasible"}
    status = names.get(reason, "unknown")
    if reason in (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED):
        return Solution("infeasible", None, math.inf, math.inf)
    bound = result.termination.objective_bounds.dual_bound
    if not result.has_primal_feasible_solution():
        return Solution(status, None, math.inf, bound)
    found = result.variable_values()
    values = np.zeros(count)
    for variable, value in found.items():
        values[variable.id] = value
    return Solution(status, values, result.objective_value(), bound)
