"""Networks for volumes (MONAI), small and with random weights: one training step of a segmentation.

Sizes: 8 volumes of one channel, 4 classes. Needs `monai` (and `einops` for those with transformers; extra `autopar[zoo]`).
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional as F

import autopar

BATCH, CLASSES = 8, 4
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)
SGD = functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.99, nesterov=True)


def _step(model, size: int = 16, loss=F.cross_entropy, optimizer=ADAMW) -> autopar.Workload:
    volume = torch.randn(BATCH, 1, size, size, size)
    return autopar.Workload(model, (volume,), (torch.randint(0, CLASSES, (BATCH, size, size, size)),), loss, optimizer)


def dice_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """MONAI's sum of Dice and cross-entropy."""
    from monai.losses import DiceCELoss

    return DiceCELoss(to_onehot_y=True, softmax=True)(output, targets[:, None])


def unet():
    """The residual 3-D U-Net."""
    from monai.networks.nets import UNet

    return _step(UNet(3, 1, CLASSES, channels=(8, 16, 32), strides=(2, 2), num_res_units=2))


def unet_dice():
    """The same with batch norm and the Dice loss."""
    from monai.networks.nets import UNet

    return _step(UNet(3, 1, CLASSES, channels=(8, 16, 32), strides=(2, 2), num_res_units=1, norm="batch"), loss=dice_loss)


def basic_unet():
    from monai.networks.nets import BasicUNet

    return _step(BasicUNet(3, 1, CLASSES, features=(8, 8, 16, 16, 32, 8), norm="batch"))


def dynunet():
    """The network of nnU-Net, trained as nnU-Net does."""
    from monai.networks.nets import DynUNet

    return _step(DynUNet(3, 1, CLASSES, [3, 3, 3], [1, 2, 2], [2, 2], filters=[8, 16, 32]), optimizer=SGD)


def dynunet_deep():
    """The same with deep supervision: the loss of two resolutions."""
    from monai.networks.nets import DynUNet

    model = DynUNet(3, 1, CLASSES, [3, 3, 3, 3], [1, 2, 2, 2], [2, 2, 2], filters=[8, 8, 16, 16], deep_supervision=True, deep_supr_num=1)
    return _step(model, loss=_deep_loss)


def _deep_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return sum(F.cross_entropy(one, targets) / 2**k for k, one in enumerate(output.unbind(1)))


def segresnet():
    from monai.networks.nets import SegResNet

    return _step(SegResNet(3, init_filters=8, in_channels=1, out_channels=CLASSES, blocks_down=(1, 1, 1), blocks_up=(1, 1)))


def attention_unet():
    from monai.networks.nets import AttentionUnet

    return _step(AttentionUnet(3, 1, CLASSES, channels=(8, 16, 32), strides=(2, 2)))


def unetr():
    from monai.networks.nets import UNETR

    return _step(UNETR(1, CLASSES, img_size=(16, 16, 16), feature_size=8, hidden_size=64, mlp_dim=128, num_heads=8), 16)


def swin_unetr():
    from monai.networks.nets import SwinUNETR

    return _step(SwinUNETR(1, CLASSES, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 4), spatial_dims=3, norm_name="batch"), 32)
