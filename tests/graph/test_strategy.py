"""Strategies: what each choice makes of inputs and outputs, and why others are refused."""

from dataclasses import replace
from itertools import product

import pytest

from autopar.graph.node import Node, Phase, Ref, input_names
from autopar.graph.rule import Rule, Site, resolve
from autopar.graph.strategy import Strategy, axis_choices, build_strategy, factor_cuts, list_strategies, split_share

from .drafts import apply, make_site

MATMUL = ("m k, k n -> m n", [(4, 6), (6, 8)], [(4, 8)])


def show(strategy):
    assert isinstance(strategy, Strategy), strategy
    return f"{' '.join(map(str, strategy.inputs))} -> {' '.join(map(str, strategy.outputs))}"


def build(text, inputs, outputs, choices, sizes, cuts=None, **row):
    signature, site = apply(text, inputs, outputs, **row)
    made = build_strategy(signature, site, tuple(choices.split(";")), sizes, cuts or {})
    return made if isinstance(made, str) else show(made)


@pytest.mark.parametrize(
    ("choices", "sizes", "wanted"),
    [
        ("R", (2,), "R R -> R"),
        ("m", (2,), "S0/2 R -> S0/2"),
        ("n", (2,), "R S1/4 -> S1/4"),
        ("k", (2,), "S1/3 S0/3 -> P"),
        ("m;n", (2, 2), "S0/2,R R,S1/4 -> S0/2,S1/4"),
        ("m;k", (2, 3), "S0/2,S1/2 R,S0/2 -> S0/2,P"),
        ("n;n", (2, 4), "R,R S1/4,S1/1 -> S1/4,S1/1"),  # the earlier axis takes the outer digit
        ("k;k", (2, 3), "S1/3,S1/1 S0/3,S0/1 -> P,P"),
        ("n", (3,), "n of size 8 does not divide by 3"),
        ("n;n", (4, 4), "n of size 8 does not divide by 16"),
        ("m;m", (2, 3), "m of size 4 does not divide by 6"),
    ],
)
def test_matmul(choices, sizes, wanted):
    assert build(*MATMUL, choices, sizes) == wanted


def test_choices_are_the_factors_and_the_linear_sets():
    signature, _ = apply("a [b], a -> a", [(4, 6), (4,)], [(4,)], linear=(("self",), ("self", "other"), ("self", "scalar")))
    assert axis_choices(signature, {}, ("self", "other")) == ("R", "a", "P(self)", "P(self other)")
    signature, _ = apply("o -> o", [(24,)], [(24,)])
    assert axis_choices(signature, {"o": (2, 8)}, ("self",)) == ("R", "o", "o@8", "o@2")


def test_runs_of_neighbours_have_no_inner_digits():
    text, cuts = ("<s> d, <s> -> <s> d", [(24, 6), (24,)], [(24, 6)]), {"s": (2, 8)}
    signature, _ = apply(*text)
    assert axis_choices(signature, cuts, ("self", "other")) == ("R", "s", "d")
    assert build(*text, "s", (3,), cuts) == "S0/8 S0/8 -> S0/8"
    assert build(*text, "s;s", (2, 3)) == "S0/12,S0/4 S0/12,S0/4 -> S0/12,S0/4"  # the second axis splits each run
    assert build(*text, "s@8", (2,), cuts) == "s is split into runs of neighbours, and s@8 leaves gaps"
    assert build(*text, "s", (2,), cuts) == "s of size 3 does not divide by 2"


def test_partial_passes_where_the_op_is_linear():
    row = {"linear": (("self", "other"),)}
    assert build("..., ... -> ...", [(4,), (4,)], [(4,)], "P(self other)", (2,), **row) == "P P -> P"
    assert build("..., ... -> ...", [(4,), (4,)], [(4,)], "P(self other);.0", (2, 2), **row) == "P,S0/2 P,S0/2 -> P,S0/2"
    assert build("..., ... -> ...", [(4,), (4,)], [(4,)], "P(self)", (2,), **row) == "toy.op is not linear in self here"
    assert build("... -> ...", [(4,)], [(4,)], "P(self other)", (2,), **row) == "toy.op is not linear in self and other here"


