"""A staged answer as a plan: the tables of each stage (`answer`), joined.

In: the case of the traced graph and a `Staged`. Out: a `Plan`. Names are unique over stages (`graph.stages`), so tables join end to end. Headlines: the
step is that of the simulated schedule; compute and communication are the average device's; the rest of the step is the bubble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ..constraints import axis_role
from ..cost.model import CostModel
from ..cost.prices import build_prices
from ..graph.case import Case, copy_case, split_case
from ..graph.choice import Assignment
from ..graph.graph import Graph, count_params
from ..graph.mesh import Mesh, MeshAxis
from ..graph.node import Phase
from ..graph.plan import Certificate, ClusterInfo, Cost, ModelInfo, ParamPlan, Pipeline, Plan, StagePlan
from ..graph.repeats import block_of, block_path
from ..graph.schedules.known import build_order, kind_name
from ..graph.stage_programs import crossing_chunks, section_finder
from ..graph.stages import COPY, stage_table
from ..graph.tensor import STATE_KINDS
from .answer import build_answer
from .layout_solve import Staged
from .layouts import Layout, Place, layout_ranks
from .recognise import recognise
from .stage_solve import place_among

Told = tuple[tuple[tuple[str, tuple[str, ...]], ...], str]  # what `recognise` says: labels of each axis, and a summary
MIXED = "mixed"  # an axis that has one role on some stages and another on others


def plan_axes(place: Place) -> Mesh:
    """The mesh of all stages: an axis bears its role, or `mixed` where that is not the same on all."""
    axes: list[MeshAxis] = []
    for k, axis in enumerate(place.mesh.axes):
        same = len({axis_role(mesh.axes[k].name) for mesh in place.meshes}) == 1
        role = axis_role(axis.name) if same and place.others else MIXED
        count = sum(a.name.partition("_")[0] == role for a in axes)
        axes.append(replace(axis, name=f"{role}_{count + 1}" if count else role) if place.others else axis)
    return Mesh(tuple(axes))


def join_assignments(staged: Staged) -> Assignment:
    """One assignment of all stages."""
    found = [s.assignment for s in staged.stages if s.assignment is not None]
    return Assignment(
        plan_axes(staged.layout.place),
        tuple(row for a in found for row in a.storages),
        tuple(row for a in found for row in a.strategies),
        tuple(name for a in found for name in a.again),
        staged.layout.num_microbatches,
    )


def build_staged_answer(
    case: Case, staged: Staged, certificate: Certificate, model: CostModel, model_info: ModelInfo, cluster: ClusterInfo, opens: bool = True
) -> Plan:
    """The plan of a model in stages.

    Args:
        case: of the traced graph.
        model: of the cluster in stages (`cost.model.staged_model`).
        opens: as of `graph.overlap_memory.overlap_within`.
    """
    plans = []
    told: dict[int, Told] = {}
    telling = _telling_stages(staged.layout.place)
    layout, graphs = staged.layout, [s.case.graph for s in staged.stages]
    order = build_order(layout.schedule, layout.place.num_stages, layout.num_microbatches, layout.chunks)
    turns, ranks = split_case(case, layout.num_microbatches).graph, layout_ranks(layout)
    chunks = crossing_chunks(turns, staged.starts, ranks, graphs)
    sections_of = section_finder(turns, staged.starts, ranks, len(staged.stages), bool(order.split))
    for number, (stage, held) in enumerate(zip(staged.stages, staged.in_flight)):
        assert stage.assignment is not None
        assignment = replace(stage.assignment, mesh=plan_axes(staged.layout.place))
        mine = copy_case(stage.case, assignment.again)
        if number in telling:
            told[number] = recognise(mine.graph, mine.sites, mine.signatures, mine.cuts, assignment)
        prices = build_prices(model, assignment.mesh, mine.graph, mine.sites, mine.signatures)
        among = place_among(graphs, number, order, number, chunks)
        plans.append(build_answer(mine, assignment, certificate, model, prices, (), "", model_info, cluster, held, among, opens, sections_of).plan)
    place = staged.layout.place
    axes = [tuple(axis_role(a.name) for a in place.stage_mesh(s).axes) if place.others else () for s in range(len(plans))]
    rows = tuple(replace(row, holders=p.cost.holders, peak=p.peak, axes=own) for row, p, own in zip(_stage_rows(case, staged), plans, axes))
    pipeline = Pipeline(staged.layout.schedule, staged.layout.chunks, staged.starts, rows)
    return Plan(
        plans[0].format, model_info, cluster, join_assignments(staged), len(plans),
        (*_join_labels(told), ("pipeline", (_label(staged),))), f"{_sentence(staged)}{_tell_stages(told)}", staged.layout.num_microbatches, print_schedule(staged.layout),
        _join_costs([p.cost for p in plans], staged), certificate,
        tuple(replace(t, stage=s) for s, p in enumerate(plans) for t in p.tensors),
        _join_params(plans),
        tuple(n for p in plans for n in p.nodes), tuple(c for p in plans for c in p.comms), tuple(r for p in plans for r in p.repeats),
        peak=max(plans, key=lambda p: p.cost.peak_bytes[0]).peak, pipeline=pipeline,
    )  # fmt: skip


def print_schedule(layout: Layout) -> str:
    """`8 stages, 1f1b`; `8 stages of 4 chunks, interleaved`."""
    chunks = f" of {layout.chunks} chunks" if layout.chunks > 1 else ""
    return f"{layout.place.num_stages} stages{chunks}, {kind_name(layout.schedule)}"


def _label(staged: Staged) -> str:
    return f"{staged.layout.place.num_stages} pipeline stages, {kind_name(staged.layout.schedule)}"


def _sentence(staged: Staged) -> str:
    layout = staged.layout
    chunks = f", each running {layout.chunks} chunks of the model in turn" if layout.chunks > 1 else ""
    meshes = [f" Stage {s} is divided as {print_degrees(m)}, the others as {print_degrees(layout.place.mesh)}." for s, m in layout.place.others]
    turns = f"{layout.num_microbatches} microbatches pass" if layout.num_microbatches > 1 else "the whole batch passes"
    return (
        f"Pipeline parallelism: the model is cut into {layout.place.num_stages} stages{chunks}; {turns} through them by "
        f"{_NAMES[kind_name(layout.schedule)]}, with at most {max(staged.in_flight):.3g} in flight on a stage.{''.join(meshes)}"
    )


def _telling_stages(place: Place) -> tuple[int, ...]:
    """Whose shardings tell those of all: a middle one; where stages are divided in different ways, the one nearest to the middle of each."""
    middle = place.num_stages // 2
    near = sorted(range(place.num_stages), key=lambda s: abs(s - middle))
    return tuple(sorted(next(s for s in near if place.stage_mesh(s) == mesh) for mesh in dict.fromkeys(map(place.stage_mesh, range(place.num_stages)))))


def _join_labels(told: Mapping[int, Told]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What each axis is, on any of these stages."""
    found: dict[str, dict[str, None]] = {}
    for labels, _ in told.values():
        for axis, names in labels:
            found.setdefault(axis, {}).update(dict.fromkeys(names))
    return tuple((axis, tuple(names)) for axis, names in found.items())


