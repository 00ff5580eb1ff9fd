"""The sequence of causal attention split over ranks (context parallelism): the numbers of its programs, what they move, and what its slowest rank is priced."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.api import compile_workload  # noqa: E402
from autopar.cluster import parse_cluster  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.cost.model import build_cost_model  # noqa: E402
from autopar.cost.ops import estimate_strategies_s, least_node_s, site_dtypes  # noqa: E402
from autopar.demo.model import build  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.graph import producer_table, value_table  # noqa: E402
from autopar.graph.strategy import list_strategies  # noqa: E402
from autopar.trace import trace_step  # noqa: E402
from autopar.verify import verify_workload  # noqa: E402

pytestmark = pytest.mark.torch


def small(seq=24, hidden=16, heads=2):
    torch.manual_seed(0)
    return build(batch=2, seq=seq, vocab=32, layers=2, hidden=hidden, heads=heads)


def options(fix):
    return autopar.Options(constraints=parse_fix(fix), price=False, time_limit_s=20.0)


@pytest.mark.parametrize(
    ("cluster", "fix"),
    [
        ("cpu:2", "sp=2"), ("cpu:3", "sp=3"), ("cpu:4", "sp=2,tp=2,zero=0"), ("cpu:4", "dp=2,sp=2,zero=3"), ("cpu:2", "sp=2,pp=1,microbatches=2"),
        ("cpu:4", "sp=2,pp=2,microbatches=2"),
    ],
)  # fmt: skip
def test_numbers(cluster, fix):
    report = verify_workload(small(), cluster, options(fix))
    assert not report.failures and "sp=" in report.mesh


def test_rows_are_cut_and_keys_gathered():
    compiled = compile_workload(small(), parse_cluster("cpu:2"), options("sp=2"))
    (program,) = compiled.programs
    values, makers = value_table(program.graph), producer_table(program.graph)
    found = [node for node in program.graph.nodes if node.op == "autopar.attention"]
    assert found
    for node in found:
        query, key, value, rows = (values[name] for name in node.inputs)
        assert query.shape[2] == rows.shape[0] == 12 and key.shape[2] == value.shape[2] == 24
        assert program.graph.nodes[makers[rows.name][0]].op == "comm.slice"
    sums = {n.op for n in program.graph.nodes for back in program.graph.nodes if back.op == "autopar.attention_backward" and set(n.inputs) & set(back.outputs[1:])}
    assert any(op.startswith("comm.") for op in sums)  # gradients of keys are sums over the ranks
    assert "rows=" in compiled.files["program.py"]


@pytest.mark.parametrize("cluster", ["1x4xH100-80GB", "cpu:4"])
def test_the_last_rank_is_priced(cluster):
    """2 - 1/n times the mean where neighbours stay together, the mean where every rank has early and late rows; never less than a share of the whole."""
    case = build_case(trace_step(small(16384, 1024, 16), "bf16").graph)
    model, values = build_cost_model(parse_cluster(cluster)), value_table(case.graph)
    for i, node in enumerate(case.graph.nodes):
        if not node.op.startswith("autopar.attention"):
            continue
        site, signature, dtypes = case.sites[i], case.signatures[i], site_dtypes(node, values)
        for n in (2, 4):
            by = {s.choices[0]: s for s in list_strategies(signature, site, (n,), {})[0]}
            whole, split = estimate_strategies_s(model, signature, site, dtypes, (by["R"], by["s"]), (n,))
            even = estimate_strategies_s(replace(model, balances_rows=True), signature, site, dtypes, (by["s"],), (n,))[0]
            assert split == pytest.approx((2 - 1 / n) * whole / n, rel=0.1) and even == pytest.approx(whole / n, rel=0.1)
            assert min(split, even) * n >= 0.999 * least_node_s(model, signature, site, dtypes)
