"""Rule texts, one line each: what the dims of every operand are made of, and what is refused."""

import pytest

from autopar.errors import GraphError, NoRuleError
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.rule import Rule, Site, count_flops, find_rule, localise_args, resolve
from autopar.graph.rules import RULES, join_rows

from .drafts import apply, make_site


def shown(signature):
    """`m k, k n -> m n` with sizes above one; a dim of two factors in parentheses, of none as 1."""

    def dims(rows):
        return " ".join(row[0] if len(row) == 1 else f"({' '.join(row)})" if row else "1" for row in rows)

    return f"{', '.join(map(dims, signature.inputs))} -> {', '.join(map(dims, signature.outputs))}"


@pytest.mark.parametrize(
    ("text", "inputs", "outputs", "wanted", "sizes"),
    [
        ("m k, k n -> m n", [(4, 6), (6, 8)], [(4, 8)], "m k, k n -> m n", "m=4 k=6 n=8"),
        ("m k, k n -> m n", [(1, 6), (6, 8)], [(1, 8)], "1 k, k n -> 1 n", "k=6 n=8"),  # a dim of size 1 has no factor
        ("..., ... -> ...", [(4, 6), (4, 6)], [(4, 6)], ".1 .0, .1 .0 -> .1 .0", ".1=4 .0=6"),
        ("..., ... -> ...", [(4, 6), (6,)], [(4, 6)], ".1 .0, .0 -> .1 .0", ".1=4 .0=6"),  # broadcast from the right
        ("..., ... -> ...", [(4, 1), (6,)], [(4, 6)], ".1 1, .0 -> .1 .0", ".1=4 .0=6"),
        ("..., ... -> ...", [(4, 6), ()], [(4, 6)], ".1 .0,  -> .1 .0", ".1=4 .0=6"),
        ("..., ... -> ...", [(1,), (1, 1)], [(1, 1)], "1, 1 1 -> 1 1", ""),
        ("... -> ...", [()], [()], " -> ", ""),
        ("... c -> ... c", [(2, 4, 6)], [(2, 4, 6)], ".1 .0 c -> .1 .0 c", ".1=2 .0=4 c=6"),
        ("... [c] -> ... [c]", [(4, 6)], [(4, 6)], ".0 c -> .0 c", ".0=4 [c]=6"),
        ("a [b], b -> a", [(4, 6), (6,)], [(4,)], "a b, b -> a", "a=4 [b]=6"),  # whole in one place is whole in all
        ("b s (h d) -> b h s d", [(2, 3, 24)], [(2, 4, 3, 6)], "b s (h d) -> b h s d", "b=2 s=3 h=4 d=6"),
        ("(a b) -> a b", [(24,)], [(4, 6)], "(a b) -> a b", "a=4 b=6"),
        ("(a b) -> a b", [(6,)], [(1, 6)], "b -> 1 b", "b=6"),
        ("([g:3] c) -> c", [(12,)], [(4,)], "(g c) -> c", "[g]=3 c=4"),
        ("(a:2 b c:3) -> b", [(30,)], [(5,)], "(a b c) -> b", "a=2 b=5 c=3"),
        ("a 1 -> a", [(4, 1)], [(4,)], "a 1 -> a", "a=4"),
        ("a -> 1 a", [(4,)], [(1, 4)], "a -> 1 a", "a=4"),
        ("(h d) -> h", [(24,)], [(4,)], "(h d) -> h", "h=4 d=6"),
        ("k, k ->", [(6,), (6,)], [()], "k, k -> ", "k=6"),
        (" -> a b", [], [(4, 6)], " -> a b", "a=4 b=6"),
        ("a -> a, a", [(4,)], [(4,), (4,)], "a -> a, a", "a=4"),
        ("a b -> a b, {a} b", [(4, 6)], [(4, 6), (6,)], "a b -> a b, b", "a=4 b=6"),
        ("a b -> a b", [(4, 0)], [(4, 0)], "a 1 -> a 1", "a=4"),  # a dim of nothing has no factor
        ("<s> [d], s -> <s> [d]", [(4, 6), (4,)], [(4, 6)], "s d, s -> s d", "<s>=4 [d]=6"),  # runs in one place are runs in all
    ],
)
def test_texts(text, inputs, outputs, wanted, sizes):
    signature, _ = apply(text, inputs, outputs)
    assert shown(signature) == wanted
    assert " ".join(f"[{f.name}]={f.size}" if f.whole else f"<{f.name}>={f.size}" if f.runs else f"{f.name}={f.size}" for f in signature.factors) == sizes


def test_named_operands_may_be_left_out():
    row = Rule("toy.linear", "input: ... i, weight: o i, bias: o -> ... o")
    with_bias = make_site("toy.linear", [(2, 4, 6), (8, 6), (8,)], [(2, 4, 8)], ("input", "weight", "bias"))
    without = make_site("toy.linear", [(2, 4, 6), (8, 6)], [(2, 4, 8)], ("input", "weight"))
    assert shown(resolve(row, with_bias)) == ".1 .0 i, o i, o -> .1 .0 o"
    assert shown(resolve(row, without)) == ".1 .0 i, o i -> .1 .0 o"
    swapped = make_site("toy.linear", [(8,), (2, 4, 6), (8, 6)], [(2, 4, 8)], ("bias", "input", "weight"))
    assert shown(resolve(row, swapped)) == "o, .1 .0 i, o i -> .1 .0 o"


def test_outputs_that_nobody_sees_are_skipped():
    row = Rule("toy.norm", "a b -> a, b, a b")
    made = Node("n", "toy.norm", ("x",), (("self", Ref(0)),), ("", "y", "z"), Phase.FORWARD)
    assert shown(resolve(row, Site(made, ((4, 6),), ((6,), (4, 6))))) == "a b -> b, a b"


