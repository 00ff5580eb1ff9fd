"""The bound of a mesh by a model with few of its equal blocks: that of the whole model, memory aside; with memory, no more than what a plan of it takes."""

from __future__ import annotations

from math import inf

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.model import build_cost_model
from autopar.cost.prices import build_prices
from autopar.graph.case import build_case
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.shorten import drop_units, unit_members
from autopar.graph.stages import list_units
from autopar.solver.build import build_problem
from autopar.solver.formulate import Formulation
from autopar.solver.ilp import solve_program
from autopar.solver.mesh_bounds import bound_mesh
from autopar.solver.one_mesh import solve_mesh
from autopar.solver.runs import FEW, Run

from .blocks import build_block_case

MODEL = build_cost_model(parse_cluster("8xH100-80GB"))
BLOCKS = 8
CASE = build_block_case(blocks=BLOCKS, width=256, hidden=512, batch=64, vocab=256, momentum=True)
MESHES = {"8": Mesh((MeshAxis("a", 8),)), "4 x 2": Mesh((MeshAxis("a", 4), MeshAxis("b", 2)))}


def bound(mesh, most_columns=10**6, enough_s=inf, limit=None):
    """Of the whole model, by four of its eight blocks."""
    rows = list_units(CASE.graph)
    short = build_case(drop_units(CASE.graph, unit_members(CASE.graph, rows), 3, 2 + BLOCKS - FEW), CASE.rules)
    unit = next(k for k, row in enumerate(list_units(short.graph)) if short.graph.nodes[row[0]].path.startswith("h.1"))
    return bound_mesh(short, Run(unit - 1, FEW), BLOCKS - FEW, mesh, MODEL, most_columns, enough_s, [], limit)


def build(mesh, recompute="none"):
    prices = build_prices(MODEL, mesh, CASE.graph, CASE.sites, CASE.signatures)
    return build_problem(CASE.graph, CASE.sites, CASE.signatures, CASE.cuts, CASE.fold, mesh, prices, recompute=recompute)


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_a_mesh_is_bounded_by_the_shortened_model(mesh):
    found, columns = bound(mesh)
    whole = solve_program(Formulation(build(mesh)).build(None, 1e6), relaxed=True, time_limit_s=30.0).objective / 1e6
    assert found == pytest.approx(whole, rel=1e-6) and columns > 0
    assert bound(mesh, most_columns=columns - 1)[0] == 0.0


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_what_fits_takes_at_least_the_bound_that_knows_of_memory(mesh):
    ample = solve_mesh(build(mesh), None, time_limit_s=30.0)
    raised = 0
    for share in (1.0, 0.5, 0.3, 0.2):
        limit = share * ample.peak_bytes
        found, plan = bound(mesh, limit=limit)[0], solve_mesh(build(mesh, "free"), limit, time_limit_s=30.0)
        assert found <= plan.objective_s * (1 + 1e-9)
        raised += found > bound(mesh)[0] * 1.01
    assert raised >= 2


def test_nothing_more_is_shown_than_is_enough():
    mesh = MESHES["8"]
    aside, tight = bound(mesh)[0], bound(mesh, limit=1.0)[0]
    assert tight > 1.2 * aside
    assert aside <= bound(mesh, enough_s=1.1 * aside, limit=1.0)[0] <= tight


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_blocks_that_take_turns_are_bounded_by_few_of_each(mesh):
    case = build_block_case(blocks=11, width=256, hidden=(512, 512, 1024), batch=64, vocab=256, momentum=True)
    rows, length = list_units(case.graph), 11
    few = Run(1, length, 3).few(length)
    assert few == 8
    short = build_case(drop_units(case.graph, unit_members(case.graph, rows), 4, 3 + length - few), case.rules)
    first = next(k for k, row in enumerate(list_units(short.graph)) if short.graph.nodes[row[0]].path.startswith("h.0"))
    prices = build_prices(MODEL, mesh, case.graph, case.sites, case.signatures)
    whole = solve_program(Formulation(build_problem(case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices)).build(None, 1e6), relaxed=True, time_limit_s=30.0)
    assert bound_mesh(short, Run(first, few, 3), length - few, mesh, MODEL, 10**6, inf, [], None)[0] == pytest.approx(whole.objective / 1e6, rel=1e-6)
