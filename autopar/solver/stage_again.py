"""A plan in pipeline stages, made ready to solve one of its stages again: cuts, schedule, what crosses and the other stages stay as they are.

In: a plan in stages and the case of its traced graph. Out: a `StageAgain` for each stage. The step is then that of the schedule with the new times of the
stage, so what a stage gains while others are slower is not counted as a gain. Invariant: a bound holds for every plan that differs in this stage alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..constraints import Constraints
from ..cost.memory import Among
from ..cost.model import CostModel, staged_model
from ..errors import InfeasibleError
from ..graph.case import Case, case_roles, split_case
from ..graph.choice import Assignment
from ..graph.mesh import num_ranks
from ..graph.plan import Plan
from ..graph.schedules.known import build_order
from ..graph.stage_programs import crossing_chunks
from .given_stages import given_layout, price_stages
from .layout_solve import Staged, simulate_stages
from .layouts import inner_constraints, layout_ranks, turn_weight
from .stage_solve import StageAnswer, StageTimes, flying_of, place_among, solve_stage
from .steer import Steer, refine_fold
from .unit_costs import part_roles


class StageShortage(InfeasibleError):
    """No plan of a stage was found that fits. `proven`: there is none; how much is missing is not known."""

    missing_bytes = 0

    def __init__(self, stage: int, proven: bool) -> None:
        self.proven = proven
        super().__init__(f"stage {stage}: {'nothing fits the memory' if proven else 'no plan was found in its time'}")


@dataclass(frozen=True)
class StageAgain:
    """One stage of a plan.

    Args:
        case: of its graph; equal blocks decide alike under the plan's constraints.
        assignment: its part of the plan's.
        staged: the whole plan with its prices by today's figures.
        among: where it is among the others.
        chunk_of: node of its graph -> its chunk, where it runs several.
    """

    number: int
    case: Case
    assignment: Assignment
    steer: Steer
    model: CostModel
    staged: Staged
    among: Among

    @property
    def step_s(self) -> float:
        """Of the plan as it is."""
        return self.staged.step_s

    def solve(self, demands: Steer, limit_bytes: int | None, time_limit_s: float) -> tuple[StageAnswer, float, float]:
        """The best of this stage under other demands: (its answer, the step with it, a bound of that step).

        Raises:
            ConstraintError: the stage cannot obey.
            StageShortage: nothing fits.
        """
        layout, number = self.staged.layout, self.number
        tensors = None if limit_bytes is None else limit_bytes - self.model.reserve_bytes
        found = solve_stage(
            self.case, layout.place.stage_mesh(number), demands, self.model, tensors, self.staged.in_flight[number], turn_weight(layout), time_limit_s,
            mesh_of=layout.place.stage_mesh, among=self.among,
        )  # fmt: skip
        if found.assignment is None:
            raise StageShortage(number, found.found.status == "infeasible")
        return found, self._with(found).step_s, self._bound_s(found)

    def _with(self, mine: StageAnswer) -> Staged:
        """The whole plan with this stage exchanged."""
        old = self.staged
        stages = (*old.stages[: self.number], mine, *old.stages[self.number + 1 :])
        held = flying_of(mine, self.among, old.in_flight[self.number])
        return simulate_stages(old.layout, old.cuts, old.starts, stages, (*old.in_flight[: self.number], held, *old.in_flight[self.number + 1 :]))

    def _bound_s(self, found: StageAnswer) -> float:
        """The others alone; and the turns of this stage after the first forward of those before: its objective counts a turn `turn_weight` times."""
        layout, old = self.staged.layout, self.staged.stages
        others = self._with(replace(found, times=StageTimes(0.0, 0.0, 0.0, 0.0, 0.0))).step_s
        fill = sum(s.times.forward_s for s in old[: self.number] if s.times is not None) if layout.chunks == 1 else 0.0
        return max(others, fill + found.found.bound_s * layout.num_microbatches / turn_weight(layout))


def set_up_stages(plan: Plan, traced: Case, constraints: Constraints, model: CostModel) -> tuple[StageAgain, ...]:
    """All stages of a plan.

    Args:
        traced: the case of the traced graph.
        model: of the cluster.
    """
    pipeline = plan.pipeline
    assert pipeline is not None
    layout = given_layout(plan.assignment, pipeline)
    of_stages = staged_model(model, plan.num_stages, num_ranks(layout.place.mesh) * plan.num_stages)
    staged = price_stages(traced, plan.assignment, layout, pipeline.starts, of_stages)
    whole = split_case(traced, layout.num_microbatches)
    roles = case_roles(whole)
    graphs = [stage.case.graph for stage in staged.stages]
    order = build_order(layout.schedule, layout.place.num_stages, layout.num_microbatches, layout.chunks)
    chunks = crossing_chunks(whole.graph, pipeline.starts, layout_ranks(layout), graphs)
    found = []
    for number, stage in enumerate(staged.stages):
        assert stage.assignment is not None
        inner = inner_constraints(constraints, layout.place.stage_mesh(number))
        case = replace(stage.case, fold=refine_fold(stage.case.graph, stage.case.fold, inner))
        found.append(StageAgain(number, case, stage.assignment, Steer(inner, part_roles(roles, whole, case)), of_stages, staged, place_among(graphs, number, order, number, chunks)))
    return tuple(found)
