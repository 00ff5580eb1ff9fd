"""A traced graph, run node by node in float64, equals eager PyTorch over two steps."""

from __future__ import annotations

import functools

import pytest
import torch
from compare import worst_differences
from zoo import ADAMW, bert, gpt2, llama, mlp, resnet, tied, vit

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


def muon(params):
    return torch.optim.Muon([p for p in params if p.ndim == 2], lr=1e-2)


class Clipped(torch.optim.AdamW):
    """AdamW that clips the global norm first."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], 0.05)
        return super().step(closure)


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
    "own": CountsInPython,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_equals_eager(name):
    worst, _ = worst_differences(mlp(OPTIMIZERS[name]))
    assert all(w <= TOLERANCE for w in worst.values()), worst
