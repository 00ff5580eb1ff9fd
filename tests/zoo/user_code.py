"""The shapes of user code: what people write around a model. Each is small; global batch 8."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import library, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils import checkpoint as ckpt

from autopar import Workload

_ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
_SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
_BATCH = 8


def _classes(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, targets)


def _tokens_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _of_classes(model: nn.Module, width: int = 12, classes: int = 8, optimizer=_ADAMW) -> Workload:
    return Workload(model, (torch.randn(_BATCH, width),), (torch.randint(0, classes, (_BATCH,)),), _classes, optimizer)


def _of_tokens(model: nn.Module, length: int = 6, optimizer=_ADAMW) -> Workload:
    ids = torch.randint(0, 32, (_BATCH, length))
    return Workload(model, (ids,), (ids.roll(-1, 1),), _tokens_loss, optimizer)


class _Mlp(nn.Module):
    """The plain model that the others change."""

    def __init__(self, width: int = 12, hidden: int = 16, classes: int = 8) -> None:
        super().__init__()
        self.up, self.mid, self.down = nn.Linear(width, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.mid(torch.relu(self.up(x)))))


# -- sharing and state -----------------------------------------------------------------------------------------------------------------


def tied_weights() -> Workload:
    """Embedding and head share a weight."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mid, self.head = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(torch.tanh(self.mid(self.embed(ids))))

    return _of_tokens(Model())


def shared_module() -> Workload:
    """One block under two names, called three times."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU())
            self.embed, self.first, self.second, self.head = nn.Embedding(32, 16), block, block, nn.Linear(16, 32)
            self.third = nn.Linear(16, 16)
            self.third.weight = block[1].weight

        def forward(self, ids):
            x = self.embed(ids)
            x = x + self.first(x)
            x = x + self.second(x)
            return self.head(self.third(x))

    return _of_tokens(Model())


def in_place() -> Workload:
    """Writes through slices, masks and views, as preprocessing and caches do."""

    class Model(_Mlp):
        def forward(self, x):
            x = x.clone()
            x[:, 0] = 1.0
            x[:, 1:3] *= 2.0
            x[..., -1] += x[..., 0]
            h = self.up(x)
            h.clamp_(min=-1).add_(0.5).mul_(h.detach().sigmoid())
            left, right = h.chunk(2, dim=-1)
            cache = torch.zeros_like(h)
            cache[:, :8].copy_(right)
            cache[:, 8:] = left
            cache.view(-1, 2, 8)[:, 1].sub_(0.25)
            cache.masked_fill_(cache > 3, 3.0)
            y = self.mid(cache)
            y += cache
            return self.down(F.relu_(y))

    return _of_classes(Model())


def ema_buffers() -> Workload:
    """Statistics kept in buffers: an average of activations, a counter, and a codebook replaced by assignment."""

    class Model(_Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("average", torch.zeros(16))
            self.register_buffer("seen", torch.zeros((), dtype=torch.long))
            self.register_buffer("scale", torch.ones(16))

        def forward(self, x):
            h = torch.relu(self.up(x))
            if self.training:
                with torch.no_grad():
                    self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
                    self.seen += 1
                    self.scale = torch.lerp(self.scale, h.detach().std(0) + 0.5, 0.1)
            return self.down(self.mid((h - self.average) / self.scale))

    return _of_classes(Model())


def ema_weights() -> Workload:
    """A slow copy of the weights as buffers, a teacher's loss (mean teacher, BYOL)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = _Mlp(), _Mlp()
            for p, q in zip(self.teacher.parameters(), self.student.parameters()):
                p.requires_grad_(False)
                with torch.no_grad():
                    p.copy_(q)

        def forward(self, x):
            with torch.no_grad():
                for p, q in zip(self.teacher.parameters(), self.student.parameters()):
                    p.lerp_(q, 0.05)
                wanted = self.teacher(x)
            y = self.student(x)
            return y, F.mse_loss(F.normalize(y, dim=-1), F.normalize(wanted, dim=-1))

    x = torch.randn(_BATCH, 12)
    return Workload(Model(), (x,), (torch.randint(0, 8, (_BATCH,)),), lambda out, t: F.cross_entropy(out[0], t) + out[1], _ADAMW)