def test_texts_may_depend_on_the_site():
    row = Rule("toy.t", lambda site: "a b -> b a" if site.arg("swap") else "a b -> a b")
    assert shown(resolve(row, make_site("toy.t", [(4, 6)], [(6, 4)], swap=True))) == "a b -> b a"
    assert shown(resolve(row, make_site("toy.t", [(4, 6)], [(4, 6)]))) == "a b -> a b"


def where(inputs, outputs):
    return f"rule of toy.op at n {[list(s) for s in inputs]} -> {[list(s) for s in outputs]}"


@pytest.mark.parametrize(
    ("text", "inputs", "outputs", "message"),
    [
        ("m k, k n", [(4, 6), (6, 8)], [(4, 8)], "rule text 'm k, k n' has no ->"),
        ("m k -> m", [(4, 6), (6,)], [(4,)], "rule text 'm k -> m' has no operand for input 1 (other)"),
        ("self: m k -> m", [(4, 6), (6,)], [(4,)], "rule text 'self: m k -> m' has no operand for input 1 (other)"),
        ("a -> a", [(4,)], [(4,), (4,)], "rule text 'a -> a' has no operand for output 1"),
        ("a -> a", [(4, 6)], [(4, 6)], "rule text 'a -> a' does not fit shape [4, 6]"),
        ("... a b -> a b", [(4,)], [(4, 6)], "rule text '... a b -> a b' does not fit shape [4]"),
        ("m k, k n -> m n", [(4, 6), (7, 8)], [(4, 8)], "factor k of 'm k, k n -> m n' is 6 and 7"),
        ("..., ... -> ...", [(4,), (6,)], [(4,)], "factor .0 of '..., ... -> ...' is 4 and 6"),
        ("([g:3] c) -> c", [(12,)], [(5,)], "a dim of size 12 does not fit (g c) of '([g:3] c) -> c'"),
        ("(a b) -> a b", [(25,)], [(4, 6)], "a dim of size 25 does not fit (a b) of '(a b) -> a b'"),
        ("(a b) -> (b a)", [(24,)], [(24,)], "cannot tell the size of factor a of '(a b) -> (b a)'"),
        ("(a:5 b) -> b a", [(24,)], [(6, 5)], "a dim of size 24 does not fit (a b) of '(a:5 b) -> b a'"),
        ("a ? -> a", [(4, 6)], [(4,)], "cannot read '?' in rule text 'a ? '"),
        ("[a b] -> a b", [(4, 6)], [(4, 6)], "cannot read '[a' in rule text '[a b] '"),
        ("a b] -> a b", [(4, 6)], [(4, 6)], "cannot read 'b]' in rule text 'a b] '"),
        ("(a b -> a b", [(24,)], [(4, 6)], "a ( without ) in rule text '(a b '"),
        ("2 a -> a", [(2, 4)], [(4,)], "cannot read '2' in rule text '2 a '"),
    ],
)  # fmt: skip
def test_messages(text, inputs, outputs, message):
    with pytest.raises(GraphError) as error:
        apply(text, inputs, outputs)
    assert str(error.value) == f"{where(inputs, outputs)}: {message}"


def test_flops_are_per_point_unless_a_function_says_the_whole():
    signature, site = apply("m k, k n -> m n", [(4, 6), (6, 8)], [(4, 8)], flops=2)
    assert count_flops(signature, site) == 2 * 4 * 6 * 8
    signature, site = apply("m -> m", [(4,)], [(4,)], flops=lambda site: 100.0 * site.inputs[0][0])
    assert count_flops(signature, site) == 400


def test_overloads_come_before_packets():
    one, all_of_them = Rule("aten.sum.default", "... ->"), Rule("aten.sum", "... -> ...")
    table = join_rows((all_of_them,), (one,))
    assert find_rule(table, make_site("aten.sum.default", [], []).node) is one
    assert find_rule(table, make_site("aten.sum.dim_IntList", [], []).node) is all_of_them


def test_no_rule():
    made = Node("frobnicate_3", "mylib.frobnicate.default", (), (), (), Phase.FORWARD, "h.0.mixer", "model.py:91")
    with pytest.raises(NoRuleError) as error:
        find_rule(RULES, made)
    assert str(error.value) == (
        "mylib.frobnicate.default (frobnicate_3, model.py:91 in h.0.mixer) has no sharding rule. "
        "State it with autopar.register_rule, or write the computation with ops that have one."
    )
    with pytest.raises(NoRuleError, match=r"\(n, no source line in the root module\)"):
        find_rule(RULES, make_site("mylib.frobnicate", [], []).node)


def test_one_op_one_row():
    with pytest.raises(GraphError, match="^two rule rows for aten.mm: one op, one row$"):
        join_rows((Rule("aten.mm", "m k, k n -> m n"),), (Rule("aten.mm", "a b, b c -> a c"),))
    with pytest.raises(TypeError):
        RULES["aten.mm"] = RULES["aten.bmm"]


def test_local_arguments_replace_and_add():
    row = Rule("toy.view", "a b -> a b", localise=lambda site, whole: {"size": site.outputs[0], "was": whole[0]})
    site = make_site("toy.view", [(2, 6)], [(2, 6)], size=(4, 6), flag=True)
    signature = resolve(row, make_site("toy.view", [(4, 6)], [(4, 6)], size=(4, 6)))
    assert localise_args(signature, site, ((4, 6),)) == (("self", Ref(0)), ("size", (2, 6)), ("flag", True), ("was", (4, 6)))
