"""Discovery: what running an op shows is claimed, and nothing else."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402
from torch import library  # noqa: E402

from autopar.graph.registry import RuleRow  # noqa: E402
from autopar.trace.discovery.discover import NOT_FOUND, NOT_THE_SAME, discover_rule  # noqa: E402
from autopar.trace.discovery.referee import sample_of  # noqa: E402

pytestmark = pytest.mark.torch
R = torch.randn


@library.custom_op("disctest::row_softmax", mutates_args=())
def row_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


@library.custom_op("disctest::mix", mutates_args=())
def mix(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x @ weight if bias is None else x @ weight + bias


@library.custom_op("disctest::relu_of_product", mutates_args=())
def relu_of_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(x @ weight)


@library.custom_op("disctest::abs_of_sum", mutates_args=())
def abs_of_sum(x: Tensor) -> Tensor:
    return x.sum(-1).abs()


@library.custom_op("disctest::clamp_of_sum", mutates_args=())
def clamp_of_sum(x: Tensor) -> Tensor:
    return x.sum(-1).clamp(-50, 50)


@library.custom_op("disctest::almost_linear", mutates_args=())
def almost_linear(x: Tensor) -> Tensor:
    return torch.where(x < -2.0, 0.0, x)


@library.custom_op("disctest::scan", mutates_args=())
def scan(x: Tensor, dim: int) -> Tensor:
    return x.cumsum(dim)


@library.custom_op("disctest::look_up", mutates_args=())
def look_up(table: Tensor, index: Tensor) -> Tensor:
    return table[index]


@library.custom_op("disctest::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    return x * torch.rand_like(x)


_COUNT = itertools.count()


@library.custom_op("disctest::counting", mutates_args=())
def counting(x: Tensor) -> Tensor:
    return x + next(_COUNT)


@library.custom_op("disctest::normalise", mutates_args=())
def normalise(x: Tensor, weight: Tensor, shape: list[int]) -> tuple[Tensor, Tensor]:
    out, mean, _ = torch.native_layer_norm(x, shape, weight, None, 1e-5)
    return out, mean.clone()


@library.custom_op("disctest::heads", mutates_args=())
def heads(x: Tensor, count: int) -> Tensor:
    b, s, d = x.shape
    return x.view(b, s, count, d // count).transpose(1, 2).contiguous()


@library.custom_op("disctest::flat", mutates_args=())
def flat(x: Tensor) -> Tensor:
    return x.flatten(1).clone()


@library.custom_op("disctest::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return torch.cat([x, x.softmax(-1)], -1)


@library.custom_op("disctest::largest", mutates_args=())
def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(1), x * 2


@library.custom_op("disctest::log_sum", mutates_args=())
def log_sum(x: Tensor) -> Tensor:
    return x.log().sum(-1)


@library.custom_op("disctest::only_wide", mutates_args=())
def only_wide(x: Tensor) -> Tensor:
    assert x.shape[-1] == 4096 and x.dtype == torch.float32, "this kernel knows 4096 float32 columns"
    return x * 2


@library.custom_op("disctest::two_of_two", mutates_args=())
def two_of_two(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return grad * 2, (grad * x).flatten(0, -2).sum(0)


@library.custom_op("disctest::picky", mutates_args=())
def picky(x: Tensor) -> Tensor:
    raise ValueError("never on a Sunday")


def find(op: str, cache: Path | None = None, budget_s: float = 20.0, **arguments: object) -> RuleRow:
    """What discovery says of one call; the budget is that of a busy machine."""
    sample = sample_of(op, f"disctest.{op}.default", arguments)
    inputs, outputs = ([(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in many] for many in (sample.inputs, sample.outputs))
    return discover_rule(sample.node, tuple(inputs), tuple(outputs), cache, budget_s)


@pytest.mark.parametrize(
    ("op", "arguments", "text", "linear"),
    [
        ("row_softmax", {"x": R(8, 16, 64)}, "b s [d] -> b s [d]", ()),
        ("mix", {"x": R(8, 16, 64), "weight": R(64, 32)}, "b s d, d e -> b s e", (("x",), ("weight",))),
        ("relu_of_product", {"x": R(8, 64), "weight": R(64, 32)}, "b [s], [s] d -> b d", ()),
        ("abs_of_sum", {"x": R(8, 64)}, "b [s] -> b", ()),
        ("clamp_of_sum", {"x": R(8, 64)}, "b [s] -> b", ()),
        ("almost_linear", {"x": R(8, 64)}, "b s -> b s", ()),
        ("scan", {"x": R(8, 16, 64), "dim": 1}, "b [s] d -> b [s] d", (("x",),)),
        ("scan", {"x": R(8, 8), "dim": 0}, "[b] s -> [b] s", (("x",),)),
        ("look_up", {"table": R(100, 16), "index": torch.randint(0, 100, (8, 32))}, "[b] s, d e -> d e s", (("table",),)),
        ("normalise", {"x": R(8, 16, 64), "weight": R(64), "shape": [64]}, "b s [d], [d] -> b s [d], b s 1", ()),
        ("heads", {"x": R(8, 16, 64), "count": 4}, "b s [d] -> b [e] s [f]", (("x",),)),
        ("flat", {"x": R(8, 16, 4)}, "b s [d] -> b (s [e])", (("x",),)),
        ("twice", {"x": R(64, 32)}, "b [s] -> b [d]", ()),
        ("log_sum", {"x": R(8, 64).abs()}, "b s -> b", ()),
        ("only_wide", {"x": R(8, 4096)}, "b [s] -> b [s]", (("x",),)),
        ("two_of_two", {"grad": R(8, 16, 64), "x": R(8, 16, 64)}, "b s d, b s d -> b s d, d", (("grad",),)),
    ],
)
def test_what_is_found(op: str, arguments: dict, text: str, linear: tuple) -> None:
    row = find(op, **arguments)
    assert (row.text, row.linear) == (text, linear)
    assert row.why_whole == (NOT_FOUND if "[" in text else "")
    assert row.origin == "discovered" and row.num_trials > 20 and row.seconds > 0


def test_what_is_added_once_is_owed() -> None:
    row = find("mix", x=R(8, 16, 64), weight=R(64, 32), bias=R(32))
    assert (row.text, row.owed) == ("b s d, d e, e -> b s e", ("bias",))
    assert row.linear == (("x", "bias"), ("weight", "bias"))


def test_a_maximum_is_no_sum() -> None:
    row = find("largest", x=R(8, 64))
    assert (row.text, row.reduce, row.linear) == ("b s -> b, b s", "max", ())


@pytest.mark.parametrize("op", ["noisy", "counting"])
def test_what_is_not_the_same_twice_is_whole(op: str) -> None:
    row = find(op, x=R(8, 64))
    assert (row.text, row.why_whole) == ("[b] [s] -> [b] [s]", NOT_THE_SAME)


def test_what_cannot_be_run_is_whole_and_says_why() -> None:
    sample = sample_of("exp", "aten.exp.default", {"self": R(8, 64)})
    node = sample.node.__class__("n", "disctest.picky.default", ("x",), (("x", sample.node.args[0][1]),), ("y",), sample.node.phase)
    row = discover_rule(node, (((8, 64), "float32"),), (((8, 64), "float32"),), None)
    assert row.text == "[b] [s] -> [b] [s]"
    assert "could not run it on made-up data (ValueError: never on a Sunday); state its rule with autopar.register_rule" in row.why_whole


def test_no_time_means_whole() -> None:
    row = find("mix", budget_s=0.0, x=R(8, 16, 64), weight=R(64, 32))
    assert row.text == "[b] [s] [d], [d] [e] -> [b] [s] [e]" and row.why_whole.startswith(NOT_FOUND)


def test_what_was_found_is_kept_and_looked_at_again(tmp_path: Path) -> None:
    first = find("row_softmax", tmp_path, x=R(8, 16, 64))
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("disctest.row_softmax.default-")
    assert find("row_softmax", tmp_path, x=R(4, 20, 10)) == first, "shapes of the same pattern are one experiment"
    assert len(list(tmp_path.iterdir())) == 1
    file.write_text(json.dumps({**json.loads(file.read_text()), "text": "b s d -> b s d"}))
    assert find("row_softmax", tmp_path, x=R(8, 16, 64)).text == first.text, "a kept claim that is wrong is not believed"
    file.write_text("not json")
    assert find("row_softmax", tmp_path, x=R(8, 16, 64)).text == first.text


def test_attributes_and_patterns_are_part_of_the_key(tmp_path: Path) -> None:
    assert find("scan", tmp_path, x=R(8, 16), dim=1).text == "b [s] -> b [s]"
    assert find("scan", tmp_path, x=R(8, 16), dim=0).text == "[b] s -> [b] s"
    assert find("scan", tmp_path, x=R(1, 16), dim=0).text == "1 b -> 1 b"
    assert len(list(tmp_path.iterdir())) == 3


def test_random_numbers_of_the_caller_are_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    find("row_softmax", x=torch.zeros(8, 16))
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), expected)
