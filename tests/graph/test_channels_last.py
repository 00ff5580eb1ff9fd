"""Which pictures lie channels last, as torch leaves them on a CPU."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from autopar.graph.channels_last import channels_last, lies_last, list_lying  # noqa: E402
from autopar.graph.graph import value_table  # noqa: E402
from autopar.graph.node import packet_of  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("seed", range(5))
def test_torch_takes_the_same_to_lie_so(seed):
    """A convolution leaves y as it takes x to lie; with a border of two rows and columns that is seen of one pixel, too."""
    rng = random.Random(seed)
    for _ in range(100):
        order = rng.choice([(0, 1, 2, 3), (0, 3, 1, 2), rng.sample(range(4), 4)])
        x = torch.zeros([rng.choice((1, 1, 2, 3)) for _ in range(4)]).permute(*order)
        y = torch.ops.aten.convolution.default(x, torch.zeros(4, x.shape[1], 1, 1), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        last = y.stride() == channels_last(tuple(y.shape))
        assert last or y.is_contiguous()
        assert lies_last(tuple(x.shape), x.stride()) == last, (x.shape, x.stride())


class Turned(torch.nn.Module):
    """A norm over channels between convolutions, as ConvNeXt has it."""

    def __init__(self):
        super().__init__()
        self.first, self.wide, self.last = torch.nn.Conv2d(3, 8, 3, 1, 1), torch.nn.Conv2d(8, 8, 7, padding=3, groups=8), torch.nn.Conv2d(8, 4, 2, 2)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        x = self.first(x)
        y = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.last(torch.nn.functional.gelu(self.wide(y)) + y)


def test_what_is_made_of_what_was_turned_lies_so():
    x = torch.randn(2, 3, 8, 8)
    graph = trace_step(Workload(Turned(), (x,), (torch.randn(2, 4, 4, 4),), torch.nn.functional.mse_loss)).graph
    lying, values = list_lying(graph), value_table(graph)
    found = [
        (packet_of(node.op), lies_last(values[out].shape, lying[out]) if out in lying else False)
        for node in graph.nodes for out in node.outputs[:1] if packet_of(node.op) in ("aten.convolution", "aten.gelu", "aten.convolution_backward")
    ]  # fmt: skip
    forward, backward = [row for row in found if row[0] != "aten.convolution_backward"], [last for packet, last in found if packet == "aten.convolution_backward"]
    assert forward == [("aten.convolution", False), ("aten.convolution", True), ("aten.gelu", True), ("aten.convolution", True)]
    assert backward[:2] == [True, True] and len(backward) == 3
