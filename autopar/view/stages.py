"""A plan in stages, or in turns, for people: what each stage does and holds, the schedule as a grid and as boxes over time, what runs how often.

In: a plan. Out: rows and texts; nothing for a plan of one stage. Every number is an entry of the plan, a sum of entries, or the time at which the
plan's own schedule runs an action with the plan's own durations. In print a stage is one row of the pipeline with all its chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..graph.chunk_times import chunk_durations
from ..graph.plan import CommPlan, ParamPlan, Pipeline, Plan, StagePlan
from ..graph.schedules.known import build_order, build_schedule, chunk_ranks, splits_backward
from ..graph.schedules.schedule import settle_slots
from ..graph.schedules.timeline import Durations, action_times
from ..graph.stages import COPY
from ..graph.tensor import Kind
from ..graph.turns import ACCUMULATE, RECEIVE, times_of
from .fold import print_numbers

MOST_STAGES, MOST_MICROBATCHES = 8, 16  # of a schedule that is drawn as a grid
MOST_BLOCKS = 3  # one below the other, where a grid is wider than the page
MOST_BOXES = 2000  # of a schedule that is drawn over time


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage. `modules`: with its degrees, where stages are divided in different ways. Seconds: forward and backward of one microbatch, the others of a
    step; `busy`: the share of the step in which it works."""

    number: int
    modules: str
    num_params: int
    prepare_s: float
    forward_s: float
    backward_s: float
    update_s: float
    busy: float
    in_flight: float
    peak_bytes: int
    state_bytes: int
    activation_bytes: int


@dataclass(frozen=True, slots=True)
class Box:
    """One action of a stage. `chunk`: its place in the whole model, from 0; `kind`: as in a schedule (`F`, `B`, `I`, `W`)."""

    kind: str
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StateSums:
    """Bytes on one rank of a stage, all parameters together; copies of tied ones count as parameters."""

    param_bytes: int
    grad_bytes: int
    optim_bytes: int


PIPE = "pipeline"  # the label that is of no axis


def print_steps(plan: Plan) -> str:
    """`2 stages, 1f1b, 8 microbatches`."""
    return plan.schedule + (f", {plan.num_microbatches} microbatch{'es' if plan.num_microbatches > 1 else ''}" if plan.pipeline else "")


def list_stages(plan: Plan) -> tuple[StageRow, ...]:
    """One row per stage; none for a plan without."""
    if plan.pipeline is None:
        return ()
    rows = []
    for number, s in enumerate(plan.pipeline.stages):
        works = s.prepare_s + plan.num_microbatches * (s.forward_s + s.backward_s) + s.update_s
        rows.append(
            StageRow(
                number, "; ".join(s.modules) + _print_degrees(plan, s), s.num_params, s.prepare_s, s.forward_s, s.backward_s, s.update_s,
                works / plan.cost.step_s if plan.cost.step_s else 0.0, s.in_flight, plan.cost.peak_bytes[number],
                plan.cost.state_bytes[number], plan.cost.activation_bytes[number],
            )
        )  # fmt: skip
    return tuple(rows)


def _print_degrees(plan: Plan, stage: StagePlan) -> str:
    """` as dp=4`, where stages are divided in different ways."""
    sizes = [(role, axis.size) for role, axis in zip(stage.axes, plan.assignment.mesh.axes)]
    degrees = {role: prod(size for other, size in sizes if other == role) for role, _ in sizes}
    return f" as {' '.join(f'{role}={degree}' for role, degree in degrees.items())}" if degrees else ""


def top_stage(plan: Plan) -> int:
    """The stage whose devices hold most: holders and moments are its."""
    return max(range(plan.num_stages), key=lambda s: plan.cost.peak_bytes[s])


def comm_times(plan: Plan, comm: CommPlan) -> int:
    """How often a communication runs in a step. Its seconds count all of them, its bytes one."""
    return int(times_of(comm.phase, plan.num_microbatches))


def print_stage_numbers(numbers: Sequence[int]) -> str:
    """`0..3`, `0,2`."""
    return print_numbers([str(n) for n in numbers])


def param_stages(plan: Plan) -> dict[str, int]:
    """Parameter -> the stage that keeps and updates it."""
    return {t.name.rpartition("@")[0]: t.stage for t in plan.tensors if t.kind is Kind.PARAM and t.version == 0 and COPY not in t.name}


