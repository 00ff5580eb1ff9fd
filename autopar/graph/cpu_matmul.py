"""CPU matmuls: float32 matrices by oneDNN where that is faster than what torch calls (MKL); torch itself gives oneDNN only 16 bits.

In: torch (whoever calls has it), tensors. Out: their product. The runtime asks for linears and their gradients, `autopar profile` when it
measures one. Invariant: on hosts of one kind the sizes alone decide, so ranks that compute the same do it by the same kernel.

On AMD's processors MKL runs without the AVX-512 kernels that Intel's have, which oneDNN has there, too. Milliseconds of torch's call and of oneDNN's, one thread (torch 2.13.0 with oneDNN 3.12), rows x in x out; of the weight's
gradient also oneDNN's in blocks, as it is made:

    AMD EPYC with AVX-512, 2026-11-25
    512 x 384 x 384     forward 1.56, 1.48     input's gradient 1.69, 1.53     weight's gradient 1.56, 1.56
    512 x 1536 x 384            7.16, 6.20                      8.96, 6.58                       8.30, 6.88
    512 x 384 x 8192            46.1, 33.3                      33.9, 33.0                       35.4, 35.7
    256 x 1024 x 2048           12.7, 10.3                      11.5, 10.5                       12.3, 11.3
    16384 x 16 x 1024           35.1, 34.0                      16.6, 10.8
    16 x 4096 x 4096            12.9, 8.84                      12.8, 11.1
    384 x 384 x 384             1.18, 1.12                      1.15, 1.04
    256 x 256 x 256            0.337, 0.326                    0.338, 0.316
    128 x 128 x 128            0.049, 0.058                    0.048, 0.055
    1 x 4096 x 4096             3.15, 2.92                      2.95, 6.94

    the same with AVX-VNNI (Zen 5), whose units have all 512 bits, 2026-11-28
    512 x 384 x 384     forward 1.40, 0.62     input's gradient 1.34, 0.59     weight's gradient 1.31, 0.66, 0.74
    512 x 1536 x 384            5.62, 2.49                      5.44, 2.37                       5.24, 2.38, 2.55
    512 x 384 x 8192            32.1, 13.8                      29.4, 14.3                       30.3, 15.8, 16.7
    256 x 1024 x 2048           10.1, 4.52                      9.95, 4.73                       9.40, 4.54, 5.67
    16 x 4096 x 4096            8.87, 4.94                      8.86, 7.24                       8.13, 25.1
    64 x 1024 x 1024                                                                             1.24, 0.56, 0.87
    1024 x 768 x 3072           43.9, 20.6                      43.3, 23.3                       44.9, 21.0, 22.7
    4096 x 256 x 256            4.76, 2.18                      4.81, 2.06                       5.24, 2.87, 2.92
    8192 x 768 x 3072                                                                             360, -, 183
    65536 x 256 x 64                                                                             23.5, -, 15.0
    256 x 256 x 256            0.314, 0.150                    0.313, 0.148                     0.307, 0.168
    64 x 256 x 256             0.081, 0.050                    0.081, 0.046                     0.080, 0.055
    512 x 64 x 256             0.157, 0.079                    0.157, 0.076                     0.186, 0.131 (two threads 0.103, 0.141)
    128 x 128 x 128            0.041, 0.029                    0.040, 0.029                     0.042, 0.037

With two threads it is the same where nothing is said. So with such units smaller products are oneDNN's, and weights' gradients, too, which without them gain nothing that copies would leave. A gradient as one product copies all of `grad`
(32 MiB beside a head of 8,192 words and 1,024 tokens), in blocks 1 to 5 (up to 4,096 columns), wherever it is written (`rows_scratch_bytes`). Without AVX-512 both run
AVX2, and MKL's is the faster (AMD EPYC 7003, 2026-11-27, 30 products of 16 to 512 rows and weights of 256 x 1024 to 4096 x 1024: oneDNN takes 0.75 to 1.22 of its time forward, median 1.04, and 0.95 to 1.60 of it for the gradient of the
input, median 1.17). Nobody measured Intel's processors.
"""

from __future__ import annotations

from typing import Any

from .machine import processor_has, processor_maker

LEAST_FLOPS, LEAST_WIDE_FLOPS, LEAST_GRAD_FLOPS = 1 << 26, 1 << 24, 1 << 25  # of a product, below which finding the kernel takes what it saves: on a processor, on one with wide units, of a weight's gradient there
LEAST_DIM, LEAST_SUMMED = 16, 32  # of its rows, inner and columns (a product by a vector is torch's); of the rows that a weight's gradient sums over
SWAPPED = 4  # times as wide, and it is cut itself, for all that its blocks are then written along columns
AT_ONCE = 1024  # rows that a weight's gradient sums at once: with all of many, what is cut would have few columns, for each of which the other operand is read again
LEAST_BLOCK = 128  # columns of what is cut
BLOCK_BYTES = 1 << 19  # of a weight's gradient that are made at once, and half of what is copied for them: oneDNN's call copies what it reads along columns, and writes memory of its own


