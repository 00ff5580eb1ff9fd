"""Folding: equal rows and blocks become one, and nothing is lost or counted twice."""

import dataclasses

from autopar.graph.node import Phase
from autopar.view.fold import fold_blocks, fold_names, print_numbers

from .synthetic_plans import make_plan


def test_numbers_print_as_runs():
    assert print_numbers(["3", "1", "2", "7"]) == "1..3,7"
    assert print_numbers(["4"]) == "4"


def test_names_fold_where_their_keys_are_equal():
    names = ["h.0.w", "h.1.w", "h.2.w", "h.10.w", "out.w", "h.0.b"]
    folds = fold_names(names, ["x", "x", "y", "x", "x", "x"])
    assert [(f.name, f.members) for f in folds] == [("h.[0..1,10].w", (0, 1, 3)), ("h.2.w", (2,)), ("out.w", (4,)), ("h.0.b", (5,))]


def test_a_grid_of_numbers_folds_and_a_part_of_one_folds_by_its_outer_number():
    grid = [f"h.{i}.experts.{j}.w" for i in range(2) for j in range(3)]
    assert [f.name for f in fold_names(grid, ["x"] * 6)] == ["h.[0..1].experts.[0..2].w"]
    folds = fold_names(grid[:-1], ["x"] * 5)
    assert [f.name for f in folds] == ["h.0.experts.[0..2].w", "h.1.experts.[0..1].w"]
    assert sorted(m for f in folds for m in f.members) == [0, 1, 2, 3, 4]


def test_modules_that_are_numbered_by_their_names_fold_where_there_are_a_few():
    names = [f"layer{i}.ln_{k}.w" for i in range(4) for k in (1, 2)] + ["layer9.ln_1.w", "w01.b", "w02.b", "w03.b", "w04.b"]
    folds = fold_names(names, ["x"] * 8 + ["y"] * 5)
    assert [f.name for f in folds] == ["layer[0..3].ln_1.w", "layer[0..3].ln_2.w", "layer9.ln_1.w", "w01.b", "w02.b", "w03.b", "w04.b"]


def test_digits_inside_a_name_are_no_number():
    assert [f.name for f in fold_names(["conv1.w", "conv2.w"], ["x", "x"])] == ["conv1.w", "conv2.w"]


def test_blocks_that_were_decided_alike_fold():
    plan = make_plan(num_layers=4)
    folds = fold_blocks(plan)
    assert [(f.label, len(f.blocks)) for f in folds] == [("h[0..3]", 4)] * 3
    members = [i for f in folds for block in f.blocks for i in block]
    assert len(members) == len(set(members))
    for fold in folds:
        for k, first in enumerate(fold.blocks[0]):
            assert {(plan.nodes[b[k]].op, plan.nodes[b[k]].seconds) for b in fold.blocks} == {(plan.nodes[first].op, plan.nodes[first].seconds)}


def test_a_block_that_was_decided_otherwise_stands_alone():
    plan = make_plan(num_layers=4)
    block = next(r for r in plan.repeats if r.phase is Phase.FORWARD).blocks[2]
    nodes = tuple(dataclasses.replace(n, choices=("R", "R")) if n.name == block[0] else n for n in plan.nodes)
    folds = fold_blocks(dataclasses.replace(plan, nodes=nodes))
    assert [f.label for f in folds] == ["h[0..1,3]", "h[0..3]", "h[0..3]"]
