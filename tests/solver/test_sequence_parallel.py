"""Sequence parallelism: what has features is split along tp, what is of tokens alone or made of constants need not be."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.graph.case import case_roles  # noqa: E402
from autopar.graph.graph import value_table  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.partition import partition  # noqa: E402
from autopar.graph.program import CUTS  # noqa: E402

from .test_roles_in_turns import case_of, decide_on  # noqa: E402

pytestmark = pytest.mark.torch
TOKENS, WIDTH, VOCAB = 24, 32, 4096  # as logits are: far larger than anything else


class Masked(nn.Module):
    """Attention written out: a causal mask of constants, distances with a slope of each head, and padding that comes with the batch."""

    def __init__(self, heads=4):
        super().__init__()
        self.heads, self.embed, self.norm = heads, nn.Embedding(VOCAB, WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens, padding):
        x, places = self.embed(tokens), torch.arange(tokens.shape[1])
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        slopes = 2.0 ** -torch.arange(1, self.heads + 1)
        bias = slopes[:, None, None] * (places[None] - places[:, None]).abs()
        hidden = (places[None] > places[:, None]) | padding[:, None, None, :]
        scores = (q @ k.transpose(-1, -2) - bias).masked_fill(hidden, -1e4)
        return self.head(x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))


def _short(op):
    """Without the overload."""
    return ".".join(op.split(".")[:2])


@pytest.fixture(scope="module")
def case():
    tokens, padding = torch.randint(0, VOCAB, (2, TOKENS)), torch.zeros(2, TOKENS, dtype=torch.bool)
    return case_of(Masked(), tokens, padding, targets=(tokens,), loss=lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()))


def test_masks_distances_and_losses_of_tokens_are_of_no_features(case):
    featured = case_roles(case).featured
    free = {_short(node.op) for node in case.graph.nodes if node.name not in featured and node.phase is not Phase.UPDATE}
    held = {_short(node.op) for node in case.graph.nodes if node.name in featured}
    assert {"aten.arange", "aten.abs", "aten.gt", "aten.bitwise_or", "aten.log", "aten.ne"} <= free and not free & {"autopar.linear", "aten.add"}
    assert {"autopar.linear", "aten.native_layer_norm", "aten.bmm", "aten.add", "autopar.linear_weight_grad"} <= held


def test_nothing_gathers_them_and_the_loss_works_on_a_split_vocabulary(case):
    found = decide_on(case, "1x2xH100-80GB", "tp=2,sequence_parallel=1")
    graph = partition(case.graph, case.sites, case.signatures, case.cuts, found.assignment).graph
    values = value_table(graph)
    sent = [node for node in graph.nodes if node.op.startswith("comm.") and node.op not in CUTS and node.phase is not Phase.UPDATE]
    gathered = {values[node.outputs[0]].shape for node in sent if node.op == "comm.all_gather"}
    assert gathered == {(2, TOKENS, WIDTH)} and not [node for node in sent if node.op == "comm.all_to_all"]  # what linears read, and nothing else
    norms = [values[node.outputs[0]].shape for node in graph.nodes if _short(node.op) == "aten.native_layer_norm"]
    losses = [values[node.outputs[0]].shape for node in graph.nodes if _short(node.op) == "autopar.cross_entropy_backward"]
    assert norms == [(2, TOKENS // 2, WIDTH)] and losses == [(2, TOKENS, VOCAB // 2)]
