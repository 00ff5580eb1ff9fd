"""Seconds of matmuls on one GPU, by shape.

In: a device's `MatmulRates` and local shapes. Out: seconds of the kernel alone. Vectorised, pure, torch-free.

A kernel cuts the result into tiles; the multiprocessors work them off in waves, and a started wave takes nearly as long as a full one. Few
tiles of a long sum are split along k, their partial sums added in float32. The library takes the fastest tile and split:

    waves   = batch x ceil(m / tile_m) x ceil(n / tile_n) x split / multiprocessors
    smooth  = s x ceil(waves) + (1 - s) x max(waves, 1)
    compute = smooth x 2 tile_m tile_n (k / split + k0) x multiprocessors / (rate x efficiency of the tile)
              + split x 4 bytes x batch x m n / bandwidth, where split > 1;       the least over tiles and splits
    bytes   = batch x (m k + k n + m n) x width / (share x bandwidth)
    seconds = (compute^3 + bytes^3)^(1/3) + kernel_s;         a max with a rounded corner: where both are alike, each hinders the other
              (an exponent fitted freely: 3.4 on A100, 3.0 on H100)

No term falls when a dim grows, so neither does the sum.

`kernel_s` holds ramp and tail of a kernel, not the gap before the next one: the tables (microsoft/vidur, `RecordFunctionTracer`) add up the
durations of kernels in a profiler's trace, in whole microseconds.

A gradient is a matmul of its own shape; that of a weight has the weight's dims as m and n, and the tokens as k. There is no factor by
layout, because the tables have forward projections only and say nothing of transposed operands. Nor have they a dim that is no multiple
of 8, where libraries fall back to slower kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..errors import ClusterError
from ..graph.tensor import DTYPE_BYTES

_SPLITS = (1, 2, 4, 8)
Tiles = tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True)
class MatmulRates:
    """What `matmul_seconds` needs of one device.

    Args:
        multiprocessors: or compute units.
        flops_per_s: (dtype, what the largest tile reaches in full waves of a long sum): the level of ordinary large shapes, below the best
            shape that can be found.
        memory_bytes_per_s: nominal.
        memory_share: of it that is reached.
        tiles: (tile_m, tile_n, efficiency relative to the largest tile).
        extra_k: k0, what starting and ending a tile costs, as steps of the sum.
        wave_step: s, how far a started wave counts as a full one.
        kernel_s: ramp and tail of one kernel.
    """

    name: str
    multiprocessors: int
    flops_per_s: tuple[tuple[str, float], ...]
    memory_bytes_per_s: float
    memory_share: float
    tiles: Tiles
    extra_k: float
    wave_step: float
    kernel_s: float
    source: str


def make_tiles(medium: float, narrow: float, small: float, thin: float) -> Tiles:
    """The tiles of a GPU from the efficiencies of 128x128, 128x64, 64x64 and 32x64, relative to 256x128."""
    return (
        (256, 128, 1.0), (128, 256, 1.0), (128, 128, medium),
        (128, 64, narrow), (64, 128, narrow), (64, 64, small), (32, 64, thin),
    )  # fmt: skip


# --- devices ----------------------------------------------------------------------------------------------------------------------


_OF_SHEET = 0.9  # that float32 and float64 reach of the data sheet: an assumption, no table has them
# Of Hopper's chip float32 was measured: 49.4, 50.2 and 51.1 of an H200's 67 TFLOP/s (forward, gradients of 4096 x 4096 x 4096; data/profile-h200-141gb.json).
_HOPPER, _OF_SHEET_HOPPER_FLOAT32 = ("H100-80GB", "H100-PCIe", "H200"), 0.75


def _levels(name: str, half: float, fp32: float, fp64: float) -> tuple[tuple[str, float], ...]:
    """FLOP/s of each dtype.

    Args:
        half: of 16 bits, as reached. fp32, fp64: as the data sheet has them.
    """
    single = (_OF_SHEET_HOPPER_FLOAT32 if name in _HOPPER else _OF_SHEET) * fp32
    return (("bfloat16", half), ("float16", half), ("float32", single), ("float64", _OF_SHEET * fp64))


# Fitted by `benchmarks/kernel_fit.py` to two thirds of the (n, k) families of matmul_{a100,h100}_fp16.csv (data/kernels: microsoft/vidur
# at 7d47513, MIT licence). On the third that was held out, median and 90th percentile of the error are 3.2 and 9.1 % (A100) and 5.0 and
# 15.4 % (H100) for m >= 1024, and 3.7 and 10.7, 5.8 and 18.1 % for all shapes.
_TABLE = "microsoft/vidur kernel table, fitted by benchmarks/kernel_fit.py"
_A100 = MatmulRates(
    "A100-80GB", 108, _levels("A100-80GB", 231.9e12, 19.5e12, 19.5e12), 2.039e12, 0.798,
    make_tiles(1.025, 0.863, 0.354, 0.278), 81.7, 0.224, 3.17e-6, _TABLE,
)  # fmt: skip
_H100 = MatmulRates(
    "H100-80GB", 132, _levels("H100-80GB", 713.0e12, 67e12, 67e12), 3.35e12, 0.918,
    make_tiles(0.996, 0.619, 0.487, 0.420), 0.0, 0.300, 5.12e-6, _TABLE,
)  # fmt: skip
# Other devices have the tiles, k0 and wave step of a relative, and a level that is
# - the relative's, where it is the same chip;
# - the relative's share of the best shape measured ("measured max matmul" of stas00/ml-engineering: A100 271.2 TFLOP/s, H100 794.5), where
#   one was measured;
# - else the relative's share of its peak.
_OF_PEAK = {"A100-80GB": 231.9 / 312, "H100-80GB": 713.0 / 989}
_OF_BEST = {"A100-80GB": 231.9 / 271.2, "H100-80GB": 713.0 / 794.5}


def _like(
    base: MatmulRates, name: str, multiprocessors: int, fp32: float, fp64: float, gb_per_s: float,
    *, peak: float = 0.0, best: float = 0.0, note: str = "",
) -> MatmulRates:  # fmt: skip
    """A device with the tiles of `base`. TFLOP/s; the level comes from the best shape measured, or from the peak of the data sheet."""
    level = best * _OF_BEST[base.name] if best else peak * _OF_PEAK[base.name]
    given = f"measured max of {best:g} TFLOP/s" if best else f"data sheet's {peak:g} TFLOP/s, for want of a measurement"
    return replace(
        base, name=name, multiprocessors=multiprocessors, flops_per_s=_levels(name, level * 1e12, fp32 * 1e12, fp64 * 1e12),
        memory_bytes_per_s=gb_per_s * 1e9,
        source=f"{note or f'level by {base.name} from the {given}'}; tiles of {base.name} ({base.source})",
    )  # fmt: skip


def _without_bfloat16(rates: MatmulRates) -> MatmulRates:
    return replace(rates, flops_per_s=tuple(row for row in rates.flops_per_s if row[0] != "bfloat16"))


# Multiprocessors and peaks: data sheets and architecture white papers of NVIDIA (Volta, Ampere, Hopper, Blackwell, Ada) and AMD (CDNA 3, 4);
# multiprocessors of B200, B300, GB200 and GB300 from memory.
_RATES = (
    _A100,
    _H100,
    _without_bfloat16(_like(_A100, "V100", 80, 15.7, 7.8, 900, peak=125)),
    _like(_A100, "A100-40GB", 108, 19.5, 19.5, 1555, peak=312, note="same chip as A100-80GB"),
    _like(_H100, "H100-PCIe", 114, 51, 51, 2000, peak=756),
    _like(_H100, "H200", 132, 67, 67, 4800, best=794.5),
    _like(_H100, "B200", 148, 80, 40, 8000, best=1745),
    _like(_H100, "B300", 148, 80, 1.2, 8000, best=1769),
    _like(_H100, "GB200", 148, 80, 40, 8000, best=1822),
    _like(_H100, "GB300", 148, 80, 1.25, 8000, peak=2500),
    _like(_H100, "MI300X", 304, 163.4, 163.4, 5300, best=668.4),
    _like(_H100, "MI355X", 256, 157.3, 78.6, 8000, best=1565),
    _like(_A100, "L40S", 142, 91.6, 1.4, 864, peak=362),
    _like(_A100, "RTX4090", 128, 82.6, 1.3, 1008, peak=165.2),
)


def list_matmul_rates() -> tuple[MatmulRates, ...]:
    """The devices that are known."""
    return _RATES


def find_matmul_rates(device: str) -> MatmulRates:
    """The rates of a device preset, by name: `H200-141GB` is `H200`, `RTX-4090` is `RTX4090`.

    Raises:
        ClusterError: the device has no entry.
    """
    asked = _letters(device)
    for rates in _RATES:
        if asked.startswith(_letters(rates.name)):
            return rates
    short = {"A100": _A100, "H100": _H100}
    if device in short:
        return short[device]
    known = ", ".join(r.name for r in _RATES)
    raise ClusterError(
        f"matmul rates: no entry for device {device!r}; known: {known}. Add its MatmulRates to autopar/cost/matmul.py"
    )


def _letters(name: str) -> str:
    return name.replace("-", "").replace(" ", "").lower()


def matmul_level(rates: MatmulRates, dtype: str) -> float:
    """FLOP/s of the largest tile in full waves.

    Raises:
        ClusterError: the device has no figure for this dtype.
    """
    for name, rate in rates.flops_per_s:
        if name == dtype:
            return rate
    raise ClusterError(
        f"matmul rates of {rates.name}: no entry for dtype {dtype!r}; known: {', '.join(name for name, _ in rates.flops_per_s)}"
    )


# --- the formula ------------------------------------------------------------------------------------------------------------------


def matmul_seconds(
    rates: MatmulRates, batch: np.ndarray | float, m: np.ndarray | float, n: np.ndarray | float, k: np.ndarray | float, dtype: str
) -> np.ndarray:
    """Seconds of `[batch, m, k] x [batch, k, n]`, each of any number of shapes at once.

    Args:
        batch, m, n, k: local sizes, at least 1; broadcast against each other.
        dtype: of the operands and of the result.

    Returns:
        Of the broadcast shape, () for numbers.

    Raises:
        ClusterError: the device has no figure for this dtype.
    """
    rate, width = matmul_level(rates, dtype), DTYPE_BYTES[dtype]
    b, m, n, k = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (batch, m, n, k)))
    compute = tiled_seconds(rates, b, m, n, k, rate)
    moved = (b * (m * k + k * n) + b * m * n) * (width / (rates.memory_bytes_per_s * rates.memory_share))
    return np.cbrt(compute**3 + moved**3) + rates.kernel_s


def tiled_seconds(rates: MatmulRates, batch: np.ndarray, m: np.ndarray, n: np.ndarray, k: np.ndarray, rate: float, splits: tuple[int, ...] = _SPLITS) -> np.ndarray:
    """Seconds that tiles in waves compute, the least over tiles and splits of the sum: `compute` above.

    Args:
        batch, m, n, k: of one shape.
        rate: FLOP/s of the largest tile in full waves.
    """
    out = batch * m * n
    tile_m, tile_n, efficiency = (column.reshape(-1, *(1,) * out.ndim) for column in np.array(rates.tiles).T)  # tiles before shapes
    tiles = batch * np.ceil(m / tile_m) * np.ceil(n / tile_n)
    area = tile_m * tile_n / efficiency
    compute = np.inf
    for split in splits:
        waves = tiles * (split / rates.multiprocessors)
        smooth = rates.wave_step * np.ceil(waves) + (1 - rates.wave_step) * np.maximum(waves, 1.0)
        steps = (k / split + rates.extra_k) * (2 * rates.multiprocessors / rate)
        sums_s = out * (4 * split / rates.memory_bytes_per_s) if split > 1 else 0.0
        compute = np.minimum(compute, np.min(smooth * area, axis=0) * steps + sums_s)
    return compute
