"""Memory in steady state: a step holds what the plan says, the hundredth no more than the fourth, and what collectives hold does not grow with the model."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.demo import model as demo  # noqa: E402
from autopar.graph import overlap, overlap_memory  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime.peak import measure_cpu_peak  # noqa: E402
from tests.codegen import test_overlap as chain  # noqa: E402

pytestmark = pytest.mark.torch


class Clipped(torch.optim.AdamW):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, Clipped, functools.partial(torch.optim.SGD, momentum=0.9)])
def test_a_step_holds_what_the_plan_says_however_many_there_were(optimizer):
    workload = demo.build(batch=4, seq=64, vocab=96, layers=3, hidden=64, heads=2)
    step = autopar.compile(
        workload.model, "cpu:1", example_inputs=workload.example_inputs, example_targets=workload.example_targets, loss=workload.loss,
        optimizer=functools.partial(optimizer, lr=1e-3), options=Options(price=False),
    )  # fmt: skip
    batch = (*workload.example_inputs, *workload.example_targets)
    for _ in range(2):
        step(*batch)
    once, many = (measure_cpu_peak(lambda count=count: [float(step(*batch)) for _ in range(count)])[1] for count in (1, 5))
    held = sum(step.num_bytes().values()) + sum(x.numel() * x.element_size() for x in batch)
    assert many <= once + 4096
    assert held + many <= 1.02 * step.plan.cost.peak_bytes[0]


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_what_collectives_hold_does_not_grow_with_the_model(zero, monkeypatch):
    """Buckets of two weights: of 6 blocks and of 12 the same is under way at most."""
    for module in (overlap, overlap_memory):
        monkeypatch.setattr(module, "BUCKET_BYTES", 2 * chain.WIDTH * chain.WIDTH * 8)
    found = []
    for blocks in (6, 12):
        monkeypatch.setattr(chain, "BLOCKS", blocks)
        program = chain.zero_program(zero, chain.chain_graph(blocks, width=chain.WIDTH))
        found.append(overlap_memory.extra_bytes(program, chain.overlapped(program)))
    assert found[0] == found[1], found
