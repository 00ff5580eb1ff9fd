"""One pipeline stage: its objective is the time of its program, its bytes are those of its program with several microbatches in flight; and what
units cost at least bounds every plan of a layout."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from math import inf
from statistics import median

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import Constraints
from autopar.cost.memory import ALONE, estimate_memory, queued_bytes
from autopar.cost.model import build_cost_model, staged_model
from autopar.cost.prices import build_prices
from autopar.graph.case import build_case, split_case
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.node import Phase
from autopar.graph.roles import find_roles
from autopar.graph.schedules.known import build_order, splits_backward
from autopar.graph.stages import cut_stages, list_units
from autopar.solver.build import build_problem
from autopar.solver.judge import evaluate_seconds, held_bytes
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layout_guess import bound_at_cuts, bound_layout, has_given_cuts, sharpen_bound
from autopar.solver.layout_prices import Tier
from autopar.solver.layout_solve import Staged
from autopar.solver.layouts import least_seconds, print_layout
from autopar.solver.one_mesh import build_assignment
from autopar.solver.pipeline import PipelineSearch
from autopar.solver.stage_solve import crossing_choices, place_among, solve_stage, stage_program, time_stage
from autopar.solver.steer import Steer
from autopar.solver.unit_costs import part_roles

from .blocks import build_block_case

MODEL = build_cost_model(parse_cluster("8xH100-80GB"))
DP, TP = MeshAxis("dp", 2), MeshAxis("tp", 2)
MESHES = (Mesh(()), Mesh((DP,)), Mesh((TP,)), Mesh((DP, TP)))


def draw_stages(rng):
    """Random stages of a random model: (number of turns, stages as (case, steer), mesh, model with the links between them)."""
    case = build_block_case(blocks=rng.randint(2, 5), tied=rng.random() < 0.3, momentum=rng.random() < 0.5, width=64, hidden=128, batch=64, vocab=128)
    turns, count, mesh = rng.choice((2, 4)), rng.randint(1, 3), rng.choice(MESHES)
    whole = split_case(case, turns)
    roles = find_roles(whole.graph, whole.sites, whole.signatures, whole.cuts)
    rows = list_units(whole.graph)
    starts = [whole.graph.nodes[rows[k][0]].name for k in sorted(rng.sample(range(1, len(rows)), count - 1))]
    parts = [build_case(stage.graph, case.rules) for stage in cut_stages(whole.graph, starts)]
    return turns, [(part, Steer(Constraints(), part_roles(roles, whole, part))) for part in parts], mesh, staged_model(MODEL, count, 8)


def step_seconds(times, weight):
    """What a stage's times add up to where one turn counts so much."""
    return times.prepare_s + weight * (times.forward_s + times.backward_s) + times.update_s


@pytest.mark.parametrize("seed", range(16))
def test_the_objective_of_a_stage_is_the_time_of_its_program(seed):
    rng = random.Random(seed)
    turns, stages, mesh, model = draw_stages(rng)
    for part, steer in stages:
        weight = turns + rng.choice((0.0, 0.5, 1.0, 3.0))
        found = solve_stage(part, mesh, steer, model, None, 1.0, weight, 20.0)
        assert found.times is not None
        assert step_seconds(found.times, weight) == pytest.approx(found.answer.objective_s, rel=1e-9)
        assert found.answer.bound_s <= found.answer.objective_s
        assert 0 <= found.times.weight_s <= found.times.backward_s


@pytest.mark.parametrize("recompute", ["none", "free", "full"])
@pytest.mark.parametrize("seed", range(8))
def test_random_decisions_of_a_stage_cost_and_hold_what_their_program_does(seed, recompute):
    rng = random.Random(1000 + seed)
    turns, stages, mesh, model = draw_stages(rng)
    for part, steer in stages:
        weight, in_flight = turns + rng.random(), rng.choice((1.0, 1.5, 2.0, 4.0))
        steer = replace(steer, choices=crossing_choices(part, mesh, steer.roles))
        prices = build_prices(model, mesh, part.graph, part.sites, part.signatures)
        problem = build_problem(
            part.graph, part.sites, part.signatures, part.cuts, part.fold, mesh, prices, steer=steer, recompute=recompute, in_flight=in_flight, turn_weight=weight
        )
        for _ in range(3):
            decisions = tuple(rng.randrange(len(c.seconds)) for c in problem.choosers)
            objective = evaluate_seconds(problem, decisions)
            if objective == inf:
                continue
            assignment = build_assignment(problem, decisions)
            seconds = step_seconds(time_stage(part, assignment, model), weight)
            if recompute == "free":  # what nobody reads again gets no copy
                assert seconds <= objective * (1 + 1e-9)
            else:
                assert seconds == pytest.approx(objective, rel=1e-9)
            program = stage_program(part, assignment)[1]
            assert held_bytes(problem, decisions).max() >= estimate_memory(program, 0, in_flight).peak_bytes