def vector_quantizer() -> Workload:
    """A codebook with straight-through gradients and two commitment losses (VQ-VAE)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.codes, self.out = nn.Linear(12, 8), nn.Embedding(16, 8), nn.Linear(8, 12)

        def forward(self, x):
            z = self.enter(x)
            nearest = torch.cdist(z, self.codes.weight).argmin(-1)
            q = self.codes(nearest)
            commit = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
            return self.out(z + (q - z).detach()), commit

    x = torch.randn(_BATCH, 12)
    return Workload(Model(), (x,), (x.clone(),), lambda out, t: F.mse_loss(out[0], t) + out[1], _ADAMW)


def unused_parameters() -> Workload:
    """A head that no step uses, and an expert behind a flag."""

    class Model(_Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.old_head = nn.Linear(16, 3)
            self.never = nn.Parameter(torch.ones(4))

    return _of_classes(Model())


class _Lora(nn.Module):
    """A frozen linear with a trained low-rank part (arXiv 2106.09685)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.randn(base.out_features, rank) * 0.1)

    def forward(self, x):
        return self.base(x) + 0.5 * F.linear(F.linear(x, self.a), self.b)


def lora() -> Workload:
    """All frozen but the low-rank parts; the optimizer takes only those."""
    model = _Mlp().requires_grad_(False)
    model.up, model.mid = _Lora(model.up, 4), _Lora(model.mid, 4)
    return _of_classes(model, optimizer=lambda params: torch.optim.AdamW([p for p in params if p.requires_grad], lr=1e-2))


def parameter_groups() -> Workload:
    """No weight decay for vectors, and another learning rate for matrices."""

    def optimizer(params):
        matrices, vectors = [p for p in params if p.ndim > 1], [p for p in params if p.ndim < 2]
        return torch.optim.AdamW([{"params": matrices, "lr": 1e-2}, {"params": vectors, "weight_decay": 0}], lr=5e-3, weight_decay=0.1)

    return _of_classes(_Mlp(), optimizer=optimizer)


# -- own autograd ----------------------------------------------------------------------------------------------------------------------


class _Swish(torch.autograd.Function):
    """x * sigmoid(x), keeping only x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class _Quantize(torch.autograd.Function):
    """Rounds forward, passes the gradient clipped (fake quantisation), with setup_context and a non-tensor argument."""

    @staticmethod
    def forward(x, levels):
        return torch.round(x * levels) / levels

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, levels = inputs
        ctx.mark_non_differentiable()
        ctx.save_for_backward(x.abs() <= 1)
        ctx.levels = levels

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None


class _Reverse(torch.autograd.Function):
    """Gradient reversal (domain adaptation)."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.factor * grad, None


def autograd_function() -> Workload:
    """Three hand-written functions."""

    class Model(_Mlp):
        def forward(self, x):
            h = _Swish.apply(self.up(x))
            h = _Quantize.apply(torch.tanh(self.mid(h)), 4)
            return self.down(h) + 0.1 * self.down(_Reverse.apply(h, 0.5))

    return _of_classes(Model())


@library.custom_op("autopar_zoo::scaled_softsign", mutates_args=())
def _scaled_softsign(x: torch.Tensor, scale: float) -> torch.Tensor:
    return scale * x / (1 + x.abs())


@_scaled_softsign.register_fake
def _(x, scale):
    return torch.empty_like(x)


@library.custom_op("autopar_zoo::scaled_softsign_backward", mutates_args=())
def _scaled_softsign_backward(grad: torch.Tensor, x: torch.Tensor, scale: float) -> torch.Tensor:
    return grad * scale / (1 + x.abs()) ** 2


@_scaled_softsign_backward.register_fake
def _(grad, x, scale):
    return torch.empty_like(x)


