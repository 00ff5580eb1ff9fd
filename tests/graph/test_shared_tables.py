"""Shared tables: what is made of constants alone is made once, in a block or for all of them; a model that makes it itself once is planned the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import autopar  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.graph.graph import check_graph  # noqa: E402
from autopar.graph.node import packet_of  # noqa: E402
from autopar.graph.repeats import find_repeats  # noqa: E402
from autopar.graph.shared_tables import share_tables  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402
from autopar.trace.lowering import lower  # noqa: E402
from autopar.verify import verify_workload  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH, HEADS, SEQ, VOCAB = 16, 2, 6, 32


def angles(length):
    rates = 1 / 100 ** (torch.arange(0, WIDTH // HEADS, 2).float() / (WIDTH // HEADS))
    return torch.outer(torch.arange(length).float(), rates)


def turn(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Block(nn.Module):
    """Attention with rotary positions and a mask, each made where it is used, or given."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, tables=None):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        q, k = (turn(part, *(tables or (angles(x.shape[1]).cos(), angles(x.shape[1]).sin()))[:2]) for part in (q, k))
        mask = tables[2] if tables else torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        scores = (q @ k.transpose(-1, -2)).masked_fill(mask, float("-inf")).softmax(-1)
        return x + self.out((scores @ v).transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, layers=3, in_root=False):
        super().__init__()
        self.embed, self.layers, self.in_root = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(Block() for _ in range(layers)), in_root

    def forward(self, ids):
        x, length = self.embed(ids), ids.shape[1]
        tables = (angles(length).cos(), angles(length).sin(), torch.triu(torch.ones(length, length, dtype=torch.bool), 1)) if self.in_root else None
        for layer in self.layers:
            x = layer(x, tables)
        return x


class Shifted(nn.Module):
    """A linear and a table that its gradient does not need, which is made twice."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return F.gelu(self.own(x)) + torch.arange(WIDTH).float().cos() + torch.arange(WIDTH).float().cos() * 0.5


class Row(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Shifted(), Shifted(), Shifted())

    def forward(self, x):
        return self.layers(x)


class Half(nn.Module):
    """Positions are made once, what is made of them in every block; the first block has them, too, for something else."""

    def __init__(self):
        super().__init__()
        self.first, self.layers = nn.Linear(WIDTH, WIDTH), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(16))

    def forward(self, x):
        places = torch.arange(WIDTH).float()
        x = self.first(x) * (places + 1)
        for layer in self.layers:
            x = F.gelu(layer(x)) * places.cos() * (torch.arange(WIDTH).float() + 1).sin()
        return x


def stack(layers=3, in_root=False):
    torch.manual_seed(0)
    ids = torch.randint(0, VOCAB, (4, SEQ))
    return Workload(Stack(layers, in_root), (ids,), (torch.randn(4, SEQ, WIDTH),), F.mse_loss, torch.optim.SGD, name="stack")


def ops(graph):
    return Counter(packet_of(node.op).partition(".")[2] for node in graph.nodes)


def test_tables_that_blocks_keep_are_made_once_in_front_of_them():
    graph = trace_step(stack()).graph
    assert (ops(graph)["cos"], ops(graph)["sin"], ops(graph)["triu"]) == (1, 1, 1)
    assert all(node.path == "" for node in graph.nodes if packet_of(node.op) in ("aten.cos", "aten.sin", "aten.triu"))
    assert [(r.phase.value, len(r.blocks)) for r in find_repeats(graph)] == [("forward", 3), ("backward", 3), ("update", 3)]
    assert share_tables(graph) is graph


def test_a_model_that_makes_them_itself_has_as_many_ops():
    by_blocks, by_root = (trace_step(stack(in_root=in_root)).graph for in_root in (False, True))
    assert ops(by_blocks) == ops(by_root)


def test_a_table_that_is_not_kept_stays_in_its_block_and_is_made_once_there():
    work = Workload(Row(), (torch.randn(4, WIDTH),), (torch.randn(4, WIDTH),), F.mse_loss, torch.optim.SGD)
    made = [node.path for node in trace_step(work).graph.nodes if packet_of(node.op) == "aten.cos"]
    assert made == ["layers.0", "layers.1", "layers.2"]


class Masked(nn.Module):
    """A mask of the tokens, and cosines of a buffer, twice."""

    def __init__(self, rates):
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("rates", rates)

    def forward(self, x, ids):
        return F.gelu(self.own(x)) * self.rates.cos() * (ids != 0).unsqueeze(-1) + x * self.rates.cos()


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        rates = torch.rand(WIDTH)
        self.embed, self.layers = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(Masked(rates) for _ in range(4))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, ids)
        return x


def test_masks_of_the_batch_are_made_once_and_tables_of_a_buffer_in_each_block():
    ids = torch.randint(0, VOCAB, (4, SEQ))
    work = Workload(Padded(), (ids,), (torch.randn(4, SEQ, WIDTH),), F.mse_loss, torch.optim.SGD, name="padded")
    found = ops(trace_step(work).graph)
    assert found["ne"] == 1 and found["cos"] == 4
    for cluster, fix in (("cpu:2", "dp=2"), ("cpu:2", "pp=2"), ("cpu:2", "dp=2,microbatches=2")):
        report = verify_workload(work, cluster, autopar.Options(constraints=parse_fix(fix), time_limit_s=20.0, price=False))
        assert not report.failures, report


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            table = torch.arange(WIDTH).float()
            for _ in range(60):
                table = (table + table) * 0.5
            x = layer(x) * table.sin()
        return x


@pytest.mark.parametrize("apart", [1, 2, 6])
def test_what_tables_are_made_of_may_be_in_no_block(monkeypatch, apart):
    """Some or all of it, though it stands among the ops of blocks."""
    monkeypatch.setattr(lower, "share_tables", lambda graph: graph)
    graph = trace_step(stack()).graph
    positions = [i for i, node in enumerate(graph.nodes) if packet_of(node.op) == "aten.arange"][:apart]
    assert len(positions) == apart and ops(graph)["cos"] == 6
    nodes = tuple(replace(node, path="") if i in positions else node for i, node in enumerate(graph.nodes))
    shared = share_tables(replace(graph, nodes=nodes))
    check_graph(shared)
    assert (ops(shared)["cos"], ops(shared)["triu"]) == (1, 1) and [(r.phase.value, len(r.blocks)) for r in find_repeats(shared)] == [("forward", 3), ("backward", 3), ("update", 3)]


def test_long_chains_are_compared_by_number():
    work = Workload(Doubling(), (torch.randn(4, WIDTH),), (torch.randn(4, WIDTH),), F.mse_loss, torch.optim.SGD)
    assert ops(trace_step(work).graph)["sin"] == 1


def test_what_tables_are_made_of_may_be_there_before():
    work = Workload(Half(), (torch.randn(4, WIDTH),), (torch.randn(4, WIDTH),), F.mse_loss, torch.optim.SGD, name="half")
    found = ops(trace_step(work).graph)
    assert found["cos"] == found["sin"] == 1 and found["arange"] <= 3
    report = verify_workload(work, "cpu:2", autopar.Options(time_limit_s=20.0, price=False))
    assert not report.failures, report


@pytest.mark.parametrize("fix", ["dp=2,zero=3", "tp=2", "sp=2", "pp=2", "dp=2,microbatches=2,recompute=full"])
def test_numbers(fix):
    report = verify_workload(stack(4), "cpu:2", autopar.Options(constraints=parse_fix(fix), time_limit_s=20.0, price=False))
    assert not report.failures, report
