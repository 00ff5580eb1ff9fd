"""Random small models: a handful of ops drawn from a palette, with parameters among them, as a workload with loss and optimizer.

A seed gives the same model each time. Shapes are small and divide by 2, 3, 4 in places, so that random plans split, nest and refuse.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from autopar.trace import Workload

_POINTWISE: tuple[Callable, ...] = (
    torch.relu, torch.tanh, F.gelu, torch.sigmoid, F.silu, torch.sin, torch.abs, torch.neg, F.softplus, F.elu, F.leaky_relu, F.hardswish,
    lambda x: x * x, lambda x: (x.abs() + 0.5).sqrt(), lambda x: x.clamp(-1, 1), lambda x: x.exp().clamp(max=3), lambda x: x / (1 + x * x),
    lambda x: x.masked_fill(x > 1, 0.5), lambda x: torch.where(x > 0, x, 0.1 * x), lambda x: x + 1.0, lambda x: 0.7 * x,
    lambda x: x.float().double() if x.dtype == torch.float64 else x,
)  # fmt: skip
_BINARY: tuple[Callable, ...] = (
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda x, y: x / (y * y + 1), lambda x, y: torch.where(x > y, x, y.sin()),
    lambda x, y: torch.addcmul(x, x, y, value=0.3), lambda x, y: torch.lerp(x, y, 0.4), lambda x, y: torch.atan2(x, y * y + 1),
)  # fmt: skip


class RandomModel(nn.Module):
    """Runs the recorded steps; each reads tensors by number and adds what it makes."""

    def __init__(self, seed: int, num_steps: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._steps: list[tuple[Callable, tuple[int, ...]]] = []
        self.words: list[str] = []
        torch.manual_seed(seed)
        batch = self._rng.choice((4, 6, 8, 12))
        shape = (batch, *(self._rng.choice((2, 4, 6, 8)) for _ in range(self._rng.choice((1, 2, 2, 3)))))
        self.x, self.index = torch.randn(shape), torch.randint(0, 6, (batch,))
        table = self._param(6, shape[-1])
        pool = [self.x, self.index.float()]
        self._steps.append((lambda i: F.embedding(i, table()), (-1,)))
        scale = self._param(shape[-1])
        self._steps.append((lambda x: x * scale(), (0,)))
        with torch.no_grad():
            pool += [F.embedding(self.index, table()), self.x * scale()]
            while len(self._steps) < num_steps:
                self._grow(pool)
        self._final = [2, *self._rng.sample(range(3, len(pool)), min(3, len(pool) - 3))]

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """The sum of a few of the tensors that were made: [batch of many]."""
        pool = [x, index.to(x.dtype)]
        for step, reads in self._steps:
            pool.append(step(*(index if k < 0 else pool[k] for k in reads)))
        return torch.cat([pool[k].flatten() for k in self._final])

    # -- growing -----------------------------------------------------------------------------------------------------------------------

    def _param(self, *shape: int) -> Callable[[], torch.Tensor]:
        name = f"p{len(self._parameters)}"
        self.register_parameter(name, nn.Parameter(torch.randn(shape) * 0.5))
        return lambda: getattr(self, name)

    def _grow(self, pool: list[torch.Tensor]) -> None:
        kind = self._rng.choice([getattr(self, name) for name in dir(self) if name.startswith("_draw_")])
        k = self._rng.choice(range(2, len(pool)) if self._rng.random() < 0.4 else range(max(0, len(pool) - 3), len(pool)))
        drawn = kind(pool, k)
        if drawn is None:
            return
        step, reads = drawn
        try:
            made = step(*(pool[r] for r in reads))
        except (RuntimeError, IndexError, ValueError):
            return
        if made.numel() == 0 or made.numel() > 4000 or not bool(torch.isfinite(made).all()) or float(made.abs().max()) > 1e3:
            return
        self.words.append(kind.__name__.removeprefix("_draw_"))
        self._steps.append((step, reads))
        pool.append(made)

    def _dim(self, x: torch.Tensor) -> int:
        return self._rng.randrange(x.dim()) if x.dim() else 0

    def _draw_pointwise(self, pool, k):
        return self._rng.choice(_POINTWISE), (k,)

    def _draw_binary(self, pool, k):
        fits = [j for j, y in enumerate(pool) if y.shape == pool[k].shape or (y.dim() and pool[k].shape[-y.dim() :] == y.shape)]
        return self._rng.choice(_BINARY), (k, self._rng.choice(fits))

    def _draw_permute(self, pool, k):
        dims = list(range(pool[k].dim()))
        self._rng.shuffle(dims)
        return lambda x: x.permute(dims), (k,)

    def _draw_merge(self, pool, k):
        if pool[k].dim() < 2:
            return None
        d = self._rng.randrange(pool[k].dim() - 1)
        return lambda x: x.flatten(d, d + 1), (k,)

    def _draw_split(self, pool, k):
        x = pool[k]
        found = [(d, n) for d, size in enumerate(x.shape) for n in (2, 3, 4) if size % n == 0 and size > n]
        if not found or x.dim() > 4:
            return None
        d, n = self._rng.choice(found)
        outer = self._rng.random() < 0.5
        return lambda x: x.unflatten(d, (n, -1) if outer else (-1, n)), (k,)

    def _draw_reshape(self, pool, k):
        x = pool[k]
        sizes = [n for n in (2, 3, 4, 6, 8, 12, 16, 24) if x.numel() % n == 0]
        if not sizes:
            return None
        n = self._rng.choice(sizes)
        return lambda x: x.reshape(n, -1), (k,)

    def _draw_narrow(self, pool, k):
        d = self._dim(pool[k])
        size = pool[k].shape[d] if pool[k].dim() else 1
        if size < 2:
            return None
        start = self._rng.randrange(size - 1)
        length = self._rng.randrange(1, size - start + 1)
        step = self._rng.choice((1, 1, 2))
        return lambda x: x.narrow(d, start, length)[(slice(None),) * d + (slice(None, None, step),)], (k,)

    def _draw_chunk(self, pool, k):
        d, n, j = self._dim(pool[k]), self._rng.choice((2, 3)), self._rng.randrange(2)
        return lambda x: x.chunk(n, d)[j], (k,)

    def _draw_select(self, pool, k):
        d = self._dim(pool[k])
        return lambda x: x.select(d, 1), (k,)

    def _draw_cat(self, pool, k):
        fits = [j for j, y in enumerate(pool) if y.shape == pool[k].shape]
        d = self._dim(pool[k])
        return lambda x, y: torch.cat([x, y], d), (k, self._rng.choice(fits))

    def _draw_stack(self, pool, k):
        fits = [j for j, y in enumerate(pool) if y.shape == pool[k].shape]
        d = self._rng.randrange(pool[k].dim() + 1)
        return lambda x, y: torch.stack([x, y], d), (k, self._rng.choice(fits))

    def _draw_move(self, pool, k):
        d = self._dim(pool[k])
        make = self._rng.choice((lambda x: x.flip(d), lambda x: x.roll(1, d), lambda x: F.pad(x, (1, 0)), lambda x: x.unsqueeze(d), torch.squeeze))
        return make, (k,)

    def _draw_reduce(self, pool, k):
        d, keep = self._dim(pool[k]), self._rng.random() < 0.5
        make = self._rng.choice((
            lambda x: x.sum(d, keep), lambda x: x.mean(d, keep), lambda x: x.amax(d, keep), lambda x: x.var(d, keepdim=keep),
            lambda x: x.logsumexp(d, keep), lambda x: x.norm(dim=d, keepdim=keep), lambda x: x.max(d, keep)[0], lambda x: x.prod(d, keep),
        ))  # fmt: skip
        return make, (k,)

    def _draw_normalise(self, pool, k):
        d = self._dim(pool[k])
        width = pool[k].shape[-1] if pool[k].dim() else 1
        w = self._param(width)
        make = self._rng.choice((
            lambda x: x.softmax(d), lambda x: x.log_softmax(d), lambda x: F.layer_norm(x, (width,), w(), w() * 0.5), lambda x: F.normalize(x, dim=d),
            lambda x: F.rms_norm(x, (width,), w()), lambda x: x - x.mean(d, True), lambda x: x.cumsum(d),
        ))  # fmt: skip
        return make, (k,)

    def _draw_channels(self, pool, k):
        x = pool[k]
        if x.dim() < 3:
            return None
        c = x.shape[1]
        groups = 2 if c % 2 == 0 else 1
        w = self._param(c)
        make = self._rng.choice((
            lambda x: F.batch_norm(x, None, None, w(), None, True), lambda x: F.group_norm(x, groups, w()),
            lambda x: F.avg_pool1d(x, 2) if x.dim() == 3 else F.max_pool2d(x, 2, 1), lambda x: F.interpolate(x, scale_factor=2),
        ))  # fmt: skip
        return make, (k,)

    def _draw_linear(self, pool, k):
        width, out = pool[k].shape[-1] if pool[k].dim() else 1, self._rng.choice((4, 6, 8))
        w, b = self._param(out, width), self._param(out)
        return self._rng.choice((lambda x: F.linear(x, w(), b()), lambda x: F.linear(x, w()), lambda x: x @ w().t() + b())), (k,)

    def _draw_conv(self, pool, k):
        x = pool[k]
        if x.dim() not in (3, 4):
            return None
        groups = self._rng.choice((1, 1, 2)) if x.shape[1] % 2 == 0 else 1
        w, b = self._param(4, x.shape[1] // groups, *((3,) * (x.dim() - 2))), self._param(4)
        conv = F.conv1d if x.dim() == 3 else F.conv2d
        stride = self._rng.choice((1, 2))
        return lambda x: conv(x, w(), b(), stride=stride, padding=1, groups=groups), (k,)

    def _draw_matmul(self, pool, k):
        fits = [j for j, y in enumerate(pool) if y.dim() >= 2 and y.shape == pool[k].shape]
        if not fits:
            return None
        make = self._rng.choice((lambda x, y: x @ y.transpose(-1, -2), lambda x, y: x.transpose(-1, -2) @ y, lambda x, y: torch.einsum("...i,...i->...", x, y)))
        return make, (k, self._rng.choice(fits))

    def _draw_attention(self, pool, k):
        fits = [j for j, y in enumerate(pool) if y.dim() in (3, 4) and y.shape == pool[k].shape]
        if not fits:
            return None
        causal = self._rng.random() < 0.5
        make = lambda x, y: F.scaled_dot_product_attention(*((t if t.dim() == 4 else t.unsqueeze(1)) for t in (x, y, y)), is_causal=causal)  # noqa: E731
        return make, (k, self._rng.choice(fits))

    def _draw_lookup(self, pool, k):
        x, d = pool[k], self._dim(pool[k])
        if not x.dim() or x.shape[d] < 2:
            return None
        size = x.shape[d]
        picked = torch.tensor([self._rng.randrange(size) for _ in range(6)])
        shape = [1] * x.dim()
        shape[d] = 6
        make = self._rng.choice((
            lambda x: x.index_select(d, picked), lambda x: x.gather(d, picked.view(shape).expand(*x.shape[:d], 6, *x.shape[d + 1 :])),
            lambda x: x.sort(d)[0], lambda x: x.topk(2, d)[0], lambda x: torch.zeros_like(x).index_add(d, picked[:2], x.narrow(d, 0, 2)),
            lambda x: torch.take_along_dim(x, x.argsort(d, descending=True), d),
        ))  # fmt: skip
        return make, (k,)

    def _draw_dropout(self, pool, k):
        return (lambda x: F.dropout(x, 0.3)), (k,)


def _half_square(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((out - target.mean()) ** 2).mean()


def make_random_workload(seed: int, num_steps: int = 12) -> Workload:
    """The model of this seed."""
    model = RandomModel(seed, num_steps)
    inputs = (model.x.clone(), model.index.clone())
    optimizer = (torch.optim.AdamW, torch.optim.SGD)[seed % 2]
    return Workload(model, inputs, (torch.randn(4),), _half_square, lambda p: optimizer(p, lr=1e-2), name=f"random {seed}")
