"""Blocks that are numbered by their names (`layers0`, `layers1`, ...) are planned and printed as blocks in a list are: the same text but for the dot."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.verify import verify_workload  # noqa: E402

from .crossing_models import ADAMW, turning  # noqa: E402

pytestmark = pytest.mark.torch

FIXES = ["dp=2,tp=2,zero=3,recompute=none", "dp=2,zero=2,microbatches=2,recompute=full", "pp=2,dp=2,microbatches=2"]


def cluster(fix):
    return "cpu:4" if "pp" in fix or "tp" in fix else "cpu:2"


def options(fix):
    return autopar.Options(constraints=parse_fix(fix), time_limit_s=30.0, price=False)


def undotted(text):
    return re.sub(r"layers\.(?=[{\d])", "layers", text).replace("layers*", "layers")


@pytest.mark.parametrize("fix", FIXES)
@pytest.mark.parametrize("period", [9, 2])
def test_the_text_is_that_of_blocks_in_a_list(fix, period):
    listed, by_hand = (autopar.compile_workload(turning(8, period, 0, ADAMW, 16, named), cluster(fix), options(fix)).files for named in (False, True))
    assert listed.keys() == by_hand.keys() and "layers*" not in listed["program.py"]
    for name in sorted(file for file in listed if file.endswith(".py")):
        assert undotted(by_hand[name]) == undotted(listed[name])


@pytest.mark.parametrize("fix", FIXES)
def test_numbers(fix):
    report = verify_workload(turning(8, 2, 0, ADAMW, 16, by_hand=True), cluster(fix), options(fix))
    assert not report.failures, report
