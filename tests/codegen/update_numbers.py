"""Whole steps of small models in Triton's interpreter, against plain PyTorch in float64: prints one JSON object per case, with how often each kernel was launched.

    TRITON_INTERPRET=1 python -m tests.codegen.update_numbers

A process of its own, for Triton decides when it is imported whether it interprets. Widths are odd, so parameters are of sizes with and without a rest.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn, optim

import autopar
from autopar.api import compile_workload
from autopar.options import Options
from autopar.runtime import Executable, compile_program, fused, read_program, run_ranks, solo_comm
from autopar.runtime.initial import initial_state
from autopar.trace import Workload

from .quick_interpreter import quicken_interpreter

STEPS = 3
_OF_MANY = frozenset(("table", "bounds_ptr", "COUNT"))  # one of the arguments of a kernel that works on many parameters, adds up the parts of each, or those of all


class Clipped(optim.AdamW):
    """AdamW after the gradients of the whole model have been clipped to a norm."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.05)
        return super().step(closure)


class Unscaled(Clipped):
    """Of a loss that was scaled: what the norm's kernel and the step's read is made of the gradient by each."""

    def step(self, closure=None):
        with torch.no_grad():
            for p in [p for group in self.param_groups for p in group["params"]]:
                p.grad.mul_(1 / 16)
        return super().step(closure)


class Filtered(Clipped):
    """After a slow part of each gradient was added to it (Grokfast, Lee et al. 2024): what the norm and the step read is left by the kernel that follows the slow part."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, lr=lr)
        self.slow = {p: torch.zeros_like(p) for group in self.param_groups for p in group["params"]}

    def step(self, closure=None):
        with torch.no_grad():
            for p, slow in self.slow.items():
                slow.lerp_(p.grad, 0.02)
                p.grad.add_(slow, alpha=2.0)
        return super().step(closure)


filtered = functools.partial(Filtered, lr=0.01)


class Twice(optim.SGD):
    """After the gradients of the whole model have been clipped to a norm, and then to a smaller one: between stages numbers go there and back twice."""

    def step(self, closure=None):
        for most in (0.1, 0.05):
            nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], most)
        return super().step(closure)


class Capped(optim.SGD):
    """After the gradients of the whole model have been clipped to a largest element."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.01, norm_type=float("inf"))
        return super().step(closure)


class Two(optim.AdamW):
    """Two groups: matrices with decay, the rest without and faster."""

    def __init__(self, params):
        params = list(params)
        wide, thin = [p for p in params if p.dim() > 1], [p for p in params if p.dim() < 2]
        super().__init__([{"params": wide, "weight_decay": 0.1}, {"params": thin, "lr": 0.02, "weight_decay": 0.0}], lr=0.01)


class Apart(Two):
    """Two groups, the gradients of each clipped to a norm of their own."""

    def step(self, closure=None):
        for group, most in zip(self.param_groups, (0.03, 0.2)):
            nn.utils.clip_grad_norm_(group["params"], most)
        return super().step(closure)


class Own(optim.Optimizer):
    """By hand: each parameter by itself, with states of its shape."""

    names: tuple[str, ...] = ()

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {name: torch.zeros_like(p) for name in self.names}
                self.update(p, state, group["lr"])


class Lion(Own):
    """The parameter and its momentum go by the same momentum and gradient, and neither by the other (Chen et al. 2023)."""

    names = ("m",)

    def update(self, p, state, lr):
        towards = torch.tanh(30 * (state["m"] * 0.9 + p.grad * 0.1))  # the sign, but that rounding does not decide
        p.mul_(0.999).add_(towards, alpha=-lr)
        state["m"].mul_(0.99).add_(p.grad, alpha=0.01)


