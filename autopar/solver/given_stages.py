"""Decisions for a model in stages that were given, not found (a plan read from a file, or edited by hand): what they cost.

In: the case of the traced graph, the assignment of all stages, where these begin, the schedule. Out: a `Staged` as the search would have made it, its
times and memory by the programs of the stages. Whether it fits, or is good, nobody says here.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..cost.memory import estimate_memory
from ..cost.model import CostModel
from ..graph.case import Case, build_case, split_case
from ..graph.choice import Assignment
from ..graph.partition import partition
from ..graph.schedules.known import build_order
from ..graph.stage_programs import stage_cases
from .layout_guess import count_flying
from .layout_solve import Staged, simulate_stages
from .layouts import Layout, Place, layout_ranks
from .stage_solve import StageAnswer, time_program


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
    flying = count_flying(order, layout.chunks)
    answers = []
    for (stage, mine, part), held in zip(stage_cases(turns, assignment, starts, layout_ranks(layout)), flying):
        program = partition(mine.graph, mine.sites, mine.signatures, mine.cuts, part)
        own = build_case(stage.graph, turns.rules) if part.again else mine
        answers.append(StageAnswer(own, None, part, estimate_memory(program, 0, held), time_program(mine, program, part, model)))
    return simulate_stages(layout, (), tuple(starts), tuple(answers), flying)


def given_layout(num_stages: int, assignment: Assignment, schedule: str, chunks: int) -> Layout:
    """The layout of given decisions."""
    return Layout(Place(num_stages, assignment.mesh), assignment.microbatches, schedule, chunks)
