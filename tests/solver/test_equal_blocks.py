"""Equal blocks decide alike, also where what follows the last of them cuts its dims: what is offered must be legal in each."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from autopar.api import build_case  # noqa: E402
from autopar.cluster import parse_cluster  # noqa: E402
from autopar.cost.meshes import list_meshes  # noqa: E402
from autopar.cost.model import build_cost_model  # noqa: E402
from autopar.cost.prices import build_prices  # noqa: E402
from autopar.graph.partition import node_cuts, partition  # noqa: E402
from autopar.graph.random_plans import Assigner  # noqa: E402
from autopar.solver.build import build_problem  # noqa: E402
from autopar.solver.one_mesh import build_assignment  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402

pytestmark = pytest.mark.torch
MODEL = build_cost_model(parse_cluster("cpu:4"))
(MESH,) = (mesh for mesh in list_meshes(parse_cluster("cpu:4")) if len(mesh.axes) == 1)


@pytest.fixture(scope="module")
def case():
    """Two equal blocks of convolutions; a convolution of stride 2 cuts the places of the second one's result in twos."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.ELU()) for _ in range(2))
            self.down = torch.nn.Conv2d(4, 4, 2, stride=2)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.down(x)

    workload = Workload(Net(), (torch.randn(4, 4, 4, 4),), (torch.randn(4, 4, 2, 2),), torch.nn.functional.mse_loss, torch.optim.SGD)
    return build_case(trace_step(workload).graph)


def test_the_blocks_are_cut_differently(case):
    """Else the tests below say nothing."""
    cuts = [node_cuts(site, signature, case.cuts) for site, signature in zip(case.sites, case.signatures)]
    assert any(cuts[k] != cuts[root] for k, root in enumerate(case.fold.node_class))


@pytest.mark.parametrize("seed", range(20))
def test_random_plans_are_legal_in_every_block(case, seed):
    assignment = Assigner(case.graph, case.sites, case.signatures, MESH).draw(random.Random(seed), case.fold)
    assert partition(case.graph, case.sites, case.signatures, case.cuts, assignment).graph.nodes


@pytest.mark.parametrize("seed", range(20))
def test_what_the_solver_may_choose_is_legal_in_every_block(case, seed):
    prices = build_prices(MODEL, MESH, case.graph, case.sites, case.signatures)
    problem = build_problem(case.graph, case.sites, case.signatures, case.cuts, case.fold, MESH, prices)
    rng = random.Random(seed)
    decisions = tuple(rng.randrange(len(chooser.seconds)) for chooser in problem.choosers)
    assert partition(case.graph, case.sites, case.signatures, case.cuts, build_assignment(problem, decisions)).graph.nodes