def runs_onednn(dtype: str, rows: int, inner: int, cols: int) -> bool:
    """Whether `[rows, inner]` times `[inner, cols]` is oneDNN's on this machine."""
    if dtype != "float32" or min(rows, inner, cols) < LEAST_DIM or processor_maker() != "AuthenticAMD" or not processor_has("avx512f"):
        return False
    return 2 * rows * inner * cols >= (LEAST_WIDE_FLOPS if _has_wide_units() else LEAST_FLOPS)


def grads_by_onednn(dtype: str, rows: int, inner: int, cols: int) -> bool:
    """Whether `[rows, inner]`, transposed, times `[rows, cols]`, a weight's gradient, is."""
    return _has_wide_units() and rows >= LEAST_SUMMED and 2 * rows * inner * cols >= LEAST_GRAD_FLOPS and runs_onednn(dtype, inner, rows, cols)


def _has_wide_units() -> bool:
    return processor_has("avx_vnni")  # of AMD's, Zen 5 is the first that says so; Zen 4's AVX-512 goes through units of 256 bits twice


def multiply(torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    """`x [..., i]` times `weight [o, i]` plus `bias [o]` -> `[..., o]`.

    oneDNN reads a bias as if it were packed, and takes a thousand times as long where neither the weight nor its transpose is. It has no gradient, and stays out of what is compiled.
    """
    if _is_torchs(torch, x) or not runs_onednn("float32", x.numel() // max(1, x.shape[-1]), *reversed(weight.shape)):
        return torch.nn.functional.linear(x, weight, bias)
    return _ask_onednn(torch, x, weight, None if bias is None else bias.contiguous())


def multiply_rows(torch: Any, left: Any, right: Any, out: Any = None, add: bool = False) -> Any:
    """`left [n, a]`, transposed, times `right [n, b]` -> `[a, b]`: a weight's gradient.

    Args:
        out: where it is written; else in memory of its own.
        add: to what is in `out`.
    """
    if _is_torchs(torch, left) or not grads_by_onednn("float32", *left.shape, right.shape[1]):
        return out.addmm_(left.t(), right) if add else torch.mm(left.t(), right) if out is None else torch.mm(left.t(), right, out=out)
    swapped = right.shape[1] > SWAPPED * left.shape[1]  # else what is wide would be read for every few rows of the narrow one
    wide, other = (right, left) if swapped else (left, right)
    step = _block_columns(wide.shape[0], other.shape[1])
    if out is None and wide.shape[0] <= AT_ONCE and wide.shape[1] <= step:
        return _ask_onednn(torch, left.t(), right.t())
    out = left.new_empty(left.shape[1], right.shape[1]) if out is None else out
    blocks = (out.t() if swapped else out).split(step)
    for first, rows, others in zip(range(0, wide.shape[0], AT_ONCE), wide.split(AT_ONCE), other.split(AT_ONCE)):
        packed = _packed(others.t())
        for part, block in zip(rows.split(step, dim=1), blocks):
            found = _ask_onednn(torch, part.contiguous().t(), packed)
            block.add_(found) if add or first else block.copy_(found)
    return out


def rows_scratch_bytes(dtype: str, rows: int, inner: int, cols: int, given: bool) -> int:
    """What `multiply_rows` holds beside `[rows, inner]`, `[rows, cols]` and their product: a block of columns, once more as oneDNN reads it, and what it makes of that and of the block before.
    (Measured on Zen 5, torch 2.13.0: 28 figures of 14 products; 20 within 1 %, of the others up to 65 KiB are missing, which are oneDNN's own.)

    Args:
        given: whether there is a place for the product; else one small product is made at once.
    """
    if not grads_by_onednn(dtype, rows, inner, cols):
        return 0
    wide, other = (cols, inner) if cols > SWAPPED * inner else (inner, cols)
    at_once, step = min(rows, AT_ONCE), _block_columns(rows, other)
    if not given and rows <= AT_ONCE and wide <= step:
        return 4 * rows * inner
    first, copies = min(step, wide), 2 if wide > step else 1
    second = min(first, wide - step) if wide > step else first if rows > AT_ONCE else 0
    return 4 * max(first * (copies * at_once + other), second * (copies * at_once + other) + (first * other if second else 0))


def _block_columns(rows: int, other: int) -> int:
    return max(LEAST_BLOCK, min(BLOCK_BYTES // (4 * other), BLOCK_BYTES // (2 * min(AT_ONCE, rows))))


def _is_torchs(torch: Any, x: Any) -> bool:
    return x.dtype is not torch.float32 or x.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling() or not torch.backends.mkldnn.is_available()


def _ask_onednn(torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    return torch.ops.mkldnn._linear_pointwise(x, _packed(weight), bias, "none", [], "")  # what torch.compile calls on a CPU; as it is in 2.11 to 2.13


def _packed(weight: Any) -> Any:
    return weight if weight.is_contiguous() or weight.t().is_contiguous() else weight.contiguous()
