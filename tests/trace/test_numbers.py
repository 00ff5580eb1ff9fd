"""A traced graph, run node by node in float64, equals eager PyTorch over two steps."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from compare import batch, worst_differences
from zoo import ADAMW, bert, gpt2, llama, mlp, resnet, tied, vit

from autopar.graph.node import Phase
from autopar.graph.tensor import Kind
from autopar.runtime.execute import run_graph
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch
TOLERANCE = 1e-10

MODELS = {
    "mlp": mlp,
    "gpt2": gpt2,
    "gpt2_eager": functools.partial(gpt2, "eager"),
    "llama": llama,
    "llama_eager": functools.partial(llama, "eager"),
    "bert": bert,
    "bert_eager": functools.partial(bert, "eager"),
    "vit": vit,
    "resnet": resnet,
    "tied": tied,
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", MODELS)
def test_model_equals_eager(name):
    worst, _ = worst_differences(MODELS[name]())
    assert all(w <= TOLERANCE for w in worst.values()), worst


class Scale(torch.nn.Module):
    """Times a number."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.scale


def muon(params):
    return torch.optim.Muon([p for p in params if p.ndim == 2], lr=1e-2)


class Clipped(torch.optim.AdamW):
    """AdamW that clips the global norm first."""

    order = 2.0

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], 0.05, self.order)
        return super().step(closure)


def clipped(order):
    """`Clipped` by a norm of this order."""
    return type("ClippedBy", (Clipped,), {"order": order})


class CountsInPython(torch.optim.Optimizer):
    """A user's own: counts steps in a Python number and keeps a slow copy of each parameter."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["count"] = 0
                    state["slow"] = p.clone()
                state["count"] += 1
                p.sub_(p.grad * (group["lr"] / (1 + state["count"])))
                state["slow"].lerp_(p, 0.5)


OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "sgd_momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": functools.partial(torch.optim.Adam, lr=1e-2, weight_decay=0.1),
    "adam_amsgrad": functools.partial(torch.optim.Adam, lr=1e-2, amsgrad=True),
    "adam_from_the_gradient": functools.partial(torch.optim.Adam, lr=1e-2, betas=(0.4, 0.99)),
    "adamw": ADAMW,
    "adamw_fused": functools.partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=1e-2, momentum=0.5, centered=True),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=1e-2, initial_accumulator_value=0.1),
    "nadam": functools.partial(torch.optim.NAdam, lr=1e-2),
    "radam": functools.partial(torch.optim.RAdam, lr=1e-2),
    "adamax": functools.partial(torch.optim.Adamax, lr=1e-2),
    "adadelta": torch.optim.Adadelta,
    "muon": muon,
    "clipped": Clipped,
    **{f"clipped_{order:g}": clipped(order) for order in (1.0, 3.0, math.inf)},
    "own": CountsInPython,
}


@pytest.mark.parametrize(("order", "root", "count"), [(2.0, "aten.sqrt.default", 1), (3.0, "aten.pow.Tensor_Scalar", 7), (1.0, "aten.abs.default", 6), (math.inf, "aten.abs.default", 6)])
def test_a_norm_of_norms_is_that_of_all(order, root, count):
    """The norm of all gradients, made of one per parameter, takes one root: what is summed of a parameter may wait for the others. Of the third order each of six
    gradients is raised once, and the sum of all has one root; of the others what is put together are no roots."""
    graph = trace_step(mlp(clipped(order)), "fp32").graph
    makers = {out: node for node in graph.nodes for out in node.outputs}
    assert len(graph.grads) == 6
    late = [node for node in graph.nodes if node.phase is Phase.UPDATE]
    states = {v.name for v in graph.values if v.kind is Kind.OPTIM}
    before = [n for n in late if n.op == root and not _comes_from(n, makers, states)]
    assert len(before) == count
    [joined] = [n for n in late if n.op == "aten.cat.default"]
    assert {makers[makers[name].inputs[0]].op for name in joined.inputs} == {"aten.amax.default" if order == math.inf else "aten.sum.dim_IntList"}


class Roots(torch.nn.Module):
    """A norm of roots that are no norms: of a negative number there is none."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = x * self.w
        return torch.stack([y.sum().sqrt(), (y * y).sum().sqrt()]).norm()


def test_a_norm_of_other_roots_keeps_them():
    x = torch.tensor([[1.0, -4.0, 0.5]])
    graph = trace_step(Workload(Roots(), (x,), (), lambda out: out, functools.partial(torch.optim.SGD, lr=0.1)), "fp32").graph
    assert sum(n.op == "aten.sqrt.default" and n.phase is Phase.FORWARD for n in graph.nodes) == 3


