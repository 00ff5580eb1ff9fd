"""Kernels for tests: the distinct ones of small models, and of one-op modules with odd sizes."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import torch
from torch.nn import functional as F

from autopar import Workload
from autopar.demo.model import Gpt, token_loss
from autopar.graph.case import build_case
from autopar.graph.fuse import fuse_program
from autopar.graph.partition import partition
from autopar.graph.random_plans import Assigner, plain_mesh
from autopar.graph.sections import phase_sections
from autopar.runtime.execute import run_graph
from autopar.trace import trace_step

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)


def fused_step(workload, precision="fp32"):
    """A step on one rank with its kernels."""
    case = build_case(trace_step(workload, precision).graph)
    assignment = Assigner(case.graph, case.sites, case.signatures, plain_mesh(())).draw(random.Random(0))
    program = partition(case.graph, case.sites, case.signatures, case.cuts, assignment)
    return fuse_program(program, phase_sections(program.graph))


def kernels_of(workload, precision="fp32"):
    """The distinct kernels of a step on one rank."""
    return fused_step(workload, precision).kernels


class Chain(torch.nn.Module):
    """Functions one after the other, with a parameter so that there is a step."""

    def __init__(self, function, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))
        self.function = function

    def forward(self, x):
        return self.function(x * self.scale) * self.scale


class Straight(Chain):
    """Functions of what comes in itself, so that kernels read its exact values; without gradients."""

    def forward(self, x):
        return self.function(x) * self.scale


def _straight(function, *shape):
    return Workload(Straight(function, shape[-1]), (torch.randn(*shape),), (), lambda y: (y * y).sum(), ADAMW)


def _of(function, *shape):
    torch.manual_seed(0)
    return Workload(Chain(function, shape[-1]), (torch.randn(*shape),), (), lambda y: (y * y).sum(), ADAMW)


def _wide(function, *shape):
    """With one scale for all columns: sums over rows of thousands of columns each take the interpreter a minute, and cases of two blocks of columns have them."""
    torch.manual_seed(0)
    return Workload(Chain(function, 1), (torch.randn(*shape),), (), lambda y: (y * y).sum(), ADAMW)


class Rms(torch.nn.Module):
    """A residual, an RMS norm, a gated activation."""

    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.RMSNorm(width, eps=1e-6)
        self.up = torch.nn.Linear(width, 2 * width)

    def forward(self, x):
        gate, up = self.up(self.norm(x + torch.tanh(x))).chunk(2, -1)
        return F.silu(gate) * up


class Widths(torch.nn.Module):
    """Sums along two widths of wide rows, one within the other; what is split and multiplied has no gradients, whose kernels take the interpreter long."""

    def __init__(self, whole, part):
        super().__init__()
        self.register_buffer("v", torch.rand(whole))
        self.register_buffer("w", torch.rand(part))
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        part = (x[:, : len(self.w)] * self.w).exp().sum(-1, keepdim=True)
        return self.scale * part / (x * self.v).exp().sum(-1, keepdim=True)


class Halves(torch.nn.Module):
    """Sums along rows of two widths, in one kernel."""

    def __init__(self, part):
        super().__init__()
        self.scale, self.part = torch.nn.Parameter(torch.ones(1)), part

    def forward(self, x):
        x = x * self.scale
        return torch.cat([torch.softmax(x, -1), F.layer_norm(x[:, : self.part], (self.part,))], 1)


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


def _normed_and_turned(x):
    """Queries as models with a norm of them turn them: halves of what the norm makes, each with a part of the other."""
    angle = torch.arange(x.shape[1])[:, None] * torch.arange(1, x.shape[2] // 2 + 1) / x.shape[2]
    a, b = F.rms_norm(x, x.shape[-1:]).chunk(2, -1)
    return torch.cat([a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()], -1)


class RotaryAttention(torch.nn.Module):
    """Attention over rotary embeddings, groups of heads with keys and values in common; an activation of a linear of so many columns."""

    def __init__(self, heads, groups, width, columns):
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, width
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(heads * width, n * width, bias=False) for n in (heads, groups, groups))
        self.out = torch.nn.Linear(heads * width, columns)

    def _rotate(self, x):
        angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.arange(self.width, dtype=x.dtype) / self.width
        a, b = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

    def _share(self, x):
        batch, _, seq, _ = x.shape
        wide = x[:, :, None].expand(batch, self.groups, self.heads // self.groups, seq, self.width)
        return x if self.groups == self.heads else wide.reshape(batch, self.heads, seq, self.width)

    def forward(self, x):
        batch, seq, _ = x.shape
        query, key, value = (linear(x).view(batch, seq, -1, self.width).transpose(1, 2) for linear in self.qkv)
        made = F.scaled_dot_product_attention(self._rotate(query), self._share(self._rotate(key)), self._share(value), is_causal=True)
        return self.out(made.transpose(1, 2).reshape(batch, seq, -1)).sigmoid()


class Dropout(torch.nn.Module):
    """Bias, activation, dropout, residual, norm."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(width, width), torch.nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + F.dropout(F.gelu(self.linear(x), approximate="tanh"), 0.3, True))


