"""Experiments: an op is run on pieces of made-up data, and what the pieces make is compared with what the whole makes.

In: an op and samples of it. Out: which dims form a factor (split together, the pieces join exactly, or owe a sum, maximum or minimum), and
through which inputs a Partial passes. Nothing is believed of an op but that it is one function at all sizes: a claim must hold on
signed numbers of several scales, with zeros, at two sets of sizes, on 2 and on 3 pieces.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations, product

import torch

from .referee import Run, Tensors

Outputs = tuple[torch.Tensor | None, ...]
Way = int | str  # what a factor does to an output: a dim that it splits, or "same", "sum", "max", "min"
WAYS = ("same", "sum", "max", "min")
_TOLERANCE = {torch.float64: 1e-9, torch.complex128: 1e-9}  # relative to the largest number that takes part
_NARROW_TOLERANCE = 2e-4
_COEFFICIENTS = (-1.7, 0.6)
_MAX_TOGETHER = 3  # inputs through which one Partial may pass together
clock = time.thread_time  # CPU seconds: what is found must not depend on how busy the machine is


class OutOfTime(Exception):
    """The seconds that an op may cost are spent."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Inputs and what the op makes of them; `args` are those of these sizes."""

    args: tuple
    inputs: Tensors
    outputs: Outputs


@dataclass(frozen=True, slots=True)
class Found:
    """One factor.

    Args:
        dims: of each input the dim that it splits, -1 where it has none.
        ways: of each output what it does there; None for an output that does not exist.
        owed: numbers of the inputs that must be Partial where it is split.
    """

    dims: tuple[int, ...]
    ways: tuple[Way | None, ...]
    owed: tuple[int, ...] = ()


@dataclass(slots=True)
class Laboratory:
    """Runs one op until `deadline` (of `clock`); counts what it does."""

    op: str
    run: Run
    deadline: float
    num_trials: int = 0
    rng: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def call(self, args: tuple, inputs: Iterable[torch.Tensor]) -> Outputs | None:
        """What the op makes; None where it does not take these inputs.

        Raises:
            OutOfTime: before it is called.
        """
        if clock() > self.deadline:
            raise OutOfTime
        self.num_trials += 1
        try:
            return self.run(self.op, args, tuple(inputs))
        except Exception:  # a user's op may raise anything at all
            return None

    # -- factors -------------------------------------------------------------------------------------------------------------------

    def find_ways(self, dims: tuple[int, ...], trials: Iterable[Trial], shards: tuple[int, ...]) -> list[set[Way] | None] | None:
        """What splitting these dims together does to each output, on every trial; None where it does nothing that can be joined."""
        return self._narrow_ways(trials, dims, (), shards)

    def find_owed(self, dims: tuple[int, ...], trials: Iterable[Trial], shards: tuple[int, ...]) -> tuple[int, ...]:
        """The fewest inputs without the factor that must be Partial so that the outputs are sums; () where that does not help."""
        trials = tuple(trials)
        lacking = [k for k, d in enumerate(dims) if d < 0 and trials[0].inputs[k].dtype.is_floating_point]
        for count in range(1, min(len(lacking), _MAX_TOGETHER) + 1):
            for owed in combinations(lacking, count):
                ways = self._narrow_ways(trials, dims, owed, shards)
                if ways is not None and all(w is None or "sum" in w for w in ways):
                    return owed
        return ()

    def _narrow_ways(
        self, trials: Iterable[Trial], dims: tuple[int, ...], owed: tuple[int, ...], shards: tuple[int, ...]
    ) -> list[set[Way] | None] | None:
        found: list[set[Way] | None] | None = None
        for trial in trials:
            for n in shards:
                if any(d >= 0 and t.shape[d] % n for d, t in zip(dims, trial.inputs)):
                    continue  # of sizes that had to stay as they are
                pieces = self._pieces(trial, dims, n, owed)
                if pieces is None:
                    return None
                ways = [None if whole is None else _ways(whole, [p[k] for p in pieces], n) for k, whole in enumerate(trial.outputs)]
                found = ways if found is None else [None if a is None or b is None else a & b for a, b in zip(found, ways)]
                if any(w is not None and not w for w in found):
                    return None
        return found

    def _pieces(self, trial: Trial, dims: tuple[int, ...], n: int, owed: tuple[int, ...]) -> list[Outputs] | None:
        parts = []
        for k, (tensor, dim) in enumerate(zip(trial.inputs, dims)):
            if dim >= 0:
                parts.append([p.contiguous() for p in tensor.chunk(n, dim)])
            elif k in owed:
                parts.append(self._addends(tensor, n))
            else:
                parts.append([tensor] * n)
        made = []
        for rank in range(n):
            out = self.call(trial.args, [p[rank] for p in parts])
            if out is None or [o is None for o in out] != [o is None for o in trial.outputs]:
                return None
            made.append(out)
        return made

    def _addends(self, whole: torch.Tensor, n: int) -> list[torch.Tensor]:
        scale = whole.abs().mean()
        parts = [(torch.randn(whole.shape, generator=self.rng, dtype=torch.float64) * scale).to(whole.dtype) for _ in range(n - 1)]
        return [*parts, whole - sum(parts)]

    # -- linearity -------------------------------------------------------------------------------------------------------------------

    def find_linear(self, trials: tuple[tuple[Trial, Trial], ...]) -> tuple[tuple[int, ...], ...]:
        """Sets of inputs in which the op is linear together: smallest first, none that holds another.

        Args:
            trials: pairs with the same shapes and attributes.
        """
        first = trials[0][0]
        if not all(o is None or o.dtype.is_floating_point or o.dtype.is_complex for o in first.outputs):
            return ()
        able = [k for k, t in enumerate(first.inputs) if t.dtype.is_floating_point or t.dtype.is_complex]
        found: list[tuple[int, ...]] = []
        for count in range(1, len(able) + 1):
            if count > _MAX_TOGETHER and count < len(able):
                continue
            for together in combinations(able, count):
                if any(set(smaller) <= set(together) for smaller in found):
                    continue
                if all(self._is_linear(a, b, together) for a, b in trials):
                    found.append(together)
        return tuple(found)

    def _is_linear(self, one: Trial, other: Trial, together: tuple[int, ...]) -> bool:
        alpha, beta = _COEFFICIENTS
        mixed = [alpha * x + beta * y if k in together else x for k, (x, y) in enumerate(zip(one.inputs, other.inputs))]
        there = [y if k in together else x for k, (x, y) in enumerate(zip(one.inputs, other.inputs))]
        found, theirs = self.call(one.args, mixed), self.call(one.args, there)
        if found is None or theirs is None:
            return False
        for made, a, b in zip(found, one.outputs, theirs):
            if a is None or b is None or made is None:
                continue
            if not is_equal(made, alpha * a + beta * b, [a, b, made]):
                return False
        return True


