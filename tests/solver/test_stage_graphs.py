"""Steps cut into stages, for random models of 2 to 8 equal blocks: every node runs on one stage, what crosses is sent and received, each part is a
graph; and the model with blocks left out is the model with fewer blocks."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from autopar.errors import MicrobatchError
from autopar.graph.case import build_case, split_case
from autopar.graph.graph import Graph, check_graph, value_table
from autopar.graph.node import Phase, get_arg
from autopar.graph.schedules.known import chunk_ranks
from autopar.graph.shorten import drop_units, unit_members
from autopar.graph.stages import COPY, crosses_in_turn, cut_stages, list_units, sum_at_home
from autopar.graph.tensor import STATE_KINDS, Kind
from autopar.graph.turns import ACCUMULATE, RECEIVE, SEND, count_microbatches

from .blocks import build_block_case, build_blocks


def draw_model(rng):
    """Blocks with or without tied head, momentum and skips; in 1, 2 or 4 turns."""
    blocks = rng.randint(2, 8)
    skips = tuple({tuple(sorted(rng.sample(range(blocks), 2))) for _ in range(rng.randint(0, 2))})
    case = build_block_case(blocks=blocks, tied=rng.random() < 0.5, momentum=rng.random() < 0.5, skips=skips)
    return split_case(case, rng.choice((1, 2, 4)))


def draw_stages(rng, graph):
    """(starts, the rank of each chunk): one stage a rank, or two chunks, that go round or there and back."""
    rows = list_units(graph)
    ranks = rng.randint(2, min(4, len(rows)))
    chunks = ranks * (2 if len(rows) >= 2 * ranks and rng.random() < 0.3 else 1)
    return [graph.nodes[rows[k][0]].name for k in sorted(rng.sample(range(1, len(rows)), chunks - 1))], chunk_ranks(
        rng.choice(("interleaved", "zbv")) if chunks > ranks else "1f1b", ranks, chunks // ranks
    )


def own(name):
    return name.partition(COPY)[0]


@pytest.mark.parametrize("seed", range(60))
def test_stages_are_the_step_in_parts(seed):
    rng = random.Random(seed)
    graph = draw_model(rng).graph
    starts, ranks = draw_stages(rng, graph)
    stages = cut_stages(graph, starts, ranks)
    assert len(stages) == max(ranks) + 1
    graph, _ = sum_at_home(graph, starts, ranks)
    whole = {node.name: node for node in graph.nodes}
    batch = {name for name in graph.inputs if value_table(graph)[name].kind not in STATE_KINDS}
    seen: Counter[str] = Counter()
    for stage in stages:
        check_graph(stage.graph)
        for node in stage.graph.nodes:
            if node.op in (SEND, RECEIVE):
                continue
            seen[own(node.name)] += 1
            twin = whole[own(node.name)]
            assert (node.op, node.args, node.phase, node.path) == (twin.op, twin.args, twin.phase, twin.path)
            assert tuple(map(own, node.inputs)) == twin.inputs and tuple(map(own, node.outputs)) == twin.outputs
        if stage.graph.inputs:
            assert count_microbatches(stage.graph) == count_microbatches(graph)
    assert set(seen) == set(whole)
    free = set(batch)
    for node in graph.nodes:  # what depends on the batch alone may run on every stage
        if node.phase is Phase.PREPARE or (node.phase is Phase.FORWARD and all(name in free for name in node.inputs)):
            free.update(node.outputs)
        else:
            assert seen[node.name] == 1, f"{node.name} runs {seen[node.name]} times"
    check_crossings(stages)
    check_states(graph, stages)


@pytest.mark.parametrize("stages", [2, 3])
def test_the_gradient_of_a_tied_weight_crosses_once_a_step(stages):
    """Embedding and head share a weight: each sums its part over the turns where it is, and what crosses is the sum."""
    graph = split_case(build_block_case(blocks=4, tied=True, momentum=True), 4).graph
    rows = list_units(graph)
    starts = [graph.nodes[rows[k * len(rows) // stages][0]].name for k in range(1, stages)]
    cut = cut_stages(graph, starts)
    shapes = {v.shape for v in graph.values if v.kind is Kind.PARAM}
    crossing = [(stage, c) for stage in cut for c in stage.sent if value_table(stage.graph)[c.sent].shape in shapes]
    assert [c.target for stage, c in crossing if crosses_in_turn(stage.graph, c)] == []
    assert [(c.source, c.target) for _, c in crossing if "sum" in c.value] == [(stages - 1, 0)]
    first, last = cut[0].graph, cut[-1].graph
    sums = [[n for n in g.nodes if n.op == ACCUMULATE] for g in (first, last)]
    assert all(sums) and value_table(first)[sums[0][-1].outputs[0]].dtype == "float32"
    (added,) = (n for n in first.nodes if n.op == "aten.add.Tensor" and n.phase is Phase.UPDATE and any("receive" in m.name and m.outputs[0] in n.inputs for m in first.nodes))
    assert added.outputs[0] in [g for _, g in first.grads]


def check_crossings(stages):
    """Each receive has its send, in the same phase, of the same shape, to the right stage; and each send its receive."""
    sent = [(c.value, c.source, c.target) for stage in stages for c in stage.sent]
    received = [(c.value, c.source, c.target) for stage in stages for c in stage.received]
    assert sorted(sent) == sorted(received) and len(set(sent)) == len(sent)
    for s, stage in enumerate(stages):
        values = value_table(stage.graph)
        receives = [n for n in stage.graph.nodes if n.op == RECEIVE]
        sends = [n for n in stage.graph.nodes if n.op == SEND]
        assert len(receives) == len(stage.received) and len(sends) == len(stage.sent)
        for crossing in stage.sent:
            assert crossing.source == s != crossing.target
            (node,) = (n for n in sends if n.outputs == (crossing.sent,))
            assert get_arg(node, "stage") == crossing.target and own(node.inputs[0]) == crossing.value
        for crossing in stage.received:
            assert crossing.target == s
            (node,) = (n for n in receives if own(n.outputs[0]) == crossing.value)
            (there,) = (n for n in stages[crossing.source].graph.nodes if n.outputs == (crossing.sent,))
            assert get_arg(node, "stage") == crossing.source
            assert values[node.outputs[0]].shape == value_table(stages[crossing.source].graph)[there.inputs[0]].shape == get_arg(node, "shape")


def check_states(graph: Graph, stages):
    """Every state is stored, updated where it is stored, and once under its own name; the loss is made once."""
    named = [name for stage in stages for name in stage.graph.inputs if name in graph.inputs]
    assert sorted(named) == sorted(graph.inputs)
    for stage in stages:
        states = {name for name in stage.graph.inputs if value_table(stage.graph)[name].kind in STATE_KINDS}
        assert {old for old, _ in stage.graph.updates} == states
    assert sorted(old for stage in stages for old, _ in stage.graph.updates if old in graph.inputs) == sorted(old for old, _ in graph.updates)
    assert sorted(p for stage in stages for p, _ in stage.graph.grads) == sorted(p for p, _ in graph.grads)
    assert [stage.graph.loss for stage in stages if stage.graph.loss] == [graph.loss]


def assert_same(found: Graph, expected: Graph):
    """Node for node, up to names and block numbers."""
    names: dict[str, str] = {}

    def meet(a, b):
        assert names.setdefault(a, b) == b
        x, y = values[a], others[b]
        assert (x.shape, x.dtype, x.kind, x.version) == (y.shape, y.dtype, y.kind, y.version)

    values, others = value_table(found), value_table(expected)
    assert len(found.nodes) == len(expected.nodes)
    assert len(found.inputs) == len(expected.inputs)
    for a, b in zip(found.inputs, expected.inputs):
        meet(a, b)
    for a, b in zip(found.nodes, expected.nodes):
        assert (a.op, a.args, a.phase) == (b.op, b.args, b.phase)
        assert len(a.inputs) == len(b.inputs) and len(a.outputs) == len(b.outputs)
        for x, y in zip((*a.inputs, *a.outputs), (*b.inputs, *b.outputs)):
            meet(x, y)
    assert len(set(names.values())) == len(names)
    assert [(names[p], names[g]) for p, g in found.grads] == list(expected.grads)
    assert [(names[old], names[new]) for old, new in found.updates] == list(expected.updates)
    assert names[found.loss] == expected.loss


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("blocks, dropped", [(b, d) for b in range(3, 9) for d in range(1, b - 1)])
def test_a_model_without_some_blocks_is_the_model_with_fewer(blocks, dropped, tied):
    graph = build_blocks(blocks=blocks, tied=tied, momentum=blocks % 2 == 0)
    rows = list_units(graph)
    assert len(rows) == blocks + 2  # the embedding and the head
    expected = build_blocks(blocks=blocks - dropped, tied=tied, momentum=blocks % 2 == 0)
    for first in range(2, blocks - dropped + 1):
        short = drop_units(graph, unit_members(graph, rows), first, first + dropped - 1)
        assert short is not None
        check_graph(short)
        assert_same(short, expected)


def test_blocks_that_others_skip_to_stay():
    """What a later block reads of a dropped one cannot be left out: there is no such model."""
    graph = build_blocks(blocks=6, skips=((2, 4),))
    members = unit_members(graph, list_units(graph))
    assert drop_units(graph, members, 3, 3) is None
    graph = build_blocks(blocks=8, skips=((0, 7),))  # over the blocks that are left out
    short = drop_units(graph, unit_members(graph, list_units(graph)), 3, 4)
    assert short is not None
    assert_same(short, build_blocks(blocks=6, skips=((0, 5),)))


@pytest.mark.parametrize("turns", [2, 4])
def test_the_shortened_model_in_turns_is_the_one_of_fewer_blocks_in_turns(turns):
    case = build_block_case(blocks=6)
    short = drop_units(case.graph, unit_members(case.graph, list_units(case.graph)), 3, 4)
    assert short is not None
    assert_same(split_case(build_case(short), turns).graph, split_case(build_block_case(blocks=4), turns).graph)


def test_a_batch_that_does_not_divide_says_so():
    with pytest.raises(MicrobatchError, match="the batch has size 8 .* does not divide by 3 microbatches"):
        split_case(build_block_case(), 3)
