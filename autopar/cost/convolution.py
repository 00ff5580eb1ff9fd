"""Seconds of convolutions on one GPU, by shape.

In: a device's `MatmulRates` and a convolution's local sizes. Out: seconds of its kernels. Vectorised over sizes, pure, torch-free.

A convolution joins two tensors, the long one (input; output of a transposed one) and the short one, by windows of `taps` positions. It runs as up to three implicit
matmuls, each cut into tiles that are worked off in waves (`cost.matmul`, whose formula this is, with more splits of long sums):

    part       m                n                    k                       what it is
    gather     short rows       short channels       long channels x taps    forward; gradient of input of a transposed one
    scatter    long rows        long channels        short channels x reach  gradient of input; forward of a transposed one
    weight     short channels   long channels x taps short rows              gradient of weight, at `weight_share` of the level

rows = batch x positions; reach: in how many windows a position of the long tensor is, on the mean. On tensor cores the channels of k (of weight: the long ones) are read in whole blocks of 32: a convolution of 4 channels takes as long as one of 32 in the tables.
The seconds of a part:

    compute  = least over tiles and splits, at level x `level_share`
    bytes    = (long + short + weight) / (memory_share x bandwidth)
    seconds  = (compute^3 + bytes^3)^(1/3) + kernel_s
             + where strided, for scatter: `scatter_passes` x long / bandwidth             its tables say so; why, they do not
             + on tensor cores, where tensors lie contiguous: 2 (long + short + weight) / (transpose_share x bandwidth) + 3 kernel_s

The last line is what cuDNN's copies to and from channels last take. Autopar's programs hold their tensors contiguous, as torch does unless asked otherwise.

CUDA cores (float32 without TF32, float64) read as they lie, in blocks of one channel. Convolutions of several groups run there in any dtype (`direct_share` of float32), or at the
speed of their bytes: depthwise ones do.

No term falls when a size grows, and n devices that share a convolution take together at least what `least_convolution_seconds` says of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..graph.node import packet_of
from ..graph.rule import Site
from ..graph.rules.dims import ints
from ..graph.tensor import DTYPE_BYTES
from .matmul import MatmulRates, Tiles, find_matmul_rates, matmul_level, tiled_seconds

CONVOLUTIONS = ("aten.convolution", "aten.convolution_backward")
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_BLOCK = 32  # channels that a tensor-core kernel reads of a position at once
_HALF = ("float16", "bfloat16")
_TENSOR_CORES = 1.5  # times the float32 of a device's data sheet: what is faster is TF32


@dataclass(frozen=True, slots=True)
class ConvolutionRates:
    """What `convolution_seconds` needs beside a device's matmuls.

    Args:
        level_share: of the level of matmuls, on tensor cores. single_share: the same on CUDA cores.
        tiles: (tile_m, tile_n, efficiency relative to the largest).
        extra_k: what starting and ending a tile costs, as steps of the sum.
        wave_step: how far a started wave counts as a full one.
        weight_share: of the level, that gradients of weights reach.
        memory_share: of the nominal bandwidth, that a part reaches of its operands. transpose_share: that copies reach.
        scatter_passes: over the long tensor, that a strided scatter takes beside its matmul.
        direct_share: of the level of float32, that convolutions of several groups reach.
    """

    level_share: float
    single_share: float
    tiles: Tiles
    extra_k: float
    wave_step: float
    weight_share: float
    memory_share: float
    transpose_share: float
    scatter_passes: float
    direct_share: float
    source: str


@dataclass(frozen=True, slots=True)
class Windows:
    """What the sizes of a convolution share, whoever splits it.

    Args:
        parts: of `gather`, `scatter`, `weight`, those that are asked for.
        taps: positions of a window.
        reach: windows that a position of the long tensor is in, on the mean: taps x short / long positions, and no more than taps / strides.
        is_strided: windows are more than one position apart.
    """

    parts: tuple[str, ...]
    taps: int
    reach: float
    is_strided: bool
    groups: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Local sizes, of any number of cases at once. rows: batch x positions; channels: of one group."""

    long_rows: np.ndarray | float
    short_rows: np.ndarray | float
    long_channels: np.ndarray | float
    short_channels: np.ndarray | float
    groups: np.ndarray | float = 1.0