def _ways(whole: torch.Tensor, pieces: list[torch.Tensor | None], n: int) -> set[Way]:
    """Everything that the pieces can be to the whole."""
    held = [p for p in pieces if p is not None]
    shape = tuple(held[0].shape)
    if any(tuple(p.shape) != shape or p.dtype != whole.dtype for p in held):
        return set()
    if shape == tuple(whole.shape):
        found: set[Way] = set()
        stacked = torch.stack(held)
        if all(is_equal(p, whole, held) for p in held):
            found.add("same")
        if whole.dtype != torch.bool and is_equal(stacked.sum(0).to(whole.dtype), whole, held):
            found.add("sum")
        if not whole.dtype.is_complex and whole.dtype != torch.bool:
            found |= {name for name, value in (("max", stacked.amax(0)), ("min", stacked.amin(0))) if is_equal(value, whole, held)}
        return found
    split = [d for d, (a, b) in enumerate(zip(shape, whole.shape)) if a != b] if len(shape) == whole.dim() else []
    if len(split) != 1 or shape[split[0]] * n != whole.shape[split[0]]:
        return set()
    return {split[0]} if is_equal(torch.cat(held, split[0]), whole, held) else set()


def is_equal(found: torch.Tensor, expected: torch.Tensor, terms: list[torch.Tensor]) -> bool:
    """Equal but for rounding of the numbers that took part; whole numbers exactly."""
    if found.shape != expected.shape:
        return False
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return torch.equal(found, expected)
    tolerance = _TOLERANCE.get(expected.dtype, _NARROW_TOLERANCE)
    largest = max((float(t[t.isfinite()].abs().max()) for t in (expected, *terms) if t.isfinite().any()), default=0.0)
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


def list_candidates(shapes: tuple[tuple[int, ...], ...], equal: bool) -> list[tuple[int, ...]]:
    """Dims that may be one factor, one or none of each input; with the most inputs first.

    Args:
        equal: True: of one size; False: of sizes of which the smallest divides the others (a dim that is a product).
    """
    found = []
    for dims in product(*([*range(len(shape)), -1] for shape in shapes)):
        sizes = {shape[d] for shape, d in zip(shapes, dims) if d >= 0}
        if not sizes or min(sizes) == 1 or (len(sizes) == 1) != equal or any(s % min(sizes) for s in sizes):
            continue
        found.append(dims)
    return sorted(found, key=lambda dims: -sum(d >= 0 for d in dims))
