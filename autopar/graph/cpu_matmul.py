"""CPU matmuls: which library multiplies float32 matrices on a CPU, by their sizes alone, so that ranks which do the same do it by the same kernel.

In: dtype and sizes. Out: whether oneDNN has the product, which torch calls by itself only for 16 bits, or what torch calls (MKL). The runtime asks when it runs a linear or the
gradient of its input, `autopar profile` when it measures one.

On AMD processors MKL runs without the kernels that Intel's have. Milliseconds of torch's call and of oneDNN's, one thread, median of 25 (AMD EPYC with AVX-512, torch 2.13.0 with oneDNN 3.12, 2026-11-25), rows x in x out:

    512 x 384 x 384     forward 1.56, 1.48     input's gradient 1.69, 1.53     weight's gradient 1.56, 1.56
    512 x 1536 x 384            7.16, 6.20                      8.96, 6.58                       8.30, 6.88
    512 x 384 x 8192            46.1, 33.3                      33.9, 33.0                       35.4, 35.7
    256 x 1024 x 2048           12.7, 10.3                      11.5, 10.5                       12.3, 11.3
    64 x 64 x 64              0.013, 0.023                    0.009, 0.022                     0.011, 0.028

A weight's gradient is mostly as fast by either (and some are written where they travel, which oneDNN's call cannot), so it stays torch's. On Intel's processors nobody measured.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

LEAST_FLOPS = 1 << 26  # of a product: below, a call of oneDNN, which looks its kernel up, costs more than it saves


def runs_onednn(dtype: str, rows: int, inner: int, cols: int) -> bool:
    """Whether `[rows, inner]` times `[inner, cols]` is oneDNN's on this machine."""
    return dtype == "float32" and 2 * rows * inner * cols >= LEAST_FLOPS and _vendor() == "AuthenticAMD"


@cache
def _vendor() -> str:
    """As the processor calls its maker; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
