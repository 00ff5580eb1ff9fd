"""Kernels for tests: the distinct ones of small models, and of one-op modules with odd sizes."""

from __future__ import annotations

import functools
import random

import torch
from torch.nn import functional as F

from autopar import Workload
from autopar.demo.model import Gpt, token_loss
from autopar.graph.case import build_case
from autopar.graph.fuse import fuse_program
from autopar.graph.partition import partition
from autopar.graph.random_plans import Assigner, plain_mesh
from autopar.graph.sections import phase_sections
from autopar.trace import trace_step

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)


def kernels_of(workload, precision="fp32"):
    """The distinct kernels of a step on one rank."""
    case = build_case(trace_step(workload, precision).graph)
    assignment = Assigner(case.graph, case.sites, case.signatures, plain_mesh(())).draw(random.Random(0))
    program = partition(case.graph, case.sites, case.signatures, case.cuts, assignment)
    return fuse_program(program, phase_sections(program.graph)).kernels


class Chain(torch.nn.Module):
    """Functions one after the other, with a parameter so that there is a step."""

    def __init__(self, function, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))
        self.function = function

    def forward(self, x):
        return self.function(x * self.scale) * self.scale


def _of(function, *shape):
    torch.manual_seed(0)
    return Workload(Chain(function, shape[-1]), (torch.randn(*shape),), (), lambda y: (y * y).sum(), ADAMW)


class Rms(torch.nn.Module):
    """A residual, an RMS norm, a gated activation."""

    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.RMSNorm(width, eps=1e-6)
        self.up = torch.nn.Linear(width, 2 * width)

    def forward(self, x):
        gate, up = self.up(self.norm(x + torch.tanh(x))).chunk(2, -1)
        return F.silu(gate) * up


class Rotary(torch.nn.Module):
    """Rotary embeddings as Llama writes them: halves that change places."""

    def __init__(self, heads, width):
        super().__init__()
        self.heads, self.width = heads, width
        self.qk = torch.nn.Linear(heads * width, heads * width)

    def forward(self, x):
        batch, seq, _ = x.shape
        q = self.qk(x).view(batch, seq, self.heads, self.width).transpose(1, 2)
        angle = torch.arange(seq, dtype=x.dtype)[:, None] * torch.arange(self.width, dtype=x.dtype) / self.width
        a, b = q.chunk(2, -1)
        return q * angle.cos() + torch.cat([-b, a], -1) * angle.sin()


class Dropout(torch.nn.Module):
    """Bias, activation, dropout, residual, norm."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(width, width), torch.nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + F.dropout(F.gelu(self.linear(x), approximate="tanh"), 0.3, True))


def _step(module, *shape, **options):
    torch.manual_seed(0)
    return Workload(module, (torch.randn(*shape),), (), lambda y: (y * y).mean(), options.get("optimizer", ADAMW))


def _tokens(vocab):
    torch.manual_seed(0)
    ids = torch.randint(0, vocab, (3, 8))
    targets = ids.clone()
    targets[0, :3] = -100
    return Workload(Gpt(vocab, 8, 1, 24, 3), (ids,), (targets,), token_loss, ADAMW)


CASES = {
    "gpt": lambda: _tokens(50),
    "gpt with a wide vocabulary": lambda: _tokens(9001),
    "rms norm": lambda: _step(Rms(37), 5, 3, 37),
    "rotary": lambda: _step(Rotary(3, 10), 2, 7, 30),
    "dropout": lambda: _step(Dropout(21), 4, 5, 21),
    "softmax": lambda: _of(lambda x: torch.softmax(x, -1) + 1, 3, 5, 77),
    "log softmax": lambda: _of(lambda x: torch.log_softmax(x.sin(), -1).exp(), 6, 129),
    "wide softmax": lambda: _of(lambda x: torch.softmax(x * 2, -1) + x, 3, 9001),
    "wide norm": lambda: _of(lambda x: F.layer_norm(x * 2, (9001,)) + x, 2, 9001),
    "row sums": lambda: _of(lambda x: x / (x.abs().sum(-1, keepdim=True) + 1) - x.amax(-1, keepdim=True), 4, 33),
    "clamp and where": lambda: _of(lambda x: torch.where(x > 0.3, x.clamp(-1, 1), x.square()) + x.sigmoid().log(), 7, 11),
    "momentum": lambda: _step(torch.nn.Linear(5, 3), 4, 5, optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "batch norm": lambda: _step(torch.nn.Sequential(torch.nn.Conv2d(2, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU()), 4, 2, 6, 6),
    "one row": lambda: _of(lambda x: torch.softmax(x, -1) * x, 1, 19),
}


def draw_inputs(kernel, seed=0, strided=False):
    """Random arguments of a kernel, with negatives; positive where a name says that it is a spread or a count."""
    generator = torch.Generator().manual_seed(seed)
    values = {v.name: v for v in kernel.graph.values}
    written = {kernel.graph.inputs[i] for _, i in kernel.into}
    found = {}
    for name in kernel.graph.inputs:
        value = values[name]
        dtype = getattr(torch, value.dtype)
        if dtype == torch.bool:
            x = torch.rand(value.shape, generator=generator) > 0.5
        elif dtype.is_floating_point:
            x = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            if name.startswith(("exp_avg_sq", "step", "mul", "sum_exp", "square_avg", "sum")) or value.shape and value.shape[-1:] == (1,):
                x = x.abs() + 0.5
            x = x.to(dtype)
        elif name.startswith("arange"):
            x = torch.arange(value.shape[0])
        else:
            x = torch.randint(0, 5, value.shape, generator=generator).to(dtype)
        if strided and x.dim() > 1 and name not in written:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        found[name] = x
    return found
