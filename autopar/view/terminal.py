"""A plan as text: what `autopar plan` and `autopar show` print, and `str(plan)`.

In: a plan and a width. Out: lines that never exceed the width: a table where it fits whole, else one record per row (`lines`).
Every number is an entry of the plan or the sum of entries; what a total does not count is said beside it. `rich` is imported when
something is printed, never when this file is.
"""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

from ..graph.mesh import print_mesh
from ..graph.plan import CommPlan, Cost, Plan, counted
from ..graph.registry import RuleRow
from ..graph.schedules.known import kind_name, runs_backward, splits_backward
from ..graph.sharding import Sharding
from ..graph.tensor import Kind
from .fold import fold_names
from .lines import Column, print_bar, print_heading, print_line, print_rows, print_text, print_under_way
from .stages import (
    comm_times,
    crossing_sums,
    list_stages,
    most_on_a_stage,
    param_stages,
    print_stage_numbers,
    print_steps,
    schedule_lines,
    state_sums,
    top_stage,
)
from .units import print_bytes, print_count, print_ms, print_percent

if TYPE_CHECKING:
    from rich.console import Console

STATE_TABLE_ROWS = 40


def print_plan(plan: Plan, console: Console) -> None:
    """Print the plan.

    Args:
        console: a rich console; its width decides between tables and records.
    """
    for section in (_print_head, _print_stages, _print_states, _print_activations, _print_time, _print_memory, _print_comms, _print_rules, _print_certificate):
        section(plan, console)


def plan_text(plan: Plan, width: int = 100) -> str:
    """The same as plain text.

    Args:
        width: in columns.
    """
    return print_text(lambda console: print_plan(plan, console), width)


def _print_head(plan: Plan, console: Console) -> None:
    from rich.text import Text

    model, cluster = plan.model, plan.cluster
    console.print(Text(f"{model.name} on {cluster.spec}", style="bold"))
    batch = "".join(f", {name} {n}" for name, n in (("batch", model.batch), ("sequence", model.seq)) if n is not None)
    print_line(console, f"model    {print_count(model.num_params)} parameters, {model.precision}{batch}, {len(plan.nodes):,} nodes")
    hosts = f"{cluster.num_hosts} host{'s' if cluster.num_hosts > 1 else ''}"
    print_line(console, f"cluster  {cluster.num_devices} x {cluster.device} on {hosts}, {print_bytes(cluster.memory_bytes)} each")
    print_line(console, f"mesh     {print_mesh(plan.assignment.mesh)}" + (f" for each of {plan.num_stages} stages" if plan.num_stages > 1 else ""))
    axes = {axis.name for axis in plan.assignment.mesh.axes}
    for axis, names in plan.labels:
        if axis in axes:
            print_line(console, f"axis {axis}   {' + '.join(names) or 'replicated'}")
    print_line(console, f"steps    {print_steps(plan)}")
    if plan.constraints:
        print_line(console, f"fixed    {', '.join(plan.constraints)}")
    if plan.summary:
        print_line(console, plan.summary, "italic")
    if plan.free_step_s is not None:
        print_line(console, price_sentence(plan))


def _print_stages(plan: Plan, console: Console) -> None:
    """What each stage does and holds, and when."""
    rows = list_stages(plan)
    if not rows:
        return
    turn = f"one of {plan.num_microbatches} microbatches" if plan.num_microbatches > 1 else "the whole batch"
    note = f"forward and backward of {turn}; the busy share is of the step, the peak of one device"
    print_heading(console, "Stages", note)
    before = any(row.prepare_s for row in rows)
    titles = ("parameters", *(("before",) if before else ()), "forward", "backward", "update", "busy", "in flight", "peak")
    shown = []
    for row in rows:
        times = (*((row.prepare_s,) if before else ()), row.forward_s, row.backward_s, row.update_s)
        told = (print_count(row.num_params), *map(print_ms, times), print_percent(row.busy), f"{row.in_flight:.3g}", print_bytes(row.peak_bytes))
        shown.append((f"stage {row.number}: {row.modules}", *told))
    print_rows(console, (Column("modules"), *(Column(title, True, True) for title in titles)), shown)
    lines = schedule_lines(plan, console.width - 2)
    if lines:
        kind = plan.pipeline.kind if plan.pipeline else ""
        split = ", I and W the backward for the input and for the weights" if splits_backward(kind) else ", B the backward" if runs_backward(kind) else ""
        which = "2F0: chunk 2 of the model, microbatch 0" if plan.pipeline and plan.pipeline.chunks > 1 else "F0: microbatch 0"
        print_heading(console, f"Schedule {kind_name(kind)}", f"one slot an action, not to scale; F is the forward{split}; {which}")
        for line in lines:
            print_line(console, line)
    elif plan.pipeline is not None:
        print_line(console, f"schedule {print_steps(plan)}: too large for a grid here; the page draws it over time (--html)", "dim")


