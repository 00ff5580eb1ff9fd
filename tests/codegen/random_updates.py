"""Random updates: what a foreign optimizer may do to a parameter and its states, old versions read after new ones are there, some of it through a matmul.

    python -m tests.codegen.random_updates 0 200        # seeds; prints those whose numbers are not plain PyTorch's
"""

from __future__ import annotations

import copy
import random
import sys

import torch
from torch import nn

from autopar.api import compile_workload
from autopar.options import Options
from autopar.runtime import Executable, initial_state, solo_comm
from autopar.trace import Workload

from .update_numbers import Own

STEPS = 3


class Drawn(Own):
    """An update that its seed tells, the same at every step: what is made is bounded, and states are of about one."""

    names = ("a", "b")

    def __init__(self, params, seed: int) -> None:
        super().__init__(params)
        self.seed = seed

    def update(self, p, state, lr):
        rng = random.Random(self.seed)
        made, places = [p.grad], [p, state["a"], state["b"]]
        for _ in range(rng.randint(3, 9)):
            x, y = (rng.choice((*made, *places)) for _ in range(2))
            kind = rng.randrange(9)
            if kind < 3:  # a state or the parameter is written
                place, share = rng.choice(places), rng.choice((0.1, 0.3, 0.7))
                rng.choice((
                    lambda: place.mul_(0.5).add_(x, alpha=lr), lambda: place.lerp_(x, share), lambda: place.copy_(x * 0.5),
                    lambda: place.mul_(0.7).addcmul_(x, y, value=0.1), lambda: place.sub_(x * share).clamp_(-2, 2),
                ))()  # fmt: skip
            elif kind == 3 and p.dim() == 2:
                made.append((x @ (y.t() @ x)).tanh())
            else:
                made.append(rng.choice((lambda: x - y, lambda: x * y, lambda: (x + y).tanh(), lambda: x + 0.3 * (y - x), lambda: x.clone(), lambda: x + y * y.norm().tanh()))())
        p.mul_(0.9).sub_(torch.tanh(made[-1]), alpha=lr)


def difference(seed: int) -> float:
    """The largest one of any number of the states after some steps, in float64; NaN where eager's are not finite."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6)).double()
    x, y = torch.randn(4, 6).double(), torch.randn(4, 6).double()
    plain = copy.deepcopy(model)

    def make(params) -> Drawn:
        return Drawn(params, seed)

    files = compile_workload(Workload(model, (x,), (y,), nn.functional.mse_loss, make), "cpu:1", Options(price=False, precision="fp64"), cache_path=None).files
    executable = Executable(None, files, solo_comm(), {})
    executable.state.update(initial_state(executable.program, 0, {name: t.detach().clone() for name, t in model.state_dict().items()}))
    optimizer = make(plain.parameters())
    for _ in range(STEPS):
        executable.step(x, y)
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        optimizer.step()
    worst = torch.zeros((), dtype=torch.float64)
    for name, p in plain.named_parameters():
        states = {name: p.detach(), **{f"{key}:{name}": value for key, value in optimizer.state[p].items()}}
        worst = torch.maximum(worst, max((executable.state[key] - value).abs().max() for key, value in states.items() if key in executable.state))
    return float(worst)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        found = difference(number)
        if not found < 1e-9:
            print(number, found, flush=True)
