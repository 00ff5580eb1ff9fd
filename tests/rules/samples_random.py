"""Samples of random numbers: functions of the counter and of coordinates, which are inputs like any others."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .referee import Sample, make_sample
from .samples_core import F64, numbers


def random_samples() -> Iterator[Sample]:
    count = torch.tensor(41)
    for shape in ((6, 6), (4, 6, 9), (12,), (6, 1, 3), ()):
        coords = [torch.arange(n) for n in shape]
        yield make_sample("autopar.uniform", count, coords, list(shape), F64, label=str(shape))
    yield make_sample("autopar.uniform", count, [torch.arange(6), torch.arange(12)], [6, 12], torch.float32, label="float32")
    u = numbers(6, 9, kind="unit").abs().clamp(max=0.999)
    yield make_sample("autopar.poisson", u, numbers(6, 9).abs())
