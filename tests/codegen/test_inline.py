"""Layers that are written in the model's own forward: the program is that of the same layers in modules, and its numbers are the traced step's."""

from __future__ import annotations

import functools
import random

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import autopar  # noqa: E402
from autopar import Workload  # noqa: E402
from autopar.api import compile_workload  # noqa: E402
from autopar.graph.repeats import fold_graph  # noqa: E402
from tests.codegen.random_plans import Assigner, Control  # noqa: E402

pytestmark = pytest.mark.torch
WIDTH, TOKENS = 8, 24


def turn(norm, router, ups, downs, x):
    """A mixture in which every expert sees every token, and a number that says how even its router is."""
    h = norm(x)
    p = router(h).softmax(-1)
    y = sum(p[..., i : i + 1] * down(F.gelu(up(h))) for i, (up, down) in enumerate(zip(ups, downs)))
    return x + y, (p.mean((0, 1)) ** 2).sum()


def parts():
    return nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2), nn.ModuleList(nn.Linear(WIDTH, 16) for _ in range(2)), nn.ModuleList(nn.Linear(16, WIDTH) for _ in range(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.router, self.ups, self.downs = parts()

    def forward(self, x):
        return turn(self.norm, self.router, self.ups, self.downs, x)


class Model(nn.Module):
    def __init__(self, is_inline, start, num=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.is_inline, self.start = is_inline, start
        if is_inline:
            self.norm, self.router, self.ups, self.downs = (nn.ModuleList(column) for column in zip(*(parts() for _ in range(num))))
        else:
            self.h = nn.ModuleList(Block() for _ in range(num))

    def forward(self, ids):
        x = self.embed(ids)
        total = self.start(x)
        for block in zip(self.norm, self.router, self.ups, self.downs) if self.is_inline else self.h:
            x, a = turn(*block, x) if self.is_inline else block(x)
            total = a if total is None else total + a
        return self.head(x), total


def loss(out, target):
    return F.cross_entropy(out[0].flatten(0, 1), target.flatten()) + 0.01 * out[1]


def workload(is_inline, start) -> Workload:
    torch.manual_seed(0)
    ids = torch.randint(0, TOKENS, (8, 5))
    return Workload(Model(is_inline, start), (ids[:, :-1],), (ids[:, 1:],), loss, functools.partial(torch.optim.AdamW, lr=1e-2))


STARTS = {"0.": lambda x: 0.0, "zeros": lambda x: x.new_zeros(()), "nothing": lambda x: None}


@pytest.mark.parametrize("start", STARTS)
def test_random_plans(start):
    inline = Control(workload(True, STARTS[start]))
    rng = random.Random(start)
    for sizes, draws in (((2,), 3), ((2, 2), 2)):
        assigner = Assigner(inline.graph, sizes, recompute=random.Random(5) if len(sizes) > 1 else None)
        fold = fold_graph(assigner.graph)
        for k in range(draws):
            difference, whose = inline.worst(assigner.program(assigner.draw(rng, fold if k % 2 == 0 else None), keep_grads=k % 4 < 2))
            assert difference < 1e-10, (sizes, k, whose)


def test_the_text_is_that_of_modules():
    texts = []
    for is_inline in (True, False):
        planned = compile_workload(workload(is_inline, STARTS["0."]), "cpu:2", autopar.Options(constraints=autopar.constrain(dp=2)), cache_path=None)
        texts.append((planned.plan.cost.step_s, planned.files["program.py"].splitlines()))
    (ours_s, ours), (theirs_s, theirs) = texts
    assert ours_s == pytest.approx(theirs_s, rel=1e-9)
    assert "    for i in range(4):" in ours and "    for i in range(3, -1, -1):" in ours
    assert len([line for line in ours if "State(" not in line]) <= len([line for line in theirs if "State(" not in line]) + 4  # states have other names
