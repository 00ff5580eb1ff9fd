"""Sequences: which numbered containers hold blocks, so that a model with numbers is planned as the same model with names."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.graph.graph import graph_hash  # noqa: E402
from autopar.graph.repeats import MANY, block_of, find_repeats, shift_name  # noqa: E402
from autopar.graph.stages import list_units  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402

pytestmark = pytest.mark.torch


class Mlp(nn.Module):
    """A block: two matrices and a residual, or something more in front."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8) if first else nn.Identity()

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Holder(nn.Module):
    """A model whose only module is `net`."""

    def __init__(self, *entries: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*entries)

    def forward(self, x):
        return self.net(x)


class Heads(nn.Module):
    """As many heads side by side."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(8, 2) for _ in range(count)])

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], -1)[:, :8]


def graph_of(model):
    return trace_step(Workload(model, (torch.randn(4, 8),), (torch.randn(4, 8),), F.mse_loss, torch.optim.AdamW)).graph


def rows_of(graph):
    return {r.family: len(r.blocks) for r in find_repeats(graph)}


LEAVES = [nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 8)]


@pytest.mark.parametrize(
    ("model", "sequences", "rows"),
    [
        (nn.Sequential(*LEAVES), ("",), {}),
        (Holder(*LEAVES), ("net",), {}),
        (Holder(Mlp(), Mlp(), Mlp()), (), {"net": 3}),
        (Holder(Mlp(first=True), Mlp(), Mlp()), (), {"net": 2}),  # the first has an op more
        (Holder(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))), (), {"net": 3}),
        (Holder(nn.Linear(8, 8), nn.Sequential(Mlp(), Mlp()), nn.LayerNorm(8)), ("net",), {"net.1": 2}),
        (Holder(nn.Linear(8, 8), nn.LayerNorm(8), Mlp()), ("net",), {}),
        (Holder(Mlp()), (), {}),
    ],
    ids=["root", "leaves", "blocks", "another first block", "pairs", "blocks inside", "one block among leaves", "one block"],
)
def test_which_containers_hold_blocks(model, sequences, rows):
    graph = graph_of(model)
    assert graph.sequences == sequences and rows_of(graph) == rows


@pytest.mark.parametrize("count", [MANY - 1, MANY])
def test_many_equal_entries_are_decided_together(count):
    graph = graph_of(Heads(count))
    assert graph.sequences == ("heads",) and rows_of(graph) == ({"heads": count} if count == MANY else {})


def test_a_number_of_a_sequence_is_passed_over():
    assert block_of("net.1.h.3.up", ("net",)) == ("net.1.h", 3)
    assert block_of("net.1.up", ("net",)) is None and block_of("1.0.up", ("",)) == ("1", 0)
    assert shift_name("exp_avg:net.1.3.up.weight", {"net.1": 2}) == "exp_avg:net.1.5.up.weight"
    assert shift_name("net.1.3.up.weight", {"h": 2}) == "net.1.3.up.weight"


def test_the_model_may_be_cut_between_blocks_inside_of_a_sequence():
    inside = graph_of(Holder(nn.Linear(8, 8), nn.Sequential(Mlp(), Mlp(), Mlp()), nn.LayerNorm(8)))
    paths = [inside.nodes[unit[0]].path for unit in list_units(inside)]
    assert [path.split(".")[:3] for path in paths if path.startswith("net.1")] == [["net", "1", "0"], ["net", "1", "1"], ["net", "1", "2"]]


def test_the_hash_knows_sequences():
    graph = graph_of(Holder(*LEAVES))
    assert graph_hash(graph) != graph_hash(replace(graph, sequences=()))
