"""Random small models as text of Python: `draw(seed)` gives a `Drawn`, whose `source()` is a file that makes a `workload()`.

    python benchmarks/fuzz_models.py SEED                  # prints the model of a seed

A model is a list of steps, `t5 = torch.sin(t3)`, each run eagerly in float32 while the model grows: what torch refuses, what is empty, complex or large, and (but in models that begin with
values that are no numbers) what is not finite is left out. Some models have halves, some whole numbers and truth values; one in eight or so only a forward pass. The same seed draws the
same model as long as the tables stay as they are.

In the tables {0} and {1} are what a step reads and {o} its own result; other names are dims, sizes and flags drawn for the step (`Grower`).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

PRELUDE = '''import functools

import torch
import torch.nn.functional as F
from torch import nn

from autopar.trace import Workload


def leaf(seed, shape, dtype="float32", kind=""):
    """A tensor that bfloat16 holds exactly. quarter: multiples of 1/4; special: NaN, infinities, zeros of both signs here and there; t, s: strided."""
    g = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        x = torch.rand(shape, generator=g) > 0.5
    elif dtype in ("float32", "float64", "bfloat16", "float16"):
        x = torch.randn(shape, generator=g).bfloat16().float()
        if "quarter" in kind:
            x = (x * 4).round() / 4
        if "ties" in kind:
            x = (x * 2).round() / 2
        if "special" in kind and x.numel() > 4:
            at = torch.randperm(x.numel(), generator=g)[:5]
            x.view(-1)[at] = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0])
        x = x.to(getattr(torch, dtype))
    else:
        low = 0 if dtype == "uint8" else -6
        x = torch.randint(low, 7, shape, generator=g).to(getattr(torch, dtype))
    if "t" == kind[-1:] and x.dim() > 1:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    if "s" == kind[-1:] and x.dim() > 0:
        x = x.repeat_interleave(2, -1)[..., ::2]
    return x


def wave(x):
    """Weights of a loss."""
    return torch.cos(torch.arange(x.numel(), device=x.device).reshape(x.shape) * 0.7)


class Own(torch.optim.Optimizer):
    """A hand-written one: momentum with a trust ratio, and a sign."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                ratio = p.norm() / (state["m"].norm() + 1.0)
                p.sub_(group["lr"] * (ratio * state["m"] + 0.1 * torch.tanh(p.grad)))
