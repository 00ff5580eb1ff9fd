"""Factors followed through a graph, and how far each runs: the counts that people know from Megatron, data parallelism and batch norm."""

import pytest

from autopar.graph.opportunities.span_run import Sum
from autopar.graph.opportunities.spans import Digit
from autopar.graph.rule import Rule
from autopar.graph.rules import RULES
from autopar.graph.tensor import Kind
from autopar.graph.work import count_work

from .drafts import make_graph, node, value
from .followed import Followed, as_program
from .steps import pair, update
from .test_cuts import fused_qkv


def test_every_digit_is_in_one_span():
    found = Followed(fused_qkv())
    places = [place for span in found.spans for place in span.places]
    assert len(places) == len(set(places))
    assert {(n, d.dim) for n, d in places} == {(v.name, k) for v in found.graph.values for k, s in enumerate(v.shape) if s > 1}


def test_heads_are_followed_into_the_fused_projection():
    """24 = 3 x 4 x 2: the heads of q, k and v are one factor of the weight."""
    found = Followed(fused_qkv())
    span, _ = found.at("q_heads", 1)
    assert ("w@0", Digit(1, 2, 8)) in span.places and ("k_heads", Digit(1, 1, 4)) in span.places
    assert found.syncs("q_heads", 1) == []


def test_a_pair_of_linears_reduces_once():
    found = Followed(pair(2))
    assert found.syncs("h.0.up@0", 0) == [("all_reduce", "down_0", "out_0")]
    span, run = found.at("h.0.up@0", 0)
    assert [found.graph.nodes[i].name for i in run.nodes] == ["up_0", "relu_0", "down_0"]
    assert dict(run.held)["down_0"] == Sum("sum", 2) and dict(run.held)["relu_0"] == Digit(1, 1, 16)
    assert not any(name.startswith("h.1") for name, _ in span.places)


def test_the_batch_of_a_forward_never_synchronises():
    found = Followed(pair(2))
    assert found.syncs("x", 0) == [("all_gather", "out_1", "end")]  # but for the user, who gets the output whole
    assert len(found.at("x", 0)[1].nodes) == len(found.graph.nodes)


def test_the_residual_features_reduce_before_every_relu():
    found = Followed(pair(2))
    assert found.syncs("x", 1) == [("all_reduce", "up_0", "relu_0"), ("all_reduce", "up_1", "relu_1"), ("all_gather", "out_1", "end")]


def test_a_partial_reaches_the_end_and_a_buffer_is_reduced_where_it_is_read():
    found = Followed(update())
    assert found.syncs("x", 0) == [
        ("all_reduce", "mean", "bn.running_mean@1"), ("all_reduce", "mean", "w@1"), ("all_reduce", "loss", "end"),
    ]  # fmt: skip


def test_a_partial_passes_linear_ops_and_is_reduced_once_before_its_readers_part():
    def graph(readers):
        inputs = (value("w@0", (4, 8), Kind.PARAM), value("x", (6, 8), Kind.BATCH))
        steps = [
            (node("autopar.linear", ("x", "w@0"), "y", ("input", "weight")), value("y", (6, 4))),
            (node("aten.neg.default", ("y",), "minus"), value("minus", (6, 4))),
            *((node("aten.exp.default", ("minus",), f"exp_{k}"), value(f"exp_{k}", (6, 4))) for k in range(readers)),
        ]
        return make_graph(inputs, steps, outputs=tuple(f"exp_{k}" for k in range(readers)))

    assert Followed(graph(1)).syncs("x", 1) == [("all_reduce", "minus", "exp_0")]
    assert Followed(graph(2)).syncs("x", 1) == [("all_reduce", "minus", "exp_0")]  # the second reader finds it reduced


def test_a_partial_is_reduced_before_linear_readers_part_and_before_it_grows():
    inputs = (value("x", (6, 8), Kind.BATCH),)
    total = (node("aten.sum.dim_IntList", ("x",), "s", ("self",), dim=(1,), keepdim=True), value("s", (6, 1)))
    apart = [(node("aten.neg.default", ("s",), name), value(name, (6, 1))) for name in ("a", "b")]
    assert Followed(make_graph(inputs, [total, *apart], outputs=("a", "b"))).syncs("x", 1) == [("all_reduce", "s", "a")]
    wide = [(node("aten.expand.default", ("s",), "e", size=(6, 40)), value("e", (6, 40)))]
    assert Followed(make_graph(inputs, [total, *wide], outputs=("e",))).syncs("x", 1) == [("all_reduce", "s", "e")]
    alone = [(node("aten.neg.default", ("s",), "a"), value("a", (6, 1)))]
    assert Followed(make_graph(inputs, [total, *alone], outputs=("a",))).syncs("x", 1) == [("all_reduce", "a", "end")]


def test_a_bias_that_is_a_part_of_the_sum_comes_in_as_it_is():
    """`owed`: where a linear sums over the features, each rank adds its part of the bias, so nothing is reduced before."""
    inputs = (value("w@0", (4, 8), Kind.PARAM), value("x", (6, 8), Kind.BATCH))
    steps = [
        (node("aten.relu.default", ("w@0",), "v"), value("v", (4, 8))),
        (node("aten.sum.dim_IntList", ("v",), "b", ("self",), dim=(1,)), value("b", (4,))),
        (node("autopar.linear", ("x", "w@0", "b"), "y", ("input", "weight", "bias")), value("y", (6, 4))),
    ]
    assert Followed(make_graph(inputs, steps, outputs=("y",))).syncs("x", 1) == [("all_reduce", "y", "end")]


