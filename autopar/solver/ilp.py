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
from ortools.math_opt import model_pb2, result_pb2, solution_pb2
from ortools.math_opt.core.python import solver
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
    """`values` is None where none was found; `bound` is a valid lower bound of the program (-inf where there is none).

    `reduced`: of an LP solved to the end, by how much its optimum rises at least per unit of a column that it does not use; else None.
    """

    status: str  # "optimal", "feasible", "infeasible", "unknown"
    values: np.ndarray | None
    objective: float
    bound: float
    reduced: np.ndarray | None = None


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
    program: LinearProgram, *, relaxed: bool, time_limit_s: float, relative_gap: float = 1e-4, presolved: bool = True, enough: float = math.inf
) -> Solution:
    """Solve.

    Args:
        relaxed: drop the integrality (a plain LP).
        relative_gap: a MIP may stop at this gap.
        presolved: HiGHS makes the program smaller first, which takes longer than solving a small LP.
        enough: a bound that is as high is not raised further, and nothing else is wanted then (`Solution.status` is unknown).
    """
    limit = timedelta(seconds=max(0.05, time_limit_s))
    settings = {} if relaxed else {"relative_gap_tolerance": relative_gap, "absolute_gap_tolerance": 0.0}
    if not presolved:
        settings["presolve"] = mathopt.Emphasis.OFF
    if enough < math.inf:
        settings["best_bound_limit"] = enough
    # straight to the solver: a `mathopt.Model`, and a solution over its variables, cost more than many of these programs
    with _quiet_stdout():
        result = solver.solve(
            _to_proto(program, relaxed),
            mathopt.SolverType.HIGHS.value,
            mathopt.StreamableSolverInitArguments().to_proto(),
            mathopt.SolveParameters(time_limit=limit, **settings).to_proto(),
            mathopt.ModelSolveParameters().to_proto(),
            None,
            mathopt.CallbackRegistration().to_proto(),
            None,
            None,
        )
    return _read(result, len(program.cost))


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """HiGHS 1.x prints some debugging lines with printf, whatever it is told; nobody wants them, and stdout may be somebody's JSON."""
    try:
        saved = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    libc = ctypes.CDLL(None)
    try:
        libc.fflush(None)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        yield
    finally:
        libc.fflush(None)
        os.dup2(saved, 1)
        os.close(saved)


def _to_proto(program: LinearProgram, relaxed: bool) -> model_pb2.ModelProto:
    proto = model_pb2.ModelProto()
    count, rows = len(program.cost), program.rows
    proto.variables.ids.extend(range(count))
    proto.variables.lower_bounds.extend([0.0] * count)
    proto.variables.upper_bounds.extend(program.upper.tolist())
    proto.variables.integers.extend([False] * count if relaxed else program.integer.tolist())
    priced = np.flatnonzero(program.cost)
    proto.objective.linear_coefficients.ids.extend(priced.tolist())
    proto.objective.linear_coefficients.values.extend(program.cost[priced].tolist())
    proto.linear_constraints.ids.extend(range(len(rows.lower)))
    proto.linear_constraints.lower_bounds.extend(rows.lower.tolist())
    proto.linear_constraints.upper_bounds.extend(rows.upper.tolist())
    row, column, value = _in_order(rows, count)
    proto.linear_constraint_matrix.row_ids.extend(row.tolist())
    proto.linear_constraint_matrix.column_ids.extend(column.tolist())
    proto.linear_constraint_matrix.coefficients.extend(value.tolist())
    return proto


def _in_order(rows: Rows, num_columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One entry per (row, column), in order, none of them zero, as MathOpt wants them."""
    key = rows.row.astype(np.int64) * num_columns + rows.column
    order = np.argsort(key, kind="stable")  # the parts are nearly in order: a merge sort is quick there
    key, value = key[order], rows.value[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    if len(starts) < len(key):
        key, value = key[starts], np.add.reduceat(value, starts)
    kept = value != 0
    if not kept.all():
        key, value = key[kept], value[kept]
    return *np.divmod(key, num_columns), value


def _read(result: result_pb2.SolveResultProto, count: int) -> Solution:
    reason = result.termination.reason
    if reason in (result_pb2.TERMINATION_REASON_INFEASIBLE, result_pb2.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED):
        return Solution("infeasible", None, math.inf, math.inf)
    names = {result_pb2.TERMINATION_REASON_OPTIMAL: "optimal", result_pb2.TERMINATION_REASON_FEASIBLE: "feasible"}
    status = names.get(reason, "unknown")
    bound = result.termination.objective_bounds.dual_bound
    found = result.solutions[0].primal_solution if result.solutions else None
    if found is None or found.feasibility_status != solution_pb2.SOLUTION_STATUS_FEASIBLE:
        return Solution(status, None, math.inf, bound)
    values = np.zeros(count)
    values[np.array(found.variable_values.ids, dtype=np.int64)] = np.array(found.variable_values.values, dtype=float)
    return Solution(status, values, found.objective_value, bound, _read_reduced(result, count) if status == "optimal" else None)


def _read_reduced(result: result_pb2.SolveResultProto, count: int) -> np.ndarray | None:
    found = result.solutions[0].dual_solution
    if found.feasibility_status != solution_pb2.SOLUTION_STATUS_FEASIBLE:
        return None
    reduced = np.zeros(count)
    reduced[np.array(found.reduced_costs.ids, dtype=np.int64)] = np.array(found.reduced_costs.values, dtype=float)
    return reduced
