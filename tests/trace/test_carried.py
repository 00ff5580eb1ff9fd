"""What an optimizer carries beside the usual moments: Python numbers, options of groups, optimizers inside of it, states made anew."""

from __future__ import annotations

import functools
import math
import re

import pytest
import torch
from compare import worst_differences
from zoo import mlp

from autopar.errors import TraceError
from autopar.trace import trace_step

pytestmark = pytest.mark.torch
TOLERANCE = 1e-12


class Decays(torch.optim.SGD):
    """The rate of a group falls with an attribute that counts in Python; momentum starts as a clone of the gradient."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 0.1 * (1 - self.count / 100) ** 0.9
        super().step(closure)


class CountsInGroup(torch.optim.Optimizer):
    """Two Python numbers in the group, one of which does not grow evenly, and a tensor that the first step makes."""

    def __init__(self, params) -> None:
        super().__init__(params, {"k": 0, "weights": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if "steps" not in group:
                group["steps"] = torch.zeros(())
            group["steps"].add_(1)
            group["k"] += 1
            group["weights"] += group["k"] ** 2
            for p in group["params"]:
                p.sub_(p.grad, alpha=0.1 * group["k"] ** 2 / group["weights"])
                p.lerp_(torch.zeros_like(p), weight=1 / (10 + group["steps"]))


class Perturbs(torch.optim.Optimizer):
    """SAM's shape: an optimizer with states of its own inside, and a state that every step writes before it reads it."""

    def __init__(self, params) -> None:
        super().__init__(params, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for g in self.param_groups for p in g["params"]]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        for p in params:
            self.state[p]["moved"] = p.grad * (0.05 / norm)
            p.add_(self.state[p]["moved"])
        self.base.step()
        for p in params:
            p.sub_(self.state[p]["moved"])


class MakesAnew(torch.optim.Optimizer):
    """Written without in-place ops, through `.data`."""

    def __init__(self, params) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"], state["slow"] = torch.zeros_like(p.data), torch.zeros_like(p.data).copy_(p.data)
                state["m"] = 0.9 * state["m"] + p.grad.data
                state["slow"] = 0.5 * state["slow"] + 0.5 * p.data
                p.data = state["slow"] - group["lr"] * state["m"]


class Averages(torch.optim.SGD):
    """Weights are pulled to averages of themselves, which are kept beside the states."""

    def __init__(self, params, kind) -> None:
        super().__init__(params, lr=0.1)
        self.kind, mine = kind, [p for g in self.param_groups for p in g["params"]]
        copies = [p.detach().clone() for p in mine]
        if kind == "group":
            self.param_groups[0]["slow"] = copies
        else:
            self.slow = {"list": copies, "tuple": tuple(copies), "by number": dict(enumerate(copies)), "by parameter": dict(zip(mine, copies)), "made anew": copies}[kind]

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for i, p in enumerate(p for g in self.param_groups for p in g["params"]):
            held = self.param_groups[0]["slow"] if self.kind == "group" else self.slow
            slow = held[p if self.kind == "by parameter" else i]
            if self.kind == "made anew":
                held[i] = slow = 0.9 * slow + 0.1 * p
            else:
                slow.lerp_(p, 0.1)
            p.lerp_(slow, 0.2)


class Norms(torch.optim.SGD):
    """Two numbers of all parameters in a list, and a gradient that the step replaces."""

    def __init__(self, params) -> None:
        super().__init__(params, lr=0.1, momentum=0.9)
        self.seen = [torch.zeros(()), torch.ones(())]

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad = torch.clamp(p.grad, -0.02, 0.02)
            self.seen[0].add_(p.grad.norm())
            self.seen[1].mul_(0.9)
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            p.mul_(1 - 0.01 * self.seen[1] / (1 + self.seen[0]))


def of_kind(kind):
    return functools.partial(Averages, kind=kind)


KINDS = ["list", "tuple", "by number", "by parameter", "group", "made anew"]


@pytest.mark.parametrize("kind", KINDS)
def test_averages_in_lists_are_states_of_their_parameters(kind):
    traced = trace_step(mlp(of_kind(kind)))
    params = [name.rpartition("@")[0] for name in traced.graph.inputs if ":" not in name and not name.startswith(("input", "target"))]
    where = "group" if kind == "group" else "self"
    assert dict(traced.init_optim) == {f"{where}.slow:{param}": ("param", param) for param in params}