'''


def _table(text: str) -> tuple[str, ...]:
    """The steps of a text, which semicolons and ends of lines part."""
    return tuple(step.strip() for line in text.strip().splitlines() for step in line.split("; "))


OPTIMIZERS = {
    "sgd": "functools.partial(torch.optim.SGD, lr=0.05)",
    "momentum": "functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)",
    "adamw": "functools.partial(torch.optim.AdamW, lr=1e-2)",
    "own": "Own",
    "rmsprop": "functools.partial(torch.optim.RMSprop, lr=1e-2)",
}
LOSSES = _table("""
    ({0}).sum() * 0.01; ({0}).square().mean(); ({0} * wave({0})).sum() * 0.1; ({0}).abs().mean(); ({0}).float().amax() * 0.1; ({0}).flatten().logsumexp(0) * 0.1
    ({0} * wave({0})).mean()
""")
WHOLE_LOSS = "({0}).float().mean() * 0.1"  # of whole numbers and truth values
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = (1, 2, 3, 3, 4, 5, 7, 7, 8, 16, 17, 33)
LONG = (65, 129, 257, 1000, 1024, 2049)
LONGER = (8193, 9001, 9216, 8192)  # more than a block holds
MOST_READ, MOST_MADE = 12_000, 24_000  # elements of an input, of any result
LARGEST, LARGEST_WHOLE = 300.0, 2**40  # beyond it sums of halves and products of whole numbers say nothing

CASTS = _table("""
    {0}.to(torch.bfloat16); {0}.half(); {0}.float(); {0}.double(); {0}.to(torch.bfloat16).float(); {0}.half().float()
""")
TO_INT = _table("""
    {0}.long(); {0}.int(); {0}.to(torch.int8); {0}.to(torch.int16); {0}.abs().to(torch.uint8); ({0} * 3).long(); {0}.round().long(); {0}.floor().int(); {0}.argsort(-1)
    {0}.sign().long()
""")
TO_BOOL = _table("""
    {0} > 0; {0} >= 0.5; {0} < 0.25; {0} <= -0.5; {0} == 0.5; {0} != 0; {0}.bool(); {0}.isnan(); {0}.isinf(); {0}.isfinite(); torch.signbit({0}); torch.logical_not({0})
    {0} > 0.1; {0} >= 0.7; {0}.abs() < 1; {0} == {0}.amax(); {0} == {0}.amax(-1, keepdim=True); {0} > {0}.mean(); {0} == 0; torch.isclose({0}, {0} * 1.001)
""")
BINARY = _table("""
    {0} + {1}; {0} - {1}; {0} * {1}; {0} / ({1}.square() + 1); torch.maximum({0}, {1}); torch.minimum({0}, {1}); torch.where({0} > {1}, {0}, {1}.sin())
    torch.atan2({0}, {1}.square() + 1); torch.hypot({0}, {1} + 3); torch.logaddexp({0}, {1}); torch.fmod({0}, {1}.abs() + 0.5); torch.remainder({0}, {1}.abs() + 0.5)
    torch.floor_divide({0}, {1}.abs() + 0.5) + {0}; torch.copysign({0}, {1}); torch.fmax({0}, {1}); torch.fmin({0}, {1}); ({0}.abs() + 0.3) ** {1}.clamp(-2, 2)
    torch.add({0}, {1}, alpha=0.3); torch.sub({0}, {1}, alpha=2); torch.rsub({0}, {1}); torch.xlogy({0}, {1}.abs() + 0.2)
    F.mse_loss({0}, {1}.expand_as({0}), reduction='none') if {1}.dim() <= {0}.dim() else {0} - {1}; torch.lerp({0}, {1}, 0.3); torch.addcmul({0}, {0}, {1}, value=0.3)
    torch.where({1} >= 0, {0}, -{0}); {0}.clamp(max={1}); torch.clamp({0}, min={1}, max={1} + 0.5); ({0} > {1}) * {0}; {0} * ({0} < {1}); {0}.sigmoid() * {1}.tanh()
    torch.heaviside({0}, {1}) + {1}; torch.ldexp({0}, {1}.clamp(-2, 2)); F.smooth_l1_loss({0} + {1} * 0, {0} * 0 + {1}, reduction='none')
    F.binary_cross_entropy_with_logits({0} + {1} * 0, ({0} * 0 + {1}).sigmoid(), reduction='none'); {0} % ({1}.square() + 0.5)
    torch.div({0}, {1}.square() + 0.3, rounding_mode='floor') * {0}; torch.lerp({0}, {1}, {1}.sigmoid()); ({0} - {1}).abs(); torch.logaddexp2({0}, {1})
    torch.hypot({0}, {1}.abs() + 0.5); {0}.masked_fill({1} > 0, 0.5); {0}.masked_fill({1} > 0, float('-inf')).exp(); F.gelu({0}) * {1}; {0}.add({1}).relu()
    {0}.mul({1}).add({0}); F.huber_loss({0} + {1} * 0, {0} * 0 + {1}, reduction='none', delta=0.5)
""")
BOOL_BOOL = _table("""
    {0} & {1}; {0} | {1}; {0} ^ {1}; torch.logical_and({0}, {1}); torch.logical_or({0}, {1}); torch.logical_xor({0}, {1}); {0} == {1}; {0} != {1}; {0} + {1}; {0} * {1}
    torch.where({0}, {1}, ~{1}); torch.maximum({0}, {1}); {0} > {1}; {0} <= {1}
""")
BOOL_ONE = _table("""
    ~{0}; {0}.float(); {0}.long(); {0}.to(torch.int8); {0}.any(-1, keepdim=True); {0}.all(0); {0}.sum(-1); {0}.sum(); {0}.any(); {0}.cumsum(-1); {0}.float().mean(0)
    {0} * 2.5; {0} + 1; {0} * 3; 1 - {0}.long(); {0}.logical_not(); {0}.count_nonzero(); {0}.flip(-1); {0}.t() if {0}.dim() < 3 else {0}.transpose(0, 1); {0} == True
    {0}.float().amax(-1); {0}.sum(0, keepdim=True); {0}.half(); {0}.to(torch.bfloat16); torch.where({0}, 1.0, -0.5); torch.where({0}, 3, 0); {0}.int() - 1; {0} / 2
    {0}.prod(); {0}.amax(-1); -{0}.float(); {0}.to(torch.uint8)
""")
INT_ONE = _table("""
    {0} + 1; {0} * 3; {0} // 2; {0} % 3; {0} // -2; {0} % -3; torch.div({0}, 2, rounding_mode='trunc'); {0}.abs(); {0}.sign(); -{0}; {0}.clamp(-2, 2); {0}.clamp(min=1)
    {0} & 3; {0} | 4; {0} ^ 5; ~{0}; {0} << 1; {0} >> 1; {0}.pow(2); {0} ** 3; {0} == 2; {0} > 0; {0} != 1; {0}.sum(-1); {0}.sum(); {0}.cumsum(0); {0}.amax(-1)
    {0}.amin(0); {0}.prod(-1); {0}.float(); {0} / 2; {0}.floor(); {0}.round(); {0}.ceil(); {0}.trunc(); {0}.bool(); {0}.int(); {0}.to(torch.int8); {0}.to(torch.int16)
    {0}.to(torch.uint8); {0}.long(); {0} + 0.5; {0} * 2.0; {0}.square(); {0}.float().mean(-1); {0}.relu(); {0}.half(); torch.fmod({0}, 3); torch.fmod({0}, -2)
    {0}.remainder(4); {0} - 7; 5 - {0}; {0}.max(); {0}.min(-1)[0]; {0}.sqrt() if {0}.min() >= 0 else {0}.abs().sqrt(); {0}.sin(); {0}.exp().clamp(max=9); {0}.sigmoid()
    {0} < 0.5; {0} >= 1.5; {0}.eq(2.0); {0}.any(-1); {0}.all(); {0} * 100003; {0}.masked_fill({0} > 2, 9); torch.where({0} > 0, {0}, 0); torch.where({0} > 0, 1.5, {0})
    {0}.isfinite(); {0}.isnan(); {0}.tanh() * 2; {0}.reciprocal().nan_to_num(0., 1., 1.); {0}.flip(0); {0}.neg().abs() % 4; torch.bitwise_left_shift({0}, 2)
    {0}.frac() if False else {0}; F.one_hot({0}.long() % 5, 5); {0}.logical_not(); torch.signbit({0}); {0}.double(); {0}.amax(); {0}.sum(0) * 0.5; {0}.nan_to_num()
    {0}.clamp(0, 1.5)
""")
INT_INT = _table("""
    {0} + {1}; {0} - {1}; {0} * {1}; torch.maximum({0}, {1}); torch.minimum({0}, {1}); {0} == {1}; {0} > {1}; {0} // ({1}.abs() + 1); {0} % ({1}.abs() + 1)
    {0} % -({1}.abs() + 1); {0} & {1}; {0} | {1}; {0} ^ {1}; torch.where({0} > {1}, {0}, {1}); {0} / ({1}.abs() + 1); torch.pow({0}, {1}.abs() % 4); torch.gcd({0}, {1})
    torch.bitwise_left_shift({0}, {1}.abs() % 4); torch.sub({0}, {1}, alpha=3); torch.div({0}, {1}.abs() + 1, rounding_mode='trunc')
    torch.div({0}, {1}.abs() + 1, rounding_mode='floor'); torch.clamp({0}, min={1}); torch.add({0}, {1}, alpha=2); torch.fmod({0}, {1}.abs() + 1)
    torch.addcmul({0}, {0}, {1}); {0} <= {1}; torch.logical_and({0}, {1}); torch.atan2({0}, {1}.abs() + 1); torch.copysign({0}, {1}.abs())
""")
FLOAT_BOOL = _table("""
    {0} * {1}; torch.where({1}, {0}, 0.5); {0}.masked_fill({1}, -1.5); torch.where({1}, {0}, -{0}); {0} + {1}; torch.where({1}, {0}, {0}.detach()); {0} - {1}.float()
    {0}.masked_fill(~{1}, 0); {0}.clamp(max=2) ** {1}
""")
FLOAT_INT = _table("""
    {0} * {1}; {0} + {1}; torch.where({1} > 0, {0}, 0.5); {0} / ({1}.abs() + 1); {0}.clamp(-1, 1) ** ({1}.abs() % 4); {0} - {1}; torch.maximum({0}, {1}.float())
    {0} % ({1}.abs() + 1); {0} * ({1} == 2); {0} > {1}; {0} == {1}; torch.where({1} == 1, {1}, {0}); torch.ldexp({0}, {1} % 3)
""")
UNARY = _table("""
    torch.sin({0}); torch.tanh({0}); torch.sigmoid({0}); torch.exp(-{0}.abs()); ({0}.abs() + 0.5).log(); F.gelu({0}); F.gelu({0}, approximate="tanh"); F.silu({0})
    F.relu({0}); F.leaky_relu({0}, 0.2); F.elu({0}, 0.7); F.softplus({0}, 2.0); F.hardswish({0}); F.hardsigmoid({0}); F.hardtanh({0}, -0.7, 0.6); F.mish({0})
    F.selu({0}); F.celu({0}, 0.6); F.logsigmoid({0}); F.relu6({0}); F.softsign({0}); F.softshrink({0}, 0.3); F.tanhshrink({0}); F.threshold({0}, 0.1, -0.2); {0}.square()
    ({0}.abs() + 0.3).sqrt(); ({0}.abs() + 0.3).rsqrt(); {0}.abs(); -{0}; 1.0 / ({0}.abs() + 0.5); {0}.clamp(-0.5, 0.7); {0}.clamp(min=0.1); {0}.clamp(max=0.7)
    {0}.clamp(0); {0}.floor() + {0}; {0}.ceil() * {0}; {0}.round() + {0}; {0}.trunc() - {0}; {0}.frac(); {0}.sign() * {0}; {0}.pow(2); {0}.pow(3)
    ({0}.abs() + 0.5).pow(-1); ({0}.abs() + 0.2).pow(1.5); ({0}.abs() + 0.2) ** 0.5; {0}.clamp(-1.5, 1.5).pow(5); 2.0 ** {0}.clamp(-3, 3); {0} % 0.7
    torch.remainder({0}, -1.5); torch.fmod({0}, 0.6); {0} // 0.5 + {0}; torch.div({0}, 0.3, rounding_mode="trunc") * {0}; torch.erf({0}); torch.erfc({0})
    torch.log1p({0}.abs()); torch.expm1({0}.clamp(max=2)); torch.atan({0}); torch.asinh({0}); torch.cosh({0}.clamp(-3, 3)); torch.sinh({0}.clamp(-3, 3)); torch.sinc({0})
    torch.logit({0}.sigmoid()); torch.nan_to_num({0}); torch.special.entr({0}.abs()); 1 - {0}; 3.0 - {0}; {0} + 1; {0} * 0.7; {0} / 3; {0} - 2.5; 2 / ({0}.abs() + 1)
    {0}.sigmoid().logit(eps=0.1); F.hardshrink({0}, 0.4); {0}.masked_fill({0} > 0.5, 0.25); torch.where({0} > 0, {0}, 0.1 * {0}); torch.where({0} > 0, 1.0, {0})
    torch.where({0} > 0.3, 2, {0}); {0}.detach() * {0}; {0}.clamp(max=4).exp2(); ({0}.abs() + 1.01).acosh(); ({0} * 0.3).clamp(-0.9, 0.9).atanh()
    ({0} * 0.3).clamp(-0.9, 0.9).asin(); torch.special.i0e({0}); torch.lgamma({0}.abs() + 1); torch.special.ndtr({0}); ({0}.abs() + 0.1).log2()
    ({0}.abs() + 0.1).log10(); torch.tan({0}.clamp(-1, 1)); {0}.deg2rad(); {0} * True; {0} + True; {0} * {0} * {0}; ({0} + {0}.detach()) / 2; {0}.relu().square()
    {0}.cos() ** 2; {0}.neg().exp().clamp(max=5); torch.addcmul({0}, {0}, {0}, value=0.5); torch.addcdiv({0}, {0}, {0}.square() + 1, value=-0.5)
    torch.lerp({0}, {0}.sin(), 0.8); F.glu(torch.cat([{0}, {0}.sin()], -1), -1); {0}.round(decimals=1) + {0}; torch.square({0} - 1).add(1).reciprocal()
    {0}.float().exp().clamp(max=9).to({0}.dtype); {0}.clone(); {0}.contiguous(); torch.positive({0}); torch.angle({0}) + {0}; {0}.isfinite() * {0}
    F.hardtanh({0}).abs_(); torch.zeros_like({0}) + {0}.sum(); torch.full_like({0}, 0.3) * {0}; torch.ones_like({0}) - {0}
""")
REDUCE = _table("""
    {0}.sum({d}, keepdim={keep}); {0}.mean({d}, keepdim={keep}); {0}.amax({d}, keepdim={keep}); {0}.amin({d}, keepdim={keep}); {0}.var({d}, keepdim={keep})
    {0}.std({d}, keepdim={keep}, correction=0); ({0} + 0.3).norm(p=2, dim={d}, keepdim={keep}); {0}.norm(p=1, dim={d}, keepdim={keep})
    ({0}.abs() + 0.2).norm(p=3, dim={d}, keepdim={keep}); {0}.norm(p=float('inf'), dim={d}, keepdim={keep})
    torch.linalg.vector_norm({0} + 0.1, 2.5, dim={d}, keepdim={keep}); {0}.logsumexp({d}, keepdim={keep}); {0}.softmax({one}); {0}.log_softmax({one})
    {0}.argmax({one}, keepdim={keep}); {0}.argmin({one}); ({0} > 0).any({one}, keepdim={keep}); ({0} < 1).all({one}); ({0} * 0.5 + 1).prod({one}, keepdim={keep})
    {0}.cumsum({one}); {0}.sum(); {0}.mean(); {0}.amax(); {0}.abs().amin(); {0}.var(); {0}.norm(); {0}.max({one}, keepdim={keep})[0]; {0}.min({one})[0]; {0}.max()
    {0}.median({one})[0]; {0}.softmax({one}) * {0}; {0} - {0}.mean({d}, keepdim=True); {0} / ({0}.abs().sum({d}, keepdim=True) + 1); {0} * {0}.amax({d}, keepdim=True)
    torch.where({0} == {0}.amax({d}, keepdim=True), {0}, 0.0); {0}.sum({d}, keepdim={keep}, dtype=torch.float64).float(); {0}.float().sum({d}, keepdim={keep})
    torch.var_mean({0}, {d}, keepdim={keep})[0]; torch.logcumsumexp({0}, {one}); {0}.nansum({d}, keepdim={keep}); {0}.nanmean({d}); {0}.aminmax(dim={one})[1]
    {0}.count_nonzero({one}) + {0}.sum(); F.normalize({0} + 0.1, dim={one}); F.normalize({0}, p=1, dim={one}); F.softmin({0}, {one})
    {0}.square().mean({d}, keepdim=True).add(1e-3).rsqrt() * {0}; F.cosine_similarity({0} + 0.1, {0}.sin() + 0.2, {one}); {0}.softmax({one}, dtype=torch.float32)
    {0}.sum({d}, keepdim=True) - {0}.logsumexp({d}, keepdim=True); {0}.float().std({d}, keepdim=True) * {0}; ({0} * 0.1).cumprod({one}); {0}.cummax({one})[0]
    {0}.quantile(0.3, {one}); {0}.diff(dim={one}); torch.renorm({0}, 2, 0, 1.0); ({0} == {0}.amin({d}, keepdim=True)).float() * {0}
""")
VIEW = _table("""
    {0}.permute({perm}); {0}.transpose({d}, {e}); {0}.flatten({low}, {high}); {0}.unflatten({d}, ({f}, -1)); {0}.unflatten({d}, (-1, {f})); {0}.reshape(-1)
    {0}.reshape({f}, -1); {0}[{pre}{lo}:{hi}]; {0}[{pre}::2]; {0}[{pre}{lo}::3]; {0}[{pre}{lo}]; {0}[{pre}{lo}:{hi}:2]; {0}.flip({d}); {0}.roll({shift}, {d})
    {0}.narrow({d}, {lo}, {length}); {0}.select({d}, {lo}); {0}.unsqueeze({place}); {0}.squeeze(); {0}.chunk({chunks}, {d})[-1]; {0}.split({half}, {d})[0]
    {0}.unbind({d})[{lo}]; F.pad({0}, {pads}, value=0.5); F.pad({0}, {pads}); F.pad({0}, {pads}); {0}.unfold({d}, {two}, 1); {0}.unfold({d}, {three}, 2)
    torch.cat([{0}, {0}.sin()], {d}); torch.cat([{0}[{pre}{lo}:], {0}[{pre}:{lo}]], {d}); torch.stack([{0}, {0} * 2], {stacked}); {0}.tril(); {0}.triu(1); {0}.tril(-1)
    {0}.index_select({d}, torch.tensor({at})); {0}[{pre}torch.tensor({at})]; {0}.repeat_interleave(2, {d}); {0}.unsqueeze({d}).expand({thrice})
    {0}.unsqueeze({d}).expand({thrice}).flatten({d}, {d} + 1); {0}.repeat({twice}); {0}.diagonal(); {0}.movedim({d}, {e}); {0}.mT; {0}.sort({d})[0]
    {0}.topk({two}, {d})[0]; {0}.gather({d}, {0}.argsort({d})); torch.take_along_dim({0}, {0}.argmax({d}, keepdim=True), {d})
    torch.zeros_like({0}).scatter({d}, {0}.argsort({d}), {0}); torch.zeros_like({0}).scatter_add({d}, ({0} > 0).long() * {last}, {0})
    torch.zeros_like({0}).index_add({d}, torch.tensor({at1}), {0}.narrow({d}, 0, 1)); {0}.t().contiguous().t() if {0}.dim() == 2 else {0}.contiguous()
    {0}[..., None] * {0}[..., None, :]; torch.diff({0}, dim={d}); {0}[{pre}1:] - {0}[{pre}:-1]; {0}[{pre}1:] * {0}[{pre}:-1] + {0}[{pre}:1]
    torch.cat([{0}.sum({d}, keepdim=True), {0}], {d}); torch.cat([{0}, torch.zeros_like({0})], {d})
    torch.cat([{0}.amax({d}, keepdim=True), {0}, {0}.exp().clamp(max=3)], {d}); torch.stack([{0}.mean({d}), {0}.amax({d})], 0); F.pad({0}.cumsum({d}), (1, 0))
    torch.rot90({0}, 1, (0, 1)); {0}.diag_embed(); F.pad({0}[None], (1, 1), mode='reflect')[0]; F.pad({0}[None], (1, 2), mode='replicate')[0]
    F.pad({0}[None], (1, 0), mode='circular')[0]; F.interpolate({0}[None, None].flatten(2), scale_factor=2)[0, 0]; {0}.reshape({turned})
    {0}.transpose({d}, {e}).reshape({shape}); {0}.select_scatter({0}.select({d}, 0).sin(), {d}, {lo}); {0}.slice_scatter({0}[{pre}:1], {d}, {lo}, {next})
    F.avg_pool1d({0}[None].flatten(1), 2); F.max_pool1d({0}[None].flatten(1), 3, 2); torch.meshgrid({0}.flatten()[:4], {0}.flatten()[:3], indexing='ij')[1]
""")
VIEW_SCALAR = _table("""
    {0}.expand(3); {0}.view(1); {0}.expand(2, 5); {0}[None]; {0}.reshape(1, 1)
""")
JOIN = _table("""
    torch.cat([{0}, {1}], {d}); torch.stack([{0}, {1}], {d}); torch.cat([{1}, {0} * 2, {1}], {d}); torch.stack([{0}.tanh(), {1}], -1).flatten(-2)
    torch.cat([{0}.sum({d}, keepdim=True), {1}], {d}); torch.cat([{0}.flatten(), {1}.sum().view(1)]); torch.cat([{0}.softmax({d}), {1}], {d})
""")
INPLACE = _table("""
    {o}.add_({1}); {o}.mul_({1}); {o}.sub_({1}, alpha=0.5); {o}.masked_fill_({0} > 0.3, -0.5); {o}.clamp_(-1, 1); {o}[{pre}{lo}] = 0.7; {o}[{pre}{lo}:].mul_(2)
    {o}[{pre}::2] = {0}[{pre}::2].sin(); {o}[{pre}{lo}] += 1; {o}[{pre}1:].copy_({0}[{pre}:-1]); {o}[{pre}:1].zero_()
    {o}.index_add_({d}, torch.tensor({at}), {0}.narrow({d}, 0, 1).expand({pair})); {o}.index_put_((torch.tensor({at1}),), torch.tensor(0.5)); {o}[{0} > 0.5] = 0.1
    {o}.transpose(0, -1).add_(1); {o}.select({d}, {lo}).mul_(3); {o}.neg_(); {o}.sigmoid_(); {o}.relu_(); {o}.addcmul_({0}, {1}, value=0.2); {o}.copy_({1})
    {o}.div_({1}.abs() + 1); {o}.index_fill_({d}, torch.tensor({at}), 0.3); {o}.index_copy_({d}, torch.tensor({at1}), {1}.expand_as({0}).narrow({d}, 0, 1))
    {o}.scatter_({d}, {0}.argmax({d}, keepdim=True), 1.0); {o}.view(-1)[::3].add_(0.5); {o}.lerp_({1}, 0.25); {o}.exp_().clamp_(max=2); {o}.tril_()
    {o}.diagonal().fill_(1.0); {o}.fill_(0.3).add_({1}); {o}.pow_(2); {o}.unsqueeze(0).mul_({1})
""")
COPIES = _table("""
    {o} = {0}.clone(); {o} = {0} * 1.5; {o} = {0} + 0.25; {o} = torch.tanh({0}); {o} = torch.zeros_like({0})
""")
LINEAR = _table("""
    F.linear({0}.to({1}.dtype), {1}) * 0.3; ({0}.to({1}.dtype) @ {1}.t()).sin(); F.linear({0}.to({1}.dtype), {1}).relu()
""")
LOSS_STEPS = _table("""
    F.cross_entropy({0}.reshape(-1, {v}), {t}, reduction='{r}'{extra}); F.nll_loss({0}.log_softmax(-1).reshape(-1, {v}), {t}, reduction='{r}')
    F.cross_entropy({0}, {0}.detach().sin().softmax(1), reduction='{r}'); F.kl_div({0}.log_softmax(-1), {0}.sin().softmax(-1), reduction='{batch}')
    F.mse_loss({0}, {0}.detach().sin(), reduction='{r}'); F.cross_entropy({0}.float().reshape(-1, {v}), {t}, reduction='{r}', weight=torch.arange({v}).float() + 1)
    F.multi_margin_loss({0}.reshape(-1, {v}), {t}, reduction='{r}'); F.binary_cross_entropy({0}.sigmoid(), ({0} > 0).to({0}.dtype), reduction='{r}')
    F.hinge_embedding_loss({0}, {0}.detach().sign() + 0.5, reduction='{r}'); F.soft_margin_loss({0}, {0}.detach().sign(), reduction='{r}')
""")
NORMS = _table("""
    F.layer_norm({0}, {shape}, {1}, {2}); F.layer_norm({0}, {shape}); F.rms_norm({0}, {shape}, {1}, 1e-5); F.rms_norm({0}, {shape})
    F.layer_norm({0}.float(), {shape}, {1}).to({0}.dtype); F.layer_norm({0}, {shape}, {1})
""")
CHANNEL_NORMS = _table("""
    F.batch_norm({0}, None, None, {1}, None, True); F.group_norm({0}, {groups}, {1}); F.instance_norm({0}); F.batch_norm({0}, None, None, None, None, True)
""")


@dataclass(frozen=True)
class Leaf:
    """A parameter or an input."""

    name: str
    is_param: bool
    seed: int
    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: str = ""

    def call(self) -> str:
        return f"leaf({self.seed}, {self.shape!r}, {self.dtype!r}, {self.kind!r})"


@dataclass(frozen=True)
class Step:
    """A line of the model (several where `text` names {o}: those that write into its result)."""

    out: str
    text: str
    reads: tuple[str, ...]

    def line(self) -> str:
        return self.text.format(*self.reads, o=self.out) if "{o}" in self.text else f"{self.out} = " + self.text.format(*self.reads)


@dataclass(frozen=True)
class Drawn:
    """A model. `outs`: (result, its term of the loss)."""

    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    outs: tuple[tuple[str, str], ...]
    optimizer: str
    forward_only: bool

    def used(self) -> Drawn:
        """Without what nothing reads."""
        needed, steps = {name for name, _ in self.outs}, []
        for step in reversed(self.steps):
            if step.out in needed:
                steps.append(step)
                needed |= set(step.reads)
        return replace(self, steps=tuple(reversed(steps)), leaves=tuple(leaf for leaf in self.leaves if leaf.name in needed))

    def source(self) -> str:
        params = [leaf for leaf in self.leaves if leaf.is_param]
        inputs = [leaf for leaf in self.leaves if not leaf.is_param]
        lines = [PRELUDE, "", "class M(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        self.{p.name} = nn.Parameter({p.call()})" for p in params]
        lines += ["", f"    def forward(self{''.join(', ' + x.name for x in inputs)}):"]
        lines += [f"        {p.name} = self.{p.name}" for p in params]
        lines += [f"        {line}" for step in self.steps for line in step.line().split("\n")]
        lines += [f"        return {', '.join(name for name, _ in self.outs)},", "", "", "def loss(outs):", "    terms = []"]
        lines += [f"    terms.append({text.format(f'outs[{k}]')})" for k, (_, text) in enumerate(self.outs)]
        lines += ["    return sum(terms)", "", "", "def workload():", f"    inputs = ({''.join(x.call() + ', ' for x in inputs)})"]
        lines.append("    return Workload(M(), inputs)" if self.forward_only else f"    return Workload(M(), inputs, (), loss, {OPTIMIZERS[self.optimizer]})")
        return "\n".join(lines) + "\n"


def kind_of(tensor: torch.Tensor) -> str:
    return "float" if tensor.dtype in FLOATS else "bool" if tensor.dtype == torch.bool else "whole"


def fill(text: str, **drawn: object) -> str:
    """A step of a table with the names that are drawn for it; {0}, {1} and {o} stay."""
    return text.format("{0}", "{1}", "{2}", o="{o}", **drawn)


class Grower:
    """Grows one model. Every `add_` adds a step or two, or none where nothing fits."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.values: dict[str, torch.Tensor] = {}
        self.leaves: list[Leaf] = []
        self.steps: list[Step] = []
        self.has_special = self.rng.random() < 0.12
        self.names: dict[str, object] = {}
        exec(PRELUDE.replace("from autopar.trace import Workload", ""), self.names)
        self.has_halves = self.rng.random() < 0.35
        self.has_whole = self.rng.random() < 0.4

    def pick(self, choices: Iterable):
        return self.rng.choice(list(choices))

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def leaf(self, is_param: bool, shape: Sequence[int], dtype: str = "float32", kind: str = "") -> str:
        made = Leaf(f"{'p' if is_param else 'x'}{len(self.leaves)}", is_param, self.rng.randrange(10**6), tuple(shape), dtype, kind)
        self.leaves.append(made)
        self.values[made.name] = eval(made.call(), self.names)
        return made.name

    def shape(self) -> list[int]:
        shape = [self.pick(SIZES) for _ in range(self.pick((1, 2, 2, 2, 3, 3, 3, 4)))]
        if self.chance(0.15):
            shape = [min(size, 5) for size in shape[-2:]]
            shape[self.rng.randrange(len(shape))] = self.pick(LONG) if self.chance(0.8) else self.pick(LONGER)
        while torch.Size(shape).numel() > MOST_READ:
            shape[self.rng.randrange(len(shape))] = self.pick((1, 2, 3))
        return shape

    def step(self, text: str, *reads: str) -> str | None:
        """Add a step, if torch runs it and makes something sensible."""
        step = Step(f"t{len(self.steps)}", text, reads)
        versions = {name: self.values[name]._version for name in reads}
        values = dict(self.values)
        try:
            exec(step.line(), dict(self.names), values)
        except Exception:  # of any kind: what torch refuses is not for a model
            return None
        if not self.is_sensible(values[step.out]) or any(self.values[name]._version != version for name, version in versions.items()):
            return None
        self.values[step.out] = values[step.out]
        self.steps.append(step)
        return step.out

    def is_sensible(self, x: object) -> bool:
        if not isinstance(x, torch.Tensor) or not 0 < x.numel() <= MOST_MADE or x.dim() > 5 or x.dtype.is_complex:
            return False
        if x.dtype in FLOATS:
            return self.has_special or bool(torch.isfinite(x).all()) and float(x.abs().max()) < LARGEST
        return x.dtype == torch.bool or float(x.double().abs().max()) <= LARGEST_WHOLE

    def of(self, kind: str) -> list[str]:
        return [name for name, x in self.values.items() if kind_of(x) == kind]

    def one(self, kind: str = "float") -> str | None:
        found = self.of(kind)
        if not found:
            return None
        return self.pick(found[-5:]) if self.chance(0.65) else self.pick(found)

    def other(self, name: str, kind: str = "float", same: bool = False) -> str | None:
        """One that broadcasts with it (`same`: of its shape)."""
        x, fits = self.values[name], []
        for found in self.of(kind):
            try:
                made = torch.broadcast_shapes(x.shape, self.values[found].shape)
            except RuntimeError:
                continue
            if torch.Size(made).numel() <= MOST_MADE and (not same or x.shape == self.values[found].shape):
                fits.append(found)
        if kind == "float" and (not fits or self.chance(0.2)):
            shape = list(x.shape)
            if not same:
                shape = [1 if self.chance(0.35) else size for size in shape]
                shape = shape[self.rng.randrange(len(shape) + 1) :] if self.chance(0.4) else shape
            return self.leaf(self.chance(0.8), shape)
        return self.pick(fits) if fits else None

    def add_unary(self) -> None:
        self.step(self.pick(UNARY), self.one())

    def add_binary(self) -> None:
        a = self.one()
        b = self.other(a)
        pair = (a, b) if self.chance(0.7) else (b, a)
        self.step(self.pick(BINARY), *pair)

    def add_cast(self) -> None:
        if self.has_halves or self.chance(0.1):
            self.step(self.pick(CASTS), self.one())

    def add_to_bool(self) -> None:
        name = self.step(self.pick(TO_BOOL), self.one())
        if name and self.chance(0.7) and (a := self.other(name)):
            self.step(self.pick(FLOAT_BOOL), a, name)

    def add_bool(self) -> None:
        if a := self.one("bool"):
            b = self.other(a, "bool")
            if b and self.chance(0.5):
                self.step(self.pick(BOOL_BOOL), a, b)
            else:
                self.step(self.pick(BOOL_ONE), a)

    def add_to_whole(self) -> None:
        if self.has_whole or self.chance(0.15):
            self.step(self.pick(TO_INT), self.one())

    def add_whole(self) -> None:
        if a := self.one("whole"):
            share = self.rng.random()
            if share < 0.5:
                self.step(self.pick(INT_ONE), a)
            elif share < 0.75:
                if b := self.other(a, "whole"):
                    self.step(self.pick(INT_INT), a, b)
            elif b := self.other(a, "float"):
                self.step(self.pick(FLOAT_INT), b, a)

    def add_more_whole(self) -> None:
        if self.has_whole:
            self.add_whole()

    def dims(self, x: torch.Tensor) -> str:
        if not x.dim():
            return "0"
        share = self.rng.random()
        if share < 0.35:
            return "-1"
        if share < 0.75 or x.dim() == 1:
            return str(self.rng.randrange(x.dim()))
        count = self.rng.randrange(1, x.dim() + 1)
        return str(tuple(sorted(self.rng.sample(range(x.dim()), count))))

    def add_reduce(self) -> None:
        a = self.one()
        d, keep = self.dims(self.values[a]), self.pick((True, False))
        self.step(fill(self.pick(REDUCE), d=d, keep=keep, one="-1" if "(" in d else d), a)

    def add_norm(self) -> None:
        a = self.one()
        x = self.values[a]
        if not x.dim():
            return
        shape = tuple(x.shape[-self.rng.randrange(1, x.dim() + 1) :])
        reads, channel_reads = [a, self.leaf(True, shape), self.leaf(True, shape)], []
        choices, groups = NORMS, 1
        if x.dim() > 1:
            channels = x.shape[1]
            groups = self.pick([n for n in (1, 2, 3, channels) if channels % n == 0])
            channel_reads = [a, self.leaf(True, (channels,))]
            choices += CHANNEL_NORMS
        text = self.pick(choices)
        found = channel_reads if text in CHANNEL_NORMS else reads
        self.step(fill(text, shape=shape, groups=groups), *(name for k, name in enumerate(found) if f"{{{k}}}" in text))

    def add_view(self) -> None:
        a = self.one()
        x = self.values[a]
        n, randrange = x.dim(), self.rng.randrange
        if not n:
            self.step(self.pick(VIEW_SCALAR), a)
            return
        d = randrange(n)
        size, perm = x.shape[d], list(range(n))
        self.rng.shuffle(perm)
        lo = randrange(size)
        hi = randrange(lo + 1, size + 1)
        e = randrange(n)
        f = self.pick([k for k in (1, 2, 3, 4, 5, 7) if size % k == 0])
        at = [randrange(size) for _ in range(self.pick((1, 2, 4, 6)))]
        pads = tuple(randrange(-1 if size > 3 else 0, 3) for _ in range(2 * randrange(1, n + 1)))
        dims = {"d": d, "e": e, "low": min(d, e), "high": max(d, e), "perm": perm, "shift": randrange(-2, 4), "place": randrange(n + 1), "chunks": self.pick((2, 3)), "stacked": randrange(n + 1)}
        sizes = {"f": f, "lo": lo, "hi": hi, "next": lo + 1, "length": hi - lo, "last": size - 1, "half": max(1, size // 2), "two": min(2, size), "three": min(3, size)}
        lists = {"pre": ":, " * d, "at": at, "at1": at[:1], "pads": pads, "thrice": ", ".join(["-1"] * d + ["3"] + ["-1"] * (n - d)), "twice": ", ".join(["1"] * d + ["2"] + ["1"] * (n - d - 1))}
        self.step(fill(self.pick(VIEW), **dims, **sizes, **lists, shape=", ".join(map(str, x.shape)), turned=", ".join(map(str, reversed(x.shape)))), a)

    def add_join(self) -> None:
        a = self.one()
        if n := self.values[a].dim():
            d = self.rng.randrange(n)
            b = self.other(a, same=True)
            self.step(fill(self.pick(JOIN), d=d), a, b)

    def add_in_place(self) -> None:
        a = self.one()
        n, b = self.values[a].dim(), self.other(a)
        if not n or b is None:
            return
        d = self.rng.randrange(n)
        size = self.values[a].shape[d]
        lo = self.rng.randrange(size)
        at = [self.rng.randrange(size) for _ in range(2)]
        lines = [self.pick(COPIES), *(self.pick(INPLACE) for _ in range(self.pick((1, 1, 2))))]
        pair = ", ".join("2" if k == d else "-1" for k in range(n))
        self.step("\n".join(fill(line, d=d, pre=":, " * d, lo=lo, at=at, at1=at[:1], pair=pair) for line in lines), a, b)

    def add_linear(self) -> None:
        a = self.one()
        x = self.values[a]
        if x.dim() and x.shape[-1] <= 64:
            w = self.leaf(True, (self.pick((1, 3, 5, 8)), x.shape[-1]))
            self.step(self.pick(LINEAR), a, w)

    def add_loss(self) -> None:
        a = self.one()
        x = self.values[a]
        if not x.dim():
            return
        v, r = x.shape[-1], self.pick(("mean", "sum", "none"))
        extra = self.pick(("", ", label_smoothing=0.1", ", ignore_index=0"))
        target = f"(torch.arange({x[..., 0].numel()}) * 3 % {v})"
        self.step(fill(self.pick(LOSS_STEPS), v=v, r=r, extra=extra, t=target, batch="batchmean" if r == "mean" else r), a)

    def grow(self, count: int) -> None:
        shape = self.shape()
        x = self.leaf(False, shape, kind="special" if self.has_special else self.pick(("", "", "", "quarter", "ties", "t", "s", "quartert")))
        for _ in range(self.pick((1, 2, 3))):
            part = [1 if self.chance(0.25) else size for size in shape]
            part = part[self.rng.randrange(len(part)) :] if self.chance(0.4) else part
            self.leaf(True, part if self.chance(0.9) else ())
        if self.chance(0.3):
            self.leaf(False, self.shape(), kind=self.pick(("", "t", "s", "quarter")))
        if self.has_whole or self.chance(0.15):
            self.leaf(False, self.pick((shape, shape[-1:], [1])), dtype=self.pick(("int64", "int64", "int32", "bool", "uint8", "int16", "int8")))
        self.step("{0} * {1}", x, self.leaves[1].name)
        for _ in range(8 * count):
            if len(self.steps) >= count:
                break
            self.pick(KINDS)(self)

    def drawn(self) -> Drawn:
        read = {name for step in self.steps for name in step.reads}
        ends = [step.out for step in self.steps if step.out not in read]
        others = [step.out for step in self.steps if step.out in read]
        self.rng.shuffle(ends)
        names = ends[:5] + self.rng.sample(others, min(len(others), self.pick((0, 0, 1, 2))))
        forward_only = self.has_special or self.chance(0.12)
        terms = [self.pick(LOSSES) for _ in names]
        outs = [(name, term if self.values[name].dtype.is_floating_point else WHOLE_LOSS) for name, term in zip(names, terms)]
        return Drawn(tuple(self.leaves), tuple(self.steps), tuple(outs), self.pick(OPTIMIZERS), forward_only).used()


KINDS = (
    *[Grower.add_binary] * 4, Grower.add_bool, Grower.add_cast, Grower.add_in_place, Grower.add_whole, Grower.add_more_whole, Grower.add_join, Grower.add_linear,
    Grower.add_loss, Grower.add_norm, *[Grower.add_reduce] * 4, Grower.add_to_bool, Grower.add_to_whole, *[Grower.add_unary] * 4, *[Grower.add_view] * 4,
)  # fmt: skip


def draw(seed: int) -> Drawn:
    """The model of a seed."""
    torch.manual_seed(seed)
    grower = Grower(seed)
    grower.grow(grower.pick((3, 5, 8, 12, 16)))
    return grower.drawn()


if __name__ == "__main__":
    print(draw(int(sys.argv[1])).source(), end="")
