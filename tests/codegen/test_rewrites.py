"""States that the forward pass rewrites: momentum encoders, a codebook, states of blocks; text, numbers and memory."""

import functools
import re

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar import Options, Workload  # noqa: E402
from autopar.api import compile_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402
from .test_turns import check_memory  # noqa: E402

pytestmark = pytest.mark.torch
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class Block(nn.Module):
    """Its own states are rewritten, and read by its backward pass."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.fast = nn.LayerNorm(width), nn.Parameter(torch.randn(width, width) / 4)
        self.register_buffer("slow", torch.randn(width, width) / 4)

    def forward(self, x):
        with torch.no_grad():
            self.slow.mul_(0.9).add_(self.fast, alpha=0.1)
        return x + F.gelu(self.norm(x) @ self.slow) @ self.fast


class Momentum(nn.Module):
    """Two encoders, of which one follows the other; numbers of its own that are read before and after they change."""

    def __init__(self, width, blocks=0, lerp=False):
        super().__init__()
        self.fast, self.slow = (nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(3)) for _ in range(2))
        self.slow.load_state_dict(self.fast.state_dict())
        self.slow.requires_grad_(False)
        self.blocks, self.lerp = nn.ModuleList(Block(width) for _ in range(blocks)), lerp
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x, y):
        with torch.no_grad():
            for new, old in zip(self.fast.parameters(), self.slow.parameters()):
                old.lerp_(new, 0.01) if self.lerp else old.mul_(0.99).add_(new, alpha=0.01)
            y = y + self.shift
            self.shift.mul_(0.5)
            for layer in self.slow:
                y = layer(y)
        for layer in (*self.fast, *self.blocks):
            x = layer(x)
        return x + self.shift, y


class Codes(nn.Module):
    """A codebook of running sums (VQ-VAE)."""

    def __init__(self, width=8, codes=6):
        super().__init__()
        self.enter = nn.Linear(width, width)
        self.register_buffer("code", torch.randn(codes, width))
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("sum", torch.randn(codes, width))

    def forward(self, x, y):
        x = self.enter(x)
        chosen = (x.pow(2).sum(1, keepdim=True) - 2 * x @ self.code.T + self.code.pow(2).sum(1)).argmin(1)
        one = F.one_hot(chosen, len(self.code)).to(x.dtype)
        found = self.code[chosen]
        with torch.no_grad():
            self.count.mul_(0.9).add_(one.sum(0), alpha=0.1)
            self.sum.mul_(0.9).add_(one.T @ x, alpha=0.1)
            self.code.copy_(self.sum / self.count[:, None])
        return x, found + y


def loss_of(found):
    return F.mse_loss(*found)


def momentum(width=8, batch=8, **options):
    torch.manual_seed(0)
    return Workload(Momentum(width, **options), (torch.randn(batch, width), torch.randn(batch, width)), (), loss_of, SGD)


def codes():
    torch.manual_seed(0)
    return Workload(Codes(), (torch.randn(8, 8), torch.randn(8, 8)), (), loss_of, SGD)


def text_of(workload):
    return compile_workload(workload, "cpu:1", Options(price=False)).files["program.py"]


@pytest.mark.parametrize("options", [{}, {"lerp": True}, {"blocks": 3}], ids=str)
def test_no_second_encoder_is_made(options):
    text = text_of(momentum(**options))
    assert ".copy_(" not in text and "kernels.update_shift(" in text
    assert 'weight=state["slow.0.0.weight"]' in text
    assert ('weight=state[f"blocks.{i}.slow"]' in text) == ("blocks" in options)


def test_the_codes_and_their_sums_are_one_kernel():
    assert re.findall(r"kernels\.update_\w*", text_of(codes()).partition("def backward")[0]) == ["kernels.update_sum_2_code"]


FIXES = ["dp=2", "dp=2,zero=3", "tp=2", "microbatches=2", "dp=2,recompute=full", "dp=2,zero=3,microbatches=2,recompute=full", "pp=2,microbatches=2"]


@pytest.mark.parametrize(
    "make, fix",
    [*(pytest.param(functools.partial(momentum, blocks=3), fix, id=f"momentum {fix}") for fix in FIXES), *(pytest.param(codes, fix, id=f"codes {fix}") for fix in FIXES[:-1])],
)
def test_numbers_are_those_of_plain_pytorch(make, fix):
    report = verify_workload(make(), "cpu:2", Options(constraints=parse_fix(fix), price=False))
    assert not report.failures, describe_failure(report)


@pytest.mark.parametrize("turns", [1, 2])
def test_memory_is_as_predicted(turns):
    check_memory(momentum(width=96, batch=1024, blocks=2), turns)


class Differing(torch.optim.Optimizer):
    """Goes by the difference to the gradient before, which it keeps (Adan)."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["before"] = torch.zeros_like(p)
                p.add_(p.grad - state["before"], alpha=-0.1)
                state["before"].copy_(p.grad)


def test_what_is_kept_of_a_gradient_is_copied_once():
    torch.manual_seed(0)
    workload = Workload(nn.Linear(8, 8), (torch.randn(8, 8),), (torch.randn(8, 8),), F.mse_loss, Differing)
    text = compile_workload(workload, "cpu:1", Options(price=False)).files["kernels.py"]
    assert "    before.copy_(grad)\n" in text and "torch.clone(" not in text
    report = verify_workload(workload, "cpu:2", Options(constraints=parse_fix("dp=2,zero=3"), price=False))
    assert not report.failures, describe_failure(report)