def test_a_list_that_a_step_makes_is_not_looked_into():
    class Late(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            params = self.param_groups[0]["params"]
            if not hasattr(self, "slow"):
                self.slow = [torch.zeros_like(p) for p in params]
            super().step(closure)
            for slow, p in zip(self.slow, params):
                slow.lerp_(p, 0.1)

    with pytest.raises(TraceError, match=r"test_carried.py:\d+: the step reads a tensor of shape .* that an earlier step made.*list, tuple or dict that __init__ makes"):
        trace_step(mlp(functools.partial(Late, lr=0.1)))


def test_a_list_that_serves_one_step_is_no_state():
    class Gathers(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            self.found = [p.grad * 2 for p in self.param_groups[0]["params"]]
            for p, grad in zip(self.param_groups[0]["params"], self.found):
                p.sub_(grad, alpha=0.1)

    assert not trace_step(mlp(functools.partial(Gathers, lr=0.1))).init_optim


@pytest.mark.parametrize("optimizer", [*map(of_kind, KINDS), Norms, functools.partial(Decays, lr=0.1, momentum=0.9), CountsInGroup, Perturbs, MakesAnew])
def test_equals_eager(optimizer):
    worst, _ = worst_differences(mlp(optimizer))
    assert all(w <= TOLERANCE for w in worst.values()), worst


def test_names_and_first_values_of_what_a_group_carries():
    traced = trace_step(mlp(CountsInGroup))
    first = traced.graph.inputs[0].rpartition("@")[0]
    expected = {f"group.{key}:{first}": ("fill", 0.0) for key in ("k", "weights", "steps")}
    assert dict(traced.init_optim) == expected


def make(body) -> type[torch.optim.Optimizer]:
    class Own(torch.optim.Optimizer):
        count = 0

        def __init__(self, params) -> None:
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure=None):
            self.count += 1
            for p in self.param_groups[0]["params"]:
                body(self, p)

    return Own


def warms_up(own, p):
    p.sub_(p.grad, alpha=0.1 if own.count > 5 else 0.01)


def swings(own, p):
    p.sub_(p.grad, alpha=math.cos(own.count))


def slow_after(own, p):
    p.sub_(p.grad)
    if "slow" not in own.state[p]:
        own.state[p]["slow"] = p.clone()
    own.state[p]["slow"].lerp_(p, 0.5)


@pytest.mark.parametrize(
    "body, text",
    [
        (warms_up, r"test_carried.py:\d+: .*whether it is true.*\(count: a number that every step changes is a tensor here\. Of min and math\.cos tensors have torch\.clamp and torch\.cos\.\)"),
        (swings, r"test_carried.py:\d+: .*as a Python number.*\(count: a number"),
        (slow_after, r"state slow:\S+ starts as a copy of its parameter after the first update \(.*test_carried.py:\d+\).*Copy it before"),
    ],
)
def test_what_cannot_be_carried_names_the_line(body, text):
    with pytest.raises(TraceError, match=text):
        trace_step(mlp(make(body)))


class Schedules(torch.optim.AdamW):
    def __init__(self, params) -> None:
        super().__init__(params, lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self, 10)

    def step(self, closure=None):
        super().step(closure)
        self.schedule.step()


def test_a_schedule_inside_is_refused():
    with pytest.raises(TraceError, match=re.escape("optimizer Schedules: its step() steps a learning-rate schedule")):
        trace_step(mlp(Schedules))


class WarmedUp(torch.optim.AdamW):
    """As docs/learning-rates.md has it, in fewer steps."""

    def __init__(self, params) -> None:
        super().__init__(params, lr=torch.tensor(1e-2))
        self.count = torch.tensor(0.0)

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        warm = torch.clamp(self.count / 3, max=1.0)
        down = 0.5 * (1 + torch.cos(math.pi * torch.clamp((self.count - 3) / 5, min=0.0, max=1.0)))
        for group in self.param_groups:
            group["lr"] = 1e-2 * warm * down
        return super().step(closure)


def test_a_rate_worked_out_of_a_count_is_torchs():
    assert max(worst_differences(mlp(WarmedUp), steps=9)[0].values()) < 1e-7  # the count is float32, as torch has it


def scheduled_in_a_hook(optimizer, params):
    found = optimizer(params, lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(found, lambda epoch: 1 / (epoch + 1))
    found.register_step_post_hook(lambda *_: schedule.step())
    return found


def counted_outside(params):
    """A count that neither the optimizer nor its groups hold."""
    counts = []

    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure=None):
            counts.append(1)
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad, alpha=1 / len(counts))

    return Own(params, {})


@pytest.mark.parametrize(
    "optimizer, text",
    [
        (functools.partial(scheduled_in_a_hook, torch.optim.AdamW), r"optimizer scheduled_in_a_hook: aten.fill_.Scalar \(.*test_carried.py:\d+\) takes .*"),
        (functools.partial(scheduled_in_a_hook, functools.partial(torch.optim.SGD, momentum=0.9)), r".* takes .* in one step and .* in another"),
        (counted_outside, r"optimizer counted_outside: aten.sub_.Tensor \(.*test_carried.py:\d+\) takes \S+ in one step and \S+ in another.*work the rate out of a count that is a tensor"),
    ],
)
def test_a_count_in_python_that_no_state_shows_is_refused(optimizer, text):
    with pytest.raises(TraceError, match=text):
        trace_step(mlp(optimizer))
