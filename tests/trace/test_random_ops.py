"""Random ops as arithmetic: equal to plain PyTorch under the same draws, of the right distribution, other numbers in each step."""

from __future__ import annotations

import copy
import functools
import math

import pytest
import torch
from compare import SEED, batch, first_states, worst_differences
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zoo import ADAMW, class_loss, gpt2, gpt2_dropout

from autopar.errors import TraceError
from autopar.graph.liveness import is_view
from autopar.graph.repeats import find_repeats
from autopar.graph.rules.random_numbers import STATE
from autopar.runtime.execute import run_graph
from autopar.trace import Workload, trace_step
from autopar.verify.draws import Draws, first_draws, same_draws

pytestmark = pytest.mark.torch
TOLERANCE = 1e-10


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Net(nn.Module):
    """Dropout in every spelling, and in a checkpointed region."""

    def __init__(self, middle) -> None:
        super().__init__()
        self.up, self.down, self.middle = nn.Linear(6, 12), nn.Linear(12, 5), middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.middle(torch.tanh(self.up(x))))


class Noise(nn.Module):
    """Any function of the activations."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def workload(function) -> Workload:
    middle = function if isinstance(function, nn.Module) else Noise(function)
    return Workload(Net(middle), (torch.randn(8, 6),), (torch.tensor([0, 4, 1, 2, 3, 3, 0, 1]),), class_loss, ADAMW)


def attend(x, **options):
    y = x.view(2, 2, 4, 6)
    return F.scaled_dot_product_attention(y, y + 1, y, **options).reshape(8, 12)


def add_noise(make):
    return lambda x: x + 0.1 * make(x)


HELD = torch.Generator().manual_seed(1)
SPELLINGS = {
    "dropout": nn.Dropout(0.3),
    "half": nn.Dropout(0.5),  # torch leaves out arguments that are the default
    "in place": nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.3, inplace=True)),
    "everything dropped": nn.Dropout(1.0),
    "nothing dropped": nn.Dropout(0.0),
    "channels": lambda x: F.dropout2d(x.view(2, 4, 4, 3), 0.4).reshape(8, 12),
    "alpha": nn.AlphaDropout(0.2),
    "feature alpha": lambda x: F.feature_alpha_dropout(x.view(8, 4, 3), 0.4, training=True).reshape(8, 12),
    "native": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "rrelu": nn.RReLU(),
    "attention": functools.partial(attend, dropout_p=0.2),
    "causal attention": functools.partial(attend, dropout_p=0.2, is_causal=True),
    "checkpoint": lambda x: checkpoint(lambda y: torch.sin(F.dropout(y, 0.3)), x, use_reentrant=False),
    "reentrant checkpoint": lambda x: checkpoint(lambda y: torch.sin(F.dropout(y, 0.3)), x, use_reentrant=True),
    "bernoulli": lambda x: x * torch.bernoulli(torch.sigmoid(x.detach())),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(torch.full_like(x, 0.4)),
    "drop path": lambda x: x * x.new_empty(8, 1).bernoulli_(0.7).div_(0.7),
    "rand": add_noise(lambda x: torch.rand(8, 12)),
    "rand_like": add_noise(torch.rand_like),
    "uniform_": add_noise(lambda x: torch.empty_like(x).uniform_(-2, 3)),
    "randn": add_noise(lambda x: torch.randn(12)),
    "randn_like": add_noise(torch.randn_like),
    "normal_": add_noise(lambda x: torch.empty_like(x).normal_(1, 2)),
    "normal": add_noise(lambda x: torch.normal(x.detach(), x.detach().abs())),
    "normal of mean": add_noise(lambda x: torch.normal(x.detach(), 0.5)),
    "normal of std": add_noise(lambda x: torch.normal(0.5, x.detach().abs())),
    "exponential_": add_noise(lambda x: torch.empty_like(x).exponential_(2)),
    "log_normal_": add_noise(lambda x: torch.empty_like(x).log_normal_(0, 0.5)),
    "cauchy_": add_noise(lambda x: torch.tanh(torch.empty_like(x).cauchy_(1, 2))),
    "geometric_": add_noise(lambda x: torch.empty_like(x).geometric_(0.3)),
    "poisson": add_noise(lambda x: torch.poisson(x.detach().abs() * 5)),
    "randint": add_noise(lambda x: torch.randint(3, 9, (8, 1))),
    "randint_like": add_noise(lambda x: torch.randint_like(x, 9)),
    "random_": add_noise(lambda x: torch.empty(12, dtype=torch.int64).random_(2, 6)),
    "randperm": lambda x: x[torch.randperm(8)],
    "multinomial": lambda x: x[:, torch.multinomial(torch.arange(1.0, 13.0), 12)],
    "multinomial with replacement": lambda x: x.gather(1, torch.multinomial(x.detach().exp(), 12, replacement=True)),
    "gumbel": lambda x: x * F.gumbel_softmax(x, hard=True),
    "a generator of the user": add_noise(lambda x: torch.rand(8, 12, generator=HELD)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_equals_plain_pytorch_with_the_same_draws(name):
    worst, traced = worst_differences(workload(SPELLINGS[name]))
    assert all(w <= TOLERANCE for w in worst.values()), worst
    drawing = [n for n in traced.graph.nodes if n.op == "autopar.uniform"]
    assert len(drawing) == (0 if name in ("everything dropped", "nothing dropped") else 1)
    assert (f"{STATE}@0" in traced.graph.inputs) == bool(drawing)


@pytest.mark.parametrize("make", [gpt2_dropout, functools.partial(gpt2, "eager", drop=0.3)])
def test_a_transformer_with_dropout(make):
    worst, traced = worst_differences(make())
    assert all(w <= TOLERANCE for w in worst.values()), worst
    assert sum(n.op == "autopar.uniform" for n in traced.graph.nodes) == 1 + 2 * 3


def test_an_optimizer_that_draws():
    class Langevin(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p.add_(torch.randn_like(p), alpha=0.01)

    net = nn.Sequential(*(nn.Linear(6, 6) for _ in range(6)))  # enough alike parameters to be copied, were it not for the draws
    worst, traced = worst_differences(Workload(net, (torch.randn(4, 6),), (torch.tensor([0, 4, 1, 2]),), class_loss, functools.partial(Langevin, lr=0.1)))
    assert all(w <= TOLERANCE for w in worst.values()), worst
    assert sum(n.op == "autopar.uniform" for n in traced.graph.nodes) == 12


def test_a_mask_is_kept_for_the_backward_pass_and_no_noise():
    graph = trace_step(workload(nn.Dropout(0.3))).graph
    made = {o for n in graph.nodes if n.phase.value == "forward" for o in n.outputs}
    kept = {v for n in graph.nodes if n.phase.value == "backward" for v in n.inputs} & made
    dtypes = {v.name: v.dtype for v in graph.values}
    drop = next(n.outputs[0] for n in graph.nodes if n.op == "aten.lt.Scalar")
    assert drop in kept and dtypes[drop] == "bool"
    assert not [n for n in graph.nodes if n.op == "aten._to_copy.default" and drop in n.inputs]


def test_blocks_that_draw_are_equal_blocks():
    class Deep(nn.Module):
        def __init__(self, p: float) -> None:
            super().__init__()
            self.h = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(p), nn.Tanh()) for _ in range(4))

        def forward(self, x):
            for block in self.h:
                x = x + block(x)
            return x

    graphs = [trace_step(Workload(Deep(p), (torch.randn(4, 6),), (torch.tensor([0, 4, 1, 2]),), class_loss, ADAMW)).graph for p in (0.0, 0.1)]
    plain, drawing = ([(r.phase.value, len(r.blocks)) for r in find_repeats(graph) if r.family == "h"] for graph in graphs)
    assert plain == drawing and ("forward", 4) in drawing
    graph = graphs[1]
    coords = {name for n in graph.nodes if n.op == "autopar.uniform" for name in n.inputs[1:]}
    assert len(coords) == 2  # one list of coordinates per dim, shared


def run_steps(steps: int, count: int | None = None) -> list[torch.Tensor]:
    """The masks of a dropout, step by step."""
    work = workload(nn.Dropout(0.5))
    traced = trace_step(work, "fp64")
    env = first_states(work, traced, torch.float64)
    if count is not None:
        env[f"{STATE}@0"] = torch.tensor(count)
    mask = next(n.outputs[0] for n in traced.graph.nodes if n.op == "aten.lt.Scalar")
    masks = []
    for step in range(steps):
        known = run_graph(traced.graph, {**env, **batch(work, traced, True, step)[2]})
        env.update({old: known[new] for old, new in traced.graph.updates})
        masks.append(known[mask])
    return masks


def test_each_step_draws_others_and_a_saved_counter_goes_on():
    masks = run_steps(3)
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])
    again = run_steps(2, first_draws(SEED).count + 1)
    assert torch.equal(again[0], masks[1]) and torch.equal(again[1], masks[2])


def test_seeds_draw_others():
    assert len({first_draws(seed).count for seed in range(100)}) == 100
    assert not torch.equal(run_steps(1, first_draws(0).count)[0], run_steps(1, first_draws(1).count)[0])


def test_a_mask_does_not_depend_on_the_precision():
    masks = {}
    for precision in ("fp32", "fp64", "bf16"):
        work = workload(nn.Dropout(0.5))
        traced = trace_step(work, precision)
        env = first_states(work, traced, None)
        named = batch(work, traced, precision == "fp64", 0)[2]
        known = run_graph(traced.graph, {**env, **named})
        masks[precision] = known[next(n.outputs[0] for n in traced.graph.nodes if n.op == "aten.lt.Scalar")]
    assert torch.equal(masks["fp32"], masks["fp64"]) and torch.equal(masks["fp32"], masks["bf16"])


def test_what_cannot_be_drawn_in_pieces_names_the_line():
    gamma = add_noise(lambda x: torch.distributions.Gamma(2.0, torch.ones(12)).sample())
    with pytest.raises(TraceError, match=r"test_random_ops\.py:\d+.* _standard_gamma.default draws random numbers|_standard_gamma.default draws"):
        trace_step(workload(gamma))


def test_a_state_dict_has_no_counter():
    from autopar.api import model_facts

    work = workload(nn.Dropout(0.5))
    facts = model_facts(work, trace_step(work))
    assert facts.inits[STATE] == ("seed",) and STATE in facts.transient


# -- distributions: against the exact mean and standard deviation, at six standard errors ----------------------------------------------

N = 200_000
DISTRIBUTIONS = {
    "rand": (lambda: torch.rand(N), 0.5, 1 / math.sqrt(12)),
    "uniform_": (lambda: torch.empty(N).uniform_(-2, 3), 0.5, 5 / math.sqrt(12)),
    "randn": (lambda: torch.randn(N), 0, 1),
    "normal_": (lambda: torch.empty(N).normal_(3, 2), 3, 2),
    "exponential_": (lambda: torch.empty(N).exponential_(4), 0.25, 0.25),
    "log_normal_": (lambda: torch.empty(N).log_normal_(0, 0.5), math.exp(0.125), math.sqrt((math.exp(0.25) - 1) * math.exp(0.25))),
    "geometric_": (lambda: torch.empty(N).geometric_(0.3), 1 / 0.3, math.sqrt(0.7) / 0.3),
    "bernoulli": (lambda: torch.bernoulli(torch.full((N,), 0.2)), 0.2, 0.4),
    "bernoulli_": (lambda: torch.empty(N).bernoulli_(0.2), 0.2, 0.4),
    "randint": (lambda: torch.randint(-3, 7, (N,)).double(), 1.5, math.sqrt(99 / 12)),
    "poisson": (lambda: torch.poisson(torch.full((N,), 3.0)), 3, math.sqrt(3)),
    "multinomial": (lambda: torch.multinomial(torch.tensor([1.0, 2.0, 1.0]).expand(N, 3), 1).double(), 1, math.sqrt(0.5)),
    "multinomial with replacement": (lambda: torch.multinomial(torch.tensor([1.0, 2.0, 1.0]), N, True).double(), 1, math.sqrt(0.5)),
    "dropout": (lambda: F.dropout(torch.ones(N), 0.25), 1, math.sqrt(1 / 3)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name):
    make, mean, deviation = DISTRIBUTIONS[name]
    with Draws(12):
        x, y = make().double().flatten(), make().double().flatten()
    assert bool(x.isfinite().all()) and not torch.equal(x, y)
    assert abs(float(x.mean()) - mean) < 6 * deviation / math.sqrt(N)
    assert abs(float(x.std()) - deviation) < 0.03 * deviation
    assert abs(float(torch.corrcoef(torch.stack([x, y]))[0, 1])) < 6 / math.sqrt(N)
    assert abs(float(torch.corrcoef(torch.stack([x[1:], x[:-1]]))[0, 1])) < 6 / math.sqrt(N)


def test_tails_and_orders():
    with Draws(7):
        z = torch.randn(1_000_000).double()
        order = torch.stack([torch.randperm(6) for _ in range(3000)])
        cauchy = torch.empty(N).cauchy_(1, 2)
        first = torch.multinomial(torch.tensor([5.0, 0.0, 3.0, 2.0]).expand(N, 4), 3)
    for bound in (1.0, 2.0, 3.0):
        tail = math.erfc(bound / math.sqrt(2))
        assert abs(float((z.abs() > bound).double().mean()) - tail) < 6 * math.sqrt(tail / 1e6)
    assert bool((order.sort(1).values == torch.arange(6)).all())
    assert float((order.double().mean(0) - 2.5).abs().max()) < 6 * math.sqrt(35 / 12 / 3000)
    assert abs(float((cauchy < 1).double().mean()) - 0.5) < 6 * 0.5 / math.sqrt(N)
    assert abs(float((cauchy < 3).double().mean()) - 0.75) < 6 * 0.5 / math.sqrt(N)
    assert not (first == 1).any()  # what has no weight is never drawn
    assert abs(float((first[:, 0] == 0).double().mean()) - 0.5) < 6 * 0.5 / math.sqrt(N)
    assert abs(float((first[:, 1] == 2)[first[:, 0] == 0].double().mean()) - 0.6) < 6 * 0.5 / math.sqrt(N / 2)


def test_plain_pytorch_without_random_ops_is_left_alone():
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    expected = model(x)
    draws = Draws(4)
    with same_draws(draws):
        assert torch.equal(model(x), expected)
    assert draws.count == 4 and copy.copy(draws).count == 4


def test_the_last_count_is_not_copied():
    """It leaves the block that draws last as a value of the model's own, and is the state's new version as it is."""
    graph = trace_step(Workload(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (torch.ones(3, 4),), (), lambda y: y.sum(), torch.optim.SGD), "fp32").graph
    [(_, new)] = [pair for pair in graph.updates if pair[0].startswith("rng:")]
    [node] = [node for node in graph.nodes if new in node.outputs]
    assert is_view(node.op) and node.path == "" and not [n.op for n in graph.nodes if n.op == "aten.clone.default"]
