"""A user's file: custom ops with their gradients, a region, and models made of them. `python -m autopar` and the tests load it as it is."""

from __future__ import annotations

import torch
from torch import Tensor, library, nn

import autopar

WIDTH, SEQ, BATCH, CLASSES = 24, 12, 8, 12


@library.custom_op("userops::gate", mutates_args=())
def gate(x: Tensor, scale: Tensor) -> Tensor:
    """x [b, s, d] times the sigmoid of itself scaled by `scale` [d]."""
    return x * torch.sigmoid(x * scale)


@gate.register_fake
def _(x, scale):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@library.custom_op("userops::gate_backward", mutates_args=())
def gate_backward(grad: Tensor, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and scale."""
    s = torch.sigmoid(x * scale)
    slope = s * (1 - s)
    return grad * (s + x * slope * scale), (grad * x * slope * x).flatten(0, -2).sum(0)


@gate_backward.register_fake
def _(grad, x, scale):
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(scale)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


gate.register_autograd(lambda ctx, grad: gate_backward(grad, *ctx.saved_tensors), setup_context=_keep)


@library.custom_op("userops::row_softmax", mutates_args=())
def row_softmax(x: Tensor) -> Tensor:
    """Softmax over the last dim."""
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


@row_softmax.register_fake
def _(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@library.custom_op("userops::row_softmax_backward", mutates_args=())
def row_softmax_backward(grad: Tensor, y: Tensor) -> Tensor:
    """Gradient of x from the output."""
    return y * (grad - (grad * y).sum(-1, keepdim=True))


@row_softmax_backward.register_fake
def _(grad, y):
    return torch.empty_like(y, memory_format=torch.contiguous_format)


row_softmax.register_autograd(
    lambda ctx, grad: row_softmax_backward(grad, ctx.saved_tensors[0]), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output)
)


@library.custom_op("userops::mix", mutates_args=())
def mix(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [b, s, d] times weight [d, e] plus bias [e]."""
    return x @ weight + bias


@mix.register_fake
def _(x, weight, bias):
    return x.new_empty(*x.shape[:-1], weight.shape[1])


@library.custom_op("userops::mix_backward", mutates_args=())
def mix_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias."""
    flat = grad.flatten(0, -2)
    return grad @ weight.t(), x.flatten(0, -2).t() @ flat, flat.sum(0)


@mix_backward.register_fake
def _(grad, x, weight):
    return torch.empty_like(x), torch.empty_like(weight), grad.new_empty(weight.shape[1])


mix.register_autograd(
    lambda ctx, grad: mix_backward(grad, *ctx.saved_tensors), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2])
)


@autopar.region("b s d, d e -> b s e", linear=("x", "weight"))
def route(x: Tensor, weight: Tensor) -> Tensor:
    """A product that looks at its data on the way."""
    if x.abs().sum().item() == 0:
        return x.new_zeros(*x.shape[:-1], weight.shape[1])
    return x @ weight


class Custom(nn.Module):
    """Embed, mix, gate, softmax, classify: `mix` is the custom op or the region."""

    def __init__(self, region: bool = False) -> None:
        super().__init__()
        self.region = region
        self.up = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH) * 0.2)
        self.bias = nn.Parameter(torch.zeros(2 * WIDTH))
        self.scale = nn.Parameter(torch.ones(2 * WIDTH))
        self.head = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        h = route(x, self.weight) + self.bias if self.region else torch.ops.userops.mix(x, self.weight, self.bias)
        h = torch.ops.userops.gate(h, self.scale) * torch.ops.userops.row_softmax(h)
        return self.head(h)


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def build(region: bool = False) -> autopar.Workload:
    """The workload."""
    x, targets = torch.randn(BATCH, SEQ, WIDTH), torch.randint(0, CLASSES, (BATCH, SEQ))
    return autopar.Workload(Custom(region), (x,), (targets,), loss, torch.optim.AdamW)


def build_region() -> autopar.Workload:
    """With the region."""
    return build(region=True)
