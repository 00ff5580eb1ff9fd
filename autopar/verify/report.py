"""Reports: what a comparison found, for people and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

TOLERANCE = 1e-10  # of a tensor's scale
_NUM_SHOWN = 5
KINDS = ("loss", "output", "gradient", "parameter", "buffer", "optimizer state")


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor after one step (1, 2): largest absolute error, and that over its scale. `plan`: of which random plan, "" for the chosen."""

    kind: str
    name: str
    step: int
    absolute: float
    relative: float
    plan: str = ""


@dataclass(frozen=True, slots=True)
class KindReport:
    """All tensors of one kind: the largest absolute and the largest relative error, and whose they are."""

    kind: str
    num_tensors: int
    absolute: Difference
    relative: Difference


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was compared, and how far apart it is.

    Args:
        mesh: as text.
        kinds: the worst of all plans.
        failures: what is beyond the tolerance, worst first.
        random_plans: legal plans that were drawn at random and compared, too.
        plans_in_turns: of all plans compared, those that take their batch in turns.
    """

    model: str
    cluster: str
    mesh: str
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    num_ranks: int
    steps: int
    tolerance: float
    kinds: tuple[KindReport, ...]
    failures: tuple[Difference, ...]
    random_plans: int = 0
    plans_in_turns: int = 0


def name_plan(report: VerifyReport, plan: str) -> VerifyReport:
    """The report with the name of its plan at every difference."""
    return replace(
        report,
        kinds=tuple(replace(k, absolute=replace(k.absolute, plan=plan), relative=replace(k.relative, plan=plan)) for k in report.kinds),
        failures=tuple(replace(f, plan=plan) for f in report.failures),
    )


def join_reports(reports: list[VerifyReport]) -> VerifyReport:
    """The first with the worst of all."""
    kinds = []
    for own in reports[0].kinds:
        same = [k for r in reports for k in r.kinds if k.kind == own.kind]
        worst = max(same, key=lambda k: k.absolute.absolute).absolute, max(same, key=lambda k: k.relative.relative).relative
        kinds.append(replace(own, absolute=worst[0], relative=worst[1]))
    failures = sorted((f for r in reports for f in r.failures), key=lambda f: -f.relative)
    in_turns = sum(r.plans_in_turns for r in reports)
    return replace(reports[0], kinds=tuple(kinds), failures=tuple(failures), random_plans=len(reports) - 1, plans_in_turns=in_turns)


def describe_failure(report: VerifyReport) -> str:
    """Why the report is no success, naming the worst; "" where all is well."""
    if not report.failures:
        return ""
    names = {(r.kind, r.name) for r in report.failures}
    total = sum(k.num_tensors for k in report.kinds)
    lines = [
        f"{report.model} on {report.cluster} (mesh {report.mesh}) differs from plain PyTorch: {len(names)} of {total} tensors by more than "
        f"{report.tolerance:g} of their scale."
    ]
    lines += [
        f"  {r.kind} {r.name}, step {r.step}{', ' + r.plan if r.plan else ''}: {r.absolute:.3g} ({r.relative:.3g} of its scale)"
        for r in report.failures[:_NUM_SHOWN]
    ]
    if len(report.failures) > _NUM_SHOWN:
        lines.append(f"  and {len(report.failures) - _NUM_SHOWN} more")
    return "\n".join(lines)


def report_to_json(report: VerifyReport) -> dict[str, Any]:
    """The report as JSON data; an error that is no number (NaN, another shape) is null."""

    def row(entry: Difference) -> dict[str, Any]:
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(entry).items()}

    return {
        "passed": not report.failures,
        "model": report.model,
        "cluster": report.cluster,
        "mesh": report.mesh,
        "labels": {axis: list(names) for axis, names in report.labels},
        "num_ranks": report.num_ranks,
        "steps": report.steps,
        "random_plans": report.random_plans,
        "plans_in_turns": report.plans_in_turns,
        "tolerance": report.tolerance,
        "kinds": [
            {"kind": k.kind, "num_tensors": k.num_tensors, "absolute": row(k.absolute), "relative": row(k.relative)} for k in report.kinds
        ],
        "failures": [row(r) for r in report.failures],
    }
