"""Seconds of attention on one GPU, by kernel.

In: a device's `MatmulRates` and local sizes. Out: seconds of one pass of softmax(q k^T) v. Vectorised over sizes, pure, torch-free. No
dropout: that is an op of its own where kernels are unfused, and nearly free where they are fused.

Fused kernels (`attention_table.ROWS`: flash1, flash2, flash3, cudnn, and efficient, torch's memory-efficient one; triton and cudnn_masked, by their relation to flash2
and cudnn):

    pairs   = batch x heads x (query x keys, or what a causal mask leaves visible); 4 head_dim FLOPs each forward, 10 backward. Of queries that
              begin at row f of the sequence row f + i sees f + i keys: where the sequence is split, the last rank has the most, and keys behind its
              last row are not touched (`runtime.attention`)
    compute = pairs x FLOPs / rate, at least what the longest block takes at one multiprocessor's share of the rate
    seconds = max(compute, bytes) + kernels x kernel_s,             bytes: each operand, result and gradient once

`rate` is interpolated in log(keys), under a causal mask in log(twice the keys that a row sees), and kept beyond the table. In head_dim the
seconds of a pair are a straight line (softmax costs the same for any head dim); beyond the largest head dim its rate holds. Query and keys
count in whole blocks of 128: a block of queries (forward) or of keys (backward) of one head is what one multiprocessor works on. A chip
without a table takes its relative's, scaled by the level of its matmuls.

Unfused ones compute the whole score matrix, causal or not: batched matmuls (`matmul_seconds`) and passes over the scores at 0.9 of the
bandwidth:

    unfused        torch's own ops. Softmax forward reads twice and writes once; backward reads both operands twice and writes once, and the
                   scale is a multiplication of its own (2). A mask that is added is an op of its own, not counted here.
    fused_softmax  Megatron-LM's scaled masked softmax: reads once and writes once; backward reads two and writes one
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..errors import ClusterError
from ..graph.tensor import DTYPE_BYTES
from .attention_table import ROWS, SEQUENCES
from .matmul import MatmulRates, find_matmul_rates, matmul_level, matmul_seconds

_SCORE_PASSES = {("unfused", False): 3, ("unfused", True): 7, ("fused_softmax", False): 2, ("fused_softmax", True): 3}
_STREAM_SHARE = 0.9  # of nominal bandwidth, as in cost.model
_BLOCK = 128  # rows of queries (forward) or keys (backward) that one block of a flash kernel works on; 64 to 192 in their sources
_MAX_HEAD_DIM = 256  # of all fused kernels
_HALF = ("float16", "bfloat16")

# name of MatmulRates -> (chip whose rows serve, fused kernels that run there). flash3 needs Hopper, flash1 and flash2 Ampere or later;
# cudnn attention runs on Ampere too, but no table says how fast.
_FUSED = {
    "V100": ("A100", ("efficient",)),
    "A100-40GB": ("A100", ("flash1", "flash2", "efficient", "triton")),
    "A100-80GB": ("A100", ("flash1", "flash2", "efficient", "triton")),
    "H100-80GB": ("H100", ("flash2", "flash3", "cudnn", "cudnn_masked", "triton")),
    "H100-PCIe": ("H100", ("flash2", "flash3", "cudnn", "cudnn_masked")),
    "H200": ("H100", ("flash2", "flash3", "cudnn", "cudnn_masked")),
    "B200": ("B200", ("flash2", "cudnn", "cudnn_masked")),
    "B300": ("B200", ("flash2", "cudnn", "cudnn_masked")),
    "GB200": ("B200", ("flash2", "cudnn", "cudnn_masked")),
    "GB300": ("B200", ("flash2", "cudnn", "cudnn_masked")),
    "MI300X": ("A100", ("flash2",)),
    "MI355X": ("A100", ("flash2",)),
    "L40S": ("A100", ("flash1", "flash2", "efficient")),
    "RTX4090": ("A100", ("flash1", "flash2", "efficient")),
}
_UNFUSED = ("unfused", "fused_softmax")
# FlashAttention's first algorithm in Triton, beside flash2: 1.3 to 1.5 times its seconds forward, around 2 times backward (arXiv:2307.08691 section 4.1, on
# A100). The same is assumed on H100, for Triton of that time has no instructions of Hopper, as flash2 has none. cuDNN's with a mask
# that is added, over its table without: one shape on an H200 (cuDNN 9.19, 384 heads of 64, 512 x 512, bf16: 131 and 289 us; docs/benchmarks.md, run 9). kernel -> (of whose seconds, forward, backward)
_SLOWER = {"triton": ("flash2", 1.4, 2.0), "cudnn_masked": ("cudnn", 1.6, 1.12)}
MASKED = {"cudnn": "cudnn_masked"}  # with a mask; where another kernel is taken without, it is the memory-efficient one
# Where one head dim was published, others relate to it as in this kernel.
_SIBLING = {("A100", "efficient"): ("A100", "flash2"), ("B200", "cudnn"): ("H100", "cudnn"), ("B200", "flash2"): ("H100", "flash2")}

# What `scaled_dot_product_attention` takes in torch 2.11 to 2.13 for half precision without an explicit mask. cuDNN comes first on compute
# capability 9.0 and 10.x where cuDNN is newer than 9.15.0 (`check_prefer_cudnn_attention` in aten/src/ATen/native/transformers/cuda/
# sdp_utils.cpp), and torch bundles such a cuDNN since 2.11; before that, flash2. Flash needs capability 8.0: V100 falls to the
# memory-efficient kernel. ROCm's flash backend is AOTriton's version of flash2.
_DEFAULT = {
    "V100": "efficient", "A100-40GB": "flash2", "A100-80GB": "flash2", "H100-80GB": "cudnn", "H100-PCIe": "cudnn", "H200": "cudnn",
    "B200": "cudnn", "B300": "cudnn", "GB200": "cudnn", "GB300": "cudnn", "MI300X": "flash2", "MI355X": "flash2", "L40S": "flash2",
    "RTX4090": "flash2",
}  # fmt: skip


def default_attention(device: str) -> str:
    """The kernel that torch's attention takes on a device preset.

    Raises:
        ClusterError: the device has no entry.
    """
    return _DEFAULT[find_matmul_rates(device).name]


def list_attention_kernels(rates: MatmulRates) -> tuple[str, ...]:
    """The kernels that have rates on a device."""
    return (*_UNFUSED, *_FUSED.get(rates.name, ("", ()))[1])


def attention_seconds(
    rates: MatmulRates,
    batch: np.ndarray | float,
    heads: np.ndarray | float,
    query: np.ndarray | float,
    keys: np.ndarray | float,
    head_dim: int,
    dtype: str,
    *,
    causal: bool,
    kernel: str,
    backward: bool,
    first: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Seconds of one pass, forward or backward, for any number of local sizes at once.

    Args:
        batch, heads, query, keys: local sizes, at least 1; broadcast against each other. heads: of the queries.
        causal: a mask aligned at the top left, as torch's `is_causal`.
        kernel: of `list_attention_kernels`.
        first: with `causal`, the row of the whole sequence with which these queries begin.

    Raises:
        ClusterError: the kernel has no rates on this device, or does not run with this dtype or head dim.
    """
    b, q, k, f = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (np.multiply(batch, heads), query, keys, first)))
    k = np.minimum(k, f + q) if causal and np.any(f) else k
    if kernel in _UNFUSED:
        return _unfused_seconds(rates, b, q, k, head_dim, dtype, kernel, backward)
    _check(rates, head_dim, dtype, kernel)
    chip, _ = _FUSED[rates.name]
    scale = matmul_level(rates, "float16") / matmul_level(find_matmul_rates(chip), "float16")
    padded_q, padded_k = np.ceil(q / _BLOCK) * _BLOCK, np.ceil(k / _BLOCK) * _BLOCK
    pairs = visible_pairs(padded_q, padded_k, f) if causal else padded_q * padded_k
    length = (2 if causal else 1) * pairs / padded_q  # keys that a row sees, as the papers' square shapes have them
    longest = padded_q if backward else np.minimum(f + padded_q, padded_k) if causal else padded_k
    table = np.log(SEQUENCES), _log_pair_s(chip, kernel, backward, causal, head_dim)
    all_s = b * pairs * np.exp(np.interp(np.log(length), *table))
    block_s = rates.multiprocessors * _BLOCK * longest * np.exp(np.interp(np.log(longest), *table))
    compute = np.maximum(all_s, block_s) / scale
    width = DTYPE_BYTES[dtype]
    # forward reads q, k, v, writes o; backward reads these and o's gradient, writes three gradients, adds up that of q in float32
    per_head = (4 * q + 4 * k) * width + 8 * q if backward else (2 * q + 2 * k) * width
    moved = b * head_dim * per_head / (rates.memory_bytes_per_s * _STREAM_SHARE)
    # backward: the row sums of o and its gradient, the main kernel, the cast of the gradient of q
    return np.maximum(compute, moved) + (3 if backward else 1) * rates.kernel_s