def make_convolution_tiles(narrow: float) -> Tiles:
    """The tiles from the efficiency of 64 rows or columns, relative to 128 and more. Narrower ones win nothing in the tables: 32 channels take as long as 64."""
    return ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 1.0), (256, 64, narrow), (64, 256, narrow), (128, 64, narrow), (64, 128, narrow))


# Level, efficiency of narrow tiles, shares of weights, memory and copies, and passes: fitted by `benchmarks/conv_fit.py` to two thirds of the shapes of its two tables (`benchmarks/data/convolutions.csv`: xwang233/code-snippet, A100-40GB and V100, float16, cuDNN
# 8.0.5). On the third that was held out, median and 90th percentile of the error are 7.2 and 12.5 %, on the others 9.3 and 23.7 %. Tiles' start and wave step are those of A100's matmuls (`cost.matmul`).
# 0.82, of float32: the geometric mean of 1.0 (PaddlePaddle/benchmark 552, V100, forward, by this law) and 0.675 (TITAN V: 8.71 of the 12.9 TFLOP/s of linears, gist ypwhs/a156353cb19e780e323be054821af015). 0.40, of groups: pytorch issue 34977, V100, 32 groups.
_TABLE = "xwang233/code-snippet conv3d tables, fitted by benchmarks/conv_fit.py"
_SHARED = (0.82, make_convolution_tiles(0.854), 81.7, 0.224, 0.764, 0.423, 0.688, 8.78, 0.40, _TABLE)
_A100 = ConvolutionRates(0.953, *_SHARED)
_V100 = ConvolutionRates(0.820, *_SHARED)


def find_convolution_rates(device: str) -> ConvolutionRates:
    """Of a device preset; one without rows has A100's."""
    return _V100 if device.startswith("V100") else _A100


# --- the formula ------------------------------------------------------------------------------------------------------------------


def convolution_seconds(
    rates: MatmulRates, windows: Windows, sizes: Sizes, dtype: str, *, channels_last: bool = False, own: ConvolutionRates | None = None
) -> np.ndarray:
    """Seconds of all its parts, each of any number of sizes at once.

    Args:
        dtype: of the operands and of the result.
        own: None: `find_convolution_rates`.

    Returns:
        Of the broadcast shape, () for numbers.

    Raises:
        ClusterError: the device has no figure for this dtype.
    """
    own = own or find_convolution_rates(rates.name)
    return _seconds(rates, own, windows, sizes, dtype, channels_last, False)


def least_convolution_seconds(rates: MatmulRates, windows: Windows, sizes: Sizes, dtype: str) -> np.ndarray:
    """What n devices take together at least, however they split it: the best tile, no waves, no blocks of channels, no starts."""
    return _seconds(rates, find_convolution_rates(rates.name), windows, sizes, dtype, False, True)


def _seconds(
    rates: MatmulRates, own: ConvolutionRates, windows: Windows, sizes: Sizes, dtype: str, channels_last: bool, is_bound: bool
) -> np.ndarray:
    given = (sizes.long_rows, sizes.short_rows, sizes.long_channels, sizes.short_channels, sizes.groups)
    long_rows, short_rows, long, short, groups = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in given))
    width, bandwidth = DTYPE_BYTES[dtype], rates.memory_bytes_per_s
    long_bytes = long_rows * long * groups * width
    moved = long_bytes + (short_rows * short + long * short * windows.taps) * groups * width
    on_tensor_cores = windows.groups == 1 and uses_tensor_cores(rates, dtype)
    level, block = _level(rates, own, windows, dtype), _BLOCK if on_tensor_cores and not is_bound else 1
    tiled = replace(rates, tiles=own.tiles, extra_k=own.extra_k, wave_step=own.wave_step)
    start, total = 0.0 if is_bound else rates.kernel_s, np.zeros(moved.shape)
    for part in windows.parts:
        reached = level * (own.weight_share if part == "weight" and windows.groups == 1 else 1.0)
        m, n, k = _product(part, windows, long_rows, short_rows, long, short, block)
        if is_bound or windows.groups > 1:
            compute = 2 * m * n * k * groups / (reached * max(tile[2] for tile in own.tiles) if windows.groups == 1 else reached)
        else:
            compute = tiled_seconds(tiled, np.ones_like(m), m, n, k, reached, _SPLITS)
        total += np.cbrt(compute**3 + (moved / (own.memory_share * bandwidth)) ** 3) + start
        if part == "scatter" and windows.is_strided and windows.groups == 1:
            total += own.scatter_passes * long_bytes / bandwidth
        if on_tensor_cores and not channels_last:
            total += 2 * moved / (own.transpose_share * bandwidth) + 3 * start
    return total