def test_a_number_that_is_added_ends_a_partial():
    """`x + 2` is not linear in x, though the row of add is where both sides are tensors."""
    inputs = (value("x", (6, 8), Kind.BATCH),)
    steps = [
        (node("aten.sum.dim_IntList", ("x",), "s", ("self",), dim=(1,)), value("s", (6,))),
        (node("aten.add.Tensor", ("s",), "t", other=2.0), value("t", (6,))),
    ]
    assert Followed(make_graph(inputs, steps, outputs=("t",))).syncs("x", 1) == [("all_reduce", "s", "t")]


def test_what_must_be_whole_is_gathered_once_with_the_rows_reason():
    inputs = (value("x", (6, 8), Kind.BATCH),)
    steps = [
        (node("aten.exp.default", ("x",), "e"), value("e", (6, 8))),
        (node("toy.sort", ("e",), "a"), value("a", (6, 8))),
        (node("toy.sort", ("e",), "b"), value("b", (6, 8))),
        (node("aten.add.Tensor", ("a", "b"), "c"), value("c", (6, 8))),
    ]
    rules = {**RULES, "toy.sort": Rule("toy.sort", "b [n] -> b [n]", why_whole="an order needs all of it")}
    found = Followed(make_graph(inputs, steps, outputs=("c",)), rules)
    assert found.syncs("x", 1) == [("all_gather", "e", "a"), ("all_gather", "c", "end")]
    _, run = found.at("x", 1)
    assert run.syncs[0].reason == "an order needs all of it" and run.syncs[0].bytes == 6 * 8 * 8
    assert [found.graph.nodes[i].name for i in run.nodes] == ["e", "c"]  # of what is whole, each rank cuts its own piece
    assert found.syncs("x", 0) == [("all_gather", "c", "end")]


def test_a_factor_that_meets_itself_is_split_on_one_side():
    """x @ x^T: rows against rows, as queries against keys."""
    inputs = (value("x", (6, 8), Kind.BATCH),)
    steps = [
        (node("aten.t.default", ("x",), "xt"), value("xt", (8, 6))),
        (node("aten.mm.default", ("x", "xt"), "scores", ("self", "mat2")), value("scores", (6, 6))),
    ]
    found = Followed(make_graph(inputs, steps, outputs=("scores",)))
    assert found.syncs("x", 0) == [("all_gather", "xt", "scores"), ("all_gather", "scores", "end")]
    assert "meets itself" in found.at("x", 0)[1].syncs[0].reason


def test_a_bias_may_come_in_as_a_part_of_the_sum():
    """`owed`: where the features are summed over, the bias is added once, by a Partial; a whole bias is free to be one."""
    inputs = (value("w@0", (4, 8), Kind.PARAM), value("b@0", (4,), Kind.PARAM), value("x", (6, 8), Kind.BATCH))
    step = (node("autopar.linear", ("x", "w@0", "b@0"), "y", ("input", "weight", "bias")), value("y", (6, 4)))
    found = Followed(make_graph(inputs, [step], outputs=("y",)))
    assert found.syncs("x", 1) == [("all_reduce", "y", "end")]


def test_equal_layers_are_one_reach_and_its_work_is_the_sum_of_its_nodes():
    found = Followed(pair(3))
    work = count_work(found.graph, found.sites, found.signatures)
    reaches = {(r.name, r.sizes): r for r in found.reaches()}
    wide = reaches["features", (16, 16, 16)]
    assert wide.starts == ("dim 0 of h.0.up", "dim 0 of h.1.up", "dim 0 of h.2.up") and len(wide.syncs) == 3
    for reach in reaches.values():
        assert reach.work.flops == sum(work[i].flops for i in reach.nodes)
        assert reach.work.bytes == sum(work[i].bytes for i in reach.nodes)
    assert reaches["batch", (8,)].work.flops == sum(w.flops for w in work)
    assert reaches["features", (4,)].starts == ("dim 1 of x",)


def test_names_say_what_a_dim_is():
    def names(graph):
        found = Followed(graph)
        return {(n.value, n.digit.dim): n.name for n in found.names}

    tokens = (value("table@0", (50, 8), Kind.PARAM), value("ids", (6, 10), Kind.BATCH, dtype="int64"))
    looked = (node("aten.embedding.default", ("table@0", "ids"), "e", ("weight", "indices")), value("e", (6, 10, 8)))
    assert names(make_graph(tokens, [looked], outputs=("e",))) == {
        ("ids", 0): "batch", ("ids", 1): "sequence", ("table@0", 0): "vocabulary", ("table@0", 1): "features",
    }  # fmt: skip
    image = (value("x", (6, 3, 12, 12), Kind.BATCH),)
    relu = (node("aten.relu.default", ("x",), "y"), value("y", (6, 3, 12, 12)))
    assert list(names(make_graph(image, [relu], outputs=("y",))).values()) == ["batch", "channels", "space: height", "space: width"]
    product = (node("aten.bmm.default", ("t@0", "w@0"), "y", ("self", "mat2")), value("y", (4, 5, 16)))
    inputs = (value("w@0", (4, 8, 16), Kind.PARAM), value("t@0", (4, 5, 8), Kind.BUFFER))
    assert names(make_graph(inputs, [product], outputs=("y",)))["w@0", 0] == "experts"


@pytest.mark.parametrize("graph", [pair(2), fused_qkv()], ids=["pair", "qkv"])
def test_the_compiler_inserts_what_a_run_tells(graph):
    """Every synchronisation that is told is one collective of the program that splits so, and there is no other."""
    found = Followed(graph)
    checked = 0
    for span, run in zip(found.spans, found.runs):
        if span.places[0][1].size % 2 == 0:
            told = sorted((s.kind, s.value) for s in run.syncs)
            assert as_program(found, run) == told, span.places[0]
            checked += 1
    assert checked >= 3
