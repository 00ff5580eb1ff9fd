"""Verification: the program of a plan, run on all ranks in one process in float64, against plain PyTorch.

In: a workload, a cluster, options. Out: a `VerifyReport`. Nothing of the compiler is in the reference: it is the user's own module with the
same first values, `loss.backward()`, and the user's optimizer; only its random ops are answered with the program's numbers (`draws`). Two
steps on different batches, so that what is carried is covered. Compared are the loss of every rank, every gradient, and after the update
every rank's piece of every parameter, buffer and optimizer state.

The rule. The error of a tensor is its largest |program - PyTorch|, relative to its scale: the larger of its own largest magnitude and 1/1000
of the largest in its kind (a gradient that is zero in exact arithmetic, such as that of a key's bias, is rounding noise in both, and
has no scale of its own). It passes at 1e-10 or less. The update is judged on equal gradients: PyTorch's optimizer is given
the program's, which have just been compared; else Adam, which divides a gradient by its own size, would show the noise of such a gradient
as an error of the update.
"""

from __future__ import annotations

from .compare import STEPS, compare_plan, draw_plans, verify_workload
from .reference import first_values, make_batch, real_model
from .report import KINDS, TOLERANCE, Difference, KindReport, VerifyReport, describe_failure, report_to_json

__all__ = [
    "KINDS", "STEPS", "TOLERANCE", "Difference", "KindReport", "VerifyReport", "compare_plan", "describe_failure", "draw_plans", "first_values",
    "make_batch", "real_model", "report_to_json", "verify_workload",
]  # fmt: skip
