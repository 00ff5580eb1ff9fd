"""Memory in steady state: a step holds what the plan says, the hundredth no more than the fourth, and what collectives hold does not grow with the model."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.demo import model as demo  # noqa: E402
from autopar.graph import overlap, overlap_memory, update_lots  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime.peak import measure_cpu_peak  # noqa: E402
from tests.codegen import test_overlap as chain  # noqa: E402

pytestmark = pytest.mark.torch


class Clipped(torch.optim.AdamW):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


@pytest.mark.parametrize("optimizer", [
    torch.optim.AdamW, Clipped, functools.partial(torch.optim.SGD, momentum=0.9), torch.optim.Adagrad, torch.optim.Adadelta,
    functools.partial(torch.optim.RMSprop, momentum=0.9, centered=True), torch.optim.NAdam,
])  # fmt: skip
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


class Pooled(torch.nn.Module):
    """Blocks whose last one leaves a sequence of which the head reads one place, as pictures are classified: what others leave gradients read again, what it leaves nobody does."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        block = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(block, num_blocks, enable_nested_tensor=False)
        self.head = torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.blocks(x)[:, 0])


@pytest.mark.parametrize("num_blocks", [2, 3])
def test_what_the_last_block_leaves_goes_when_the_plan_says(num_blocks):
    x, y = torch.randn(64, 128, 32), torch.randint(0, 4, (64,))
    step = autopar.compile(
        Pooled(num_blocks), "cpu:1", example_inputs=(x,), example_targets=(y,), loss=torch.nn.functional.cross_entropy, optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        options=Options(price=False, constraints=parse_fix("microbatches=1,recompute=none")),
    )  # fmt: skip
    step(x, y)
    held = sum(step.num_bytes().values()) + x.numel() * 4 + y.numel() * 8
    peak = held + measure_cpu_peak(lambda: step(x, y))[1]
    assert 0.98 * peak <= step.plan.cost.peak_bytes[0] <= 1.02 * peak


def test_a_step_does_not_keep_the_model_that_it_was_made_of():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    kept = [weakref.ref(t) for t in (*model.parameters(), *model.buffers())]
    step = autopar.compile(
        model, "cpu:1", example_inputs=(torch.randn(4, 4),), example_targets=(torch.randn(4, 2),), loss=torch.nn.functional.mse_loss,
        optimizer=functools.partial(torch.optim.SGD, lr=0.1), options=Options(price=False),
    )  # fmt: skip
    wanted = {name: t.clone() for name, t in model.state_dict().items()}
    del model
    gc.collect()
    assert not any(ref() is not None for ref in kept)
    assert all(torch.equal(t, wanted[name]) for name, t in step.state_dict().items())


@pytest.mark.parametrize("optimizer", [torch.optim.Adagrad, functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True), torch.optim.RMSprop])
def test_an_update_whatever_it_is_holds_nothing_beside_its_states(optimizer):
    """Of a table that is nearly all of the model: a step that made one more of its size, or a plan that counted one, would be a fifth beside the other."""
    model = torch.nn.Sequential(torch.nn.Embedding(50_000, 32), torch.nn.Linear(32, 2))
    step = autopar.compile(
        model, "cpu:1", example_inputs=(torch.randint(0, 50_000, (8,)),), example_targets=(torch.randint(0, 2, (8,)),), loss=torch.nn.functional.cross_entropy,
        optimizer=functools.partial(optimizer, lr=1e-3), options=Options(price=False),
    )  # fmt: skip
    batch = torch.randint(0, 50_000, (8,)), torch.randint(0, 2, (8,))
    step(*batch)
    held = sum(step.num_bytes().values())
    peak = held + measure_cpu_peak(lambda: step(*batch))[1]
    assert 0.95 * peak <= step.plan.cost.peak_bytes[0] <= 1.02 * peak


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_what_collectives_hold_does_not_grow_with_the_model(zero, monkeypatch):
    """Buckets of two weights: of 6 blocks and of 12 the same is under way at most."""
    for module in (overlap, update_lots):
        monkeypatch.setattr(module, "BUCKET_BYTES", 2 * chain.WIDTH * chain.WIDTH * 8)
    found = []
    for blocks in (6, 12):
        monkeypatch.setattr(chain, "BLOCKS", blocks)
        program = chain.zero_program(zero, chain.chain_graph(blocks, width=chain.WIDTH))
        found.append(overlap_memory.extra_bytes(program, chain.overlapped(program)))
    assert found[0] == found[1], found
