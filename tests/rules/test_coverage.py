"""The pieces of `benchmarks/rules_coverage.py`: the judges see a wrong row, a missing row, a missed split, a false answer of DTensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's operator database needs it

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.opinfo.core import SampleInput

    from benchmarks import ask_dtensor, judge_dtensor, judge_rows, rules_coverage
    from benchmarks.op_database import Call, make_call, tensors_in, variants, why_skipped

from autopar.graph.rules import RULES  # noqa: E402
from autopar.graph.sharding import PARTIAL, REPLICATE, Partial, Shard  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SIGNED = torch.tensor([[-1.0, 2.0, -3.0, 0.5, 0.0, 4.0]], dtype=torch.float64).repeat(6, 1) + torch.arange(6.0).view(6, 1)


def call_of(function: Callable[..., object], *args: object, **kwargs: object) -> Call:
    return make_call(function.__name__, function, SampleInput(args[0], args=args[1:], kwargs=kwargs))


def judge_with(function: Callable[..., object], *args: object, **change: object) -> judge_rows.Verdict:
    """The verdict on one call where the row of `function`'s op says something else."""
    op = f"aten.{function.__name__}"
    rules = {**RULES, op: replace(RULES[op], **change)} if change else RULES
    return judge_rows.RowJudge(64, rules).judge(call_of(function, *args), 60.0)


def test_a_call_keeps_its_arguments() -> None:
    call = call_of(torch.cat, [SIGNED, 2 * SIGNED], dim=1)
    assert len(call.tensors) == 2
    assert torch.equal(call.run((SIGNED, -SIGNED)), torch.cat([SIGNED, -SIGNED], 1))


def test_variants_are_negative_zero_and_large() -> None:
    own, negative, mixed = (t[0] for t in variants(call_of(torch.neg, SIGNED)))
    assert torch.equal(own, SIGNED) and torch.equal(negative, -SIGNED)
    assert (mixed == 0).sum() > 6 and mixed.max() == 300
    assert torch.equal(list(variants(call_of(torch.neg, torch.arange(4))))[2][0], torch.arange(4))


@pytest.mark.parametrize(
    ("function", "args", "reason"),
    [
        (torch.bernoulli, (SIGNED.abs().clamp(max=1),), "random numbers"),
        (torch.nonzero, (SIGNED,), "the shape of the result depends on the data"),
        (torch.neg, (torch.ones(()),), "single elements only"),
        (torch.is_nonzero, (SIGNED,), "does not run: RuntimeError"),
        (torch.neg, (SIGNED,), ""),
    ],
)
def test_reasons_to_skip(function: Callable[..., object], args: tuple, reason: str) -> None:
    assert why_skipped(call_of(function, *args)) == reason


def test_a_good_row_is_covered() -> None:
    verdict = judge_with(torch.tril, SIGNED.expand(2, 6, 6).clone())
    assert (verdict.why_not, verdict.wrong, verdict.splits, verdict.ops) == ("", (), True, ("aten.tril.default",))
    assert verdict.checked > 2


def test_a_wrong_row_is_seen() -> None:
    verdict = judge_with(torch.exp, SIGNED, linear=(("self",),))
    assert len(verdict.wrong) == 2 and all("strategy P(self)" in w for w in verdict.wrong)


def test_a_wrong_row_is_seen_on_other_numbers_than_the_samples() -> None:
    verdict = judge_with(torch.abs, SIGNED.abs(), linear=(("self",),))
    assert verdict.wrong


def test_a_missing_row_is_told() -> None:
    judge = judge_rows.RowJudge(64, {op: r for op, r in RULES.items() if op != "aten.exp"})
    verdict = judge.judge(call_of(torch.exp, SIGNED), 60.0)
    assert verdict.why_not == "aten.exp.default: no row" and not verdict.splits


def test_what_a_row_leaves_out_is_missed() -> None:
    verdict = judge_with(torch.exp, SIGNED, text="[a] b -> [a] b")
    assert verdict.missed == ("aten.exp.default: S0/3 -> S0/3",) and verdict.splits
    assert not judge_with(torch.exp, SIGNED, text="[a] [b] -> [a] [b]").splits
    assert judge_with(torch.exp, SIGNED).missed == ()


def test_dtensor_is_asked() -> None:
    verdict = judge_dtensor.DTensorJudge(64).judge(call_of(torch.mm, SIGNED, SIGNED), 60.0)
    assert (verdict.why_not, verdict.wrong, verdict.splits) == ("", (), True)
    assert verdict.ops == ("aten.mm.default",) and verdict.checked >= 6


def test_dtensor_has_no_rule() -> None:
    verdict = judge_dtensor.DTensorJudge(64).judge(call_of(torch.addbmm, SIGNED, SIGNED.expand(2, 6, 6), SIGNED.expand(2, 6, 6)), 60.0)
    assert "does not have a sharding strategy" in verdict.why_not and not verdict.splits


@pytest.mark.parametrize(
    ("inputs", "output", "is_true"),
    [
        ((Shard(0, 3), REPLICATE), Shard(0, 3), True),
        ((Shard(1, 3), Shard(0, 3)), PARTIAL, True),
        ((Shard(1, 3), Shard(0, 3)), Partial("avg"), False),
        ((Shard(0, 3), REPLICATE), REPLICATE, False),
        ((Partial("avg"), REPLICATE), Partial("avg"), True),
        ((PARTIAL, PARTIAL), PARTIAL, False),
    ],
)
def test_an_answer_is_held_against_the_truth(inputs: tuple, output: object, is_true: bool) -> None:
    (op_call,) = ask_dtensor.record(call_of(torch.mm, SIGNED, SIGNED), (SIGNED, SIGNED))
    answer = ask_dtensor.Answer(inputs, (output,), op_call.op, (ask_dtensor.Slot(),) * 2, op_call.spec)
    assert (judge_dtensor.why_false(op_call, answer, 2) == "") == is_true


def test_dtensor_sees_local_sizes() -> None:
    verdict = judge_dtensor.DTensorJudge(64).judge(call_of(torch.Tensor.view, SIGNED, 36), 60.0)
    assert verdict.why_not == "" and verdict.wrong == () and verdict.splits


def test_the_table_counts_entries() -> None:
    side = {"covered": 2, "splits": True, "checked": 9, "wrong": [], "missed": ["a"], "cut_short": False, "seconds": 1.0}
    records = [
        {"number": 0, "name": "x", "samples": 2, "ours": side},
        {"number": 1, "name": "y", "samples": 3, "ours": {**side, "wrong": ["c on (2,): 1.0", "c on (3,): 2.0"]}},
        {"number": 2, "name": "z", "samples": 0, "skipped": {"random numbers": 1}},
        {"number": 3, "name": "w", "samples": 2, "ours": side, "failed": {"dtensor": "the process crashed"}},
    ]
    table = rules_coverage.count(records, "ours")
    assert (table["entries judged"], table["covered"], table["covered in part"], table["splittable"]) == (2, 1, 1, 1)
    assert (table["wrong claims"], table["entries with a wrong claim"]) == (1, 1)
    assert (table["missed splits"], table["entries with a missed split"], table["claims run"]) == (1, 2, 18)


def test_tensors_of_results() -> None:
    assert len(tensors_in((SIGNED, [SIGNED, 3], {"a": None}))) == 2
