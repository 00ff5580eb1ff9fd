"""Monotone: the nearest sequence that never falls."""

from __future__ import annotations

from collections.abc import Sequence


def pool_falls(values: Sequence[float]) -> list[float]:
    """The values, with neighbours in the wrong order averaged (pool adjacent violators: Barlow et al. 1972, "Statistical Inference under Order
    Restrictions", section 1.2); what is in order stays as it is."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = float(value), 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]
