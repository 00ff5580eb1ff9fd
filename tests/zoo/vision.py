"""Image models of timm, small and with random weights: one training step of a classifier.

Sizes: 8 pictures of 32 x 32 or 64 x 64, 16 classes. Needs `timm`. `make zoo` installs it without torchvision, which would bring another
torch with it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys

import torch
from torch.nn import functional as F

import autopar

BATCH, CLASSES = 8, 16
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)
SGD = functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.9, weight_decay=1e-4)


def _classifier(model: torch.nn.Module, size: int = 32, optimizer=ADAMW) -> autopar.Workload:
    return autopar.Workload(model, (torch.randn(BATCH, 3, size, size),), (torch.randint(0, CLASSES, (BATCH,)),), F.cross_entropy, optimizer)


def _create(name: str, **fields) -> torch.nn.Module:
    """timm's model of that name, with some of its sizes changed."""
    return _timm().create_model(name, pretrained=False, num_classes=CLASSES, **fields)


def _timm():
    """timm; without torchvision, with stand-ins for what timm imports of it and these models never use (data sets, transforms)."""
    if importlib.util.find_spec("torchvision") is not None:
        import timm

        return timm
    finder = _StandIns()
    sys.meta_path.append(finder)
    try:
        import timm
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    return timm


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any `torchvision.x.y`, and in it any class."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None

    def exec_module(self, module) -> None:
        module.__getattr__ = functools.partial(_make_class, module.__name__)


class _AnyMember(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _make_class(where: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(f"{where} has no {name}")
    return _AnyMember(name, (torch.nn.Module,), {"__module__": where})


def resnet():
    return _classifier(_create("resnet18", layers=(1, 1, 1, 1), channels=(16, 32, 64, 128)), 64, SGD)


def resnet_bottleneck():
    return _classifier(_create("resnet50", layers=(1, 1, 1, 1), channels=(8, 16, 32, 64)), 64, SGD)


def convnext():
    return _classifier(_create("convnext_atto", depths=(1, 1, 1, 1), dims=(16, 32, 64, 128)), 64)


def efficientnet():
    return _classifier(_create("test_efficientnet"), 64)


def mobilenet():
    return _classifier(_create("mobilenetv3_small_050"), 64)


def regnet():
    return _classifier(_create("regnety_002"), 64, SGD)


def densenet():
    return _classifier(_create("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)), 64, SGD)


def nfnet():
    return _classifier(_create("test_nfnet"), 64)


def vit():
    return _classifier(_create("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=8))


def deit_distilled():
    return _classifier(_create("deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=8))


def beit():
    return _classifier(_create("beit_base_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=8))


def eva02():
    return _classifier(_create("eva02_tiny_patch14_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=8))


def swin():
    fields = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 32, "depths": (2, 2), "num_heads": (4, 8), "drop_path_rate": 0.0}
    return _classifier(_create("swin_tiny_patch4_window7_224", **fields))


def maxvit():
    return _classifier(_create("maxvit_rmlp_pico_rw_256", img_size=64, depths=(1, 1), embed_dim=(32, 64), stem_width=16), 64)


def mixer():
    return _classifier(_timm().models.MlpMixer(num_classes=CLASSES, img_size=32, patch_size=8, num_blocks=2, embed_dim=64))
