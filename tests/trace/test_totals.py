"""Loops of an optimizer over its parameters: what they add up is one op of all, what they share is nobody's, and the numbers are eager's."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from compare import worst_differences
from torch import nn

from autopar.errors import TraceError
from autopar.graph.node import Phase
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch


class Loop(torch.optim.Optimizer):
    """SGD by as much as `weigh` makes of a number for each gradient, in a loop; as it stands, by 1."""

    def __init__(self, params) -> None:
        super().__init__(params, {})

    def gradients(self) -> list[torch.Tensor]:
        return [p.grad for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure=None) -> None:
        by = self.weigh()
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(0.1 * p.grad * by)

    def weigh(self) -> torch.Tensor:
        return torch.ones(())


class Sums(Loop):
    def weigh(self):
        total = 0.0
        for g in self.gradients():
            total += g.norm() ** 2
        return 1 / (total**0.5 + 1)


class FromANumber(Loop):
    def weigh(self):
        total = torch.zeros(())
        for g in self.gradients():
            total = g.square().sum() + total
        return 1 / (total + 1)


class Largest(Loop):
    def weigh(self):
        most = self.gradients()[0].abs().max()
        for g in self.gradients()[1:]:
            most = torch.maximum(most, g.abs().max())
        return 1 / (most + 1)


class Smallest(Loop):
    def weigh(self):
        least = self.gradients()[0].min()
        for g in self.gradients()[1:]:
            least = torch.minimum(least, g.min())
        return least


class Finite(Loop):
    def weigh(self):
        bad = torch.zeros((), dtype=torch.bool)
        for g in self.gradients():
            bad = bad | ~g.isfinite().all()
        return torch.where(bad, 0.0, 1.0)


class AllFinite(Loop):
    def weigh(self):
        good = torch.ones((), dtype=torch.bool)
        for g in self.gradients():
            good &= g.isfinite().all()
        return good.to(torch.get_default_dtype())


class ReadBetween(Loop):
    """Each step towards the total is read by itself, too."""

    def weigh(self):
        total, seen = torch.zeros(()), torch.zeros(())
        for g in self.gradients():
            total = total + g.square().sum()
            seen = seen + total.sqrt()
        return 1 / (seen + 1)


class Scaled(Loop):
    """A scale of the optimizer's own, by which gradients were multiplied."""

    def __init__(self, params) -> None:
        super().__init__(params)
        self.scale = torch.tensor(8.0)

    def weigh(self):
        by = 1 / self.scale
        self.scale.mul_(1.25)
        return by


class Zeros(Loop):
    @torch.no_grad()
    def step(self, closure=None) -> None:
        large = torch.stack([g.abs().max() for g in self.gradients()]).max() > 1e-4
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(torch.where(large, 0.1 * p.grad, torch.zeros_like(p)))


def traced(kind: type, depth: int = 3) -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))
    return Workload(model, (torch.randn(5, 4),), (torch.randn(5, 4),), nn.functional.mse_loss, kind)


def ops_of(workload: Workload) -> Counter[str]:
    return Counter(node.op for node in trace_step(workload).graph.nodes if node.phase is Phase.UPDATE)


@pytest.mark.parametrize("kind", [Sums, FromANumber, Largest, Smallest, Finite, AllFinite, ReadBetween, Scaled, Zeros], ids=lambda kind: kind.__name__)
def test_steps_equal_eager(kind):
    worst, _ = worst_differences(traced(kind))
    assert all(w <= 1e-10 for w in worst.values()), worst


@pytest.mark.parametrize(
    "kind, op, step",
    [
        (Sums, "aten.sum.dim_IntList", "aten.add.Tensor"), (FromANumber, "aten.sum.dim_IntList", "aten.add.Tensor"), (Largest, "aten.amax.default", "aten.maximum.default"),
        (Smallest, "aten.amin.default", "aten.minimum.default"), (Finite, "aten.any.default", "aten.bitwise_or.Tensor"), (AllFinite, "aten.all.dims", "aten.bitwise_and.Tensor"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_a_total_is_one_op(kind, op, step):
    """As many steps for two layers more, and one list of numbers."""
    few, many = ops_of(traced(kind, 3)), ops_of(traced(kind, 5))
    assert few[step] == many[step] <= 1 and few["aten.cat.default"] == many["aten.cat.default"] == 1 and many[op]


def test_steps_that_are_read_stay():
    found = ops_of(traced(ReadBetween))
    assert found["aten.add.Tensor"] >= 5, "of the totals; what is made of them is one sum"


def test_constants_beside_a_tensor_are_numbers():
    graph = trace_step(traced(Zeros)).graph
    values = {v.name: v for v in graph.values}
    assert {values[node.outputs[0]].shape for node in graph.nodes if node.op == "aten.full.default" and node.phase is Phase.UPDATE} == {()}


def test_a_scale_that_all_updates_read_is_in_no_module():
    graph = trace_step(traced(Scaled)).graph
    [by] = [node for node in graph.nodes if node.op == "aten.reciprocal.default"]
    assert by.path == ""
    assert sorted({node.path for node in graph.nodes if node.phase is Phase.UPDATE and node.op == "aten.sub.Tensor"}) == ["0", "1", "2"]


class Factored(Loop):
    """States as large as means of the gradient, of which the first step reads the shape alone."""

    keeps_means = False

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state, size = self.state[p], p.grad.square() + 1e-6
                if not state:
                    rows = size.mean(-1, keepdim=True).sqrt()
                    state["other"] = torch.zeros_like(rows)
                    state["rows"] = rows if self.keeps_means else torch.zeros_like(rows)
                state["rows"].mul_(0.9).add_(size.mean(-1, keepdim=True), alpha=0.1)
                state["other"].add_(state["rows"])
                p.sub_(0.1 * p.grad * state["rows"] / (state["other"] + 1))


class FactoredFromMeans(Factored):
    keeps_means = True


def test_what_is_made_for_the_shape_of_a_state_is_no_step():
    worst, _ = worst_differences(traced(Factored))
    assert all(w <= 1e-10 for w in worst.values()), worst


def test_a_state_that_is_one_at_first_is_refused():
    with pytest.raises(TraceError, match="its first step is not like the later ones"):
        trace_step(traced(FactoredFromMeans))
