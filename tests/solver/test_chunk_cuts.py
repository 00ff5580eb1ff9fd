"""Cuts into several chunks a stage are those whose schedule ends first: beside every way to cut, and in what solving gives."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import combinations

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import constrain
from autopar.cost.model import build_cost_model
from autopar.graph.mesh import Mesh
from autopar.solver import chunk_cuts
from autopar.solver.chunk_cuts import hand_units_over
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layout_guess import cut_units, memory_factor, once_seconds, simulate_guess
from autopar.solver.layout_prices import Tier
from autopar.solver.layouts import Layout, Place, layout_ranks
from autopar.solver.pipeline import PipelineSearch
from autopar.solver.unit_costs import UnitCosts
from autopar.solver.unit_stages import ANY, obey_homes

from .blocks import build_block_case

AMPLE = 2**40
LAYOUTS = [(4, 8, "interleaved"), (4, 32, "interleaved"), (3, 7, "zbv"), (4, 30, "zbv"), (4, 9, "forward-only")]


def make_layout(stages: int, microbatches: int, schedule: str, chunks: int = 2) -> Layout:
    return Layout(Place(stages, Mesh(())), microbatches, schedule, chunks)


def make_costs(blocks: int, embedding: float = 0.2, head: float = 1.0, once: float = 0.0, **words) -> UnitCosts:
    """Equal blocks of a second, with what is before and after them."""
    steps = (embedding + once, *[1.0 + once] * blocks, head + once)
    nothing = (0.0,) * len(steps)
    return UnitCosts(steps, nothing, (once,) * len(steps), (once,) * len(steps), nothing, nothing, nothing, **words)


def every_cut(costs: UnitCosts, chunks: int):
    return combinations(range(1, len(costs.step_s)), chunks - 1)


@pytest.mark.parametrize(("stages", "count", "schedule"), LAYOUTS)
@pytest.mark.parametrize("blocks", [7, 9, 10])
@pytest.mark.parametrize("once", [0.0, 0.05])
def test_cuts_are_near_the_best_of_all(stages, count, schedule, blocks, once):
    layout, costs = make_layout(stages, count, schedule), make_costs(blocks, once=once)
    first = cut_units(costs, layout_ranks(layout))
    found = hand_units_over(layout, costs, first, AMPLE)
    best = min(simulate_guess(layout, costs, cuts) for cuts in every_cut(costs, 2 * stages))
    assert simulate_guess(layout, costs, found) <= min(1.02 * best, simulate_guess(layout, costs, first))


def test_one_turn_waits_for_sums_of_gradients_and_not_for_updates():
    costs = replace(make_costs(2, once=3.0), own_once_s=(1.0,) * 4)
    assert once_seconds(make_layout(2, 2, "1f1b", 1), costs).tolist() == [0.0, 3.0, 6.0, 9.0, 12.0]
    assert once_seconds(make_layout(1, 1, "1f1b", 1), costs).tolist() == [0.0, 3.0, 6.0, 9.0, 12.0]
    assert once_seconds(make_layout(2, 1, "1f1b", 1), costs).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_the_slowest_chunk_alone_does_not_tell():
    """One block more than chunks: who has two of them matters."""
    layout, costs = make_layout(4, 8, "interleaved"), make_costs(9)
    first = cut_units(costs, layout_ranks(layout))
    found = hand_units_over(layout, costs, first, AMPLE)
    assert simulate_guess(layout, costs, found) < 0.95 * simulate_guess(layout, costs, first)


def test_uneven_units_end_no_later_than_they_began():
    """Nor far from the best way to cut."""
    rng, shares = random.Random(0), []
    for _ in range(20):
        layout = make_layout(3, rng.choice((6, 24)), "interleaved")
        costs = replace(make_costs(8), step_s=tuple(rng.choice((0.1, 1.0, 1.0, 2.5)) for _ in range(10)))
        first = cut_units(costs, layout_ranks(layout))
        found = hand_units_over(layout, costs, first, AMPLE)
        best = min(simulate_guess(layout, costs, cuts) for cuts in every_cut(costs, 6))
        assert simulate_guess(layout, costs, found) <= simulate_guess(layout, costs, first)
        shares.append(simulate_guess(layout, costs, found) / best)
    assert max(shares) < 1.05 and sum(shares) / len(shares) < 1.01, shares


def test_units_stay_on_their_stages():
    homes = (ANY, ANY, ANY, 3, ANY, ANY, ANY, ANY, ANY, ANY, 3)
    layout, costs = make_layout(4, 8, "interleaved"), make_costs(9, homes=homes)
    first = cut_units(costs, layout_ranks(layout))
    found = hand_units_over(layout, costs, first, AMPLE)
    assert obey_homes(first, layout_ranks(layout), homes) and obey_homes(found, layout_ranks(layout), homes)
    assert found != first and not obey_homes(hand_units_over(layout, make_costs(9), first, AMPLE), layout_ranks(layout), homes), "elsewhere were faster"


def test_what_does_not_fit_is_no_faster():
    """With the cuts that are best with ample memory more is to be made again than with others, where a microbatch's blocks do not all fit."""
    layout, limit = make_layout(4, 8, "interleaved"), 8
    costs = replace(make_costs(9), waiting=(0.0, *[1.0] * 9, 0.0))
    first = cut_units(costs, layout_ranks(layout))
    ample, tight = (hand_units_over(layout, costs, first, limit) for limit in (AMPLE, limit))
    assert memory_factor(layout, costs, tight, limit) < 0.98 * memory_factor(layout, costs, ample, limit)
    assert memory_factor(layout, costs, tight, limit) * simulate_guess(layout, costs, tight) < 0.98 * memory_factor(layout, costs, ample, limit) * simulate_guess(layout, costs, ample)


def test_what_is_tried_is_counted(monkeypatch):
    """The same cuts on any machine; and those to begin with where nothing may be tried."""
    layout, costs, seen = make_layout(4, 8, "interleaved"), make_costs(9), []
    first = cut_units(costs, layout_ranks(layout))
    simulated = chunk_cuts.simulate_turns
    monkeypatch.setattr(chunk_cuts, "simulate_turns", lambda *words: seen.append(1) or simulated(*words))
    for actions, most in ((0, 1), (2 * 8 * 8 * 3, 4)):
        monkeypatch.setattr(chunk_cuts, "_ACTIONS", actions)
        hand_units_over.cache_clear()
        seen.clear()
        found = hand_units_over(layout, costs, first, AMPLE)
        assert len(seen) <= most and (actions or found == first)
    hand_units_over.cache_clear()


@pytest.mark.parametrize("words", [{"vpp": 2}, {"schedule": "zbv"}], ids=["interleaved", "zbv"])
def test_the_plan_is_faster_for_it(words):
    case, model = build_block_case(blocks=9, width=768, hidden=3072, batch=8, vocab=8192, momentum=True), build_cost_model(parse_cluster("4xH100-80GB"), None)
    search = PipelineSearch(LayoutCases(case, constrain(microbatches=8, pp=4, **words)), model, 2**34, time.monotonic() + 60, lambda line: None, plain_too=True)
    layout = next(each.layout for each in search.list_open())
    costs = search.prices.costs(layout.place, 8, Tier.RUN, (2,)).in_chunks(2)
    told, first = (search.solver.solve(layout, costs, 60, cuts) for cuts in (None, search.solver.first_cuts(layout, costs)))
    assert told.cuts == search.solver.where_to_cut(layout, costs) and told.step_s < 0.97 * first.step_s