def _save_softsign(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def _softsign_gradient(ctx, grad):
    return torch.ops.autopar_zoo.scaled_softsign_backward(grad, ctx.saved_tensors[0], ctx.scale), None


_scaled_softsign.register_autograd(_softsign_gradient, setup_context=_save_softsign)


def custom_op() -> Workload:
    """Ops that a user registered, with a fake form and a gradient, for which nobody wrote a rule."""

    class Model(_Mlp):
        def forward(self, x):
            return self.down(_scaled_softsign(self.mid(_scaled_softsign(self.up(x), 2.0)), 1.5))

    return _of_classes(Model())


def gradient_penalty() -> Workload:
    """Double backward: the critic's gradient at its input has norm 1 (WGAN-GP)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.critic = nn.Sequential(nn.Linear(12, 16), nn.Softplus(), nn.Linear(16, 1))

        def forward(self, real, fake):
            mixed = (0.5 * (real + fake)).requires_grad_()
            (slope,) = torch.autograd.grad(self.critic(mixed).sum(), mixed, create_graph=True)
            penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
            return self.critic(fake).mean() - self.critic(real).mean() + 10 * penalty

    return Workload(Model(), (torch.randn(_BATCH, 12), torch.randn(_BATCH, 12)), (), lambda out: out, _ADAMW)


def energy_forces() -> Workload:
    """Forces as minus the gradient of an energy, both in the loss (interatomic potentials)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, positions):
            positions = positions.clone().requires_grad_(True)
            between = positions.unsqueeze(2) - positions.unsqueeze(1)
            distance = (between.pow(2).sum(-1, keepdim=True) + 0.1).sqrt()
            energy = self.pair(distance).sum((1, 2, 3))
            forces = -torch.autograd.grad(energy.sum(), positions, create_graph=True)[0]
            return energy, forces

    def loss(out, energy, forces):
        return F.mse_loss(out[0], energy) + F.l1_loss(out[1], forces)

    return Workload(Model(), (torch.randn(_BATCH, 4, 3),), (torch.randn(_BATCH), torch.randn(_BATCH, 4, 3)), loss, _ADAMW)


# -- hooks -----------------------------------------------------------------------------------------------------------------------------


def hooks() -> Workload:
    """Forward, forward-pre, backward and tensor hooks that change values."""

    class Model(_Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.up.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
            self.mid.register_forward_hook(lambda module, args, out: out + args[0])
            self.mid.register_full_backward_hook(lambda module, given, grads: tuple(g * 0.9 for g in given))
            self.down.register_full_backward_pre_hook(lambda module, grads: tuple(g.clamp(-0.05, 0.05) for g in grads))

        def forward(self, x):
            h = self.up(x)
            h.register_hook(lambda grad: grad * 2)
            return self.down(F.gelu(self.mid(torch.relu(h))))

    return _of_classes(Model())


def parameter_hooks() -> Workload:
    """Hooks on parameters: a scaled gradient, a masked one, and one after accumulation."""
    model = _Mlp()
    model.up.weight.register_hook(lambda grad: grad * 0.5)
    mask = torch.ones(16)
    mask[::2] = 0
    model.mid.bias.register_hook(lambda grad: grad * mask.to(grad.dtype))

    def clip(p):
        p.grad.clamp_(-0.02, 0.02)

    model.down.weight.register_post_accumulate_grad_hook(clip)
    return _of_classes(model)


# -- activation checkpointing ----------------------------------------------------------------------------------------------------------


class _Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, scale: float = 1.0):
        return x + scale * self.down(F.gelu(self.up(self.norm(x))))


class _Checkpointed(nn.Module):
    """Blocks, each called through `call(block, x)`."""

    def __init__(self, call) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(32, 16), nn.ModuleList([_Block() for _ in range(2)]), nn.Linear(16, 32)
        self.call = call

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = self.call(block, x)
        return self.head(x)


def checkpoint_reentrant() -> Workload:
    return _of_tokens(_Checkpointed(lambda block, x: ckpt.checkpoint(block, x, 0.5, use_reentrant=True)))


def checkpoint_plain() -> Workload:
    return _of_tokens(_Checkpointed(lambda block, x: ckpt.checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)))


def checkpoint_selective() -> Workload:
    """Matmuls are kept, the rest is made again."""
    keep = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}

    def policy(ctx, op, *args, **kwargs):
        return ckpt.CheckpointPolicy.MUST_SAVE if op in keep else ckpt.CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(ckpt.create_selective_checkpoint_contexts, policy)
    return _of_tokens(_Checkpointed(lambda block, x: ckpt.checkpoint(block, x, use_reentrant=False, context_fn=contexts)))


