"""What an update reads before and after a norm of all gradients is made twice, where it is cheap: nothing as large as the gradients is held between them."""

from __future__ import annotations

import functools
import re

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import autopar  # noqa: E402
from autopar.api import compile_workload  # noqa: E402
from autopar.graph.liveness import bytes_over_time  # noqa: E402
from autopar.graph.node import Phase, packet_of  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402

pytestmark = pytest.mark.torch


class Changed(torch.optim.AdamW):
    """Clipped by one norm after each gradient was changed in place."""

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        self.change(params)
        nn.utils.clip_grad_norm_(params, 0.05)
        return super().step(closure)

    def change(self, params):
        pass


class Unscaled(Changed):
    def change(self, params):
        for p in params:
            p.grad.mul_(1 / 16)


class AllUnscaled(Changed):
    def change(self, params):
        torch._foreach_mul_([p.grad for p in params], 1 / 16)


class Decayed(Changed):
    def change(self, params):
        for p in params:
            p.grad.add_(p, alpha=0.01)


class Limited(Changed):
    def change(self, params):
        for p in params:
            p.grad.mul_(1 / 16).clamp_(-0.001, 0.001)


class Twice(Unscaled):
    def change(self, params):
        super().change(params)
        nn.utils.clip_grad_norm_(params, 0.1)


class Scaled(Changed):
    """By a scale that is a state."""

    def __init__(self, params, **words):
        super().__init__(params, **words)
        self.scale = torch.tensor(16.0)

    def change(self, params):
        for p in params:
            p.grad.mul_(1 / self.scale)
        self.scale.mul_(1.5)


class Skipped(torch.optim.Optimizer):
    """By a scale that is a state, without a norm: no step where a gradient is not finite."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.scale = torch.tensor(16.0)

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        for p in params:
            p.grad.mul_(1 / self.scale)
        finite = torch.stack([torch.isfinite(p.grad).all() for p in params]).all()
        for p in params:
            state = self.state[p]
            state.setdefault("m", torch.zeros_like(p)).mul_(0.9).add_(torch.where(finite, p.grad, 0.0))
            p.sub_(torch.where(finite, 0.1 * state["m"], 0.0))
        self.scale.copy_(torch.where(finite, self.scale * 2, self.scale * 0.5))


KINDS = [Unscaled, AllUnscaled, Decayed, Limited, Twice, Scaled, Skipped]


def _workload(optimizer) -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.GELU())), nn.Linear(16, 6))
    return Workload(model, (torch.randn(8, 16),), (torch.randn(8, 6),), nn.functional.mse_loss, functools.partial(optimizer, lr=0.01))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", KINDS)
def test_between_the_norm_and_the_step_only_numbers_are_held(optimizer, precision):
    files = compile_workload(_workload(optimizer), "cpu:1", Options(price=False, precision=precision), cache_path=None).files
    assert set(re.findall(r'grads\.update\(zip\(\[f"\{name\}~(\w+)"', files["program.py"])) <= {"sum", "sum_2", "all"}, files["program.py"]
    for text in re.findall(r"^def (?!update)\w+_kernel\(parts, table.*?\n\n\n", files["kernels.py"], re.M | re.S):
        assert "mask=(row < SIZE)" not in "".join(line for line in text.splitlines() if "tl.store" in line), text


@pytest.mark.parametrize("words", [None, {"dp": 2, "zero": 1}, {"dp": 2, "zero": 3}, {"pp": 2, "microbatches": 2}])
@pytest.mark.parametrize("optimizer", KINDS)
def test_numbers_are_torchs(optimizer, words):
    options = Options(price=False, **({"constraints": autopar.constrain(**words)} if words else {}))
    report = verify_workload(_workload(optimizer), "cpu:2" if words else "cpu:1", options)
    assert not describe_failure(report), describe_failure(report)


@pytest.mark.parametrize("optimizer", [Unscaled, AllUnscaled, Decayed, Scaled])
def test_the_plan_counts_no_copy_of_all_gradients(optimizer):
    """As much as clipping alone, but for a few numbers."""
    plain, changed = (max(bytes_over_time(trace_step(_workload(kind)).graph)) for kind in (Changed, optimizer))
    assert changed <= plain + 64


def test_a_gradient_that_is_compared_or_multiplied_later_is_kept():
    """A copy would be rounded elsewhere, or be written all the same."""

    class Largest(Changed):
        def step(self, closure=None):
            params = [p for group in self.param_groups for p in group["params"]]
            with torch.no_grad():
                for p in params:
                    p.grad.mul_(1 / 16)
                most = torch.stack([p.grad.abs().amax() for p in params]).amax()
                for p in params:
                    step = p.grad @ p.grad.T if p.dim() > 1 and p.shape[0] == p.shape[1] else torch.where(p.grad == most, 0.0, p.grad)
                    p.sub_(step / (most + 1) if step.shape == p.shape else p.grad)

    nodes = [n for n in trace_step(_workload(Largest)).graph.nodes if n.phase is Phase.UPDATE]
    unscaled = [n for n in nodes if packet_of(n.op) == "aten.mul" and ("other", 1 / 16) in n.args]
    assert len(unscaled) == 8, unscaled


def test_a_state_that_was_rewritten_is_not_read_again():
    """The momentum of which the norm is made is new when the step reads it; what was made of the old one is kept."""

    class Early(Skipped):
        @torch.no_grad()
        def step(self, closure=None):
            params = [p for group in self.param_groups for p in group["params"]]
            towards = []
            for p in params:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                towards.append(m * 0.5 + p.grad)
                m.mul_(0.9).add_(p.grad)
            norm = torch.stack([t.square().sum() for t in towards]).sum().sqrt()
            for p, t in zip(params, towards):
                p.sub_(t / (norm + 1))

    graph = trace_step(_workload(Early)).graph
    halved = [n for n in graph.nodes if n.phase is Phase.UPDATE and ("other", 0.5) in n.args]
    assert len(halved) == 8, halved
    report = verify_workload(_workload(Early), "cpu:1", Options(price=False))
    assert not describe_failure(report), describe_failure(report)
