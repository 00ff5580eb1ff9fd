"""A replayed step as text: what `autopar simulate` prints.

In: a plan and its `Simulation`. Out: lines that never exceed the width. The parts add up to the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cost.simulate import PHASES, Part, Simulation
from ..graph.plan import counted
from .lines import Column, print_heading, print_line, print_rows, print_under_way
from .terminal import print_error
from .units import print_bytes, print_ms, print_percent

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.plan import Plan
    from ..graph.plan_json import Json

_PARTS = (Column("what"), Column("seconds", True), Column("of the step", True))
_STAGES = (
    Column("stage"), Column("forward", True, True), Column("backward", True, True), Column("waits", True, True), Column("update", True, True),
    Column("peak", True, True), Column("modules"),
)  # fmt: skip


def print_simulation(plan: Plan, found: Simulation, console: Console) -> None:
    """Print a replayed step.

    Args:
        console: a rich console.
    """
    from rich.text import Text

    console.print(Text(f"{plan.model.name} on {plan.cluster.spec}: one step, replayed", style="bold"))
    print_line(console, f"step      {print_ms(found.step_s)}; the plan says {print_ms(found.planned_s)} ({found.step_s / found.planned_s - 1:+.1%})")
    if plan.cost.tokens_per_s:
        print_line(console, f"rate      {plan.cost.tokens_per_s * found.planned_s / found.step_s:,.0f} {counted(plan)}/s")
    if plan.cost.mfu:
        print_line(console, f"MFU       {print_percent(plan.cost.mfu * found.planned_s / found.step_s)} of the nominal peak")
    turns = f"; {plan.num_microbatches} microbatches" if plan.num_microbatches > 1 else ""
    print_line(console, f"schedule  {plan.schedule}{turns}")
    print_line(console, print_error(plan.cost), "dim")
    print_heading(console, "Where the step goes", "on the average device; communication: what compute waits for, or loses beside it; late: after the backward pass")
    totals = sum_parts(found.parts)
    rows = []
    for group, seconds in totals.items():
        rows.append((group, print_ms(seconds), print_percent(seconds / found.step_s)))
        rows += [(f"  {p.what}", print_ms(p.seconds), print_percent(p.seconds / found.step_s)) for p in found.parts if p.group == group]
    print_rows(console, _PARTS, rows)
    print_heading(console, "Stages" if plan.num_stages > 1 else "Passes", "forward and backward of one microbatch, what they wait for other devices, the update")
    print_rows(console, _STAGES, [_stage_row(plan, found, k) for k in range(plan.num_stages)])
    print_under_way(console, max(plan.cost.under_way_bytes))


def _stage_row(plan: Plan, found: Simulation, stage: int) -> tuple[str, ...]:
    passes = found.stages[stage].passes
    modules = "\n".join(plan.pipeline.stages[stage].modules) if plan.pipeline is not None else "all"
    waits = sum(s for one in passes[1:3] for _, s in one.waits)
    forward, backward, update = (print_ms(one.seconds) for one in passes[1:])
    return (str(stage), forward, backward, print_ms(waits), update, print_bytes(plan.cost.peak_bytes[stage]), modules)


def simulation_to_json(plan: Plan, found: Simulation) -> Json:
    """The same for machines; seconds and bytes."""
    return {
        "model": plan.model.name,
        "cluster": plan.cluster.spec,
        "step_s": found.step_s,
        "planned_s": found.planned_s,
        "relative_error": plan.cost.relative_error,
        "error_source": plan.cost.error_source,
        "tokens_per_s": plan.cost.tokens_per_s * found.planned_s / found.step_s if plan.cost.tokens_per_s else None,
        "mfu": plan.cost.mfu * found.planned_s / found.step_s if plan.cost.mfu else None,
        "num_stages": plan.num_stages,
        "num_microbatches": plan.num_microbatches,
        "schedule": plan.schedule,
        "parts": [{"group": p.group, "what": p.what, "seconds": p.seconds} for p in found.parts],
        "stages": [
            {
                **{f"{phase.value}_s": one.seconds for phase, one in zip(PHASES, stage.passes)},
                "peak_bytes": plan.cost.peak_bytes[k],
                "under_way_bytes": plan.cost.under_way_bytes[k],
                "state_bytes": plan.cost.state_bytes[k],
                "waits": [{"name": name, "seconds": s} for one in stage.passes for name, s in one.waits],
            }
            for k, stage in enumerate(found.stages)
        ],
        "summary": plan.summary,
        "labels": {axis: list(words) for axis, words in plan.labels},
    }


def sum_parts(parts: tuple[Part, ...]) -> dict[str, float]:
    """Group -> seconds."""
    found: dict[str, float] = {}
    for part in parts:
        found[part.group] = found.get(part.group, 0.0) + part.seconds
    return found