def checkpoint_sequential() -> Workload:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*[_Block(12) for _ in range(4)])
            self.head = nn.Linear(12, 8)

        def forward(self, x):
            return self.head(ckpt.checkpoint_sequential(self.blocks, 2, x, use_reentrant=False))

    return _of_classes(Model())


def checkpoint_wrapper() -> Workload:
    """FSDP's and torchtitan's way of wrapping a block."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as wrap

    model = _Checkpointed(lambda block, x: block(x))
    model.blocks = nn.ModuleList([wrap(b) for b in model.blocks])
    return _of_tokens(model)


# -- torch.compile ---------------------------------------------------------------------------------------------------------------------


def compiled_method() -> Workload:
    """`@torch.compile` on a function and on one block's forward."""

    @torch.compile
    def gate(a, b):
        return F.silu(a) * b

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 16)

        @torch.compile(dynamic=False)
        def forward(self, x):
            a, b = self.up(x).chunk(2, -1)
            return x + self.down(gate(a, b))

    model = nn.Sequential(nn.Embedding(32, 16), Gated(), nn.Linear(16, 32))
    return _of_tokens(model)


def compiled_block() -> Workload:
    """`block.compile()` and `torch.compile(block)` inside a model."""
    model = _Checkpointed(lambda block, x: block(x))
    model.blocks[0].compile(fullgraph=True)
    model.blocks[1] = torch.compile(model.blocks[1])
    return _of_tokens(model)


def compiled_model() -> Workload:
    return _of_tokens(torch.compile(_Checkpointed(lambda block, x: block(x))))


# -- parametrizations ------------------------------------------------------------------------------------------------------------------


def weight_norm_old() -> Workload:
    import warnings

    model = _Mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.nn.utils.weight_norm(model.up)
        torch.nn.utils.weight_norm(model.mid, dim=None)
    return _of_classes(model)


def weight_norm_new() -> Workload:
    model = _Mlp()
    parametrizations.weight_norm(model.up)
    parametrizations.weight_norm(model.mid, dim=None)
    return _of_classes(model)


def spectral_norm() -> Workload:
    """Power iteration in buffers at every step, old and new form."""
    model = _Mlp()
    torch.nn.utils.spectral_norm(model.up)
    parametrizations.spectral_norm(model.mid)
    return _of_classes(model)


def orthogonal() -> Workload:
    model = _Mlp()
    parametrizations.orthogonal(model.mid, orthogonal_map="cayley")
    return _of_classes(model)


