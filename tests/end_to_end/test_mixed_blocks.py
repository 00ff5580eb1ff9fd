"""Blocks of two kinds: where the integer program gets no time, some blocks recompute and others do not, in loops of their own, and the numbers are right."""

import functools
import re

import pytest

torch = pytest.importorskip("torch")

from autopar.api import compile_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.demo.model import build  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.solver import one_mesh  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402

pytestmark = pytest.mark.torch
BLOCKS = 8


small = functools.partial(build, batch=16, seq=64, vocab=256, layers=BLOCKS, hidden=32, heads=4)


def compiled(fix, limit=None):
    options = Options(constraints=parse_fix(fix), memory_bytes=limit, price=False, time_limit_s=30)
    return compile_workload(small(), "cpu:2", options)


@pytest.mark.parametrize("fix", ["dp=2,pp=1,microbatches=2", "dp=2,pp=1,microbatches=1"])
def test_as_many_blocks_are_kept_as_fit(fix, monkeypatch):
    ample = compiled(fix).plan
    full = compiled(f"{fix},recompute=full").plan
    limit = (ample.cost.peak_bytes[0] + full.cost.peak_bytes[0]) // 2
    monkeypatch.setattr(one_mesh, "_MAX_ROUNDS", 0)
    made = compiled(fix, limit)
    plan = made.plan
    assert plan.cost.peak_bytes[0] <= limit and ample.cost.step_s < plan.cost.step_s < full.cost.step_s
    assert 0 < len(plan.assignment.again) < len(full.assignment.again)
    assert plan.solve.lower_bound_s <= ample.cost.step_s * (1 + 1e-9)  # what blocks that decide alike are bounded by does not hold
    loops = re.findall(r"for i in range\((.*)\):", made.files["program.py"])
    first = int(loops[0])  # blocks that recompute, then the others; backward the other way round
    assert loops == [f"{first}", f"{first}, {BLOCKS}", f"{BLOCKS - 1}, {first - 1}, -1", f"{first - 1}, -1, -1"]
    report = verify_workload(small(), "cpu:2", Options(constraints=parse_fix(fix), memory_bytes=limit, price=False, time_limit_s=30))
    assert not report.failures, describe_failure(report)
