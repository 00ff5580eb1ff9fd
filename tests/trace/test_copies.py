"""Copied blocks and copied updates: the graph is the one that tracing everything gives, and what is not alike is not copied."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from autopar.graph.graph import Graph  # noqa: E402
from autopar.trace import Workload, blocks, capture, trace_step  # noqa: E402
from autopar.trace.updating import update  # noqa: E402

pytestmark = pytest.mark.torch

KEPT: list[torch.Tensor] = []


class Layer(nn.Module):
    """A residual block; `twist` makes it unfit for copying in one way or another."""

    def __init__(self, index: int, twist: str = "", width: int = 8) -> None:
        super().__init__()
        self.index, self.twist = index, twist
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("count", torch.zeros(()))
        self.scale = 0.5 + 0.1 * index if twist == "own number" else 0.5
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor, passed: int = 0) -> tuple[torch.Tensor, int]:
        if self.twist == "writes to its input":
            x.mul_(1.5)
        y = self.down(torch.relu(self.up(self.norm(x)))) * mask * self.scale
        self.count.add_(1)
        if self.twist == "computes with its index":
            y = y / (self.index + 1)
        if self.twist == "decides by its index" and self.index % 3 == 1:
            y = y.sin()
        if self.twist == "keeps a tensor":
            self.last = y
        if self.twist == "keeps a tensor elsewhere":
            KEPT.append(y)
        if self.twist == "global state":
            y = y * len(KEPT)
            KEPT.append(y)
        return x + y, passed


class Stack(nn.Module):
    """Layers, a mask for all of them, and a head."""

    def __init__(self, layers: int = 5, twist: str = "") -> None:
        super().__init__()
        self.twist = twist
        self.layers = nn.ModuleList(Layer(k, twist) for k in range(layers))
        if twist == "named":
            self.layers, layers = None, self.layers
            for k, layer in enumerate(layers):
                setattr(self, f"layer{k}", layer)
        if twist == "tied":
            self.layers[3].up.weight = self.layers[1].up.weight
        if twist == "hook":
            self.layers[2].down.register_forward_hook(lambda _m, _i, out: out * 2)
        if twist == "frozen":
            self.layers[2].up.weight.requires_grad_(False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = ((x > 0).float() + torch.arange(8) / 8).to(x.dtype)
        x = x * 1.0
        for k, layer in enumerate(self.layers or [getattr(self, f"layer{k}") for k in range(5)]):
            x, _ = layer(x, mask, passed=0)
            if self.twist == "the root decides" and k == 2:
                x = x.tanh()
        if self.twist == "keeps a tensor":
            x = x + sum(layer.last for layer in self.layers)
        return self.head(x)


def second_derivative(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss that differentiates the gradient."""
    (grad,) = torch.autograd.grad(out.pow(2).sum(), out, create_graph=True)
    return (grad - y).pow(2).mean()


def make_workload(twist: str = "", optimizer=torch.optim.AdamW) -> Workload:
    KEPT.clear()
    loss = nn.functional.mse_loss
    return Workload(Stack(twist=twist), (torch.randn(6, 8),), (torch.randn(6, 4),), loss, optimizer)


