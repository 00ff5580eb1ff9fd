"""Blocks of several kinds that take turns are one loop of the text, which calls a function for each kind; so the text is as long for many blocks as for few, and the numbers are the model's."""

from __future__ import annotations

import re

import pytest

from autopar.codegen.kinds import branch_kinds, pick_kind, print_blocks, print_numbers
from autopar.codegen.rows import Loop, Row
from autopar.graph.node import Phase
from autopar.graph.repeats import Block
from autopar.graph.sections import Section


def row(numbers, *kinds):
    """A row of these blocks, of kinds that have these of them."""
    return Row(tuple(Loop("h", Section(Phase.FORWARD), tuple(Block(i, (i,)) for i in own)) for own in kinds), tuple(numbers))


@pytest.mark.parametrize(
    ("numbers", "kinds", "heads", "picked"),
    [
        (range(4), [range(4)], [""], "f0"),
        (range(6), [(0, 2, 4), (1, 3, 5)], ["if i % 2:", "else:"], "(f1 if (i + 1) % 2 else f0)"),
        (range(1, 6), [(1, 3, 5), (2, 4)], ["if i % 2 == 0:", "else:"], "(f1 if (i + 1) % 2 == 0 else f0)"),
        (range(12), [[i for i in range(12) if i % 6 != 5], (5, 11)], ["if i % 6 == 5:", "else:"], "(f1 if (i + 1) % 6 == 5 else f0)"),
        (range(9, 0, -1), [(9, 8, 6, 5, 3, 2), (7, 4, 1)], ["if i % 3 == 1:", "else:"], "(f1 if (i + 1) % 3 == 1 else f0)"),
        (range(8), [(0, 1), (2, 4, 6), (3, 5, 7)], ["if i <= 1:", "elif i in (3, 5, 7):", "else:"], "(f0 if (i + 1) <= 1 else f2 if (i + 1) in (3, 5, 7) else f1)"),
        (range(8), [(6, 7), (0, 2, 5), (1, 3, 4)], ["if i >= 6:", "elif i in (1, 3, 4):", "else:"], "(f0 if (i + 1) >= 6 else f2 if (i + 1) in (1, 3, 4) else f1)"),
    ],
)  # fmt: skip
def test_conditions_tell_kinds_apart(numbers, kinds, heads, picked):
    found = row(numbers, *kinds)
    branches, texts = branch_kinds(found), [f"f{k}" for k in range(len(kinds))]
    assert [head for head, _ in branches] == heads and pick_kind(found, texts, "i + 1") == picked
    for kind, own in enumerate(kinds):
        for i in own:
            taken = next(k for head, k in branches if head in ("", "else:") or eval(head.removeprefix("el").removeprefix("if ").rstrip(":"), {"i": i}))
            assert taken == kind and eval(pick_kind(found, texts, "i"), {"i": i, **{t: t for t in texts}}) == f"f{kind}"
    told = [print_blocks(found, kind) for kind in range(len(kinds))]
    assert len(set(told)) == len(kinds) and all(text.startswith(f"i = {numbers[0]} .. {numbers[-1]}") for text in told)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [(range(4), "range(4)"), (range(1, 4), "range(1, 4)"), (range(5, -1, -1), "range(5, -1, -1)"), (range(0, 6, 2), "range(0, 6, 2)"), ((0, 1, 3, 4), "(0, 1, 3, 4)"), ((7, 6, 3), "(7, 6, 3)")],
)
def test_numbers_of_a_row(numbers, text):
    assert print_numbers(row(numbers, tuple(numbers))) == text and list(eval(text)) == list(numbers)


torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.verify import verify_workload  # noqa: E402

from .crossing_models import ADAMW, turning  # noqa: E402

FIXES = {
    "dp=2,tp=2,zero=3,recompute=none": ("_gather",),
    "dp=4,zero=3,recompute=full": ("_gather",),
    "dp=2,zero=2,microbatches=2": (),
    "dp=2,zero=0,microbatches=2": (),
    "pp=2,dp=2,microbatches=2": (),
}


def options(fix):
    return autopar.Options(constraints=parse_fix(fix), time_limit_s=30.0, price=False)


def source(layers, fix, **more):
    return autopar.compile_workload(turning(layers, optimizer=ADAMW, width=16, **more), "cpu:4" if "4" in fix or "tp" in fix or "pp" in fix else "cpu:2", options(fix)).files


@pytest.mark.torch
@pytest.mark.parametrize("fix", FIXES)
@pytest.mark.parametrize(("period", "wide"), [(2, 0), (3, 4)])
def test_numbers(fix, period, wide):
    report = verify_workload(turning(8, period, wide, ADAMW, 16), "cpu:4" if "4" in fix or "tp" in fix or "pp" in fix else "cpu:2", options(fix))
    assert not report.failures, report


@pytest.mark.torch
@pytest.mark.parametrize("fix", ["dp=2,tp=2,zero=3,recompute=none", "dp=2,zero=2,microbatches=2"])
@pytest.mark.parametrize(("period", "few", "many"), [(2, 8, 16), (3, 9, 18)])
def test_the_text_does_not_grow_with_the_blocks(fix, period, few, many):
    short, long = (source(layers, fix, period=period)["program.py"] for layers in (few, many))
    assert abs(len(long.splitlines()) - len(short.splitlines())) <= 4
    heads = re.findall(r"\n        if i % [^\n]*:\n            [^\n]*layers_(forward|backward)", long)
    assert {"forward", "backward"} <= set(heads)
    for part in FIXES[fix]:
        assert re.search(rf"\(layers_\w+{part} if \(i [+-] 1\) %", long)