def test_the_bytes_of_a_stage_are_those_of_its_program_with_microbatches_in_flight():
    """Never fewer. More only where a reshard of several steps has the peak: the source is counted until the last of them."""
    shares = []
    for seed in range(16):
        rng = random.Random(seed)
        turns, stages, mesh, model = draw_stages(rng)
        for part, steer in stages:
            in_flight = rng.choice((1.0, 1.5, 2.0, 3.0, 4.0))
            found = solve_stage(part, mesh, steer, model, None, in_flight, float(turns), 20.0)
            assert found.assignment is not None and not found.assignment.again
            peak = estimate_memory(stage_program(part, found.assignment)[1], 0, in_flight).peak_bytes
            shares.append(found.answer.peak_bytes / peak)
    assert min(shares) >= 1
    assert sum(share <= 1.03 for share in shares) >= 0.85 * len(shares)
    assert max(shares) <= 1.5


def test_more_in_flight_holds_more_and_less_memory_is_met():
    case = split_case(build_block_case(width=64, hidden=128, batch=64, vocab=128), 4)
    stages = cut_stages(case.graph, [case.graph.nodes[list_units(case.graph)[3][0]].name])
    roles = find_roles(case.graph, case.sites, case.signatures, case.cuts)
    part = build_case(stages[0].graph, case.rules)
    steer, mesh = Steer(Constraints(), part_roles(roles, case, part)), Mesh((DP,))
    peaks = [solve_stage(part, mesh, steer, MODEL, None, held, 4.0, 20.0).memory.peak_bytes for held in (1.0, 2.0, 4.0)]
    assert peaks[0] < peaks[1] < peaks[2]
    seconds = []
    for share in (1.0, 0.9, 0.8, 0.7):
        found = solve_stage(part, mesh, steer, MODEL, share * peaks[2], 4.0, 4.0, 20.0)
        assert found.memory.peak_bytes <= share * peaks[2]
        seconds.append(found.answer.objective_s)
    assert seconds == sorted(seconds) and seconds[-1] > seconds[0]


@pytest.mark.parametrize(("width", "batch"), [(64, 64), (1024, 2048)])
@pytest.mark.parametrize("mesh", [Mesh((DP,)), Mesh((DP, TP))], ids=["dp", "dp x tp"])
def test_near_the_limit_little_is_made_again_and_that_is_proven(mesh, width, batch):
    case = split_case(build_block_case(blocks=6, width=width, hidden=2 * width, batch=batch, vocab=128), 4)
    stages = cut_stages(case.graph, [case.graph.nodes[list_units(case.graph)[4][0]].name])
    roles = find_roles(case.graph, case.sites, case.signatures, case.cuts)
    part = build_case(stages[0].graph, case.rules)
    steer = Steer(Constraints(), part_roles(roles, case, part))
    ample, again, last = solve_stage(part, mesh, steer, MODEL, None, 4.0, 4.0, 20.0), [], 0.0
    for share in (0.97, 0.9, 0.6):
        limit = share * ample.memory.peak_bytes
        found = solve_stage(part, mesh, steer, MODEL, limit, 4.0, 4.0, 60.0)
        assert found.memory.peak_bytes <= limit and found.found.objective_s >= last
        assert found.found.objective_s <= found.found.bound_s * 1.001
        again.append(len(found.assignment.again))
        last = found.found.objective_s
    assert again[0] <= again[1] < again[2]


# --- units

SMALL = {"blocks": 3, "width": 64, "hidden": 128, "batch": 16, "vocab": 64}
LARGE = {"blocks": 4, "width": 1024, "hidden": 2048, "batch": 2048, "vocab": 1024}


def each_bound(search, layout, few):
    """The largest of the bounds that need no prices for the layout's own number of microbatches."""
    place, turns = layout.place, layout.num_microbatches
    floor = least_seconds(layout, *search.prices.floor_s(place, turns))
    rows = [search.prices.costs(place, few, tier, turns=turns) for tier in Tier]
    phases = search.prices.phases(place, few, turns)
    drained = sharpen_bound(layout, rows[-1], phases)[0] if layout.chunks == 1 else 0.0
    return max(floor, drained, *(bound_layout(layout, row) for row in rows))


