"""Gradients of slices that are added up become one concatenation."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from autopar.trace import Workload, trace_step  # noqa: E402
from tests.trace.compare import worst_differences  # noqa: E402

pytestmark = pytest.mark.torch


class Sliced(nn.Module):
    """A linear whose output is taken apart by `cut`."""

    def __init__(self, cut) -> None:
        super().__init__()
        self.up, self.cut = nn.Linear(4, 12), cut

    def forward(self, x):
        return sum((k + 1) * part.sin().sum(tuple(range(1, part.dim()))) for k, part in enumerate(self.cut(self.up(x))))


def make_workload(cut) -> Workload:
    torch.manual_seed(0)
    return Workload(Sliced(cut), (torch.randn(6, 3, 4),), (torch.randn(6),), nn.functional.mse_loss, torch.optim.SGD)


CUTS = {  # cut -> (number of concatenations, of padded gradients that are left)
    "three slices": (lambda h: (h[..., :4], h[..., 4:8], h[..., 8:]), 1, 0),
    "negative bounds": (lambda h: (h[..., :-8], h[..., -8:-4], h[..., -4:]), 1, 0),
    "a gap": (lambda h: (h[..., :3], h[..., 7:]), 1, 0),
    "selects": (lambda h: (h[:, 0], h[:, 1], h[:, 2]), 1, 0),
    "a select and a slice": (lambda h: (h[:, 0], h[:, 1:]), 1, 0),
    "overlap": (lambda h: (h[..., :7], h[..., 5:]), 0, 2),
    "two dims": (lambda h: (h[..., :6], h[:, :2]), 0, 2),
    "steps": (lambda h: (h[..., ::2], h[..., 1::2]), 1, 0),
    "steps of three, a gap": (lambda h: (h[..., 2::3], h[..., ::3]), 1, 0),
    "steps along an outer dim": (lambda h: (lambda r: (r[:, 1::2], r[:, ::2]))(h.reshape(6, 6, 6)), 1, 0),
    "steps that do not divide": (lambda h: (h[..., ::5], h[..., 1::5]), 0, 2),
    "steps that overlap": (lambda h: (h[..., ::2], h[..., ::4]), 0, 2),
    "halves, and the whole": (lambda h: (h, h[..., 6:], h[..., :6]), 1, 0),
    "three, and the whole": (lambda h: (h, h[..., :4], h[..., 8:], h[..., 4:8]), 1, 0),
    "the whole, and what overlaps": (lambda h: (h, h[..., :7], h[..., 5:]), 0, 2),
    "every other, and the whole": (lambda h: (h, h[..., ::2], h[..., 1::2]), 1, 0),
    "one slice": (lambda h: (h[..., 2:9],), 0, 1),
}


@pytest.mark.parametrize("name", CUTS)
def test_pieces_become_one_concatenation(name):
    cut, num_cats, num_padded = CUTS[name]
    ops = [n.op for n in trace_step(make_workload(cut)).graph.nodes]
    assert ops.count("aten.cat.default") == num_cats
    assert sum("slice_backward" in op or "select_backward" in op for op in ops) == num_padded
    worst, _ = worst_differences(make_workload(cut))
    assert max(worst.values()) < 1e-12