class Dropped(torch.nn.Module):
    """Attention with dropout and a mask of truths, some rows of which see nothing."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(12, 36)
        self.register_buffer("sees", (torch.arange(9)[:, None] * 3 + torch.arange(9)) % 4 > 0)
        self.sees[4] = False

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.sees, dropout_p=0.3)


class Picked(torch.nn.Module):
    """A number out of a concatenation, and a matrix."""

    def __init__(self):
        super().__init__()
        self.row, self.matrix = torch.nn.Parameter(torch.randn(1, 3)), torch.nn.Parameter(torch.randn(5, 7))

    def forward(self, x):
        return torch.cat([self.row.sum(1, keepdim=True), self.row], 1)[:, 2], x * self.matrix


class Beside(torch.nn.Module):
    """Random numbers in a part of each row, then a norm of the whole."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(6, 10), torch.nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(torch.cat([x * 3, F.dropout(self.linear(x) * 2, 0.3, True)], -1))


def _matrices_only(params):
    """Steps matrices alone, as Muon does: nobody reads the gradients of norms and biases."""
    return torch.optim.SGD([p for p in params if p.dim() > 1], lr=0.1)


class Norms(torch.nn.Module):
    """Two norms, dropout and a residual, of rows of which a program's registers do not hold everything. One weight for all columns: the interpreter takes a minute for each sum over rows of thousands of columns."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down, self.width, self.scale = torch.nn.Linear(4, width, bias=False), torch.nn.Linear(width, 3), (width,), torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = self.up(x)
        x = F.layer_norm(F.dropout(x, 0.3) + x.sin(), self.width) * self.scale
        return self.down(F.rms_norm(x, self.width, eps=1e-6))


def _step(module, *shape, **options):
    torch.manual_seed(0)
    return Workload(module, (torch.randn(*shape),), (), lambda y: (y * y).mean(), options.get("optimizer", ADAMW))


def _tokens(vocab):
    torch.manual_seed(0)
    ids = torch.randint(0, vocab, (3, 8))
    targets = ids.clone()
    targets[0, :3] = -100
    return Workload(Gpt(vocab, 8, 1, 24, 3), (ids,), (targets,), token_loss, ADAMW)


def _scores(classes, loss):
    """A loss of logits that are a model's scale times what comes in."""
    torch.manual_seed(0)
    targets = torch.tensor([3, 0, -100, classes - 1, 4])
    return Workload(Chain(torch.sin, 1), (torch.randn(5, classes),), (targets,), loss, ADAMW)


def _smoothed(y, targets):
    return F.cross_entropy(y, targets, label_smoothing=0.1)


def _smoothed_by_class(y, targets):
    """Two targets of one softmax, with a weight of each class for what all classes share, and logits that are held near zero."""
    log_p = F.log_softmax(y, -1)
    return F.nll_loss(log_p, targets) + F.nll_loss(log_p, targets.roll(1), reduction="sum") - (log_p * torch.linspace(0.5, 1, y.shape[-1])).sum(-1).mean() + y.logsumexp(-1).square().mean()


