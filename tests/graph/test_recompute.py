"""Recompute: what may be made again, where copies stand, what reads them."""

import pytest

from autopar.errors import PlanError
from autopar.graph.cuts import find_cuts, resolve_all
from autopar.graph.graph import check_graph
from autopar.graph.liveness import bytes_over_time
from autopar.graph.node import Phase
from autopar.graph.recompute import list_recomputable, recompute_all, recompute_graph, recomputed_names
from autopar.graph.rules import RULES
from autopar.graph.tensor import Kind
from tests.codegen.chain import chain_graph

from .drafts import make_graph, node, value

BLOCKS = 3


@pytest.fixture
def chain():
    return chain_graph(BLOCKS, batch=8, width=4)


def recomputable(graph):
    return list_recomputable(graph, resolve_all(graph, RULES)[1])


def test_blocks_are_made_again_from_what_they_read(chain):
    names = recomputable(chain)
    found = recompute_graph(chain, names)
    check_graph(found.graph)
    assert names == recomputed_names(found)
    by_name = {n.name: n for n in found.graph.nodes}
    for copy, name in found.original.items():
        assert by_name[copy].op == by_name[name].op and by_name[copy].path == by_name[name].path
        assert by_name[copy].phase is Phase.BACKWARD


def test_a_copy_stands_right_before_its_first_reader(chain):
    found = recompute_graph(chain, recomputable(chain))
    nodes = found.graph.nodes
    copies = {n.name for n in nodes} - {n.name for n in chain.nodes}
    assert copies
    for i, made in enumerate(nodes):
        if made.name in copies:
            after = next(n for n in nodes[i + 1 :] if n.name not in copies)
            later = {name for n in nodes[i + 1 : nodes.index(after) + 1] for name in n.inputs}
            assert set(made.outputs) & later


def test_the_backward_pass_reads_copies_only(chain):
    found = recompute_graph(chain, recomputable(chain))
    copied = set(found.original_values.values())
    assert copied
    for n in found.graph.nodes:
        if n.phase is Phase.BACKWARD:
            assert not copied & set(n.inputs), n
        if n.phase is Phase.FORWARD:
            assert not {name for name in n.inputs if name in found.original_values}


def test_nothing_chosen_changes_nothing(chain):
    assert recompute_graph(chain, ()).graph is chain


def views_graph():
    """y = relu(x) is read in the backward pass through a permute only; the permute of the copy is taken again."""
    big = (64, 32)
    inputs = [value("x", big, Kind.BATCH)]
    steps = [
        (node("aten.relu.default", ("x",), "y", path="h.0"), value("y", big)),
        (node("aten.permute.default", ("y",), "t", path="h.0", dims=(1, 0)), value("t", big[::-1])),
        (node("aten.mm.default", ("y", "t"), "z", ("self", "mat2"), path="h.0"), value("z", (64, 64))),
        (node("aten.sum.default", ("z",), "loss", path=""), value("loss", (), Kind.LOSS)),
        (node("aten.neg.default", ("t",), "g", phase=Phase.BACKWARD, path="h.0"), value("g", big[::-1])),
    ]
    return make_graph(inputs, steps, loss="loss", outputs=("g",))


def test_views_of_what_is_made_again_are_taken_again():
    graph = views_graph()
    found = recompute_graph(graph, ("y",))
    check_graph(found.graph)
    assert set(found.original.values()) == {"y", "t"}
    (last,) = (n for n in found.graph.nodes if n.name == "g")
    assert last.inputs == ("t_again",)
    assert max(bytes_over_time(found.graph)) <= max(bytes_over_time(graph))


def test_sites_signatures_and_cuts_of_the_copies_are_those_of_the_originals(chain):
    sites, signatures = resolve_all(chain, RULES)
    cuts = find_cuts(chain, signatures)
    graph, more_sites, more_signatures, more_cuts = recompute_all(chain, sites, signatures, cuts, recomputable(chain))
    assert [s.node for s in more_sites] == list(graph.nodes)
    again_sites, again_signatures = resolve_all(graph, RULES)
    assert again_sites == more_sites and list(again_signatures) == list(more_signatures)
    assert set(more_cuts) == {v.name for v in graph.values}


def test_what_nobody_reads_later_gets_no_copy():
    graph = views_graph()
    assert recompute_graph(graph, ("z",)).original == {}


@pytest.mark.parametrize(
    ("name", "said"),
    [("nobody", "recomputes nobody, which is no node of the graph"), ("t", "recomputes t (aten.permute.default, forward); expected a node of the forward pass"),
     ("g", "recomputes g (aten.neg.default, backward)")],
)  # fmt: skip
def test_what_cannot_be_made_again_is_said(name, said):
    with pytest.raises(PlanError) as error:
        recompute_graph(views_graph(), (name,))
    assert said in str(error.value)


def test_the_result_of_a_block_and_what_leaves_the_step_are_kept(chain):
    """The next block's backward pass reads a block's result; only that of the last block is read by its own block alone."""
    assert recomputable(chain) == ("mm_2", "relu_2")
