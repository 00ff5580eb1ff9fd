"""Convolutional networks of published runs: plain PyTorch modules and their training steps, on meta.

In: sizes. Out: workloads. Sources stand at each model; which row has which sizes is told in `published_models`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from autopar.trace import Workload
from autopar.trace.build import build_lightly

# nnU-Net: MONAI's `DynUNet` as NVIDIA/DeepLearningExamples asks for it (PyTorch/Segmentation/nnUNet/nnunet/nn_unet.py: `build_nnunet`) ------------


class Layer(nn.Module):
    """Convolution, instance norm, leaky ReLU."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(inside, outside, 3, stride, 1, bias=False)
        self.norm = nn.InstanceNorm3d(outside, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(self.norm(self.conv(x)), 0.01)


def _layers(inside: int, outside: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Layer(inside, outside, stride), Layer(outside, outside, 1))


class Unet(nn.Module):
    """Levels of two layers down, each but the first halving the sides, and up again with what came down beside it."""

    def __init__(self, channels: int, classes: int, levels: int) -> None:
        super().__init__()
        widths = [min(32 * 2**i, 320) for i in range(levels)]
        self.down = nn.ModuleList(_layers(widths[i - 1] if i else channels, width, 2 if i else 1) for i, width in enumerate(widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.wider = nn.ModuleList(nn.ConvTranspose3d(deep, width, 2, 2) for deep, width in pairs)
        self.up = nn.ModuleList(_layers(2 * width, width, 1) for _, width in pairs)
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        for wider, block, beside in zip(self.wider, self.up, kept[-2::-1]):
            x = block(torch.cat((wider(x), beside), 1))
        return self.head(x)


def segmentation_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Dice of all classes but the background, summed over the whole batch, and cross-entropy (nnunet/loss.py: MONAI's `DiceLoss` with `batch=True`)."""
    parts = F.softmax(logits, 1)[:, 1:]
    truth = F.one_hot(labels, logits.shape[1]).movedim(-1, 1)[:, 1:].to(logits.dtype)
    dims = (0, 2, 3, 4)
    both, each = (parts * truth).sum(dims), parts.sum(dims) + truth.sum(dims)
    return (1 - (2 * both + 1e-5) / (each + 1e-5)).mean() + F.cross_entropy(logits, labels)


def build_unet(channels: int, patch: tuple[int, int, int], batch: int, levels: int, classes: int) -> Workload:
    """The training step of an nnU-Net, with Adam."""
    model, init = build_lightly(lambda: Unet(channels, classes, levels))
    images = torch.zeros(batch, channels, *patch, device="meta")
    labels = torch.zeros(batch, *patch, dtype=torch.int64, device="meta")
    return Workload(model=model, example_inputs=(images,), example_targets=(labels,), loss=segmentation_loss, optimizer=torch.optim.AdamW, init=init)


# Wide-ResNet as Alpa has it (alpa-projects/alpa, alpa/model/wide_resnet.py): bottlenecks whose middle is wider, batch norm, 1024 classes ---------------


class Bottleneck(nn.Module):
    """1 x 1 to `width`, 3 x 3 to `width * factor`, 1 x 1 to four widths; beside it what came in, or a 1 x 1 convolution of it."""

    def __init__(self, inside: int, width: int, factor: int, stride: int) -> None:
        super().__init__()
        wide, outside = width * factor, 4 * width
        self.thin, self.norm_1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.wide, self.norm_2 = nn.Conv2d(width, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide)
        self.out, self.norm_3 = nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside)
        self.beside = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)) if stride > 1 or inside != outside else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm_1(self.thin(x)))
        y = F.relu(self.norm_2(self.wide(y)))
        return F.relu(self.beside(x) + self.norm_3(self.out(y)))


class WideResnet(nn.Module):
    """A stem that quarters the sides, bottlenecks in four groups that double the width and halve the sides, the mean over what is left of them, classes."""

    def __init__(self, groups: tuple[int, ...], width: int, factor: int, classes: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        blocks, inside = [], width
        for group, count in enumerate(groups):
            for place in range(count):
                blocks.append(Bottleneck(inside, width * 2**group, factor, 2 if group and not place else 1))
                inside = 4 * width * 2**group
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def build_wide_resnet(groups: tuple[int, ...], width: int, factor: int, side: int, batch: int, classes: int, turns: int) -> Workload:
    """The training step of a Wide-ResNet, with Nesterov's momentum.

    Args:
        turns: microbatches, each of which has batch statistics of its own.
    """
    model, init = build_lightly(lambda: WideResnet(groups, width, factor, classes))
    images = torch.zeros(batch, 3, side, side, device="meta")
    labels = torch.zeros(batch, dtype=torch.int64, device="meta")
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)
    return Workload(model=model, example_inputs=(images,), example_targets=(labels,), loss=F.cross_entropy, optimizer=optimizer, init=init, norm_turns=turns)
