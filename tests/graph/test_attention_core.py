"""The attention core: found by ops in whatever form it is written, and nothing that only looks like one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar import Workload  # noqa: E402
from autopar.graph.attention_core import list_core, list_selective  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.recompute import list_recomputable  # noqa: E402
from autopar.trace import trace_step  # noqa: E402

pytestmark = pytest.mark.torch
WIDTH, HEADS, TOKENS = 8, 2, 6


class Plain(nn.Module):
    """Scores, scale, a mask of its own, a bias that a matmul makes, softmax, dropout, values; named like nothing in particular."""

    def __init__(self, drop=0.1, fused=False):
        super().__init__()
        self.a, self.b, self.c, self.z = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, HEADS), nn.LayerNorm(WIDTH)
        self.drop, self.fused = drop, fused

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = self.a(self.z(x)).view(b, s, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) * 0.5 + self.c(x).permute(0, 2, 1)[:, :, None]
            mask = torch.ones(s, s, dtype=torch.bool).triu(1)
            y = F.dropout(F.softmax(scores.masked_fill(mask, -1e4), -1), self.drop) @ v
        return x + self.b(F.gelu(y.transpose(1, 2).reshape(b, s, w)))


class Gate(nn.Module):
    """Experts mixed by a softmax over what a weight makes: no attention."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 4), nn.Parameter(torch.randn(4, WIDTH, WIDTH))

    def forward(self, x):
        every = torch.einsum("bsw,ewv->bsev", x, self.up)
        return x + (F.softmax(self.gate(x), -1)[:, :, None] @ every)[:, :, 0]


def graph_of(*blocks):
    model = nn.Sequential(*blocks)
    case = build_case(trace_step(Workload(model, (torch.randn(4, TOKENS, WIDTH),), (torch.randn(4, TOKENS, WIDTH),), F.mse_loss, torch.optim.SGD), "fp32").graph)
    return case.graph, case.signatures


def ops(graph, names):
    return [node.op.split(".")[1] for node in graph.nodes if node.name in names]


def test_the_core_of_several_ops():
    graph, signatures = graph_of(Plain(), Plain())
    core = list_core(graph, signatures)
    found = ops(graph, core)
    assert found.count("bmm") == 4 and found.count("_softmax") == 2 and found.count("uniform") == 2
    assert not {"linear", "native_layer_norm", "gelu"} & set(found)  # projections, the bias's among them, and what is around
    assert {node.phase for node in graph.nodes if node.name in core} == {Phase.FORWARD}


def test_what_is_run_again_of_it():
    """All but the product with the values: its result is held for the projection."""
    graph, signatures = graph_of(Plain(), Plain())
    again = list_selective(graph, signatures)
    found = ops(graph, again)
    assert found.count("bmm") == 2 and found.count("_softmax") == 2 and found.count("uniform") == 2
    assert set(again) <= set(list_core(graph, signatures)) & set(list_recomputable(graph, signatures))
    makers = {out: node for node in graph.nodes for out in node.outputs}
    softmaxes = [node for node in graph.nodes if node.op.startswith("aten._softmax.")]
    assert len(softmaxes) == 2 and all(makers[node.inputs[0]].name in again for node in softmaxes)  # the masked scores


def test_a_fused_core_is_run_again_whole():
    graph, signatures = graph_of(Plain(fused=True), Plain(fused=True))
    fused = [node.name for node in graph.nodes if node.op == "autopar.attention"]
    assert len(fused) == 2 and list(list_core(graph, signatures)) == fused == list(list_selective(graph, signatures))


def test_a_gate_and_a_loss_have_none():
    graph, signatures = graph_of(Gate(), Gate())
    assert "_softmax" in ops(graph, {node.name for node in graph.nodes})
    assert list_core(graph, signatures) == () == list_selective(graph, signatures)


def test_only_the_attention_of_a_mixture():
    graph, signatures = graph_of(Plain(), Gate(), Plain(fused=True))
    paths = {node.path.split(".")[0] for node in graph.nodes if node.name in list_core(graph, signatures)}
    assert paths == {"0", "2"}