def price_sentence(plan: Plan) -> str:
    """`constraints cost 12.3 ms (step 45.6 ms with, 33.3 ms without)`."""
    with_s, free_s = plan.solve.objective_s, plan.free_step_s or 0.0
    return f"constraints cost {print_ms(with_s - free_s)} (step {print_ms(with_s)} with, {print_ms(free_s)} without)"


def _state_shardings(param: Sharding, grad: Sharding | None, optim: Sharding | None) -> str:
    """One text where all that exist are alike, else one line each."""
    known = [(name, s) for name, s in (("param", param), ("grad", grad), ("optim", optim)) if s is not None]
    if len({s for _, s in known}) == 1:
        return _short(param)
    return "\n".join(f"{name} {_short(s)}" for name, s in known)


def _short(sharding: Sharding) -> str:
    return "whole" if not sharding.placements else str(sharding)


def _print_states(plan: Plan, console: Console) -> None:
    keys = [(p.shape, p.param, p.grad, p.optim, p.param_bytes, p.grad_bytes, p.optim_bytes) for p in plan.params]
    folds = fold_names([p.name for p in plan.params], keys)
    print_heading(console, "Parameters, with gradients and optimizer states")
    homes, staged = param_stages(plan), plan.num_stages > 1
    shown = []
    for fold in folds[:STATE_TABLE_ROWS]:
        members = [plan.params[i] for i in fold.members]
        p, count = members[0], len(members)
        size = print_bytes(most_on_a_stage(plan, members, homes))
        shape = " x ".join(map(str, p.shape)) or "scalar"
        on = (print_stage_numbers([homes.get(q.name, 0) for q in members]),) if staged else ()
        shown.append((fold.name, f"x{count}" if count > 1 else "", *on, shape, _state_shardings(p.param, p.grad, p.optim), size))
    stage = (Column("stage", True, True),) if staged else ()
    size_title = "most on a rank" if staged else "on one rank"
    print_rows(console, (Column("name"), Column("", True), *stage, Column("shape"), Column("sharding"), Column(size_title, True)), shown)
    if len(folds) > STATE_TABLE_ROWS:
        print_line(console, f"and {len(folds) - STATE_TABLE_ROWS} more rows: the page lists all (--html)", "dim")
    for number, s in enumerate(state_sums(plan)):
        sums = (s.param_bytes, s.grad_bytes, s.optim_bytes)
        words = ", ".join(f"{name} {print_bytes(n)}" for name, n in zip(("parameters", "gradients", "optimizer"), sums))
        print_line(console, f"stage {number}: {words}" if staged else f"all {len(plan.params)}: {words}. {_SUMS}", "dim")
    if staged:
        print_line(console, f"xN rows show the sum on the stage that has most of it. {_SUMS_STAGED}", "dim")
    if plan.assignment.mesh.axes:
        print_line(console, "one placement per mesh axis: S<dim>/<stride> split, R replicated, P partial sum", "dim")


_SUMS = "xN rows show the sum; gradients count as if all were held at once."
_SUMS_STAGED = "Gradients count as if all were held at once, a tied parameter on each stage that reads it."


