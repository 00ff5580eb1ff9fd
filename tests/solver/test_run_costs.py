"""A run of equal units is priced from four of them: the same as pricing all, and a bound for every number of them."""

from __future__ import annotations

from math import inf

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import Constraints
from autopar.cost.model import build_cost_model, staged_model
from autopar.cost.prices import build_prices
from autopar.graph.case import split_case
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.roles import find_roles
from autopar.solver.build import Shared, build_problem
from autopar.solver.formulate import Formulation
from autopar.solver.ilp import solve_program
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layout_prices import LayoutPrices, Tier
from autopar.solver.layouts import Place
from autopar.solver.run_costs import RunParts, Span, fill_run, price_run, relax_run, telling_span
from autopar.solver.runs import FEW, find_run
from autopar.solver.stage_solve import crossing_choices
from autopar.solver.steer import Steer
from autopar.solver.unit_costs import find_units

from .blocks import build_block_case

MODEL = build_cost_model(parse_cluster("8xH100-80GB"))
DP, TP = MeshAxis("dp", 2), MeshAxis("tp", 2)
SHAPE = {"blocks": 8, "width": 256, "hidden": 512, "batch": 64, "vocab": 256, "momentum": True}


def make_parts(turns, **shape):
    """The run of a model of eight blocks in turns."""
    case = split_case(build_block_case(**{**SHAPE, **shape}), turns)
    roles = find_roles(case.graph, case.sites, case.signatures, case.cuts)
    return RunParts(case, roles, find_run(find_units(case, roles).kinds))


def relax(parts, count, mesh, model, turns, first=0):
    """The relaxation of so many units, all of them in one graph."""
    part = parts.part(Span(0, count, 0, first))
    case = part.case
    steer = Steer(Constraints(), part.roles, crossing_choices(case, mesh, part.roles))
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    problem = build_problem(case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, steer=steer, turn_weight=float(turns))
    return solve_program(Formulation(problem).build(None, 1e6), relaxed=True, time_limit_s=30.0).objective / 1e6


def price(parts, count, mesh, model, turns, first=0):
    """`price_run`, from the program that tells it."""
    run = relax_run(parts, telling_span(parts, Span(0, count, 0, first)), mesh, model, Constraints(), turns, Shared())
    return price_run(run, run.own, count)


@pytest.mark.parametrize("mesh", [Mesh((DP,)), Mesh((TP,)), Mesh((DP, TP))], ids=["dp", "tp", "dp x tp"])
@pytest.mark.parametrize("turns", [1, 4])
def test_four_units_tell_those_of_more(turns, mesh):
    parts, model = make_parts(turns), staged_model(MODEL, 2, 8)
    assert parts.run.length >= 6 and parts.run.period == 1
    for count in (1, 2, 3, FEW, 6, parts.run.length):
        seconds, ends_s = price(parts, count, mesh, model, turns)
        assert seconds == pytest.approx(relax(parts, count, mesh, model, turns), rel=1e-6)
        assert 0 < ends_s < inf


@pytest.mark.parametrize("mesh", [Mesh((DP,)), Mesh((DP, TP))], ids=["dp", "dp x tp"])
@pytest.mark.parametrize("hidden", [(512, 1024), (512, 512, 1024)], ids=["every other", "every third"])
def test_few_units_that_take_turns_tell_those_of_more(hidden, mesh):
    parts, model, period = make_parts(4, blocks=14, hidden=hidden), staged_model(MODEL, 2, 8), len(hidden)
    assert parts.run.period == period and parts.run.length >= 12
    told = 0
    for count in (1, 2, *range(period + 3, 12)):
        for first in range(period):
            span = telling_span(parts, Span(0, count, 0, first))
            seconds, ends_s = price(parts, count, mesh, model, 4, first)
            assert seconds == pytest.approx(relax(parts, count, mesh, model, 4, first), rel=1e-6), (count, first, span)
            assert 0 < ends_s < inf
            told += span.inside < count
    assert told >= 3 * period


def test_the_costs_of_a_run_are_at_least_those_of_its_parts():
    parts, model = make_parts(4), staged_model(MODEL, 2, 8)
    known = {n: price(parts, n, Mesh((DP, TP)), model, 4) for n in (2, FEW, 6)}
    prices = LayoutPrices(LayoutCases(build_block_case(**SHAPE), Constraints()), MODEL, (4,))
    alone = prices.costs(Place(2, Mesh((DP, TP))), 4, Tier.ALL).step_s[parts.run.first]
    costs = fill_run(known, [alone] * parts.run.length, parts.run)
    for n in range(1, parts.run.length + 1):
        real = price(parts, n, Mesh((DP, TP)), model, 4)[0]
        assert n * alone <= costs.free_s[n] * (1 + 1e-9) and costs.free_s[n] <= costs.between_s[n] <= real * (1 + 1e-6)
    assert costs.between_s[6] > 1.02 * 6 * alone  # and say more than the units one by one
