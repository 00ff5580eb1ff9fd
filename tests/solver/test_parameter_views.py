"""Views of parameters: a weight that is stored in another shape than the matmul has is planned as one that is not; nothing that is gathered is held for its views."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import autopar  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402
from autopar.verify import verify_workload  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH, WIDER = 64, 256


class Block(nn.Module):
    """Two matmuls; `stored` says how their weights lie: as matmuls want them, with a dim in two, or permuted so that a reshape copies."""

    def __init__(self, stored):
        super().__init__()
        self.stored, self.norm = stored, nn.LayerNorm(WIDTH)
        shapes = {"plain": ((WIDER, WIDTH), (WIDTH, WIDER)), "parted": ((4, WIDER // 4, WIDTH), (WIDTH, 4, WIDER // 4)), "permuted": ((4, WIDTH, WIDER // 4), (4, WIDTH, WIDER // 4))}[stored]
        self.up, self.down = (nn.Parameter(torch.randn(shape) * 0.1) for shape in shapes)

    def forward(self, x):
        up, down = self.up, self.down
        if self.stored == "parted":
            up, down = up.view(-1, WIDTH), down.view(WIDTH, -1)
        if self.stored == "permuted":
            up, down = up.transpose(1, 2).reshape(-1, WIDTH), down.transpose(0, 1).reshape(WIDTH, -1)
        return x + F.linear(F.gelu(F.linear(self.norm(x), up)), down)


def workload(stored, layers=4):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(stored) for _ in range(layers)))
    return Workload(model, (torch.randn(8, 4, WIDTH),), (torch.randn(8, 4, WIDTH),), F.mse_loss, torch.optim.AdamW, name=stored)


def options(fix):
    return autopar.Options(constraints=parse_fix(fix), time_limit_s=20.0, price=False)


@pytest.mark.parametrize("fix", ["dp=4,zero=3,recompute=full", "dp=4,zero=3,recompute=none"])
@pytest.mark.parametrize("stored", ["parted", "permuted"])
def test_what_is_gathered_is_not_held_for_views(fix, stored):
    plain, viewed = (autopar.compile_workload(workload(each, 6), "1x4xA100-80GB", options(fix)).plan for each in ("plain", stored))
    weights = 2 * WIDTH * WIDER * 4  # of a block, whole
    assert max(viewed.cost.peak_bytes) <= max(plain.cost.peak_bytes) + weights  # not six of them
    assert sum(c.kind == "all_gather" for c in viewed.comms) == sum(c.kind == "all_gather" for c in plain.comms)


def test_views_are_taken_again_where_the_backward_pass_of_their_block_begins():
    graph = trace_step(workload("parted")).graph
    again = [i for i, node in enumerate(graph.nodes) if node.name.endswith("_remade")]
    assert len(again) == 8
    for i in again:
        assert graph.nodes[i].path == graph.nodes[i + 1].path and graph.nodes[i].phase.value == "backward"
        assert i - 1 in again or graph.nodes[i - 1].path != graph.nodes[i].path


@pytest.mark.parametrize("fix", ["dp=2,zero=3,recompute=full", "dp=2,zero=3", "tp=2,recompute=full", "pp=2,recompute=full", "dp=2,zero=1,microbatches=2,recompute=full"])
@pytest.mark.parametrize("stored", ["parted", "permuted"])
def test_numbers(fix, stored):
    report = verify_workload(workload(stored), "cpu:2", options(fix))
    assert not report.failures, report


class Borrowed(nn.Module):
    """The second block works with a view that the first one made, and all of them may be run again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block("parted") for _ in range(3))

    def forward(self, x):
        views = []
        for layer in self.layers:
            x = layer(x)
            views.append(layer.up[0, :WIDTH])
        for layer, view in zip(self.layers, reversed(views)):
            x = layer.norm(x * view.sin().sum()) + x.tanh()
        return x


def test_a_view_of_another_block_is_read_where_it_is():
    torch.manual_seed(0)
    work = Workload(Borrowed(), (torch.randn(8, 4, WIDTH),), (torch.randn(8, 4, WIDTH),), F.mse_loss, torch.optim.SGD, name="borrowed")
    report = verify_workload(work, "cpu:2", options("dp=2,zero=3,recompute=full"))
    assert not report.failures, report