def _print_activations(plan: Plan, console: Console) -> None:
    groups: dict[tuple[str, str], tuple[int, int]] = {}
    for t in plan.tensors:
        if t.kind in (Kind.BATCH, Kind.BUFFER, Kind.ACTIVATION, Kind.LOSS) and t.shape:
            key = (t.kind.value, _short(t.sharding))
            count, size = groups.get(key, (0, 0))
            groups[key] = (count + 1, size + t.bytes)
    if not groups:
        return
    turns = "; of one microbatch" if plan.num_microbatches > 1 else ""
    rank = "one rank of each stage, all stages together" if plan.num_stages > 1 else "a rank"
    print_heading(console, "Other tensors", f"by kind and sharding; bytes of all pieces on {rank}, never all held at once{turns}")
    order = sorted(groups.items(), key=lambda item: (item[0][0], -item[1][1]))
    shown = [(kind, sharding, f"{count:,}", print_bytes(size)) for (kind, sharding), (count, size) in order[:12]]
    print_rows(console, (Column("kind"), Column("sharding"), Column("tensors", True), Column("bytes", True)), shown)
    if len(order) > 12:
        print_line(console, f"and {len(order) - 12} more shardings", "dim")


def _print_time(plan: Plan, console: Console) -> None:
    cost = plan.cost
    rates = [f"{print_count(cost.tokens_per_s)} {counted(plan)}/s"] if cost.tokens_per_s is not None else []
    rates += [f"MFU {print_percent(cost.mfu)}"] if cost.mfu is not None else []
    print_heading(console, f"Step {print_ms(cost.step_s)}", ", ".join(["predicted", *rates]))
    whole = cost.step_s or 1.0
    parts = (("compute", cost.compute_s), ("exposed communication", cost.exposed_comm_s), ("pipeline bubble", cost.bubble_s))
    print_rows(console, (Column("part"), Column("time", True), Column("share", True)), [(n, print_ms(s), print_percent(s / whole)) for n, s in parts if s])
    if plan.num_stages > 1:
        print_line(console, "of the average device; what it waits for other stages is the bubble", "dim")
    print_line(console, print_error(cost), "dim")


def print_error(cost: Cost) -> str:
    """How far the predicted seconds may be off, and who says so."""
    error = "error unknown" if cost.relative_error is None else f"error {print_percent(cost.relative_error)}"
    return f"{error}: {cost.error_source}" if cost.error_source else error


def _print_memory(plan: Plan, console: Console) -> None:
    limit, peak = plan.cluster.memory_bytes, max(plan.cost.peak_bytes)
    whose = f"per device of stage {top_stage(plan)}, which holds most," if plan.num_stages > 1 else "per device"
    print_heading(console, f"Memory {print_bytes(peak)} of {print_bytes(limit)}", f"{whose} at the peak, {print_percent(peak / limit)}")
    holders = sorted(plan.cost.holders, key=lambda h: -h.bytes)
    shown = [(h.name, print_bytes(h.bytes), f"{print_bar(h.bytes / limit)} {print_percent(h.bytes / limit)}") for h in holders if h.bytes]
    print_rows(console, (Column("holder"), Column("bytes", True), Column("of the limit")), shown)
    reserve = "" if any(h.name == "reserve" for h in holders) else ", reserve of the allocator"
    print_under_way(console, max(plan.cost.under_way_bytes))
    print_line(console, f"not counted: scratch space inside kernels, fragmentation{reserve}, other programs", "dim")


