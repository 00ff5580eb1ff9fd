"""Findings: errors of tensors as they come in, and what they are relative to.

The error of a tensor is its largest |program - PyTorch|, relative to its scale: the larger of its own largest magnitude and 1/1000 of the
largest in its kind (a gradient that is zero in exact arithmetic, such as that of a key's bias, is rounding noise in both, and has no scale
of its own). It passes at 1e-10 or less.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import InputError
from ..graph.mesh import print_mesh
from ..graph.plan import Plan
from ..graph.stage_programs import plan_mesh
from .report import KINDS, TOLERANCE, Difference, KindReport, VerifyReport

_KIND_SHARE = 1e-3  # of the largest magnitude in its kind: the least scale of a tensor


class Findings:
    """Collects errors per (kind, tensor, step) while the ranks' pieces come in. Lives for one comparison."""

    def __init__(self) -> None:
        self.errors: dict[tuple[str, str, int], float] = {}
        self.scales: dict[tuple[str, str, int], float] = {}

    def note(self, kind: str, name: str, step: int, ours: Tensor, theirs: Tensor) -> None:
        """Add a tensor, or a rank's piece of it.

        Raises:
            InputError: both are NaN in the same places, so that nothing after them says anything.
        """
        blank = theirs.isnan()
        if bool(blank.any()) and ours.shape == theirs.shape and torch.equal(ours.isnan(), blank):
            raise InputError(
                f"step {step}: {kind} {name} is NaN in {int(blank.sum()):,} of {blank.numel():,} places, in plain PyTorch as in the program, so there is "
                "nothing to compare. Give example inputs and first values that keep the step finite: what is verified has two steps"
            )
        key = (kind, name, step)
        self.errors[key] = max(self.errors.get(key, 0.0), _distance(ours.detach(), theirs.detach()))
        self.scales[key] = max(self.scales.get(key, 0.0), _magnitude(theirs.detach()))

    def differences(self) -> list[Difference]:
        groups: dict[str, float] = {}
        for key, scale in self.scales.items():
            groups[_group(key)] = max(groups.get(_group(key), 0.0), scale)
        rows = []
        for key, error in self.errors.items():
            scale = max(self.scales[key], _KIND_SHARE * groups[_group(key)])
            relative = 0.0 if error == 0 else error / scale if scale > 0 else math.inf
            rows.append(Difference(*key, error, relative))
        return rows

    def report(self, plan: Plan, ranks: int, steps: int) -> VerifyReport:
        rows = self.differences()
        kinds = []
        for kind in KINDS:
            own = [r for r in rows if r.kind == kind]
            if own:
                kinds.append(KindReport(kind, len({r.name for r in own}), max(own, key=lambda r: r.absolute), max(own, key=lambda r: r.relative)))
        failures = sorted((r for r in rows if not r.relative <= TOLERANCE), key=lambda r: -r.relative)
        mesh = print_mesh(plan_mesh(plan))
        in_turns = int(plan.assignment.microbatches > 1)
        return VerifyReport(
            plan.model.name, plan.cluster.spec, mesh, plan.labels, ranks, steps, TOLERANCE, tuple(kinds), tuple(failures), plans_in_turns=in_turns
        )


def _group(key: tuple[str, str, int]) -> str:
    """What shares a scale: the kind; of optimizer states each sort (`exp_avg`) for itself."""
    kind, name, _ = key
    return f"{kind} {name.partition(':')[0]}" if kind == "optimizer state" else kind


def _distance(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape or not ours.numel():
        return 0.0 if ours.shape == theirs.shape else math.inf
    a, b = _wide(ours), _wide(theirs)
    largest = float(torch.where(a == b, 0.0, (a - b).abs()).max())  # equal infinities are equal
    return math.inf if math.isnan(largest) else largest


def _magnitude(tensor: Tensor) -> float:
    finite = _wide(tensor).abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(finite.max()) if finite.numel() else 0.0


def _wide(tensor: Tensor) -> Tensor:
    """Whole numbers and truth values as float64, too; complex numbers stay complex."""
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)