def each_bound_at(search, layout, few, cuts):
    """The bounds at these cuts by prices for fewer microbatches and for its own number; and at any, by what all turns take."""
    place, turns, prices = layout.place, layout.num_microbatches, search.prices
    own, stretched = prices.phases(place, turns), prices.phases(place, few, turns)
    rows = [(prices.costs(place, few, tier, (layout.chunks,), turns), stretched) for tier in Tier]
    rows += [(prices.costs(place, turns, tier, (layout.chunks,)), own) for tier in Tier]
    return [*(bound_at_cuts(layout, costs, phases, cuts) for costs, phases in rows), *(least_seconds(layout, sum(p.loop_s) / turns) for p in (own, stretched))]


def bound_by_pieces(search, layout):
    """With the stages of the cuts that hold the bound down priced as one piece, until none is left."""
    place, turns, prices = layout.place, layout.num_microbatches, search.prices
    while True:
        costs = prices.costs(place, turns, Tier.RUN, (layout.chunks,))
        bound, cuts = sharpen_bound(layout, costs, prices.phases(place, turns))
        if cuts is None or not prices.add_pieces(place, turns, list(zip((0, *cuts), (*cuts, len(costs.step_s))))):
            return bound


def list_gaps(spec, in_turns, **shape):
    """Layout -> (what its units say at least) / (the step of its plan), for every layout of a model with so many turns."""
    model = build_cost_model(parse_cluster(spec))
    search = PipelineSearch(LayoutCases(build_block_case(**shape), Constraints()), model, 60 * 2**30, time.monotonic() + 300, lambda line: None)
    found, joint, paths = {}, {}, {}
    for layout in (each.layout for each in search.list_open()):
        place, turns = layout.place, layout.num_microbatches
        if turns not in in_turns:
            continue
        few = min(in_turns) if place.num_stages > 1 else min(n for n in in_turns if n > 1)
        costs = search.prices.costs(place, turns, Tier.ALL)
        staged = search.solver.solve(layout, costs, 300.0)
        assert isinstance(staged, Staged), staged
        sharp = sharpen_bound(layout, costs, search.prices.phases(place, turns))[0]
        bounds = (each_bound(search, layout, few), bound_layout(layout, costs), sharp, bound_by_pieces(search, layout))
        if place.num_stages > 1:
            joint[print_layout(layout)] = search.solver.bound(layout, staged.cuts, len(costs.step_s), inf, time.monotonic() + 300) / staged.step_s
        assert bounds[0] <= staged.step_s * (1 + 1e-6) and bounds[1] <= bounds[2] <= bounds[3] * (1 + 1e-3)
        if place.num_stages > 1 and not splits_backward(layout.schedule):
            bounds += (search.prices.path_s(place, turns, inf, inf),)
            paths[print_layout(layout)] = bounds[-1] / staged.step_s
        if has_given_cuts(layout):
            bounds += tuple(each_bound_at(search, layout, few, staged.cuts))
        found[print_layout(layout)] = max(bounds) / staged.step_s
    assert len(found) > 3 and joint and all(share <= 1 + 1e-6 for share in paths.values()), paths
    assert min(in_turns) > 1 or max(paths.values()) > 0.6, paths  # of one microbatch the path is all but the update
    assert all(0.95 <= share <= 1 + 1e-6 for share in joint.values()) and median(joint.values()) > 0.98, joint
    return found


@pytest.mark.parametrize("shape", [SMALL, LARGE, {**SMALL, "skips": ((0, 2),)}, {**SMALL, "momentum": True}], ids=["small", "large", "skips", "momentum"])
def test_units_bound_every_layout(shape):
    gaps = list_gaps("4xH100-80GB", (1, 4), **shape)
    assert max(gaps.values()) <= 1 + 1e-6, max(gaps.items(), key=lambda row: row[1])
    assert max(gaps.values()) > 0.9  # and say something


def test_what_all_blocks_read_is_made_once():
    """A table, before the turns: one by one, each block would make it."""
    gaps = list_gaps("4xH100-80GB", (4,), **SMALL, table=12)
    assert 0.95 < max(gaps.values()) <= 1 + 1e-6, max(gaps.items(), key=lambda row: row[1])


