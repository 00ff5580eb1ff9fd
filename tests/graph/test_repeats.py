"""Repeats: equal blocks are found and decided alike; blocks that differ in anything are not."""

from collections import Counter
from dataclasses import replace

import pytest
from codegen.chain import chain_graph

from autopar.graph.graph import check_graph
from autopar.graph.node import Phase
from autopar.graph.repeats import block_of, class_counts, find_repeats, fold_graph, identity_fold, name_by_block, relative_name, state_blocks
from autopar.graph.tensor import Kind

from .drafts import make_graph, node, value


@pytest.mark.parametrize(
    ("path", "block"),
    [
        ("h.3", ("h", 3)), ("h.3.attn", ("h", 3)), ("transformer.h.12.mlp.0", ("transformer.h", 12)), ("0.1", ("", 0)), ("", None), ("h", None), ("h2.w", None),
        ("conv1", None), ("a.2b.c", None), ("layer1.0.conv1", ("layer1", 0)),
    ],
)  # fmt: skip
def test_block_of_a_path(path, block):
    assert block_of(path) == block


@pytest.mark.parametrize(
    ("name", "family", "index", "inner"),
    [
        ("h.3.w@0", "h", 3, "#.w@0"), ("exp_avg:h.3.w@0", "h", 3, "exp_avg:#.w@0"), ("h.31.w@0", "h", 3, None), ("h.3.w@0", "h", 1, None), ("mh.3.w@0", "h", 3, None),
        ("0.w@0", "", 0, "#.w@0"), ("step:0.w@0", "", 0, "step:#.w@0"), ("10.w@0", "", 0, None), ("wte@0", "h", 3, None),
    ],
)  # fmt: skip
def test_name_inside_of_a_block(name, family, index, inner):
    assert relative_name(name, family, index) == inner


BLOCK = ("norm.weight", "up.weight", "down.weight")


@pytest.mark.parametrize(
    ("others", "blocks"),
    [
        ({}, (1, 2)),
        ({0: ("weight",), 3: ("weight", "bias"), 4: ("weight",)}, (1, 2)),
        ({0: ("tokens.weight", "places.weight"), 3: ("norm.weight", "out.weight", "out.bias")}, (1, 2)),
        ({0: ("down.weight", "up.weight")}, (0, 1, 2)),
        ({3: BLOCK[:1] + tuple(f"more.{i}.weight" for i in range(8)) + BLOCK[1:]}, (1, 2, 3)),
        ({3: ("in.weight", "out.weight"), 4: ("in.weight", "out.weight")}, (1, 2, 3, 4)),
    ],
    ids=["a row", "modules of torch at its ends", "modules of their own at its ends", "a shorter block", "a longer block", "two kinds of blocks"],
)  # fmt: skip
def test_states_of_blocks(others, blocks):
    entries = {1: BLOCK, 2: BLOCK, **others}
    names = [f"{lead}{k}.{path}@0" for lead in ("", "exp_avg:") for k in sorted(entries) for path in entries[k]]
    found = state_blocks(make_graph([value(name, (4, 4), Kind.OPTIM if ":" in name else Kind.PARAM) for name in names], []))
    assert {index for _, index in found.values()} == set(blocks) and all(storage.rpartition(":")[2].startswith(f"{index}.") for storage, (_, index) in found.items())
    assert len(found) == 2 * sum(len(entries[k]) for k in blocks)


def shown(graph):
    return [(r.family, r.phase.value, [b.index for b in r.blocks]) for r in find_repeats(graph)]


@pytest.mark.parametrize(
    ("names", "indices", "text"),
    [
        (["h.0.w", "h.1.w", "h.2.w"], [0, 1, 2], "h.{i}.w"),
        (["h.2.w", "h.1.w"], [2, 1], "h.{i}.w"),
        (["exp_avg:s.0.h.5.w", "exp_avg:s.0.h.6.w"], [5, 6], "exp_avg:s.0.h.{i}.w"),
        (["m0", "m1"], [4, 5], "m{i - 4}"),
        (["g.1", "g.2"], [0, 1], "g.{i + 1}"),
        (["g.3", "g.2", "g.1"], [0, 1, 2], "g.{3 - i}"),
        (["0.0.w", "1.1.w"], [0, 1], "{i}.{i}.w"),
        (["g.3", "g.1", "g.2"], [0, 1, 2], None),
        (["a", "b"], [0, 1], None),
        (["a.0", "b.1"], [0, 1], None),
        (["g.0", "g.0"], [0, 1], None),
        (["g.00", "g.01"], [0, 1], None),
        (["{.0", "{.1"], [0, 1], None),
    ],
)
def test_names_of_what_blocks_have_by_their_number(names, indices, text):
    assert name_by_block(names, indices) == text
    if text is not None:
        assert [eval(f"f{text!r}", {"i": i}) for i in indices] == names


