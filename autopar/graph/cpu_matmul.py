"""CPU matmuls: float32 matrices by oneDNN where that is faster than what torch calls (MKL); torch itself gives oneDNN only 16 bits.

In: torch (whoever calls has it), tensors. Out: their product. The runtime asks for linears and the gradients of their inputs, `autopar profile` when it
measures one. Invariant: on hosts of one kind the sizes alone decide, so ranks that compute the same do it by the same kernel.

On AMD's processors MKL runs without the AVX-512 kernels that Intel's have, which oneDNN has there, too. Milliseconds of torch's call and of oneDNN's, one thread (AMD EPYC with AVX-512, torch 2.13.0 with oneDNN 3.12, 2026-11-25), rows x in x out:

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

With two threads it is the same. Without AVX-512 both run AVX2, and MKL's is the faster (AMD EPYC 7003, the same torch, 2026-11-27, 30 products of 16 to 512 rows and weights of 256 x 1024 to 4096 x 1024: oneDNN takes 0.75 to 1.22 of its time
forward, median 1.04, and 0.95 to 1.60 of it for the gradient of the input, median 1.17). The gradient of a weight stays torch's: some are written where they travel or added to a sum, which oneDNN's call cannot. Nobody measured Intel's processors.
"""

from __future__ import annotations

from typing import Any

from .machine import processor_has, processor_maker

LEAST_FLOPS = 1 << 26  # of a product: below, finding the kernel takes what it saves
LEAST_DIM = 16  # of its rows, inner and columns: a product by a vector is torch's


def runs_onednn(dtype: str, rows: int, inner: int, cols: int) -> bool:
    """Whether `[rows, inner]` times `[inner, cols]` is oneDNN's on this machine."""
    return dtype == "float32" and min(rows, inner, cols) >= LEAST_DIM and 2 * rows * inner * cols >= LEAST_FLOPS and processor_maker() == "AuthenticAMD" and processor_has("avx512f")


def multiply(torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    """`x [..., i]` times `weight [o, i]` plus `bias [o]` -> `[..., o]`.

    oneDNN reads a bias as if it were packed, and takes a thousand times as long where neither the weight nor its transpose is. It has no gradient, and stays out of what is compiled.
    """
    plain = x.dtype is not torch.float32 or x.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling() or not torch.backends.mkldnn.is_available()
    if plain or not runs_onednn("float32", x.numel() // max(1, x.shape[-1]), *reversed(weight.shape)):
        return torch.nn.functional.linear(x, weight, bias)
    packed = weight if weight.is_contiguous() or weight.t().is_contiguous() else weight.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x, packed, None if bias is None else bias.contiguous(), "none", [], "")  # what torch.compile calls on a CPU; as it is in 2.11 to 2.13