def test_what_runs_in_one_kernel_with_a_node_of_another_unit_counts_as_it_does_there():
    """Modules with names are units, too, and a kernel may reach from one to the next: the sum of a skip's gradients. Cut between them it starts twice."""
    gaps = list_gaps("4xH100-80GB", (1, 4), **SMALL, skips=((0, 2), (0, 1), (1, 2)), named=True)
    gaps |= {f"{layout}, of a sequence": gap for layout, gap in list_gaps("4xH100-80GB", (1, 4), **{**SMALL, "blocks": 17}, sequence=True).items()}
    assert 0.9 < max(gaps.values()) <= 1 + 1e-6, max(gaps.items(), key=lambda row: row[1])


def test_units_of_a_tied_model_bound_every_layout():
    gaps = list_gaps("4xH100-80GB", (4,), **LARGE, tied=True)
    assert max(gaps.values()) <= 1 + 1e-6, max(gaps.items(), key=lambda row: row[1])


def test_messages_under_way_count_against_the_limit():
    """They are beside the program, where the judge of the search does not see them."""
    case = split_case(build_block_case(width=64, hidden=128, batch=64, vocab=128), 4)
    stages = cut_stages(case.graph, [case.graph.nodes[list_units(case.graph)[3][0]].name])
    graphs, order = [stage.graph for stage in stages], build_order("gpipe", 2, 4)
    among = place_among(graphs, 0, order, 0)
    roles = find_roles(case.graph, case.sites, case.signatures, case.cuts)
    part = build_case(graphs[0], case.rules)
    steer, mesh = Steer(Constraints(), part_roles(roles, case, part)), Mesh((DP,))
    alone, beside = (solve_stage(part, mesh, steer, MODEL, None, 4.0, 4.0, 20.0, among=a).memory.peak_bytes for a in (ALONE, among))
    heavy = replace(among, held=tuple(replace(row, messages=tuple((name, 8 * count) for name, count in row.messages)) for row in among.held))
    most = solve_stage(part, mesh, steer, MODEL, None, 4.0, 4.0, 20.0, among=heavy).memory.peak_bytes
    assert alone <= beside < most
    for share in (0.97, 0.9, 0.85):
        found = solve_stage(part, mesh, steer, MODEL, share * most, 4.0, 4.0, 20.0, among=heavy)
        assert found.assignment is not None and found.memory.peak_bytes <= share * most
        assert found.memory.peak_bytes == estimate_memory(stage_program(part, found.assignment)[1], 0, 4.0, heavy).peak_bytes


def test_what_is_sent_last_is_held_beside_the_update():
    """The update begins when its last action is over: what that and the one before have sent may be under way, and nothing is in flight that makes room for it."""
    case = split_case(build_block_case(width=64, hidden=128, batch=64, vocab=128), 4)
    graphs = [s.graph for s in cut_stages(case.graph, [case.graph.nodes[list_units(case.graph)[3][0]].name])]
    among, roles, part = place_among(graphs, 1, build_order("gpipe", 2, 4), 1), find_roles(case.graph, case.sites, case.signatures, case.cuts), build_case(graphs[1], case.rules)
    found = solve_stage(part, Mesh(()), Steer(Constraints(), part_roles(roles, case, part)), MODEL, None, 4.0, 4.0, 20.0)
    program = stage_program(part, found.assignment)[1]
    phases = [node.phase for node in program.graph.nodes]
    queued = queued_bytes(program, 4.0, among)
    [(_, count)] = [row.messages for row in among.held if row.phase is Phase.UPDATE][0]
    assert count == 2 and queued[phases.index(Phase.UPDATE)] >= 2 * 16 * 64 * 4 and not any(queued_bytes(program, 4.0, ALONE)[: phases.index(Phase.UPDATE)])


def test_a_shorter_model_says_what_a_stage_of_the_whole_one_holds():
    """Eight blocks in four stages; of a model of three stages the middle one stands for both in the midst."""
    def graphs_of(blocks, count, per):
        whole = split_case(build_block_case(blocks=blocks), 4)
        rows = list_units(whole.graph)
        return [stage.graph for stage in cut_stages(whole.graph, [whole.graph.nodes[rows[1 + per * k][0]].name for k in range(1, count)])]

    order = build_order("1f1b", 4, 4)
    whole, short = graphs_of(8, 4, 2), graphs_of(6, 3, 2)
    for number, here in enumerate((0, 1, 1, 2)):
        mine, theirs = place_among(whole, number, order, number), place_among(short, here, order, number)
        counts = [[(row.phase, row.in_flight, sorted(count for _, count in row.messages), len(row.own)) for row in among.held] for among in (mine, theirs)]
        assert counts[0] == counts[1] and any(count for row in mine.held for _, count in row.messages)
