"""`recompute=full` holds what enters each block and nothing else; `recompute=selective` runs attention cores again and nothing else."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import autopar  # noqa: E402
from autopar import Workload  # noqa: E402
from autopar.api import plan_workload  # noqa: E402
from autopar.cluster import parse_cluster  # noqa: E402
from autopar.constraints import constrain, parse_fix  # noqa: E402
from autopar.cost.estimate import estimate_program  # noqa: E402
from autopar.cost.memory import estimate_memory, list_lives  # noqa: E402
from autopar.cost.meshes import list_meshes  # noqa: E402
from autopar.cost.model import build_cost_model  # noqa: E402
from autopar.cost.prices import build_prices  # noqa: E402
from autopar.errors import ConstraintError  # noqa: E402
from autopar.graph.attention_core import list_core, list_selective  # noqa: E402
from autopar.graph.case import build_case, case_roles, copy_case, decided_case, split_case  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.partition import assigned_strategies, partition  # noqa: E402
from autopar.graph.recompute import list_recomputable  # noqa: E402
from autopar.solver.build import build_problem  # noqa: E402
from autopar.solver.decide import Ask, decide  # noqa: E402
from autopar.solver.judge import evaluate_seconds, held_bytes  # noqa: E402
from autopar.solver.obeyed import check_obeyed  # noqa: E402
from autopar.solver.one_mesh import build_assignment, solve_mesh  # noqa: E402
from autopar.solver.steer import Steer  # noqa: E402
from autopar.trace import trace_step  # noqa: E402

pytestmark = pytest.mark.torch
BATCH, TOKENS, WIDTH, HEADS, TURNS = 2, 16, 32, 4, 2
GPU, CPU = build_cost_model(parse_cluster("1x1xA100-80GB")), build_cost_model(parse_cluster("cpu:2"))
ENTERS = BATCH * TOKENS * WIDTH * 2  # bytes of what enters a block, in a turn


class Layer(nn.Module):
    """As Megatron-LM's, with dropouts after the attention and at the end."""

    def __init__(self):
        super().__init__()
        self.n1, self.qkv, self.out, self.d1 = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)
        self.n2, self.up, self.down, self.d2 = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.dropout(F.softmax(q @ k.transpose(-1, -2) * 0.5, -1), 0.1) @ v
        x = x + self.d1(self.out(y.transpose(1, 2).reshape(b, s, w)))
        return x + self.d2(self.down(F.gelu(self.up(self.n2(x)))))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.h = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for layer in self.h:
            x = layer(x)
        return x


@cache
def case_of(model=Stack, precision="bf16"):
    batch = torch.randn(TURNS * BATCH, TOKENS, WIDTH)
    return build_case(trace_step(Workload(model(), (batch,), (), lambda y: y.float().sum(), torch.optim.SGD), precision).graph)


def decided(fix, case=None):
    case = case or case_of()
    answer = decide(Ask(case, GPU, parse_fix(fix), 2**40, 60.0, 1, lambda line: None))
    return decided_case(answer.case, answer.assignment), answer.assignment


def held(case, assignment):
    """Bytes that the middle block leaves for the backward pass."""
    program = partition(case.graph, case.sites, case.signatures, case.cuts, assignment)
    nodes = program.graph.nodes
    turn = next(i for i, node in enumerate(nodes) if node.phase is Phase.BACKWARD)
    lives = [life for life in list_lives(program) if 0 <= life.first < turn <= life.last]
    return sum(life.bytes for life in lives if f"{nodes[life.first].path}.".startswith("h.1."))


def test_full_holds_what_enters_each_block():
    """Its last dropout is run again, too: of it the forward pass needs one thing that the next block reads, the backward pass another."""
    case, assignment = decided(f"microbatches={TURNS},recompute=full")
    assert ENTERS <= held(case, assignment) <= ENTERS + 64  # beside it the counters of random numbers
    before = split_case(case_of(), TURNS)
    assert set(assignment.again) == set(list_recomputable(before.graph, before.signatures))


