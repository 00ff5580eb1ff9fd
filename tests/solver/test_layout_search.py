"""The search over layouts: cheap prices bound dear ones, guesses are near what solving gives, a stage that does not fit hands units over."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from autopar.api import compile_workload
from autopar.cluster import parse_cluster
from autopar.constraints import Constraints, constrain
from autopar.cost.memory import Memory
from autopar.cost.model import build_cost_model
from autopar.errors import ConstraintError
from autopar.graph.choice import Assignment
from autopar.graph.mesh import Mesh
from autopar.options import Options
from autopar.solver import layout_cases
from autopar.solver.decide import Ask, _Decide
from autopar.solver.infeasible import MemoryShortage
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layout_guess import bound_layout, cut_evenly, cut_units, guess_seconds, simulate_guess
from autopar.solver.layout_prices import LayoutPrices, Tier
from autopar.solver.layout_solve import LayoutSolver, Staged, Unsolved, _handed_over
from autopar.solver.layouts import layout_ranks, print_layout
from autopar.solver.one_mesh import MeshAnswer
from autopar.solver.pipeline import PipelineSearch
from autopar.solver.runs import Run
from autopar.solver.stage_solve import _narrowed
from autopar.solver.why_no_layout import why_no_layout
from autopar.trace.load import load_workload

from .blocks import build_block_case

LARGE = {"blocks": 8, "width": 1024, "hidden": 2048, "batch": 2048, "vocab": 1024, "momentum": True}


def make_search(spec, shape, limit=60 * 2**30, seconds=60, **words):
    """A search over the layouts of a model."""
    cases = LayoutCases(build_block_case(**shape), constrain(**words) if words else Constraints())
    return PipelineSearch(cases, build_cost_model(parse_cluster(spec)), limit, time.monotonic() + seconds, lambda line: None, plain_too=True)


def run_search(search):
    search.run(inf)
    return search.result()


@pytest.mark.parametrize("hidden", [2048, (2048, 4096)], ids=["alike", "in turns"])
def test_more_exact_prices_only_raise_bounds(hidden):
    search = make_search("4xH100-80GB", {**LARGE, "hidden": hidden})
    seen = 0
    for layout in (each.layout for each in search.list_open()):
        if layout.num_microbatches <= 8:
            rows = [search.prices.costs(layout.place, layout.num_microbatches, tier, (layout.chunks,)) for tier in Tier]
            bounds = [bound_layout(layout, row) for row in rows]
            assert all(a <= b * (1 + 1e-9) for a, b in zip(bounds, bounds[1:])), print_layout(layout)
            few = search.prices.costs(layout.place, 1, Tier.RUN, (layout.chunks,))
            if len(few.step_s) == len(rows[-1].step_s) and layout.num_microbatches > 1:
                assert bound_layout(layout, search.prices.costs(layout.place, 1, Tier.RUN, (layout.chunks,), layout.num_microbatches)) <= bounds[-1] * (1 + 1e-9)
            seen += 1
    assert seen > 10


def test_blocks_that_names_make_differ_are_not_priced_as_one_piece():
    """A piece has few of its equal blocks stand for all: with the first of them kept whole it would say more than the plan takes."""
    free, named = (make_search("4xH100-80GB", LARGE, dp=2, tp=2, **words) for words in ({}, {"whole": ["h.0"]}))
    layout = next(e.layout for e in named.list_open() if e.layout.place.num_stages == 1 and e.layout.num_microbatches == 2)
    costs = named.prices.costs(layout.place, 2, Tier.RUN, (1,))
    whole = [(0, len(costs.step_s))]
    assert free.list_open() and free.prices.add_pieces(layout.place, 2, whole)
    assert not named.prices.add_pieces(layout.place, 2, whole)
    assert bound_layout(layout, named.prices.costs(layout.place, 2, Tier.RUN, (1,))) <= named.solver.solve(layout, costs, 60.0).step_s


@pytest.mark.parametrize("words", [{"pp": 2, "dp": 2, "microbatches": 8}, {"pp": 4, "microbatches": 8, "schedule": "1f1b"}, {"pp": 2, "tp": 2, "vpp": 2, "microbatches": 8}])
def test_guesses_are_near_what_solving_gives(words):
    search = make_search("4xH100-80GB", LARGE, **words)
    for each in search.list_open():
        layout = each.layout
        costs = search.prices.costs(layout.place, layout.num_microbatches, Tier.RUN, (layout.chunks,))
        cuts = cut_units(costs, layout_ranks(layout))
        staged = search.solver.solve(layout, costs, 60.0)
        assert isinstance(staged, Staged)
        assert guess_seconds(layout, costs, cuts) == pytest.approx(staged.step_s, rel=0.15)
        assert simulate_guess(layout, costs, cuts) == pytest.approx(staged.step_s, rel=0.15)


def test_a_guess_of_one_turn_has_the_gradients_summed_in_it():
    """Stages before wait for them: guesses without were a fifth of what solving gave where the batch is split across slow links."""
    search = make_search("16x1xV100-32GB", {**LARGE, "batch": 64}, pp=4, dp=4, microbatches=1)
    [layout] = [each.layout for each in search.list_open()]
    costs = search.prices.costs(layout.place, 1, Tier.RUN, (1,))
    cuts = cut_units(costs, layout_ranks(layout))
    staged = search.solver.solve(layout, costs, 60.0)
    for guess in (guess_seconds, simulate_guess):
        assert 0.5 * staged.step_s <= guess(layout, costs, cuts) <= 1.15 * staged.step_s


def test_stages_with_units_outside_of_the_run_in_their_midst_are_solved_in_a_shorter_model(monkeypatch):
    """The last two blocks are of their own kinds and share a chunk, the head has a chunk of its own: no reason to solve all blocks."""
    monkeypatch.setattr(layout_cases, "_SHORTER", 0)
    search = make_search("8xH100-80GB", {**LARGE, "blocks": 15, "skips": ((13, 14),)}, pp=8, microbatches=8, vpp=2)
    [layout] = [each.layout for each in search.list_open()]
    costs = search.prices.costs(layout.place, 8, Tier.RUN, (2,))
    assert search.cases.turned(8).run == Run(1, 13) and len(costs.step_s) == 17
    cuts = (*range(1, 15), 16)
    whole = search.solver._solve_cuts(search.cases.split(search.cases.case, 8), layout, search.solver.staged_model(layout.place), cuts, None)
    monkeypatch.setattr(LayoutSolver, "_move_cuts", None)
    found = search.solver.solve(layout, costs, 60.0, cuts)
    assert found.step_s == pytest.approx(whole.step_s, rel=1e-9)
    assert [a.memory.peak_bytes for a in found.stages] == [a.memory.peak_bytes for a in whole.stages]


@pytest.mark.parametrize(
    "blocks, hidden, words, cuts",
    [
        (16, (2048, 4096), {"pp": 4}, (5, 9, 13)),
        (16, (2048, 4096), {"pp": 4, "vpp": 2}, (3, 5, 7, 9, 11, 13, 15)),
        (19, (2048, 2048, 4096), {"pp": 4}, (4, 10, 16)),
    ],
)
def test_stages_of_blocks_that_take_turns_are_solved_in_a_shorter_model(monkeypatch, blocks, hidden, words, cuts):
    monkeypatch.setattr(layout_cases, "_SHORTER", 0)
    search = make_search("4xH100-80GB", {**LARGE, "blocks": blocks, "hidden": hidden}, microbatches=8, **words)
    [layout, *_] = [each.layout for each in search.list_open()]
    costs = search.prices.costs(layout.place, 8, Tier.RUN, (words.get("vpp", 1),))
    turned = search.cases.turned(8)
    assert turned.run == Run(1, blocks, len(hidden)) and turned.more > 0 and len(costs.step_s) == blocks + 2
    monkeypatch.setattr(layout_cases, "_SHORTER", 10**6)
    whole_costs = LayoutPrices(LayoutCases(search.cases.case, search.cases.constraints), search.prices.model, search.prices.counts).costs(layout.place, 8, Tier.ALL)
    monkeypatch.setattr(layout_cases, "_SHORTER", 0)
    assert costs.step_s == pytest.approx(whole_costs.step_s, rel=1e-9) and costs.waiting == pytest.approx(whole_costs.waiting)
    whole = search.solver._solve_cuts(search.cases.split(search.cases.case, 8), layout, search.solver.staged_model(layout.place), cuts, None)
    found = search.solver.solve(layout, costs, 60.0, cuts)
    assert search.solver._shorten(layout, turned, cuts, blocks + 2) is not None
    assert search.solver._shorten(layout, turned, tuple(range(1, len(cuts) + 1)), blocks + 2) is None  # the last stage has nearly all of them
    assert found.step_s == pytest.approx(whole.step_s, rel=1e-9)
    assert [a.memory.peak_bytes for a in found.stages] == [a.memory.peak_bytes for a in whole.stages]
    assert bound_layout(layout, costs) <= whole.step_s


def test_a_stage_that_does_not_fit_hands_units_over():
    """Less and less memory: the cuts move, and where none fit that is proven."""
    shape = {"blocks": 4, "width": 64, "hidden": 128, "batch": 64, "vocab": 4096, "momentum": True}
    words = {"pp": 2, "microbatches": 4, "schedule": "1f1b", "recompute": "none"}
    ample = run_search(make_search("cpu:2", shape, **words)).best
    assert ample is not None
    peak = max(a.memory.peak_bytes for a in ample.stages)
    cuts, found = {ample.cuts}, [ample.step_s]
    for share in (0.95, 0.9):
        best = run_search(make_search("cpu:2", shape, limit=int(share * peak), **words)).best
        assert best is not None
        assert max(a.memory.peak_bytes for a in best.stages) <= share * peak
        cuts.add(best.cuts)
        found.append(best.step_s)
    assert found == sorted(found) and len(cuts) == 3
    none = run_search(make_search("cpu:2", shape, limit=int(0.85 * peak), **words))
    assert none.best is None and none.bound_s == inf
    search = make_search("cpu:2", shape, limit=int(0.85 * peak), **words)
    whole, layout = search.cases.split(search.cases.case, 4), next(each.layout for each in search.list_open())
    search.solver.deadline = time.monotonic() + 60
    every = [search.solver._solve_cuts(whole, layout, search.solver.staged_model(layout.place), (cut,), None) for cut in range(1, 6)]
    assert all(isinstance(each, Unsolved) and each.proven for each in every)


def test_what_was_not_tried_is_not_said_to_be_impossible():
    """A program that leaves recompute out has no plan: that proves nothing."""
    answer = MeshAnswer("infeasible", (), inf, 1.0, 0, 0, 0, 0, "")
    assert _narrowed(answer, 0.5).status == "unknown" and _narrowed(answer, 0.5).bound_s == 0.5
    assert _narrowed(replace(answer, status="solved"), 0.5).status == "solved"


def test_a_plan_is_found_even_where_the_time_is_up_at_once():
    found = run_search(make_search("8xA100-80GB", LARGE, seconds=0, pp=2, microbatches=4))
    assert found.best is not None and found.num_solved == 1 and found.bound_s <= found.best.step_s
    search = make_search("8xA100-80GB", LARGE, seconds=0, pp=2, microbatches=4)
    search.run(1e-9)  # where a plan is known, time counts
    assert search.result().num_solved == 0


def test_units_are_handed_to_neighbours():
    assert _handed_over((2, 4), 1, (0, 1, 2), 6) == [(3, 4), (2, 3)]
    assert _handed_over((2, 4), 0, (0, 1, 2), 6) == [(1, 4)]
    assert _handed_over((1,), 0, (0, 1), 2) == []
    assert _handed_over((1, 2, 3), 1, (0, 1, 0, 1), 5) == [(1, 2, 4)]  # the second and fourth of four chunks; only the fourth has two
    assert _handed_over((1, 2, 3), 0, (0, 1, 0, 1), 5) == []


def test_who_says_where_to_cut_is_asked_whatever_bounds_a_layout():
    """A head as large as several layers: the best cuts give its stage fewer."""
    cases = LayoutCases(build_block_case(**{**LARGE, "vocab": 16384}), constrain(pp=4, microbatches=4, schedule="1f1b"))
    told = {}
    for cut in (cut_units, cut_evenly):
        search = PipelineSearch(cases, build_cost_model(parse_cluster("4xH100-80GB")), 60 * 2**30, time.monotonic() + 60, lambda line: None, price_only=True, cut=cut)
        search.run(inf)
        told[cut] = search.best.cuts
        costs = search.prices.costs(search.best.layout.place, 4, Tier.RUN, (1,))
    assert told[cut_evenly] == cut_evenly(costs, tuple(range(4))) != told[cut_units]


def test_even_cuts_count_layers():
    """A unit before and one after the layers."""
    search = make_search("4xH100-80GB", LARGE)
    layouts = search.list_open()  # which tells the prices what may be asked
    costs = search.prices.costs(layouts[0].layout.place, layouts[0].layout.num_microbatches, Tier.FLOOR)
    units = len(costs.step_s)
    for chunks in range(1, units):
        cuts = cut_evenly(costs, tuple(range(chunks)))
        assert len(cuts) == chunks - 1 and list(cuts) == sorted(set(cuts))
        sizes = [b - a for a, b in zip((0, *cuts), (*cuts, units))]
        if (units - 2) % chunks == 0 and chunks > 1:
            assert sizes[0] == sizes[-1] == (units - 2) // chunks + 1 and set(sizes[1:-1]) <= {(units - 2) // chunks}


@pytest.mark.parametrize(
    "blocks, vocab, words",
    [
        (9, 4096, {"pp": 4, "microbatches": 4, "vpp": 2}),
        (9, 4096, {"pp": 2, "dp": 2, "microbatches": 4, "vpp": 4}),
        (10, 16384, {"pp": 4, "microbatches": 8, "vpp": 2}),
        (7, 1024, {"pp": 2, "dp": 2, "microbatches": 4, "vpp": 3}),
        (12, 8192, {"pp": 4, "microbatches": 4, "vpp": 3}),
    ],
)
def test_a_known_plan_hides_no_faster_one_in_chunks(blocks, vocab, words):
    """Where few units fill many chunks other prices cut otherwise, and the first chunk may be longer than others of its rank."""
    shape = {"blocks": blocks, "width": 1024, "hidden": 4096, "batch": 32768, "vocab": vocab}
    found = run_search(make_search("4xH100-80GB", shape, limit=70 * 2**30, **words))
    assert found.best is not None and found.bound_s <= found.best.step_s * (1 + 1e-9)
    again = make_search("4xH100-80GB", shape, limit=70 * 2**30, **words)
    again.run(1.06 * found.best.step_s)
    assert again.result().best is not None and again.result().best.step_s <= found.best.step_s * (1 + 1e-9)


@pytest.mark.parametrize("last", [True, False])
def test_what_had_too_little_time_is_solved_again_with_all_that_is_left(last, monkeypatch):
    """Unless another search follows, which needs the time, too."""
    usual, hurried = run_search(make_search("cpu:2", LARGE, pp=2, vpp=3)).best, []
    solve = LayoutSolver.solve

    def solve_late(self, layout, costs, time_limit_s, cuts=None, all_time=False):
        hurried.append((print_layout(layout), all_time))
        return solve(self, layout, costs, time_limit_s, cuts, all_time) if all_time else Unsolved("not in this time", proven=False)

    monkeypatch.setattr(LayoutSolver, "solve", solve_late)
    search = make_search("cpu:2", LARGE, pp=2, vpp=3)
    search.run(inf, last)
    found = search.result()
    again = [name for name, all_time in hurried if all_time]
    assert len(set(again)) == len(again)
    if not last:
        assert found.best is None and not again
        return
    assert found.best.step_s == pytest.approx(usual.step_s) and print_layout(found.best.layout) in again
    assert not any(row.what == print_layout(found.best.layout) for row in found.pruned)


def test_layouts_go_on_where_no_mesh_has_a_plan(monkeypatch):
    """Neither gave one in its share of the time: the user asked for a plan, and gets one."""
    ask = Ask(build_block_case(**LARGE), build_cost_model(parse_cluster("8x8xA100-80GB")), Constraints(), 60 * 2**30, 30.0, None, lambda line: None)
    nothing = Memory(0, 2**40, 0, 0, (), ())

    def none_fits(self, may_ask):
        raise MemoryShortage(1, nothing, Assignment(Mesh(()), (), ()), False, "none")

    monkeypatch.setattr(_Decide, "_search_meshes", none_fits)
    usual = PipelineSearch.run

    def run_late(self, cutoff_s, last=False):
        self.deadline, self.num_late = 0.0, 2
        usual(self, cutoff_s, last)

    monkeypatch.setattr(PipelineSearch, "run", run_late)
    with pytest.raises(MemoryShortage):
        _Decide(replace(ask, most_stages=1, constraints=constrain(microbatches=1))).run()
    found = _Decide(ask).run()
    assert found.certificate.lower_bound_s <= found.certificate.objective_s < inf
    monkeypatch.setattr(PipelineSearch, "go_on", lambda self, deadline, cutoff_s: None)
    with pytest.raises(MemoryShortage):
        _Decide(ask).run()


@pytest.mark.parametrize("name", ["functional_call", "accumulated_loss"])
def test_models_that_take_no_microbatches_or_few_have_a_plan(name):
    """Of one all parameters are read before the turns; the other sums its loss over two slices of the batch, so it runs in 2 microbatches and not in 4."""
    workload = load_workload(f"{Path(__file__).parents[1] / 'zoo' / 'user_code.py'}:{name}")
    plan = compile_workload(workload, "8xH100-80GB", Options(time_limit_s=20.0)).plan
    assert 0 < plan.solve.lower_bound_s <= plan.solve.objective_s
    with pytest.raises(ConstraintError, match=f"{name}.*microbatches"):
        compile_workload(workload, "8xH100-80GB", Options(time_limit_s=20.0, constraints=constrain(microbatches=4)))


@pytest.mark.parametrize("chunks", [10, 12])
def test_as_many_chunks_as_are_asked_for(chunks):
    """More than are tried where nobody asks for any (8); a block each."""
    search = make_search("2xH100-80GB", {**LARGE, "blocks": 24}, seconds=120, pp=2, microbatches=4, vpp=chunks)
    layouts = [each.layout for each in search.list_open()]
    assert layouts and {(layout.chunks, layout.schedule) for layout in layouts} == {(chunks, "interleaved")}
    free = make_search("2xH100-80GB", {**LARGE, "blocks": 24}, seconds=120, pp=2, microbatches=4)
    assert {each.layout.chunks for each in free.list_open()} == set(range(1, 9))


def test_more_chunks_than_parts_are_said_to_be_too_many():
    why = why_no_layout(2, 2, 10, 2048, constrain(pp=2, microbatches=4, vpp=12))
    assert "2 stages of 12 chunks need 24 parts, the model can be cut into 10" in why