def test_a_chain_folds_to_one_block():
    graph = chain_graph(4)
    assert shown(graph) == [("h", "forward", [0, 1, 2, 3]), ("h", "backward", [0, 1, 2, 3]), ("h", "update", [0, 1, 2, 3])]
    fold = fold_graph(graph)
    names = [n.name for n in graph.nodes]
    decides = {n: names[c] for n, c in zip(names, fold.node_class)}
    assert decides["mm_3"] == "mm_0" and decides["relu_2"] == "relu_0" and decides["dx_3"] == "dx_0" and decides["h.3.w@1"] == "h.0.w@1" and decides["loss"] == "loss"
    assert fold.value_class["h.3.w@0"] == "h.0.w@0" and fold.value_class["mm_2"] == "mm_0" and fold.value_class["input:0"] == "input:0"
    counts = class_counts(fold)
    assert sum(counts.values()) == len(graph.nodes) and Counter(counts.values()) == {4: 9, 1: 2}


def test_depth_does_not_change_the_number_of_decisions():
    assert len(set(fold_graph(chain_graph(3)).node_class)) == len(set(fold_graph(chain_graph(30)).node_class))


def test_one_block_is_no_repeat():
    assert find_repeats(chain_graph(1)) == ()
    graph = chain_graph(2)
    assert identity_fold(graph).node_class == tuple(range(len(graph.nodes)))
    assert fold_graph(graph, repeats=()) == identity_fold(graph)


def blocks(attributes, width=4):
    """One block per entry: softmax over `dim`, then times `other`; block i belongs to h.i."""
    steps, before = [], "x"
    for i, (dim, other) in enumerate(attributes):
        steps.append((node("aten._softmax.default", (before,), f"s_{i}", path=f"h.{i}", dim=dim, half_to_float=False), value(f"s_{i}", (width, width))))
        steps.append((node("aten.mul.Tensor", (f"s_{i}",), f"m_{i}", path=f"h.{i}", other=other), value(f"m_{i}", (width, width))))
        before = f"m_{i}"
    return make_graph((value("x", (width, width), Kind.BATCH),), steps)


def test_alternating_blocks_make_two_repeats():
    assert shown(blocks([(1, 2.0), (0, 2.0)] * 3)) == [("h", "forward", [0, 2, 4]), ("h", "forward", [1, 3, 5])]


@pytest.mark.parametrize("odd", [(1, 3.0), (-1, 2.0), (-2, 2.0)], ids=str)
def test_a_block_with_another_argument_stands_alone(odd):
    assert shown(blocks([(1, 2.0), odd, (1, 2.0)])) == [("h", "forward", [0, 2])]


def test_minus_one_is_not_minus_two():
    """hash(-1) == hash(-2) in CPython, and so do tuples of them: equality decides, not the hash."""
    assert shown(blocks([(-1, 2.0), (-2, 2.0), (-1, 2.0)])) == [("h", "forward", [0, 2])]


def changed(graph, name, **fields):
    return replace(graph, nodes=tuple(replace(n, **fields) if n.name == name else n for n in graph.nodes))


def test_a_block_of_another_op_stands_alone():
    graph = changed(chain_graph(4), "relu_2", op="aten.tanh.default")
    assert ("h", "forward", [0, 1, 3]) in shown(graph)


def test_a_block_of_another_shape_stands_alone():
    graph = blocks([(1, 2.0)] * 3)
    values = tuple(replace(v, dtype="float32") if v.name == "m_1" else v for v in graph.values)
    assert shown(replace(graph, values=values)) == [("h", "forward", [0, 2])]


def test_a_block_that_reads_elsewhere_stands_alone():
    """Block 1 multiplies by its own value where the others multiply by one from outside."""
    steps, before = [], "x"
    for i in range(3):
        steps.append((node("aten.relu.default", (before,), f"r_{i}", path=f"h.{i}"), value(f"r_{i}", (4,))))
        steps.append((node("aten.mul.Tensor", (f"r_{i}", f"r_{i}" if i == 1 else "mask"), f"m_{i}", path=f"h.{i}"), value(f"m_{i}", (4,))))
        before = f"m_{i}"
    graph = make_graph((value("x", (4,), Kind.BATCH), value("mask", (4,), Kind.BATCH)), steps)
    check_graph(graph)
    assert shown(graph) == [("h", "forward", [0, 2])]


def test_another_state_of_the_block_is_another_block():
    """Block 1 reads its weights the other way round."""
    states = tuple(value(f"h.{i}.{w}@0", (4,), Kind.PARAM) for i in range(3) for w in "ab")
    steps = []
    for i in range(3):
        order = (f"h.{i}.b@0", f"h.{i}.a@0") if i == 1 else (f"h.{i}.a@0", f"h.{i}.b@0")
        steps.append((node("aten.sub.Tensor", order, f"d_{i}", path=f"h.{i}"), value(f"d_{i}", (4,))))
    graph = make_graph(states, steps)
    assert shown(graph) == [("h", "forward", [0, 2])]
    fold = fold_graph(graph)
    assert fold.value_class["h.2.a@0"] == "h.0.a@0" and fold.value_class["h.1.a@0"] == "h.1.a@0"


def test_a_state_is_decided_alike_in_all_phases():
    """Forward and update both say that h.i.w stand for each other; the class has one head, the lowest."""
    fold = fold_graph(chain_graph(5))
    assert {fold.value_class[f"h.{i}.w@0"] for i in range(5)} == {"h.0.w@0"}
    assert len({fold.value_class[f"dw_{i}"] for i in range(5)}) == 1


def test_phases_are_kept_apart():
    assert {r.phase for r in find_repeats(chain_graph(2))} == set(Phase) - {Phase.PREPARE}
