"""Recompute in the solver: costs and bytes of a plan are those of its program, and tight memory is met by making values again."""

import pytest

torch = pytest.importorskip("torch")

from autopar.api import build_case  # noqa: E402
from autopar.cluster import parse_cluster  # noqa: E402
from autopar.cost.estimate import estimate_program  # noqa: E402
from autopar.cost.memory import estimate_memory  # noqa: E402
from autopar.cost.meshes import list_meshes  # noqa: E402
from autopar.cost.model import build_cost_model  # noqa: E402
from autopar.cost.prices import build_prices  # noqa: E402
from autopar.graph.partition import assigned_strategies, partition  # noqa: E402
from autopar.graph.recompute import recompute_all  # noqa: E402
from autopar.solver.build import build_problem  # noqa: E402
from autopar.solver.judge import evaluate_seconds, held_bytes  # noqa: E402
from autopar.solver.one_mesh import build_assignment, solve_mesh  # noqa: E402
from autopar.trace import trace_step  # noqa: E402
from tests.trace import zoo  # noqa: E402

pytestmark = pytest.mark.torch
MODEL, GPUS = build_cost_model(parse_cluster("cpu:4")), build_cost_model(parse_cluster("4xH100-80GB"))
MESH = next(mesh for mesh in list_meshes(parse_cluster("cpu:4")) if len(mesh.axes) == 1)


@pytest.fixture(scope="module", params=["gpt2", "llama", "vit"])
def case(request):
    torch.manual_seed(0)
    return build_case(trace_step(getattr(zoo, request.param)(), "fp32").graph)


def problem_of(case, mesh, recompute, model=MODEL):
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    return build_problem(case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, recompute=recompute)


def program_of(case, assignment):
    whole = recompute_all(case.graph, case.sites, case.signatures, case.cuts, assignment.again)
    return whole, partition(*whole, assignment)


def seconds_of(case, assignment, model):
    (graph, sites, signatures, cuts), program = program_of(case, assignment)
    strategies = assigned_strategies(graph, sites, signatures, cuts, assignment)
    return estimate_program(model, program, sites, signatures, strategies).step_s


@pytest.mark.parametrize("model", [MODEL, GPUS], ids=["cpu", "cuda"])
@pytest.mark.parametrize("recompute", ["free", "full"])
def test_the_objective_is_the_time_of_the_program(case, recompute, model):
    problem = problem_of(case, MESH, recompute, model)
    answer = solve_mesh(problem, None, time_limit_s=60)
    assignment = build_assignment(problem, answer.decisions)
    assert bool(assignment.again) == (recompute == "full")
    assert seconds_of(case, assignment, model) == pytest.approx(answer.objective_s, rel=1e-9)


def test_without_a_limit_nothing_is_made_again_and_the_plan_is_the_same(case):
    kept, free = problem_of(case, MESH, "none"), problem_of(case, MESH, "free")
    first, second = solve_mesh(kept, None, time_limit_s=60), solve_mesh(free, None, time_limit_s=60)
    assert first.objective_s == pytest.approx(second.objective_s, rel=1e-9)
    decisions = first.decisions  # the options that keep come first
    assert evaluate_seconds(free, decisions) == pytest.approx(evaluate_seconds(kept, decisions), rel=1e-12)


@pytest.mark.parametrize("case", ["gpt2"], indirect=True)
def test_tight_memory_is_met_and_costs_less_than_without_recompute(case):
    kept, free = problem_of(case, MESH, "none"), problem_of(case, MESH, "free")
    loose = solve_mesh(kept, None, time_limit_s=60)
    limit = int(0.8 * held_bytes(kept, loose.decisions).max())

    def measure(assignment):
        return estimate_memory(program_of(case, assignment)[1], 0).peak_bytes

    answer = solve_mesh(free, limit, time_limit_s=60, measure=measure)
    assert answer.status == "solved"
    assert measure(build_assignment(free, answer.decisions)) <= limit
    without = solve_mesh(kept, limit, time_limit_s=60, measure=measure)
    assert answer.objective_s <= without.objective_s * (1 + 1e-3)
