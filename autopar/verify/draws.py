"""Draws: plain PyTorch with the random numbers that a compiled step draws.

In: a counter, and whatever runs inside `with draws:`. Out: every random op gives the numbers that the traced step has at the same place in
the order of its draws (`trace.random_ops`, on real tensors), and the counter moves on. torch's own generators are a sequence that no rank
could make a piece of, so this is how a run of plain PyTorch is compared with a program: it is no part of the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..graph.node import Const
from ..runtime.initial import first_count
from ..runtime.ops import find_op
from ..trace.lowering.draft import bind, schema_arguments
from ..trace.lowering.lower import pure_form
from ..trace.lowering.norms import Effects
from ..trace.lowering.random_ops import DRAWS
from ..trace.private import inline_checkpoints, without_compilers


class Draws(TorchDispatchMode):
    """Answers random ops; `count` is the counter. Checkpointed regions must be inlined (`same_draws`): a second run would draw again."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: D105
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        pure = pure_form(func) if func._schema.name.endswith("_") else func
        rule = DRAWS.get(str(pure))
        out = func(*args, **kwargs)  # for its shape and dtype; its values are replaced
        if rule is None:
            return out
        bound = bind(func, args, kwargs)
        outs = [out] if isinstance(out, torch.Tensor) else list(out)
        calls = _RealCalls(self.count, outs)
        defaults = {a.name: a.default for op in (pure, func) for a in schema_arguments(op) if a.has_default}
        made = rule(calls, defaults | bound)  # type: ignore[arg-type]
        if isinstance(made, Effects):
            for name, value in made.writes.items():
                bound[name].copy_(value)
            made = made.outs
        for old, new in zip(outs, [made] if isinstance(made, torch.Tensor) else made):
            old.copy_(new)
        self.count = calls.count
        return out


class _RealCalls:
    """The part of `Draft` that the rules of random ops use, on real tensors."""

    def __init__(self, count: int, outs: list[torch.Tensor]) -> None:
        self.count = count
        self.specs = [(tuple(t.shape), t.dtype) for t in outs]

    def call(self, name: str, /, *args, **kwargs):
        return find_op(name)(*args, **kwargs)

    def emit_one(self, op: str, args: dict, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return find_op(op)(**{k: dtype if isinstance(v, Const) else v for k, v in args.items()})

    def positions(self, n: int, use: str) -> torch.Tensor:
        return torch.arange(n)

    def next_count(self) -> torch.Tensor:
        self.count += 1
        return torch.tensor(self.count - 1)

    def cast(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return x.to(dtype)

    def full(self, shape: tuple[int, ...], value: object, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype)

    def expand(self, x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return x.expand(shape)

    def add(self, a, b):
        return a + b

    def sub(self, a, b):
        return a - b

    def mul(self, a, b):
        return a * b

    def div(self, a, b):
        return a / b


@contextlib.contextmanager
def same_draws(draws: Draws) -> Iterator[None]:
    """Inside, plain PyTorch draws what the program draws, and runs what the program runs of regions under torch.compile or flex attention."""
    with inline_checkpoints(), without_compilers(), draws:
        yield


def first_draws(seed: int) -> Draws:
    """The draws of a run's first step; use the same value for the steps after it."""
    return Draws(first_count(seed))
