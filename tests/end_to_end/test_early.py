"""What the backward pass gathers of what was there before it, and what a matmul sends back, travel beside the matmuls around them: in the program, in its price, and with the same numbers."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.api import plan_workload  # noqa: E402
from autopar.codegen.emit import phase_sections  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.demo.model import build  # noqa: E402
from autopar.graph.fuse import fuse_program  # noqa: E402
from autopar.graph.graph import phase_table, producer_table  # noqa: E402
from autopar.graph.kernel import is_kernel  # noqa: E402
from autopar.graph.node import Phase, get_arg  # noqa: E402
from autopar.graph.overlap import overlap_program  # noqa: E402
from autopar.graph.overlap_memory import extra_bytes, overlap_within  # noqa: E402
from autopar.graph.program import STARTS, WAIT  # noqa: E402
from autopar.verify import verify_workload  # noqa: E402

pytestmark = pytest.mark.torch
small = functools.partial(build, batch=8, seq=16, vocab=64, layers=3, hidden=32, heads=4)
SEQUENCE = "tp=4,sequence_parallel=1,recompute=none"


def planned(fix=SEQUENCE):
    """A plan on four GPUs, its program as it was partitioned, and as it is emitted."""
    found = plan_workload(small(), "1x4xH100-80GB", autopar.Options(constraints=parse_fix(fix), time_limit_s=30.0, precision="bf16"))
    overlapped, _ = overlap_within(found.program, phase_sections(found.program.graph))
    return found.plan, found.program, overlapped


def test_a_weight_s_gradient_finds_its_input_gathered_and_what_is_sent_back_is_reduced_beside_it():
    plan, program, overlapped = planned()
    nodes, makers = overlapped.graph.nodes, producer_table(overlapped.graph)
    phases = phase_table(program.graph)
    gathers = reductions = 0
    for i, node in enumerate(nodes):
        if node.phase is not Phase.BACKWARD or node.op != WAIT or ".blocks" not in "." + node.path:
            continue
        begun = makers[node.inputs[0]][0]
        start, beside = nodes[begun], [n.op for n in nodes[begun + 1 : i]]
        reader = next(n for n in nodes[i + 1 :] if node.outputs[0] in n.inputs)
        if start.op == "comm.start_all_gather" and phases[start.inputs[0]] is Phase.FORWARD and reader.op == "autopar.linear_weight_grad":
            gathers += 1
            assert "autopar.linear_input_grad" in beside  # at least that of the same linear
            blocking = [n for n in nodes[begun + 1 : i] if n.op.startswith("comm.") and n.op not in (*STARTS, WAIT) and get_arg(n, "axis") == get_arg(start, "axis")]
            assert not blocking  # nothing that is needed at once stands behind it in the queue
        if start.op == "comm.start_reduce_scatter" and nodes[makers[start.inputs[0]][0]].op == "autopar.linear_input_grad":
            reductions += 1
            assert "autopar.linear_weight_grad" in beside and get_arg(start, "alone") is None
    assert gathers >= 2 * 3 and reductions >= 2 * 3  # of each block two linears


def test_among_kernels_too_a_message_is_waited_for_by_its_first_reader():
    """A kernel that stands where the last of its ops stood may be needed before that: it comes first, then the wait."""
    _, program, _ = planned()
    fused = fuse_program(*overlap_within(program, phase_sections(program.graph))).program
    nodes, late = fused.graph.nodes, 0
    for i, node in enumerate(nodes):
        if node.op == WAIT:
            reader = next((k for k in range(i + 1, len(nodes)) if node.outputs[0] in nodes[k].inputs), i + 1)
            assert all(n.op == WAIT for n in nodes[i + 1 : reader]), node.name
            begun = next(k for k in range(i) if node.inputs[0] in nodes[k].outputs)
            late += any(is_kernel(n.op) for n in nodes[begun:i]) and any(n.op == "autopar.linear_input_grad" for n in nodes[begun:i]) and "linear_weight_grad" in nodes[reader].op
    assert late >= 2  # an input that a kernel and a matmul run beside


def test_the_plan_prices_what_hides_and_nothing_that_blocks():
    plan, program, _ = planned()
    phases = {name: node.phase for node in plan.nodes for name in node.outputs}
    kinds = {tensor.name: tensor.kind.value for tensor in plan.tensors}
    early = 0
    for row in plan.comms:
        if kinds.get(row.value, "activation") == "activation":
            hides = row.kind == "all_gather" and row.phase is Phase.BACKWARD and phases.get(row.value) is not Phase.BACKWARD
            assert (row.hidden_s > 0) == hides, row
            early += hides
    assert early >= 2 * 3


def test_without_room_nothing_is_gathered_early():
    _, program, overlapped = planned()
    more = extra_bytes(program, overlapped)
    assert more > 0
    tight, _ = overlap_within(program, phase_sections(program.graph), more - 1)
    assert extra_bytes(program, tight) < more
    none, _ = overlap_program(program, phase_sections(program.graph), prefetches=False)
    saved = {node.name for node in overlapped.graph.nodes if node.op == "comm.start_all_gather" and node.phase is Phase.BACKWARD}
    assert saved and not saved.intersection(node.name for node in none.graph.nodes)


@pytest.mark.parametrize("fix", [SEQUENCE, "tp=2,dp=2,zero=3,sequence_parallel=1", "tp=2,pp=2,sequence_parallel=1,microbatches=2", "tp=4,sequence_parallel=1,recompute=full", "tp=2,dp=2,sequence_parallel=1,microbatches=2"])
def test_its_numbers_are_those_of_plain_pytorch(fix):
    report = verify_workload(small(), "1x4xH100-80GB", autopar.Options(constraints=parse_fix(fix), time_limit_s=30.0))
    assert not report.failures, report
