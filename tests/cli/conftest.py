"""Running the command line inside this process, and a small model file with everything wrong that a model file can have."""

from __future__ import annotations

import json

import pytest

MODEL = '''
import torch
from torch import nn
from torch.nn import functional as F
import autopar

print("noise from the model file")


class Net(nn.Module):
    def __init__(self, hidden, drop):
        super().__init__()
        self.up = nn.Linear(8, hidden)
        self.drop = nn.Dropout(drop)
        self.down = nn.Linear(hidden, 4)

    def forward(self, x):
        return self.down(self.drop(F.gelu(self.up(x))))


class Branches(Net):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y


def make(kind, batch, hidden, drop=0.0, loss=F.cross_entropy, inputs=8):
    return autopar.Workload(
        model=kind(hidden, drop), example_inputs=(torch.randn(batch, inputs),), example_targets=(torch.randint(0, 4, (batch,)),),
        loss=loss, optimizer=torch.optim.AdamW,
    )


def build(batch=16, hidden=32, drop=0.0): return make(Net, batch, hidden, drop)
def branches(): return make(Branches, 16, 32)
def vector_loss(): return make(Net, 16, 32, loss=lambda y, t: y.sum(0))
def wrong_shape(): return make(Net, 16, 32, inputs=7)
def bare(): return nn.Linear(8, 4)
def number(): return 3
def raises(): raise ValueError("the data set is gone")
def closure(): return autopar.Workload(
    model=Net(32, 0.0), example_inputs=(torch.randn(16, 8),), example_targets=(torch.randint(0, 4, (16,)),), loss=F.cross_entropy,
    optimizer=torch.optim.LBFGS)
def given():
    model = Net(32, 0.0)
    with torch.no_grad():
        model.up.weight[0] = 1.0  # no recipe makes this: it is kept as it is
    return autopar.Workload(
        model=model, example_inputs=(torch.randn(16, 8),), example_targets=(torch.randint(0, 4, (16,)),), loss=F.cross_entropy,
        optimizer=torch.optim.AdamW)
'''


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "net.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def call(capfd):
    """Run the command line: (exit code, stdout, stderr)."""
    from autopar.cli.app import run_words

    def run(*words):
        capfd.readouterr()
        code = run_words([str(w) for w in words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture
def call_json(call):
    """The same with `--json`: (exit code, the object). Stdout must hold that one object and nothing else."""

    def run(*words):
        code, out, _ = call(*words, "--json")
        assert out.count("\n") == 1
        return code, json.loads(out)

    return run


@pytest.fixture(scope="session")
def plan_file(model, tmp_path_factory):
    """A plan of the small model on two ranks."""
    from autopar.cli.app import run_words

    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert run_words(["plan", f"{model}:build", "--cluster", "cpu:2", "-o", str(path)]) == 0
    return path
