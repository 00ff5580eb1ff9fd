"""What library models do that the tracer once could not carry: each against eager PyTorch in float64."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.trace import Workload, trace_step  # noqa: E402
from tests.trace.compare import worst_differences  # noqa: E402
from tests.trace.zoo import ADAMW  # noqa: E402

pytestmark = pytest.mark.torch


class Scaled(nn.Linear):
    """CLIP: a temperature that is learnt."""

    def __init__(self):
        super().__init__(6, 5)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return super().forward(x) * self.scale.exp()


class ChannelsLast(nn.Module):
    """ConvNeXt: a norm over channels last, then a pool, whose gradient autograd packs by strides."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 2, 2), nn.LayerNorm(5)

    def forward(self, x):
        x = self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


class Groups(nn.Linear):
    """DeepSeek: a mask of chosen groups is scattered in place."""

    def __init__(self):
        super().__init__(6, 5)

    def forward(self, x):
        scores = super().forward(x)
        mask = torch.zeros_like(scores).scatter_(1, scores.topk(2, -1).indices, 1)
        return scores.masked_fill(~mask.bool(), 0.0)


class Cached(nn.Linear):
    """BLIP: a cache that is empty at first, of one dim, is joined with what comes."""

    def __init__(self):
        super().__init__(6, 5)

    def forward(self, x):
        return torch.cat([torch.tensor([], dtype=x.dtype), super().forward(x)], dim=-2)


@pytest.mark.parametrize("make, shape", [(Scaled, (4, 6)), (ChannelsLast, (4, 3, 8, 8)), (Groups, (4, 6)), (Cached, (4, 6))])
def test_equals_eager(make, shape):
    workload = Workload(make(), (torch.randn(*shape),), (torch.tensor([0, 4, 1, 2]),), F.cross_entropy, ADAMW)
    worst, _ = worst_differences(workload)
    assert all(difference < 1e-12 for difference in worst.values()), worst


class Listing(nn.Linear):
    """DynUNet keeps its outputs in a list of its own; Hugging Face hooks its layers when they are first called."""

    def __init__(self):
        super().__init__(6, 5)
        self.outputs = [torch.zeros(())]
        self.inner = nn.Identity()
        self.hooked = False

    def forward(self, x):
        if not self.hooked:
            self.inner.register_forward_hook(lambda module, inputs, output: self.outputs.append(output))
            self.hooked = True
        self.outputs[0] = self.inner(super().forward(x))
        return self.outputs[0]


def test_the_module_is_as_it_was():
    model = Listing()
    trace_step(Workload(model, (torch.randn(4, 6),), (torch.tensor([0, 4, 1, 2]),), F.cross_entropy, ADAMW))
    assert not model.hooked and not model.inner._forward_hooks and len(model.outputs) == 1
    assert type(model.outputs[0]) is torch.Tensor
