"""Samples of padding, sampling, pixel shuffles, sliding windows and the inverses of pooling."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .referee import Sample, make_sample
from .samples_core import F64, numbers

aten = torch.ops.aten

_PADS = {1: ([2, 1], [1, 2]), 2: ([1, 2, 0, 0], [1, 2, 3, 0]), 3: ([1, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1])}


def pad_samples() -> Iterator[Sample]:
    small = {1: (4, 6, 6), 2: (2, 4, 6, 6), 3: (2, 4, 4, 6, 4)}
    for nd, paddings in _PADS.items():
        for kind in ("reflection", "replication"):
            for padding in paddings:
                x = numbers(*small[nd])
                sample = make_sample(f"aten.{kind}_pad{nd}d", x, padding, label=str(padding))
                yield sample
                g = numbers(*sample.outputs[0].shape, seed="g")
                yield make_sample(f"aten.{kind}_pad{nd}d_backward", g, x, padding, label=str(padding))
    yield make_sample("aten.reflection_pad2d", numbers(4, 6, 6), [1, 1, 1, 1], label="no batch")


def sampler_samples() -> Iterator[Sample]:
    image, volume = numbers(2, 4, 6, 4), numbers(2, 4, 3, 6, 4)
    grids = {"grid_sampler_2d": (image, (2, 6, 4, 2)), "grid_sampler_3d": (volume, (2, 4, 2, 6, 3))}
    for name, (x, places) in grids.items():
        for mode in (0, 1, 2) if name.endswith("2d") else (0, 1):
            for padding in (0, 1, 2):
                grid = 1.3 * numbers(*places, kind="unit")
                label = f"mode {mode} padding {padding}"
                sample = make_sample(f"aten.{name}", x, grid, mode, padding, False, label=label)
                yield sample
                g = numbers(*sample.outputs[0].shape, seed="g")
                yield make_sample(f"aten.{name}_backward", g, x, grid, mode, padding, False, [True, True], label=label)
    grid = 1.3 * numbers(2, 6, 4, 2, kind="unit")
    g = numbers(2, 4, 6, 4, seed="g")
    yield make_sample("aten.grid_sampler_2d_backward", g, image, grid, 0, 0, True, [False, True], label="grid only")


def pixel_samples() -> Iterator[Sample]:
    yield make_sample("aten.pixel_shuffle", numbers(2, 24, 3, 4), 2)
    yield make_sample("aten.pixel_unshuffle", numbers(2, 3, 6, 12), 3)
    yield make_sample("aten.pixel_unshuffle", numbers(4, 6, 4), 2, label="no batch")
    yield make_sample("aten.channel_shuffle", numbers(2, 12, 3, 4), 3)
    yield make_sample("aten.native_channel_shuffle", numbers(2, 12, 3, 4), 2)
    for label, args in (("tiled", ([2, 3], [1, 1], [0, 0], [2, 3])), ("overlapping", ([3, 3], [1, 1], [1, 1], [2, 1]))):
        x = numbers(2, 4, 6, 6)
        sample = make_sample("aten.im2col", x, *args, label=label)
        yield sample
        yield make_sample("aten.col2im", numbers(*sample.outputs[0].shape, seed="g"), [6, 6], *args, label=label)
    yield make_sample("aten.im2col", numbers(4, 6, 6), [2, 2], [1, 1], [0, 0], [2, 2], label="no batch")


def unpool_samples() -> Iterator[Sample]:
    image, volume = numbers(2, 4, 6, 8), numbers(2, 4, 4, 6, 4)
    out, index = aten.max_pool2d_with_indices(image, [2, 2])
    yield make_sample("aten.max_unpool2d", out, index, [6, 8])
    out, index = aten.max_pool3d_with_indices(volume, [2, 2, 2])
    yield make_sample("aten.max_unpool3d", out, index, [4, 6, 4], [2, 2, 2], [0, 0, 0])
    for nd, x, size in ((2, image, [3, 4]), (3, volume, [2, 3, 2])):
        for label, data in (("", x), ("no batch", x[0])):
            lead = data.shape[: data.dim() - nd]
            spots = torch.rand((*([1] if len(lead) == 1 else []), *lead, nd), generator=torch.Generator().manual_seed(nd), dtype=F64)
            name = f"aten.fractional_max_pool{nd}d"
            sample = make_sample(name, data, [2] * nd, size, spots, label=label)
            yield sample
            out, index = sample.outputs
            yield make_sample(f"{name}_backward", numbers(*out.shape, seed="g"), data, [2] * nd, size, index, label=label)
