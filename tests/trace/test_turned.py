"""What is put side by side and then turned is turned first, where it would be copied."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from autopar.graph.graph import value_table  # noqa: E402
from autopar.graph.node import get_arg  # noqa: E402
from autopar.graph.view_strides import is_copied, list_strides, packed  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402
from tests.trace.compare import worst_differences  # noqa: E402

pytestmark = pytest.mark.torch
HEADS = 2


class Attention(nn.Module):
    """Queries, keys and values of one linear, taken apart by `cut`: `[b, s, 3 * 8]` -> three of `[b, heads, s, 4]`."""

    def __init__(self, cut) -> None:
        super().__init__()
        self.qkv, self.out, self.cut = nn.Linear(8, 24), nn.Linear(8, 1), cut

    def forward(self, x):
        b, s, d = x.shape
        found = nn.functional.scaled_dot_product_attention(*self.cut(self.qkv(x), b, s))
        return self.out(found.transpose(1, 2).reshape(b, s, d)).mean((1, 2))


CUTS = {
    "timm": lambda h, b, s: h.reshape(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0),
    "selects": lambda h, b, s: [*h.view(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)],
    "heads first": lambda h, b, s: h.reshape(b, s, HEADS, 3, -1).permute(3, 0, 2, 1, 4).unbind(0),
}


def make_workload(module) -> Workload:
    torch.manual_seed(0)
    return Workload(module, (torch.randn(6, 5, 8),), (torch.randn(6),), nn.functional.mse_loss, torch.optim.SGD)


def joined(graph):
    """Of each cat of the backward pass its dim and the shape of its parts, and the views of it that are copies."""
    values, strides = value_table(graph), list_strides(graph)
    cats = [node for node in graph.nodes if node.op == "aten.cat.default" and node.phase.value == "backward"]
    names = {node.outputs[0] for node in cats}
    copies = []
    for node in graph.nodes:
        if node.op in ("aten.view.default", "aten.permute.default") and node.inputs[0] in names:
            names.add(node.outputs[0])
            base = node.inputs[0]
            if node.op == "aten.view.default" and is_copied(values[base].shape, strides.get(base) or packed(values[base].shape), values[node.outputs[0]].shape):
                copies.append(node)
    return [(get_arg(node, "dim", 0), values[node.inputs[0]].shape) for node in cats], copies


@pytest.mark.parametrize("name", CUTS)
def test_gradients_of_turned_parts_lie_as_they_are_read(name):
    cats, copies = joined(trace_step(make_workload(Attention(CUTS[name]))).graph)
    dim = 3 if name == "heads first" else 2
    shape = (6, 5, HEADS, 1, 4) if name == "heads first" else (6, 5, 1, HEADS, 4)
    assert (cats, copies) == ([(dim, shape)], [])
    worst, _ = worst_differences(make_workload(Attention(CUTS[name])))
    assert max(worst.values()) < 1e-12


class Beside(nn.Module):
    """Two parts side by side, turned, for `read`."""

    def __init__(self, read) -> None:
        super().__init__()
        self.one, self.two, self.read = nn.Linear(8, 4), nn.Linear(8, 3), read

    def forward(self, x):
        return self.read(torch.cat([self.one(x), self.two(x)], dim=-1)).sum((1, 2))


READS = {  # what reads it -> dim of the cat
    "a matmul": (lambda x: x.transpose(1, 2) @ x, 2),  # reads it as it lies
    "a view that copies": (lambda x: x.transpose(1, 2).reshape(6, 1, 35).sin(), 1),
    "a view that copies, and another reader": (lambda x: x.transpose(1, 2).reshape(6, 1, 35).sin() + x.exp().mean(), 2),
}


@pytest.mark.parametrize("name", READS)
def test_only_what_would_be_copied_is_turned(name):
    read, dim = READS[name]
    cats = [node for node in trace_step(make_workload(Beside(read))).graph.nodes if node.op == "aten.cat.default" and node.phase.value == "forward"]
    assert [get_arg(node, "dim", 0) % 3 for node in cats] == [dim]
    worst, _ = worst_differences(make_workload(Beside(read)))
    assert max(worst.values()) < 1e-12