def most_on_a_stage(plan: Plan, params: Sequence[ParamPlan], homes: dict[str, int]) -> int:
    """Bytes of some parameters, their gradients and optimizer states, on one rank of the stage that holds most of them."""
    sums = [0] * plan.num_stages
    for p in params:
        sums[homes.get(p.name, 0)] += p.param_bytes + p.grad_bytes + p.optim_bytes
    return max(sums)


def state_sums(plan: Plan) -> tuple[StateSums, ...]:
    """Per stage. A stage that has a copy of a parameter holds its part of the gradient, too, until the turns are over."""
    homes = param_stages(plan)
    grads, optims, params = ([0] * plan.num_stages for _ in range(3))
    table = {t.name: t for t in plan.tensors}
    summed = [table[o] for n in plan.nodes if n.op == ACCUMULATE for o in n.outputs if table[o].kind is Kind.GRAD]
    for t in summed:
        grads[t.stage] += t.bytes
    for p in plan.params:
        grads[homes.get(p.name, 0)] += 0 if summed else p.grad_bytes
        optims[homes.get(p.name, 0)] += p.optim_bytes
    for t in plan.tensors:
        if t.kind is Kind.PARAM and t.version == 0:
            params[t.stage] += t.bytes
    return tuple(StateSums(*row) for row in zip(params, grads, optims))


def crossing_sums(plan: Plan) -> tuple[int, int, float]:
    """What stages send each other: (values, bytes of a step on one rank each, seconds of a step on their receivers)."""
    sizes = {t.name: t.bytes for t in plan.tensors}
    rows = [n for n in plan.nodes if n.op == RECEIVE]
    total = sum(int(times_of(n.phase, plan.num_microbatches)) * sizes[o] for n in rows for o in n.outputs if o)
    return len(rows), total, sum(n.seconds for n in rows)


# --- the schedule ------------------------------------------------------------------------------------------------------------------


def schedule_lines(plan: Plan, width: int) -> tuple[str, ...]:
    """The schedule as a grid: a row per stage, a column per slot, `F2` the forward of microbatch 2; several chunks on a stage are told apart by
    their place in the model (`1F2`). Wide ones stand in blocks, one below the other; () where it is too large to be read.

    Args:
        width: of a line.
    """
    p = plan.pipeline
    if p is None or plan.num_stages > MOST_STAGES or plan.num_microbatches > MOST_MICROBATCHES:
        return ()
    schedule = build_schedule(p.kind, plan.num_stages, plan.num_microbatches, p.chunks)
    slots = settle_slots(schedule).slots
    count = 1 + max(row[-1] for row in slots)
    cells = [["."] * count for _ in slots]
    for row, places, actions in zip(cells, slots, schedule.actions):
        for slot, action in zip(places, actions):
            row[slot] = str(action) if p.chunks > 1 else f"{action.kind.value}{action.microbatch}"
    heads = [f"stage {number}" for number in range(plan.num_stages)]
    wide, head = max(len(cell) for row in cells for cell in row) + 1, max(map(len, heads)) + 2
    each = max(1, (width - head) // wide)
    if -(-count // each) > MOST_BLOCKS:
        return ()
    lines: list[str] = []
    for first in range(0, count, each):
        lines += [""] * bool(lines)
        lines += [f"{name:{head}}{''.join(f'{cell:{wide}}' for cell in row[first : first + each])}".rstrip() for name, row in zip(heads, cells)]
    return tuple(lines)


def schedule_boxes(plan: Plan) -> tuple[tuple[Box, ...], ...]:
    """Per stage its actions at their simulated times, from the start of the step; () where they are too many to draw."""
    p = plan.pipeline
    if p is None or 2 * plan.num_stages * p.chunks * plan.num_microbatches > MOST_BOXES:
        return ()
    order = build_order(p.kind, plan.num_stages, plan.num_microbatches, p.chunks)
    schedule = build_schedule(p.kind, plan.num_stages, plan.num_microbatches, p.chunks)
    start = max(s.prepare_s for s in p.stages)
    return tuple(
        tuple(Box(a.kind.value, a.stage, a.microbatch, start + begin, start + end) for a, (begin, end) in zip(actions, times))
        for actions, times in zip(schedule.actions, action_times(order, pipeline_durations(p)))
    )


def pipeline_durations(p: Pipeline) -> Durations:
    """Seconds of each chunk for one microbatch."""
    return chunk_durations(p.stages, chunk_ranks(p.kind, len(p.stages), p.chunks), splits_backward(p.kind))
