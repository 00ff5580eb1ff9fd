"""One small model under every optimizer that people bring, torch's and their own; global batch 8."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from autopar import Workload


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(F.gelu(self.norm(self.up(x))))


def _under(optimizer) -> Workload:
    return Workload(_Mlp(), (torch.randn(8, 12),), (torch.randint(0, 8, (8,)),), F.cross_entropy, optimizer)


def sgd() -> Workload:
    return _under(functools.partial(torch.optim.SGD, lr=0.1))


def sgd_nesterov() -> Workload:
    return _under(functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))


def sgd_foreach() -> Workload:
    return _under(functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True))


def adam() -> Workload:
    return _under(functools.partial(torch.optim.Adam, lr=1e-2, weight_decay=0.1, amsgrad=True))


def adamw_foreach() -> Workload:
    return _under(functools.partial(torch.optim.AdamW, lr=1e-2, foreach=True))


def adamw_fused() -> Workload:
    return _under(functools.partial(torch.optim.AdamW, lr=1e-2, fused=True))


def adamw_tensor_rate() -> Workload:
    """A learning rate that is a tensor."""
    return _under(lambda params: torch.optim.AdamW(params, lr=torch.tensor(1e-2), foreach=False))


def adamw_maximize() -> Workload:
    return _under(functools.partial(torch.optim.AdamW, lr=1e-3, maximize=True, betas=(0.8, 0.95), eps=1e-6))


def rmsprop() -> Workload:
    return _under(functools.partial(torch.optim.RMSprop, lr=1e-2, momentum=0.5, centered=True))


def adagrad() -> Workload:
    return _under(functools.partial(torch.optim.Adagrad, lr=1e-2, lr_decay=0.1, initial_accumulator_value=0.1))


def nadam() -> Workload:
    return _under(functools.partial(torch.optim.NAdam, lr=1e-2, decoupled_weight_decay=True, weight_decay=0.1))


def radam() -> Workload:
    return _under(functools.partial(torch.optim.RAdam, lr=1e-2))


def adamax() -> Workload:
    return _under(functools.partial(torch.optim.Adamax, lr=1e-2))


def adadelta() -> Workload:
    return _under(torch.optim.Adadelta)


def asgd() -> Workload:
    return _under(functools.partial(torch.optim.ASGD, lr=1e-2))


def rprop() -> Workload:
    return _under(functools.partial(torch.optim.Rprop, lr=1e-2))


def muon() -> Workload:
    """Matrices only; the vectors stay."""
    return _under(lambda params: torch.optim.Muon([p for p in params if p.ndim == 2], lr=1e-2))


class _Clipped(torch.optim.AdamW):
    """Clips the global norm first."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], 0.5)
        return super().step(closure)


def clipped() -> Workload:
    return _under(functools.partial(_Clipped, lr=1e-2))


class _Wrapper(torch.optim.Optimizer):
    """Holds another optimizer: clips by value and by norm, then steps it (Lightning, timm)."""

    def __init__(self, params, base, **options) -> None:
        self.base = base(params, **options)
        super().__init__(self.base.param_groups, {})
        self.param_groups, self.state = self.base.param_groups, self.base.state

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for g in self.param_groups for p in g["params"]]
        torch.nn.utils.clip_grad_value_(params, 0.1)
        torch.nn.utils.clip_grad_norm_(params, 0.5, foreach=True)
        self.base.step()


def wrapped() -> Workload:
    return _under(functools.partial(_Wrapper, base=torch.optim.AdamW, lr=1e-2))


class _Both(torch.optim.Optimizer):
    """Muon for matrices and AdamW for the rest under one roof."""

    def __init__(self, params) -> None:
        matrices, vectors = [p for p in params if p.ndim == 2], [p for p in params if p.ndim != 2]
        self.parts = [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(vectors, lr=1e-2)]
        super().__init__(params, {})

    @property
    def state(self):
        return {**self.parts[0].state, **self.parts[1].state}

    @state.setter
    def state(self, value):
        pass

    def step(self, closure=None):
        for part in self.parts:
            part.step()


def muon_and_adamw() -> Workload:
    return _under(_Both)


