"""Stated rules: a right claim is kept with its trials, a wrong one is an error that shows the factor and numbers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402
from torch import library  # noqa: E402

import autopar  # noqa: E402
from autopar.errors import RuleError  # noqa: E402
from autopar.trace.discovery.register import registered_rules  # noqa: E402

pytestmark = pytest.mark.torch


@library.custom_op("regtest::row_softmax", mutates_args=())
def row_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


@library.custom_op("regtest::mix", mutates_args=())
def mix(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> Tensor:
    return (x @ weight if bias is None else x @ weight + bias) * scale


@library.custom_op("regtest::relu_of_product", mutates_args=())
def relu_of_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(x @ weight)


@library.custom_op("regtest::look_up", mutates_args=())
def look_up(table: Tensor, index: Tensor) -> Tensor:
    return table[index]


@library.custom_op("regtest::scan", mutates_args=())
def scan(x: Tensor, dim: int) -> Tensor:
    return x.cumsum(dim)


@library.custom_op("regtest::gated", mutates_args=())
def gated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return a * torch.sigmoid(b)


@library.custom_op("regtest::ragged", mutates_args=())
def ragged(values: Tensor, offsets: Tensor) -> Tensor:
    assert int(offsets[0]) == 0 and bool((offsets[1:] > offsets[:-1]).all()), "offsets rise from 0"
    ends = [*offsets.tolist(), values.shape[1]]
    return torch.stack([values[:, a:b].sum(1) for a, b in zip(ends, ends[1:])], 1)


@library.custom_op("regtest::largest", mutates_args=())
def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(1), x * 2


@library.custom_op("regtest::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


RAGGED = (torch.randn(6, 12), torch.tensor([0, 2, 7]))


@pytest.mark.parametrize(
    ("op", "text", "more"),
    [
        ("row_softmax", "b s [d] -> b s [d]", {}),
        ("row_softmax", "... [d] -> ... [d]", {}),
        ("mix", "x: ... d, weight: d e -> ... e", {"linear": ("x", "weight"), "args": {"scale": 2.0}}),
        ("mix", "x: b d, weight: d e, bias: e -> b e", {"linear": (("x", "bias"),), "owed": ("bias",)}),
        ("look_up", "[v] d, b s -> b s d", {"linear": ("table",)}),
        ("scan", "b [s] d -> b [s] d", {"args": {"dim": 1}, "linear": ("x",)}),
        ("gated", "b ([g:2] d) -> b d", {}),
        ("largest", "b s -> b, b s", {"reduce": "max"}),
        ("ragged", "b [s], [n] -> b [n]", {"sample": RAGGED, "linear": ("values",)}),
    ],
)
def test_a_right_claim_is_kept(op: str, text: str, more: dict) -> None:
    autopar.register_rule(f"regtest::{op}", text, **more)
    row = registered_rules()[f"regtest.{op}"]
    assert (row.text, row.origin, row.nodes) == (text, "registered", ())
    assert row.num_trials > 0


@pytest.mark.parametrize(
    ("op", "text", "more", "message"),
    [
        ("row_softmax", "b s d -> b s d", {}, r"the rule 'b s d -> b s d' is not what the op computes: splitting d over 2 ranks \(S2/9 -> S2/9\): "
         r"output 0: differs by \d.*\. Tried on signed numbers of \[6, 12, 18\]\. Write \[d\]"),
        ("mix", "x: b d, weight: d e, bias: e -> b e", {}, r"splitting d over 2 ranks \(S1/6, S0/6, R -> P\): output 0: differs by .*owed="),
        ("relu_of_product", "b d, d e -> b e", {}, r"splitting d over 2 ranks .* differs by"),
        ("relu_of_product", "b [d], [d] e -> b e", {"linear": ("x",)}, r"passing a sum through x over 2 ranks .*Take x out of linear"),
        ("look_up", "v d, b -> b d", {}, r"splitting v over 2 ranks"),
        ("largest", "b s -> b, b s", {}, r"splitting s over 2 ranks .*reduce="),
        ("noisy", "b s -> b s", {}, r"no split over 2 ranks .*The op gives other numbers each time"),
        ("ragged", "b [s], [n] -> b [n]", {}, r"does not run on made-up data \(AssertionError: offsets rise from 0\)\. Give sample="),
        ("ragged", "b [s], [n] -> b [n]", {"sample": RAGGED[:1]}, r"sample: expected 2 tensors \(values, offsets\), found 1"),
        ("row_softmax", "b [d] -> b [d]", {"sample": (torch.randn(5, 7),)}, r"b could not be checked: no sample has a size there that 2 or 3 divides"),
        ("scan", "b [s] -> b [s]", {}, r"does not run on made-up data .*args="),
        ("scan", "b [s] -> b [s]", {"args": {"axis": 1}}, r"it takes dim, x; found 'axis'"),
        ("row_softmax", "b [s]", {}, r"expected inputs -> outputs with one arrow"),
        ("row_softmax", "b, [s] -> b", {}, r"2 operands for its 1 tensors x"),
        ("row_softmax", "y: b -> b", {}, r"'y' is none of its tensors x"),
        ("row_softmax", "b -> b", {"reduce": "mean"}, r"reduce: expected sum, max or min, found 'mean'"),
        ("unheard_of", "b -> b", {}, r"torch knows no such op"),
    ],
)  # fmt: skip
def test_a_wrong_claim_is_an_error_that_shows_it(op: str, text: str, more: dict, message: str) -> None:
    before = registered_rules().get(f"regtest.{op}")
    with pytest.raises(RuleError, match=message):
        autopar.register_rule(f"regtest::{op}", text, **more)
    assert registered_rules().get(f"regtest.{op}") == before


def test_an_op_of_the_table_has_its_row() -> None:
    with pytest.raises(RuleError, match="aten::mm: has a row in autopar's own table: one op, one row"):
        autopar.register_rule("aten::mm", "m k, k n -> m n")


def test_unchecked_is_said() -> None:
    autopar.register_rule("regtest::noisy", "b s -> b s", check=False)
    assert registered_rules()["regtest.noisy"].num_trials == 0