def test_a_bias_is_owed_where_the_sum_is_split():
    row = Rule("toy.linear", "input: ... i, weight: o i, bias: o -> ... o", owed=("bias",))
    site = make_site("toy.linear", [(4, 6), (8, 6), (8,)], [(4, 8)], ("input", "weight", "bias"))
    signature = resolve(row, site)
    assert show(build_strategy(signature, site, ("i",), (2,), {})) == "S1/3 S1/3 P -> P"
    assert show(build_strategy(signature, site, ("i", "o"), (2, 2), {})) == "S1/3,R S1/3,S0/4 P,S0/4 -> P,S1/4"
    assert show(build_strategy(signature, site, (".0",), (2,), {})) == "S0/2 R R -> S0/2"  # not contracted: nothing is owed


def test_maxima_are_owed_as_maxima():
    assert build("a b -> a", [(4, 6)], [(4,)], "b", (2,), reduce="max") == "S1/3 -> Pmax"


def test_a_factor_in_one_output_only_is_partial_in_the_other():
    assert build("a b -> a b, b", [(4, 6)], [(4, 6), (6,)], "a", (2,)) == "S0/2 -> S0/2 P"


def test_a_factor_in_braces_is_not_summed_over():
    row = Rule("toy.bag", "weight: v d, bias: v -> v d, {d} v", owed=("bias",))
    site = make_site("toy.bag", [(4, 6), (4,)], [(4, 6), (4,)], ("weight", "bias"))
    signature = resolve(row, site)
    assert show(build_strategy(signature, site, ("d",), (2,), {})) == "S1/3 R -> S1/3 R"  # nothing is summed, so nothing is owed
    assert show(build_strategy(signature, site, ("v",), (2,), {})) == "S0/2 S0/2 -> S0/2 S0/2"


def test_each_output_may_have_its_own_reduction():
    text = ("a b -> a, a", [(4, 6)], [(4,), (4,)])
    assert build(*text, "b", (2,), reduce="min max") == "S1/3 -> Pmin Pmax"
    assert build(*text, "b", (2,), reduce=lambda site: "max") == "S1/3 -> Pmax Pmax"
    assert build(*text, "b", (2,), owed=lambda site: ()) == "S1/3 -> P P"


def test_a_hidden_output_takes_its_reduction_along():
    site = make_site("toy.extremes", [(4, 6)], [(4,)], ("self",))
    node = replace(site.node, outputs=("", site.node.outputs[0]))
    signature = resolve(Rule("toy.extremes", "a b -> a, a", reduce="min max"), replace(site, node=node))
    assert show(build_strategy(signature, site, ("b",), (2,), {})) == "S1/3 -> Pmax"


def test_broadcast_inputs_are_replicated():
    assert build("..., ... -> ...", [(4, 1), (6,)], [(4, 6)], ".0", (2,)) == "R S0/3 -> S1/3"
    assert build("..., ... -> ...", [(4, 1), (6,)], [(4, 6)], ".1", (2,)) == "S0/2 R -> S0/2"


def test_compound_dims_split_at_the_stride_of_what_lies_inside():
    row = ("(h d) -> h d", [(24,)], [(4, 6)])
    assert build(*row, "h", (2,)) == "S0/12 -> S0/2"
    assert build(*row, "d", (2,)) == "S0/3 -> S1/3"
    assert build(*row, "h;d", (4, 3)) == "S0/6,S0/2 -> S0/1,S1/2"


def test_cuts_split_each_chunk():
    row = ("o -> o", [(24,)], [(24,)])
    assert build(*row, "o@8", (2,), {"o": (8,)}) == "S0/4 -> S0/4"
    assert build(*row, "o@8;o@8", (2, 2), {"o": (8,)}) == "S0/4,S0/2 -> S0/4,S0/2"
    assert build(*row, "o", (3,), {"o": (8,)}) == "S0/8 -> S0/8"  # whole chunks
    assert build(*row, "o", (2,), {"o": (8,)}) == "o of size 3 does not divide by 2"  # 3 chunks
    assert build(*row, "o", (2,)) == "S0/12 -> S0/12"
    assert build(*row, "o@8", (16,), {"o": (8,)}) == "o of size 8 does not divide by 16"
    assert build(*row, "o;o@8", (3, 2), {"o": (8,)}) == "S0/8,S0/4 -> S0/8,S0/4"


def test_cuts_of_dims_are_cuts_of_their_factors():
    signature, _ = apply("(h d) -> h d", [(24,)], [(4, 6)])
    found = factor_cuts(signature, (((2, 6, 12),),), ((), ()))
    assert found == {"h": (2,), "d": (2,)}  # 12 = 2 x 6 is h's, 6 is the border, 2 is d's
    signature, _ = apply("a -> a", [(12,)], [(12,)])
    assert factor_cuts(signature, (((2, 3, 6),),), ((),)) == {"a": (2, 6)}  # 3 does not fit the chain
    assert factor_cuts(signature, (((5, 12),),), ((),)) == {"a": ()}


