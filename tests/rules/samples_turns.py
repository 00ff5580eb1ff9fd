"""Samples of the ops of a step that takes its batch in turns, as one turn runs them."""

from __future__ import annotations

from collections.abc import Iterator

from .referee import Sample, make_sample
from .samples_core import below, numbers


def turn_samples() -> Iterator[Sample]:
    for dim, count in ((0, 2), (0, 4), (1, 3), (2, 4)):
        yield make_sample("autopar.microbatch", numbers(8, 6, 16), dim, count, label=f"dim {dim} in {count}")
    yield make_sample("autopar.microbatch", below(12, 8, 6), 0, 2, label="whole numbers")
    for dim, count in ((0, 2), (1, 3), (2, 4)):
        yield make_sample("autopar.collect", numbers(4, 6, 8), dim, count, label=f"dim {dim} of {count}")
    for shape in ((4, 6), (9,), ()):
        yield make_sample("autopar.accumulate", numbers(*shape) if shape else numbers(1)[0], label=str(shape))
