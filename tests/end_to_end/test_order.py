"""The order of programs: collectives along several axes as one, reductions within turns, and what a replay of the order says of it."""

from __future__ import annotations

import functools
import re

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.api import compile_workload, plan_workload  # noqa: E402
from autopar.cluster import parse_cluster  # noqa: E402
from autopar.codegen.emit import find_room  # noqa: E402
from autopar.constraints import Pin, parse_fix  # noqa: E402
from autopar.cost.estimate import node_seconds  # noqa: E402
from autopar.cost.model import build_cost_model  # noqa: E402
from autopar.cost.program_order import replay_order  # noqa: E402
from autopar.demo.model import build  # noqa: E402
from autopar.graph.case import decided_case  # noqa: E402
from autopar.graph import run_pieces  # noqa: E402
from autopar.graph.overlap import overlap_program  # noqa: E402
from autopar.graph.overlap_memory import extra_bytes, overlap_within  # noqa: E402
from autopar.graph.partition import assigned_strategies  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402

pytestmark = pytest.mark.torch
small = functools.partial(build, batch=8, seq=16, vocab=64, layers=3, hidden=32, heads=4)


def options(fix):
    return autopar.Options(constraints=parse_fix(fix), price=False, time_limit_s=20.0)


def program_text(fix, cluster="cpu:4"):
    return compile_workload(small(), cluster, options(fix)).files["program.py"]


def test_two_axes_of_zero_3_are_one_collective():
    split = autopar.constrain(dp=4, zero=3, pin=[Pin("blocks.*.up.weight", "S0", on="dp_2")])  # a mesh that has this axis
    text = compile_workload(small(), "1x4xH100-80GB", autopar.Options(constraints=split, price=False, time_limit_s=20.0)).files["program.py"]
    gathers = re.findall(r"def blocks_(?:forward|backward)_gather\(.*?\n\n\n", text, re.S)
    assert len(gathers) == 2 and all("('dp', 'dp_2')" in g and g.count("start_all_gather") == 1 for g in gathers)
    blocks = text.split("def blocks_backward(")[1].split("\n\n\n")[0]
    assert "('dp_2', 'dp')" in blocks and "comm.all_gather(" not in blocks and "comm.reduce_scatter(" not in blocks


def test_reductions_of_a_turn_run_while_the_next_block_does():
    """What is summed up over the turns is started where it is made, and waited for after the next block."""
    text = program_text("dp=2,zero=3,microbatches=2", "cpu:2")
    block, sums = (text.split(f"def {name}(")[1].split("\n\n\n")[0] for name in ("blocks_backward", "blocks_backward_sums"))
    assert "comm.reduce_scatter(" not in block and "ops.accumulate(" not in block
    assert block.count("comm.start_reduce_scatter(") == 1  # one bucket
    assert sums.index('kept.pop("') < sums.index(".wait()") < sums.index("ops.accumulate(grads, f\"blocks.{i}.")
    calls = [line.strip() for line in text.split("def backward(")[1].split("\n\n\n")[0].splitlines() if line.strip().startswith(("for i", "if i", "blocks_backward_sums("))]
    assert calls[0] == "for i in range(2, -1, -1):" and calls[1].startswith("if i != 2:")
    assert calls[2:] == [f"blocks_backward_sums(comm, state, grads, blocks[{i}], {i})" for i in ("i + 1", "0")]


def test_blocks_without_room_wait_for_their_own_reductions():
    """Where memory has no room for a block's gradients under way beside what the next block runs again; its own start only when these have gone."""
    planned = plan_workload(small(), "cpu:2", options("dp=2,zero=2,microbatches=2,recompute=full"))
    sections = phase_sections(planned.program.graph)
    lagging, prompt = (overlap_program(planned.program, sections, True, lags)[0] for lags in (True, False))
    room = extra_bytes(planned.program, prompt)
    assert room < extra_bytes(planned.program, lagging)
    assert overlap_within(planned.program, sections, room)[0].graph.nodes == prompt.graph.nodes


@pytest.mark.parametrize("fix", ["dp=4,zero=3", "dp=4,zero=2,microbatches=2", "tp=2,dp=2,zero=3,microbatches=2", "dp=4,zero=1,microbatches=2", "pp=2,dp=2,zero=2,microbatches=4"])
def test_numbers_are_those_of_plain_pytorch(fix):
    report = verify_workload(small(), "cpu:4", options(fix))
    assert not report.failures, describe_failure(report)