def _tell_stages(told: Mapping[int, Told]) -> str:
    """The summaries of these stages, each with its number where there are several."""
    if len(told) == 1:
        return f" Inside of a stage: {next(iter(told.values()))[1]}"
    return "".join(f" Inside of stage {stage}: {summary}" for stage, (_, summary) in told.items())


def print_degrees(mesh: Mesh) -> str:
    """`dp=4`, `dp=2 tp=2`: axes of one role together."""
    roles = dict.fromkeys(axis_role(axis.name) for axis in mesh.axes)
    return " ".join(f"{role}={prod(a.size for a in mesh.axes if axis_role(a.name) == role)}" for role in roles)


_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B", "zero-bubble": "the zero-bubble schedule ZB-H1",
          "zbv": "the zero-bubble schedule ZB-V, whose second half goes back over the stages", "forward-only": "their forwards alone", "own": "a schedule of your own"}


def _stage_rows(case: Case, staged: Staged) -> tuple[StagePlan, ...]:
    rows = []
    for number, (stage, held) in enumerate(zip(staged.stages, staged.in_flight)):
        assert stage.times is not None
        t = stage.times
        modules = _modules(case, staged, number)
        rows.append(StagePlan(modules, count_params(_own_states(stage.case.graph)), t.prepare_s, t.forward_s, t.backward_s, t.weight_s, t.update_s, held, chunks=t.chunks))
    return tuple(rows)


def _own_states(graph: Graph) -> Graph:
    """The graph without the states that another stage updates."""
    values = {v.name: v for v in graph.values}
    return replace(graph, inputs=tuple(n for n in graph.inputs if not (COPY in n and values[n].kind in STATE_KINDS)))


def _modules(case: Case, staged: Staged, stage: int) -> tuple[str, ...]:
    """`h.0 .. h.11` for each chunk of a stage."""
    graph = case.graph
    table = stage_table(graph, staged.starts)
    found = []
    for chunk in (k for k, rank in enumerate(layout_ranks(staged.layout)) if rank == stage):
        paths = [_block(node.path, graph.sequences) for node, s in zip(graph.nodes, table) if s == chunk and node.phase is Phase.FORWARD and node.path]
        names = list(dict.fromkeys(paths)) or ["the model itself"]
        found.append(names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}")
    return tuple(found)


def _block(path: str, sequences: Sequence[str]) -> str:
    place = block_of(path, sequences) or block_of(path)
    return path.partition(".")[0] if place is None else block_path(*place)


def _join_params(plans: Sequence[Plan]) -> tuple[ParamPlan, ...]:
    """Each parameter as it is on the stage that updates it: a copy's tensor has another name."""
    found: dict[str, ParamPlan] = {}
    for plan in plans:
        own = {t.name for t in plan.tensors}
        for row in plan.params:
            if row.name not in found or f"{row.name}@0" in own:
                found[row.name] = row
    return tuple(found.values())


def _join_costs(costs: Sequence[Cost], staged: Staged) -> Cost:
    count = len(costs)
    top = max(costs, key=lambda c: c.peak_bytes[0])
    compute, comm = sum(c.compute_s for c in costs) / count, sum(c.exposed_comm_s for c in costs) / count
    flops = sum(c.flops for c in costs)
    least_known = next((c for c in costs if c.relative_error is None), top)
    tokens = next((c.tokens_per_s * c.step_s for c in costs if c.tokens_per_s), None)
    return Cost(
        step_s=staged.step_s,
        compute_s=compute,
        exposed_comm_s=comm,
        bubble_s=staged.step_s - compute - comm,
        peak_bytes=tuple(c.peak_bytes[0] for c in costs),
        state_bytes=tuple(c.state_bytes[0] for c in costs),
        activation_bytes=tuple(c.activation_bytes[0] for c in costs),
        under_way_bytes=tuple(c.under_way_bytes[0] for c in costs),
        flops=flops,
        tokens_per_s=tokens / staged.step_s if tokens else None,
        mfu=sum(c.mfu * c.step_s for c in costs if c.mfu) / (count * staged.step_s) if any(c.mfu for c in costs) else None,
        holders=top.holders,
        moments=top.moments,
        relative_error=least_known.relative_error,
        error_source=least_known.error_source,
    )