def trace(workload: Workload, fewest: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[Graph, list[str]]:
    """The graph, and the paths of the blocks that were copied."""
    copied: list[str] = []

    def run_forward(self):
        copied.append(self.path)
        return original(self)

    original = blocks._Call.run_forward
    with monkeypatch.context() as patch:
        patch.setattr(capture, "_FEWEST_BLOCKS", fewest)
        patch.setattr(blocks._Call, "run_forward", run_forward)
        return trace_step(workload).graph, copied


def content(graph: Graph) -> list[tuple]:
    return [(n.op, n.inputs, n.args, n.outputs, n.phase, n.path, n.source) for n in graph.nodes]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_copied_blocks_give_the_same_graph(precision, monkeypatch):
    graphs = []
    for fewest in (2, None):
        monkeypatch.setattr(capture, "_FEWEST_BLOCKS", fewest)
        graphs.append(trace_step(make_workload(), precision).graph)
    assert content(graphs[0]) == content(graphs[1])
    assert graphs[0] == graphs[1]


def test_every_layer_is_copied(monkeypatch):
    _, copied = trace(make_workload(), 2, monkeypatch)
    assert copied == [f"layers.{k}" for k in range(5)]


def test_layers_that_are_numbered_by_their_names_are_copied(monkeypatch):
    found, copied = trace(make_workload("named"), 2, monkeypatch)
    assert copied == [f"layer{k}" for k in range(5)] and content(found) == content(trace(make_workload("named"), None, monkeypatch)[0])


@pytest.mark.parametrize("twist, copies", [("the root decides", 5), ("own number", 0), ("computes with its index", 0),
    ("decides by its index", 0), ("keeps a tensor", 0), ("writes to its input", 0), ("tied", 3), ("hook", 4), ("frozen", 4)])  # fmt: skip
def test_what_is_not_alike_is_not_copied(twist, copies, monkeypatch):
    found, copied = trace(make_workload(twist), 2, monkeypatch)
    expected, _ = trace(make_workload(twist), None, monkeypatch)
    assert content(found) == content(expected)
    assert len(copied) == copies


def test_a_last_block_that_differs_is_noticed(monkeypatch):
    """State outside the model makes each block another: the first and the last are compared, and the step is traced again."""
    found, _ = trace(make_workload("global state"), 2, monkeypatch)
    KEPT.clear()
    expected, _ = trace(make_workload("global state"), None, monkeypatch)
    assert [n.op for n in found.nodes] == [n.op for n in expected.nodes]


def test_a_gradient_of_a_gradient_is_traced_whole(monkeypatch):
    class Penalised(Stack):
        def forward(self, x):
            x = x.requires_grad_()
            out = super().forward(x)
            (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return out + grad.pow(2).sum()

    def make():
        return Workload(Penalised(), (torch.randn(6, 8),), (torch.randn(6, 4),), nn.functional.mse_loss, torch.optim.SGD)

    assert content(trace(make(), 2, monkeypatch)[0]) == content(trace(make(), None, monkeypatch)[0])


# -- updates ---------------------------------------------------------------------------------------------------------------------------


def trace_updates(optimizer, monkeypatch: pytest.MonkeyPatch) -> tuple[Graph, Graph, dict[str, str]]:
    """The graph with copies, without, and what was copied."""
    seen: list[dict[str, str]] = []

    def record(*args):
        found = original(*args)
        seen.append(found.copies)
        return found

    original = update.record_update
    with monkeypatch.context() as patch:
        patch.setattr(capture, "record_update", record)
        found = trace_step(make_workload(optimizer=optimizer)).graph
        patch.setattr(update, "choose_samples", lambda *_: {})
        return found, trace_step(make_workload(optimizer=optimizer)).graph, seen[0]


def names_apart(graph: Graph) -> list[tuple]:
    """Nodes by what they compute, not by the order in which they were written."""
    made: dict[str, object] = {v: v for v in graph.inputs}
    lines = []
    for node in graph.nodes:
        line = (node.op, node.args, tuple(hash(made[v]) for v in node.inputs), node.phase, node.path)
        made.update((v, (line, k)) for k, v in enumerate(node.outputs))
        lines.append(line)
    ends = [(before, hash(made[after])) for before, after in graph.updates]
    return sorted(map(repr, lines)) + sorted(map(repr, ends))


class Clipped(torch.optim.AdamW):
    """All gradients decide about each update."""

    def step(self, closure=None):
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        nn.utils.clip_grad_norm_(params, 1.0)
        return super().step()


class Trusting(torch.optim.Optimizer):
    """Expects a gradient everywhere."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])


class Layerwise(torch.optim.Optimizer):
    """The rate falls from parameter to parameter."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for k, p in enumerate(self.param_groups[0]["params"]):
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.1 / (k + 1))


@pytest.mark.parametrize("optimizer, num_copied", [(torch.optim.AdamW, 22), (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 22),
    (Clipped, 0), (Trusting, 0), (Layerwise, 0), (torch.optim.Adagrad, 22)])  # fmt: skip
def test_copied_updates_give_the_same_graph(optimizer, num_copied, monkeypatch):
    found, expected, copies = trace_updates(optimizer, monkeypatch)
    assert names_apart(found) == names_apart(expected)
    assert found.inputs == expected.inputs
    assert len(copies) == num_copied
