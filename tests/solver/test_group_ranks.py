"""The ranks of dp in groups: which layouts have them, and that one is found where it is faster."""

from __future__ import annotations

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import constrain
from autopar.cost.model import build_cost_model
from autopar.graph.mesh import print_mesh
from autopar.solver import pipeline
from autopar.solver.decide import Ask, decide
from autopar.solver.group_ranks import group_place, list_groupable, may_group_ranks
from autopar.solver.layout_prices import Tier
from autopar.solver.layouts import Layout, list_places, print_layout
from autopar.solver.open_layouts import Open

from .blocks import build_block_case


def places(**words):
    return list_places(16, 8, 6, constrain(**words))


def test_the_ranks_of_a_host_are_a_group():
    found = {print_mesh(p.mesh) + f" x{p.num_stages}": group_place(p, 8) for p in places()}
    shown = {name: print_mesh(place.mesh) for name, place in found.items() if place is not None}
    assert shown == {"dp=16 x1": "dp=2 dp_2=8", "dp=8 tp=2 x1": "dp=2 dp_2=4 tp=2", "dp=4 tp=4 x1": "dp=2 dp_2=2 tp=4"}  # two stages are a host each, and tp=8 leaves one rank on each
    grouped = group_place(next(p for p in places() if print_mesh(p.mesh) == "dp=8 tp=2"), 8)
    assert [a.link for a in grouped.mesh.axes] == ["across", "inside", "inside"] and group_place(grouped, 8) is None


def test_words_that_leave_no_groups():
    assert may_group_ranks(constrain()) and may_group_ranks(constrain(dp=4, pp=2))
    assert not may_group_ranks(constrain(zero=1)) and not may_group_ranks(constrain(zero=3, dp_shard=2))


def test_the_best_layouts_are_tried_the_largest_groups_first():
    rows = []
    for place in places():
        for turns, seconds in ((1, 1.0), (2, 1.3), (4, 1.1), (8, 1.2)):
            rows.append(Open(Layout(place, turns), 0.5, guess_s=seconds - 0.01 * len(place.mesh.axes), tier=Tier.ALL))
    found = [print_layout(layout) for layout in list_groupable(rows, 1.0, 8)]
    assert found == [
        "dp=2 dp_2=8, 4 microbatches", "dp=2 dp_2=8, 8 microbatches", "dp=2 dp_2=4 tp=2, 4 microbatches", "dp=2 dp_2=4 tp=2, 8 microbatches",
        "dp=2 dp_2=2 tp=4, 4 microbatches", "dp=2 dp_2=2 tp=4, 8 microbatches",
    ]  # fmt: skip  # not those of one microbatch, which meshes have
    assert list_groupable(rows, 0.8, 8) == []  # all are far from the plan


@pytest.mark.parametrize("limit_gib", [3.0, 4.5])
def test_groups_of_a_host_are_faster_where_memory_asks_for_turns(monkeypatch, limit_gib):
    """Of a model whose parameters do not fit beside 2^17 samples: gathered among four neighbours in each of 16 turns, not among eight on two hosts."""
    case = build_block_case(blocks=4, width=4096, hidden=16384, batch=2**17, vocab=1024, momentum=True)

    def solve():
        model, words = build_cost_model(parse_cluster("2x4xH100-80GB")), constrain(tp=1, pp=1, microbatches=16)
        return decide(Ask(case, model, words, int(limit_gib * 2**30), 60.0, 1, lambda line: None))

    found = solve()
    assert print_mesh(found.assignment.mesh) == "dp=2 dp_2=4"
    assert found.certificate.lower_bound_s <= found.certificate.objective_s * (1 + 1e-9)
    assert "an axis that splits the batch (in this plan, and in others like it: one among hosts, and one inside of them)" in found.certificate.search_space
    monkeypatch.setattr(pipeline, "may_group_ranks", lambda constraints: False)
    alone = solve()
    assert print_mesh(alone.assignment.mesh) == "dp=8" and "inside of them" not in alone.certificate.search_space
    assert found.certificate.objective_s < 0.98 * alone.certificate.objective_s