def listed(text, inputs, outputs, sizes, cuts=None, **row):
    signature, site = apply(text, inputs, outputs, **row)
    strategies, refusals = list_strategies(signature, site, sizes, cuts or {})
    return [" ".join(s.choices) for s in strategies], [f"{r.factor}: {r.reason}" for r in refusals]


def test_list_of_strategies():
    assert listed(*MATMUL, (2,)) == (["R", "m", "k", "n"], [])
    strategies, refused = listed(*MATMUL, (2, 2))
    assert strategies[0] == "R R" and "m m" in strategies and "k k" not in strategies  # 6 does not divide by 4
    assert len(strategies) == 15 and refused == []


def test_refusals_say_why():
    strategies, refused = listed("a [b] c -> a b c", [(4, 6, 5)], [(4, 6, 5)], (2, 3), why_whole="order matters")
    assert strategies == ["R R", "a R"]
    assert refused == [
        "a: a of size 4 does not divide by 3, axis of 3",
        "b: b (size 6) stays whole: order matters",
        "c: c of size 5 does not divide by 2, axis of 2",
        "c: c of size 5 does not divide by 3, axis of 3",
    ]


def test_whole_factors_are_refused_with_the_reason():
    assert build("[a] -> a", [(4,)], [(4,)], "a", (2,), why_whole="order matters") == "a stays whole: order matters"


def test_equal_strategies_are_listed_once():
    """The same set in two orders is the same strategy; the first stands for both."""
    strategies, _ = listed("..., ... -> ...", [(4,), (4,)], [(4,)], (2,), linear=(("self", "other"), ("other", "self")))
    assert strategies == ["R", ".0", "P(self other)"]


def test_the_list_is_every_legal_combination():
    """In the order of the product, the last axis fastest; the first of equal ones stands for them."""
    cases = [
        ("b s k, i k -> b s i", [(4, 6, 24), (8, 24)], [(4, 6, 8)], {"linear": (("self",), ("other",))}, {"k": (2, 6)}),
        ("..., ... -> ...", [(8, 12), (8, 12)], [(8, 12)], {"linear": (("self", "other"), ("other", "self"))}, {".0": (2, 4)}),
    ]
    for text, inputs, outputs, row, cuts in cases:
        signature, site = apply(text, inputs, outputs, **row)
        choices = axis_choices(signature, cuts, input_names(site.node))
        for sizes in [(2,), (2, 2), (4, 2), (2, 3, 2)]:
            expected = {}
            for combo in product(choices, repeat=len(sizes)):
                made = build_strategy(signature, site, combo, sizes, cuts)
                if isinstance(made, Strategy):
                    expected.setdefault((made.inputs, made.outputs), made)
            assert list_strategies(signature, site, sizes, cuts)[0] == tuple(expected.values())


def test_no_axes():
    assert listed(*MATMUL, ()) == ([""], [])


def test_work_is_divided_among_the_ranks_that_split():
    signature, site = apply("..., ... -> ...", [(4, 6), (4, 6)], [(4, 6)], linear=(("self", "other"),))

    def share(*choices):
        return split_share(build_strategy(signature, site, choices, (2, 3), {}), signature.rule, (2, 3))

    assert (share("R", "R"), share(".1", "R"), share(".1", ".0"), share("P(self other)", ".0")) == (1, 2, 6, 3)


def test_wrong_number_of_choices():
    assert build(*MATMUL, "m", (2, 2)) == "1 choices for 2 mesh axes"
    assert build(*MATMUL, "m;n", (2,)) == "2 choices for 1 mesh axes"


def test_a_square_is_never_a_sum_of_parts():
    """`g * g` with one side Partial may round below zero where parts cancel, and the root after it is NaN."""
    square = Node("v", "aten.mul.Tensor", ("g", "g"), (("self", Ref(0)), ("other", Ref(1))), ("v",), Phase.UPDATE)
    product = Node("v", "aten.mul.Tensor", ("g", "h"), (("self", Ref(0)), ("other", Ref(1))), ("v",), Phase.UPDATE)
    rule = Rule("aten.mul", "..., ... -> ...", linear=(("self",), ("other",)))
    shapes = ((4,), (4,)), ((4,),)
    assert resolve(rule, Site(square, *shapes)).linear == ()
    assert resolve(rule, Site(product, *shapes)).linear == (("self",), ("other",))