def uses_tensor_cores(rates: MatmulRates, dtype: str) -> bool:
    """True of 16 bits, and of a float32 that is faster than the device's data sheet has it without TF32."""
    return dtype in _HALF or dtype == "float32" and matmul_level(rates, dtype) > _TENSOR_CORES * matmul_level(find_matmul_rates(rates.name), dtype)


def _level(rates: MatmulRates, own: ConvolutionRates, windows: Windows, dtype: str) -> float:
    if windows.groups > 1:
        return own.direct_share * matmul_level(rates, "float64" if dtype == "float64" else "float32")
    return matmul_level(rates, dtype) * (own.level_share if uses_tensor_cores(rates, dtype) else own.single_share)


def _product(
    part: str, windows: Windows, long_rows: np.ndarray, short_rows: np.ndarray, long: np.ndarray, short: np.ndarray, block: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(m, n, k)."""
    if part == "gather":
        return short_rows, short, _in_blocks(long, block) * windows.taps
    if part == "scatter":
        return long_rows, long, _in_blocks(short, block) * windows.reach
    return short, _in_blocks(long, block) * windows.taps, short_rows


def _in_blocks(channels: np.ndarray, block: int) -> np.ndarray:
    return channels if block == 1 else np.ceil(channels / block) * block


def make_windows(parts: tuple[str, ...], taps: int, strides: int, long: int, short: int, groups: int = 1) -> Windows:
    """Windows of tensors with so many positions; strides: product of those of all dims."""
    return Windows(parts, taps, taps * min(1 / strides, short / max(long, 1)), strides > 1, groups)


# --- sites ------------------------------------------------------------------------------------------------------------------------


def find_windows(site: Site) -> Windows:
    """Of a site with whole shapes."""
    backward = _is_backward(site)
    shapes, (long, short, weight) = (*site.inputs, *site.outputs), _places(site)
    kernel, strides = shapes[weight][2:], ints(site.arg("stride"))
    mask = site.arg("output_mask") if backward else (True, False)
    assert isinstance(mask, tuple)
    joins = "gather" if bool(site.arg("transposed")) == backward else "scatter"
    parts = (joins,) * bool(mask[0]) + ("weight",) * bool(mask[1])
    every = prod(strides) if len(strides) > 1 else prod(strides) ** len(kernel)
    return make_windows(parts, prod(kernel), every, prod(shapes[long][2:]), prod(shapes[short][2:]), int(str(site.arg("groups"))))


def _is_backward(site: Site) -> bool:
    return packet_of(site.node.op) == CONVOLUTIONS[1]


def _places(site: Site) -> tuple[int, int, int]:
    """Of the long tensor, the short one and the weight among inputs and outputs."""
    before, weight, after = (1, 2, 0) if _is_backward(site) else (0, 1, len(site.inputs))
    return (after, before, weight) if site.arg("transposed") else (before, after, weight)


def local_sizes(site: Site, windows: Windows, elements: np.ndarray) -> Sizes:
    """What the local numbers of elements say of its sizes.

    With d_x the divisor of x (rows, groups, long and short channels of a group): long shrank by d_r d_g d_l, short by d_r d_g d_s, weight by d_g d_l d_s; groups are
    divided before anything else is, so by the most that the three allow.

    Args:
        elements: (operand, case): of inputs, then of seen outputs.
    """
    shapes, places = (*site.inputs, *site.outputs), _places(site)
    shrunk = [np.maximum(1.0, prod(shapes[i]) / elements[i].astype(float)) for i in places]
    whole = float(windows.groups)
    groups = np.minimum(whole, np.minimum.reduce(shrunk))
    of_long, of_short, of_weight = (d / groups for d in shrunk)
    a, b = (shapes[i] for i in places[:2])
    rows = np.maximum(1.0, np.sqrt(of_long * of_short / of_weight))
    return Sizes(
        prod((a[0], *a[2:])) / rows,
        prod((b[0], *b[2:])) / rows,
        np.maximum(1.0, a[1] / whole / np.maximum(1.0, np.sqrt(of_long * of_weight / of_short))),
        np.maximum(1.0, b[1] / whole / np.maximum(1.0, np.sqrt(of_short * of_weight / of_long))),
        whole / groups,
    )