def test_selective_holds_all_but_the_core():
    """34 s b h, whatever the heads and the sequence are (arXiv:2205.05198 equation 6 without tensor parallelism)."""
    case, assignment = decided(f"microbatches={TURNS},recompute=selective")
    assert held(case, assignment) == pytest.approx(34 * BATCH * TOKENS * WIDTH, rel=0.01)
    before = split_case(case_of(), TURNS)
    assert set(assignment.again) == set(list_selective(before.graph, before.signatures)) < set(list_core(before.graph, before.signatures))
    kept, none = decided(f"microbatches={TURNS},recompute=none")
    assert none.again == ()
    scores = HEADS * BATCH * TOKENS * TOKENS * (2 + 2 + 1)  # softmax, its dropout, the mask of that
    assert held(kept, none) == pytest.approx(held(case, assignment) + scores, rel=0.01)


def test_selective_is_obeyed_or_told():
    case, assignment = decided(f"microbatches={TURNS},recompute=selective")
    before = split_case(case_of(), TURNS)

    def faults(said):
        steer = Steer(constrain(recompute="selective"), case_roles(before))
        return check_obeyed(before.graph, before.sites, before.signatures, before.cuts, said, steer)

    assert faults(assignment) == ()
    assert faults(replace(assignment, again=())) == ("recompute=selective: no node is run again",)
    other = next(name for name in list_recomputable(before.graph, before.signatures) if name.startswith("gelu"))
    assert faults(replace(assignment, again=(*assignment.again, other))) == (
        f"recompute=selective: {other} is run again, which is nothing that an attention core makes for itself",
    )


def test_a_model_without_attention_is_refused():
    case = case_of(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)))
    with pytest.raises(ConstraintError) as error:
        decided("recompute=selective", case)
    assert str(error.value) == (
        f"recompute=selective: {case.graph.name} has no attention core that may be run again: expected an attention op, or a softmax between two "
        "matmuls of which neither reads a weight; take recompute=full, or leave it out"
    )


@pytest.mark.parametrize("recompute", ["full", "selective", "free"])
@pytest.mark.parametrize("model", [GPU, CPU], ids=["gpu", "cpu"])
def test_the_prices_of_clusters_that_are_made_again_in_part(recompute, model):
    """Seconds and bytes are those of the program, where of nodes that decide together only some are run again."""
    case = case_of(precision="fp32")
    mesh = next(mesh for mesh in list_meshes(parse_cluster("cpu:2")) if len(mesh.axes) == 1)
    prices = build_prices(model, mesh, case.graph, case.sites, case.signatures)
    problem = build_problem(case.graph, case.sites, case.signatures, case.cuts, case.fold, mesh, prices, recompute=recompute)
    mixed = [k for k, c in enumerate(problem.choosers) if c.num_kept < len(c.seconds) and len({p.again for p in c.parts}) > 1]
    assert mixed or recompute == "selective"
    decisions = list(solve_mesh(problem, None, time_limit_s=60).decisions)
    for number, chooser in enumerate(problem.choosers):  # of `free`: whole clusters again where only some of them may be
        if recompute == "free" and number in mixed:
            decisions[number] = decisions[number] % chooser.num_kept + chooser.num_kept
    assignment = build_assignment(problem, tuple(decisions))
    assert assignment.again
    found = copy_case(case, assignment.again)
    program = partition(found.graph, found.sites, found.signatures, found.cuts, assignment)
    strategies = assigned_strategies(found.graph, found.sites, found.signatures, found.cuts, assignment)
    step_s = estimate_program(model, program, found.sites, found.signatures, strategies).step_s
    assert evaluate_seconds(problem, tuple(decisions)) == pytest.approx(step_s, rel=1e-9)
    judged, true = int(held_bytes(problem, tuple(decisions)).max()), estimate_memory(program, 0).peak_bytes
    assert judged == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize("fix", ["dp=2,pp=1", "pp=2,microbatches=2,schedule=1f1b"])
def test_what_is_run_again_is_in_no_mfu(fix, tmp_path):
    """In stages, too: a share of what the devices do at their peak in the dtype that is busiest."""

    def useful(again):
        workload = Workload(Stack(), (torch.randn(TURNS * BATCH, TOKENS, WIDTH),), (), lambda y: y.float().sum(), torch.optim.SGD)
        options = autopar.Options(constraints=parse_fix(f"{fix},recompute={again}"), precision="bf16")
        cost = plan_workload(workload, "1x2xA100-80GB", options, rows_path=tmp_path / "none.json", cache_path=None).plan.cost
        return cost.mfu * cost.step_s * 312e12 * 2, cost.flops

    (plain, run), (full, more) = useful("none"), useful("full")
    assert plain == pytest.approx(run, rel=1e-9) and full == pytest.approx(plain, rel=1e-9) and more > 1.1 * run
