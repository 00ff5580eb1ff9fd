"""Calibrated: a GPU's matmuls and memory at the level that `autopar profile` found on one, in the shapes of the tables that price them.

In: the rates of a preset (`cost.matmul`), rows of a profile of that GPU. Out: the rates at the measured level, bytes a second of its memory, a line for people.

    level(16 bits) = priced / measured seconds of the matmul that runs for seconds (`rows.SUSTAINED`): a run of hours has what its board's power leaves
    level(dtype)   = else the median of priced / measured seconds over its matmuls of at least `_LARGE` FLOPs, below which starting counts

A profile has a few shapes, the tables have hundreds: so the tables keep their shapes, and a profile says one number for each dtype. Attention is priced by the level of
float16. What a profile does not know stays as it was. Pure, torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from .matmul import MatmulRates, find_matmul_rates, matmul_seconds
from .rows import SUSTAINED, OpRow, ProfileRows, memory_bytes_per_s

_LARGE = 1e10
_HALVES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A device as measured.

    Args:
        rates: of its matmuls.
        memory_bytes_per_s: None: not measured.
        source: where from, and what it changed.
    """

    rates: MatmulRates
    memory_bytes_per_s: float | None
    source: str


def calibrate(rates: MatmulRates, profile: ProfileRows) -> Calibrated:
    """Rates (at whatever power) at the level of a profile that was measured at full power."""
    levels = matmul_levels(find_matmul_rates(rates.name), profile)
    memory = memory_bytes_per_s(profile.ops) or None
    told = [f"{dtype} matmuls at {level:.3f} of them" for dtype, level in levels.items()] + ([] if memory is None else [f"memory at {memory / 1e12:.3g} TB/s"])
    date = max((row.date for row in profile.ops), default="")
    source = f"measured {date} on {profile.machine.device}, torch {profile.machine.torch}: {', '.join(told) or 'nothing of matmuls or memory'}"
    return Calibrated(replace(rates, flops_per_s=tuple((dtype, rate * levels.get(dtype, 1.0)) for dtype, rate in rates.flops_per_s)), memory, source)


def matmul_levels(rates: MatmulRates, profile: ProfileRows) -> dict[str, float]:
    """Dtype -> how many times as fast as priced its matmuls are; of those that were measured."""
    found: dict[str, list[float]] = {}
    held: list[float] = []
    for row in profile.ops:
        if row.seconds is not None and row.family == SUSTAINED:
            held.append(_level(rates, row))
        elif row.seconds is not None and row.family == "matmul" and row.shape[0] * row.shape[1] * row.shape[2] * 2.0 >= _LARGE:
            found.setdefault(row.dtype, []).append(_level(rates, row))
    levels = {dtype: median(ratios) for dtype, ratios in found.items()}
    return levels | (dict.fromkeys(_HALVES, median(held)) if held else {})


def _level(rates: MatmulRates, row: OpRow) -> float:
    assert row.seconds is not None
    return float(matmul_seconds(rates, 1, *row.shape, row.dtype)) / row.seconds
