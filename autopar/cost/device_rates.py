"""Matmul rates of a cluster's device: at the power that it may draw, and of a mixed cluster the slowest.

In: a `Device`. Out: its `MatmulRates`, or rates by dtype where no kernel table knows it. Pure, torch-free.
"""

from __future__ import annotations

from dataclasses import replace

from ..cluster import Device, list_devices, power_share, rate_of
from .matmul import MatmulRates, find_matmul_rates

Rates = tuple[tuple[str, float], ...]


def find_device_rates(device: Device) -> MatmulRates | None:
    """The rates of a preset, scaled by its power; of a mixed cluster those of the slowest level, with the least of each figure.

    Returns:
        None of a device of the user's own, whatever its name, or where one is among the parts.
    """
    parts = device.parts or (device,)
    if not all(map(_computes_as_preset, parts)):
        return None
    found = [_at_power(find_matmul_rates(part.name), power_share(part)) for part in parts]
    return found[0] if len(found) == 1 else _slowest(found)


def _computes_as_preset(device: Device) -> bool:
    """True of a preset, also with other memory or less power, or figures for more dtypes; a device that has another figure for one of them is another, whatever its name."""
    preset = next((preset for preset in list_devices() if preset.name == device.name), None)
    return preset is not None and set(preset.flops_per_s) <= set(device.flops_per_s)


def nominal_flops(device: Device, share: float) -> Rates:
    """(dtype, FLOP/s) that a device without a table reaches: a share of its peak at its power; of a mixed cluster the least."""
    parts = device.parts or (device,)
    return tuple((dtype, min(rate_of(part, dtype) * share * power_share(part) for part in parts)) for dtype, _ in device.flops_per_s)


def _at_power(rates: MatmulRates, share: float) -> MatmulRates:
    return rates if share == 1 else replace(rates, flops_per_s=tuple((dtype, rate * share) for dtype, rate in rates.flops_per_s))


def _slowest(found: list[MatmulRates]) -> MatmulRates:
    """Tiles and waves are those of the lowest float16 level: every preset has that one."""
    base = min(found, key=lambda rates: dict(rates.flops_per_s)["float16"])
    dtypes = [dtype for dtype, _ in base.flops_per_s if all(dtype in dict(rates.flops_per_s) for rates in found)]  # another runs as float32
    reached = min(rates.memory_bytes_per_s * rates.memory_share for rates in found)
    return replace(
        base,
        flops_per_s=tuple((dtype, min(dict(rates.flops_per_s)[dtype] for rates in found)) for dtype in dtypes),
        memory_bytes_per_s=reached / base.memory_share,
        kernel_s=max(rates.kernel_s for rates in found),
        source="the slowest of " + " and ".join(dict.fromkeys(rates.name for rates in found)) + f": {base.name}: {base.source}",
    )
