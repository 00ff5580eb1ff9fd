"""Nothing fits under words about stages and microbatches: how much is missing, who holds it, and a memory with which a plan is found."""

import functools

import pytest

torch = pytest.importorskip("torch")

from autopar.api import compile_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.demo.model import build  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.solver.infeasible import MemoryShortage  # noqa: E402

pytestmark = pytest.mark.torch

small = functools.partial(build, batch=16, seq=32, vocab=128, layers=4, hidden=64, heads=4)


def asked(fix, limit):
    return compile_workload(small(), "cpu:4", Options(constraints=parse_fix(fix), memory_bytes=limit, price=False, time_limit_s=20))


@pytest.mark.parametrize("fix", ["dp=4,tp=1,pp=1,zero=0,microbatch=4,recompute=full", "dp=2,pp=2,zero=0,microbatch=2,schedule=1f1b", "pp=4,microbatches=4"])
def test_a_recipe_that_does_not_fit_says_what_it_needs(fix):
    limit = 1 << 20
    with pytest.raises(MemoryShortage) as found:
        asked(fix, limit)
    error = found.value
    assert error.limit_bytes == limit and error.missing_bytes == error.minimum_bytes - limit > 0
    assert "microbatch" in error.layout and error.layout in str(error) and ("in stage" in str(error)) == ("pp=1" not in fix)
    assert sum(size for _, size in error.holders) == error.minimum_bytes and error.holders[0][0] in str(error)
    plan = asked(fix, error.minimum_bytes).plan
    assert max(plan.cost.peak_bytes) <= error.minimum_bytes


def test_the_two_spellings_of_one_recipe_need_as_much():
    """One stage and one microbatch, said or left out."""
    needs = []
    for fix in ("dp=4,zero=0,recompute=full,microbatches=1", "dp=4,tp=1,pp=1,zero=0,recompute=full,microbatch=4"):
        with pytest.raises(MemoryShortage) as found:
            asked(fix, 1 << 20)
        needs.append(found.value.minimum_bytes)
    assert needs[0] == needs[1]