def own_parametrization() -> Workload:
    """Symmetric, and masked for sparsity."""

    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).transpose(-1, -2)

    class Masked(nn.Module):
        def __init__(self, like: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("mask", (torch.arange(like.numel()).view_as(like) % 3 != 0).float())

        def forward(self, w):
            return w * self.mask

    model = _Mlp()
    nn.utils.parametrize.register_parametrization(model.mid, "weight", Symmetric())
    nn.utils.parametrize.register_parametrization(model.up, "weight", Masked(model.up.weight))
    return _of_classes(model)


# -- precision and randomness ----------------------------------------------------------------------------------------------------------


def autocast() -> Workload:
    """A bf16 region, float32 outside and inside a disabled island."""

    class Model(_Mlp):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = torch.relu(self.up(x))
                with torch.autocast("cpu", enabled=False):
                    h = F.layer_norm(h.float(), (16,))
                h = self.mid(h)
            return self.down(h.to(self.down.weight.dtype))

    return _of_classes(Model())


def dropout() -> Workload:
    """As a module, as a function, per channel, and inside attention."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.qkv, self.out, self.head = nn.Embedding(32, 16), nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 32)
            self.drop = nn.Dropout(0.2)

        def forward(self, ids):
            x = self.drop(self.embed(ids))
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
            x = x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), 0.1, self.training)
            return self.head(F.dropout1d(x, 0.1, self.training))

    return _of_tokens(Model())


def stochastic_depth() -> Workload:
    """Whole samples skip a block with some probability."""

    class Model(_Mlp):
        def forward(self, x):
            h = torch.relu(self.up(x))
            keep = torch.empty(x.shape[0], 1, dtype=x.dtype, device=x.device).bernoulli_(0.8)
            return self.down(h + self.mid(h) * keep / 0.8)

    return _of_classes(Model())


def noisy() -> Workload:
    """Noise drawn in the step: randn_like, rand, and a random time per sample (diffusion)."""

    class Model(_Mlp):
        def forward(self, x):
            t = torch.rand(x.shape[0], 1, dtype=x.dtype)
            noise = torch.randn_like(x)
            return F.mse_loss(self.down(F.gelu(self.mid(torch.relu(self.up(x * (1 - t) + noise * t))))), noise)

    return Workload(Model(classes=12), (torch.randn(_BATCH, 12),), (), lambda out: out, _ADAMW)


# -- inputs, outputs, losses -----------------------------------------------------------------------------------------------------------


def several_losses() -> Workload:
    """A classifier, an auxiliary head, and weight penalties, summed with weights."""

    class Model(_Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.aux = nn.Linear(16, 3)

        def forward(self, x):
            h = torch.relu(self.up(x))
            return self.down(F.gelu(self.mid(h))), self.aux(h)

    model = Model()

    def loss(out, labels, values, weights):
        main = F.cross_entropy(out[0], labels, label_smoothing=0.1)
        aux = (F.smooth_l1_loss(out[1], values, reduction="none").mean(1) * weights).sum() / weights.sum()
        penalty = sum(p.pow(2).sum() for p in model.parameters())
        return main + 0.5 * aux + 1e-3 * penalty + 1e-3 * out[0].logsumexp(-1).pow(2).mean()

    targets = (torch.randint(0, 8, (_BATCH,)), torch.randn(_BATCH, 3), torch.rand(_BATCH))
    return Workload(model, (torch.randn(_BATCH, 12),), targets, loss, _ADAMW)


def dict_inputs() -> Workload:
    """Keyword arguments with a nested dict, an optional argument left out, a dict out."""

    class Model(_Mlp):
        def forward(self, *, features, extras=None, scale=1.0, training_mode="full"):
            x = features["dense"] + features["more"][0]
            if extras is not None:
                x = x + extras
            h = torch.relu(self.up(x * scale))
            return {"logits": self.down(self.mid(h)), "hidden": {"first": h, "name": training_mode}}

    features = {"dense": torch.randn(_BATCH, 12), "more": [torch.randn(_BATCH, 12)]}
    labels = (torch.randint(0, 8, (_BATCH,)),)

    def loss(out, t):
        return F.cross_entropy(out["logits"], t) + 0.01 * out["hidden"]["first"].abs().mean()

    return Workload(Model(), {"features": features, "scale": 0.5}, labels, loss, _ADAMW)


def kwargs() -> Workload:
    """`**kwargs` handed through layers, with a mask."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(16, 16)

        def forward(self, x, **kwargs):
            return x + self.lin(x) * kwargs["mask"].unsqueeze(-1).to(x.dtype) * kwargs.get("gain", 1.0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layers, self.head = nn.Embedding(32, 16), nn.ModuleList([Layer(), Layer()]), nn.Linear(16, 32)

        def forward(self, ids, **kwargs):
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x, **kwargs)
            return self.head(x)

    ids = torch.randint(0, 32, (_BATCH, 6))
    return Workload(Model(), {"ids": ids, "mask": torch.rand(_BATCH, 6) > 0.3}, (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


@dataclasses.dataclass
class _Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] = ()


def dataclass_output() -> Workload:
    class Model(_Mlp):
        def forward(self, x):
            first = torch.relu(self.up(x))
            second = self.mid(first)
            return _Output(self.down(second), (first, second))

    def loss(out, t):
        return F.cross_entropy(out.logits, t) + 0.1 * sum(h.pow(2).mean() for h in out.hidden)

    return Workload(Model(), (torch.randn(_BATCH, 12),), (torch.randint(0, 8, (_BATCH,)),), loss, _ADAMW)


def loss_inside() -> Workload:
    """The model takes the labels and returns its loss first, as Hugging Face models do."""

    class Model(_Mlp):
        def forward(self, x, labels=None):
            logits = super().forward(x)
            return (F.cross_entropy(logits, labels), logits)

    inputs = {"x": torch.randn(_BATCH, 12), "labels": torch.randint(0, 8, (_BATCH,))}
    return Workload(Model(), inputs, (), lambda out: out[0], _ADAMW)


def accumulated_loss() -> Workload:
    """The loss is summed in a Python loop over slices of the batch."""

    class Model(_Mlp):
        def forward(self, x):
            total = 0.0
            for part in x.split(2):
                total = total + super().forward(part).logsumexp(-1).mean()
            return total / 4

    return Workload(Model(), (torch.randn(_BATCH, 12),), (), lambda out: out, _SGD)


def distillation() -> Workload:
    """KL to a frozen teacher in evaluation mode, with BatchNorm's running statistics."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = _Mlp()
            self.teacher = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
            self.teacher.requires_grad_(False).eval()

        def train(self, mode=True):
            super().train(mode)
            self.teacher.eval()
            return self

        def forward(self, x):
            with torch.no_grad():
                wanted = self.teacher(x)
            return self.student(x), wanted

    def loss(out, t):
        soft = F.kl_div(F.log_softmax(out[0] / 2, -1), F.log_softmax(out[1] / 2, -1), reduction="batchmean", log_target=True)
        hard = F.kl_div(F.log_softmax(out[0], -1), F.softmax(out[1], -1), reduction="batchmean")
        return F.cross_entropy(out[0], t) + 4 * soft + hard

    return Workload(Model(), (torch.randn(_BATCH, 12),), (torch.randint(0, 8, (_BATCH,)),), loss, _ADAMW)


def frozen_batch_norm() -> Workload:
    """Convolutions with BatchNorm in evaluation mode, its scale still trained."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 5))
    model[1].eval()
    with torch.no_grad():
        model[1].running_mean.uniform_(-1, 1)
        model[1].running_var.uniform_(0.5, 2)
    return Workload(model, (torch.randn(_BATCH, 3, 8, 8),), (torch.randint(0, 5, (_BATCH,)),), _classes, _ADAMW)


def shape_arithmetic() -> Workload:
    """Unpacked shapes, einsum, masks by torch.where, sizes as tensors."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.qkv, self.head = nn.Embedding(32, 16), nn.Linear(16, 48), nn.Linear(16, 32)

        def forward(self, ids):
            x = self.embed(ids)
            b, s, d = x.shape
            heads = d // 8
            q, k, v = self.qkv(x).view(b, s, 3, heads, -1).unbind(2)
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / torch.sqrt(torch.tensor(d / heads))
            position = torch.arange(s, device=x.device)
            seen = (position[:, None] >= position[None, :]) & (ids != 0)[:, None, None, :]
            scores = torch.where(seen, scores, torch.full_like(scores, torch.finfo(scores.dtype).min))
            y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(b, s, d)
            return self.head(x + y)

    return _of_tokens(Model())


def vectorized() -> Workload:
    """An ensemble by torch.vmap over stacked weights, and per-sample work by vmap."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.b1 = nn.Parameter(torch.randn(4, 12, 16) * 0.3), nn.Parameter(torch.zeros(4, 16))
            self.w2 = nn.Parameter(torch.randn(4, 16, 8) * 0.3)

        def forward(self, x):
            members = torch.vmap(lambda w1, b1, w2: torch.tanh(x @ w1 + b1) @ w2)(self.w1, self.b1, self.w2)
            centred = torch.vmap(lambda row: row - row.mean())(members.mean(0))
            return centred

    return _of_classes(Model())


def functional_call() -> Workload:
    """Weights predicted from a code and used through torch.func.functional_call (hypernetwork)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code = nn.Parameter(torch.randn(6))
            self.make = nn.Linear(6, 12 * 8 + 8)
            self.target = [nn.Linear(12, 8)]

        def forward(self, x):
            made = self.make(self.code)
            return torch.func.functional_call(self.target[0], {"weight": made[:96].view(8, 12), "bias": made[96:]}, (x,))

    return _of_classes(Model())