def _less_a_logit(y, targets):
    """A loss without log-probabilities, and one of the sums that it has."""
    total = y.logsumexp(-1)
    return ((total - y.gather(1, targets.clamp(min=0)[:, None])[:, 0]) * (targets >= 0)).mean() + 1e-2 * total.square().mean()


def _distilled(y, targets):
    """A target's log-probability, gathered, and a divergence from probabilities."""
    log_p = F.log_softmax(y, -1)
    wanted = torch.softmax(torch.arange(y.numel(), dtype=y.dtype).sin().view(y.shape), -1)
    return F.kl_div(log_p, wanted, reduction="batchmean") - log_p.gather(1, targets.clamp(min=0)[:, None]).mean()


class _Pooled(torch.nn.Module):
    """Means over the rows and over everything, whose gradients are numbers that all of them get."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 33))
        self.head = torch.nn.Linear(33, 3)

    def forward(self, x):
        x = torch.tanh(x * self.scale)
        return self.head(x.mean(1)), x.abs().mean() + (x - 0.3).abs().mean((0, 2)).square().sum()


def _bent(x):
    """Activations, one on the other."""
    first, x = x, F.hardswish(x * 3) + F.elu(x, 0.7) * F.leaky_relu(x, 0.1)
    x = F.softplus(x, 2.0, 3.0) - F.mish(x) + F.hardtanh(x * 0.5)
    return F.softshrink(x) + F.hardshrink(first, 0.2) + F.relu6(x) + torch.log1p(x.abs()) - torch.expm1(x * 0.01) + F.selu(x)


def _rounded(x):
    """Whole parts of what comes in, which has no slope, and quotients of positive and negative numbers."""
    y = x.detach() * 8
    low = torch.div(y, 3 - x.detach(), rounding_mode="floor") + torch.div(y, -0.7, rounding_mode="trunc") + torch.remainder(y, -1.7) + torch.fmod(y, 1.3)
    odd = ~(y > 0.5) | (torch.floor_divide(y, 2.0) == torch.trunc(y)) ^ torch.isfinite(y)
    whole = y.to(torch.int64)
    return torch.where(odd, x, x * 2) + y.round() + y.frac() + low + (torch.div(whole, 3, rounding_mode="floor") + torch.remainder(whole, -5)).to(x.dtype)


def _powers(x):
    size, whole = x.abs() + 0.1, torch.arange(x.shape[-1], dtype=x.dtype) % 7 - 3
    return torch.pow(size, x) + size.pow(1.7) + x.pow(5) + x.pow(-2) * 0 + torch.pow(x, whole).clamp(-3, 3) + size.log10() + size.exp2() + size.log2()


def _whole_powers(x):
    """Powers of whole numbers, which are not rounded: 3 ** 2 is 9, not 8."""
    return x * torch.pow(3, x.abs().clamp(max=4).int()).to(x.dtype) + torch.ldexp(x, x.abs().clamp(max=3).to(torch.int16))


class Modulated(torch.nn.Module):
    """A norm with a scale and a shift of each sample and a gate on its residual, as diffusion transformers have them: gradients are sums over the tokens of each."""

    def __init__(self, width):
        super().__init__()
        self.modulate, self.linear = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, x, c):
        scale, shift, gate = self.modulate(F.silu(c))[:, None].chunk(3, -1)
        return x + gate * self.linear(self.norm(x) * (1 + scale) + shift)


class AllModulated(torch.nn.Module):
    """Several, one after the other."""

    def __init__(self, width, count):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Modulated(width) for _ in range(count))

    def forward(self, x, c):
        for block in self.blocks:
            x = block(x, c)
        return x


def modulated(samples, tokens, width, count=2):
    torch.manual_seed(0)
    x, c = torch.randn(samples, tokens, width), torch.randn(samples, width)
    return Workload(AllModulated(width, count), (x, c), (torch.randn(x.shape),), F.mse_loss, ADAMW)


def _pieces(x):
    """Paddings, slices with steps and selections, forward and backward."""
    x = F.pad(x * 2, (2, -1, 0, 3), value=0.5)[1:, :, 1:] * 3
    return x + F.pad(x[:, ::2], (0, 0, 0, x.shape[1] - (x.shape[1] + 1) // 2)) + x[:, 2:3] * x.select(1, -1).unsqueeze(1) - F.pad(x[:, 1:4, ::3].sum(-1, keepdim=True), (0, 0, 1, x.shape[1] - 4))


def _middle(x):
    """Reductions along a dim with others behind it, and along the first."""
    x = torch.softmax(x * 2, 1) + torch.log_softmax(x, 1).exp() * x.amax(1, keepdim=True)
    return x / (x.square().sum(1, keepdim=True) + 1) - x.amax(0)


def _again(x):
    """Sums over rows and over everything that are read again, and numbers per row in other rows."""
    x = (x * 2 - x.sum(0)) / (x.abs().sum() + 1)
    return torch.softmax(x, -1) * x.sum(-1).sum(0) + x.tanh() * torch.softmax(x, 0)


def _rare(x):
    """Functions that have no Triton text, before, after and between what has one."""
    size = x.abs() + 1.5
    return torch.softmax((size * 0.3).i0(), -1) * x.sigmoid() + (x.mean(0, keepdim=True) * 0.2).erfinv() + torch.special.i0e(size.t()).t() * 0.1


def _angles(x):
    size = x.sigmoid() * 0.9 + 0.05
    bent = size.asin() + size.acos() * x.atan() + torch.atan2(x, size) + x.asinh() + (size + 1).acosh() + size.atanh() + size.logit() + F.celu(x, 0.7)
    return bent + torch.fmax(x, size) * torch.copysign(x, size - 0.5) + torch.logaddexp2(x, size) + x.sinc() + x.nan_to_num() * torch.where(torch.signbit(x), size, x)


def _diagonals(x):
    """Of a square of each sample the main diagonal and the one beside it."""
    y = x.sin()
    return y.diagonal(0, 1, 2).exp() + F.pad(y.diagonal(-1, 2, 1).tanh(), (0, 1))


def _masked(x):
    """Masks of positions, added and filled in, smaller than what they are for; by themselves, and before a norm and a sum over rows."""
    rows, cols = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])
    near, late = torch.where((cols - rows).abs() < 3, 0.5, -2.0), cols > rows
    alone = torch.cat([x, x * 2]).masked_fill(late, -1.5)
    return torch.softmax(x * 3 + near, -1) + (alone.cumsum(0) + torch.where(cols == rows, 1.5, 0.0)).masked_fill(~late & (rows > 1), 0.5)[: x.shape[0]]


class _Alike(torch.nn.Module):
    """Rows whose gradient is the same in all columns: of a sum of what a norm makes, beside a gradient of every element."""

    def __init__(self, width):
        super().__init__()
        self.scale, self.shift = torch.nn.Parameter(torch.randn(width)), torch.nn.Parameter(torch.randn(1))

    def forward(self, x):
        x = x * self.scale
        y = torch.nn.functional.instance_norm(x)
        return ((y + 1).sum() * self.shift).sin() + x.square().mean()


CASES = {
    "rows whose gradient is alike in all columns": lambda: Workload(_Alike(8), (torch.randn(7, 3, 8),), (), lambda y: y.sum(), torch.optim.SGD),
    "odd rows whose gradient is alike in all columns": lambda: Workload(_Alike(5), (torch.randn(7, 3, 5),), (), lambda y: y.sum(), torch.optim.SGD),
    "gpt": lambda: _tokens(50),
    "gpt with a wide vocabulary": lambda: _tokens(9001),
    "smoothed loss": lambda: _scores(77, _smoothed),
    "smoothed loss of a wide vocabulary": lambda: _scores(9001, _smoothed),
    "logsumexp less a logit": lambda: _scores(77, _less_a_logit),
    "logsumexp less a logit, wide": lambda: _scores(9001, _less_a_logit),
    "distilled loss": lambda: _scores(77, _distilled),
    "distilled loss of a wide vocabulary": lambda: _scores(9001, _distilled),
    "pooled rows": lambda: Workload(_Pooled(), (torch.randn(5, 7, 33),), (torch.randn(5, 3),), lambda y, t: (y[0] - t).abs().mean() + y[1], ADAMW),
    "smoothed loss by class": lambda: _scores(77, _smoothed_by_class),
    "log of a sum of exponentials": lambda: _of(lambda x: x.logsumexp(-1, keepdim=True) + x.logsumexp((0, 2), keepdim=True) * x.logsumexp(1, keepdim=True), 3, 5, 7),
    "wide log of a sum of exponentials": lambda: _wide(lambda x: x.logsumexp(-1, keepdim=True) * x, 3, 9001),
    "rms norm": lambda: _step(Rms(37), 5, 3, 37),
    "rotary": lambda: _step(Rotary(3, 10), 2, 7, 30),
    "a norm and a rotary embedding": lambda: _of(_normed_and_turned, 3, 5, 10),
    "dropout": lambda: _step(Dropout(21), 4, 5, 21),
    "softmax": lambda: _of(lambda x: torch.softmax(x, -1) + 1, 3, 5, 77),
    "rows that see nothing": lambda: _of(lambda x: torch.ops.aten._safe_softmax(torch.where((torch.arange(5) == 2)[:, None], float("-inf"), x), -1) * 2, 3, 5, 77),
    "attention with dropout": lambda: _step(Dropped(), 2, 9, 12),
    "wide results beside narrow rows": lambda: _of(lambda x: (x.unsqueeze(-1) * x.unsqueeze(-2)).tanh() * x.amax(-1, keepdim=True).unsqueeze(-1), 6, 33),
    "a number of a concatenation": lambda: Workload(Picked(), (torch.randn(5, 7),), (), lambda y: y[1].amax() * 0.1 + (y[0] * torch.cos(torch.arange(1) * 0.7)).mean() + y[1].sin().sum(), ADAMW),
    "log softmax": lambda: _of(lambda x: torch.log_softmax(x.sin(), -1).exp(), 6, 129),
    "wide softmax": lambda: _wide(lambda x: torch.softmax(x * 2, -1) + x, 3, 9001),
    "wide norm": lambda: _wide(lambda x: F.layer_norm(x * 2, (9001,)) + x, 2, 9001),
    "norms of wide rows": lambda: _step(Norms(5003), 3, 4),
    "halves of wide rows": lambda: _step(Halves(4099), 3, 5003),
    "softmax of wide rows": lambda: _wide(lambda x: torch.softmax(x * 2, -1) + F.layer_norm(x.sin(), (5003,)), 3, 5003),
    "row sums": lambda: _of(lambda x: x / (x.abs().sum(-1, keepdim=True) + 1) - x.amax(-1, keepdim=True), 4, 33),
    "clamp and where": lambda: _of(lambda x: torch.where(x > 0.3, x.clamp(-1, 1), x.square()) + x.sigmoid().log(), 7, 11),
    "momentum": lambda: _step(torch.nn.Linear(5, 3), 4, 5, optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "batch norm": lambda: _step(torch.nn.Sequential(torch.nn.Conv2d(2, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU()), 4, 2, 6, 6),
    "activations": lambda: _of(_bent, 6, 13),
    "rounding": lambda: _straight(_rounded, 5, 19),
    "powers": lambda: _of(_powers, 3, 23),
    "whole powers": lambda: _of(_whole_powers, 3, 23),
    "exact powers": lambda: _straight(_powers, 3, 23),
    "exact activations": lambda: _straight(_bent, 3, 23),
    "hard sigmoid": lambda: _of(F.hardsigmoid, 3, 11),
    "log sigmoid": lambda: _of(F.logsigmoid, 3, 11),
    "pieces": lambda: _of(_pieces, 2, 5, 7),
    "middle": lambda: _of(_middle, 3, 5, 7),
    "read again": lambda: _of(_again, 9, 9),
    "even rows": lambda: _step(Dropout(512), 4, 8, 512),
    "modulated norms": lambda: modulated(2, 128, 128),
    "modulated norms of odd widths": lambda: modulated(3, 256, 100),
    "even blocks": lambda: _of(lambda x: x.sin() * 2, 64, 64),
    "even walks": lambda: _wide(lambda x: torch.softmax(x * 2, -1) + x.amax(-1, keepdim=True), 4, 9216),
    "two widths": lambda: _step(Widths(10000, 9001), 7, 10000),
    "frozen norm": lambda: _step(torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.LayerNorm(12), torch.nn.Linear(12, 5)), 7, 6, optimizer=_matrices_only),
    "frozen rms norm": lambda: _step(torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.RMSNorm(12, eps=1e-6), torch.nn.Linear(12, 5)), 7, 6, optimizer=_matrices_only),
    "dropout beside": lambda: _step(Beside(), 5, 6),
    "one row of a norm": lambda: _step(Dropout(19), 1, 19),
    "one wide row": lambda: _wide(lambda x: F.layer_norm(x * 2, (9001,)) + x, 1, 9001),
    "rare functions": lambda: _of(_rare, 6, 11),
    "angles": lambda: _of(_angles, 4, 17),
    "loss of one token": lambda: Workload(Chain(torch.sin, 1), (torch.randn(1, 17),), (torch.tensor([3]),), F.cross_entropy, ADAMW),
    "loss without a batch": lambda: Workload(Chain(torch.sin, 1), (torch.randn(17),), (torch.tensor(3),), F.cross_entropy, ADAMW),
    "log of the sum of everything": lambda: Workload(torch.nn.Linear(17, 10), (torch.randn(1, 17),), (), lambda y: y.tanh().mul(2).flatten().logsumexp(0), ADAMW),
    "many pieces": lambda: _straight(lambda x: torch.cat([x.sin()] * 220), 2, 3),
    "steps over one": lambda: _of(lambda x: x * 2 + x[:, ::3].exp(), 4, 1),
    "masks": lambda: _of(_masked, 2, 3, 5, 7),
    "masks of what comes in": lambda: _straight(_masked, 2, 3, 5, 7),
    "diagonals": lambda: _straight(_diagonals, 3, 4, 4),
    "hypotenuses": lambda: _of(lambda x: torch.hypot(x, x.sum()) + torch.hypot(x.square().sum(), x), 3, 5),
    "one column": lambda: _of(lambda x: F.layer_norm(x * 2, (1,)) + x, 5, 1),
    "one row": lambda: _of(lambda x: torch.softmax(x, -1) * x, 1, 19),
}

EXACT = (0.0, -0.5, 0.5, 1.5, -2.5, 3.0, -3.0, 1.0, -1.0, 0.0625, -0.125)  # where pieces of functions meet, and halves that are rounded

STEPS = ("round", "trunc", "floor", "floor_divide", "remainder", "fmod", "frac", "hardshrink", "hardshrink_backward")


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
            elif x.numel() > 2 * len(EXACT):
                x.view(-1)[torch.randperm(x.numel(), generator=generator)[: len(EXACT)]] = torch.tensor(EXACT, dtype=x.dtype)
            x = x.to(dtype)
        elif name.startswith("arange"):
            x = torch.arange(value.shape[0])
        else:
            x = torch.randint(0, 5, value.shape, generator=generator).to(dtype)
        if strided and x.dim() > 1 and name not in written:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        found[name] = x
    if any(node.op.split(".")[1] in STEPS for node in kernel.graph.nodes):  # a rounding of what comes in would be a step further
        for name in (n.inputs[0] for n in kernel.graph.nodes if n.op == "aten._to_copy.default" and "float16" in values[n.outputs[0]].dtype):
            if name in found and found[name].is_floating_point():
                found[name] = found[name].to(torch.bfloat16).to(found[name].dtype)
    for node in kernel.graph.nodes:
        if node.op == "autopar.cross_entropy_backward" and set(node.inputs[2:4]) <= found.keys():  # what its forward op has told of these logits
            logits = _made(kernel, node, node.inputs[1], found).double()
            for name, x in zip(node.inputs[2:4], (logits.amax(-1), (logits - logits.amax(-1, keepdim=True)).exp().sum(-1))):
                found[name] = x.to(found[name].dtype)
    return found


def _made(kernel, node, name, given):
    """What a kernel makes before a node, of these arguments."""
    before = replace(kernel.graph, nodes=kernel.graph.nodes[: kernel.graph.nodes.index(node)], outputs=(name,))
    return run_graph(before, given)[name]
