"""Samples of tables and losses that split over the vocabulary; targets hit few rows often, and some rows never."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .referee import Sample, make_sample
from .samples_core import F64, below, numbers


def vocabulary_samples() -> Iterator[Sample]:
    for shape in ((4, 6), (9,), ()):
        n, ids = 12, below(12, *shape)
        rows, table, grad = torch.arange(n), numbers(n, 6), numbers(*shape, 6, seed="g")
        yield make_sample("autopar.embedding", table, ids, rows, n, label=str(shape))
        yield make_sample("autopar.embedding_backward", grad, ids, rows, n, label=str(shape))
        yield make_sample("autopar.embedding_backward", grad, ids, rows, n, int(ids.flatten()[0]), label=f"{shape} padded")
    for lead in ((4, 6), (9,), ()):
        n, logits, target = 12, numbers(*lead, 12, kind="unit") * 9, below(12, *lead)
        rows, peak = torch.arange(n), logits.amax(-1)
        yield make_sample("autopar.sum_exp", logits, peak, logits.shape[-1], label=str(lead))
        yield make_sample("autopar.pick", logits, target, rows, n, label=str(lead))
        total = (logits - peak[..., None]).exp().sum(-1)
        grad = numbers(*lead, seed="g") if lead else torch.tensor(-1.5, dtype=F64)
        yield make_sample("autopar.unpick", grad, target, rows, n, label=str(lead))
        yield make_sample("autopar.cross_entropy_backward", grad, logits, peak, total, target, rows, n, label=str(lead))
        own, even = (numbers(*lead, seed=seed) if lead else torch.tensor(0.5, dtype=F64) for seed in ("o", "e"))
        yield make_sample("autopar.cross_entropy_backward", grad, logits, peak, total, target, rows, n, own, even, label=f"{lead} smoothed")
