"""A problem in more turns, from that of fewer: never more than the plan takes by its own graph, and exact where a turn sees no samples."""

from __future__ import annotations

import random
from math import inf

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import Constraints
from autopar.cost.model import build_cost_model
from autopar.cost.prices import build_prices
from autopar.graph.case import split_case
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.tensor import Kind
from autopar.graph.turns import ACCUMULATE
from autopar.solver.build import build_problem
from autopar.solver.judge import evaluate_seconds
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layout_prices import LayoutPrices, Tier
from autopar.solver.layouts import Place
from autopar.solver.more_turns import find_each_turn, with_turns

from .blocks import build_block_case

MODEL = build_cost_model(parse_cluster("4xH100-80GB"))
DP, TP = MeshAxis("dp", 2), MeshAxis("tp", 2)
WHOLE = build_block_case(blocks=3, tied=True, momentum=True, width=64, hidden=128, batch=64, vocab=128)


def build(count, mesh):
    """(problem, its case) of the model in so many turns."""
    case = split_case(WHOLE, count)
    prices = build_prices(MODEL, mesh, case.graph, case.sites, case.signatures)
    return build_problem(case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, turn_weight=float(count)), case


def each_turn():
    return find_each_turn(WHOLE.graph, split_case(WHOLE, 2).graph)


def test_what_a_turn_does_with_weights_alone_is_told_by_shapes():
    each = each_turn()
    graph = split_case(WHOLE, 4).graph
    sums = {node.name for node in graph.nodes if node.op == ACCUMULATE}
    assert sums and sums <= each.nodes <= each.loop
    assert not any(node.name in each.nodes for node in graph.nodes if node.op.startswith("autopar.linear") or "microbatch" in node.op)
    states = [value.name for value in graph.values if value.kind is Kind.PARAM]
    assert states and set(states) <= each.values


@pytest.mark.parametrize("mesh", [Mesh((DP,)), Mesh((DP, TP))], ids=["dp", "dp x tp"])
@pytest.mark.parametrize(("few", "more"), [(2, 4), (2, 8), (4, 16)])
def test_no_plan_takes_less_and_none_less_than_in_fewer_turns(few, more, mesh):
    rng = random.Random(few * more)
    (small, case), (large, _) = build(few, mesh), build(more, mesh)
    grown, seen = with_turns(small, case, each_turn(), MODEL, few, more), 0
    options = [{option: k for k, option in enumerate(zip(*(part.options for part in chooser.parts)))} for chooser in large.choosers]
    assert [c.parts[0].members for c in small.choosers] == [c.parts[0].members for c in large.choosers]
    for _ in range(60):
        mine, theirs = [], []
        for chooser, known in zip(small.choosers, options):
            common = [k for k, option in enumerate(zip(*(part.options for part in chooser.parts))) if option in known]
            mine.append(rng.choice(common))
            theirs.append(known[tuple(part.options[mine[-1]] for part in chooser.parts)])
        if (own := evaluate_seconds(large, theirs)) < inf:
            seen += 1
            assert evaluate_seconds(small, mine) < evaluate_seconds(grown, mine) <= own * (1 + 1e-9)
    assert seen > 5


def test_sums_cost_as_often_as_there_are_turns():
    (small, case), (large, _) = build(2, Mesh((DP,))), build(8, Mesh((DP,)))
    grown, each, seen = with_turns(small, case, each_turn(), MODEL, 2, 8), each_turn(), 0
    for mine, theirs in zip(grown.choosers, large.choosers):
        if all(name in each.nodes for part in mine.parts for name in part.members) and mine.parts[0].node >= 0:
            seen += 1
            assert mine.seconds == pytest.approx(theirs.seconds, rel=1e-9)
    assert seen > 3


def test_one_turn_tells_only_starts():
    """Without turns gradients are summed over ranks in the backward pass; in turns that may wait until the last."""
    problem, case = build(1, Mesh((DP,)))
    grown = with_turns(problem, case, each_turn(), MODEL, 1, 8)
    assert grown.groups == problem.groups
    extra = [grown_seconds - seconds for a, b in zip(grown.choosers, problem.choosers) for grown_seconds, seconds in zip(a.seconds, b.seconds)]
    assert min(extra) >= 0 < max(extra) <= 7 * MODEL.launch_s * len(case.graph.nodes)


def test_prices_of_a_place_in_more_turns_are_between_those_of_fewer_and_its_own():
    prices = LayoutPrices(LayoutCases(WHOLE, Constraints()), MODEL, (1, 2, 4, 8))
    place = Place(2, Mesh((DP,)))
    for tier in (Tier.FLOOR, Tier.MAIN, Tier.ALL, Tier.RUN):
        few, grown, own = (prices.costs(place, count, tier, (1,), turns) for count, turns in ((2, 2), (2, 8), (8, 8)))
        assert all(a <= b * (1 + 1e-9) and b <= c * (1 + 1e-9) for a, b, c in zip(few.step_s, grown.step_s, own.step_s))
        assert sum(grown.step_s) > sum(few.step_s)
        if grown.run is not None:
            assert all(a <= b * (1 + 1e-9) for name in ("free_s", "between_s") for a, b in zip(getattr(grown.run, name), getattr(own.run, name)))