class Between(torch.nn.Module):
    """Numbers between two others, by weights of both halves and beyond, and by one for each element."""

    def forward(self, x, y, w):
        return *(torch.lerp(x, y, weight) for weight in (0.0, 0.25, 0.5, 0.75, 1.0, -0.75, 1.5)), torch.lerp(x, y, w)


def test_what_lies_between_is_reckoned_from_the_nearer_end():
    """To the last bit, also where one end is infinite."""
    numbers = torch.tensor([1.0, -4.0, 0.1, 1e-8, 3e7, math.inf, -math.inf, 0.0])
    given = (numbers[:, None].repeat(1, 8), numbers.repeat(8, 1), torch.linspace(-0.7, 1.5, 64).view(8, 8))
    traced = trace_step(Workload(Between(), given), "fp32")
    known = run_graph(traced.graph, batch(Workload(Between(), given), traced, False, 0)[2])
    for name, wanted in zip(traced.graph.outputs, Between()(*given), strict=True):
        assert torch.equal(known[name].nan_to_num(nan=-7.0), wanted.nan_to_num(nan=-7.0)), name


def _comes_from(node, makers, states) -> bool:
    """Whether a node is made of any of these states."""
    return any(name in states or (name in makers and _comes_from(makers[name], makers, states)) for name in node.inputs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_equals_eager(name):
    worst, _ = worst_differences(mlp(OPTIMIZERS[name]))
    assert all(w <= TOLERANCE for w in worst.values()), worst


class OfWholes(torch.nn.Module):
    """Functions of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.p = torch.nn.Parameter(torch.randn(7))

    def forward(self, x):
        y = x.abs() + 1
        found = torch.atan2(x, y), torch.xlogy(x, y), x.erf(), y.sqrt(), y.reciprocal(), torch.copysign(x, y), torch.special.i0(x), torch.polygamma(1, y), (x > 0).sigmoid(), x * 0.3
        return [self.p * t for t in found], torch.where(x > 0, x, y), x.clamp(min=2)


def test_functions_of_whole_numbers_have_the_precision_of_the_step():
    """Not that of whoever runs the program, whose default is another."""
    x = torch.arange(-3, 4, dtype=torch.int32)
    traced = trace_step(Workload(OfWholes(), (x,)), "fp64")
    assert not [v.name for v in traced.graph.values if v.dtype == "float32"]
    params = {v.name: OfWholes().p.detach().double() for v in traced.graph.values if v.kind is Kind.PARAM}
    inputs = {v.name: x for v in traced.graph.values if v.kind is Kind.BATCH}
    found = run_graph(traced.graph, {**params, **inputs})
    assert {v.name: v.dtype for v in traced.graph.values if v.name in found} == {name: str(t.dtype).removeprefix("torch.") for name, t in found.items() if isinstance(t, torch.Tensor)}


def test_the_log_of_a_sigmoid_is_a_number_for_each():
    """And so is its gradient, which reads what came in alone: also where exponentials are endless, and where there is no number. What torch's own op leaves beside it is there for who reads it."""
    scores = torch.tensor([[0.0, -0.0, 1e-30, 3.0, -3.0, 60.0, -60.0], [800.0, -800.0, 1e30, -1e30, torch.inf, -torch.inf, torch.nan]])
    both = lambda x: torch.ops.aten.log_sigmoid_forward(x)[1].sum()  # noqa: E731
    for loss in (lambda x: -torch.nn.functional.logsigmoid(x).nan_to_num(0.0, 0.0, 0.0).mean(), lambda x: torch.nn.functional.logsigmoid(3 * x[0]).sum() + both(x.detach()[0])):
        workload = Workload(Scale(), (scores,), (), loss, functools.partial(torch.optim.SGD, lr=0.1))
        graph = trace_step(workload, "fp64").graph
        assert [len(node.outputs) for node in graph.nodes if "log_sigmoid" in node.op] == [1]
        env = {name: scores.double() if "input" in name else torch.ones((), dtype=torch.float64) for name in graph.inputs}
        [(_, grad)] = graph.grads
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        wanted = loss(scores.double() * scale)
        wanted.backward()
        found = run_graph(graph, env)
        assert torch.allclose(found[graph.loss], wanted.detach(), rtol=1e-12, equal_nan=True) and torch.allclose(found[grad], scale.grad, rtol=1e-12, equal_nan=True)
