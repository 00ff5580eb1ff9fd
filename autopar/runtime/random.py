"""Random numbers made from where an element is: the same for every plan and every number of ranks.

In: a counter (int64 scalar, a state of the step) and the coordinates of the elements that this rank holds, one list per dim. Out: numbers
of U[0, 1). Element i of the whole tensor (flat index, row by row) takes the top bits of

    mix(key + (i + 1) golden)        key = mix((counter + 1) golden)        all modulo 2^64

so it is a function of the counter and of i alone. Source: SplitMix64, Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators", figure 13 (`golden` and mix64 with Stafford's variant 13). torch has no unsigned 64-bit arithmetic: int64 wraps around the
same way, and a logical shift is an arithmetic one with the sign's copies masked off. Imports torch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

CHUNK = 1 << 16  # elements that a CPU hashes at a time, in its caches: the hash needs 16 bytes for each beside the result, which no plan counts
_AT_ONCE = 64  # chunks that an accelerator hashes at a time, so that launching costs less than working


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}  # of a mantissa


def _xor_shift(z: torch.Tensor, by: int) -> torch.Tensor:
    return z.bitwise_xor_((z >> by).bitwise_and_((1 << (64 - by)) - 1))


def _mix(z: torch.Tensor) -> torch.Tensor:
    """mix64, in place."""
    _xor_shift(z, 30).mul_(_FIRST)
    _xor_shift(z, 27).mul_(_SECOND)
    return _xor_shift(z, 31)


def uniform(seed: torch.Tensor, coords: Sequence[torch.Tensor], size: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers of U[0, 1), equal for equal counters and places.

    Args:
        seed: the counter, int64 [].
        coords: for each dim the indices (int64) in the whole tensor of the elements wanted.
        size: of the whole tensor.
        dtype: of the result; a narrower one has the top bits of the same numbers.
    Returns:
        `[len(coords[0]), len(coords[1]), ...]`.
    """
    bits = _BITS[dtype]
    key = _mix((seed + 1) * _GOLDEN) + _GOLDEN
    shape = [len(c) for c in coords]
    outer = torch.zeros(1, dtype=torch.int64, device=seed.device)
    for dim, places in enumerate(coords[:-1]):  # flat index of each row
        outer = (outer[:, None] + places * prod(size[dim + 1 :])).flatten()
    inner = coords[-1] if coords else torch.zeros(1, dtype=torch.int64, device=seed.device)
    made = torch.empty(len(outer), len(inner), dtype=dtype, device=seed.device)
    chunk = CHUNK if seed.device.type == "cpu" else CHUNK * _AT_ONCE
    columns = min(len(inner), chunk) or 1
    rows = max(1, chunk // columns)
    for row in range(0, len(outer), rows):
        for column in range(0, len(inner), columns):
            z = (outer[row : row + rows, None] + inner[column : column + columns]).mul_(_GOLDEN).add_(key)
            z = (_mix(z) >> (64 - bits)).bitwise_and_((1 << bits) - 1)
            made[row : row + rows, column : column + columns] = z.to(dtype).mul_(2.0**-bits)
    return made.view(shape)


def poisson(uniform: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """Poisson numbers from U[0, 1) by inversion: the least k with P(X <= k) > u, found by bisection.

    P(X <= k) is the regularised upper gamma function Q(k + 1, rate) (DLMF 8.4.10 with 8.2.4), in float64. Numbers beyond
    rate + 20 sqrt(rate) + 60 are cut off (probability below 1e-60).
    """
    rate64, u = rate.to(torch.float64), uniform.to(torch.float64)
    low = torch.full_like(rate64, -1.0)  # P(X <= low) <= u
    high = (rate64 + 20 * rate64.sqrt() + 60).floor()
    steps = int(torch.log2(high.max() + 2).ceil()) + 1 if high.numel() else 0
    for _ in range(steps):
        middle = ((low + high) / 2).floor().clamp_(min=0)
        above = torch.special.gammaincc(middle + 1, rate64) > u
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return torch.where(rate64 > 0, high, 0).to(rate.dtype)
