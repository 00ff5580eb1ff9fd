"""Decisions for a model in stages that were given, not found (a plan read from a file, or edited by hand): what they cost.

In: the case of the traced graph, the assignment of all stages, where these begin, the schedule. Out: a `Staged` as the search would have made it, its
times and memory by the programs of the stages. Whether it fits, or is good, nobody says here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..cost.memory import estimate_memory
from ..cost.model import CostModel
from ..graph.case import Case, build_case, split_case
from ..graph.choice import Assignment
from ..graph.mesh import Mesh
from ..graph.partition import partition
from ..graph.plan import Pipeline
from ..graph.schedules.known import build_order
from ..graph.stage_programs import crossing_chunks, stage_cases
from .layout_guess import count_flying
from .layout_solve import Staged, simulate_stages
from .layouts import Layout, Place, layout_ranks
from .stage_solve import StageAnswer, flying_of, place_among, time_program


def price_stages(case: Case, assignment: Assignment, layout: Layout, starts: Sequence[str], model: CostModel) -> Staged:
    """A plan in stages with its prices.

    Args:
        assignment: of all stages.
        starts: the first forward node of the second and every later chunk.
        model: of the cluster in stages (`cost.model.staged_model`).
    Raises:
        PlanError: the assignment is not that of these stages.
    """
    turns = split_case(case, layout.num_microbatches)
    order = build_order(layout.schedule, layout.place.num_stages, layout.num_microbatches, layout.chunks)
    answers: list[StageAnswer] = []
    flying: list[float] = []
    parts = stage_cases(turns, assignment, starts, layout_ranks(layout))
    graphs = [stage.graph for stage, _, _ in parts]
    chunks = crossing_chunks(turns.graph, starts, layout_ranks(layout), graphs)
    for number, ((stage, mine, part), held) in enumerate(zip(parts, count_flying(order, layout.chunks))):
        part = replace(part, mesh=layout.place.stage_mesh(len(answers)))
        program = partition(mine.graph, mine.sites, mine.signatures, mine.cuts, part)
        own = build_case(stage.graph, turns.rules) if part.again else mine
        among = place_among(graphs, number, order, number, chunks)
        answer = StageAnswer(own, None, part, None, time_program(mine, program, part, model, chunks[number]))
        flying.append(flying_of(answer, among, held))
        answers.append(replace(answer, memory=estimate_memory(program, 0, flying[-1], among)))
    return simulate_stages(layout, (), tuple(starts), tuple(answers), tuple(flying))


def given_layout(assignment: Assignment, pipeline: Pipeline) -> Layout:
    """The layout of given decisions."""
    meshes = [_stage_mesh(assignment.mesh, stage.axes) for stage in pipeline.stages]
    common = max(meshes, key=meshes.count)
    place = Place(len(meshes), common, tuple((number, mesh) for number, mesh in enumerate(meshes) if mesh != common))
    return Layout(place, assignment.microbatches, pipeline.kind, pipeline.chunks)


def _stage_mesh(mesh: Mesh, roles: Sequence[str]) -> Mesh:
    """The mesh with its axes named by what they are on a stage; () where the plan's names say it."""
    if not roles:
        return mesh
    return Mesh(tuple(replace(a, name=role + (f"_{n}" if (n := 1 + list(roles[:k]).count(role)) > 1 else "")) for k, (a, role) in enumerate(zip(mesh.axes, roles))))