class Lamb(Own):
    """Each parameter by as much as it is long (You et al. 2020): its norm and that of where it goes stand between its states and itself."""

    names = ("m", "v")

    def update(self, p, state, lr):
        state["m"].lerp_(p.grad, 0.1)
        state["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
        towards = state["m"] / (state["v"].sqrt() + 0.01) + 0.01 * p
        ours, theirs = p.norm(), towards.norm()
        trust = torch.where((ours > 0) & (theirs > 0), ours / theirs, torch.ones_like(ours)).clamp(max=10)
        p.add_(-lr * trust * towards)


class Careful(Own):
    """No step where a gradient is no number or beyond any, nor where none of them is anything but 0."""

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        finite, moving = torch.stack([torch.isfinite(p.grad).all() for p in params]).all(), torch.stack([(p.grad != 0).any() for p in params]).any()
        ready = finite & moving & (torch.stack([torch.count_nonzero(p.grad) for p in params]).sum() > 1)
        for p in params:
            p.copy_(torch.where(ready, p - 0.1 * p.grad, p))


class Scaler(Own):
    """Gradients divided by a scale, no step where one is not finite, a scale that grows with the steps that were good: all found in loops."""

    names = ("m",)

    def __init__(self, params):
        super().__init__(params)
        self.scale, self.good = torch.tensor(16.0), torch.tensor(0)

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        for p in params:
            p.grad.mul_(1 / self.scale)
        bad, total = torch.zeros((), dtype=torch.bool), 0.0
        for p in params:
            bad = bad | ~p.grad.isfinite().all()
            total += p.grad.square().sum()
        for p in params:
            momentum = self.state[p].setdefault("m", torch.zeros_like(p))
            momentum.copy_(torch.where(bad, momentum, 0.9 * momentum + p.grad / (total.sqrt() + 1)))
            p.sub_(torch.where(bad, torch.zeros_like(p), 0.1 * momentum))
        good = torch.where(bad, 0, self.good + 1)
        self.scale.copy_(torch.where(bad, self.scale * 0.5, torch.where(good == 2, self.scale * 2, self.scale)))
        self.good.copy_(good % 2)


class Shared(Own):
    """Sums of squares that each parameter reads by itself, and all together in one number, which a state of the optimizer follows."""

    def __init__(self, params):
        super().__init__(params)
        self.mean = torch.tensor(1.0)

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        squares = [p.grad.square().sum() for p in params]
        largest = torch.stack([p.grad.amin() for p in params]).amin()
        self.mean.mul_(0.5).add_(torch.stack(squares).sum().sqrt() - largest, alpha=0.5)
        for p, square in zip(params, squares):
            p.sub_(0.1 * p.grad / (square.sqrt() + self.mean))


class Worded(Own):
    """A momentum in states that are called as texts of kernels call their sizes, their pointers and, in Python, functions."""

    names = ("SIZE", "m", "m_ptr", "lambda")

    def update(self, p, state, lr):
        state["SIZE"].mul_(0.9).add_(p.grad)
        state["m"].mul_(0.5).add_(p.grad, alpha=0.5)
        state["m_ptr"].mul_(0.8).addcmul_(p.grad, p.grad)
        state["lambda"].add_(p.grad.abs())
        p.add_(state["SIZE"] + state["m"] * state["lambda"] / (1.0 + state["m_ptr"]), alpha=-5 * lr)


class Block(nn.Module):
    def __init__(self, width: int, rest: int = 1) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width + rest), nn.Linear(2 * width + rest, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


@dataclass(frozen=True)
class Case:
    """`ranks`: so many threads, by ZeRO-1; `even`: of widths without a rest; `stages`: so many, of `ranks` each, two microbatches."""

    optimizer: Callable
    precision: str = "fp32"
    ranks: int = 1
    even: bool = False
    stages: int = 1


CASES = {  # of bf16 with a large eps: else the sign of a gradient that is nearly nothing decides
    "AdamW": Case(functools.partial(optim.AdamW, lr=0.01)),
    "clipped AdamW": Case(functools.partial(Clipped, lr=0.01)),
    "widths without a rest": Case(functools.partial(Clipped, lr=0.01, eps=0.001), even=True),
    "two groups": Case(Two),
    "two groups, clipped apart": Case(Apart),
    "sharded, two groups, clipped apart": Case(Apart, ranks=2),
    "sums that are read twice": Case(Shared),
    "sharded, sums that are read twice": Case(Shared, ranks=2),
    "a rate that is a tensor": Case(functools.partial(optim.AdamW, lr=torch.tensor(0.01))),
    "momentum": Case(functools.partial(optim.SGD, lr=0.1, momentum=0.9)),
    "SGD": Case(functools.partial(optim.SGD, lr=0.1)),
    "states called as texts call theirs": Case(Worded),
    "Lion": Case(Lion),
    "sharded Lion": Case(Lion, ranks=2),
    "sharded LAMB": Case(Lamb, ranks=2),
    "RMSprop": Case(functools.partial(optim.RMSprop, lr=0.01)),
    "clipped by the largest": Case(functools.partial(Capped, lr=0.1)),
    "finite steps": Case(Careful),
    "a scale and totals of loops": Case(Scaler),
    "sharded, a scale and totals of loops": Case(Scaler, ranks=2),
    "sharded, clipped by the largest": Case(functools.partial(Capped, lr=0.1), ranks=2),
    "sharded finite steps": Case(Careful, ranks=2),
    "masters, clipped by the largest": Case(functools.partial(Capped, lr=0.1), "bf16"),
    "masters": Case(functools.partial(optim.AdamW, lr=0.01, eps=0.01), "bf16"),
    "unscaled, clipped": Case(functools.partial(Unscaled, lr=0.01, eps=0.001)),
    "unscaled, clipped masters": Case(functools.partial(Unscaled, lr=0.01, eps=0.01), "bf16"),
    "clipped masters": Case(functools.partial(Clipped, lr=0.01, eps=0.01), "bf16"),
    "sharded": Case(functools.partial(optim.AdamW, lr=0.01), ranks=2),
    "clipped, sharded": Case(functools.partial(Clipped, lr=0.01), ranks=2),
    "edited, clipped": Case(filtered),
    "sharded, edited, clipped": Case(filtered, ranks=2),
    "stages": Case(functools.partial(optim.AdamW, lr=0.01), stages=2),
    "stages, clipped": Case(functools.partial(Clipped, lr=0.01), stages=2),
    "three stages, clipped": Case(functools.partial(Clipped, lr=0.01), stages=3),
    "stages, clipped, sharded": Case(functools.partial(Clipped, lr=0.01), ranks=2, stages=2),
    "stages, clipped by the largest": Case(functools.partial(Capped, lr=0.1), stages=2),
    "stages, a scale and totals of loops": Case(Scaler, stages=2),
    "stages, sums that are read twice": Case(Shared, stages=2),
    "stages, finite steps": Case(Careful, stages=2),
    "stages, clipped twice": Case(functools.partial(Twice, lr=0.1), stages=3),
    "stages, LAMB": Case(Lamb, stages=2),
    "stages, clipped masters": Case(functools.partial(Clipped, lr=0.01, eps=0.01), "bf16", stages=2),
}


def run_case(case: Case, launches: Counter[str]) -> dict[str, object]:
    """The largest difference from float64, relative to the largest value of a parameter, and launches of a step by kernel.

    Args:
        launches: where they are counted.
    """
    torch.manual_seed(0)
    rest, out = (0, 16) if case.even else (1, 6)
    model = nn.Sequential(Block(16, rest), Block(16, rest), nn.Linear(16, out))
    x, y = torch.randn(8, 16), torch.randn(8, out)
    workload = Workload(copy.deepcopy(model), (x,), (y,), nn.functional.mse_loss, case.optimizer)
    fixed: dict[str, object] = {"dp": case.ranks, "zero": 1} if case.ranks > 1 else {}
    fixed |= {"pp": case.stages, "microbatches": 2} if case.stages > 1 else {}
    words = {"constraints": autopar.constrain(**fixed)} if fixed else {}
    files = compile_workload(workload, f"cpu:{case.ranks * case.stages}", Options(price=False, precision=case.precision, **words), cache_path=None).files
    spec = read_program(compile_program(files))
    given = {name: t.detach() for name, t in model.state_dict().items()}
    launches.clear()
    after: dict[str, torch.Tensor] = {}

    def main(comm) -> None:
        executable = Executable(None, files, comm, initial_state(spec, comm.rank, given, 0))
        for number in range(STEPS):
            if comm.rank == 0:
                launches.clear()
            executable.step(x, y)
        whole = executable.state_dict()
        if comm.rank == 0:
            after.update(whole)

    main(solo_comm()) if case.ranks * case.stages == 1 else run_ranks(spec.mesh, main)
    wide = model.double()
    optimizer = case.optimizer(wide.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(wide(x.double()), y.double()).backward()
        optimizer.step()
    worst = max(((after[n].double() - p).abs().max() / p.abs().max().clamp(min=1e-3)).item() for n, p in wide.state_dict().items())
    return {"difference": worst, "launches": dict(launches), "params": len(list(wide.parameters()))}


def factors_of_odd_gradients() -> dict[str, list[float]]:
    """Of gradients that are not finite, or of nothing, the clipping factors: as kernels make them, and as torch does."""
    found: dict[str, list[float]] = {}
    for which, make, first, order, most in (("norm", functools.partial(Clipped, lr=0.01), "mul_sum", 2.0, 0.05), ("largest", functools.partial(Capped, lr=0.1), "abs_amax", float("inf"), 0.01)):
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        workload = Workload(model, (torch.randn(2, 4),), (torch.randn(2, 3),), nn.functional.mse_loss, make)
        namespace: dict = {}
        text = compile_workload(workload, "cpu:1", Options(price=False), cache_path=None).files["kernels.py"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernels.py"
            path.write_text(text, encoding="utf-8")
            exec(compile(text, str(path), "exec"), namespace)
            parts, total = namespace[first], next(f for name, f in namespace.items() if name.endswith("clamp") and name != first)
            for odd in (float("nan"), float("inf"), float("-inf"), 0.0, 1e30):
                grads = [torch.zeros(5000), torch.zeros(3), torch.zeros(()).view(1)]
                grads[1][2] = odd
                norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g, order) for g in grads]), order)
                found[f"{which} of {odd}"] = [total(parts(grads)).item(), torch.clamp(most / (norm + 1e-6), max=1.0).item()]
    return found


def run_one_at_a_time() -> Counter[str]:
    """Triton's interpreter knows one launch at a time; ranks are threads here. Where launches for many parameters are counted."""
    from triton.runtime.interpreter import GridExecutor

    call, turn = GridExecutor.__call__, threading.Lock()
    launches: Counter[str] = Counter()

    def alone(self: GridExecutor, *args: object, **keywords: object) -> object:
        with turn:
            launches.update([self.fn.__name__] if _OF_MANY.intersection(self.arg_names) else [])
            return call(self, *args, **keywords)

    GridExecutor.__call__ = alone  # type: ignore[method-assign]
    return launches


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    launches = run_one_at_a_time()
    assert fused.runs_triton(torch.zeros(1)), "TRITON_INTERPRET=1 is needed"
    quicken_interpreter()
    if not names:
        print(json.dumps({"case": "odd gradients", "factors": factors_of_odd_gradients()}), flush=True)
    for name in names or CASES:
        print(json.dumps({"case": name, **run_case(CASES[name], launches)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
