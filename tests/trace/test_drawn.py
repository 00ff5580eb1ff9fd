"""Random numbers of Python and numpy in a step, and decisions on torch's own."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autopar.errors import TraceError
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch


def step(body) -> Workload:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(6, 5)

        def forward(self, x):
            return body(self.lin(x))

    return Workload(Model(), (torch.randn(4, 6),), (torch.randn(4, 5),), F.mse_loss, torch.optim.SGD)


def python_draw(y):
    return y * random.random()


def numpy_draw(y):
    return y * float(np.random.beta(0.4, 0.4))


def python_choice(y):
    return y * random.choice([1, 2])


def layer_drop(y):
    return y if random.random() < 0.1 else 2 * y


def scaled(y):
    return y * (1 + np.random.uniform(0, 1))


@pytest.mark.parametrize(
    "body, name",
    [
        (python_draw, "Python's random"), (numpy_draw, "numpy.random"), (python_choice, "Python's random"), (layer_drop, "Python's random"),
        (scaled, "numpy.random"),
    ],
)  # fmt: skip
def test_a_draw_in_python_is_refused(body, name):
    line = body.__code__.co_firstlineno + 1
    before = random.random, np.random.beta
    text = rf"test_drawn.py:{line}: the step draws random numbers from {name}: .*the same in every step. Draw with torch"
    with pytest.raises(TraceError, match=text):
        trace_step(step(body))
    assert (random.random, np.random.beta) == before


def seeded(y):
    np.random.seed(0)
    return y * float(np.random.rand())


def test_what_seeds_itself_draws_the_same_anyway():
    before = np.random.seed
    assert trace_step(step(seeded)).graph.nodes
    assert np.random.seed is before


def test_a_comparison_that_never_differs_is_answered():
    """LayerDrop as libraries write it, switched off."""
    bodies = [lambda y, p=p: y if random.uniform(0, 1) < p else 2 * y for p in (0.0, 1.5)]
    plain = [lambda y: 2 * y, lambda y: y]
    sizes = [[len(trace_step(step(body)).graph.nodes) for body in many] for many in (bodies, plain)]
    assert sizes[0] == sizes[1] and sizes[0][0] != sizes[0][1]


def own_generator(y):
    return y + torch.randn(y.shape, generator=torch.Generator().manual_seed(3))


def own_permutation(y):
    return y[torch.randperm(4, generator=torch.Generator().manual_seed(3))]


def in_place_draw(y):
    return y + torch.empty_like(y).uniform_(generator=torch.Generator().manual_seed(3))


def seeded_torch(y):
    torch.manual_seed(3)
    return y + torch.rand(5)


def seeded_apart(y):
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(3)
        return y + torch.rand(5)


@pytest.mark.parametrize("body, lines", [(own_generator, 1), (own_permutation, 1), (in_place_draw, 1), (seeded_torch, 1), (seeded_apart, 2)])
def test_numbers_that_the_step_fixes_are_refused(body, lines):
    """The program would draw others in every step."""
    before = torch.manual_seed, torch.random.manual_seed, torch.seed
    with pytest.raises(TraceError, match=rf"test_drawn.py:{body.__code__.co_firstlineno + lines}: .*draws its own numbers, anew in every step.*register_buffer"):
        trace_step(step(body))
    assert (torch.manual_seed, torch.random.manual_seed, torch.seed) == before


def newly_seeded(y):
    torch.manual_seed(torch.seed() % 1000)
    return y + torch.rand(5)


def test_a_seed_that_was_drawn_fixes_nothing():
    """As transformers' Reformer does."""
    assert any(node.op == "autopar.uniform" for node in trace_step(step(newly_seeded)).graph.nodes)


def drops_layer(y):
    return y if torch.rand(()) < 0.1 else 2 * y


def test_a_decision_on_a_draw_is_told_as_one():
    line = drops_layer.__code__.co_firstlineno + 1
    with pytest.raises(TraceError, match=rf"test_drawn.py:{line}: .*is drawn in every step.*layerdrop=0.0"):
        trace_step(step(drops_layer))
