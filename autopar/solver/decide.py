"""Decide: everything that is chosen for a model on a cluster, in one search.

    plain     one stage, one microbatch, on every mesh, each axis free to do anything at any place (`search`)
    layouts   stages, microbatches, schedules, with axes that have roles (`pipeline`)

In: a case, the cost model of a cluster, constraints. Out: the better of both, with one certificate. Each starts from the best that the other knows.
On many devices layouts come first: they are cheap there, and rule most meshes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from ..cluster import num_devices
from ..collector import rare_collections
from ..constraints import DATA, PIPELINE, Constraints, print_constraints
from ..cost.meshes import list_meshes
from ..cost.model import CostModel
from ..cost.prices import build_prices
from ..errors import ConstraintError, InfeasibleError
from ..graph.case import Case
from ..graph.choice import Assignment
from ..graph.mesh import Mesh
from ..graph.plan import Certificate, Holder, Pruned
from ..graph.stages import list_units
from ..graph.tensor import STATE_KINDS, size_bytes
from ..graph.turns import has_backward
from .infeasible import MemoryShortage, describe_nearest
from .layout_cases import LayoutCases
from .layout_solve import Staged
from .layouts import least_stages, num_samples, print_layout
from .mesh_bounds import bound_mesh
from .mixed import TWO_KINDS
from .obeyed import require_obeyed, require_obeyed_stages
from .pipeline import PipelineSearch, StagedResult
from .role_meshes import data_axes, label_meshes
from .search import Question, SearchResult, search
from .skeleton import Skeleton
from .stage_solve import StageAnswer
from .steer import Steer, check_words, describe_space, prepare_steer, refine_fold
from .why_no_layout import why_no_layout

_MANY_DEVICES = 64
_LAYOUT_SHARE = 0.5  # of the time, where layouts come first
_BOUND_SHARE = 0.25  # of the time that is left, for the bound of one mesh with memory
_GRACE = 0.25  # of the time, for layouts, where no plan was found in it
_NO_LIMIT, _MOST_LIMITS = 1 << 60, 3  # bytes; limits under which the smallest layout is looked for
_SHORTAGE_SHARE, _LEAST_SHORTAGE_S = 0.25, 2.0  # of the time, for that; seconds for each


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked.

    Args:
        case: of the traced graph.
        model: of the cluster.
        limit_bytes: per device, the reserve included.
        most_stages: of a pipeline; None: as many as are good.
        price_only: of layouts, a price within about 1 % is enough; the certificate's bound is then what it takes no time to know.
    """

    case: Case
    model: CostModel
    constraints: Constraints
    limit_bytes: int
    time_limit_s: float
    most_stages: int | None
    report: Callable[[str], None]
    price_only: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer. `assignment`: of the one stage, of the case of the traced graph (`graph.case.decided_case`); None where it has several: `staged`.

    `case`: the fold may be finer than what was asked with, where constraints name single modules.
    """

    case: Case
    assignment: Assignment | None
    staged: Staged | None
    certificate: Certificate


def _held(stage: StageAnswer) -> int:
    """Bytes at the peak of a stage, without the reserve."""
    return stage.memory.peak_bytes if stage.memory is not None else 0


@rare_collections()
def decide(ask: Ask) -> Decision:
    """Search.

    Raises:
        MemoryShortage: nothing fits (an `InfeasibleError`).
        ConstraintError: nothing obeys.
    """
    return _Decide(ask).run()


class _Decide:
    """One decision; lives for one call."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.case, self.steer, self.meshes = ask.case, None, list_meshes(ask.model.cluster)
        self.deadline = time.monotonic() + ask.time_limit_s
        self.layouts: PipelineSearch | None = None
        self.cases = LayoutCases(ask.case, ask.constraints)
        self.short_skeletons: list[Skeleton] = []

    def run(self) -> Decision:
        began = time.monotonic()
        plain, has_units = _asks_plain(self.ask), bool(list_units(self.ask.case.graph))
        if not plain and not has_units:
            raise ConstraintError(
                f"{', '.join(print_constraints(self.ask.constraints))}: {self.ask.case.graph.name} has nothing to divide into stages or microbatches: "
                "no op of its forward pass reads a parameter; leave these words out"
            )
        staged = has_units and _asks_layouts(self.ask) and (not plain or self._has_room_for_states())
        check_words(self.ask.case.graph, self.ask.case.signatures, self.ask.constraints)
        if plain and self.ask.constraints:
            self._steer()
        found: SearchResult | None = None
        if staged and (not plain or num_devices(self.ask.model.cluster) >= _MANY_DEVICES):
            share = _LAYOUT_SHARE if plain else 1.0
            self._search_layouts(inf, self.ask.time_limit_s * share, not plain)
        if plain and not self._is_late():
            found = self._search_plain(staged and self.layouts is None)
            known_s = found.certificate.objective_s if found is not None and found.assignment is not None else inf
            if staged and self.layouts is None:
                self._search_layouts(known_s, max(1.0, self.deadline - time.monotonic()), True)
            elif self.layouts is not None and found is not None:
                self.layouts.go_on(self.deadline, known_s)
        return self._join(found, self.layouts.result() if self.layouts is not None else None, began)

    def _finds_layout(self) -> bool:
        """Meshes have no plan: True where layouts, of which none was found in their share of the time, have one. The user asked for a plan, so a little more is taken."""
        if self.layouts is None or self.layouts.has_proven_none():
            return False
        self.layouts.go_on(max(self.deadline, time.monotonic() + _GRACE * self.ask.time_limit_s), inf)
        return self.layouts.best is not None

    def _steer(self) -> None:
        case, constraints = self.ask.case, self.ask.constraints
        steer = prepare_steer(case.graph, case.sites, case.signatures, case.cuts, constraints)
        self.case = replace(case, fold=refine_fold(case.graph, case.fold, constraints))
        self.steer: Steer | None = steer
        self.meshes: tuple[Mesh, ...] = label_meshes(self.meshes, constraints, steer.roles)

    def _search_plain(self, may_ask: bool) -> SearchResult | None:
        """None where no mesh has a plan, and a layout does."""
        try:
            return self._search_meshes(may_ask)
        except MemoryShortage as error:
            if self._finds_layout():
                return None
            if error.proven and self.layouts is not None and not self.layouts.has_proven_none():
                raise MemoryShortage(error.limit_bytes, error.memory, error.assignment, False, error.nearest) from None
            raise

    def _search_meshes(self, may_ask: bool) -> SearchResult:
        case, ask = self.case, self.ask
        question = Question(case.graph, case.sites, case.signatures, case.cuts, case.fold, ask.limit_bytes, ask.model.reserve_bytes, self.steer)
        found = search(
            question, self.meshes, lambda mesh: build_prices(ask.model, mesh, case.graph, case.sites, case.signatures),
            time_limit_s=max(1.0, self.deadline - time.monotonic()), cutoff_s=self._known_s(),
            bound_mesh=self._bound_mesh if self.steer is None else None, ask_others=self._ask_layouts if may_ask else None, report=ask.report,
        )  # fmt: skip
        if self.steer is not None and found.assignment is not None:
            require_obeyed(case.graph, case.sites, case.signatures, case.cuts, found.assignment, self.steer)
        return found

    def _bound_mesh(self, mesh: Mesh, most_columns: int, enough_s: float) -> tuple[float, int]:
        """By the model with few of its equal blocks; 0 where it has few anyway."""
        short = self.cases.shorten()
        if not short.more:
            return 0.0, 0
        now, room = time.monotonic(), self.ask.limit_bytes - self.ask.model.reserve_bytes
        until = now + _BOUND_SHARE * (self.deadline - now)
        return bound_mesh(short.case, short.run, short.more, mesh, self.ask.model, most_columns, enough_s, self.short_skeletons, room, until)

    def _ask_layouts(self) -> float:
        """The fastest plan of some mesh does not fit with one microbatch in one stage."""
        self._search_layouts(inf, max(5.0, (self.deadline - time.monotonic()) * _LAYOUT_SHARE), False)
        return self._known_s()

    def _search_layouts(self, cutoff_s: float, time_s: float, last: bool) -> None:
        ask = self.ask
        self.layouts = PipelineSearch(
            self.cases, ask.model, ask.limit_bytes - ask.model.reserve_bytes, time.monotonic() + time_s, ask.report, ask.most_stages,
            plain_too=not _asks_plain(ask) or num_devices(ask.model.cluster) >= _MANY_DEVICES,
            price_only=ask.price_only,
        )  # fmt: skip
        self.layouts.run(cutoff_s, last)

    def _has_room_for_states(self) -> bool:
        """False where no plan of any kind fits: parameters, buffers and optimizer states are somewhere from the start of a step to its end."""
        states = sum(size_bytes(v) for v in self.ask.case.graph.values if v.kind in STATE_KINDS and v.version == 0)
        room = self.ask.limit_bytes - self.ask.model.reserve_bytes
        return states <= room * num_devices(self.ask.model.cluster)

    def _is_late(self) -> bool:
        """Time is up and there is a plan: not even the tables of one mesh are made."""
        return self._known_s() < inf and time.monotonic() >= self.deadline

    def _known_s(self) -> float:
        return self.layouts.best.step_s if self.layouts is not None and self.layouts.best is not None else inf

    def _join(self, found: SearchResult | None, layouts: StagedResult | None, began: float) -> Decision:
        staged = layouts.best if layouts is not None else None
        if found is not None and found.assignment is not None and found.certificate.objective_s <= self._known_s():
            staged = None
        if staged is None and (found is None or found.assignment is None):
            assert layouts is not None
            said = ", ".join("a schedule of your own" if line.startswith("schedule=0F") else line for line in print_constraints(self.ask.constraints))
            reasons = "; ".join(f"{p.what}: {p.why}" for p in layouts.pruned[:4]) or self._why_none()
            if "fits the memory" not in reasons:
                raise ConstraintError(f"{said or 'no constraints'}: no plan was found: {reasons}")
            raise self._find_shortage(layouts, reasons) or InfeasibleError(f"{said or 'no constraints'}: no plan was found: {reasons}")
        objective = staged.step_s if staged is not None else found.certificate.objective_s  # type: ignore[union-attr]
        bounds = [objective, *([found.certificate.lower_bound_s] if found is not None else []), *([layouts.bound_s] if layouts is not None else [])]
        bound = min(bounds)
        spaces = ([found.certificate.search_space] if found is not None else []) + ([self._space(layouts)] if layouts is not None else [])
        phases = found.certificate.phases if found is not None else ()
        phases = (*phases, ("layouts_s", layouts.wall_s)) if layouts is not None else phases
        pruned = (*(found.certificate.pruned if found is not None else ()), *(layouts.pruned if layouts is not None else ()))
        if found is None and _asks_plain(self.ask):
            pruned = (*pruned, Pruned("meshes whose axes are free to do anything anywhere", "time was up; not part of the search space, --time-limit gives more"))
        count = max([found.certificate.num_variables if found is not None else 0, *(s.found.num_variables for s in (staged.stages if staged else ()))])
        gap = (objective - bound) / objective if objective > 0 else 0.0
        certificate = Certificate(objective, bound, gap, time.monotonic() - began, phases, count, "; and ".join(spaces), pruned)
        if staged is not None and self.ask.constraints:
            require_obeyed_stages(self.ask.case, staged, self.ask.constraints)
        if staged is not None and staged.layout.place.num_stages == 1:
            return Decision(self.ask.case, staged.stages[0].assignment, None, certificate)
        if staged is not None:
            return Decision(self.ask.case, None, staged, certificate)
        assert found is not None
        return Decision(self.case, found.assignment, None, certificate)

    def _find_shortage(self, layouts: StagedResult, reasons: str) -> MemoryShortage | None:
        """How much is missing where layouts were asked for: by the smallest plan that is found without the limit, and then below what the last one needs."""
        ask, least = self.ask, None
        room, until = _NO_LIMIT, time.monotonic() + _SHORTAGE_SHARE * ask.time_limit_s
        for _ in range(_MOST_LIMITS):
            search = PipelineSearch(self.cases, ask.model, room, max(until, time.monotonic() + _LEAST_SHORTAGE_S), lambda line: None, ask.most_stages, plain_too=True, price_only=True)
            search.run(inf)
            if search.best is None:
                break
            stage = max(range(len(search.best.stages)), key=lambda k: _held(search.best.stages[k]))  # type: ignore[union-attr]
            if least is None or _held(search.best.stages[stage]) < _held(least[0].stages[least[1]]):
                least = search.best, stage
            room = (ask.limit_bytes - ask.model.reserve_bytes + _held(least[0].stages[least[1]])) // 2
            if time.monotonic() > until:
                break
        if least is None:
            return None
        staged, number = least
        answer, reserve = staged.stages[number], ask.model.reserve_bytes
        if answer.memory is None or answer.assignment is None or answer.memory.peak_bytes + reserve <= ask.limit_bytes:
            return None
        holders = (*(h for h in answer.memory.holders if h.name != "reserve"), *([Holder("reserve", reserve)] if reserve else []))
        memory = replace(answer.memory, peak_bytes=answer.memory.peak_bytes + reserve, holders=holders)
        layout = print_layout(staged.layout) + (f", in stage {number}" if len(staged.stages) > 1 else "")
        return MemoryShortage(ask.limit_bytes, memory, answer.assignment, layouts.bound_s == inf, describe_nearest(memory.peak_bytes), (), layout, staged.step_s, reasons)

    def _why_none(self) -> str:
        case, cluster = self.ask.case, self.ask.model.cluster
        roles = self.cases.roles(case)
        if not roles.batch and (dict(self.ask.constraints.degrees).get(DATA, 1) > 1 or self.ask.constraints.only is not None):
            return "the model has no batch dim"
        samples, units = num_samples(roles), len(list_units(case.graph))
        return why_no_layout(cluster.num_hosts * cluster.devices_per_host, cluster.devices_per_host, units, samples, self.ask.constraints, has_backward(case.graph))

    def _space(self, layouts: StagedResult) -> str:
        stages = "one stage" if self.ask.most_stages == 1 else "every number of pipeline stages with equal devices, cut between numbered modules"
        demanded = describe_space(self.ask.constraints) if self.ask.constraints else ""
        two = layouts.best is not None and any(stage.found.how == TWO_KINDS for stage in layouts.best.stages)
        mixed = ", equal blocks of a stage deciding alike, but for those of the plan, which decide in two ways" if two else ""
        schedules = "1F1B and interleaved" if has_backward(self.ask.case.graph) else "forward-only"
        varied = layouts.best is not None and bool(layouts.best.layout.place.others) and not self.ask.constraints.stage_degrees
        alike = ", all divided alike, and divided as those of this plan" if varied else ""
        grouped = layouts.best is not None and len(data_axes(layouts.best.layout.place.mesh)) > 1 and self.ask.constraints.dp_shard is None
        groups = " (in this plan, and in others like it: one among hosts, and one inside of them)" if grouped else ""
        return (
            f"{layouts.num_layouts} {'layout' if layouts.num_layouts == 1 else 'layouts'}: {stages}{alike}, every number of microbatches, {schedules} "
            f"schedules; inside of a stage an axis that splits the batch{groups} and one within a host that splits anything else (and, where starting ops takes longer than "
            f"their work, one along which nothing is split), every ZeRO stage, recompute value "
            f"by value{demanded}{mixed}; {layouts.num_solved} solved with memory"
        )


def _asks_plain(ask: Ask) -> bool:
    """One stage and one microbatch may be an answer."""
    c = ask.constraints
    words = (dict(c.degrees).get(PIPELINE, 1) > 1, (c.vpp or 1) > 1, (c.microbatches or 1) > 1, c.microbatch is not None, c.schedule is not None, PIPELINE in c.require)
    return not any(words) and least_stages(c) == 1


def _asks_layouts(ask: Ask) -> bool:
    """Several microbatches or stages may be an answer."""
    c = ask.constraints
    one_stage = ask.most_stages == 1 or dict(c.degrees).get(PIPELINE) == 1 or c.only is not None
    return not _asks_plain(ask) or not (c.microbatches == 1 and (one_stage or dict(c.degrees).get(PIPELINE) is None))