def _check(rates: MatmulRates, head_dim: int, dtype: str, kernel: str) -> None:
    known = list_attention_kernels(rates)
    if kernel not in known:
        raise ClusterError(f"attention on {rates.name}: no rates for kernel {kernel!r}; known there: {', '.join(known)}")
    where = f"attention on {rates.name}: kernel {kernel!r}"
    if dtype not in _HALF:
        raise ClusterError(f"{where} is known in {' and '.join(_HALF)}, found {dtype!r}; take 'unfused'")
    if not 1 <= head_dim <= _MAX_HEAD_DIM:
        raise ClusterError(f"{where} has head dims of 1 to {_MAX_HEAD_DIM}, found {head_dim}; take 'unfused'")


def visible_pairs(q: np.ndarray, k: np.ndarray, first: np.ndarray | float = 0.0) -> np.ndarray:
    """Pairs of q rows and k keys under a causal mask, the rows beginning at `first`; half of a square, as the papers count."""
    return _above(first + q, k) - _above(first, k)


def _above(q: np.ndarray | float, k: np.ndarray) -> np.ndarray:
    """Pairs of the first q rows under a mask aligned at the top left."""
    return np.where(q <= k, np.multiply(q, q) / 2, k * k / 2 + (q - k) * k)


def _unfused_seconds(
    rates: MatmulRates, b: np.ndarray, q: np.ndarray, k: np.ndarray, head_dim: int, dtype: str, kernel: str, backward: bool
) -> np.ndarray:
    to_scores = matmul_seconds(rates, b, q, k, head_dim, dtype)  # q k^T; backward: gradient of o times v^T
    to_rows = matmul_seconds(rates, b, q, head_dim, k, dtype)  # p v; backward: gradient of q
    to_keys = matmul_seconds(rates, b, k, head_dim, q, dtype)  # backward: gradients of k and of v
    passes = _SCORE_PASSES[kernel, backward]
    softmax = passes * b * q * k * DTYPE_BYTES[dtype] / (rates.memory_bytes_per_s * _STREAM_SHARE) + rates.kernel_s
    return to_scores + to_rows + softmax + (2 * to_keys if backward else 0.0)