def _print_comms(plan: Plan, console: Console) -> None:
    if not plan.comms:
        return
    groups: dict[tuple[str, str, str, int], list[list[CommPlan]]] = {}
    order = {axis.name: k for k, axis in enumerate(plan.assignment.mesh.axes)}
    for one in _joined_comms(plan):
        axis = "+".join(sorted((c.axis for c in one), key=lambda name: order.get(name, len(order))))
        groups.setdefault((axis, one[0].kind, one[0].dtype, comm_times(plan, one[0])), []).append(one)
    total, hidden = fsum(c.seconds for c in plan.comms), fsum(c.hidden_s for c in plan.comms)
    beside = f"of it {print_ms(hidden)} hidden behind compute" if hidden > 1e-9 * total else "all of it exposed"
    stages = f" on all {plan.num_stages} stages" if plan.num_stages > 1 else ""
    print_heading(console, f"Communication {print_ms(total)}{stages}", f"{beside}; messages: of so many values; bytes: the larger of what a rank puts in and gets out")
    shown = []
    for (axis, kind, dtype, times), those in sorted(groups.items()):
        messages = f"{len({c.message for one in those for c in one}):,} of {len(those):,}" + (f" x{times}" if times > 1 else "")
        size = print_bytes(sum(max(c.bytes for c in one) for one in those) * times)
        shown.append((f"{axis} {kind} {dtype}", messages, size, print_ms(fsum(c.seconds for one in those for c in one))))
    print_rows(console, (Column("axis, kind, dtype"), Column("messages", True), Column("bytes", True), Column("time", True)), shown)
    if plan.num_microbatches > 1:
        print_line(console, f"x{plan.num_microbatches}: once in each microbatch; bytes and time are of the whole step", "dim")
    crossing, size, seconds = crossing_sums(plan)
    if crossing:
        sent = f"{crossing} values cross between stages, {print_bytes(size)} in a step on the ranks that receive them"
        print_line(console, f"{sent}; their {print_ms(seconds)} count as compute of the stage that receives", "dim")


def _joined_comms(plan: Plan) -> list[list[CommPlan]]:
    """Communications, those together that are one collective along several axes: the first has its seconds."""
    found: list[list[CommPlan]] = []
    for c in plan.comms:
        last = found[-1][-1] if found else None
        if last is not None and c.bytes and not c.seconds and (c.kind, c.value, c.reader, c.source_sharding) == (last.kind, last.value, last.reader, last.target_sharding):
            found[-1].append(c)
        else:
            found.append([c])
    return found


def certificate_sentence(plan: Plan) -> str:
    """`proven within 0.1 %: 12.3 ms; no plan in the search space is faster than 12.29 ms`."""
    solve = plan.solve
    found, bound = _exact_ms(solve.objective_s), _exact_ms(solve.lower_bound_s)
    if solve.gap <= 1e-6:
        return f"proven optimal: {found}; no plan in the search space is faster"
    return f"proven within {print_percent(solve.gap)}: {found}; no plan in the search space is faster than {bound}"


def _exact_ms(seconds: float) -> str:
    """Four digits, and all before the point."""
    return f"{seconds * 1e3:,.{'4g' if seconds < 9.9995 else '0f'}} ms"


def _print_rules(plan: Plan, console: Console) -> None:
    """The rules that are not in the table; what was found by running an op is never passed over in silence."""
    if not plan.rules:
        return
    print_heading(console, "Rules of ops that are not in the table")
    shown = [(row.op.removesuffix(".default"), row.text, row.origin, checked_text(row)) for row in plan.rules]
    print_rows(console, (Column("op"), Column("rule"), Column("from"), Column("checked")), shown)
    whys: dict[str, list[str]] = {}
    for row in plan.rules:
        if row.why_whole:
            whys.setdefault(row.why_whole, []).append(row.op.removesuffix(".default"))
    for why, ops in whys.items():
        print_line(console, f"[..] is whole in {', '.join(dict.fromkeys(ops))}: {why}", "dim")


def checked_text(row: RuleRow) -> str:
    """`216 trials, 0.4 s`, or that nobody looked."""
    return f"{row.num_trials:,} trials, {row.seconds:.1f} s" if row.num_trials else "not checked"


def _print_certificate(plan: Plan, console: Console) -> None:
    solve = plan.solve
    print_heading(console, "Certificate")
    print_line(console, certificate_sentence(plan))
    print_line(console, f"searched: {solve.search_space}; {solve.num_variables:,} variables, {solve.wall_s:.1f} s")
    if solve.pruned:
        first = solve.pruned[0]
        more = f" (and {len(solve.pruned) - 1} more)" if len(solve.pruned) > 1 else ""
        print_line(console, f"not tried further: {first.what}: {first.why}{more}", "dim")
    print_line(console, "the proof is about this cost model and this search space, not about the machine", "dim")