class _Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum (arXiv 2302.06675)."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), decay=0.01) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["momentum"] = torch.zeros_like(p)
                m, (b1, b2) = state["momentum"], group["betas"]
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def lion() -> Workload:
    return _under(_Lion)


class _Lamb(torch.optim.Optimizer):
    """Adam's step scaled by the ratio of norms of weight and step (arXiv 1904.00962), counting in Python."""

    def __init__(self, params, lr=1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                m, v = state["m"] / (1 - 0.9 ** state["step"]), state["v"] / (1 - 0.999 ** state["step"])
                step = m / (v.sqrt() + 1e-6) + 0.01 * p
                weight, size = p.norm(), step.norm()
                ratio = torch.where((weight > 0) & (size > 0), weight / size, 1.0)
                p.add_(-group["lr"] * ratio * step)


def lamb() -> Workload:
    return _under(_Lamb)


class _Foreach(torch.optim.Optimizer):
    """A user's own Adam over whole lists of tensors."""

    def __init__(self, params, lr=1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["m"], self.state[p]["v"] = torch.zeros_like(p), torch.zeros_like(p)
            m, v = [self.state[p]["m"] for p in params], [self.state[p]["v"] for p in params]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            torch._foreach_mul_(grads, torch.clamp(1.0 / (norm + 1e-6), max=1.0))
            torch._foreach_lerp_(m, grads, 0.1)
            torch._foreach_mul_(v, 0.99)
            torch._foreach_addcmul_(v, grads, grads, 0.01)
            below = torch._foreach_sqrt(v)
            torch._foreach_add_(below, 1e-8)
            torch._foreach_mul_(params, 1 - group["lr"] * 0.1)
            torch._foreach_addcdiv_(params, m, below, -group["lr"])


def foreach_own() -> Workload:
    return _under(_Foreach)


class _Scheduled(torch.optim.Optimizer):
    """SGD with warm-up and a cosine, from a step count that is a tensor in the state of each parameter."""

    def __init__(self, params, lr=0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["count"] = torch.zeros(())
                state["count"] += 1
                rate = torch.minimum(state["count"] / 10, 0.5 * (1 + torch.cos(state["count"] / 100)))
                p.sub_(p.grad * (group["lr"] * rate))


def scheduled() -> Workload:
    return _under(_Scheduled)


class _Shampoo(torch.optim.Optimizer):
    """Preconditioners of rows and columns, their roots by a fixed number of Newton-Schulz steps."""

    def __init__(self, params, lr=1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @staticmethod
    def _inverse_root(a):
        size = torch.linalg.matrix_norm(a)
        y, z, eye = a / size, torch.eye(a.shape[0], dtype=a.dtype), torch.eye(a.shape[0], dtype=a.dtype)
        for _ in range(4):
            t = 0.5 * (3 * eye - z @ y)
            y, z = y @ t, t @ z
        return z / size.sqrt()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    p.add_(p.grad, alpha=-group["lr"])
                    continue
                state = self.state[p]
                if not state:
                    state["left"], state["right"] = torch.zeros(p.shape[0], p.shape[0]), torch.zeros(p.shape[1], p.shape[1])
                state["left"].add_(p.grad @ p.grad.t())
                state["right"].add_(p.grad.t() @ p.grad)
                left = self._inverse_root(state["left"] + torch.eye(p.shape[0]))
                right = self._inverse_root(state["right"] + torch.eye(p.shape[1]))
                p.add_(left @ p.grad @ right, alpha=-group["lr"])


def shampoo() -> Workload:
    return _under(_Shampoo)


class _Lookahead(torch.optim.Optimizer):
    """Centralised gradients with look-ahead weights: slow copies pulled along at every step."""

    def __init__(self, params, lr=0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "slow" not in state:
                    state["slow"] = p.detach().clone()
                grad = p.grad - p.grad.mean(dim=tuple(range(1, p.ndim)), keepdim=True) if p.ndim > 1 else p.grad
                p.sub_(grad, alpha=group["lr"])
                state["slow"].lerp_(p, 0.2)
                p.copy_(0.5 * (p + state["slow"]))


def lookahead() -> Workload:
    return _under(_Lookahead)