@pytest.mark.parametrize("fix", ["dp=16,zero=3", "tp=2,dp=8,zero=3", "dp=16,zero=0", "dp=16,zero=2,microbatches=2"])
def test_the_order_comes_close_to_the_plan(fix):
    """On a simulated cluster: overlap is worth something, and no collective is lost or priced twice."""
    cluster = "2x8xH100-80GB"
    planned = plan_workload(build(batch=64, seq=1024, vocab=8192, layers=6, hidden=1024, heads=16), cluster, options(fix))
    case, model = decided_case(planned.case, planned.plan.assignment), build_cost_model(parse_cluster(cluster))
    strategies = assigned_strategies(case.graph, case.sites, case.signatures, case.cuts, planned.plan.assignment)
    seconds = node_seconds(model, planned.program, case.sites, case.signatures, strategies)
    order = replay_order(model, planned.program, seconds, find_room(planned.plan)[0])
    blocking = replay_order(model, planned.program, seconds, -1)
    assert order.compute_s == pytest.approx(planned.plan.cost.compute_s, rel=1e-6) == blocking.compute_s
    assert blocking.exposed_s == pytest.approx(blocking.comm_s, rel=1e-6)  # nothing hides
    assert 0 < order.exposed_s < blocking.exposed_s and order.comm_s <= blocking.comm_s
    assert order.step_s == pytest.approx(planned.plan.cost.step_s, rel=0.15)
    assert order.step_s < blocking.step_s


class Bend(torch.nn.Module):
    """A module of its own between blocks: it has a state, so it is of none of them (`trace.inline`)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("one", torch.ones(8))

    def forward(self, x):
        return torch.sin(x) * x * self.one


class Walk(torch.nn.Module):
    """Equal blocks in any order, with or without a module between them."""

    def __init__(self, order, between=False):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)) for _ in range(3))
        self.order, self.between = order, Bend() if between else torch.nn.Identity()

    def forward(self, x):
        for number in self.order:
            x = self.between(x + self.blocks[number](x))
        return x


def walk(*order, between=False):
    batch = torch.randn(8, 8)
    return autopar.Workload(Walk(order, between), (batch,), (torch.randn(8, 8),), torch.nn.functional.mse_loss, torch.optim.AdamW)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("order", [(0, 1, 2, 2, 1, 0), (0, 1, 2, 0), (0, 1, 2, 0, 1, 2)], ids=str)
def test_blocks_that_run_again_wait_for_what_they_have_started(order, zero):
    report = verify_workload(walk(*order), "cpu:2", options(f"dp=2,zero={zero},microbatches=2"))
    assert not report.failures, describe_failure(report)


def test_sums_of_blocks_in_no_loop_stand_behind_the_next_block():
    """What stands between blocks keeps them out of a loop: their sums are in none, either, so that one block's at most is under way."""
    text = compile_workload(walk(0, 1, 2, between=True), "cpu:2", options("dp=2,zero=2,microbatches=2")).files["program.py"]
    assert "_sums(" not in text
    lines = [line for line in text.split("def backward(")[1].split("\n\n\n")[0].splitlines() if "start_reduce_scatter(" in line or "ops.accumulate(" in line]
    kinds = ["start" if "start" in line else "sum" for line in lines]
    assert kinds[0] == "start" and kinds[-1] == "sum" and "sum" in kinds[: len(kinds) - kinds[::-1].index("start")]  # not all sums at the end


@pytest.mark.parametrize("fix", ["dp=4,zero=3", "dp=4,zero=3,microbatches=2", "dp=2,tp=2,zero=3,microbatches=2", "dp=4,zero=3,dp_shard=2"])
def test_linears_in_no_block_gather_and_reduce_a_few_at_a_time(monkeypatch, fix):
    """A plain stack of linears is one run of nodes, in pieces (`graph.run_pieces`)."""
    monkeypatch.setattr(run_pieces, "GATHERED_ALONE_BYTES", 64)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(16, 16), torch.nn.GELU())]
    stack = autopar.Workload(torch.nn.Sequential(*layers, torch.nn.Linear(16, 4)), (torch.randn(8, 16),), (torch.randn(8, 4),), torch.nn.functional.mse_loss, torch.optim.AdamW)
    report = verify_workload(stack, "cpu:4", options(fix))
    assert not report.failures, describe_failure(report)
    forward = compile_workload(stack, "cpu:4", options(fix)).files["program.py"].split("def forward(")[1].split("\n\n\n")[0]
    assert forward.count("comm.start_all_gather(") >= 5 and "comm.all_gather(state[" not in forward