# --- the table --------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _log_pair_s(chip: str, kernel: str, backward: bool, causal: bool, head_dim: int) -> tuple[float, ...]:
    """Logarithm of the seconds of one visible pair of one head, at each of `SEQUENCES`."""
    return tuple(np.log(_pair_s(chip, kernel, backward, causal, head_dim)).tolist())


def _pair_s(chip: str, kernel: str, backward: bool, causal: bool, head_dim: int) -> np.ndarray:
    if kernel in _SLOWER:
        base, *times = _SLOWER[kernel]
        return times[backward] * _pair_s(chip, base, backward, causal, head_dim)
    published = {r.head_dim: r for r in ROWS if (r.chip, r.kernel, r.causal) == (chip, kernel, causal) and r.passes != "forward"}
    if not backward:
        forward = {r.head_dim: r for r in ROWS if (r.chip, r.kernel, r.causal, r.passes) == (chip, kernel, causal, "forward")}
        published = forward or published
    dims = sorted(published)
    known = {d: (10 if backward else 4) * d / _reached(chip, kernel, backward, causal, d) for d in dims}
    if len(dims) == 1 and head_dim != dims[0]:
        other = _SIBLING[chip, kernel]
        return known[dims[0]] * _pair_s(*other, backward, causal, head_dim) / _pair_s(*other, backward, causal, dims[0])
    if head_dim in known:
        return known[head_dim]
    if head_dim > dims[-1]:
        return known[dims[-1]] * head_dim / dims[-1]
    low, high = next((a, b) for a, b in zip(dims, dims[1:]) if head_dim < b)
    line = known[low] + (known[high] - known[low]) * (head_dim - low) / (high - low)
    return np.maximum(line, known[low] * min(1.0, head_dim / low))  # no small head dim is faster than its neighbour


def _reached(chip: str, kernel: str, backward: bool, causal: bool, head_dim: int) -> np.ndarray:
    """FLOP/s of one pass; where only both passes together are known, the backward is what the forward leaves of them."""
    found = {
        r.passes: np.array(r.tflops) * 1e12 for r in ROWS if (r.chip, r.kernel, r.causal, r.head_dim) == (chip, kernel, causal, head_dim)
    }
    own = "backward" if backward else "forward"
    if own in found:
        return found[own]
    if "forward" in found:
        return 2.5 / (3.5 / found["both"] - 1 / found["forward"])
    return found["both"]
