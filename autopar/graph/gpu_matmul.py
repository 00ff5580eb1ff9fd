"""GPU matmuls: linears whose columns are no multiple of 16 bytes, as two products that are.

In: torch (whoever calls has it), tensors of 16-bit numbers on a GPU. Out: their product. cuBLAS has its fast kernels for operands whose rows begin at multiples of 16 bytes and for
sizes that are multiples of them; a vocabulary of 50257 words has neither. So a linear leaves its rows that far apart (`graph.layouts.row_pitch`), its columns up to the last
multiple are one product, and those that are left (seven at most) another, in the same memory. Milliseconds, 16384 x 1024 x 50257 in bfloat16 (H200, torch 2.11, CUDA 13.0, 2026-11-26):

    as it is        forward 17.4    gradient of the input 12.0    of the weight 11.2
    rows of 50264           17.5                          12.7                  3.8
    and two products         2.47                          2.47                 2.47

Invariant: the same sums, each in the precision that cuBLAS has for them.
"""

from __future__ import annotations

from typing import Any

from .layouts import LEAST_PITCHED, ROW_BYTES, row_pitch


def even_columns(torch: Any, x: Any, width: int) -> int:
    """How many of `width` columns the first product has; 0 where one product has all."""
    if x.device.type != "cuda" or x.element_size() != 2 or width < LEAST_PITCHED or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return 0
    rest = width % (ROW_BYTES // 2)
    return width - rest if rest else 0


def _pitch(x: Any, width: int) -> int:
    return row_pitch(width, str(x.dtype).removeprefix("torch."))


def multiply_apart(torch: Any, x: Any, weight: Any, bias: Any, even: int) -> Any:
    """`x [..., i]` times `weight [o, i]` plus `bias [o]` -> `[..., o]`, its rows apart.

    Args:
        even: of `even_columns`.
    """
    width = weight.shape[0]
    whole = x.new_empty((*x.shape[:-1], _pitch(x, width)))[..., :width]
    flat, rows = x.reshape(-1, x.shape[-1]), whole.view(-1, width)
    for part in (slice(0, even), slice(even, width)):
        if bias is None:
            torch.mm(flat, weight[part].t(), out=rows[:, part])
        else:
            torch.addmm(bias[part], flat, weight[part].t(), out=rows[:, part])
    return whole


def input_grad_apart(torch: Any, grad: Any, weight: Any, even: int) -> Any:
    """`grad [..., o]` times `weight [o, i]` -> `[..., i]`."""
    rows = rows_apart(torch, grad)
    found = torch.mm(rows[:, :even], weight[:even])
    return found.addmm_(rows[:, even:], weight[even:]).view(*grad.shape[:-1], weight.shape[1])


def weight_grad_apart(torch: Any, grad: Any, flat: Any, even: int, out: Any) -> Any:
    """`grad [..., o]`, transposed, times `flat [rows, i]` -> `out [o, i]`."""
    rows = rows_apart(torch, grad)
    torch.mm(rows[:, :even].t(), flat, out=out[:even])
    torch.mm(rows[:, even:].t(), flat, out=out[even:])
    return out


def rows_apart(torch: Any, grad: Any) -> Any:
    """`grad [..., o]` as a matrix whose rows begin at multiples of 16 bytes; a copy where it has others."""
    rows = grad.reshape(-1, grad.shape[-1])
    if rows.stride(1) == 1 and rows.stride(0) * rows.element_size() % ROW_BYTES == 0 and rows.data_ptr() % ROW_BYTES == 0:
        return rows
    width = rows.shape[1]
    return rows.new_empty((rows.shape[0], _pitch(rows, width)))[:, :width].copy_(rows)
